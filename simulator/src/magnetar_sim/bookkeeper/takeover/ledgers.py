"""One process's clients of BookKeeper and ZooKeeper: the interfaces of `runtime.bookkeeper.ledgers`, over the models.

Before and after each operation something may happen to the process (`Steps`): it is killed, it is stopped for a while, the
request or the answer is lost.
"""

import errno
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.runtime.bookkeeper.ledgers import LedgerEntry
from magnetar.storage.bookkeeper.chain import Chain
from magnetar_sim.bookkeeper.takeover.bookies import Bookies, Ledger, TooFew
from magnetar_sim.bookkeeper.takeover.zookeeper import ZooKeeper
from magnetar_sim.disk import PowerCut
from magnetar_sim.memory.records import Violation


class Steps(Protocol):
    """What may happen to a process at an operation."""

    def step(self, kind: str) -> None:
        """Before it is carried out, or (with "-answer" appended to the kind) before its answer is there.

        Raises:
            OSError: it fails.
            PowerCut: the process is killed.
        """


class SimLedgers:
    """`Ledgers`.

    Args:
        rng: the world's.
        bookies: of the cluster.
        zookeeper: has the chain, which says what must not be deleted.
        steps: of the process.
    """

    def __init__(self, rng: random.Random, bookies: Bookies, zookeeper: ZooKeeper, steps: Steps) -> None:
        self.rng, self.bookies, self.zookeeper, self.steps = rng, bookies, zookeeper, steps
        self.deleted: set[int] = set()

    def create(self, name: str) -> "SimWriter":
        """See `Ledgers`."""
        self.steps.step("create")
        try:
            number = self.bookies.create(name)
        except TooFew:
            raise OSError(errno.ETIMEDOUT, "too few bookies for a ledger") from None
        self.steps.step("create-answer")
        return SimWriter(self, number)

    def open(self, ledger: int) -> "SimReader":
        """See `Ledgers`."""
        self.steps.step("open")
        found = self.bookies.ledgers[ledger]
        if found.deleted:
            raise FileNotFoundError(errno.ENOENT, f"there is no ledger {ledger}")
        try:
            self.bookies.recover(ledger)
        except TooFew:
            raise OSError(errno.ETIMEDOUT, f"too few bookies to recover ledger {ledger}") from None
        self.steps.step("open-answer")
        return SimReader(self, ledger)

    def open_all(self, ledgers: Sequence[int]) -> "list[SimReader]":
        """See `Ledgers`."""
        return [self.open(ledger) for ledger in ledgers]

    def delete(self, ledger: int) -> None:
        """See `Ledgers`."""
        self.steps.step("unlink")
        chain = Chain.decode(self.zookeeper.data)
        if named := [name for name, file in chain.files.items() if file.ledger == ledger]:
            raise Violation(f"ledger {ledger} is deleted, and the chain names it: {named[0]}")
        found = self.bookies.ledgers[ledger]
        found.deleted = True
        self.deleted.add(ledger)
        self.steps.step("unlink-answer")

    def free_bytes(self) -> int:
        """See `Ledgers`."""
        return 1 << 40


class SimReader:
    """`Closed`."""

    def __init__(self, client: SimLedgers, ledger: int) -> None:
        self.id = ledger
        self._client = client
        self.entries = len(self._ledger.payloads)
        self.size = self._ledger.ends[-1] if self._ledger.ends else 0

    @property
    def _ledger(self) -> Ledger:
        return self._client.bookies.ledgers[self.id]

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """See `Readable`."""
        client, ledger = self._client, self._ledger
        client.steps.step("read")
        if ledger.deleted:
            if self.id in client.deleted:
                raise Violation(f"ledger {self.id} ({ledger.name}) was deleted by the broker that reads it")
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} is gone")
        if not 0 <= first <= last < len(ledger.payloads):
            raise Violation(
                f"entries {first} to {last} of ledger {self.id} are read, and it has {len(ledger.payloads)}"
            )
        last = client.rng.randint(first, last)
        for entry in range(first, last + 1):
            if not client.bookies.readable(self.id, entry):
                if entry == first:
                    raise OSError(errno.ETIMEDOUT, f"no bookie that answers has entry {entry} of ledger {self.id}")
                last = entry - 1
                break
        return [LedgerEntry(ledger.payloads[entry], ledger.ends[entry]) for entry in range(first, last + 1)]


class SimWriter(SimReader):
    """`Writable`."""

    def __init__(self, client: SimLedgers, ledger: int) -> None:
        super().__init__(client, ledger)
        self._waiting: list[bytes] = []
        self._sizes: list[int] = []
        self._landed = 0

    def submit(self, payloads: Sequence[bytes]) -> None:
        """See `Writable`."""
        if self._ledger.failed:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} takes no entries")
        self._waiting += payloads
        self._sizes.append(len(payloads))
        self._try("write")

    def wait(self) -> None:
        """See `Writable`."""
        if self._ledger.failed:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} takes no entries")
        if self._waiting:
            self._store(len(self._sizes))

    def landed(self, known: int) -> int:
        """See `Writable`: some of the submissions are confirmed by now."""
        if self._ledger.failed:
            raise OSError(errno.ETIMEDOUT, f"ledger {self.id} takes no entries")
        if count := self._client.rng.randint(0, len(self._sizes)):
            self._store(count)
        # Of the others the answers are on their way.
        return self._client.rng.randint(known, self._landed)

    def watch(self, woken: Callable[[], None]) -> None:
        """See `Writable`. Nothing: the log of the simulator asks again and again."""

    def _store(self, submissions: int) -> None:
        """The bookies get the first submissions, or a part of what waits if something happens."""
        self._try("sync")
        count = sum(self._sizes[:submissions])
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        del self._sizes[:submissions]
        if self._ledger.fenced:
            raise self._fails(f"ledger {self.id} is fenced")
        if not self._client.bookies.append(self.id, waiting):
            raise self._fails(f"ledger {self.id}: too few bookies")
        self._landed += submissions
        self._try("sync-answer")

    def close(self) -> None:
        """See `Writable`."""
        self.wait()
        self._try("close")
        if self._ledger.fenced:
            raise self._fails(f"ledger {self.id} is fenced")
        self._ledger.end_at(len(self._ledger.payloads))
        self._try("close-answer")

    def _fails(self, why: str) -> OSError:
        self._ledger.failed = True
        return OSError(errno.ETIMEDOUT, why)

    def _try(self, kind: str) -> None:
        try:
            self._client.steps.step(kind)
        except OSError:
            self._ledger.failed = True
            self._client.bookies.append_some(self.id, self._waiting)
            self._waiting, self._sizes = [], []
            raise
        except PowerCut:
            self._client.bookies.append_some(self.id, self._waiting)
            raise


class SimRecord:
    """`ChainRecord`.

    Args:
        zookeeper: of the cluster.
        steps: of the process.
    """

    def __init__(self, zookeeper: ZooKeeper, steps: "ProcessSteps") -> None:
        self._zookeeper, self._steps = zookeeper, steps

    def read(self) -> tuple[bytes, int]:
        """See `ChainRecord`."""
        self._steps.step("chain-read")
        return self._zookeeper.data, self._zookeeper.version

    def write(self, data: bytes, version: int) -> int:
        """See `ChainRecord`."""
        self._steps.step("chain")
        before = self._zookeeper.data
        made = self._zookeeper.write(data, version)
        self._steps.changed(Chain.decode(before) if before else Chain(), Chain.decode(data))
        self._steps.step("chain-answer")
        return made


class ProcessSteps(Steps, Protocol):
    """With what is checked when the chain is written."""

    def changed(self, before: Chain, now: Chain) -> None:
        """The process has changed the chain."""
