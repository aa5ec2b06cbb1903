"""The sender of appends over connections that are only imitated: when it sends, and what the end of an idle connection means."""

import socket
from collections.abc import Sequence

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.tasks.append_sender import AppendRequest, AppendSender
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.pipeline.tasks.pace import Pace
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

ROUTE = m.Route(0, "a", "b", "a:1", "b:1", "uuid-a")


class OneTopic:
    """A `Progress` that notes what happened."""

    route, topic, incarnation, gen, schema_numbering = ROUTE, "persistent://public/default/t", 1, 1, 0

    def __init__(self) -> None:
        self.trouble = ""
        self.stored: list[Position] = []

    def left(self) -> None:
        pass

    def throttled(self, throttle_ms: int) -> None:
        pass

    def confirmed(self, append: AppendRequest, duplicates: int) -> None:
        self.stored.append(append.last)

    def fail(
        self, trouble: str, reason: str, kind: str = "", at: m.Pair | None = None, conflict: m.Packed = b""
    ) -> None:
        self.trouble = trouble

    def append(self, entry: int) -> AppendRequest:
        return AppendRequest(self, NONE, Position(1, entry), [1], [entry], [entry], [1], [1], memoryview(b"x"), 1, 1)


class Destination(LinkChannel):
    """A connection that can always be written to; its peer answers with the next pump after a request, or has gone."""

    def __init__(self) -> None:
        self._local, self._peer = socket.socketpair()
        self._connected, self.fresh = True, True
        self.progress_at = self.round_trip_s = 0.0
        self.pace = Pace(0.0)
        self.queued: list[tuple[int, pb.CommandGeoAppend]] = []
        self.sent: list[tuple[int, pb.CommandGeoAppend]] = []
        self.gone = False
        self.pumps: list[tuple[bool, bool]] = []

    def fileno(self) -> int:
        return self._local.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self.queued)

    @property
    def frames_received(self) -> int:
        return 1

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        number = len(self.sent) + len(self.queued) + 1
        self.queued.append((number, command.geo_append))
        return number

    def answer(self) -> None:
        self._peer.send(b"x")

    def end(self) -> None:
        self.gone = True
        self._peer.send(b"x")

    def pump(self, readable: bool, writable: bool) -> list[Response]:  # type: ignore[override]
        self.pumps.append((readable, writable))
        if self.gone:
            raise LinkDown("b:1: connection closed by the broker")
        if writable:
            self.sent += self.queued
            self.queued.clear()
        if not readable:
            return []
        self._local.recv(1)
        number, append = self.sent[-1]
        command = pb.BaseCommand(type=pb.GEO_APPEND_RESPONSE)
        command.geo_append_response.persisted.ledger = append.ledgers[-1]
        command.geo_append_response.persisted.entry = append.entries[-1]
        return [Response(number, command, memoryview(b""))]

    def close(self) -> None:
        self._local.close()
        self._peer.close()


class Rig:
    """A sender, the connections that it opened, and one topic."""

    def __init__(self) -> None:
        self.opened: list[Destination] = []
        self.topic = OneTopic()
        self.sender = AppendSender("token", self._connect)

    def _connect(self, _address: str, _token: str) -> Destination:
        self.opened.append(Destination())
        return self.opened[-1]

    def put(self, entry: int) -> None:
        self.sender.put(self.topic.append(entry))
        self.sender.pump(0)


def test_an_append_is_sent_by_the_pump_that_takes_it_and_does_not_wait_for_the_selector() -> None:
    rig = Rig()
    rig.put(0)
    (channel,) = rig.opened
    assert [number for number, _ in channel.sent] == [1]
    assert channel.pumps == [(False, True)]
    channel.answer()
    rig.sender.pump(5)
    assert rig.topic.stored == [Position(1, 0)]
    assert channel.pumps == [(False, True), (True, False)]


def test_an_idle_connection_that_ends_is_no_trouble_and_the_next_append_opens_another() -> None:
    rig = Rig()
    rig.put(0)
    rig.opened[0].answer()
    rig.sender.pump(5)
    assert not rig.sender.busy
    rig.opened[0].end()
    rig.sender.pump(5)
    assert (rig.topic.trouble, rig.sender.down(ROUTE)) == ("", "")
    rig.put(1)
    rig.opened[1].answer()
    rig.sender.pump(5)
    assert rig.topic.stored == [Position(1, 0), Position(1, 1)]


def test_a_busy_connection_that_ends_gives_its_topics_up() -> None:
    rig = Rig()
    rig.put(0)
    rig.opened[0].end()
    rig.sender.pump(5)
    assert rig.topic.trouble == m.TARGET_DOWN
    assert not rig.sender.busy
