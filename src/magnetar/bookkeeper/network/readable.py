"""A ledger that this client reads."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.effects import Effect, EntriesRead, LastConfirmed, ReadFailed, ReadProblem, Send
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, Versioned
from magnetar.bookkeeper.ledgers.reader import LedgerReader, NotReadable, ReaderLimits
from magnetar.bookkeeper.network.driver import Driver, Outside, codec_of
from magnetar.bookkeeper.network.errors import BookKeeperError, EntryLost, EntryUnreadable, TooFewBookies
from magnetar.bookkeeper.protocol.messages import Code, LacRead, Response

WINDOW: Final = 32
"""Entries that an iteration over a range asks for at once. The next ones are asked for when the first of them are taken, so it
holds twice as many at most."""


class Entry(NamedTuple):
    """An entry as read.

    Attributes:
        id: 0 is the first one.
        payload: as appended.
        length: bytes of the payloads of all entries of the ledger up to this one, and with it.
    """

    id: int
    payload: bytes
    length: int


class ReadableLedger:
    """A ledger that is read. Make it with `BookKeeper.open` or `BookKeeper.recover`.

    Args:
        ledger: its id.
        versioned: its metadata.
        outside: shared by all ledgers.
        limits: see `ReaderLimits`.
        ended: called with this ledger when it is no longer in use.

    Attributes:
        id: of the ledger.
    """

    def __init__(
        self,
        ledger: int,
        versioned: Versioned,
        outside: Outside,
        limits: ReaderLimits,
        ended: Callable[["ReadableLedger"], None],
    ) -> None:
        self.id = ledger
        self._outside = outside
        codec = codec_of(ledger, versioned.metadata)
        self._machine = LedgerReader(ledger, versioned, codec, outside.bookies, limits, batches=True)
        self._driver = Driver(ledger, self._machine, outside, self._report)
        self._reads: dict[int, _Read] = {}
        self._number = 0
        self._followers = 0
        self._learned: set[asyncio.Event] = set()
        self._ended = ended
        self._gone = False
        self._unwatch = outside.zookeeper.watch(ledger, self._driver.metadata_read)

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        return self._machine.metadata.metadata

    @property
    def last_readable(self) -> int:
        """The last entry that can be read; -1: none. Of an open ledger it rises."""
        return self._machine.last_readable

    @property
    def closed(self) -> bool:
        """Whether no entries will follow."""
        return self._machine.closed

    async def last_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry of a ledger that is open; see `last_readable`.

        Raises:
            TooFewBookies: none of them answers.
        """
        if self.closed:
            return self.last_readable
        metadata = self.metadata
        ensemble = metadata.segments[-1].ensemble
        answers = _Answers(self._driver)
        for effect in self._machine.learn(self._driver.now):
            if type(effect) is Send:
                self._outside.connections.send(effect.bookies, effect.number, effect.request, answers)
        while not answers.complete(metadata, ensemble):
            await answers.more()
        if not answers.heard:
            raise TooFewBookies(
                f"ledger {self.id}: none of its bookies answers; {self._outside.connections.problem(ensemble)}"
            )
        return self.last_readable

    def confirmed(self, last: int) -> None:
        """The writer of this ledger, which is in the same process, has confirmed entries up to this one.

        They can be read at once. Bookies learn of them only with the writer's next entry.
        """
        self._driver.run(self._machine.confirmed(last))

    async def read(self, first: int, last: int) -> list[Entry]:
        """Read successive entries, all at once: the caller bounds how many.

        Raises:
            EntryUnreadable: one of them cannot be read, or is after `last_readable`; or there are too many reads
                (`ReaderLimits.reads_max`).
        """
        return [entry async for entry in self.entries(first, last)]

    async def entries(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """Iterate over successive entries; a part of them is asked for ahead.

        Args:
            first: an entry id.
            last: an entry id; None: `last_readable`.

        Raises:
            EntryUnreadable: as `read`.
        """
        last = self.last_readable if last is None else last
        if first < 0 or last > self.last_readable:
            raise EntryUnreadable(
                f"ledger {self.id}: entries {first} to {last}: entries 0 to {self.last_readable} can be read"
            )
        windows: deque[_Read] = deque()
        ask = first
        try:
            while ask <= last or windows:
                while ask <= last and len(windows) < 2:
                    end = min(ask + WINDOW - 1, last)
                    windows.append(self._begin(ask, end))
                    ask = end + 1
                async for entry in windows[0].entries():
                    yield entry
                windows.popleft()
        finally:
            for window in windows:
                self._cancel(window)

    async def follow(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Iterate over the entries as they are confirmed, until the ledger is closed and all were read.

        Raises:
            EntryUnreadable: as `read`; or this ledger is closed by `close`.
        """
        learned = asyncio.Event()
        self._learned.add(learned)
        self._followers += 1
        try:
            if self._followers == 1:
                self._driver.run(self._machine.follow(self._driver.now))
            while True:
                learned.clear()
                if first <= self.last_readable:
                    async with contextlib.aclosing(self.entries(first)) as entries:
                        async for entry in entries:
                            first = entry.id + 1
                            yield entry
                elif self.closed:
                    return
                elif self._gone:
                    raise self._not_open()
                else:
                    await learned.wait()
        finally:
            self._learned.discard(learned)
            self._followers -= 1
            if not self._followers:
                self._machine.unfollow()

    def abandon(self) -> None:
        """Stop using the ledger; what is being read fails."""
        if self._gone:
            return
        self._gone = True
        self._unwatch()
        self._driver.stop()
        self._ended(self)
        for read in list(self._reads.values()):
            read.fail(self._not_open())
        self._reads.clear()
        for learned in self._learned:
            learned.set()

    async def close(self) -> None:
        """Stop using the ledger; the ledger itself does not change."""
        self.abandon()

    # ---------------------------------------------------------------------------------------------------------- private

    def _begin(self, first: int, last: int) -> "_Read":
        if self._gone:
            raise self._not_open()
        self._number += 1
        try:
            effects = self._machine.read(self._number, first, last, self._driver.now)
        except NotReadable as error:
            raise EntryUnreadable(f"ledger {self.id}: {error}") from None
        read = self._reads[self._number] = _Read(self._number, first)
        self._driver.run(effects)
        return read

    def _not_open(self) -> EntryUnreadable:
        return EntryUnreadable(f"ledger {self.id} is no longer open in this client")

    def _cancel(self, read: "_Read") -> None:
        if self._reads.pop(read.number, None) is not None:
            self._machine.cancel(read.number)

    def _report(self, effect: Effect) -> None:
        if type(effect) is EntriesRead:
            read = self._reads.get(effect.read)
            if read is not None:
                read.come(effect)
                if effect.done:
                    del self._reads[effect.read]
        elif type(effect) is ReadFailed:
            read = self._reads.pop(effect.read, None)
            if read is not None:
                bookies = self.metadata.bookies_of(effect.entry)
                problem = self._outside.connections.problem(bookies)
                kind = EntryUnreadable if effect.problem is ReadProblem.UNAVAILABLE else EntryLost
                read.fail(
                    kind(
                        f"ledger {self.id}, entry {effect.entry}: {effect.problem.value}" + (problem and f"; {problem}")
                    )
                )
        elif type(effect) is LastConfirmed:
            for learned in self._learned:
                learned.set()


class _Read:
    """One read of a ledger, as its entries come."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self._next = first
        self._come: deque[tuple[bytes, int]] = deque()
        self._done = False
        self._error: BookKeeperError | None = None
        self._progress = asyncio.Event()

    def come(self, effect: EntriesRead) -> None:
        """Further entries."""
        self._come.extend(zip(effect.payloads, effect.lengths, strict=True))
        self._done = effect.done
        self._progress.set()

    def fail(self, error: BookKeeperError) -> None:
        """No further entries."""
        self._error = error
        self._progress.set()

    async def entries(self) -> AsyncIterator[Entry]:
        """All entries, in order."""
        while True:
            while self._come:
                yield Entry(self._next, *self._come.popleft())
                self._next += 1
            if self._done:
                return
            if self._error is not None:
                raise self._error
            self._progress.clear()
            await self._progress.wait()


class _Answers:
    """Passes the answers of several bookies to one request on, and notes who has answered."""

    def __init__(self, driver: Driver) -> None:
        self.heard: set[BookieId] = set()
        self._silent: set[BookieId] = set()
        self._driver = driver
        self._progress = asyncio.Event()

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        """A bookie has answered; one that does not have the ledger has answered, too."""
        known = isinstance(response, LacRead) and response.code in (Code.OK, Code.NO_LEDGER, Code.NO_ENTRY)
        (self.heard if known else self._silent).add(bookie)
        self._driver.answered(bookie, number, response, session)
        self._progress.set()

    def failed(self, bookie: BookieId, number: int) -> None:
        """A bookie will not answer."""
        self._silent.add(bookie)
        self._driver.failed(bookie, number)
        self._progress.set()

    def complete(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> bool:
        """Whether the answers suffice: every ack quorum includes a bookie that has answered. Also if there will be no others."""
        indexes = [index for index, bookie in enumerate(ensemble) if bookie in self.heard]
        return quorums.covered(metadata, indexes) or len(self.heard) + len(self._silent) >= len(ensemble)

    async def more(self) -> None:
        """Wait for the next one."""
        self._progress.clear()
        await self._progress.wait()
