"""The brokers of a cluster in a real ZooKeeper: names are unique, each sees the others, a lost node is made again."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.broker.waiting.registration import NO_BROKERS, Brokers, Registration
from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from magnetar.runtime.bookkeeper.registry import Registry
from magnetar.runtime.bookkeeper.shards import shard_path
from magnetar.runtime.broker_storage import GivenUp
from tests.support import zookeeper as servers
from tests.support.brokers import eventually

SESSION_S = 4.0
"""The shortest that these servers allow."""

SHORT_S = 0.6
"""For tests in which no session has to end: a registry may take its session for shorter than it is."""

KILLED = """
import os, signal, sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]))
client.start(20)
client.create(sys.argv[3], b"former", ephemeral=True, makepath=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A broker that registers and is killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ZooKeeper]:
    made = servers.ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield made
    made.kill()


class Member:
    """A broker with a session of its own."""

    def __init__(self, hosts: str, path: str, name: str, session_s: float = SHORT_S) -> None:
        self.own = Registration(broker=name, pulsar=f"pulsar://{name}:6650")
        self.client = KazooClient(hosts=hosts, timeout=SESSION_S)
        self.client.start(20)
        self.seen: list[Brokers] = []
        self.name_taken = threading.Event()
        self.path = path
        self.registry = Registry(
            self.client, path, self.own, session_s, self.seen.append, self.name_taken.set, lambda: hosts
        )

    def sees(self, serving: str, *names: str) -> None:
        """Wait until it sees these brokers."""

        def reached() -> bool:
            brokers = self.registry.brokers
            found = brokers.serving.broker if brokers.serving is not None else ""
            return found == serving and [one.broker for one in brokers.all] == list(names)

        eventually(reached, what=f"{names} are seen")

    def serve(self) -> None:
        """Become the one that serves, as far as others see it."""
        self.client.create(f"{shard_path(self.path)}/owner", self.own.encode(), ephemeral=True, makepath=True)

    def close(self) -> None:
        """A clean end."""
        self.registry.close()
        self.client.stop()
        self.client.close()


Join = Callable[..., Member]


@pytest.fixture
def join(server: servers.ZooKeeper, request: pytest.FixtureRequest) -> Iterator[Join]:
    members: list[Member] = []

    def joined(name: str, **options: float) -> Member:
        members.append(Member(server.hosts, f"/{request.node.name}", name, **options))
        return members[-1]

    yield joined
    for member in members:
        member.close()


def test_each_sees_the_others_and_the_one_that_serves(join: Join) -> None:
    first, second = join("a"), join("b")
    assert first.registry.brokers == NO_BROKERS
    first.registry.register()
    first.sees("", "a")
    second.registry.register()
    first.sees("", "a", "b")
    first.serve()
    second.sees("a", "a", "b")
    assert second.registry.brokers.serving == first.own
    assert second.seen[-1] == second.registry.brokers
    first.close()
    second.sees("", "b")


def test_a_second_broker_of_a_name_ends_with_one_line(join: Join) -> None:
    first, second = join("a"), join("a")
    first.registry.register()
    with pytest.raises(StorageError) as refused:
        second.registry.register()
    assert str(refused.value) == (
        "ZooKeeper, /test_a_second_broker_of_a_name_ends_with_one_line/brokers/a: another broker with the name a runs at "
        "pulsar://a:6650; give each broker of the cluster a name of its own"
    )
    first.sees("", "a")
    assert first.registry.lost() == ""


def test_a_broker_waits_for_the_end_of_its_former_session(server: servers.ZooKeeper, join: Join) -> None:
    present = join("a", session_s=SESSION_S)
    node = f"{present.path}/brokers/a"
    subprocess.run([sys.executable, "-c", KILLED, server.hosts, str(SESSION_S), node], timeout=60, check=False)
    assert present.client.get(node)[0] == b"former"
    present.registry.register()
    assert present.client.get(node)[0] == present.own.encode()


def test_a_broker_that_waits_for_its_name_can_give_up(join: Join) -> None:
    first, second = join("a"), join("a", session_s=20.0)
    first.registry.register()
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            second.registry.register()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    second.registry.give_up()
    assert ended.wait(20)
    assert isinstance(failures[0], GivenUp)


def test_a_node_that_is_gone_is_made_again(join: Join) -> None:
    member = join("a")
    member.registry.register()
    member.client.delete(f"{member.path}/brokers/a")
    eventually(lambda: member.client.exists(f"{member.path}/brokers/a"), what="it is registered again")
    assert not member.name_taken.is_set()


def test_a_broker_learns_that_another_has_got_its_name(join: Join) -> None:
    member, thief = join("a"), join("a")
    member.registry.register()
    change = thief.client.transaction()  # at once: the member would make its node again
    change.delete(f"{member.path}/brokers/a")
    change.create(f"{member.path}/brokers/a", thief.own.encode(), ephemeral=True)
    change.commit()
    assert member.name_taken.wait(20)
    assert member.registry.lost() == "another broker with the name a runs at pulsar://a:6650"


def test_nodes_that_are_no_records_do_no_harm(join: Join) -> None:
    member = join("a")
    member.client.ensure_path(f"{member.path}/brokers")
    member.client.create(f"{member.path}/brokers/old", b"")
    member.client.create(f"{shard_path(member.path)}/owner", b"old", makepath=True)
    member.registry.register()
    member.sees("old", "a", "?")


def test_a_zookeeper_that_is_away_is_one_line(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """However long it is away; and one when it is back."""
    server = servers.ZooKeeper(tmp_path)
    away = f"ZooKeeper does not answer: {server.hosts}; the broker tries to connect again until it ends"
    member = Member(server.hosts, f"/{request.node.name}", "a")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "magnetar.broker"]

    try:
        member.registry.register()
        member.sees("", "a")
        server.kill()
        eventually(lambda: away in lines(), what="the line")
        looks = 5
        for _ in range(looks):
            with pytest.raises(UNANSWERED):
                member.client.get_async("/").get(timeout=SHORT_S)
        server.start()
        eventually(lambda: len(lines()) > 1, what="the other line")
        assert lines() == [away, "ZooKeeper answers again"]
    finally:
        member.close()
        server.kill()
