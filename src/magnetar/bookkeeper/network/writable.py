"""A ledger that this client writes."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.bookkeeper.ledgers import writer as writing
from magnetar.bookkeeper.ledgers.effects import Confirmed, Effect, Ending, Finished
from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, BookieId, LedgerMetadata, Versioned
from magnetar.bookkeeper.ledgers.writer import LedgerWriter, WriterLimits
from magnetar.bookkeeper.network.driver import Driver, Outside, codec_of, error_of
from magnetar.bookkeeper.network.errors import BookKeeperError, NotWritable, TooMuchUnconfirmed
from magnetar.bookkeeper.protocol.frames import FRAME_BYTES_MAX

PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024
"""Bytes of an entry at most: a bookie ends the connection over a larger frame. Header, digest and the request itself take less
than the difference."""


class WritableLedger:
    """A new ledger that this client writes. Make it with `BookKeeper.create`.

    Args:
        ledger: its id.
        versioned: its metadata.
        outside: shared by all ledgers.
        limits: see `WriterLimits`.
        ended: called with this ledger when it is no longer in use.

    Attributes:
        id: of the ledger.
    """

    def __init__(
        self,
        ledger: int,
        versioned: Versioned,
        outside: Outside,
        limits: WriterLimits,
        ended: Callable[["WritableLedger"], None],
    ) -> None:
        self.id = ledger
        self._outside = outside
        self._machine = LedgerWriter(ledger, versioned, codec_of(ledger, versioned.metadata), outside.bookies, limits)
        self._driver = Driver(ledger, self._machine, outside, self._report)
        self._pending: deque[asyncio.Future[int]] = deque()
        self._confirmed = NO_ENTRY
        self._error: BookKeeperError | None = None
        self._finished: asyncio.Future[Finished] = outside.loop.create_future()
        self._progress: asyncio.Event = asyncio.Event()
        self._ended = ended

    @property
    def metadata(self) -> LedgerMetadata:
        """As last written or read."""
        return self._machine.metadata.metadata

    @property
    def last_confirmed(self) -> int:
        """The last confirmed entry; -1: none."""
        return self._machine.last_confirmed

    @property
    def unconfirmed(self) -> int:
        """Entries that were appended and are not confirmed."""
        return self._machine.unconfirmed

    @property
    def has_room(self) -> bool:
        """Whether `append` accepts one more entry now."""
        return self._machine.room and self._outside.connections.has_room(self._ensemble)

    def append(self, payload: bytes) -> "asyncio.Future[int]":
        """Add an entry. Call it as often as there is room, without waiting for one entry after the other.

        Args:
            payload: at most `PAYLOAD_BYTES_MAX` bytes; it must not be changed afterwards.

        Returns:
            A future with the entry's id, done when the entry and all before it are confirmed. If it fails, the entry may exist or
            not; `recover` decides. Cancelling it changes nothing.

        Raises:
            NotWritable: the ledger is closed, was taken over or abandoned; the entry was not sent. The cause is the error with
                which the ledger ended, if it was not closed.
            TooMuchUnconfirmed: there is no room; the entry was not sent.
            ValueError: the payload is too large.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"ledger {self.id}: an entry of {len(payload)} bytes: at most {PAYLOAD_BYTES_MAX}")
        if self._error is not None:
            raise NotWritable(str(self._error)) from self._error
        if not self._outside.connections.has_room(self._ensemble):
            raise TooMuchUnconfirmed(f"ledger {self.id}: a bookie has not answered what was sent to it; wait for room")
        try:
            sends = self._machine.append(payload)
        except writing.NotWritable as error:
            raise NotWritable(str(error)) from None
        except writing.TooMuchUnconfirmed as error:
            raise TooMuchUnconfirmed(str(error)) from None
        future: asyncio.Future[int] = self._outside.loop.create_future()
        self._pending.append(future)
        for send in sends:
            self._outside.connections.send(send.bookies, send.number, send.request, self._driver)
        return future

    async def room(self) -> None:
        """Wait until `append` accepts one more entry.

        Raises:
            NotWritable: it never will.
        """
        while not self.has_room:
            if self._finished.done():
                raise NotWritable(str(self._error or f"ledger {self.id}: {Ending.CLOSED.value}")) from self._error
            if not self._machine.room:
                self._progress.clear()
                await self._progress.wait()
            else:
                await self._outside.connections.room(self._ensemble)

    async def close(self) -> LedgerMetadata:
        """Wait for all entries, then close the ledger: nothing can be added to it from then on, by any client.

        Returns:
            The metadata of the closed ledger.

        Raises:
            LedgerFenced, LedgerRefused, TooFewBookies, NoSuchLedger: it is not closed by this client. Recover it.
        """
        self._driver.run(self._machine.close(self._driver.now))
        finished = await asyncio.shield(self._finished)
        if self._error is not None:
            raise self._error
        return finished.metadata.metadata

    def abandon(self) -> None:
        """Stop using the ledger without closing it; what is not confirmed fails. Recover it to close it."""
        if not self._finished.done():
            self._end(
                Finished(Ending.NO_BOOKIES, self._machine.metadata), NotWritable(f"ledger {self.id} was abandoned")
            )

    # ---------------------------------------------------------------------------------------------------------- private

    @property
    def _ensemble(self) -> tuple[BookieId, ...]:
        return self._machine.metadata.metadata.segments[-1].ensemble

    def _report(self, effect: Effect) -> None:
        if type(effect) is Confirmed:
            pending = self._pending
            while self._confirmed < effect.last:
                self._confirmed += 1
                future = pending.popleft()
                if not future.done():
                    future.set_result(self._confirmed)
            self._progress.set()
        elif isinstance(effect, Finished):
            error = None if effect.ending is Ending.CLOSED else error_of(self.id, effect, self._outside)
            self._end(effect, error)

    def _end(self, finished: Finished, error: BookKeeperError | None) -> None:
        self._error = error
        self._driver.stop()
        self._ended(self)
        for future in self._pending:
            if not future.done():
                future.set_exception(error or NotWritable(f"ledger {self.id} is closed"))
                # A caller that has its reason from another entry need not ask for this one.
                future.exception()
        self._pending.clear()
        self._finished.set_result(finished)
        self._progress.set()
