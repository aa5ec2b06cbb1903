"""The client of ledgers: creates, writes, reads, follows, recovers and deletes them.

All of it runs in one event loop. An entry that was appended and is not confirmed is neither stored nor lost: after an error only
a recovery of the ledger decides. Never close a ledger after an error; recover it.

Source: docs/design/bookkeeper.md#machines.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from magnetar.bookkeeper.ledgers.bookies import Bookies, NotEnoughBookies
from magnetar.bookkeeper.ledgers.effects import Effect, Ending, Finished
from magnetar.bookkeeper.ledgers.metadata import (
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from magnetar.bookkeeper.ledgers.reader import ReaderLimits
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery, RecoveryLimits
from magnetar.bookkeeper.ledgers.writer import WriterLimits
from magnetar.bookkeeper.network.connection import ConnectionLimits, Connections, Security
from magnetar.bookkeeper.network.driver import Driver, Outside, codec_of, error_of
from magnetar.bookkeeper.network.errors import (
    BookKeeperError,
    LedgerRefused,
    NoSuchLedger,
    RecoveryFailed,
    TooFewBookies,
)
from magnetar.bookkeeper.network.readable import ReadableLedger
from magnetar.bookkeeper.network.writable import WritableLedger
from magnetar.bookkeeper.network.zookeeper import RegisteredBookies, ZooKeeper
from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity
from magnetar.bookkeeper.protocol.messages import BookieInfo, Code, GetBookieInfo

ROOT: Final = "/ledgers"
"""The node of ZooKeeper that has everything of a BookKeeper cluster, unless it was made with another one."""

RECOVERY_PATIENCE_S: Final = 30.0
"""Seconds for which a recovery is tried: a bookie that was killed and started again answers with errors for one session of
ZooKeeper."""

RECOVERY_AGAIN_S: Final = 0.3
"""Pause between two attempts to recover a ledger."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a client; each part names its own."""

    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    writer: WriterLimits = field(default_factory=WriterLimits)
    reader: ReaderLimits = field(default_factory=ReaderLimits)
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)


class BookKeeper:
    """A client of one BookKeeper cluster. Make it with `connect`; it is an asynchronous context manager.

    Args:
        outside: shared by all ledgers.
        limits: see `Limits`.
    """

    def __init__(self, outside: Outside, limits: Limits) -> None:
        self._outside = outside
        self._limits = limits
        self._open: dict[WritableLedger | ReadableLedger, None] = {}

    @classmethod
    async def connect(
        cls,
        hosts: str,
        *,
        root: str = ROOT,
        limits: Limits | None = None,
        security: Security | None = None,
        zookeeper_security: ZooKeeperSecurity = OPEN,
        bookies_changed: Callable[[], None] = lambda: None,
    ) -> Self:
        """Connect to ZooKeeper. Bookies are connected to when they are needed.

        Args:
            hosts: of ZooKeeper: `host:port`, several with commas between them.
            root: see `ROOT`.
            limits: see `Limits`.
            security: of the connections to bookies; None: none.
            zookeeper_security: of the connections to ZooKeeper. Its `creator_only` does not count: what is created here gets the
                access list of the root.
            bookies_changed: called when `bookies` has changed.

        Raises:
            ZooKeeperError: it does not answer, or the root is not a BookKeeper cluster that this client knows.
        """
        limits = limits or Limits()
        loop = asyncio.get_running_loop()
        bookies = Bookies(secrets.randbelow)

        def registered(found: RegisteredBookies) -> None:
            bookies.registered(found.writable, found.read_only)
            connections.keep(found.writable | found.read_only)
            bookies_changed()

        zookeeper = ZooKeeper(hosts, root, registered, zookeeper_security)
        connections = Connections(loop, zookeeper.address, limits.connections, security)
        await zookeeper.open()
        return cls(Outside(loop, zookeeper, connections, bookies), limits)

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """End all connections. Ledgers that are open stay as they are: what they have not confirmed fails."""
        for ledger in list(self._open):
            ledger.abandon()
        await self._outside.connections.close()
        await self._outside.zookeeper.close()

    @property
    def bookies(self) -> RegisteredBookies:
        """The bookies that are registered."""
        return self._outside.zookeeper.bookies

    async def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
    ) -> WritableLedger:
        """Create a ledger and open it for writing.

        Args:
            ensemble: bookies among which the entries are spread.
            write_quorum: bookies that get each entry; None: the whole ensemble.
            ack_quorum: bookies that have an entry on disk before it is confirmed; None: a majority of the write quorum.
            digest: the checksum of the entries.
            password: others need it to read the ledger with Java's client. It is stored in clear.
            custom: values of one's own in the metadata.

        Raises:
            TooFewBookies: fewer bookies take entries.
            ZooKeeperError: it is not known whether the ledger was created.
            ValueError: the quorums do not fit each other.
        """
        write_quorum = ensemble if write_quorum is None else write_quorum
        ack_quorum = write_quorum // 2 + 1 if ack_quorum is None else ack_quorum
        if not ensemble >= write_quorum >= ack_quorum >= 1:
            raise ValueError(
                f"ensemble {ensemble}, write quorum {write_quorum}, ack quorum {ack_quorum}: each must be at least as "
                "large as the next, and the last at least 1"
            )
        try:
            chosen = self._outside.bookies.ensemble(ensemble, self._outside.loop.time())
        except NotEnoughBookies as error:
            raise TooFewBookies(str(error)) from None
        metadata = LedgerMetadata(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            state=LedgerState.OPEN,
            segments=(Segment(0, chosen),),
            digest=digest,
            password=password,
            created_ms=int(time.time() * 1000),
            custom=MappingProxyType(dict(custom or {})),
            token=secrets.randbelow(2**63 - 1) + 1,
        )
        ledger, versioned = await self._outside.zookeeper.create(metadata)
        opened = WritableLedger(ledger, versioned, self._outside, self._limits.writer, self._forget)
        self._open[opened] = None
        return opened

    async def open(
        self, ledger: int, *, digest: DigestType | None = None, password: bytes | None = None
    ) -> ReadableLedger:
        """Open a ledger for reading, without disturbing its writer.

        Of a ledger that is not closed, entries up to the last confirmed one that bookies know can be read.

        Args:
            ledger: its id.
            digest, password: None: as the ledger has them.

        Raises:
            NoSuchLedger, ZooKeeperError, LedgerRefused, TooFewBookies.
        """
        versioned = await self._read(ledger, digest, password)
        opened = ReadableLedger(ledger, versioned, self._outside, self._limits.reader, self._forget)
        self._open[opened] = None
        try:
            await opened.last_confirmed()
        except BaseException:
            opened.abandon()
            raise
        return opened

    async def recover(
        self,
        ledger: int,
        *,
        digest: DigestType | None = None,
        password: bytes | None = None,
        patience_s: float = RECOVERY_PATIENCE_S,
    ) -> ReadableLedger:
        """Close a ledger whose writer may still write, and open it for reading: it takes the ledger over.

        From the return on its writer gets nothing confirmed, and every entry that was confirmed can be read. It may be called for
        any ledger, by several clients at once, and again.

        Args:
            ledger: its id.
            digest, password: None: as the ledger has them.
            patience_s: how long it is tried.

        Raises:
            RecoveryFailed: too many bookies do not answer.
            NoSuchLedger, ZooKeeperError, LedgerRefused.
        """
        outside = self._outside
        until = outside.loop.time() + patience_s
        while True:
            versioned = await self._read(ledger, digest, password)
            finished = await self._recover_once(ledger, versioned)
            if finished.ending is Ending.CLOSED:
                break
            if finished.ending is Ending.UNAUTHORISED or outside.loop.time() >= until:
                raise self._recovery_error(ledger, finished)
            await asyncio.sleep(RECOVERY_AGAIN_S)
        opened = ReadableLedger(ledger, finished.metadata, outside, self._limits.reader, self._forget)
        self._open[opened] = None
        return opened

    async def delete(self, ledger: int) -> None:
        """Delete a ledger, which this client no longer uses. Bookies drop its entries when they collect garbage.

        Raises:
            NoSuchLedger, ZooKeeperError.
        """
        for opened in [one for one in self._open if one.id == ledger]:
            opened.abandon()
        await self._outside.zookeeper.delete(ledger)

    async def free_bytes(self) -> int:
        """Bytes that are free on the disks of all bookies that take entries and answer, together.

        Raises:
            TooFewBookies: none of them answers.
        """
        connections = self._outside.connections
        asked = [connections.ask(bookie, GetBookieInfo()) for bookie in self.bookies.writable]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [one.free_bytes for one in answers if isinstance(one, BookieInfo) and one.code is Code.OK]
        if not found:
            raise TooFewBookies("no bookie that takes entries says how much room it has")
        return sum(found)

    async def metadata(self, ledger: int) -> LedgerMetadata:
        """The metadata of a ledger as stored now.

        Raises:
            NoSuchLedger, ZooKeeperError.
        """
        return (await self._outside.zookeeper.read(ledger)).metadata

    # ---------------------------------------------------------------------------------------------------------- private

    async def _read(self, ledger: int, digest: DigestType | None, password: bytes | None) -> Versioned:
        versioned = await self._outside.zookeeper.read(ledger)
        metadata = versioned.metadata
        if digest not in (None, metadata.digest):
            raise LedgerRefused(f"ledger {ledger} has the digest {metadata.digest.name}, not {digest.name}")
        if password not in (None, metadata.password):
            raise LedgerRefused(f"ledger {ledger} has another password")
        return versioned

    async def _recover_once(self, ledger: int, versioned: Versioned) -> Finished:
        done: asyncio.Future[Finished] = self._outside.loop.create_future()

        def report(effect: Effect) -> None:
            if isinstance(effect, Finished) and not done.done():
                done.set_result(effect)

        codec = codec_of(ledger, versioned.metadata)
        machine = LedgerRecovery(ledger, versioned, codec, self._outside.bookies, self._limits.recovery)
        driver = Driver(ledger, machine, self._outside, report)
        try:
            driver.run(machine.start(driver.now))
            return await done
        finally:
            driver.stop()

    def _recovery_error(self, ledger: int, finished: Finished) -> BookKeeperError:
        error = error_of(ledger, finished, self._outside)
        if isinstance(error, LedgerRefused | NoSuchLedger):
            return error
        return RecoveryFailed(f"{error}; recover it again later")

    def _forget(self, ledger: WritableLedger | ReadableLedger) -> None:
        self._open.pop(ledger, None)
