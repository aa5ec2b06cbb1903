"""Deletes segments piece by piece in the background.

Freeing 256 MB takes ext4 50 ms in which the caller waits. The next sync of every file takes 40 ms more, because one transaction
of the file system frees all of it. Retention that deleted four segments in a row delayed every publish for 0.3 s. When the
files are truncated in pieces, with pauses, no publish waits for more than some 3 ms.
"""

import contextlib
import logging
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from magnetar.runtime.log.files import open_file

logger = logging.getLogger("magnetar.log")

PIECE_BYTES: Final = 16 << 20
"""Cut off at once: some 3 ms of work for the file system."""

PAUSE_S: Final = 0.02
"""Pause between two pieces, so that most of the time is for other writes: 700 MB are freed per second."""


class Discarder:
    """Deletes files, one after the other, on a thread of its own that is there when there is something to delete.

    A file that is not deleted yet when the process is killed is found at the next start, as a segment without needed records.
    """

    def __init__(self) -> None:
        self._paths: SimpleQueue[Path | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def discard(self, path: Path) -> None:
        """Delete a file soon, from any thread; files go in the order in which they were named."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="discard", daemon=True)
                self._thread.start()
            self._paths.put(path)

    def close(self) -> None:
        """Delete the rest without pauses, and end. Nothing is discarded from now on."""
        self._hurry.set()
        if self._thread is not None:
            self._paths.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (path := self._paths.get()) is not None:
            try:
                self._delete(path)
            except OSError as error:
                logger.error("cannot delete %s: %s", path, error.strerror or error)

    def _delete(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            descriptor = open_file(path, os.O_RDWR)
            try:
                # The name goes first: a reader that finds less than there was distinguishes a deleted segment from a damaged one.
                path.unlink()
                there = os.fstat(descriptor)
                left = there.st_size if not there.st_nlink else 0  # another hard link (a backup) keeps everything
                while left > PIECE_BYTES and not self._hurry.wait(PAUSE_S):
                    left -= PIECE_BYTES
                    os.ftruncate(descriptor, left)
            finally:
                os.close(descriptor)
