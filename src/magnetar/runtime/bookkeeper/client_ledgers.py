"""The interfaces of `runtime.bookkeeper.ledgers`, by the client of BookKeeper's ledgers.

The client has an event loop of its own, on a thread of its own; callers on any other thread wait for it.
"""

import asyncio
import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import uvloop

from magnetar.bookkeeper.network.client import ROOT, BookKeeper
from magnetar.bookkeeper.network.connection import Security
from magnetar.bookkeeper.network.errors import BookKeeperError, EntryLost, NoSuchLedger
from magnetar.bookkeeper.network.readable import ReadableLedger
from magnetar.bookkeeper.network.writable import WritableLedger
from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity
from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.ledgers import Closed, LedgerEntry, Writable

Result = TypeVar("Result")

OPENED_AT_ONCE: Final = 16
"""Ledgers that are opened at the same time when the log is taken: most are closed and cost a read of ZooKeeper each."""

FREE_S: Final = 2.0
"""How long an answer to the question for free room is used. The log asks every 50 ms. Bookies take entries until their disks
are nearly full, and refuse them then."""

LOOK_S: Final = 0.5
"""Between two looks whether the log is still this broker's, while a thread waits for bookies or ZooKeeper."""

FILE: Final = "magnetar-file"
"""The key in a ledger's metadata under which the name of its file is."""


@contextmanager
def _as_disk_errors() -> Iterator[None]:
    """Errors of BookKeeper as those of a disk (see `runtime.bookkeeper.ledgers`)."""
    try:
        yield
    except NoSuchLedger as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    except EntryLost as error:
        raise OSError(errno.EIO, str(error)) from error
    except BookKeeperError as error:
        raise OSError(errno.ETIMEDOUT, str(error)) from error


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
        self._free: Future[int] | None = None
        self._free_known = 0
        self._free_asked_s = 0.0

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
        bookies_changed: Callable[[], None] = lambda: None,
        lost: Callable[[], str] = lambda: "",
    ) -> "ClientLedgers":
        """Connect to ZooKeeper.

        Args:
            hosts: `host:port`, several with commas between them.
            root: the node of BookKeeper.
            ensemble, ack_quorum: see the class.
            security: of the connections to bookies.
            zookeeper_security: of the connections to ZooKeeper.
            bookies_changed: called when other bookies are registered, on a thread of the client's.
            lost: the reason why the log is no longer this broker's; empty: it is. Threads that wait for an answer ask for it, and
                wait no longer without the log.

        Raises:
            StorageError: ZooKeeper does not answer, or the node is no BookKeeper.
        """
        loop = _Loop(lost)
        try:
            client = loop.finish(
                BookKeeper.connect(
                    hosts,
                    root=root,
                    security=security,
                    zookeeper_security=zookeeper_security,
                    bookies_changed=bookies_changed,
                )
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
        self._loop.finish(self._client.close())
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
        """See `Ledgers`. The answer may be some seconds old, so that the log does not wait for a bookie that is slow or hangs."""
        free, now_s = self._free, time.monotonic()
        with _as_disk_errors():
            if free is None or (free.done() and free.exception() is not None):
                free = self._free = self._loop.begin(self._client.free_bytes())
                self._free_asked_s = now_s
                self._free_known = free.result() // self._ensemble
            elif free.done():
                self._free_known = free.result() // self._ensemble
                if now_s - self._free_asked_s >= FREE_S:
                    self._free = self._loop.begin(self._client.free_bytes())
                    self._free_asked_s = now_s
        return self._free_known


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
        self._reader: ReadableLedger | None = None
        # Used by the loop's thread alone: what waits for room.
        self._outgoing: deque[list[bytes]] = deque()
        self._sending: asyncio.Task[None] | None = None
        # Used by both threads.
        self._changed = threading.Condition(threading.Lock())
        self._submitted = 0
        self._landed = 0
        self._error: BaseException | None = None
        self._woken: Callable[[], None] = _nothing

    def submit(self, payloads: Sequence[bytes]) -> None:
        """See `Writable`."""
        self._submitted += 1
        self._loop.soon(self._begin, list(payloads))

    def wait(self) -> None:
        """See `Writable`."""
        with self._changed:
            submitted = self._submitted
            while not self._changed.wait_for(lambda: self._landed >= submitted or self._error is not None, LOOK_S):
                self._loop.check()
            landed = self._landed
        if landed < submitted:
            self._raise()

    def landed(self, known: int) -> int:
        """See `Writable`."""
        landed, error = self._landed, self._error
        if error is not None and landed <= known:
            self._raise()
        return landed

    def watch(self, woken: Callable[[], None]) -> None:
        """See `Writable`."""
        self._woken = woken

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """See `Readable`."""
        with _as_disk_errors():
            return self._loop.call(self._read(first, last))

    def close(self) -> None:
        """See `Writable`."""
        self.wait()
        with _as_disk_errors():
            self._loop.call(self._close())

    def _raise(self) -> None:
        assert self._error is not None
        with _as_disk_errors():
            raise self._error

    # ------------------------------------------------------------------------------------------- on the thread of the loop

    def _begin(self, payloads: list[bytes]) -> None:
        """Send, or let it wait until there is room."""
        if self._error is not None:
            return
        if self._sending is None and self._ledger.has_room and len(payloads) == 1:
            try:
                self._follow(self._ledger.append(payloads[0]))
            except BookKeeperError as error:
                self._fail(error)
            return
        self._outgoing.append(payloads)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Send everything that waits."""
        try:
            while self._outgoing:
                payloads = self._outgoing.popleft()
                for payload in payloads:
                    await self._ledger.room()
                    confirmed = self._ledger.append(payload)
                # They are confirmed in order.
                self._follow(confirmed)
        except BookKeeperError as error:
            self._outgoing.clear()
            self._fail(error)
        finally:
            self._sending = None

    def _follow(self, confirmed: "asyncio.Future[int]") -> None:
        confirmed.add_done_callback(self._land)

    def _land(self, confirmed: "asyncio.Future[int]") -> None:
        """The last entry of a submission is confirmed, or has failed."""
        error = confirmed.exception()
        if error is not None:
            self._fail(error)
            return
        with self._changed:
            self._landed += 1
            self._changed.notify_all()
        self._woken()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        self._woken()

    async def _read(self, first: int, last: int) -> list[LedgerEntry]:
        if self._reader is None:
            self._reader = await self._client.open(self.id)
        self._reader.confirmed(self._ledger.last_confirmed)
        return [LedgerEntry(one.payload, one.length) for one in await self._reader.read(first, last)]

    async def _close(self) -> None:
        await self._ledger.close()


def _nothing() -> None: ...


class _Loop:
    """An event loop on a thread of its own.

    Args:
        lost: see `ClientLedgers.connect`.
    """

    def __init__(self, lost: Callable[[], str]) -> None:
        self._lost = lost
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def soon(self, call: Callable[[list[bytes]], None], payloads: list[bytes]) -> None:
        """Call something on the loop's thread, from another thread."""
        self._loop.call_soon_threadsafe(call, payloads)

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start work, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work, from another thread, for as long as the log is this broker's.

        Raises:
            OSError: it is not (ESTALE).
        """
        begun = self.begin(work)
        while not wait([begun], LOOK_S).done:
            try:
                self.check()
            except OSError:
                begun.cancel()
                raise
        return begun.result()

    def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work, from another thread, for as long as it takes."""
        return self.begin(work).result()

    def check(self) -> None:
        """Raises OSError (ESTALE) if the log is no longer this broker's."""
        if reason := self._lost():
            raise OSError(errno.ESTALE, reason)

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
