"""Connections of a waiting broker to the one that serves: what comes back, and what a client gets when nothing does."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.waiting.registration import Registration
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.runtime.network import relay as relays
from magnetar.runtime.network.descriptors import BESIDE
from magnetar.runtime.network.relay import CONNECTIONS_MAX, OwnerRelay, fitting_with_relay
from magnetar.runtime.security import tls
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import NO_REQUEST
from magnetar.wire.frames import FrameDecoder
from tests.support.brokers import free_port
from tests.support.certificates import Authority

TOKEN = b"a token"


class Owner:
    """A broker that serves, on a real socket: it answers with as many partitions as it has got requests.

    Attributes:
        connects: what clients presented.
        open: connections that are open now.
        silent: it answers no request.
        refuses: it refuses CONNECT.
    """

    def __init__(self) -> None:
        self.connects: list[pb.CommandConnect] = []
        self.requests = 0
        self.open = 0
        self.silent = self.refuses = False
        self.asked = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, context: ssl.SSLContext | None = None) -> int:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        """End."""
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.open += 1
        decoder = FrameDecoder()
        try:
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    writer.write(self._answer(frame.command))
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()

    def _answer(self, command: pb.BaseCommand) -> bytes:
        if command.type == pb.CONNECT:
            self.connects.append(command.connect)
            if self.refuses:
                return commands.error(NO_REQUEST, ErrorCode.AUTHENTICATION, "no such token")
            return commands.connected(21, 1 << 20)
        self.requests += 1
        self.asked.set()
        return b"" if self.silent else commands.partitions_response(request_id_of(command), self.requests)


def request_id_of(command: pb.BaseCommand) -> int:
    """Of a request about partitions."""
    assert command.type == pb.PARTITIONED_METADATA
    return int(command.partitionMetadata.request_id)


class World:
    """A relay, and a broker that serves."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX, **trust: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = Owner()
        self.relay = OwnerRelay(self.loop, lambda event, *arguments: event(*arguments), trust, connections_max)
        self.serving = Registration(broker="a")

    async def start(self) -> None:
        """It serves."""
        self.serving = Registration(broker="a", pulsar=f"pulsar://127.0.0.1:{await self.owner.start()}")

    def ask(self, connection: int = 1, *, tls: bool = False) -> asyncio.Future[Any]:
        """A client's request; the number of partitions, or the error."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        def answered(got: pb.BaseCommand | BrokerError) -> None:
            answer.set_result(
                (got.code, got.message) if isinstance(got, BrokerError) else got.partitionMetadataResponse.partitions
            )

        connect = pb.CommandConnect(client_version="x", auth_method_name="token", auth_data=TOKEN)
        command = pb.BaseCommand(
            type=pb.PARTITIONED_METADATA,
            partitionMetadata=pb.CommandPartitionedTopicMetadata(topic="t", request_id=77),
        )
        self.relay.ask(connection, self.serving, connect, command, answered, tls=tls)
        return answer

    async def close(self) -> None:
        """End."""
        self.relay.close()
        await self.owner.stop()


def run(story: Callable[[World], Coroutine[Any, Any, None]], connections_max: int = CONNECTIONS_MAX) -> None:
    """A story with a broker that serves."""

    async def told() -> None:
        world = World(connections_max)
        await world.start()
        try:
            async with asyncio.timeout(20):
                await story(world)
        finally:
            await world.close()

    asyncio.run(told())


async def until(check: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not check():  # noqa: ASYNC110 - what a socket does has no event here
        await asyncio.sleep(0.005)


def test_a_client_has_one_connection_with_its_own_credentials() -> None:
    async def story(world: World) -> None:
        assert await asyncio.gather(world.ask(), world.ask()) == [1, 2]
        assert await world.ask() == 3
        assert await world.ask(2) == 4
        assert [connect.auth_data for connect in world.owner.connects] == [TOKEN, TOKEN]

    run(story)


def test_a_refused_login_is_the_answer() -> None:
    async def story(world: World) -> None:
        world.owner.refuses = True
        assert await world.ask() == (ErrorCode.AUTHENTICATION, "no such token")
        world.owner.refuses = False
        assert await world.ask() == 1

    run(story)


def test_a_broker_that_is_not_there_is_named() -> None:
    async def story(world: World) -> None:
        world.serving = Registration(broker="a", pulsar=f"pulsar://127.0.0.1:{free_port()}")
        code, message = await world.ask()
        assert code is ErrorCode.SERVICE_NOT_READY
        assert message.startswith("broker a, which serves, does not answer: ")
        world.serving = Registration(broker="a")
        assert await world.ask() == (
            ErrorCode.SERVICE_NOT_READY,
            "the record of broker a has no address for clients; try again",
        )

    run(story)


def test_requests_end_with_their_connection() -> None:
    async def story(world: World) -> None:
        world.owner.silent = True
        asked = [world.ask(), world.ask()]
        await world.owner.asked.wait()
        world.owner.drop()
        closed = (ErrorCode.SERVICE_NOT_READY, "broker a, which serves, does not answer: it closed the connection")
        assert await asyncio.gather(*asked) == [closed, closed]
        world.owner.silent = False
        assert await world.ask() > 0

    run(story)


def test_a_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "ANSWER_S", 0.05)
    monkeypatch.setattr(relays, "IDLE_S", 0.02)

    async def story(world: World) -> None:
        world.owner.silent = True
        code, message = await world.ask()
        assert code is ErrorCode.SERVICE_NOT_READY
        assert message.startswith("broker a, which serves, does not answer: no ")
        await until(lambda: not world.owner.open)

    run(story)


def test_a_connection_that_is_not_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "IDLE_S", 0.02)

    async def story(world: World) -> None:
        assert await world.ask() == 1
        await until(lambda: not world.owner.open)
        assert await world.ask() == 2
        assert len(world.owner.connects) == 2

    run(story)


def test_a_client_that_is_gone_gets_nothing() -> None:
    async def story(world: World) -> None:
        world.owner.silent = True
        asked = world.ask()
        await world.owner.asked.wait()
        world.relay.forget(1)
        await until(lambda: not world.owner.open)
        assert not asked.done()
        world.relay.forget(1)

    run(story)


def test_another_broker_that_serves_is_asked_next() -> None:
    async def story(world: World) -> None:
        assert await world.ask() == 1
        former, world.owner = world.owner, Owner()
        await world.start()
        world.serving = Registration(broker="b", pulsar=world.serving.pulsar)
        assert await world.ask() == 1
        await until(lambda: not former.open)
        await former.stop()

    run(story)


def test_connections_have_a_limit_and_idle_ones_make_room() -> None:
    async def story(world: World) -> None:
        assert await world.ask(1) == 1
        assert await world.ask(2) == 2
        world.owner.silent = True
        waits = world.ask(2)
        assert await world.ask(3) == (ErrorCode.SERVICE_NOT_READY, "1 clients are being helped; try again")
        world.relay.forget(2)
        assert not waits.done()

    run(story, connections_max=1)


@pytest.mark.parametrize(
    ("files", "connections", "http", "fits"),
    [
        (None, 10_000, 2_000, (10_000, 2_000, CONNECTIONS_MAX)),
        (12_000 + CONNECTIONS_MAX + BESIDE, 10_000, 2_000, (10_000, 2_000, CONNECTIONS_MAX)),
        (6_000 + CONNECTIONS_MAX // 2 + BESIDE, 10_000, 2_000, (5_000, 1_000, CONNECTIONS_MAX // 2)),
        (None, 4, 4, (4, 4, 4)),
        (6 + BESIDE, 4, 4, (2, 2, 2)),
        (1, 4, 4, (1, 1, 1)),
    ],
)
def test_connections_to_the_serving_broker_have_descriptors_of_their_own(
    files: int | None, connections: int, http: int, fits: tuple[int, int, int]
) -> None:
    assert fitting_with_relay(files, connections, http) == fits


def test_a_client_that_reads_nothing_holds_its_answers_up() -> None:
    async def story(world: World) -> None:
        assert await world.ask() == 1
        world.relay.hold(1, True)
        asked = world.ask()
        await until(lambda: world.owner.requests == 2)
        await asyncio.sleep(0)
        assert not asked.done()
        world.relay.hold(1, False)
        assert await asked == 2

    run(story)


def test_by_tls_the_certificate_of_the_broker_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("broker")

    async def told() -> None:
        world = World(ca=str(authority.file))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        port = await world.owner.start(context)
        world.serving = Registration(
            broker="a", pulsar="pulsar://127.0.0.1:1", pulsar_tls=f"pulsar+ssl://127.0.0.1:{port}"
        )
        assert await world.ask(tls=True) == 1
        await world.close()
        stranger = World(ca=str(Authority(tmp_path, "other").file))
        port = await stranger.owner.start(context)
        stranger.serving = Registration(broker="a", pulsar_tls=f"pulsar+ssl://127.0.0.1:{port}")
        code, message = await stranger.ask()
        assert code is ErrorCode.SERVICE_NOT_READY
        assert message.startswith("broker a, which serves, does not answer: the broker's certificate is not trusted: ")
        await stranger.close()

    asyncio.run(told())


def test_a_context_of_tls_is_made_once_and_again_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes milliseconds; clients come without TLS in between. Certificates are replaced while a broker waits."""
    made: list[str] = []

    def make(*files: str) -> ssl.SSLContext:
        made.append(files[0])
        return ssl.create_default_context()

    monkeypatch.setattr(tls, "client_context", make)
    trusted = tmp_path / "ca.pem"
    trusted.write_text("one")

    async def told() -> None:
        relay = OwnerRelay(
            asyncio.get_running_loop(), lambda event, *arguments: event(*arguments), {"ca": str(trusted)}
        )
        for _ in range(3):
            relay.target("pulsar://127.0.0.1:1")
            relay.target("pulsar+ssl://127.0.0.1:2")
        assert made == [str(trusted)]
        trusted.write_text("another")
        relay.target("pulsar+ssl://127.0.0.1:2")
        assert len(made) == 2
        relay.target("pulsar+ssl://127.0.0.1:3")
        assert len(made) == 3

    asyncio.run(told())
