"""BookKeeper and ZooKeeper in memory, for tests of the log on ledgers: `MemoryLedgers` and `MemoryRecord`, with faults.

A `MemoryLedgers` is one process's client; clients that are made from one `Bookies` see the same ledgers.
"""

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.bookkeeper.ledgers import Closed, LedgerEntry, VersionConflict
from magnetar.storage.bookkeeper.chain import Chain

ROOT = Path("/log")


@dataclass
class Stored:
    """One ledger as the bookies have it.

    Attributes:
        payloads: of all entries that an ack quorum has.
        fenced: whether the writer is refused.
        closed: whether it has ended.
    """

    payloads: list[bytes] = field(default_factory=list)
    fenced: bool = False
    closed: bool = False


@dataclass
class Bookies:
    """All ledgers.

    Attributes:
        random: decides what is stored of an append that fails.
        deleted: ledgers that are gone.
        unreadable: the last entries of these ledgers cannot be read, with this error number.
    """

    random: random.Random
    ledgers: dict[int, Stored] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    unreadable: dict[int, int] = field(default_factory=dict)
    reads: int = 0


class MemoryLedger:
    """A ledger in the hands of a client: `Writable` or `Closed`."""

    def __init__(self, bookies: Bookies, ledger: int) -> None:
        self.id = ledger
        self.bookies = bookies
        self.stored = bookies.ledgers[ledger]

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """A part of what is asked for, as bookies may answer."""
        self.bookies.reads += 1
        if self.id in self.bookies.deleted:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} is gone")
        found = self.stored.payloads
        if not 0 <= first <= last < len(found):
            raise OSError(errno.ETIMEDOUT, f"entries {first} to {last} of {len(found)}")
        if (error := self.bookies.unreadable.get(self.id)) is not None:
            last = min(last, len(found) - 2)
            if last < first:
                raise OSError(error, "no answer")
        last = self.bookies.random.randint(first, last)
        ends = [sum(map(len, found[: number + 1])) for number in range(first, last + 1)]
        return [LedgerEntry(found[number], end) for number, end in zip(range(first, last + 1), ends, strict=True)]


class MemoryWriter(MemoryLedger):
    """`Writable`. `fail_next` makes the next `wait`, or what stands for it, fail with an unknown outcome.

    Without `held`, each question what has landed confirms some submissions. With it, `land` does.
    """

    def __init__(self, bookies: Bookies, ledger: int) -> None:
        super().__init__(bookies, ledger)
        self.waiting: list[bytes] = []
        self.sizes: list[int] = []
        self.confirmed = 0
        self.held = False
        self.woken: Callable[[], None] = lambda: None
        self.fail_next = False
        self.failed = False

    def submit(self, payloads: Sequence[bytes]) -> None:
        """Entries that wait for their confirmation."""
        if self.failed:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} takes no entries")
        assert all(payloads), "empty entries"
        self.waiting += payloads
        self.sizes.append(len(payloads))
        if not self.held:
            self.woken()

    def wait(self) -> None:
        """Store what waits, or, with a fault, any prefix of it."""
        self.store(len(self.sizes))

    def land(self, submissions: int) -> None:
        """The bookies confirm some submissions, or, with a fault, fail."""
        try:
            self.store(submissions)
        except OSError:
            assert self.failed
        self.woken()

    def landed(self, known: int) -> int:
        """What is confirmed."""
        if self.sizes and not self.held:
            self.land(self.bookies.random.randint(1, len(self.sizes)))
        if self.failed and self.confirmed <= known:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} takes no entries")
        return self.confirmed

    def watch(self, woken: Callable[[], None]) -> None:
        """`land` calls it."""
        self.woken = woken

    def store(self, submissions: int) -> None:
        """See `land`; raises OSError with a fault."""
        count = sum(self.sizes[:submissions])
        waiting, self.waiting = self.waiting[:count], self.waiting[count:]
        del self.sizes[:submissions]
        if self.failed or self.stored.fenced:
            self.failed = True
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} is fenced")
        if self.fail_next:
            self.failed = True
            waiting = waiting[: self.bookies.random.randint(0, len(waiting))]
        self.stored.payloads += waiting
        if self.failed:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id}: no bookies")
        self.confirmed += submissions

    def close(self) -> None:
        """End it."""
        if self.failed or self.stored.fenced:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} is fenced")
        self.wait()
        self.stored.closed = True


class MemoryClosed(MemoryLedger):
    """`Closed`."""

    def __init__(self, bookies: Bookies, ledger: int) -> None:
        super().__init__(bookies, ledger)
        self.entries = len(self.stored.payloads)
        self.size = sum(map(len, self.stored.payloads))


class MemoryLedgers:
    """`Ledgers`: one client.

    Attributes:
        written: the ledgers that it writes, by id.
        fail: the next call of this name fails.
    """

    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.written: dict[int, MemoryWriter] = {}
        self.fail: set[str] = set()

    def _fault(self, call: str) -> None:
        if call in self.fail:
            self.fail.discard(call)
            raise OSError(errno.ETIMEDOUT, f"{call}: planted")

    def create(self, name: str) -> MemoryWriter:
        """A new one."""
        assert name
        self._fault("create")
        ledger = len(self.bookies.ledgers)
        self.bookies.ledgers[ledger] = Stored()
        self.written[ledger] = MemoryWriter(self.bookies, ledger)
        return self.written[ledger]

    def open(self, ledger: int) -> Closed:
        """Recovered."""
        self._fault("open")
        if ledger in self.bookies.deleted:
            raise FileNotFoundError(errno.ENOENT, f"there is no ledger {ledger}")
        stored = self.bookies.ledgers[ledger]
        stored.fenced = stored.closed = True
        return MemoryClosed(self.bookies, ledger)

    def open_all(self, ledgers: Sequence[int]) -> list[Closed]:
        """One after the other."""
        return [self.open(ledger) for ledger in ledgers]

    def delete(self, ledger: int) -> None:
        """Gone."""
        self._fault("delete")
        self.bookies.deleted.add(ledger)

    def free_bytes(self) -> int:
        """Plenty."""
        return 1 << 40


@dataclass
class MemoryRecord:
    """`ChainRecord`: what ZooKeeper has, for all clients.

    Attributes:
        lose: of the next write nothing, the "answer" or the "request" is lost.
    """

    data: bytes = b""
    version: int = -1
    lose: str = ""

    def read(self) -> tuple[bytes, int]:
        """As stored."""
        return self.data, self.version

    def write(self, data: bytes, version: int) -> int:
        """Compare and set."""
        lose, self.lose = self.lose, ""
        if lose == "request":
            raise OSError(errno.ETIMEDOUT, "no answer")
        if version != self.version:
            raise VersionConflict
        self.data, self.version = data, self.version + 1
        if lose == "answer":
            raise OSError(errno.ETIMEDOUT, "no answer")
        return self.version


class Site:
    """Bookies and ZooKeeper, and the brokers that take a log there one after the other."""

    def __init__(self, seed: int = 1) -> None:
        self.bookies = Bookies(random.Random(seed))
        self.record = MemoryRecord()
        self.clients: list[MemoryLedgers] = []

    def take(self, owner: str) -> LedgerFiles:
        """Another broker, or the same one in another run, takes the log."""
        self.clients.append(MemoryLedgers(self.bookies))
        return LedgerFiles.take(self.clients[-1], self.record, ROOT, owner)

    @property
    def chain(self) -> Chain:
        """As stored."""
        return Chain.decode(self.record.data)
