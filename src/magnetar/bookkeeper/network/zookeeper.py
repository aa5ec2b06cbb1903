"""BookKeeper's part of ZooKeeper, through `kazoo`: metadata of ledgers by compare-and-set, new ids, registered bookies.

Each request goes to kazoo's own threads, and its answer comes back to the event loop. While the connection is lost requests wait
for it. A write whose answer was lost may have been done or not: a creation is recognised by its token, and after an update the
caller reads what is stored.

A watch of ZooKeeper only says "look again". It may come late, twice, or not at all because the connection was lost. So everything
that is watched is read again whenever the connection is back, and a version that is not newer is not reported.

Source: docs/design/bookkeeper.md#paths, docs/design/bookkeeper.md#metadata.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from magnetar.bookkeeper.ledgers.layouts import LedgerPaths, UnknownLayout, counted, decode_layout, long_id
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, Versioned
from magnetar.bookkeeper.ledgers.serialization import UnreadableMetadata, decode_metadata, encode_metadata
from magnetar.bookkeeper.network.connection import Address
from magnetar.bookkeeper.network.errors import NoSuchLedger, ZooKeeperError
from magnetar.bookkeeper.network.zookeeper_client import (
    OPEN,
    SaslMissing,
    ZooKeeperSecurity,
    explained,
    make_client,
    silence,
)
from magnetar.bookkeeper.protocol.bookkeeper_pb2 import BookieServiceInfo

logger = logging.getLogger("magnetar.bookkeeper")

SESSION_S: Final = 10.0
"""Session time-out. It only bounds how long a dead server goes unnoticed: this client has no node that ends with its session."""

START_S: Final = 30.0
"""How long opening waits for ZooKeeper. An attempt that a starting server swallows lasts as long as `SESSION_S`; two more have to
fit."""

LOST_S: Final = 30.0
"""How long a request waits for a connection that is lost: three sessions, in which another server can be found."""

AGAIN_S: Final = 0.1
"""Pause before a request is repeated, so that a server that closes every connection is not asked without an end."""

HIDDEN: Final = ":x"
"""The end of an id of the scheme `digest` whose password ZooKeeper does not show, because the client may not change the list."""

ENDPOINT: Final = "bookie-rpc"
"""The protocol of the endpoint that serves ledgers, among those that a bookie registers."""

_LOST = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, OperationTimeoutError)
"""Errors after which it is not known whether the request was carried out."""

Watch: TypeAlias = Callable[[object], None]
"""Is called by kazoo once when what was read has changed, or when the connection is lost."""

Changed: TypeAlias = Callable[[Versioned | None], None]
"""Is called with newer metadata; None: the ledger was deleted."""


@dataclass(frozen=True, slots=True)
class RegisteredBookies:
    """The bookies that are registered.

    Attributes:
        writable: those that take entries.
        read_only: those that do not.
        addresses: where they listen.
    """

    writable: frozenset[BookieId] = frozenset()
    read_only: frozenset[BookieId] = frozenset()
    addresses: dict[BookieId, Address] = field(default_factory=dict)


class _Look:
    """Reads something that is watched, whenever it may have changed. One read is under way at a time.

    Args:
        loop: in which it is read.
        read: reads it; gets the watch that the read sets.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Callable[[Watch], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._read = read
        self._again = False
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Read it; if that is under way, once more after it."""
        self._again = True
        if self._task is None and not self._ended:
            self._task = self._loop.create_task(self._run())

    def changed(self, _event: object) -> None:
        """A watch: it may have changed. Called by kazoo, on a thread of its own."""
        _in_loop(self._loop, self.begin)

    def end(self) -> None:
        """Read it no more."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._again and not self._ended:
                self._again = False
                try:
                    await self._read(self.changed)
                except ZooKeeperError as error:
                    # When the connection is back everything is read again.
                    logger.warning("%s", error)
        finally:
            self._task = None


@dataclass(slots=True)
class _Watched:
    """A ledger that is watched.

    Attributes:
        look: reads its metadata.
        changed: the watchers.
        version: the last one that was reported.
    """

    look: _Look
    changed: list[Changed] = field(default_factory=list)
    version: int = -1


class ZooKeeper:
    """The metadata of one BookKeeper cluster. Make it with `open`.

    Args:
        hosts: `host:port`, several with commas between them.
        root: the node that has everything of BookKeeper.
        registered: called with the registered bookies, at the start and whenever they change.
        security: of the connections.
        session_s, lost_s: see `SESSION_S`, `LOST_S`.

    Attributes:
        instance: the id of the cluster.

    Raises:
        ZooKeeperError: a library that the security needs is missing.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        registered: Callable[[RegisteredBookies], None],
        security: ZooKeeperSecurity = OPEN,
        *,
        session_s: float = SESSION_S,
        lost_s: float = LOST_S,
    ) -> None:
        self.instance = ""
        self._loop = asyncio.get_running_loop()
        self._name = f"zookeeper://{hosts}{root}"
        self._root = root
        self._registered = registered
        self._lost_s = lost_s
        self._hosts = hosts
        self._security = security
        try:
            self._client = make_client(hosts, session_s, logging.getLogger("magnetar.bookkeeper.kazoo"), security)
        except SaslMissing as error:
            raise ZooKeeperError(str(error)) from None
        self._acl: list[ACL] = []
        self._paths: LedgerPaths | None = None
        self._long_ids = False
        self._bookies = RegisteredBookies()
        self._connected = asyncio.Event()
        self._watched: dict[int, _Watched] = {}
        self._look_at_bookies = _Look(self._loop, self._read_bookies)
        self._closed = False

    async def open(self, start_s: float = START_S) -> None:
        """Connect, check that this is a BookKeeper cluster, read its bookies.

        Raises:
            ZooKeeperError: ZooKeeper does not answer, the root is not formatted, or the layout is not known.
        """
        self._client.add_listener(self._state_changed)
        try:
            await self._loop.run_in_executor(None, self._client.start, start_s)
        except KazooTimeoutError:
            await self.close()
            why = await self._loop.run_in_executor(None, silence, self._hosts, self._security)
            raise ZooKeeperError(f"{self._name}: ZooKeeper does not answer within {start_s:g} s: {why}") from None
        self._connected.set()
        try:
            await self._check_cluster()
            await self._read_bookies(self._look_at_bookies.changed)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session."""
        self._closed = True
        self._client.remove_listener(self._state_changed)
        for look in (self._look_at_bookies, *(one.look for one in self._watched.values())):
            look.end()
        self._watched.clear()
        await self._loop.run_in_executor(None, self._stop)

    @property
    def bookies(self) -> RegisteredBookies:
        """As last read."""
        return self._bookies

    def address(self, bookie: BookieId) -> Address | None:
        """Where a bookie listens: as it has registered, else as its name says; None: neither is known."""
        return self._bookies.addresses.get(bookie) or address_of(bookie)

    # ---------------------------------------------------------------------------------------------------------- ledgers

    async def create(self, metadata: LedgerMetadata) -> tuple[int, Versioned]:
        """Create a ledger with a new id.

        Args:
            metadata: with a token, so that a creation whose answer was lost is recognised.

        Raises:
            ZooKeeperError: it is not known whether the ledger was created, or ZooKeeper refuses it.
            ValueError: ZooKeeper cannot store the metadata.
        """
        while True:
            ledger = await self.new_id()
            created = await self.create_at(ledger, metadata)
            if created is not None:
                return ledger, created

    async def create_at(self, ledger: int, metadata: LedgerMetadata) -> Versioned | None:
        """Create a ledger with this id; None: it exists, and is that of another creator.

        Raises: as `create`.
        """
        path, content = self._path(ledger), encode_metadata(metadata)
        try:
            await self._reliably(lambda: self._client.create_async(path, content, self._acl, makepath=True))
        except NodeExistsError:
            try:
                stored = await self.read(ledger)
            except NoSuchLedger:
                return None
            return stored if metadata.token and stored.metadata.token == metadata.token else None
        return Versioned(metadata, 0)

    async def read(self, ledger: int) -> Versioned:
        """The metadata of a ledger as stored now.

        Raises:
            NoSuchLedger: there is none.
            ZooKeeperError: ZooKeeper does not answer, or this client cannot read what it has.
        """
        return await self._read(ledger, None)

    async def update(self, ledger: int, metadata: LedgerMetadata, version: int) -> int | None:
        """Replace the metadata if the stored ones still have this version.

        Returns:
            The new version. None: it was refused, or the answer was lost; `read` says what is stored.

        Raises:
            ValueError: ZooKeeper cannot store the metadata.
            ZooKeeperError: ZooKeeper refuses it for another reason.
        """
        path, content = self._path(ledger), encode_metadata(metadata)
        try:
            stat = await self._call(lambda: self._client.set_async(path, content, version))
        except (BadVersionError, NoNodeError):
            return None
        except _LOST:
            # The request may still be under way at the server that is lost; `sync` lets a read see it if it was done.
            await self._reliably(lambda: self._client.sync_async(path))
            return None
        except KazooException as error:
            raise self._explained(error) from error
        return int(stat.version)

    async def delete(self, ledger: int) -> None:
        """Delete a ledger. Bookies drop its entries when they collect garbage.

        Raises:
            NoSuchLedger: there is none.
            ZooKeeperError: ZooKeeper does not answer.
        """
        path, lost = self._path(ledger), False
        while True:
            try:
                await self._call(lambda: self._client.delete_async(path))
                break
            except NoNodeError:
                if not lost:
                    raise NoSuchLedger(f"{self._name}: there is no ledger {ledger}") from None
                break  # the first attempt did it
            except _LOST:
                lost = True
                await self._again()
            except KazooException as error:
                raise self._explained(error) from error
        # The nodes above it are left over when no other ledger is there. The ledger is deleted whether they go or not.
        while (path := path.rpartition("/")[0]) != self._root:
            try:
                await self._call(lambda path=path: self._client.delete_async(path))  # type: ignore[misc]
            except (KazooException, ZooKeeperError):
                return

    def watch(self, ledger: int, changed: Changed) -> Callable[[], None]:
        """Report newer metadata of a ledger, the present ones first; the function that is returned ends it."""
        watched = self._watched.get(ledger)
        if watched is None:
            watched = self._watched[ledger] = _Watched(_Look(self._loop, partial(self._report, ledger)))
        watched.changed.append(changed)
        watched.version = -1
        watched.look.begin()

        def unwatch() -> None:
            if changed in watched.changed:
                watched.changed.remove(changed)
            if not watched.changed and self._watched.get(ledger) is watched:
                del self._watched[ledger]
                watched.look.end()

        return unwatch

    async def new_id(self) -> int:
        """An id that no ledger was given before.

        Java's clients use the same counters: sequential nodes, first of 31 bits; when these are used up, of 63.

        Raises:
            ZooKeeperError: ZooKeeper does not answer.
        """
        paths = self._known_paths()
        if not self._long_ids:
            number = await self._count(paths.id_prefix)
            if number is not None:
                return number
            self._long_ids = True
        high = 0
        with contextlib.suppress(NoNodeError):
            children = await self._reliably(lambda: self._client.get_children_async(paths.long_ids))
            high = max((int(name[4:]) for name in children if name[:4] == "HOB-" and name[4:].isdigit()), default=0)
        high = max(high, 1)
        while True:
            low = await self._count(paths.long_id_prefix(high))
            if low is not None:
                return long_id(high, low)
            high += 1

    # ---------------------------------------------------------------------------------------------------------- private

    def _known_paths(self) -> LedgerPaths:
        assert self._paths is not None, "open it first"
        return self._paths

    def _path(self, ledger: int) -> str:
        return self._known_paths().of(ledger)

    async def _check_cluster(self) -> None:
        remedy = "`bookkeeper shell initnewcluster` makes it"
        try:
            layout, _ = await self._reliably(lambda: self._client.get_async(f"{self._root}/LAYOUT"))
            instance, _ = await self._reliably(lambda: self._client.get_async(f"{self._root}/INSTANCEID"))
        except NoNodeError:
            raise ZooKeeperError(f"{self._name} is not the root of a BookKeeper cluster; {remedy}") from None
        try:
            self._paths = LedgerPaths(decode_layout(layout), self._root)
        except UnknownLayout as error:
            raise ZooKeeperError(f"{self._name}: {error}") from None
        self.instance = instance.decode(errors="replace")
        self._acl = await self._access()
        long_ids = self._paths.long_ids
        self._long_ids = await self._reliably(lambda: self._client.exists_async(long_ids)) is not None

    async def _access(self) -> list[ACL]:
        """The access list of this client's nodes: that of the root. So Java's tools and the bookies can use them, too.

        Raises:
            ZooKeeperError: the list cannot be read as it is.
        """
        acl, _ = await self._reliably(lambda: self._client.get_acls_async(self._root))
        if any(one.id.scheme == "digest" and one.id.id.endswith(HIDDEN) for one in acl):
            raise ZooKeeperError(
                f"{self._name}: ZooKeeper hides the passwords in the access list of {self._root}, which new nodes have to get: "
                "let this user administer the node (permission a)"
            )
        return list(acl)

    async def _count(self, prefix: str) -> int | None:
        """The next number of a counter; None: it is used up. After a lost answer one number stays unused."""
        path = await self._reliably(
            lambda: self._client.create_async(prefix, b"", self._acl, ephemeral=True, sequence=True, makepath=True)
        )
        self._client.delete_async(path)
        return counted(path)

    async def _read(self, ledger: int, watch: Watch | None) -> Versioned:
        path = self._path(ledger)
        try:
            content, stat = await self._reliably(lambda: self._client.get_async(path, watch))
            return Versioned(decode_metadata(content), stat.version)
        except NoNodeError:
            raise NoSuchLedger(f"{self._name}: there is no ledger {ledger}") from None
        except UnreadableMetadata as error:
            raise ZooKeeperError(f"{self._name}: ledger {ledger}: {error}") from None

    async def _report(self, ledger: int, watch: Watch) -> None:
        """Read the metadata of a watched ledger; report them if they are newer."""
        watched = self._watched[ledger]
        try:
            found = await self._read(ledger, watch)
        except NoSuchLedger:
            found = None
        if found is not None:
            if found.version <= watched.version:
                return
            watched.version = found.version
        for changed in list(watched.changed):
            changed(found)

    async def _read_bookies(self, watch: Watch) -> None:
        addresses: dict[BookieId, Address] = {}
        groups = []
        for path in (f"{self._root}/available", f"{self._root}/available/readonly"):
            try:
                names = await self._reliably(lambda path=path: self._client.get_children_async(path, watch))  # type: ignore[misc]
            except NoNodeError:
                names = []  # made when the first bookie registers there, which the other list shows
            group = [BookieId(name) for name in names if name != "readonly"]
            groups.append(group)
            found = await asyncio.gather(*(self._read_address(f"{path}/{bookie}", bookie) for bookie in group))
            addresses |= {bookie: address for bookie, address in zip(group, found, strict=True) if address is not None}
        self._bookies = RegisteredBookies(frozenset(groups[0]), frozenset(groups[1]), addresses)
        self._registered(self._bookies)

    async def _read_address(self, path: str, bookie: BookieId) -> Address | None:
        try:
            content, _ = await self._reliably(lambda: self._client.get_async(path))
        except NoNodeError:
            return None  # gone meanwhile
        return registered_address(content) or address_of(bookie)

    async def _call(self, request: Callable[[], Any]) -> Any:
        """One request to ZooKeeper; raises what kazoo raises.

        While the connection is lost, kazoo keeps the request until the session is over; so the wait has a limit of its own.

        Raises:
            ZooKeeperError: it was not answered in time; it may be carried out later.
        """
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any) -> None:
            if future.done():
                return
            if result.successful():
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        request().rawlink(lambda result: _in_loop(self._loop, done, result))
        try:
            async with asyncio.timeout(self._lost_s):
                return await future
        except TimeoutError:
            raise self._silent() from None

    async def _reliably(self, request: Callable[[], Any]) -> Any:
        """A request that may be carried out twice: it is repeated while the connection is lost.

        Raises:
            ZooKeeperError: ZooKeeper did not answer in time, or refuses it.
            NoNodeError, NodeExistsError: for the caller.
        """
        while True:
            try:
                return await self._call(request)
            except (NoNodeError, NodeExistsError):
                raise
            except _LOST:
                await self._again()
            except KazooException as error:
                raise self._explained(error) from error

    async def _again(self) -> None:
        """Wait for a connection that was lost."""
        if self._closed:
            raise ZooKeeperError(f"{self._name}: this client is closed")
        try:
            async with asyncio.timeout(self._lost_s):
                await asyncio.sleep(AGAIN_S)
                await self._connected.wait()
        except TimeoutError:
            raise self._silent() from None

    def _silent(self) -> ZooKeeperError:
        return ZooKeeperError(f"{self._name}: ZooKeeper does not answer within {self._lost_s:g} s")

    def _explained(self, error: KazooException) -> ZooKeeperError:
        return ZooKeeperError(f"{self._name}: {explained(error)}")

    def _state_changed(self, state: str) -> None:
        """Called by kazoo, on a thread of its own."""
        _in_loop(self._loop, self._now, state == KazooState.CONNECTED)

    def _now(self, connected: bool) -> None:
        if not connected:
            self._connected.clear()
            return
        self._connected.set()
        if self._paths is not None:
            # Watches may have been lost with the connection.
            self._look_at_bookies.begin()
            for watched in self._watched.values():
                watched.look.begin()

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in the event loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function, *arguments)


def registered_address(content: bytes) -> Address | None:
    """The address in what a bookie has registered; None: it says none, as old bookies do."""
    try:
        info = BookieServiceInfo.FromString(content)
    except DecodeError:
        return None
    for endpoint in info.endpoints:
        if endpoint.protocol == ENDPOINT and endpoint.host and endpoint.port:
            return endpoint.host, endpoint.port
    return None


def address_of(bookie: BookieId) -> Address | None:
    """The address that a bookie's name is; None: it is another kind of name."""
    host, colon, port = bookie.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host, int(port)
