"""Carries out what the machine of one ledger asks for, and brings it what comes back.

The machines decide everything; this module has the clock, the connections and ZooKeeper.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Effect, Ending, Finished, ReadMetadata, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, Versioned
from magnetar.bookkeeper.ledgers.reader import LedgerReader
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery
from magnetar.bookkeeper.ledgers.writer import LedgerWriter
from magnetar.bookkeeper.network.connection import Connections
from magnetar.bookkeeper.network.errors import (
    BookKeeperError,
    LedgerFenced,
    LedgerRefused,
    NoSuchLedger,
    NotWritable,
    RecoveryFailed,
    TooFewBookies,
    ZooKeeperError,
)
from magnetar.bookkeeper.network.zookeeper import RegisteredBookies, ZooKeeper
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import Code, EntryAdded, Response

logger = logging.getLogger("magnetar.bookkeeper")

Result = TypeVar("Result")

ZOOKEEPER_AGAIN_S: Final = 1.0
"""Pause before a ledger's metadata are read or written again after ZooKeeper has failed."""


@dataclass(frozen=True, slots=True)
class Outside:
    """The parts that all ledgers of a client share."""

    loop: asyncio.AbstractEventLoop
    zookeeper: ZooKeeper
    connections: Connections
    bookies: Bookies


class Driver:
    """Drives the machine of one ledger.

    Args:
        ledger: its id.
        machine: of the ledger.
        outside: see `Outside`.
        report: called with the effects that report something, in order.
    """

    def __init__(
        self,
        ledger: int,
        machine: LedgerWriter | LedgerReader | LedgerRecovery,
        outside: Outside,
        report: Callable[[Effect], None],
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._outside = outside
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def now(self) -> float:
        """Seconds of the clock that the machine is given."""
        return self._outside.loop.time()

    def run(self, effects: Iterable[Effect]) -> None:
        """Carry out what a method of the machine has returned. Nothing after `stop`."""
        if self._stopped:
            return
        for effect in effects:
            if type(effect) is Send:
                self._outside.connections.send(effect.bookies, effect.number, effect.request, self)
            elif type(effect) is UpdateMetadata:
                self._do(self._update(effect))
            elif type(effect) is ReadMetadata:
                self._do(self._read())
            else:
                self._report(effect)
        self._schedule()

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        """A bookie has answered a request."""
        if self._stopped:
            return
        effects = self._machine.answered(bookie, number, response, self.now, session)
        # An entry that was added and confirms nothing is the usual case: then there is nothing new to wait for either.
        if effects or type(response) is not EntryAdded or response.code is not Code.OK:
            self.run(effects)

    def failed(self, bookie: BookieId, number: int) -> None:
        """There will be no answer to a request."""
        if not self._stopped:
            self.run(self._machine.failed(bookie, number, self.now))

    def metadata_read(self, versioned: Versioned | None) -> None:
        """The metadata as stored now; None: the ledger was deleted."""
        if not self._stopped:
            self.run(self._machine.metadata_read(versioned, self.now))

    def stop(self) -> None:
        """Ignore everything from now on."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # ---------------------------------------------------------------------------------------------------------- private

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._outside.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _update(self, effect: UpdateMetadata) -> None:
        # If a failed attempt was done after all, the next one is refused, and the machine reads what is stored.
        version = await self._repeated(
            lambda: self._outside.zookeeper.update(self._ledger, effect.metadata, effect.version)
        )
        if version is None:
            await self._read()
        elif not isinstance(self._machine, LedgerReader) and not self._stopped:
            self.run(self._machine.metadata_written(version, self.now))

    async def _read(self) -> None:
        versioned: Versioned | None
        try:
            versioned = await self._repeated(lambda: self._outside.zookeeper.read(self._ledger))
        except NoSuchLedger:
            versioned = None
        self.metadata_read(versioned)

    async def _repeated(self, request: Callable[[], Awaitable[Result]]) -> Result:
        """A request to ZooKeeper; it is repeated until ZooKeeper does not fail."""
        while True:
            try:
                return await request()
            except ZooKeeperError as error:
                logger.warning("ledger %d: %s", self._ledger, error)
                await asyncio.sleep(ZOOKEEPER_AGAIN_S)

    def _schedule(self) -> None:
        """Set the timer if the machine wants to be called earlier than it will be."""
        wake_at = self._machine.wake_at
        if wake_at is None or self._stopped or (self._timer is not None and self._timer_at <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self._outside.loop.call_at(wake_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.run(self._machine.tick(self.now))


def codec_of(ledger: int, metadata: LedgerMetadata) -> EntryCodec:
    """Makes and reads the stored entries of a ledger."""
    return EntryCodec(ledger, metadata.digest, metadata.password)


_ERRORS: Final[dict[Ending, type[BookKeeperError]]] = {
    Ending.CLOSED: NotWritable,
    Ending.FENCED: LedgerFenced,
    Ending.UNAUTHORISED: LedgerRefused,
    Ending.NO_BOOKIES: TooFewBookies,
    Ending.CONFLICT: LedgerFenced,
    Ending.TOO_MANY_SEGMENTS: NotWritable,
    Ending.UNDECIDABLE: RecoveryFailed,
    Ending.NO_SUCH_LEDGER: NoSuchLedger,
}


def error_of(ledger: int, finished: Finished, outside: Outside) -> BookKeeperError:
    """The error of a machine that has finished, with what is known of its bookies."""
    ensemble = finished.metadata.metadata.segments[-1].ensemble
    reasons = [f"ledger {ledger}: {finished.ending.value}"]
    # A bookie that does not answer explains nothing else.
    if finished.ending in (Ending.NO_BOOKIES, Ending.UNDECIDABLE, Ending.UNAUTHORISED):
        for bookie in ensemble:
            reason = outside.connections.problem([bookie])
            if not reason and finished.ending is Ending.NO_BOOKIES:
                reason = _absence(bookie, outside.zookeeper.bookies)
            reasons.append(reason)
    return _ERRORS[finished.ending]("; ".join(filter(None, reasons)))


def _absence(bookie: BookieId, registered: RegisteredBookies) -> str:
    """Why a bookie without a known problem takes no entries; empty: it should."""
    if bookie in registered.read_only:
        return f"bookie {bookie}: it is read-only, as with a full disk"
    return "" if bookie in registered.writable else f"bookie {bookie}: it is not registered in ZooKeeper"
