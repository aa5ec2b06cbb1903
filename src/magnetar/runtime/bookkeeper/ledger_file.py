"""One file of a log on BookKeeper: its bytes are the payloads of a ledger's entries, one after the other."""

import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.runtime.bookkeeper.ledgers import Closed, LedgerEntry, Readable, Writable
from magnetar.storage.bookkeeper.entry_offsets import EntryOffsets

ENTRY_BYTES_MAX: Final = 1 << 20
"""The largest entry. Bookies end connections that send frames above 5 MiB, and a bookie has each entry in memory as a whole."""

ENTRIES_MAX: Final = 64
"""Entries that one read of a ledger asks for: with the largest ones that is 64 MiB."""


class LedgerBytes:
    """The bytes of one ledger as a file, for all who have it open. Thread-safe. Made by `written` or `closed`.

    Args:
        reader: the ledger.
        writer: the same, if this process writes it.
        entries: how many the ledger has.
        size: bytes of their payloads.
        cut: the file ends here even if the ledger does not; -1: it ends with the ledger.

    Attributes:
        broken: whether an append failed. What was confirmed can be read; to learn what else is stored, recover the ledger.
    """

    def __init__(self, reader: Readable, writer: Writable | None, entries: int, size: int, cut: int) -> None:
        self.broken = False
        self._handles = 0
        self._deleted = False
        self._lock = threading.Lock()
        self._reader, self._writer = reader, writer
        self._entries, self._end, self._cut = entries, size, cut
        self._offsets = EntryOffsets(entries, size)
        self._confirmed = entries, size
        # Where the file ends after each `submit` that is not confirmed.
        self._submitted: deque[tuple[int, int]] = deque()
        self._landed = 0

    @classmethod
    def written(cls, ledger: Writable) -> "LedgerBytes":
        """A new ledger, which this process writes."""
        return cls(ledger, ledger, 0, 0, -1)

    @classmethod
    def closed(cls, ledger: Closed, cut: int) -> "LedgerBytes":
        """A ledger that no process writes."""
        return cls(ledger, None, ledger.entries, ledger.size, cut)

    @property
    def ledger(self) -> int:
        """The id of the ledger."""
        return self._reader.id

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end if self._cut < 0 else min(self._end, self._cut)

    def acquire(self) -> None:
        """One more has it open."""
        self._handles += 1

    def release(self) -> bool:
        """One fewer has it open; returns whether the ledger is to be deleted: its file is deleted, and no handle is open."""
        self._handles -= 1
        return self._deleted and not self._handles

    def delete(self) -> bool:
        """The file is deleted; returns whether the ledger is to be deleted now, because no handle is open."""
        self._deleted = True
        return not self._handles

    def cut(self, size: int) -> None:
        """The file ends at an offset from now on."""
        self._cut = size if self._cut < 0 else min(size, self._cut)

    def append(self, buffers: Sequence[bytes]) -> int:
        """Submit bytes, in entries as large as allowed; the number of bytes.

        Raises:
            OSError: they may be stored or not.
        """
        if self._writer is None or self.broken:
            raise OSError(errno.EBADF, f"ledger {self.ledger} takes no more entries")
        data = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        payloads = [bytes(data[at : at + ENTRY_BYTES_MAX]) for at in range(0, len(data), ENTRY_BYTES_MAX)]
        if not payloads:
            return 0
        with self._lock:
            self._writer.submit(payloads)
            for payload in payloads:
                self._offsets.note(self._entries, self._end)
                self._entries += 1
                self._end += len(payload)
            self._submitted.append((self._entries, self._end))
        return len(data)

    def confirm(self) -> None:
        """Wait until everything appended is confirmed.

        Raises:
            OSError: it may be stored or not.
        """
        if self._writer is None or self.broken:
            return
        with self._lock:
            submitted = self._landed + len(self._submitted)
        self._writer.wait()
        self._land(submitted)

    def watch(self, woken: Callable[[], None]) -> None:
        """See `Writable.watch`. Only for the writer."""
        assert self._writer is not None
        self._writer.watch(woken)

    def durable(self) -> int:
        """Bytes of the file that are confirmed, without waiting.

        Raises:
            OSError: not more than at the last call, and no more will be.
        """
        if self._writer is None or self.broken:
            raise OSError(errno.EBADF, f"ledger {self.ledger} takes no more entries")
        self._land(self._writer.landed(self._landed))
        return self._confirmed[1]

    def _land(self, landed: int) -> None:
        """This number of submissions is confirmed. A reader may know it before the writer does, or after `fail`."""
        with self._lock:
            while self._submitted and self._landed < landed:
                self._landed += 1
                self._confirmed = self._submitted.popleft()

    def fail(self) -> None:
        """An append failed: the file ends, for those who have it open, with what was confirmed."""
        with self._lock:
            self.broken = True
            self._entries, self._end = self._confirmed
            self._submitted.clear()

    def close_writer(self) -> None:
        """Wait until everything appended is confirmed, and end the ledger, unless an append failed.

        Raises:
            OSError: it may be closed or not.
        """
        self.confirm()
        writer, self._writer = self._writer, None
        if writer is not None and not self.broken:
            writer.close()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset on; fewer only at the end of the file.

        Raises:
            OSError: they cannot be read.
        """
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        if self._confirmed[1] < end:
            self.confirm()
        # Entries after these may be under way, and bookies refuse to say anything about them. Or an append has failed
        # meanwhile, and the file ends here.
        with self._lock:
            entries_confirmed, bytes_confirmed = self._confirmed
        end = min(end, bytes_confirmed)
        if offset >= end:
            return b""
        entry, start = self._find(offset, entries_confirmed)
        found: list[bytes] = []
        at = start
        while at < end:
            # As many as it takes if they are as large as the mean of all; the next round asks for those that are missing.
            more = (end - at) * self._entries // max(self._end, 1) + 1
            entries = self._read(entry, min(entry + min(more, ENTRIES_MAX), entries_confirmed) - 1)
            found += [one.payload for one in entries]
            entry += len(entries)
            at = entries[-1].end
        return b"".join(found)[offset - start : end - start]

    def _find(self, offset: int, entries: int) -> tuple[int, int]:
        """The entry that holds an offset, and where it begins. `entries`: the ledger has that many."""
        while True:
            with self._lock:
                entry, start = self._offsets.before(offset)
                guess = min(self._offsets.guess(offset), entries - 1)
            if guess == entry:
                return entry, start
            self._read(guess, guess)

    def _read(self, first: int, last: int) -> list[LedgerEntry]:
        entries = self._reader.read(first, last)
        with self._lock:
            for entry, one in enumerate(entries, first):
                self._offsets.note(entry, one.end - len(one.payload))
        return entries


class LedgerFile:
    """A handle of a file, as `storage.files.LogFile`.

    Args:
        content: shared by all handles of the file.
        truncated: records in the chain that the file ends at an offset.
        released: the handle is closed.
        dropped: the handle is gone without having been closed. Called on any thread; must not wait.
        failed: called after an append failed.
        writes: whether this handle writes the file.
    """

    def __init__(
        self,
        content: LedgerBytes,
        truncated: Callable[[LedgerBytes, int], None],
        released: Callable[[LedgerBytes], None],
        failed: Callable[[], None],
        dropped: Callable[[LedgerBytes], None],
        *,
        writes: bool,
    ) -> None:
        self._content = content
        self._truncated = truncated
        self._released = released
        self._failed = failed
        self._dropped = dropped
        self._writes = writes
        self._open = True
        content.acquire()

    def writev(self, buffers: Sequence[bytes]) -> int:
        """Submit bytes; `sync` waits for them."""
        return self._try(lambda: self._content.append(buffers))

    def write_through(self, buffers: Sequence[bytes]) -> int:
        """Submit bytes and wait until they are confirmed."""

        def write() -> int:
            count = self._content.append(buffers)
            self._content.confirm()
            return count

        return self._try(write)

    def sync(self) -> None:
        """Wait until everything written is confirmed."""

        def confirm() -> int:
            self._content.confirm()
            return 0

        self._try(confirm)

    def behind(self, woken: Callable[[], None]) -> Callable[[], int]:
        """Bookies confirm what was written: see `storage.files.LogFile`."""
        self._content.watch(woken)
        return lambda: self._try(self._content.durable)

    def _try(self, write: Callable[[], int]) -> int:
        try:
            return write()
        except OSError as error:
            self._fail(error)
            raise

    def _fail(self, error: OSError) -> None:
        self._content.fail()
        if error.errno != errno.ESTALE:  # then it is known that the log is another broker's
            self._failed()

    def renew(self, offset: int, end: int) -> None:
        """Nothing: what can be read of a ledger is durable."""

    def pread(self, offset: int, size: int) -> bytes:
        """Read bytes; fewer only at the end of the file."""
        return self._content.read(offset, size)

    def pread_now(self, offset: int, size: int) -> bytes:
        """Raises BlockingIOError: every read asks a bookie, and recent entries are in the broker's cache."""
        raise BlockingIOError(
            errno.EAGAIN, f"{size} bytes at {offset} of ledger {self._content.ledger} are at the bookies"
        )

    def truncate(self, size: int) -> None:
        """Record in the chain that the file ends at an offset."""
        self._truncated(self._content, size)

    def close(self) -> None:
        """Let go. The handle that wrote the file ends its ledger, unless writing failed: then `open` recovers it.

        Nothing is raised if the ledger cannot be ended (it may be fenced): what was confirmed is stored, and `open` recovers it.
        """
        if not self._open:
            return
        self._open = False
        if self._writes:
            try:
                self._content.close_writer()
            except OSError as error:
                self._fail(error)
        self._released(self._content)

    def __del__(self) -> None:
        # Readers of the log forget a segment that is deleted without closing it, because another thread may be reading.
        if self._open:
            self._dropped(self._content)
