"""A client inside the broker's own process: it has no socket, and is otherwise like any client.

Its frames become the events of a connection; the broker's frames to that connection are decoded and passed to it. So login,
permissions, limits and statistics are those of the broker's sessions, and there is no second implementation of them.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.runtime.network.events import Events, Served
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder

logger = logging.getLogger(__name__)

Heard = Callable[[pb.BaseCommand, bytes], None]
"""Called with a command and its payload."""

FRAME_BYTES_MAX: Final = 1 << 30
"""The largest frame from the broker: whatever it stored, it may send."""


class InsideConnection:
    """One connection; `runtime.driver.Peer`.

    Args:
        driver, broker: where it goes.
        number: its name inside the broker, which no other connection has.
        heard: called with each command that the broker sends, in order.
        closed: called once with a reason ("": none) when the broker closes it.

    Attributes:
        held: the broker asks that nothing more is sent for now.
        on_free: called when it is no longer held.
    """

    def __init__(
        self, driver: Events, broker: Served, number: int, heard: Heard, closed: Callable[[str], None]
    ) -> None:
        self._driver, self._broker, self._number = driver, broker, number
        self._heard, self._closed = heard, closed
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._open = False
        self.held = False
        self.on_free: Callable[[], None] = _nothing

    def open(self, address: str, certificate: str, *, tls: bool) -> None:
        """Connect.

        Args:
            address: of the user of this client, with its port.
            certificate: common name of a client certificate that TLS checked, "" without.
            tls: whether that connection is by TLS.
        """
        self._open = True
        self._driver.attach(self._number, self)
        self._driver.run(self._broker.connected, self._number, address, certificate, tls)

    def tell(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        """Send a command; nothing happens when the connection is closed."""
        if self._open:
            self._driver.run(self._broker.frames, self._number, [Frame(command, payload)])

    def writable(self, writable: bool) -> None:
        """Say whether more messages can be taken."""
        if self._open:
            self._driver.run(self._broker.writable, self._number, writable)

    def end(self) -> None:
        """Disconnect."""
        if self._open:
            self._open = False
            self._driver.detach(self._number)
            self._driver.run(self._broker.disconnected, self._number)

    # ---------------------------------------------------------------------------------------------------- driver.Peer

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """The broker sends something."""
        for frame in self._decoder.feed(b"".join(buffers)):
            if self._open:
                try:
                    self._heard(frame.command, frame.payload)
                except Exception as error:  # who listens made a mistake: its connection ends, and not the broker's work
                    logger.error("a connection of the process itself ends: %r", error, exc_info=error)
                    self.close("its client made a mistake; the broker's log says more")

    def send_now(self, buffer: bytes | memoryview) -> None:
        """The broker sends something."""
        self.send([buffer])

    def close(self, reason: str) -> None:
        """The broker ends the connection."""
        if self._open:
            self.end()
            self._closed(reason)

    def hold(self, hold: bool) -> None:
        """Pause or resume sending."""
        self.held = hold
        if not hold:
            self.on_free()

    def let_in(self, frame_bytes_max: int, command_bytes_max: int, *, link: bool) -> None:
        """The client is logged in: nothing changes for one that is bounded elsewhere."""


def _nothing() -> None:
    """Do nothing: no caller waits for the answer."""
