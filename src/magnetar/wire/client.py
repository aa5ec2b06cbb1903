"""The client's side of a connection, without I/O: bytes in, events out; commands in, bytes out.

    state        what the broker may send                          what comes out
    -----------  ------------------------------------------------  -----------------------------------------------
    NEW          nothing
    CONNECTING   CONNECTED, PING, PONG                             `Connected`: now CONNECTED
                 ERROR                                             `ConnectRefused`: now REFUSED
    CONNECTED    the answer to a request, or ERROR with its id     `Response`
                 anything else but PING, PONG                      `Push`
    REFUSED      anything                                          nothing

Everything else is a `ClientFault`. A PING is answered here. Frames that are sent before CONNECTED wait for it, because a
broker that refuses the credentials must not be sent data.

A shell owns the socket, the selector and the time-outs. It writes received bytes into `get_buffer`, calls `received`, and
sends `outgoing` (`runtime.network.link_connection`, `pipeline.tasks.link_channel`, `spark.connection`).

What comes out does not depend on how the bytes were split. A payload is copied once, out of the receive buffer. A frame that
is larger than the receive buffer is received into a buffer of its own, and its payload is a view into that.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FRAME_BYTES_LEAST, bad_sizes, check_command, encode, encode_head

RECEIVE_BYTES: Final = 256 << 10
"""The receive buffer: the most that one call of the kernel returns while no large frame is being received.

To hand out views into it instead of copies was slower: each buffer could be used only once, and new memory costs more than to
copy (a frame of 128 KiB: 150 us instead of 90).
"""

BUFFERS_PER_SEND: Final = 512
"""Buffers for one `sendmsg`: below the kernel's limit of 1,024."""

RESPONSE_OF: Final[dict[int, int]] = {
    pb.SUBSCRIBE: pb.SUCCESS,
    pb.PRODUCER: pb.PRODUCER_SUCCESS,
    pb.ACK: pb.ACK_RESPONSE,
    pb.UNSUBSCRIBE: pb.SUCCESS,
    pb.CLOSE_PRODUCER: pb.SUCCESS,
    pb.CLOSE_CONSUMER: pb.SUCCESS,
    pb.PARTITIONED_METADATA: pb.PARTITIONED_METADATA_RESPONSE,
    pb.LOOKUP: pb.LOOKUP_RESPONSE,
    pb.CONSUMER_STATS: pb.CONSUMER_STATS_RESPONSE,
    pb.SEEK: pb.SUCCESS,
    pb.GET_LAST_MESSAGE_ID: pb.GET_LAST_MESSAGE_ID_RESPONSE,
    pb.GET_TOPICS_OF_NAMESPACE: pb.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    pb.GET_SCHEMA: pb.GET_SCHEMA_RESPONSE,
    pb.GET_OR_CREATE_SCHEMA: pb.GET_OR_CREATE_SCHEMA_RESPONSE,
    pb.WATCH_TOPIC_LIST: pb.WATCH_TOPIC_LIST_SUCCESS,
    pb.GEO_TOPICS: pb.GEO_TOPICS_RESPONSE,
    pb.GEO_READ: pb.GEO_READ_RESPONSE,
    pb.GEO_FETCH: pb.GEO_FETCH_RESPONSE,
    pb.GEO_APPEND: pb.GEO_APPEND_RESPONSE,
    pb.GEO_COMMIT: pb.GEO_COMMIT_RESPONSE,
    pb.GEO_WATERMARKS: pb.GEO_WATERMARKS_RESPONSE,
    pb.GEO_STATUS: pb.GEO_STATUS_RESPONSE,
    pb.GEO_RESTORE: pb.GEO_RESTORE_RESPONSE,
    pb.GEO_SCHEMAS: pb.GEO_SCHEMAS_RESPONSE,
}
"""The requests of a client, and the command that answers each (ERROR answers any of them)."""

_FIELDS: Final = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}
_REQUESTS: Final = {kind: _FIELDS[kind] for kind in RESPONSE_OF}
_RESPONSES: Final = {kind: _FIELDS[kind] for kind in {*RESPONSE_OF.values(), pb.ERROR}}

_SIZES: Final = struct.Struct(">II")
_TOTAL: Final = struct.Struct(">I")
_PONG: Final = encode(pb.BaseCommand(type=pb.PONG, pong=pb.CommandPong()))
_NO_PAYLOAD: Final = memoryview(b"")

# Read for each frame: one look-up instead of two.
_PING_TYPE, _PONG_TYPE, _ERROR, _PRODUCER_SUCCESS = pb.PING, pb.PONG, pb.ERROR, pb.PRODUCER_SUCCESS


_ENTRIES: Final = frozenset((pb.MESSAGE, pb.SEND_RECEIPT))
"""The commands that come for each entry and answer no request: their required fields are not checked, and a missing
number is 0.
"""


class ClientState(Enum):
    """The state of a connection, on the client."""

    NEW = "new"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    REFUSED = "refused"


class Connected(NamedTuple):
    """The broker accepted CONNECT."""

    greeting: pb.CommandConnected


class ConnectRefused(NamedTuple):
    """The broker refused CONNECT; it closes the connection."""

    error: pb.CommandError


class Response(NamedTuple):
    """The answer to a request.

    Attributes:
        request_id: as `ClientConnection.request` returned it.
        command: of the type that answers the request, or ERROR.
        payload: what follows the command in the frame.
    """

    request_id: int
    command: pb.BaseCommand
    payload: memoryview

    @property
    def error(self) -> pb.CommandError | None:
        """Set if the broker refused the request."""
        return self.command.error if self.command.type == _ERROR else None


class Push(NamedTuple):
    """A command that answers no request of this connection.

    Attributes:
        command: of any type, also one that this version does not know.
        payload: what follows the command in the frame.
    """

    command: pb.BaseCommand
    payload: memoryview


Event = Connected | ConnectRefused | Response | Push


class ClientFault(ProtocolError):
    """The broker sent something that is not Pulsar's protocol; the connection cannot continue.

    Attributes:
        events: events before the fault in the same call.
    """

    def __init__(self, message: str, events: Sequence[Event] = ()) -> None:
        super().__init__(message)
        self.events: list[Event] = list(events)


class ClientConnection:
    """One connection to a broker.

    Args:
        frame_bytes_max: the largest frame that the broker may send.
        receive_bytes: size of the receive buffer.

    Attributes:
        state: see the table above.
        greeting: the broker's CONNECTED command; None until it accepted CONNECT.
        received_commands: number of commands received, of any kind.
        unsent_bytes: bytes of the frames that were not sent yet, including those that wait for CONNECTED.
    """

    def __init__(self, frame_bytes_max: int, *, receive_bytes: int = RECEIVE_BYTES) -> None:
        self.state = ClientState.NEW
        self.greeting: pb.CommandConnected | None = None
        self.received_commands = 0
        self.unsent_bytes = 0
        self._frame_bytes_max = frame_bytes_max
        self._usual = self._buffer = memoryview(bytearray(receive_bytes))
        self._start = self._end = 0
        self._fault = ""
        self._pending: dict[int, int] = {}
        self._last_id = 0
        self._out: deque[memoryview] = deque()
        self._held: list[memoryview] = []

    # ------------------------------------------------------------------------------------------- commands in, bytes out

    def connect(self, connect: pb.CommandConnect) -> None:
        """Queue CONNECT, which has to come first and once."""
        assert self.state is ClientState.NEW, f"CONNECT in state {self.state}"
        self.state = ClientState.CONNECTING
        self._queue(self._out, [encode(pb.BaseCommand(type=pb.CONNECT, connect=connect))])

    def connect_elsewhere(self, connect: pb.CommandConnect) -> None:
        """Begin again on another socket, before the broker has accepted CONNECT. Frames that wait for CONNECTED keep waiting:
        none of them was sent.
        """
        assert self.state in (ClientState.CONNECTING, ClientState.REFUSED), f"CONNECT in state {self.state}"
        self.unsent_bytes -= sum(map(len, self._out))
        self._out.clear()
        self._buffer, self._start, self._end, self._fault = self._usual, 0, 0, ""
        self.state = ClientState.NEW
        self.connect(connect)

    def next_id(self) -> int:
        """A number that no other request, producer or consumer of this connection has."""
        self._last_id += 1
        return self._last_id

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        """Queue a request.

        Args:
            command: of a type in `RESPONSE_OF`; its request id is set here.
            buffers: its payload; kept until it is sent, not copied.

        Returns:
            The request id, which the `Response` has, too.
        """
        request_id = self.next_id()
        getattr(command, _REQUESTS[command.type]).request_id = request_id
        self._pending[request_id] = RESPONSE_OF[command.type]
        self.send(command, buffers)
        return request_id

    def send(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> None:
        """Queue a command that has no answer.

        Args:
            command: the command to send.
            buffers: its payload; kept until it is sent, not copied.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = encode_head(command, sum(map(len, views)))
        self._queue(self._out if self.state is ClientState.CONNECTED else self._held, [head, *views])

    def outgoing(self) -> list[memoryview]:
        """The first buffers that are to be sent, at most `BUFFERS_PER_SEND`; `sent` takes them off."""
        return list(islice(self._out, BUFFERS_PER_SEND))

    def sent(self, count: int) -> bool:
        """`count` bytes of `outgoing` were sent; returns whether any of them belonged to something other than a
        PONG.
        """
        moved = False
        self.unsent_bytes -= count
        while count:
            head = self._out[0]
            moved = moved or head.obj is not _PONG
            if count < len(head):
                self._out[0] = head[count:]
                break
            count -= len(head)
            self._out.popleft()
        return moved

    @property
    def has_outgoing(self) -> bool:
        """Whether `outgoing` has something."""
        return bool(self._out)

    def _queue(self, where: deque[memoryview] | list[memoryview], buffers: Sequence[bytes | memoryview]) -> None:
        for buffer in buffers:
            size = len(buffer)
            if size:
                self.unsent_bytes += size
                where.append(memoryview(buffer))

    # --------------------------------------------------------------------------------------------- bytes in, events out

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """The buffer for the next received bytes; never empty. Valid until the next call of `received`."""
        return self._buffer[self._end :]

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Take bytes from elsewhere than `get_buffer`; see `received`."""
        events: list[Event] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            try:
                events += self.received(count)
            except ClientFault as fault:
                fault.events[:0] = events
                raise
        return events

    def received(self, count: int) -> list[Event]:
        """Handle `count` bytes that were written into `get_buffer`, and return the events that they complete.

        Raises:
            ClientFault: the broker does not speak the protocol; raised again by every later call.
        """
        if self._fault:
            raise ClientFault(self._fault)
        self._end += count
        events: list[Event] = []
        try:
            need = self._take(events)
        except (ProtocolError, DecodeError) as error:
            self._fault = str(error) if isinstance(error, ProtocolError) else "command is not a protobuf BaseCommand"
            raise ClientFault(self._fault, events) from None
        self._make_room(need)
        return events

    def _take(self, events: list[Event]) -> int:
        """Take the complete frames; returns how many bytes the next one has, as far as that is known."""
        buffer, at, end, most = self._buffer, self._start, self._end, self._frame_bytes_max
        usual, connected = buffer is self._usual, self.state is ClientState.CONNECTED
        parse: Callable[[memoryview], pb.BaseCommand] = pb.BaseCommand.FromString  # type: ignore[assignment]  # any buffer will do
        while end - at >= 8:
            total, size = _SIZES.unpack_from(buffer, at)
            if total > most or size > total - 4 or not size:
                raise bad_sizes(total, size, most)
            stop = at + 4 + total
            if stop > end:
                return int(4 + total)
            behind = at + 8 + size
            raw = buffer[at + 8 : behind]
            command = parse(raw)
            payload = _NO_PAYLOAD
            if behind != stop:
                payload = buffer[behind:stop]
                if usual:
                    payload = memoryview(payload.tobytes())
            self._start = at = stop
            self.received_commands += 1
            if connected and command.type in _ENTRIES:
                events.append(Push(command, payload))
                continue
            check_command(command, raw.tobytes())
            self._accept(command, payload, events)
            connected = self.state is ClientState.CONNECTED
        if end - at >= 4:
            # Sizes that cannot be right are a fault as soon as the first four bytes are there, however they are split.
            (total,) = _TOTAL.unpack_from(buffer, at)
            if not FRAME_BYTES_LEAST <= total <= most:
                raise bad_sizes(total, 1, most)
            return int(4 + total)
        return _SIZES.size

    def _make_room(self, need: int) -> None:
        """Have room for a frame of `need` bytes that begins at `_start`."""
        left = self._end - self._start
        if not left:
            self._buffer = self._usual
        elif self._start or need > len(self._buffer):
            rest = self._buffer[self._start : self._end]
            if need > len(self._buffer):
                self._buffer = memoryview(bytearray(need))
            self._buffer[:left] = rest
        self._start, self._end = 0, left

    def _accept(self, command: pb.BaseCommand, payload: memoryview, events: list[Event]) -> None:
        kind = command.type
        if self.state is ClientState.REFUSED:
            return
        if kind == _PING_TYPE:
            # After everything else in the queue: a frame must not begin in the middle of another.
            self._queue(self._out, [_PONG])
        elif kind == _PONG_TYPE:
            return
        elif self.state is not ClientState.CONNECTED:
            events.append(self._greeted(command))
        elif (field := _RESPONSES.get(kind)) is not None and self._settled(kind, part := getattr(command, field)):
            events.append(Response(part.request_id, command, payload))
        else:
            events.append(Push(command, payload))

    def _greeted(self, command: pb.BaseCommand) -> Connected | ConnectRefused:
        if self.state is not ClientState.CONNECTING or command.type not in (pb.CONNECTED, _ERROR):
            raise ProtocolError(f"answered CONNECT by command type {command.type}")
        if command.type == _ERROR:
            self.state = ClientState.REFUSED
            return ConnectRefused(command.error)
        self.state, self.greeting = ClientState.CONNECTED, command.connected
        self._out.extend(self._held)
        self._held.clear()
        return Connected(command.connected)

    def _settled(self, kind: int, part: pb.CommandError | pb.CommandProducerSuccess) -> bool:
        """Whether a command answers a request that has no answer yet."""
        if self._pending.get(part.request_id) != kind and (kind != _ERROR or part.request_id not in self._pending):
            return False
        if kind == _PRODUCER_SUCCESS and isinstance(part, pb.CommandProducerSuccess) and not part.producer_ready:
            return False  # it waits for an exclusive producer to leave, and the answer follows
        del self._pending[part.request_id]
        return True
