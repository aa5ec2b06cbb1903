"""Deadlines of a link connection, by a clock that the test moves; the peer is the other end of a socket pair."""

import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from magnetar.runtime.network.link_connection import LinkConnection, LinkDown
from magnetar.wire import commands, frames
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame

STATUS = pb.BaseCommand(type=1010, geo_status=pb.CommandGeoStatus(request_id=1))
ANSWER = frames.encode(pb.BaseCommand(type=1011, geo_status_response=pb.CommandGeoStatusResponse(request_id=1, gap=3)))


class World(NamedTuple):
    link: LinkConnection
    peer: socket.socket
    now: list[float]

    def turn(self, seconds: float) -> None:
        """Time passes; then the link does what can be done without waiting."""
        self.now[0] += seconds
        self.link.turn(self.now[0])


@pytest.fixture
def world() -> Iterator[World]:
    near, far = socket.socketpair()
    near.setblocking(False)
    now = [100.0]
    link = LinkConnection(near, "peer", 10.0, lambda: now[0])
    far.sendall(commands.connected(21, 5 << 20, pb.GeoHello(version=1, cluster="peer", uuid="u")))
    link.handshake(b"token", 5.0)
    assert frames.FrameDecoder().feed(far.recv(1 << 16))[0].command.type == pb.CONNECT
    yield World(link, far, now)
    link.close()
    far.close()


def test_silence_is_down(world):
    world.link.request(STATUS)
    world.turn(9.9)
    with pytest.raises(LinkDown, match="no answer within 10 s"):
        world.turn(0.1)
    with pytest.raises(LinkDown, match="no answer within 10 s"):
        world.link.request(STATUS, 2)


def test_nothing_asked_nothing_overdue(world):
    world.turn(1000)


def test_a_long_poll_may_take_longer(world):
    world.link.request(STATUS, extra_s=20)
    world.turn(29.9)
    with pytest.raises(LinkDown):
        world.turn(0.1)


def test_a_slow_line_that_moves_is_not_down(world):
    world.link.request(STATUS)
    for byte in ANSWER[:-1]:
        world.peer.sendall(bytes([byte]))
        world.turn(9.0)
    world.peer.sendall(ANSWER[-1:])
    assert world.link.wait_for(1).command.geo_status_response.gap == 3


def test_pings_are_no_answer(world):
    world.link.request(STATUS)
    world.peer.sendall(commands.ping())
    world.turn(9.0)
    world.peer.sendall(commands.ping())
    with pytest.raises(LinkDown):
        world.turn(1.0)


def test_an_answer_that_came_just_before_counts(world):
    world.link.request(STATUS)
    world.peer.sendall(ANSWER)
    world.turn(50.0)
    assert world.link.wait_for(1).command.geo_status_response.gap == 3


def test_the_pong_waits_for_the_frame_under_way(world):
    # A large request fills the socket; the pong must come behind it, not into it.
    body = memoryview(bytes(4_000_000))
    world.link.request(STATUS, [body])
    world.peer.sendall(commands.ping())
    world.turn(0)
    decoder = frames.FrameDecoder(1 << 24)
    got: list[Frame] = []
    while len(got) < 2:
        got += decoder.feed(world.peer.recv(1 << 20))
        world.turn(0)
    assert [(frame.command.type, len(frame.payload)) for frame in got] == [(1010, 4_000_000), (19, 0)]


def test_bytes_that_are_no_protocol(world):
    world.link.request(STATUS)
    world.peer.sendall(b"\xff\xff\xff\xff\x00\x00\x00\x02ab")
    with pytest.raises(LinkDown, match="peer: frame of 4294967295 bytes"):
        world.turn(0)
