"""A connection that was made to a broker when it waited, and continues when this broker serves.

The rules: docs/design/cluster.md#continues.

The client has had the answer to CONNECT and perhaps waits for others. The broker that serves knows nothing of it. So CONNECT is
repeated to it, and then the requests that have no answer:

    state        event                          becomes
    -----------  -----------------------------  ----------------------------------------------------------------------
    connecting   CONNECTED                      repeating; the client has had this answer, so it is not sent
                 ERROR or another answer        over; it is sent, and the broker ends the connection
    repeating    a turn of the loop             some requests more are handled, unless the broker wants none now; after the last
                                                one: over
    any          the socket is gone             over

The socket is not read before it is over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.runtime.driver import Peer
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder

TURN_REQUESTS_MAX: Final = 20
"""Requests of one connection that are repeated in one event, as many as come from a socket in one."""


class Continuing(Peer, Protocol):
    """A connection that continues (`runtime.network.server.Connection`)."""

    @property
    def is_open(self) -> bool:
        """Whether the socket is not gone."""


class Continued:
    """The peer that the driver has for such a connection, until it is over.

    Args:
        loop: the event loop.
        connection: the connection. It is not being read.
        requests: those without an answer, in their order.
        handle: handles some of them, in one event.
        over: makes the connection itself the driver's peer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Continuing,
        requests: Sequence[Frame],
        handle: Callable[[list[Frame]], None],
        over: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._requests = list(requests)
        self._handle, self._over = handle, over
        self._connecting = True
        self._held = False
        self._turn_due = False

    # ---------------------------------------------------------------------------------------------------- driver.Peer

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write buffers, except the answer to CONNECT."""
        if not self._connecting:
            self._connection.send(buffers)
            return
        self._connecting = False
        (first,) = FrameDecoder().feed(b"".join(buffers))
        if first.command.type == pb.CONNECTED:
            self._next_turn()
        else:
            self._connection.send(buffers)
            self._end()

    def send_now(self, buffer: bytes | memoryview) -> None:
        """The same."""
        self.send([buffer])

    def close(self, reason: str) -> None:
        """Close the connection."""
        self._connection.close(reason)

    def hold(self, hold: bool) -> None:
        """No requests are to be handled, and the socket is not to be read when this is over; or the opposite."""
        self._held = hold
        if self._requests and not (hold or self._connecting):
            self._next_turn()

    def let_in(self, frame_bytes_max: int, command_bytes_max: int, *, link: bool) -> None:
        """Change the largest frame."""
        self._connection.let_in(frame_bytes_max, command_bytes_max, link=link)

    # ---------------------------------------------------------------------------------------------------------- parts

    def _next_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if not self._connection.is_open:
            return
        if self._held and self._requests:
            # A socket is not read either: the answers to a thousand requests for a list of topics would pile up. `hold` sets
            # the next turn.
            return
        frames, self._requests = self._requests[:TURN_REQUESTS_MAX], self._requests[TURN_REQUESTS_MAX:]
        if frames:
            self._handle(frames)
        if self._requests:
            self._next_turn()
        else:
            self._end()

    def _end(self) -> None:
        if self._connection.is_open:
            self._over()
            self._connection.hold(self._held)
