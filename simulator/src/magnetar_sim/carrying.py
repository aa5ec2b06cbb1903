"""What a task of the pipeline does: it carries one range of a topic to the destination, piece by piece.

It may die, be slow, run twice, or wake up when everybody has forgotten it, with what it read then. Its connection is one of
its worker's, which goes on to the next task unless something went wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar.core.ids import NONE, Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD
from magnetar.wire.frames import Frame, encode, encode_with_payload
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar.wire.versions import PROTOCOL_VERSION
from magnetar_sim.cluster import LINK_TOKEN
from magnetar_sim.net import Connection

if TYPE_CHECKING:
    from magnetar_sim.pipeline import Link
    from magnetar_sim.world import World

CONNECT_LINK = encode(
    pb.BaseCommand(
        type=2,
        connect=pb.CommandConnect(
            client_version="sim",
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=LINK_AUTH_METHOD,
            auth_data=LINK_TOKEN,
        ),
    )
)

WINDOW = 3
"""Pieces under way of one task."""


class Peer:
    """A link peer's connection: requests, and who waits for their answers.

    Args:
        world: the world.
        source: of the link.
        cluster: whose broker is asked, that one or the link's target.
        site: where the pipeline is.
        lost: called when the connection is gone.

    Attributes:
        appends: topics of requests to append, by their ids.
    """

    def __init__(self, world: "World", source: str, cluster: str, site: str, lost: Callable[[], None]) -> None:
        self.source = source
        self.appends: dict[int, str] = {}
        self._waiting: dict[int, Callable[[Frame], None]] = {}
        self._requests = 0
        self.lost = lost
        self.wanted: Callable[[pb.CommandGeoSchemasWanted], None] = lambda _wanted: None
        self.connection: Connection | None = world.net.connect(
            world.clusters[cluster], site, self._frames, self._closed
        )
        if self.connection is not None:
            self.connection.peer = self
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
        if kind == 1004:
            self.appends[self._requests] = command.geo_append.topic
        self.connection.send(b"".join(encode_with_payload(command, [data])) if data else encode(command))

    def _frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.command.type == 1016:
                self.wanted(frame.command.geo_schemas_wanted)
                continue
            body = frame.command.ListFields()[1][1]
            then = self._waiting.pop(getattr(body, "request_id", -1), None)
            if then is not None:
                then(frame)

    def tell(self, brought: pb.CommandGeoSchemasBrought) -> None:
        """Answer a question for schemas, if it can still be heard."""
        if self.connection is not None and self.connection.open:
            self.connection.send(encode(pb.BaseCommand(type=1017, geo_schemas_brought=brought)))

    def _closed(self) -> None:
        self._waiting.clear()
        self.lost()

    def close(self) -> None:
        """Done with it."""
        if self.connection is not None:
            self._waiting.clear()
            self.connection.close()


@dataclass(slots=True)
class Range:
    """What one task has to carry.

    Attributes:
        topic, incarnation, uuid, gen: of what life of which topic.
        c, s: the cursor that it goes on from; not confirmed yet when it was planned behind another range.
        before: that range, until it is confirmed.
        done: an attempt carried all of it, and every entry is confirmed.
        frames: what is sent, in pieces: what each comes after, and its entries.
        end: everything at or below is settled when all is confirmed.
        read, response, data: what the source answered.
    """

    topic: str
    incarnation: int
    uuid: str
    gen: int
    c: Position
    s: Position
    frames: list[tuple[Position, list[int]]] = field(default_factory=list)
    end: Position = NONE
    read: bool = False
    response: pb.CommandGeoReadResponse = field(default_factory=pb.CommandGeoReadResponse)
    data: list[bytes] = field(default_factory=list)
    before: "Range | None" = None
    done: bool = False

    @property
    def founded(self) -> bool:
        """Whether all in front of it is confirmed. The chain shows that of whatever is sent; nothing shows it of a range of
        which nothing is, and its commit would settle what the destination may never have got.
        """
        return bool(self.frames) or self.before is None or self.before.done

    @property
    def sent_last(self) -> Position:
        """S when all of it is confirmed."""
        return self.position(self.frames[-1][1][-1]) if self.frames else self.s

    def position(self, number: int) -> Position:
        """Of an entry that was read."""
        return Position(self.response.ledgers[number], self.response.entries[number])


class Task:
    """One attempt to carry a range.

    Args:
        link: whose.
        work: the range; shared by all attempts once it is read.
        zombie: nobody waits for this attempt.
    """

    def __init__(self, link: "Link", work: Range, *, zombie: bool = False) -> None:
        self._link, self.work, self.zombie = link, work, zombie
        self._at = 0
        self._flying: list[Position] = []
        self._confirmed: Position | None = None
        self.over = False
        self._peer: Peer | None = None

    def start(self) -> None:
        """Begin to send."""
        link = self._link
        if self.over:
            return
        if self.zombie and self.work.frames:
            link.world.count("range sent twice")
        if self.work.frames:
            self._peer = link.lend(lambda: self._end("connection lost"))
            if not self._peer.open:
                self._end("destination down")
                return
        self._step()

    def _step(self) -> None:
        if self.over:
            return
        link = self._link
        if link.rng.random() < link.task_dies:
            link.world.count("task died")
            self._end("died")
            return
        while self._at < len(self.work.frames) and len(self._flying) < WINDOW and not self.over:
            self._send()
        if self._at == len(self.work.frames) and not self._flying:
            self._end("")

    def _send(self) -> None:
        assert self._peer is not None
        work, response = self.work, self.work.response
        p, numbers = work.frames[self._at]
        self._at += 1
        last = work.position(numbers[-1])
        self._flying.append(last)

        def fill(request_id: int) -> pb.CommandGeoAppend:
            return pb.CommandGeoAppend(
                request_id=request_id, topic=work.topic, source=self._link.source, uuid=work.uuid,
                incarnation=work.incarnation, gen=work.gen, p=position_to_proto(p),
                ledgers=[response.ledgers[n] for n in numbers], entries=[response.entries[n] for n in numbers],
                first_indexes=[response.first_indexes[n] for n in numbers],
                counts=[response.counts[n] for n in numbers], sizes=[len(work.data[n]) for n in numbers],
                schema_numbering=response.schema_numbering,
            )  # fmt: skip

        self._peer.ask(
            1004, "geo_append", fill, lambda frame: self._answered(last, frame), b"".join(work.data[n] for n in numbers)
        )

    def _answered(self, last: Position, frame: Frame) -> None:
        if self.over:
            return
        answer = frame.command.geo_append_response
        persisted = position_from_proto(answer.persisted)
        if frame.command.type != 1005 or answer.blocked or answer.retry:
            self._end(f"{answer.blocked or 'retry'} {answer.reason}")
        elif answer.refused:
            self._end("refused")
            self._link.learn(self.work, persisted, 0)
        elif persisted < last:
            self._end("not stored")
        else:
            self._flying.remove(last)
            self._confirmed = last
            self._link.world.clock.after(self._link.pause_ms(), self._step)

    def _end(self, trouble: str) -> None:
        """It ends; what was confirmed without a hole before it is told."""
        if self.over:
            return
        self.over = True
        if self._peer is not None:
            self._link.give_back(self._peer, used_up=bool(trouble))
        work = self.work
        whole = not trouble and self._at == len(work.frames) and not self._flying
        c = work.end if whole else self._confirmed
        s = work.sent_last if whole else self._confirmed
        if whole and not work.founded:
            whole, trouble, c = False, "nothing to send, and what is in front of it is not confirmed", None
        if whole:
            work.done, work.before = True, None
        self._link.ended(self, trouble)
        if (
            trouble != "died"
            and c is not None
            and s is not None
            and (whole or not self._flying or c < min(self._flying))
        ):
            self._link.commit(work, c, s)
