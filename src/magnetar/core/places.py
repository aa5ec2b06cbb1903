"""The metadata stores that the `store` key of the `[metadata]` table may name."""

from typing import Final

from magnetar.core.hosts import port_of

SQLITE: Final = "sqlite"
"""A file in the broker's data folder."""


def parse_zookeeper(url: str) -> tuple[str, str]:
    """Hosts and path of `zookeeper://host:port[,host:port...]/path`.

    Raises:
        ValueError: it is none; says what would be right.
    """
    hosts, slash, path = url.removeprefix("zookeeper://").partition("/")
    good = url.startswith("zookeeper://") and hosts and all(_is_address(host) for host in hosts.split(","))
    if (
        not good
        or not slash
        or not path.strip("/")
        or any(part in {"", ".", ".."} for part in path.strip("/").split("/"))
    ):
        raise ValueError(f'{url!r} is no place in ZooKeeper: write "zookeeper://host:2181/magnetar"')
    return hosts, "/" + path.strip("/")


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon and host and port_of(port))
