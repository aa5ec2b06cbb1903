"""Takes Arrow batches from Spark in a thread of its own, because only a blocking read can wait for Spark's stream."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from threading import Thread

import pyarrow as pa


class RowQueue:
    """The batches that have come and were not taken. It can be waited for as a connection can.

    Args:
        batches: Spark's stream.
    """

    wants_write = False
    wake_at = inf

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._queue: deque[pa.RecordBatch] = deque()
        self._ended = False
        self._failed: BaseException | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._thread = Thread(target=self._take, name="magnetar-take", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            for batch in self._batches:
                self._queue.append(batch)
                self._wake()
        except BaseException as error:  # noqa: BLE001 - raised again by the task's own thread
            self._failed = error
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # else the loop is awake already
            os.write(self._write, b"x")

    def fileno(self) -> int:
        """The end of the pipe that is waited for."""
        return self._read

    def drain(self, _readable: bool = True, _writable: bool = False) -> None:
        """Called by the loop when it was woken."""
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    @property
    def over(self) -> bool:
        """Whether the stream has ended and everything was taken."""
        return self._ended and not self._queue

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The batches that are there.

        Raises:
            BaseException: what Spark's stream raised.
        """
        while self._queue:
            yield self._queue.popleft()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Close the pipe; the stream has ended."""
        self._thread.join()
        os.close(self._read)
        os.close(self._write)
