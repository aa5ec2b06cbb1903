"""A connection that was made to a broker when it waited continues when this broker serves."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from magnetar.runtime.network.continued import TURN_REQUESTS_MAX
from magnetar.runtime.network.server import Connection
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder, encode
from tests.support.certificates import Authority
from tests.support.listener import PING, FakeDriver, serve, until

CONNECT = Frame(
    pb.BaseCommand(type=pb.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=21)), b""
)


def look_up(number: int) -> Frame:
    """A request with this id."""
    return Frame(pb.BaseCommand(type=pb.LOOKUP, lookupTopic={"topic": "t", "request_id": number}), b"")


class Waiting(FakeDriver):
    """The driver and the broker that waited: knows who is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[int] = []

    def disconnected(self, number: int) -> None:
        self.ended.append(number)


async def turns() -> None:
    """Let the loop turn some times: what is due happens, and what was written on this machine arrives."""
    for _ in range(20):
        await asyncio.sleep(0)


class Serving(FakeDriver):
    """The driver and the broker that serves: keeps what comes, answers CONNECT when the test says so and look-ups at once."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[Any] = []
        self.joined: list[tuple[int, str, bool]] = []
        self.unwritable: list[int] = []
        self.ended: list[int] = []

    def connected(self, number: int, address: str, certificate: str, tls: bool) -> None:
        self.joined.append((number, certificate, tls))

    def disconnected(self, number: int) -> None:
        self.ended.append(number)

    def writable(self, number: int, writable: bool) -> None:
        if not writable:
            self.unwritable.append(number)

    def frames(self, number: int, frames: list[Frame]) -> None:
        super().frames(number, frames)
        for frame in frames:
            self.came.append((frame.command.type, frame.command.lookupTopic.request_id))
            if frame.command.type == pb.LOOKUP:
                answer = commands.lookup_failed(frame.command.lookupTopic.request_id, 6, "x")
                self.peers[number].send([answer])

    def answer_connect(self, number: int, limit: int = 1 << 20) -> None:
        """The client is let in."""
        self.peers[number].let_in(limit, limit, link=False)
        self.peers[number].send_now(commands.connected(21, 1 << 20))


class Moved:
    """A client that a waiting server let in, and the server that takes its connection."""

    def __init__(self, folder: Path, *, tls: bool) -> None:
        self._tls = tls
        self._authority = Authority(folder) if tls else None
        self.waiting, self.serving = Waiting(), Serving()
        self.repeated: list[Frame] = [CONNECT]
        self.decoder = FrameDecoder()
        self.got: list[Any] = []

    async def start(self, room: int = 10) -> None:
        """The client connects."""
        at_server = at_client = None
        if self._authority is not None:
            chain = self._authority.sign("broker")
            at_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            at_server.load_cert_chain(*chain)
            at_client = ssl.create_default_context(cafile=str(self._authority.file))
            at_client.check_hostname = False
        self.former, port = await serve(self.waiting, at_server)
        self.server, _ = await serve(self.serving, connections_max=room)
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, ssl=at_client)
        (listener,) = self.former._listeners
        # The handshake of TLS is a task, which is over a turn of the loop after the connection is there.
        await until(lambda: 1 in self.waiting.peers and len(listener._tasks) == int(self._tls))

    def take(self) -> None:
        """The server takes the connection."""
        self.former.listen_no_more()
        self.server.take(self.former, lambda number: self.repeated if number == 1 else [])

    def taken(self) -> int:
        """The server takes the connection; its number there."""
        self.take()
        return self.serving.joined[0][0]

    async def hear(self, count: int) -> list[Any]:
        """The types and ids of this many commands that the client gets."""
        while len(self.got) < count:
            data = await self.reader.read(65536)
            assert data, "the connection ended"
            self.got += [frame.command for frame in self.decoder.feed(data)]
        return [(command.type, command.lookupTopicResponse.request_id) for command in self.got]

    async def stop(self) -> None:
        """End everything."""
        self.writer.close()
        for server in (self.former, self.server):
            await server.stop()


Story = Callable[[Moved], Any]


@pytest.fixture(params=["asyncio", "uvloop", "tls"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a story, on either loop, and with TLS."""

    def told(story: Story, room: int = 10) -> None:
        async def go() -> None:
            moved = Moved(tmp_path, tls=request.param == "tls")
            await moved.start(room)
            try:
                async with asyncio.timeout(30):
                    await story(moved)
            finally:
                await moved.stop()

        (asyncio if request.param == "asyncio" else cast("Any", uvloop)).run(go())

    return told


def test_the_requests_come_again_and_their_answers_reach_the_client(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        count = 2 * TURN_REQUESTS_MAX + 1
        moved.repeated += [look_up(number) for number in range(count)]
        moved.take()
        assert moved.waiting.peers == {}
        assert moved.waiting.ended == [1], "the broker that waited keeps nothing of it"
        ((number, certificate, _tls),) = moved.serving.joined
        assert certificate == ""
        assert moved.serving.came == [(pb.CONNECT, 0)], "the broker has to let the client in first"
        moved.writer.write(encode(look_up(count).command))
        moved.serving.answer_connect(number)
        answers = await moved.hear(count + 1)
        assert answers == [(pb.LOOKUP_RESPONSE, each) for each in range(count + 1)], (
            "CONNECTED, which it had, is not among them"
        )
        assert max(frames for _, frames in moved.serving.handled) <= TURN_REQUESTS_MAX
        assert isinstance(moved.serving.peers[number], Connection), "the driver has the connection itself now"

    run(story)


def test_half_a_frame_that_came_before_is_ended_after(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        frame = encode(look_up(7).command)
        moved.writer.write(PING + frame[:5])
        await until(lambda: moved.waiting.count(1) == 1)
        moved.take()
        moved.writer.write(frame[5:])
        moved.serving.answer_connect(moved.serving.joined[0][0])
        assert await moved.hear(1) == [(pb.LOOKUP_RESPONSE, 7)]
        assert moved.waiting.count(1) == 1

    run(story)


def test_a_refusal_reaches_the_client(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.repeated += [look_up(1)]
        number = moved.taken()
        moved.serving.peers[number].send([commands.error(0, 1, "the token has expired")])
        moved.serving.peers[number].close("")
        assert await moved.hear(1) == [(pb.ERROR, 0)]
        assert await moved.reader.read() == b""
        await until(lambda: moved.serving.ended == [number])
        assert moved.serving.came == [(pb.CONNECT, 0)]

    run(story)


def test_a_client_that_goes_meanwhile_is_forgotten(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.repeated += [look_up(number) for number in range(2 * TURN_REQUESTS_MAX)]
        number = moved.taken()
        peer = moved.serving.peers[number]
        moved.serving.answer_connect(number)
        connection = next(iter(moved.server._connections.values()))
        connection.abort()
        await until(lambda: moved.serving.ended == [number])
        assert moved.serving.peers == {}
        assert moved.serving.came == [(pb.CONNECT, 0)]
        peer.send([b"late"])
        peer.close("late")

    run(story)


def test_a_hold_of_the_broker_that_serves_stays(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        number = moved.taken()
        moved.serving.peers[number].hold(True)
        moved.writer.write(encode(look_up(3).command))
        moved.serving.answer_connect(number)
        await until(lambda: isinstance(moved.serving.peers[number], Connection))
        moved.serving.peers[number].hold(False)
        assert await moved.hear(1) == [(pb.LOOKUP_RESPONSE, 3)]

    run(story)


def test_requests_are_repeated_only_while_the_client_takes_the_answers(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        count = 2 * TURN_REQUESTS_MAX + 1
        moved.repeated += [look_up(number) for number in range(count)]
        moved.serving.hold_after = 1 + TURN_REQUESTS_MAX
        number = moved.taken()
        moved.serving.answer_connect(number)
        for resumed in (1, 2, 3):
            answered = min(resumed * TURN_REQUESTS_MAX, count)
            assert len(await moved.hear(answered)) == answered
            await turns()
            assert len(moved.serving.came) == 1 + answered
            moved.serving.peers[number].hold(False)
        moved.writer.write(encode(look_up(count).command))
        assert await moved.hear(count + 1) == [(pb.LOOKUP_RESPONSE, each) for each in range(count + 1)]

    run(story)


def test_a_hold_that_ends_with_the_last_request_is_forgotten(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.repeated += [look_up(1)]
        number = moved.taken()
        peer = moved.serving.peers[number]
        peer.hold(True)
        moved.serving.answer_connect(number)
        await turns()
        assert moved.serving.came == [(pb.CONNECT, 0)]
        peer.hold(False)
        peer.hold(False)
        assert await moved.hear(1) == [(pb.LOOKUP_RESPONSE, 1)]
        connection = moved.serving.peers[number]
        assert isinstance(connection, Connection)
        connection.hold(True)
        await turns()
        moved.writer.write(encode(look_up(2).command))
        await turns()
        assert len(moved.serving.came) == 2, "a turn that comes late does not end the new hold"
        connection.hold(False)
        await moved.hear(2)

    run(story)


def test_a_client_that_takes_no_answers_gets_no_more_of_them(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.repeated += [look_up(1)]
        connection = moved.waiting.peers[1]
        while not connection._full:
            connection.send([bytes(1 << 20)])
            await asyncio.sleep(0)
        number = moved.taken()
        assert moved.serving.unwritable == [number]
        moved.serving.peers[number].hold(True)  # as the broker does then
        moved.serving.answer_connect(number)
        await turns()
        assert moved.serving.came == [(pb.CONNECT, 0)]

    run(story)


def test_without_room_it_ends(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.serving.quiet = type("Quiet", (), {"warn": lambda *_: None})()
        moved.take()
        assert moved.serving.joined == []
        assert moved.waiting.ended == [1]
        assert await moved.reader.read() == b""

    run(story, 0)


def test_a_connection_that_is_not_to_be_moved_ends_with_its_server(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.repeated.clear()
        moved.take()
        assert moved.serving.joined == []
        assert 1 in moved.waiting.peers
        await moved.former.stop()
        assert await moved.reader.read() == b""

    run(story)


def test_one_that_is_closing_is_left_to_close(run: Callable[..., None]) -> None:
    async def story(moved: Moved) -> None:
        moved.waiting.peers[1].close("")
        moved.take()
        assert moved.serving.joined == []
        assert await moved.reader.read() == b""

    run(story)
