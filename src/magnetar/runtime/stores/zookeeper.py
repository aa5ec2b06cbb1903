"""The metadata store in ZooKeeper, through `kazoo`: for clusters whose metadata shall not be on a broker's own disk.

    <path>/version          8 bytes: the version of the last transaction; every transaction compares and sets it
    <path>/commits/<n>      the keys that transaction n wrote, and its writer; the last `COMMITS_KEPT`
    <path>/entries/<xx>/<k> 8 bytes of version and the value, key percent-encoded, spread over 256 nodes
    <path>/owner            ephemeral: the present writer; part of every transaction, so that a writer that lost its session
                            to another one can no longer write

One transaction of the store is one `multi` of ZooKeeper, all or nothing. The version node puts all transactions into one order:
ZooKeeper refuses a store that has not seen the latest; the store reads the transactions in between, and tries again. So a key
that is deleted and created again has a new version, which ZooKeeper's own versions (they begin at 0 again) would not give.

After a lost connection it is unknown whether the last transaction was committed. When the connection is back, the commit's own
node answers that, and until then the writer waits. A transaction that may still be committed is never reported as failed.

ZooKeeper takes 1 MiB in one request (`jute.maxbuffer`); a larger write is refused in one line, and grouped writes stay below.
"""

import logging
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

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
from kazoo.protocol.states import KazooState, KeeperState

from magnetar.bookkeeper.network.zookeeper_client import (
    OPEN,
    SaslMissing,
    ZooKeeperSecurity,
    explained,
    make_client,
    silence,
)
from magnetar.core.errors import StorageError
from magnetar.metadata.store import VersionConflict, Watcher, Watchers
from magnetar.runtime.stores.writes import answer, as_text, wait_for
from magnetar.runtime.stores.znodes import (
    BUCKETS,
    COMMITS_KEPT,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Write,
    ZNodes,
    decode,
    encode,
    followed,
    number,
)

logger = logging.getLogger("magnetar.store")

START_S: Final = 30.0
"""How long opening waits for ZooKeeper: a broker without metadata cannot serve. An attempt to connect that a starting server
swallows lasts as long as `SESSION_S`: two more have to fit."""

SESSION_S: Final = 10.0
"""Session time-out: the time from a broker's death until another can be the writer."""

LOST_S: Final = 10.0
"""How long reading and closing wait for a connection that was there and is lost."""

LOAD_ATTEMPTS: Final = 100
"""Turns of reading what was written meanwhile, each far shorter than the one before."""

_LOST = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, OperationTimeoutError)
"""Errors after which it is unknown whether the request was carried out."""


class _Closed(StorageError):
    """The store is being closed and ZooKeeper does not answer."""


class ZooKeeperStore:
    """A metadata store below one path of a ZooKeeper ensemble.

    Args:
        hosts: `host:port`, several with commas between them.
        path: below which everything is kept; made if it is missing. Each cluster needs its own.
        security: of the connections.
        exclusive: this one is the only writer while it is open, as a broker needs it. False: several stores share the path and
            see each other's changes (`watch`).
        start_s, session_s: see `START_S`, `SESSION_S`.
        on_commit: called with each transaction of this store that is durable, on its thread, before its writer is answered.

    Raises:
        StorageError: it cannot be reached, the path is no store of this version, or another writer holds it.
    """

    def __init__(
        self,
        hosts: str,
        path: str,
        security: ZooKeeperSecurity = OPEN,
        *,
        exclusive: bool = True,
        start_s: float = START_S,
        session_s: float = SESSION_S,
        on_commit: Callable[[int], None] = lambda _version: None,
    ) -> None:
        self._on_commit = on_commit
        self._root = "/" + path.strip("/")
        self._name = f"zookeeper://{hosts}{self._root}"
        self._token = uuid.uuid4().hex
        self._exclusive = exclusive
        self._fenced = ""
        self._queue: queue.SimpleQueue[Write | Callable[[], None]] = queue.SimpleQueue()
        self._watchers = Watchers()
        self._versions: dict[str, int] = {}
        self._seen = 0
        self._stale = False
        self._state = threading.Condition()
        self._connected = False
        self._closing = False
        self._stopped = False
        try:
            self._client = make_client(hosts, session_s, logging.getLogger("magnetar.store.kazoo"), security)
        except SaslMissing as error:
            raise StorageError(str(error)) from None
        self._nodes = ZNodes(self._client, self._root)
        self._client.add_listener(self._changed)
        try:
            self._client.start(timeout=start_s)
            self._open()
        except KazooTimeoutError:
            self._leave()
            why = silence(hosts, security)
            raise StorageError(f"{self._name}: ZooKeeper does not answer within {start_s:g} s: {why}") from None
        except (KazooException, ValueError) as error:
            self._leave()
            raise self._explain(error) from error
        except StorageError:
            self._leave()
            raise
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------------------------------------------------- callers

    @property
    def version(self) -> int:
        """Version of the last transaction that this store knows."""
        return self._seen

    def load(self) -> dict[str, tuple[bytes, int]]:
        """Everything, as it is now; waits a little for a connection that is just lost."""
        try:
            return self._load()
        except _LOST:
            with self._state:
                self._state.wait_for(lambda: self._connected, LOST_S)
        except KazooException as error:
            raise self._explain(error) from error
        try:
            return self._load()
        except KazooException as error:
            raise self._explain(error) from error

    def _load(self) -> dict[str, tuple[bytes, int]]:
        version, found = self._nodes.version()[0], self._nodes.read_all()
        for _ in range(LOAD_ATTEMPTS):
            newest = self._nodes.version()[0]
            if newest == version:
                return found
            keys = self._nodes.written(version, newest)
            if keys is None:
                found = self._nodes.read_all()
            else:
                # Writes that came while everything else was read; they become fewer from turn to turn.
                found = {key: value for key, value in found.items() if key not in keys} | self._nodes.read_some(keys)
            version = newest
        raise StorageError(f"{self._name}: others write faster than it can be read; try again")

    def apply(
        self, puts: Mapping[str, bytes], deletes: tuple[str, ...] = (), expected: Mapping[str, int] | None = None
    ) -> None:
        """Write and delete, all or nothing, durably (on a majority of the ensemble)."""
        wait_for(lambda done: self._queue.put(Write(dict(puts), deletes, expected, done)))

    def submit(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None]) -> None:
        """Write and delete later, in the order of submission."""
        self._queue.put(Write(puts, deletes, None, as_text(done)))

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Report changes, this store's and others', on the store's thread."""
        return self._watchers.add(prefix, watcher)

    def close(self) -> None:
        """Finish the submitted writes, then close; without a connection the waiting ones are reported as not stored."""
        self._queue.put(self._stop)
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()
        self._leave()

    # -------------------------------------------------------------------------------------------------------- opening

    def _leave(self) -> None:
        self._client.remove_listener(self._changed)
        self._client.stop()
        self._client.close()

    def _changed(self, state: str) -> None:
        """Called by kazoo, on a thread of its own."""
        with self._state:
            self._connected = state == KazooState.CONNECTED
            if state == KazooState.LOST:
                self._stale = True
            if self._client.client_state == KeeperState.AUTH_FAILED:
                # kazoo does not connect again.
                self._fenced = (
                    f"{self._name}: ZooKeeper refuses the user or the password now; nothing is stored until a restart"
                )
            self._state.notify_all()
        if state == KazooState.SUSPENDED:
            logger.warning("%s: the connection is lost; writes wait for it", self._name)
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            logger.error("%s", self._fenced)
        elif state == KazooState.LOST:
            logger.warning("%s: the session expired; a new one begins when ZooKeeper answers", self._name)

    def _open(self) -> None:
        self._client.ensure_path(f"{self._root}/entries")
        self._client.ensure_path(f"{self._root}/commits")
        pending = [
            self._client.create_async(f"{self._root}/entries/{bucket:02x}", b"") for bucket in range(BUCKETS)
        ] + [self._client.create_async(f"{self._root}/version", number(0))]
        for created in pending:
            try:
                created.get()
            except NodeExistsError:
                continue
        self._own()
        self._resync()

    def _own(self) -> None:
        """Become the writer.

        Raises:
            StorageError: another store is.
        """
        path = f"{self._root}/owner"
        while self._exclusive:
            try:
                self._client.create(path, self._token.encode(), ephemeral=True)
                return
            except NodeExistsError:
                pass
            try:
                held, stat = self._client.get(path)
                if held.decode() != self._token:
                    raise StorageError(
                        f"{self._name} is in use by another broker (its session ends {SESSION_S:g} s after it dies)"
                    )
                if stat.ephemeralOwner == self._client.client_id[0]:
                    return
                # Our own node of a session that is over: it would go with it.
                self._client.delete(path)
            except NoNodeError:
                continue

    # ---------------------------------------------------------------------------------------------------- reading

    def _resync(self) -> None:
        """Read the transactions of others since the last call, and report them to the watchers."""
        version, _ = self._nodes.version(None if self._exclusive else self._somebody_wrote)
        if version == self._seen and not self._stale:
            return
        changes = self._missed(version)
        if changes is None:
            found = self._nodes.read_all()
            version = max(version, *(each for _, each in found.values()), 0)
            gone = [(key, None, version) for key in self._versions if key not in found]
            changes = [*gone] + [
                (key, value, each) for key, (value, each) in found.items() if self._versions.get(key) != each
            ]
        for key, value, each in changes:
            if value is None:
                self._versions.pop(key, None)
            else:
                self._versions[key] = each
        self._seen, self._stale = version, False
        self._watchers.notify(sorted(changes, key=lambda change: change[2]))

    def _missed(self, version: int) -> list[tuple[str, bytes | None, int]] | None:
        """The last change of each key that transactions after `_seen` up to `version` wrote; None: too many."""
        if not self._seen or version - self._seen > COMMITS_KEPT // 2:
            return None
        latest = self._nodes.written(self._seen, version)
        if latest is None:
            return None
        found = self._nodes.read_some(latest)
        changes: list[tuple[str, bytes | None, int]] = [(key, value, each) for key, (value, each) in found.items()]
        return changes + [(key, None, at) for key, at in latest.items() if key not in found and key in self._versions]

    def _somebody_wrote(self, _event: Any) -> None:
        self._queue.put(self._look)

    def _look(self) -> None:
        try:
            self._ready()
            self._resync()
        except (KazooException, StorageError) as error:
            self._stale = True
            logger.warning("%s: cannot read what others wrote: %s", self._name, error)

    # ---------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        ahead: Write | Callable[[], None] | None = None
        while not self._stopped:
            item, ahead = ahead or self._queue.get(), None
            if not isinstance(item, Write):
                item()
                continue
            group, size, operations = [item], item.size, item.operations
            while group[-1].expected is None and not self._queue.empty():
                ahead = self._queue.get()
                if not isinstance(ahead, Write) or ahead.expected is not None:
                    break
                size, operations = size + ahead.size, operations + ahead.operations
                if size > TRANSACTION_BYTES_MAX or operations > OPERATIONS_MAX:
                    break
                group.append(ahead)
                ahead = None
            self._commit(group)

    def _stop(self) -> None:
        self._stopped = True

    def _ready(self) -> None:
        """Wait for a connection, and be the writer again if a session was lost.

        Raises:
            StorageError: another writer took over. _Closed: the store is being closed meanwhile.
        """
        with self._state:
            while not self._connected and not self._fenced:
                if self._closing and not self._state.wait(LOST_S):
                    raise _Closed(f"{self._name}: closed while ZooKeeper did not answer; this was not stored")
                if not self._closing:
                    self._state.wait()
        if self._fenced:
            raise StorageError(self._fenced)

    def _commit(self, group: list[Write]) -> None:
        """One transaction for the whole group; if it fails, one for each write, so that a bad write fails alone."""
        failure: VersionConflict | StorageError | None = None
        try:
            changes = self._write(group)
        except (VersionConflict, StorageError) as error:
            failure = error
        except (KazooException, ValueError, TypeError) as error:
            failure = self._explain(error)
        if failure is not None and len(group) > 1:
            for write in group:
                self._commit([write])
            return
        if failure is None:
            self._watchers.notify(changes)
        for write in group:
            answer(write.done, failure)

    def _write(self, group: list[Write]) -> list[tuple[str, bytes | None, int]]:
        puts: dict[str, bytes] = {}
        deletes: dict[str, None] = {}
        for write in group:
            for key in write.deletes:
                puts.pop(key, None)
                deletes[key] = None
            for key, value in write.puts.items():
                deletes.pop(key, None)
                puts[key] = bytes(value)
        size = sum(write.size for write in group)
        if size > TRANSACTION_BYTES_MAX:
            raise StorageError(
                f"{self._name}: a write of {len(puts)} keys and {size} bytes is more than ZooKeeper takes at once "
                f"({TRANSACTION_BYTES_MAX}); the store in a file has no such limit"
            )
        while True:
            try:
                self._ready()
                done = self._attempt(group, puts, deletes)
            except _LOST:
                continue
            if done is not None:
                return done

    def _attempt(
        self, group: list[Write], puts: dict[str, bytes], deletes: dict[str, None]
    ) -> list[tuple[str, bytes | None, int]] | None:
        """Try once; None: another store wrote meanwhile, or the session is new: try again."""
        if self._stale:
            self._take_over_again()
            self._resync()
        for write in group:
            self._check(write.expected or {})
        seen, node = self._nodes.version()
        if seen != self._seen:
            self._resync()
            return None
        version = seen + 1
        gone = [key for key in deletes if key in self._versions]
        if not self._sent(version, node, puts, gone):
            return None
        for key in gone:
            del self._versions[key]
        self._versions |= dict.fromkeys(puts, version)
        self._seen = version
        self._on_commit(version)
        if version > COMMITS_KEPT:
            self._client.delete_async(self._nodes.commit_path(version - COMMITS_KEPT))
        return [(key, None, version) for key in gone] + [(key, value, version) for key, value in puts.items()]

    def _check(self, expected: Mapping[str, int]) -> None:
        if any(self._versions.get(key, 0) != wanted for key, wanted in expected.items()):
            self._resync()
        for key, wanted in expected.items():
            present = self._versions.get(key, 0)
            if present != wanted:
                raise VersionConflict(f"{key} has version {present}, not {wanted}")

    def _sent(self, version: int, node: int, puts: dict[str, bytes], gone: list[str]) -> bool:
        """Whether a transaction was committed; False: the known version is not the one in ZooKeeper."""
        transaction = self._client.transaction()
        if self._exclusive:
            transaction.check(f"{self._root}/owner", 0)
        transaction.set_data(f"{self._root}/version", number(version), node)
        transaction.create(self._nodes.commit_path(version), encode(self._token, [*gone, *puts]))
        for key in gone:
            transaction.delete(self._nodes.path(key))
        for key, value in puts.items():
            write = transaction.set_data if key in self._versions else transaction.create
            write(self._nodes.path(key), number(version) + value)
        try:
            results = transaction.commit()
        except _LOST:
            self._ready()
            return self._happened(version)
        problem = next((each for each in results if isinstance(each, Exception) and not followed(each)), None)
        if isinstance(problem, BadVersionError | NodeExistsError | NoNodeError):
            self._stale = True
            return False
        if problem is not None:
            raise problem
        return True

    def _happened(self, version: int) -> bool:
        """Whether a transaction of ours that got no answer was committed."""
        # When a later write is decided, the ones sent before are too: ZooKeeper puts the writes of all clients in one order.
        barrier = f"{self._root}/commits"
        self._client.set(barrier, self._token.encode())
        try:
            token, _keys = decode(self._client.get(self._nodes.commit_path(version))[0])
        except NoNodeError:
            return False
        return token == self._token

    def _take_over_again(self) -> None:
        try:
            self._own()
        except StorageError:
            self._fenced = (
                f"{self._name}: another broker took over while this one had lost its session; this one writes no more, "
                "stop it"
            )
            raise StorageError(self._fenced) from None

    def _explain(self, error: Exception) -> StorageError:
        return StorageError(f"the metadata store {self._name} cannot be used: {explained(error)}")
