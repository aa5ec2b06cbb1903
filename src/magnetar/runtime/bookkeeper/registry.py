"""The brokers of a cluster in ZooKeeper: each makes itself known there, and sees the others and the one that serves.

    <store>/brokers/NAME    ephemeral: the broker of this name, with its addresses (`broker.waiting.registration`)

A name belongs to one broker. One that starts right after it was killed finds the node of its former session, which ends on its
own within a session; a node that stays for longer is another broker's, and the start ends with one line.

The node of a waiting broker goes with its session, too, when it loses ZooKeeper for a while. It is made again as soon as there is
a new session.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from magnetar.bookkeeper.network.zookeeper_client import explained
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers, Registration, read_registration
from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from magnetar.runtime.bookkeeper.shards import shard_path
from magnetar.runtime.broker_storage import GivenUp

logger = logging.getLogger("magnetar.broker")

SESSIONS: Final = 3.0
"""Sessions that a start waits for its name: one until the former session ends, one for what the server adds to it at most (it
looks for ended sessions in ticks), and time for a server that has just started and counts all sessions from its start."""

LOOKS: Final = 4
"""Times in a session at which a broker looks for the others, in addition to the watch on the one that serves."""

BROKERS_MAX: Final = 100
"""A ceiling on the brokers that are read. A cluster has a few; the node may have been given others by mistake."""


class Registry:
    """One broker's part in the list of brokers.

    Args:
        client: of ZooKeeper; connected when `register` is called.
        path: of the cluster's node.
        own: the record of this broker.
        session_s: the session of the client.
        changed: gets the brokers when they have changed. It is called on a thread of this object.
        name_taken: called, on that thread, when another broker has got the name while this one had no session.
        silence: says which servers of ZooKeeper do not answer, and why, when none has.
    """

    def __init__(
        self,
        client: KazooClient,
        path: str,
        own: Registration,
        session_s: float,
        changed: Callable[[Brokers], None],
        name_taken: Callable[[], None],
        silence: Callable[[], str],
    ) -> None:
        self._client = client
        self._owner = f"{shard_path(path)}/owner"
        self._folder = f"{path}/brokers"
        self._own = own
        self._node = f"{self._folder}/{own.broker}"
        self._session_s = session_s
        self._changed = changed
        self._name_taken = name_taken
        self._silence = silence
        self._silent = False
        self._brokers = NO_BROKERS
        self._look = threading.Event()
        self._given_up = threading.Event()
        self._closed = threading.Event()
        self._other = ""
        self._thread = threading.Thread(target=self._watch, name="registry", daemon=True)

    def register(self) -> None:
        """Make this broker known; wait until the node of its own former session is gone.

        Raises:
            StorageError: another broker of this name runs, or ZooKeeper refuses it; one line.
            GivenUp: `give_up` was called meanwhile.
        """
        until_s = time.monotonic() + SESSIONS * self._session_s
        try:
            self._client.ensure_path(self._folder)
            while not self._registered():
                if time.monotonic() >= until_s:
                    raise StorageError(
                        f"ZooKeeper, {self._node}: another broker with the name {self._own.broker} runs"
                        f"{self._address()}; give each broker of the cluster a name of its own"
                    )
                self._gone(until_s)
                if self._given_up.is_set():
                    raise GivenUp
        except (*UNANSWERED, ValueError) as error:
            raise StorageError(f"ZooKeeper, {self._node}: {explained(error)}") from error
        self._thread.start()

    def give_up(self) -> None:
        """Make `register` end, if it waits. May be called on any thread."""
        self._given_up.set()
        self._look.set()

    @property
    def brokers(self) -> Brokers:
        """The brokers as they were at the last look. May be asked on any thread."""
        return self._brokers

    def lost(self) -> str:
        """The reason why this broker must end: another one has its name; empty: none has."""
        return self._other

    def close(self) -> None:
        """Look no longer. The node goes when the client ends its session."""
        self._closed.set()
        self._look.set()
        if self._thread.is_alive():
            self._thread.join()

    def _registered(self) -> bool:
        """Make the node; returns False if there is one that another session made."""
        try:
            self._client.create_async(self._node, self._own.encode(), ephemeral=True).get(timeout=self._session_s)
        except NodeExistsError:
            # It is this session's if the answer to an earlier try was lost.
            return self._is_own()
        return True

    def _is_own(self) -> bool:
        stat = self._client.exists_async(self._node).get(timeout=self._session_s)
        session = self._client.client_id
        return stat is not None and session is not None and stat.ephemeralOwner == session[0]

    def _gone(self, until_s: float) -> None:
        """Wait until the node is gone, but not beyond `until_s`. A watch may be lost with its connection, so look again."""
        self._look.clear()
        if not self._given_up.is_set() and self._client.exists_async(self._node, self._node_changed).get(
            timeout=self._session_s
        ):
            self._look.wait(max(0.0, min(until_s - time.monotonic(), self._session_s / LOOKS)))

    def _address(self) -> str:
        """Where the other broker of this name is, for a line."""
        with contextlib.suppress(*UNANSWERED):
            other = read_registration(bytes(self._client.get_async(self._node).get(timeout=self._session_s)[0]))
            return f" at {url}" if (url := other.pulsar_url()) else ""
        return ""

    def _node_changed(self, _event: object) -> None:
        # One function for all watches: kazoo keeps each of them only once.
        self._look.set()

    # ------------------------------------------------------------------------------------------------------ the others

    def _watch(self) -> None:
        """Look for the brokers again and again; register again when a session was lost."""
        while not self._closed.is_set():
            self._look.clear()
            try:
                self._keep_name()
                self._show(Brokers(self._read(self._owner, watch=True), self._all()))
            except UNANSWERED:
                # It stays as it was: brokers do not vanish because ZooKeeper is away.
                self._say(silent=not self._client.connected)
            else:
                self._say(silent=False)
            self._look.wait(self._session_s / LOOKS)

    def _say(self, *, silent: bool) -> None:
        """One line when ZooKeeper is away, and one when it is back."""
        if silent == self._silent or self._closed.is_set():
            return
        self._silent = silent
        if silent:
            logger.warning(
                "ZooKeeper does not answer: %s; the broker tries to connect again until it ends", self._silence()
            )
        else:
            logger.warning("ZooKeeper answers again")

    def _keep_name(self) -> None:
        if self._is_own() or self._client.client_id is None:
            return
        if not self._registered() and not self._other:
            self._other = f"another broker with the name {self._own.broker} runs{self._address()}"
            self._name_taken()

    def _all(self) -> tuple[Registration, ...]:
        names = sorted(self._client.get_children_async(self._folder).get(timeout=self._session_s))[:BROKERS_MAX]
        found = (self._read(f"{self._folder}/{name}") for name in names)
        return tuple(one for one in found if one is not None)

    def _read(self, path: str, *, watch: bool = False) -> Registration | None:
        try:
            asked = self._client.get_async(path, self._node_changed if watch else None)
            return read_registration(bytes(asked.get(timeout=self._session_s)[0]))
        except NoNodeError:
            if watch:
                self._client.exists_async(path, self._node_changed).get(timeout=self._session_s)
            return None

    def _show(self, brokers: Brokers) -> None:
        if brokers != self._brokers:
            self._brokers = brokers
            self._changed(brokers)
