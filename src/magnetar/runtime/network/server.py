"""The Pulsar port: sockets in, frames to the broker, buffers out.

A connection owns nothing but its socket, its decoder and its keep-alive; the broker's session knows its role and permissions.
Back-pressure works both ways: when a socket does not take the written bytes, the broker stops dispatching to it; when the broker
has too much to write, the socket is not read.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import cast

from magnetar.runtime.network.competition import Competition
from magnetar.runtime.network.connection_slots import ConnectionSlots
from magnetar.runtime.network.continued import Continued
from magnetar.runtime.network.events import Events, Served
from magnetar.runtime.network.frame_slices import Portions
from magnetar.runtime.network.in_process import Heard, InsideConnection
from magnetar.runtime.network.listener import Listener, shown
from magnetar.runtime.network.protocol_sniffing import HEAD_BYTES, Urls, handshake_failed, malformed
from magnetar.runtime.security.tls import common_name
from magnetar.wire import commands
from magnetar.wire.frame import Frame, PlainSend
from magnetar.wire.frames import FrameDecoder, FrameError
from magnetar.wire.limits import FIELDS_MAX, LINK_FIELDS_MAX

WRITE_HIGH_BYTES = 4 * 1024 * 1024
"""Backpressure: above this many unsent bytes dispatch to the connection stops. A few frames of the largest size would
fit a smaller mark; a larger one is memory times connections."""

WRITE_LOW_BYTES = 1024 * 1024

CLOSE_S = 10.0
"""Time for a peer to take the bytes that were written before its connection was closed: a peer that reads nothing would keep the
socket, and up to WRITE_HIGH_BYTES with it, for ever."""

STUCK_INTERVALS = 2
"""Keep-alive intervals that a peer may take none of what waits for it. It does not count as silent, because it is not read
meanwhile."""

TURN_FRAMES_MAX = 40
"""Frames of one connection before it is the others' turn. A socket holds thousands of them, and a client that sends them without
a pause would delay all others by many milliseconds."""

TURN_S = 0.00025
"""The same in time, for frames that are there at once: acknowledgements, the most expensive of the frequent commands, take more
than twice as long as publishes, and they become slower when they come in smaller portions."""

RUN_FRAMES_MAX = 20
"""Frames that are one event: between events the log's reports are handled, its thread gets the GIL, and the time is checked."""

TURN_BYTES_MAX = 1024 * 1024
"""The same in bytes."""

ALONE_FRAMES_MAX = 200
"""Plain messages that are one event, and one turn, of a connection while no other has work (`runtime.network.competition`): some
2 ms, for which a connection that begins to work may have to wait once. Other commands come in the usual portions."""

LINK_SILENT_INTERVALS = 20
"""Keep-alive intervals that a link peer may be silent. Spark tasks keep connections between batches and have no thread to
answer pings; a dead peer's socket is found by TCP's own keep-alive or when this is over."""


class Connection(asyncio.BufferedProtocol):
    """One client.

    Args:
        server: the port it came to.
        number: its name inside the broker.
        tls: whether it came to the listener by TLS.
    """

    def __init__(self, server: "PulsarServer", number: int, *, tls: bool = False) -> None:
        self._server = server
        self._number = number
        self._tls = tls
        self._decoder = FrameDecoder(server.frame_bytes_max)
        self._decoder.limit(server.frame_bytes_max)
        self._portions = Portions()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._heard = True
        self._understood = False
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._peer = "?"
        self._silent = 0
        self._silent_max = 1
        self._full = False
        self._unsent = 0
        self._stuck = 0
        self._held = False
        self._turn_frames = 0
        self._turn_bytes = 0
        self._turn_over = False
        self._alone = False

    # ------------------------------------------------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, or refuse when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._peer = shown(transport.get_extra_info("peername"))
        if not self._admitted(self._transport):
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # one that is gone already; the event of that comes in a moment
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if not self._tls:
                self._descriptor = sock.fileno()
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._server.driver.attach(self._number, self)
        self._connected(self._transport)
        self._timer = self._server.loop.call_later(self._server.keep_alive_s, self._keep_alive)

    def _admitted(self, transport: asyncio.Transport) -> bool:
        """Whether the server has room for it; it is dropped otherwise."""
        if self._server.admit(self._number, self, self._peer):
            return True
        transport.abort()
        self._transport = None
        return False

    def _connected(self, transport: asyncio.Transport) -> None:
        certificate = common_name(transport.get_extra_info("peercert")) if self._tls else ""
        self._server.driver.run(self._server.broker.connected, self._number, self._peer, certificate, self._tls)

    def continue_at(self, server: "PulsarServer", number: int, repeated: Sequence[Frame]) -> None:
        """Become a connection of another server, whose broker serves (`runtime.network.continued`).

        Args:
            server: the other one.
            number: the connection's name inside the other broker.
            repeated: CONNECT, which has been answered, and the requests without an answer.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._gone()
        self._server, self._number = server, number
        if not self._admitted(transport):
            return
        self.hold(True)
        driver, broker = server.driver, server.broker
        driver.attach(
            number,
            Continued(
                server.loop,
                self,
                repeated[1:],
                lambda frames: driver.run(broker.frames, number, frames),
                lambda: driver.attach(number, self),
            ),
        )
        self._connected(transport)
        if self._full:
            driver.run(broker.writable, number, False)
        driver.run(broker.frames, number, [repeated[0]])

    @property
    def is_open(self) -> bool:
        """Whether the socket is neither gone nor being closed."""
        return self._transport is not None and not self._transport.is_closing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._heard = True
        self._server.received += 1
        self._handle(nbytes)

    def _handle(self, nbytes: int) -> None:
        """Hand on some frames, in several events, until the turn is over."""
        now_s = time.perf_counter()
        end_s = now_s + TURN_S
        self._alone = self._server.competition.alone(self._number, nbytes, now_s)
        while self._run(nbytes):
            self._turn_bytes += nbytes
            nbytes = 0
            full = self._turn_frames >= TURN_FRAMES_MAX or self._turn_bytes >= TURN_BYTES_MAX
            if full or self._held or not self._more or time.perf_counter() >= end_s:
                if full or self._more:
                    self._end_turn()
                return

    @property
    def _more(self) -> bool:
        """Whether something is to be handled before the socket is read again."""
        return bool(self._portions) or self._decoder.more

    def _run(self, nbytes: int) -> bool:
        """One event; whether the connection is still to be read. One that acknowledges much takes several
        (`runtime.network.frame_slices`).

        Whole frames before a fault count as if they had come in a read of their own: the way in which the kernel cuts the bytes
        must not decide whether a request is handled.
        """
        waiting = self._portions
        fault = self._decode(nbytes) if nbytes or not waiting else ""
        if waiting:
            self._understood = True
            while True:
                frames = waiting.take()
                self._server.driver.run(self._server.broker.frames, self._number, frames)
                self._turn_frames += len(frames)
                if not fault or not waiting:
                    break
        if fault:
            self.close(fault)
            return False
        return self._transport is not None and not self._transport.is_closing()

    def _decode(self, nbytes: int) -> str:
        """Queue the bytes that came; returns the error in them, if there is one."""
        fault = ""
        decoder = self._decoder
        frames: list[Frame] = []
        try:
            frames += decoder.buffer_updated(nbytes, RUN_FRAMES_MAX)
            while self._alone and decoder.more and frames and type(frames[-1]) is PlainSend:
                if len(frames) >= ALONE_FRAMES_MAX:
                    break
                frames += decoder.buffer_updated(0, RUN_FRAMES_MAX)
        except FrameError as error:
            frames += error.frames
            fault = f"malformed frame: {error}"
            if not frames and not self._understood:
                key = "pulsar_tls" if self._tls else "pulsar"
                fault = malformed(key, self._decoder.head(HEAD_BYTES), fault, self._server.urls)
        self._portions.add(frames)
        return fault

    def _end_turn(self) -> None:
        """Continue when the others had their turn. Without the pause the loop would read this socket up to 32 times."""
        if self._turn_over or self._transport is None or self._transport.is_closing():
            return
        self._turn_over = True
        self._transport.pause_reading()
        self._server.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_over = False
        self._turn_frames = self._turn_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing() or self._held:
            return
        if self._more:
            self._handle(0)
        if not self._turn_over and not self._held and not transport.is_closing():
            transport.resume_reading()

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._full = True
        self._server.driver.run(self._server.broker.writable, self._number, False)

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self._full = False
        self._server.driver.run(self._server.broker.writable, self._number, True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        for timer in (self._timer, self._end):
            if timer is not None:
                timer.cancel()
        if self._transport is None:
            return
        self._transport = None
        self._descriptor = -1
        self._gone()

    def _gone(self) -> None:
        """The server and its broker have this connection no longer."""
        self._server.driver.detach(self._number)
        self._server.forget(self._number, self)
        self._server.driver.run(self._server.broker.disconnected, self._number)

    # ---------------------------------------------------------------------------------------------------- driver.Peer

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write buffers, in order."""
        transport = self._transport
        if transport is None:
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    def send_now(self, buffer: bytes | memoryview) -> None:
        """Write a buffer, in order; at once, if nothing waits in front of it.

        Bytes that the socket does not take go the usual way, and so do those that it refuses: the transport gets the same error,
        and ends the connection.
        """
        transport = self._transport
        if transport is None:
            return
        if self._descriptor >= 0 and not (transport.is_closing() or transport.get_write_buffer_size()):
            written = 0
            with contextlib.suppress(OSError):
                written = os.write(self._descriptor, buffer)
            if written == len(buffer):
                return
            buffer = memoryview(buffer)[written:]
        transport.write(buffer)

    def close(self, reason: str) -> None:
        """Close when all bytes have been written; the reason, if any, is logged."""
        if self._transport is None or self._transport.is_closing():
            return
        if reason:
            self._server.driver.quiet.warn(f"closed the connection of {self._peer}: {reason}")
        self._transport.close()
        self._end = self._server.loop.call_later(CLOSE_S, self.abort)

    def hold(self, hold: bool) -> None:
        """Pause or resume reading."""
        if self._transport is None or self._transport.is_closing():
            return
        self._held = hold
        if hold:
            self._transport.pause_reading()
            return
        self._heard = True
        if self._more:
            self._end_turn()  # frames read before the pause come first
        elif not self._turn_over:
            self._transport.resume_reading()

    def let_in(self, frame_bytes_max: int, command_bytes_max: int, *, link: bool) -> None:
        """Change the largest frame and command accepted: who it is, is known now. A link's peer may also be silent for longer."""
        self._server.known(self)
        self._decoder.frame_bytes_max = frame_bytes_max
        self._decoder.limit(command_bytes_max, LINK_FIELDS_MAX if link else FIELDS_MAX)
        if link:
            self._silent_max = LINK_SILENT_INTERVALS

    def abort(self) -> None:
        """Drop the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def _keep_alive(self) -> None:
        """Each interval: a peer that was silent since the last ping is gone (docs/design/pulsar.md#connection)."""
        if self._transport is None or self._transport.is_closing():
            return
        unsent = self._transport.get_write_buffer_size()
        self._stuck = self._stuck + 1 if self._full and unsent >= self._unsent else 0
        self._unsent = unsent
        if self._stuck > STUCK_INTERVALS:
            self.close(f"it takes nothing of {unsent} bytes that wait for it")
            self.abort()
            return
        held = not self._transport.is_reading()
        self._silent = 0 if self._heard or held else self._silent + 1
        if self._silent >= self._silent_max:
            self.close(f"silent for {self._silent * self._server.keep_alive_s:.0f} s")
            return
        self._heard = False
        self._transport.write(commands.ping())
        self._timer = self._server.loop.call_later(self._server.keep_alive_s, self._keep_alive)


class PulsarServer:
    """The listener of the Pulsar protocol.

    Args:
        loop, driver, broker: these handle the frames that come.
        frame_bytes_max: largest frame of a client that is not authenticated yet; see `Connection.let_in`.
        connections_max: a ceiling on open sockets, those that shake hands among them.
        connections_per_address_max: the same of one address; 0: none.
        keep_alive_ms: between pings; a peer silent for one whole interval is dropped.
        urls: the broker's addresses, for clients that came to the wrong port.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        driver: Events,
        broker: Served,
        *,
        frame_bytes_max: int,
        connections_max: int,
        connections_per_address_max: int = 0,
        keep_alive_ms: int,
        urls: Urls = Urls(),  # noqa: B008 - immutable
    ) -> None:
        self.loop = loop
        self.driver = driver
        self.broker = broker
        self.frame_bytes_max = frame_bytes_max
        self.keep_alive_s = keep_alive_ms / 1000
        self._connections: dict[int, Connection] = {}
        self._slots = ConnectionSlots(
            connections_max,
            self._refused,
            per_address=connections_per_address_max,
            crowded=self._crowded,
            made_room=self._made_room,
        )
        self._next = 0
        self.received = 0
        self.competition = Competition()
        self.urls = urls
        self._listeners: list[Listener] = []

    @property
    def open(self) -> int:
        """Connections now."""
        return len(self._connections)

    @property
    def shaking(self) -> int:
        """Handshakes of TLS that are under way."""
        return self._slots.shaking

    def admit(self, number: int, connection: Connection, peer: str) -> bool:
        """Count a connection in, unless there are too many."""
        if not self._slots.take(connection, peer, connection.abort):
            return False
        self._connections[number] = connection
        return True

    def _refused(self, peer: str) -> None:
        """Log that a connection was refused because the limit is reached."""
        shaking = f", {self.shaking} in handshakes of TLS" if self.shaking else ""
        self.driver.quiet.warn(f"refused a connection from {peer}: {self.open} are open{shaking} (connections_max)")

    def _crowded(self, peer: str) -> None:
        """Log that a connection was refused because its address has too many."""
        most = self._slots.per_address
        self.driver.quiet.warn(
            f"refused a connection from {peer}: {most} of its address are open (connections_per_address_max)"
        )

    def _made_room(self, peer: str) -> None:
        """Log that a connection was closed to make room for another."""
        self.driver.quiet.warn(
            f"closed the connection of {peer}: it had sent no CONNECT, and another connection needed its slot (connections_max)"
        )

    def inside(self, heard: Heard, closed: Callable[[str], None]) -> InsideConnection:
        """A connection of this process itself, which takes no socket and no slot; open it."""
        self._next += 1
        return InsideConnection(self.driver, self.broker, self._next, heard, closed)

    def known(self, connection: Connection) -> None:
        """The client of a connection has been authenticated."""
        self._slots.known(connection)

    def forget(self, number: int, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.pop(number, None)
        self._slots.leave(connection)
        self.competition.left(number)

    def _make(self) -> Connection:
        self._next += 1
        return Connection(self, self._next)

    def _make_tls(self) -> Connection:
        self._next += 1
        return Connection(self, self._next, tls=True)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, with `tls` by TLS; returns the port (asked for as 0: any free one). May be called for several.

        Raises:
            MagnetarError: the port is in use or may not be bound, in one line.
        """
        if tls is None:
            listener = await Listener.open(self._make, host, port, key="pulsar")
        else:
            listener = await Listener.open(
                self._make_tls,
                host,
                port,
                key="pulsar_tls",
                tls=tls,
                failed=self._handshake_failed,
                handshakes=self._slots,
            )
        self._listeners.append(listener)
        return listener.port

    def _handshake_failed(self, peer: str, reason: str) -> None:
        self.driver.quiet.warn(f"closed the connection of {peer}: {handshake_failed('pulsar_tls', reason, self.urls)}")

    def take(self, former: "PulsarServer", repeated: Callable[[int], Sequence[Frame]]) -> None:
        """Continue the connections of a server whose broker no longer answers.

        Args:
            former: the other server.
            repeated: takes the number of one of its connections. Returns CONNECT, which has been answered, and the requests
                without an answer; nothing for a connection that stays where it is.
        """
        for connection_number, connection in list(former._connections.items()):
            if frames := repeated(connection_number):
                self._next += 1
                connection.continue_at(self, self._next, frames)

    def listen_no_more(self) -> None:
        """Stop listening; connections stay."""
        for listener in self._listeners:
            listener.close()

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        self.listen_no_more()
        for connection in list(self._connections.values()):
            connection.abort()
        # One turn of the loop lets connection_lost run before the broker is closed.
        await asyncio.sleep(0)
