"""Limits connections, in all and per address, and decides which connection is closed when the limit is reached.

    in a handshake of TLS --> a stranger --authenticates, or makes a request that is granted--> known, at work or idle

A stranger costs a socket and has done nothing yet. So when the limit is reached, a stranger of the address that has most of them
is closed first, then any that has been a stranger for some seconds, then a known connection that has been idle for some seconds,
if its protocol allows that. Only when there is none of these is the new connection refused.
"""

import ipaddress
import time
from collections.abc import Callable, Hashable
from typing import Final

CROWD: Final = 16
"""Strangers of one address that are not closed: this many may come from one proxy in the same moment. When there are more, the
oldest makes room at once, however young."""

STRANGER_S: Final = 3.0
"""Time after which a stranger of any address makes room: ten round trips to the other side of the world."""

IDLE_S: Final = 5.0
"""Idle time after which a known connection makes room: a program that asks again at once keeps its connection."""

RESERVED_PART: Final = 64
"""One in this many slots is for connections from this machine alone: an administrator there can connect when all others are
taken."""

PER_ADDRESS: Final = (4, 5)
"""The part of all slots that one address may have by default."""


def per_address(most: int, said: int) -> int:
    """The number of connections that one address may have.

    Args:
        most: the limit of all connections.
        said: the configured number; 0: none is configured.
    """
    part, of = PER_ADDRESS
    return said or -(-most * part // of)


def address_of(peer: str) -> str:
    """The address that counts for `host:port`: of IPv6 the network, of which one machine has 2^64 addresses."""
    host = peer.rpartition(":")[0]
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return "::1" if address.is_loopback else f"{ipaddress.IPv6Network((address, 64), strict=False)}"


class _Slot:
    """One that is taken."""

    __slots__ = ("address", "drop", "known", "peer", "shaking", "since_s")

    def __init__(self, address: str, peer: str, drop: Callable[[], None] | None, since_s: float) -> None:
        self.address, self.peer, self.drop, self.since_s = address, peer, drop, since_s
        self.known = self.shaking = False


class _Crowds:
    """Strangers by address, and which address has most of them."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[Hashable, _Slot]] = {}
        self._sizes: dict[int, dict[str, None]] = {}
        self._most = 0

    def add(self, connection: Hashable, slot: _Slot) -> None:
        """One more."""
        crowd = self._by_address.setdefault(slot.address, {})
        crowd[connection] = slot
        self._moved(slot.address, len(crowd) - 1, len(crowd))

    def remove(self, connection: Hashable, slot: _Slot) -> None:
        """One less."""
        crowd = self._by_address.get(slot.address, {})
        if crowd.pop(connection, None) is not None:
            self._moved(slot.address, len(crowd) + 1, len(crowd))
            if not crowd:
                del self._by_address[slot.address]

    def _moved(self, address: str, before: int, size: int) -> None:
        if before:
            of_size = self._sizes[before]
            del of_size[address]
            if not of_size:
                del self._sizes[before]
        if size:
            self._sizes.setdefault(size, {})[address] = None
        self._most = max(self._most, size) if size > before or self._most in self._sizes else self._most - 1

    def largest(self) -> str:
        """The address with most of them; "" when there are none."""
        return next(iter(self._sizes[self._most])) if self._most else ""

    def of(self, address: str) -> dict[Hashable, _Slot]:
        """The strangers of an address, in the order of their arrival."""
        return self._by_address.get(address, {})


class ConnectionSlots:
    """Limits connections, of one listener or of several.

    Args:
        most: how many there may be at once, handshakes of TLS among them.
        full: takes the address that was refused because the limit is reached.
        per_address: how many of them one address may have; 0: all.
        crowded: takes the address that was refused because it has too many.
        made_room: takes the address of a connection that was closed for another one.
        clock: in seconds.
    """

    def __init__(
        self,
        most: int,
        full: Callable[[str], None],
        *,
        per_address: int = 0,
        crowded: Callable[[str], None] = lambda _peer: None,
        made_room: Callable[[str], None] = lambda _peer: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.per_address = per_address
        self._full, self._crowded, self._made_room, self._clock = full, crowded, made_room, clock
        self._slots: dict[Hashable, _Slot] = {}
        self._counts: dict[str, int] = {}
        self._strangers: dict[Hashable, _Slot] = {}
        self._crowds = _Crowds()
        self._idle: dict[Hashable, float] = {}
        self.shaking = 0
        """Handshakes of TLS that are under way."""

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._slots) - self.shaking

    def begin(self, connection: Hashable, peer: str, drop: Callable[[], None] | None = None) -> bool:
        """A handshake of TLS begins, if there is room for its connection; `drop` ends it."""
        if not self._enter(connection, peer, drop):
            return False
        self._slots[connection].shaking = True
        self.shaking += 1
        return True

    def end(self, connection: Hashable) -> None:
        """A handshake of TLS is over. Its connection, if there is one, has taken its slot."""
        slot = self._slots.get(connection)
        if slot is not None and slot.shaking:
            self.leave(connection)

    def take(self, connection: Hashable, peer: str, drop: Callable[[], None] | None = None) -> bool:
        """Whether a connection may be opened, which `drop` ends. After a handshake of TLS it has its slot already."""
        slot = self._slots.get(connection)
        if slot is None:
            return self._enter(connection, peer, drop)
        if slot.shaking:
            slot.shaking = False
            self.shaking -= 1
        slot.drop = drop
        return True

    def leave(self, connection: Hashable) -> None:
        """A connection is gone; nothing if it made room."""
        slot = self._slots.pop(connection, None)
        if slot is None:
            return
        self.shaking -= slot.shaking
        self._idle.pop(connection, None)
        self._no_stranger(connection, slot)
        left = self._counts[slot.address] - 1
        if left:
            self._counts[slot.address] = left
        else:
            del self._counts[slot.address]

    def known(self, connection: Hashable) -> None:
        """A connection is no longer a stranger."""
        slot = self._slots.get(connection)
        if slot is not None and not slot.known:
            slot.known = True
            self._no_stranger(connection, slot)

    def idle(self, connection: Hashable) -> None:
        """A connection has nothing to do, and may be closed without harm."""
        if connection in self._slots:
            self._idle.pop(connection, None)
            self._idle[connection] = self._clock()

    def busy(self, connection: Hashable) -> None:
        """It has something to do again."""
        self._idle.pop(connection, None)

    # ------------------------------------------------------------------------------------------------------- deciding

    def _no_stranger(self, connection: Hashable, slot: _Slot) -> None:
        if self._strangers.pop(connection, None) is not None:
            self._crowds.remove(connection, slot)

    def _enter(self, connection: Hashable, peer: str, drop: Callable[[], None] | None) -> bool:
        address = address_of(peer)
        limit = self.most if address in {"127.0.0.1", "::1"} else self.most - self.most // RESERVED_PART
        if self.per_address and self._counts.get(address, 0) >= self.per_address and not self._clear(address):
            self._crowded(peer)
            return False
        if len(self._slots) >= limit and not self._clear():
            self._full(peer)
            return False
        slot = _Slot(address, peer, drop, self._clock())
        self._slots[connection] = self._strangers[connection] = slot
        self._crowds.add(connection, slot)
        self._counts[address] = self._counts.get(address, 0) + 1
        return True

    def _clear(self, address: str | None = None) -> bool:
        """Close a connection to make room, one of an address or any; whether there is one to close."""
        crowd = self._crowds.of(address if address is not None else self._crowds.largest())
        if len(crowd) > CROWD and self._out(crowd):
            return True
        now_s = self._clock()
        waiting = crowd if address is not None else self._strangers
        oldest = next(iter(waiting.values()), None)
        if oldest is not None and now_s - oldest.since_s >= STRANGER_S and self._out(waiting):
            return True
        for connection, since_s in self._idle.items():
            if now_s - since_s < IDLE_S:
                return False
            slot = self._slots[connection]
            if slot.known and address in {None, slot.address}:
                return self._out({connection: slot})
        return False

    def _out(self, among: dict[Hashable, _Slot]) -> bool:
        """Close the first of these that can be closed."""
        for connection, slot in among.items():
            if slot.drop is not None:
                self.leave(connection)
                self._made_room(slot.peer)
                slot.drop()
                return True
        return False
