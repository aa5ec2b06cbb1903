"""Addresses: their parsing, and those of the brokers of one cluster.

One broker of a cluster serves, and only trying shows which one. A round tries every address once, and those that were silent once
more. It begins with the address that answered last, so a connection costs one attempt while nothing changes. A caller continues
with the next address at once, and pauses only after a whole round.
"""

from collections.abc import Sequence
from typing import Final

from magnetar.core.numbers import whole_number

SQLITE: Final = "sqlite"
"""The `store` of the `[metadata]` table that is not an address: a file in the broker's data folder."""

HOST_CHARACTERS_MAX: Final = 253
"""The longest name in the domain name system."""

SILENT_S: Final = 0.4
"""How long a broker may be silent while a connection to it is being made, before the next address of its cluster is tried. Each
byte starts the time again. It is below `progress_ms` (500 ms): a task that waits for an answer has tried the next address before
it gives up the cluster. The last address has no such limit, because there is nothing else to try: the caller's own patience ends
it."""

SILENT_AGAIN_S: Final = 2.0
"""The same limit when a silent broker is tried once more, because no other one serves: it may be far away or busy. Above the
round trip of a link by satellite; below the patience of most callers, because a machine that is gone costs this time too."""


def is_host(text: str) -> bool:
    """Whether a text may be a host's name or address, an IPv6 one without its brackets: one that can be looked up at all."""
    if not text or len(text) > HOST_CHARACTERS_MAX:
        return False
    if any(character.isspace() or not character.isprintable() or character in "/[]" for character in text):
        return False
    try:
        text.encode("idna")  # as sockets do, which raise no OSError for an empty or too long label
    except UnicodeError:
        return False
    return True


def port_of(text: str) -> int:
    """The TCP port in a text; 0 if the text is not one."""
    number = whole_number(text) or 0
    return number if number < 65536 else 0


def parse_zookeeper(url: str) -> tuple[str, str]:
    """Hosts and path of `zookeeper://host:port[,host:port...]/path`.

    Raises:
        ValueError: it is not one; says what would be right.
    """
    hosts, _, rest = url.removeprefix("zookeeper://").partition("/")
    path = "/" + rest.strip("/")
    good = url.startswith("zookeeper://") and hosts and all(_is_address(host) for host in hosts.split(","))
    if not good or not is_zookeeper_path(path):
        raise ValueError(f'{url!r} is not a path in ZooKeeper: write "zookeeper://host:2181/magnetar"')
    return hosts, path


def is_zookeeper_path(path: str) -> bool:
    """Whether a text may be the path of a node of ZooKeeper, such as `/a/b`. The root itself is not one that can be used."""
    names = path.removeprefix("/").split("/")
    return path.startswith("/") and path.isprintable() and not any(name in {"", ".", ".."} for name in names)


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host and port_of(port))


class BrokerAddresses:
    """The addresses of a cluster, and where the next round begins. Threads may share one object: its only state is a number.

    Args:
        addresses: at least one; one that occurs again is left out.

    Raises:
        ValueError: there is no address.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        if not self._addresses:
            raise ValueError("a cluster has no address")
        self._first = 0

    @classmethod
    def parse(cls, text: str) -> "BrokerAddresses":
        """The inverse of `str`: addresses that are separated by commas."""
        return cls(text.split(","))

    def __str__(self) -> str:
        """All addresses, separated by commas. An address itself has none: its parameters are percent-encoded."""
        return ",".join(self._addresses)

    def __len__(self) -> int:
        """How many addresses there are."""
        return len(self._addresses)

    def __contains__(self, address: object) -> bool:
        """Whether it is an address of this cluster."""
        return address in self._addresses

    def order(self) -> tuple[str, ...]:
        """All addresses, in the order of the next round."""
        first = self._first
        return self._addresses[first:] + self._addresses[:first]

    def round(self) -> "AddressRound":
        """Begin a round."""
        return AddressRound(self)

    def answered(self, address: str) -> None:
        """The broker at an address serves: the next round begins with it."""
        self._first = self._addresses.index(address)

    def failed(self, address: str) -> None:
        """An address was of no use: the next round does not begin with it, if there is another one."""
        if self._addresses[first := self._first] == address:
            self._first = (first + 1) % len(self._addresses)


class AddressRound:
    """One round, until an address answers: every address once, then those that were silent once more.

    Attributes:
        address: the one that is tried now.
    """

    def __init__(self, addresses: BrokerAddresses) -> None:
        self._addresses = addresses
        self.address, *self._left = addresses.order()
        self._silent: list[str] = []
        self._again = False
        self._reasons: dict[str, str] = {}
        self._over = False

    @property
    def reason(self) -> str:
        """Why the addresses that were tried are of no use, in one line."""
        return "; ".join(self._reasons.values())

    def patience_s(self, caller_s: float) -> float:
        """How long the present address may be silent.

        Args:
            caller_s: how long the caller would wait for the only address of a cluster.
        """
        if self._again:
            return min(SILENT_AGAIN_S, caller_s)
        return min(SILENT_S, caller_s) if self._left else caller_s

    def answered(self) -> None:
        """The broker at the present address serves; the round is over."""
        self._over = True
        self._addresses.answered(self.address)

    def failed(self, reason: str, better: str = "", *, silent: bool = False) -> bool:
        """The present address is of no use; continue with the next one.

        Args:
            reason: one line that names the address.
            better: the address that it named. It is the next one, if it is still to be tried.
            silent: it did not answer within `patience_s`.

        Returns:
            Whether there is another one; `address` is that one then. Otherwise the round is over.
        """
        self._reasons[self.address] = reason
        self._addresses.failed(self.address)
        if silent and self._left and not self._again:
            self._silent.append(self.address)
        if not self._left and not self._again:
            self._left, self._again = self._silent, True
        if not self._left:
            self._over = True
            return False
        self.address = self._left.pop(self._left.index(better) if better in self._left else 0)
        return True

    def give_up(self) -> None:
        """End the round here, if it is not over: the present address did not answer in time."""
        if not self._over:
            self._over = True
            self._addresses.failed(self.address)
