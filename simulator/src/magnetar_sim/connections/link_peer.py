"""The pipeline's connection to one broker."""

from collections.abc import Callable
from typing import Final, Protocol

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD
from magnetar.wire.frame import Frame
from magnetar.wire.frames import encode, encode_with_payload
from magnetar.wire.versions import PROTOCOL_VERSION
from magnetar_sim.cluster import LINK_TOKEN
from magnetar_sim.connections.net import Connection, Network, Server

CONNECT_LINK: Final = encode(
    pb.BaseCommand(
        type=pb.CONNECT,
        connect=pb.CommandConnect(
            client_version="sim",
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=LINK_AUTH_METHOD,
            auth_data=LINK_TOKEN,
        ),
    )
)


class LinkEvents(Protocol):
    """What links report; see `observers.Observer`."""

    def answered(self, cluster: str, peer: "Peer", frame: Frame) -> None:
        """A broker answers a link."""


class Peer:
    """A link peer's connection: requests, and who waits for their answers.

    Args:
        net: what the connection is made over.
        events: what the broker answers is reported to it.
        source: of the link.
        cluster: whose broker is asked: the source or the target of the link.
        site: where the pipeline is.
        lost: called when the connection is gone.
        wanted: called when a destination asks for schemas.

    Attributes:
        appends: topics of requests to append, by their ids.
    """

    each_frame = False

    def __init__(
        self,
        net: Network,
        events: LinkEvents,
        source: str,
        cluster: Server,
        site: str,
        lost: Callable[[], None],
        wanted: Callable[["Peer", pb.CommandGeoSchemasWanted], None],
    ) -> None:
        self.source = source
        self._events, self._cluster, self._wanted = events, cluster.name, wanted
        self.appends: dict[int, str] = {}
        self._waiting: dict[int, Callable[[Frame], None]] = {}
        self._requests = 0
        self._lost = lost
        self.connection: Connection | None = net.connect(cluster, site, self)
        if self.connection is not None:
            self.connection.send(CONNECT_LINK)

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self.connection is not None and self.connection.open

    def ask(
        self, kind: int, body: str, fill: Callable[[int], object], then: Callable[[Frame], None], data: bytes = b""
    ) -> None:
        """Send a request; `then` is called with its answer, or never."""
        if self.connection is None:
            return
        self._requests += 1
        self._waiting[self._requests] = then
        command = pb.BaseCommand(type=kind, **{body: fill(self._requests)})  # type: ignore[arg-type]
        if kind == pb.GEO_APPEND:
            self.appends[self._requests] = command.geo_append.topic
        self.connection.send(b"".join(encode_with_payload(command, [data])) if data else encode(command))

    def before(self, frame: Frame) -> None:
        """See `net.End`."""

    def behind(self, frame: Frame) -> None:
        """See `net.End`."""

    def sent(self, frames: list[Frame]) -> None:
        """Observers see answers when they are sent."""
        for frame in frames:
            self._events.answered(self._cluster, self, frame)

    def arrived(self, frames: list[Frame]) -> None:
        """Answers, and questions for schemas."""
        for frame in frames:
            if frame.command.type == pb.GEO_SCHEMAS_WANTED:
                self._wanted(self, frame.command.geo_schemas_wanted)
                continue
            body = frame.command.ListFields()[1][1]
            then = self._waiting.pop(getattr(body, "request_id", -1), None)
            if then is not None:
                then(frame)

    def take(self, lost: Callable[[], None]) -> None:
        """Another task uses the connection from now on."""
        self._lost = lost

    def bring(self, brought: pb.CommandGeoSchemasBrought) -> None:
        """Answer a question for schemas, if the connection is still there."""
        if self.connection is not None and self.connection.open:
            self.connection.send(encode(pb.BaseCommand(type=pb.GEO_SCHEMAS_BROUGHT, geo_schemas_brought=brought)))

    def closed(self) -> None:
        """See `net.End`."""
        self._waiting.clear()
        self._lost()

    def close(self) -> None:
        """Done with it."""
        if self.connection is not None:
            self._waiting.clear()
            self.connection.close()
