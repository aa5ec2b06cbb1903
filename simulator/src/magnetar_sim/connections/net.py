"""Connections between clients (or the pipeline) and brokers: ordered, slow, and mortal.

Each direction keeps its order. A connection that breaks loses what is on its way, and each end notices at a time of
its own. While two sites cannot reach each other their connections stand still: what was sent arrives later, or never, if
the connection breaks before that. There are no sockets: what is sent is bytes, and a real decoder takes them apart.
"""

import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder
from magnetar_sim.clock import Clock

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

CLIENT_FRAME_BYTES_MAX = 64 << 20
ASLEEP_MS = 20
"""What was sent to a process that is stopped is offered again this often."""
_HEADER = struct.Struct(">II")


def _whole_frames(data: bytes) -> list[Frame]:
    """What a broker sent in one effect: whole frames, and nothing that would have to be mistrusted (the real decoder, which
    takes what brokers are sent apart, asks more of it and takes twice the time).
    """
    frames, at = [], 0
    while at < len(data):
        total, size = _HEADER.unpack_from(data, at)
        behind, stop = at + _HEADER.size + size, at + 4 + total
        assert stop <= len(data), "a broker sends a part of a frame"
        frames.append(Frame(pb.BaseCommand.FromString(data[at + _HEADER.size : behind]), data[behind:stop]))
        at = stop
    return frames


class Server(Protocol):
    """The broker's end of connections: a cluster.

    Attributes:
        name: of the cluster.
        broker: None while it is down.
        life: a number for each time that it ran.
        ending: it takes no clients any more.
    """

    name: str
    life: int
    ending: bool

    @property
    def broker(self) -> "Broker | None":
        """See the class."""

    @property
    def awake(self) -> bool:
        """Whether its process runs; one that is stopped reads no sockets."""

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Have the broker handle one event."""


class End(Protocol):
    """The client's end of one connection."""

    @property
    def each_frame(self) -> bool:
        """Whether the broker handles its frames one by one, so that observers see what each of them did."""

    def before(self, frame: Frame) -> None:
        """A frame is about to reach the broker; only of those that go one by one."""

    def behind(self, frame: Frame) -> None:
        """The broker handled it."""

    def sent(self, frames: list[Frame]) -> None:
        """The broker sends these; they arrive later, or never."""

    def arrived(self, frames: list[Frame]) -> None:
        """Frames of the broker arrive."""

    def closed(self) -> None:
        """The client learns that the connection is over; not called when the client closed it."""


class Connection:
    """One connection; the client's end of it.

    Args:
        net: the network.
        number: as the broker knows it.
        cluster: where it leads.
        site: where the client is.
        end: the client.
    """

    def __init__(self, net: "Network", number: int, cluster: Server, site: str, end: End) -> None:
        self.net, self.number, self.cluster, self.site, self.end = net, number, cluster, site, end
        self.life = cluster.life
        self.open = True
        self.stalled = False
        self._server_decoder = FrameDecoder(CLIENT_FRAME_BYTES_MAX)
        self._to_server: deque[bytes] = deque()
        self._to_client: deque[Frame] = deque()
        self._server_at = self._client_at = 0
        self._closing = False

    def send(self, data: bytes) -> None:
        """From the client to the broker."""
        if not self.open:
            return
        self._to_server.append(data)
        if not self.stalled:
            self._server_at = max(self._server_at, self.net.clock.now_ms + self.net.delay_ms())
            self.net.clock.after(self._server_at - self.net.clock.now_ms, self._arrive_server)

    def _arrive_server(self) -> None:
        if self.stalled or not self.open or not self._to_server:
            return
        if not self.cluster.awake:
            self.net.clock.after(ASLEEP_MS, self._arrive_server)
            return
        data = b"".join(self._to_server)
        self._to_server.clear()
        if self.cluster.life != self.life or self.cluster.broker is None:
            return
        frames = self._server_decoder.feed(data)
        if not self.end.each_frame:
            self.cluster.run(self.cluster.broker.frames, self.number, frames)
            return
        for frame in frames:
            if self.cluster.life == self.life and self.cluster.broker is not None:
                self.end.before(frame)
                self.cluster.run(self.cluster.broker.frames, self.number, [frame])
                self.end.behind(frame)

    def deliver(self, buffers: Sequence[bytes | memoryview]) -> None:
        """From the broker to the client."""
        if not self.open:
            return
        frames = _whole_frames(b"".join(buffers))
        self._to_client.extend(frames)
        self.end.sent(frames)
        if not self.stalled:
            self._client_at = max(self._client_at, self.net.clock.now_ms + self.net.delay_ms())
            self.net.clock.after(self._client_at - self.net.clock.now_ms, self._arrive_client)

    def _arrive_client(self) -> None:
        if self.stalled or not self.open:
            return
        if self._to_client:
            frames = list(self._to_client)
            self._to_client.clear()
            self.end.arrived(frames)
        if self._closing and not self._to_client:
            self._end()

    def server_closes(self) -> None:
        """The broker closes it after what it sent."""
        self._closing = True
        self.net.clock.after(max(self._client_at - self.net.clock.now_ms, 0) + 1, self._arrive_client)
        self._tell_server()

    def close(self) -> None:
        """The client closes it: what it sent still arrives."""
        if not self.open:
            return
        if not self.stalled:
            self._arrive_server()
        self.open = False
        self.net.forget(self)
        self._tell_server()

    def cut(self) -> None:
        """It breaks: both ends notice, each in its own time; what is on its way is lost."""
        if not self.open:
            return
        self._tell_server()
        self._to_server.clear()
        self._to_client.clear()
        self._end()

    def _tell_server(self) -> None:
        self.net.clock.after(self.net.delay_ms(), self._server_hears)

    def _server_hears(self) -> None:
        if self.cluster.life == self.life and self.cluster.broker is not None:
            self.cluster.run(self.cluster.broker.disconnected, self.number)

    def _end(self) -> None:
        if self.open:
            self.open = False
            self.net.forget(self)
            self.net.clock.after(self.net.delay_ms(), self.end.closed)

    def stall(self, stalled: bool) -> None:
        """Stand still, or go on."""
        self.stalled = stalled
        if not stalled:
            self.net.clock.after(self.net.delay_ms(), self._arrive_server)
            self.net.clock.after(self.net.delay_ms(), self._arrive_client)


class Network:
    """All connections of a world.

    Args:
        clock, rng: the world's.
        slow_ms: the longest delay of one direction.
    """

    def __init__(self, clock: Clock, rng: random.Random, slow_ms: int) -> None:
        self.clock, self._rng, self._slow_ms = clock, rng, slow_ms
        self.connections: dict[int, Connection] = {}
        self.apart: set[frozenset[str]] = set()
        self._made = 0

    def delay_ms(self) -> int:
        """Of one message, one way."""
        return int(self._rng.random() * self._slow_ms)

    def reachable(self, one: str, other: str) -> bool:
        """Whether two sites can reach each other."""
        return frozenset((one, other)) not in self.apart

    def connect(self, cluster: Server, site: str, end: End) -> Connection | None:
        """Open a connection; None when the cluster does not answer."""
        if cluster.broker is None or cluster.ending or not self.reachable(cluster.name, site):
            return None
        self._made += 1
        connection = Connection(self, self._made, cluster, site, end)
        self.connections[self._made] = connection
        cluster.run(cluster.broker.connected, self._made, f"{site}:{self._made}")
        return connection

    def forget(self, connection: Connection) -> None:
        """It is over."""
        self.connections.pop(connection.number, None)

    def part(self, one: str, other: str, apart: bool) -> None:
        """Two sites cannot reach each other from now on, or can again."""
        pair = frozenset((one, other))
        if apart == (pair in self.apart):
            return
        self.apart ^= {pair}
        for connection in list(self.connections.values()):
            if frozenset((connection.cluster.name, connection.site)) == pair:
                connection.stall(apart)

    def of(self, cluster: Server) -> list[Connection]:
        """All connections that lead to a cluster."""
        return [one for one in self.connections.values() if one.cluster is cluster]
