"""Parsing of addresses that a user wrote as text: hosts, ports, and where a broker keeps its metadata."""

from typing import Final

from magnetar.core.numbers import whole_number

SQLITE: Final = "sqlite"
"""The `store` of the `[metadata]` table that is not an address: a file in the broker's data folder."""

HOST_CHARACTERS_MAX: Final = 253
"""The longest name in the domain name system."""


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
