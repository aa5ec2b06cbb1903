"""The interfaces of `runtime.bookkeeper.ledgers`, by the client of BookKeeper's ledgers.

The client has an event loop of its own, on a thread of its own; callers on any other thread wait for it.
"""

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from magnetar.bookkeeper.network.client import ROOT, BookKeeper
from magnetar.bookkeeper.network.connection import Security
from magnetar.bookkeeper.network.errors import BookKeeperError, NoSuchLedger
from magnetar.bookkeeper.network.readable import ReadableLedger
from magnetar.bookkeeper.network.writable import WritableLedger
from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity
from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.ledgers import Closed, LedgerEntry, Writable

Result = TypeVar("Result")

OPENED_AT_ONCE: Final = 16
"""Ledgers that are opened at the same time when the log is taken: most are closed and cost a read of ZooKeeper each."""

FILE: Final = "magnetar-file"
"""The key in a ledger's metadata under which the name of its file is."""


@contextmanager
def _as_disk_errors() -> Iterator[None]:
    """Errors of BookKeeper as those of a disk."""
    try:
        yield
    except NoSuchLedger as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    except BookKeeperError as error:
        raise OSError(errno.EIO, str(error)) from error


class ClientLedgers:
    """`Ledgers`: made by `connect`, ended by `close`.

    Args:
        loop: runs on a thread of its own.
        client: of that loop.
        ensemble: bookies among which the entries of a ledger are spread; each entry goes to all of them.
        ack_quorum: bookies that have an entry on disk before it is confirmed.
    """

    def __init__(self, loop: "_Loop", client: BookKeeper, ensemble: int, ack_quorum: int) -> None:
        self._loop = loop
        self._client = client
        self._ensemble = ensemble
        self._ack_quorum = ack_quorum

    @classmethod
    def connect(
        cls,
        hosts: str,
        *,
        root: str = ROOT,
        ensemble: int = 3,
        ack_quorum: int = 2,
        security: Security | None = None,
        zookeeper_security: ZooKeeperSecurity = OPEN,
    ) -> "ClientLedgers":
        """Connect to ZooKeeper.

        Args:
            hosts: `host:port`, several with commas between them.
            root: the node of BookKeeper.
            ensemble, ack_quorum: see the class.
            security: of the connections to bookies.
            zookeeper_security: of the connections to ZooKeeper.

        Raises:
            StorageError: ZooKeeper does not answer, or the node is no BookKeeper.
        """
        loop = _Loop()
        try:
            client = loop.call(
                BookKeeper.connect(hosts, root=root, security=security, zookeeper_security=zookeeper_security)
            )
        except BookKeeperError as error:
            loop.close()
            raise StorageError(str(error)) from error
        except BaseException:
            loop.close()
            raise
        return cls(loop, client, ensemble, ack_quorum)

    def close(self) -> None:
        """End all connections. Ledgers that are being written stay open, and what they have not confirmed fails."""
        self._loop.call(self._client.close())
        self._loop.close()

    @property
    def bookies(self) -> int:
        """Bookies that take entries."""
        return len(self._client.bookies.writable)

    def create(self, name: str) -> Writable:
        """See `Ledgers`."""
        made = self._client.create(ensemble=self._ensemble, ack_quorum=self._ack_quorum, custom={FILE: name.encode()})
        with _as_disk_errors():
            return WrittenLedger(self._loop, self._client, self._loop.call(made))

    def open(self, ledger: int) -> Closed:
        """See `Ledgers`."""
        with _as_disk_errors():
            return ClosedLedger(self._loop, self._loop.call(self._client.recover(ledger)))

    def open_all(self, ledgers: Sequence[int]) -> "list[ClosedLedger]":
        """See `Ledgers`."""
        with _as_disk_errors():
            return [ClosedLedger(self._loop, one) for one in self._loop.call(self._recover_all(ledgers))]

    async def _recover_all(self, ledgers: Sequence[int]) -> list[ReadableLedger]:
        slots = asyncio.Semaphore(OPENED_AT_ONCE)

        async def recover(ledger: int) -> ReadableLedger:
            async with slots:
                return await self._client.recover(ledger)

        return await asyncio.gather(*map(recover, ledgers))

    def delete(self, ledger: int) -> None:
        """See `Ledgers`."""
        try:
            with _as_disk_errors():
                self._loop.call(self._client.delete(ledger))
        except FileNotFoundError:
            return

    def free_bytes(self) -> int:
        """See `Ledgers`."""
        with _as_disk_errors():
            return self._loop.call(self._client.free_bytes()) // self._ensemble


class ClosedLedger:
    """`Closed`."""

    def __init__(self, loop: "_Loop", ledger: ReadableLedger) -> None:
        self.id = ledger.id
        self.entries = ledger.metadata.last_entry + 1
        self.size = ledger.metadata.length
        self._loop = loop
        self._ledger = ledger

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """See `Readable`."""
        with _as_disk_errors():
            return [LedgerEntry(one.payload, one.length) for one in self._loop.call(self._ledger.read(first, last))]


class WrittenLedger:
    """`Writable`."""

    def __init__(self, loop: "_Loop", client: BookKeeper, ledger: WritableLedger) -> None:
        self.id = ledger.id
        self._loop = loop
        self._client = client
        self._ledger = ledger
        self._waiting: deque[Future[None]] = deque()
        self._order = asyncio.Lock()
        self._reader: ReadableLedger | None = None

    def submit(self, payloads: Sequence[bytes]) -> None:
        """See `Writable`."""
        self._waiting.append(self._loop.begin(self._append(list(payloads))))

    def wait(self) -> None:
        """See `Writable`."""
        with _as_disk_errors():
            while self._waiting:
                self._waiting.popleft().result()

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """See `Readable`."""
        with _as_disk_errors():
            return self._loop.call(self._read(first, last))

    def close(self) -> None:
        """See `Writable`."""
        self.wait()
        with _as_disk_errors():
            self._loop.call(self._close())

    async def _append(self, payloads: list[bytes]) -> None:
        confirmed = []
        async with self._order:  # the next call waits while this one waits for room
            for payload in payloads:
                await self._ledger.room()
                confirmed.append(self._ledger.append(payload))
        # They are confirmed in order.
        await confirmed[-1]

    async def _read(self, first: int, last: int) -> list[LedgerEntry]:
        if self._reader is None:
            self._reader = await self._client.open(self.id)
        self._reader.confirmed(self._ledger.last_confirmed)
        return [LedgerEntry(one.payload, one.length) for one in await self._reader.read(first, last)]

    async def _close(self) -> None:
        await self._ledger.close()


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start work, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work, from another thread."""
        return self.begin(work).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
