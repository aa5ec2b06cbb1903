"""The broker's log, in two lanes: one for large appends, one for all others.

    usual lane   a thread and an open segment; small appends
    large lane   a thread and an open segment; appends of `LARGE_BYTES` and more

A megabyte is on its way to the disk for one to four milliseconds. In one lane every publish that comes meanwhile waits for
it; in two only the disk is shared, and the large lane releases it after each piece (`storage.log.PIECE_BYTES`).

The appends of one topic that are on their way are all in one lane, see `TopicLog.stage`. So reports of one topic come in its
order; those of different topics come in any order. A failure of one lane does not fail the other, but most disks fail both.
Topics whose appends failed continue when *both* lanes work: they give the same origin indexes again, perhaps in the other lane,
which is safe only when the failed segment has a seal (docs/design/storage.md#failed-writes).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.thread import LogThread
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.files import Files
from magnetar.storage.ledgerfile import LedgerFile
from magnetar.storage.recovery import Recovered
from magnetar.storage.topiclog import Span


class Health:
    """The lanes that have failed and not healed, and the callbacks that report it.

    Args:
        on_failed, on_healed: see `LogThread`.
    """

    def __init__(self, on_failed: Callable[[list[Append], str], None], on_healed: Callable[[], None]) -> None:
        self._on_failed = on_failed
        self._on_healed = on_healed
        self._lock = threading.Lock()
        self._broken: set[str] = set()

    def failed(self, lane: str, batch: list[Append], error: str) -> None:
        """Report that these appends of a lane failed."""
        with self._lock:  # the report, too: a healing reported after this failure must not be one from before it
            self._broken.add(lane)
            self._on_failed(batch, error)

    def healed(self, lane: str) -> None:
        """A lane takes appends again."""
        with self._lock:
            self._broken.discard(lane)
            if not self._broken:
                self._on_healed()


class Lanes:
    """The log of one broker, in two lanes.

    Args:
        files: the file system.
        folder: of the segments.
        config: see `LogThread`. Only with `fsync = "always"` the large lane is used: else a power cut may lose answered appends,
            and for a topic that was in both lanes it could be the earlier ones.
        on_appended, on_failed, on_healed: see `LogThread`; called on either thread.
        ledgers: see `LogThread`.
        more: what else both are made with.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        config: BrokerConfig,
        *,
        on_appended: Callable[[list[tuple[Append, Location]]], None],
        on_failed: Callable[[list[Append], str], None],
        on_healed: Callable[[], None],
        ledgers: LedgerFile | None = None,
        **more: Any,
    ) -> None:
        self._ledgers = ledgers
        health = Health(on_failed, on_healed)

        def failed(name: str, batch: list[Append], error: str) -> None:
            health.failed(name, batch, error)
            # The other one may have what can be given back: it has the segments of all earlier runs, or those of this one.
            (self._usual if name == "large" else self._large).look_for_room()

        def lane(name: str, beside: LogThread | None) -> LogThread:
            return LogThread(
                files,
                folder,
                config,
                on_appended=on_appended,
                on_failed=partial(failed, name),
                on_healed=partial(health.healed, name),
                beside=beside,
                ledgers=ledgers,
                **more,
            )

        self._usual = lane("usual", None)
        self._large = lane("large", self._usual)
        self._two = config.fsync == "always"

    def start(self, check: Callable[[Recovered], None] = lambda _recovered: None) -> Recovered:
        """Recover, open a new segment for each lane, start the threads.

        Every start begins both, even if only one is used: recovery assumes that a crash can tear only the last segment of each
        lane, and that older ones are whole. May be called again when it failed.

        Args:
            check: gets the recovered content before anything is begun; its exceptions are raised.

        Raises:
            StorageError: the log cannot be read, or no new segment can be made.
        """
        recovered = self._usual.recover()
        check(recovered)
        self._usual.begin(recovered)
        self._large.begin(Recovered(last_ledger=recovered.last_ledger))
        self._usual.run()
        self._large.run()
        return recovered

    def forget(self, ledgers: Iterable[int]) -> None:
        """The file of ledgers names these no more: they were dropped in an earlier run, and are not in the log."""
        if self._ledgers is not None:
            with contextlib.suppress(OSError):  # the next start says so again
                self._ledgers.tell((), (), ledgers)

    def stop(self) -> None:
        """Write what waits, then end."""
        self._large.stop()
        self._usual.stop()

    def submit(self, append: Append) -> None:
        """Queue an append; reported as appended or failed."""
        (self._large if append.large and self._two else self._usual).submit(append)

    def sync(self, then: Callable[[str], None]) -> None:
        """Make everything durable that was submitted so far; see `LogThread.sync`."""

        def usual_done(error: str) -> None:
            if error:
                then(error)
            else:
                self._large.sync(then)

        self._usual.sync(usual_done)

    def drop(self, ledgers: Iterable[int]) -> None:
        """Forget ledgers that are no longer needed; see `LogThread.drop`."""
        gone = list(ledgers)
        self._usual.drop(gone)
        self._large.drop(gone)

    def read(self, spans: Sequence[Span]) -> list[StoredEntry]:
        """Read entries of either lane, from any thread; see `LogThread.read`."""
        return self._usual.read(spans)

    def read_now(self, spans: Sequence[Span]) -> list[StoredEntry] | None:
        """The entries, if memory has all of them; see `LogThread.read_now`."""
        return self._usual.read_now(spans)

    @property
    def let_by(self) -> LogThread:
        """The thread that the event loop lets have the interpreter (`runtime.interpreter.gil_yield`): the usual lane's.

        Not the large one's: what takes a millisecond anyway may wait for the interpreter, and while it is copied into the kernel,
        half of that, the thread that let it by found no processor where there are two.
        """
        return self._usual
