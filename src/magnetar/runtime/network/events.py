"""The parts of a broker and of its driver that connections use: of a broker that serves, or of one that waits to take over."""

from collections.abc import Callable
from typing import Any, Protocol

from magnetar.runtime.driver import Peer
from magnetar.runtime.log_rate_limit import Quiet
from magnetar.wire.frame import Frame


class Served(Protocol):
    """The machine that connections are events of: a broker, or one that waits to take over."""

    def connected(self, connection: int, address: str, certificate: str = "", tls: bool = False) -> None:
        """A client came; `certificate` is the common name of the one that TLS checked."""

    def frames(self, connection: int, frames: list[Frame]) -> None:
        """A client sent commands."""

    def writable(self, connection: int, writable: bool) -> None:
        """A client's socket takes no more, or takes more again."""

    def disconnected(self, connection: int) -> None:
        """A client is gone."""


class Events(Protocol):
    """The driver of the machine: brings events to it, and its effects to connections (`runtime.driver.Driver`).

    Attributes:
        quiet: limits warnings.
    """

    quiet: Quiet

    def attach(self, connection: int, peer: Peer) -> None:
        """Make a connection known under the number that the machine knows it by."""

    def detach(self, connection: int) -> None:
        """Forget a connection."""

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out its effects."""
