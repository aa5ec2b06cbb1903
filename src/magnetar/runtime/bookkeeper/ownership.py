"""Decides which broker of a cluster serves: the one whose ephemeral node is in ZooKeeper. The others wait for it.

The owner serves for as long as its lease lasts (`storage.bookkeeper.lease`), by a clock that also counts while the process is
stopped.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from magnetar.bookkeeper.network.zookeeper_client import explained
from magnetar.broker.waiting.registration import Registration
from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from magnetar.runtime.broker_storage import GivenUp
from magnetar.storage.bookkeeper.lease import Lease

SESSION_S: Final = 4.0
"""Session of ZooKeeper: the time from an owner's death until another broker may take over."""


now_s: Final = time.perf_counter
"""The clock of leases, which is the one that the driver reads before it handles anything."""


class Ownership:
    """One broker's part in choosing the owner.

    Args:
        client: connected, with a session of `SESSION_S` or `session_s`.
        path: of the node; its parent is there.
        own: the record of this broker, which others read in the node.
        session_s: of the client.

    Attributes:
        lease: of this broker, by `now_s`.
    """

    def __init__(self, client: KazooClient, path: str, own: Registration, session_s: float = SESSION_S) -> None:
        self._client = client
        self._path = path
        self._own = own
        self._session_s = session_s
        self._changed = threading.Event()
        self._given_up = threading.Event()
        self._closed = threading.Event()
        self.lease = Lease(session_s, path)
        self._thread = threading.Thread(target=self._watch, name="ownership", daemon=True)

    def take(self, waits: Callable[[], None]) -> None:
        """Wait until this broker is the owner.

        Args:
            waits: called once if another broker is the owner.

        Raises:
            GivenUp: `give_up` was called meanwhile.
            StorageError: ZooKeeper refuses it.
        """
        waiting = False
        while not self._given_up.is_set():
            asked_s = now_s()
            self._changed.clear()
            try:
                self._client.create(self._path, self._own.encode(), ephemeral=True)
            except NodeExistsError:
                if not waiting:
                    waiting = True
                    waits()
                self._wait_for_change()
            except UNANSWERED as error:
                raise self._explained(error) from error
            else:
                self.lease.taken(asked_s)
                self._thread.start()
                return
        raise GivenUp

    def give_up(self) -> None:
        """Make `take` end, if it waits. May be called on any thread."""
        self._given_up.set()
        self._changed.set()

    def lost(self) -> str:
        """The reason why this broker must not serve; empty: it may."""
        return self.lease.lost(now_s())

    def close(self) -> None:
        """Ask for the node no longer. It goes when the client ends its session, and another broker may be the owner then."""
        self.lease.give_up()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _wait_for_change(self) -> None:
        """Wait until the owner's node is gone. A watch may be lost with its connection, so look again after a session."""
        try:
            found = self._client.exists_async(self._path, self._node_changed).get(timeout=self._session_s)
        except UNANSWERED:
            found = True
        if found:
            self._changed.wait(self._session_s)

    def _node_changed(self, _event: object) -> None:
        # One function for all watches: kazoo keeps each of them only once.
        self._changed.set()

    def _watch(self) -> None:
        """Ask for the node again and again, until it is lost."""
        while not self._closed.wait(self.lease.pause_s) and not self.lost():
            asked_s = now_s()
            try:
                # A server that the others of ZooKeeper do not reach answers from what it had, for up to ten seconds, and knows
                # nothing of the end of the session. `sync` is answered only if it reaches them.
                self._client.sync_async(self._path).get(timeout=self._session_s / 2)
                stat = self._client.exists_async(self._path).get(timeout=self._session_s / 2)
            except UNANSWERED:
                continue
            # No session: kazoo is connecting again, and does not know yet whether it still has one.
            session = self._client.client_id
            if session is None:
                continue
            self.lease.confirmed(asked_s, own=stat is not None and stat.ephemeralOwner == session[0])

    def _explained(self, error: Exception) -> StorageError:
        return StorageError(f"ZooKeeper, {self._path}: {explained(error)}")
