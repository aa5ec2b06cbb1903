"""A waiting broker on real sockets, with tokens and TLS, and without ZooKeeper: the test says which broker serves."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from yarl import URL

from magnetar.admin.http.answers import Answers
from magnetar.admin.waiting.role import WaitingRole
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers, Registration, registration_of
from magnetar.core.config import load
from magnetar.core.errors import ErrorCode, MagnetarError
from magnetar.runtime.security.secrets import Secrets
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, encode
from tests.support.brokers import free_port
from tests.support.certificates import Authority

SECRET = b"!" + bytes(range(65, 112))
TOPIC = "persistent://public/default/t"
A = Registration(
    broker="a",
    pulsar="pulsar://10.0.0.1:6650",
    pulsar_tls="pulsar+ssl://10.0.0.1:6651",
    web="http://10.0.0.1:8080",
    web_tls="https://10.0.0.1:8443",
)
STATE = "broker b of cluster one waits to take over; broker a serves at pulsar://10.0.0.1:6650"


class World:
    """Broker b, which waits.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        certificate, key = authority.sign("broker")
        (folder / "key").write_bytes(SECRET)
        (folder / "key").chmod(0o600)
        self.ports = {name: free_port() for name in ("pulsar", "http", "pulsar_tls", "https")}
        lines = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in self.ports.items())
        (folder / "clusters.toml").write_text(
            f'[clusters.one]\nstorage = "bookkeeper"\nstore = "zookeeper://127.0.0.1:1/one"\n'
            f"[clusters.one.brokers.b]\n{lines}\n"
            f'[authentication]\nmethods = ["token"]\nsecret_key_files = ["key"]\n'
            f'[authorization]\nsuperusers = ["admin"]\n'
            f'[tls]\ncertificate_file = "{certificate}"\nkey_file = "{key}"\nca_file = "{authority.file}"\n'
        )
        config = load(folder / "clusters.toml")
        cluster, endpoints = config.named_broker("one/b")
        self.own = registration_of(endpoints)
        self.trust = ssl.create_default_context(cafile=str(authority.file))
        self.make = lambda: WaitingRole(
            config,
            cluster.name,
            endpoints,
            Secrets(config.security, config.replication.token_file),
            files=None,
            answers=Answers(),
        )
        self.role = self.make()

    async def serves(self, serving: Registration | None) -> None:
        """The others are seen."""
        self.role.seen(Brokers(serving, (A, self.own)))
        await asyncio.sleep(0)

    async def rest(
        self, path: str, role: str = "app", *, method: str = "GET", tls: bool = False, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """A request of a role, "" without a token: the status, the headers and the body of the answer."""
        if role:
            headers["Authorization"] = f"Bearer {token(role)}"
        url = f"https://127.0.0.1:{self.ports['https']}" if tls else f"http://127.0.0.1:{self.ports['http']}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, URL(f"{url}{path}", encoded=True), headers=headers, allow_redirects=False, ssl=self.trust
            ) as answer,
        ):
            json = answer.content_type == "application/json"
            return answer.status, dict(answer.headers), (await answer.json() if json else await answer.text())

    async def client(self, role: str, *asked: pb.BaseCommand, tls: bool = False) -> list[pb.BaseCommand]:
        """A client of a role sends commands after CONNECT; as many answers as there were commands, or all until the end."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.ports["pulsar_tls" if tls else "pulsar"], ssl=self.trust if tls else None
        )
        connect = pb.CommandConnect(
            client_version="x", protocol_version=21, auth_method_name="token", auth_data=token(role).encode()
        )
        decoder, found = FrameDecoder(), list[pb.BaseCommand]()
        writer.write(encode(pb.BaseCommand(type=pb.CONNECT, connect=connect)))
        for command in (*asked, None):
            while not (frames := decoder.feed(await reader.read(65536))) and not reader.at_eof():
                pass
            found += [frame.command for frame in frames]
            if command is not None:
                writer.write(encode(command))
        writer.close()
        return found


def token(role: str) -> str:
    """A token; that of role "nobody" has a wrong signature."""
    return jwt.encode({"sub": role}, SECRET[::-1] if role == "nobody" else SECRET, algorithm="HS256")


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    """Runs a story with broker b, while a serves."""

    async def told(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        world = World(tmp_path)
        await world.role.start()
        await world.serves(A)
        try:
            async with asyncio.timeout(60):
                await story(world)
        finally:
            await world.role.stop()

    return lambda story: asyncio.run(told(story))


Run = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


def test_clients_are_authenticated_and_sent_on(run: Run) -> None:
    async def story(world: World) -> None:
        look_up = pb.BaseCommand(type=pb.LOOKUP, lookupTopic={"topic": TOPIC, "request_id": 7})
        for tls in (False, True):
            connected, answer = await world.client("app", look_up, tls=tls)
            assert connected.type == pb.CONNECTED
            assert answer.lookupTopicResponse.response == 0
            assert answer.lookupTopicResponse.brokerServiceUrl == A.pulsar
            assert answer.lookupTopicResponse.brokerServiceUrlTls == A.pulsar_tls
        (refused,) = await world.client("nobody")
        assert refused.type == pb.ERROR
        assert refused.error.error == ErrorCode.AUTHENTICATION

    run(story)


def test_rest_sends_to_the_same_path_by_the_same_scheme(run: Run) -> None:
    async def story(world: World) -> None:
        path = "/admin/v2/namespaces/public/a%2Fb?x=%2F"
        for method in ("GET", "PUT", "POST", "DELETE"):
            status, headers, body = await world.rest(path, method=method)
            assert (status, headers["Location"]) == (307, f"http://10.0.0.1:8080{path}")
            assert body == {"reason": "broker a serves, at http://10.0.0.1:8080"}
        status, headers, _ = await world.rest(path, tls=True)
        assert (status, headers["Location"]) == (307, f"https://10.0.0.1:8443{path}")
        await world.serves(Registration(broker="a", web="http://10.0.0.1:8080"))
        assert (await world.rest("/", tls=True))[1]["Location"] == "http://10.0.0.1:8080/"

    run(story)


def test_rest_asks_who_comes(run: Run) -> None:
    async def story(world: World) -> None:
        for path in ("/admin/v2/clusters", "/metrics", "/admin/v2/brokers/health"):
            status, headers, _ = await world.rest(path, "")
            assert (status, "WWW-Authenticate" in headers) == (401, True)
            assert (await world.rest(path, "nobody"))[0] == 401
        for path in ("/metrics", "/admin/v2/brokers", "/admin/v2/brokers/one/leaderBroker"):
            assert (await world.rest(path, "app"))[0] == 403
            assert (await world.rest(path, "admin"))[0] == 200
        assert (await world.rest("/", Host="evil.example"))[0] == 403

    run(story)


@pytest.mark.parametrize(
    ("serving", "state"),
    [
        (None, "broker b of cluster one waits to take over; no broker serves yet"),
        ("b", "broker b of cluster one takes over: it recovers the log"),
        ("a", "broker b of cluster one waits to take over; broker a serves"),
    ],
)
def test_without_a_broker_to_name_rest_says_when_to_come_again(run: Run, serving: str | None, state: str) -> None:
    async def story(world: World) -> None:
        await world.serves(Registration(broker=serving) if serving else None)
        for path in ("/admin/v2/clusters", "/admin/v2/brokers/ready", "/status.html"):
            status, headers, body = await world.rest(path)
            assert (status, headers["Retry-After"], body) == (503, "2", {"reason": state})
        assert (await world.rest("/admin/v2/brokers/health"))[::2] == (200, "ok")

    run(story)


def test_before_the_others_are_seen(run: Run) -> None:
    async def story(world: World) -> None:
        world.role.seen(NO_BROKERS)
        await asyncio.sleep(0)
        assert (await world.rest("/admin/v2/brokers/leaderBroker", "admin"))[0] == 503
        assert (await world.rest("/admin/v2/brokers", "admin"))[2] == []

    run(story)


def test_brokers_and_metrics_are_answered_here(run: Run) -> None:
    async def story(world: World) -> None:
        own = f"127.0.0.1:{world.ports['http']}"
        for path in ("/admin/v2/brokers", "/admin/v2/brokers/", "/admin/v2/brokers/one"):
            assert (await world.rest(path, "admin"))[2] == ["10.0.0.1:8080", own]
        leader = {"brokerId": "10.0.0.1:8080", "serviceUrl": "http://10.0.0.1:8080"}
        assert (await world.rest("/admin/v2/brokers/leaderBroker", "admin"))[2] == leader
        # Another cluster is a question for the broker that serves, which knows them.
        assert (await world.rest("/admin/v2/brokers/two", "admin"))[0] == 307
        await world.client("app")
        page = (await world.rest("/metrics", "admin"))[2]
        assert 'magnetar_cluster_broker_serving{cluster="one",broker="a"} 1' in page
        assert 'magnetar_cluster_broker_serving{cluster="one",broker="b"} 0' in page
        assert 'magnetar_broker_ready{cluster="one"} 0' in page
        assert "process_resident_memory_bytes" in page

    run(story)


def test_the_ports_are_free_after_the_end_and_taken_before(run: Run) -> None:
    async def story(world: World) -> None:
        second = world.make()
        with pytest.raises(MagnetarError, match=r"^cannot listen on 127\.0\.0\.1:\d+ \(pulsar\): "):
            await second.start()
        await second.stop()
        _, writer = await asyncio.open_connection("127.0.0.1", world.ports["pulsar"])
        await world.client("app")
        await world.role.stop()
        third = world.make()
        await third.start()
        await third.stop()
        writer.close()

    run(story)


def test_a_fault_of_the_machine_stops_the_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            world.role.driver.run(broken)
        assert world.role.driver.stopped.is_set()

    run(story)
