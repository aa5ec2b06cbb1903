"""Watchers of topic lists (PIP-145) at a real broker, by a client made of bytes. Java's own: others/test_patterns.py."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.broker.catalog.watches import topics_hash
from magnetar.core.errors import ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.raw_client import Raw, raw

NAMESPACE = "public/default"


class Watching:
    """A client that watches one pattern, and the list as it knows it."""

    def __init__(self, client: Raw, pattern: str, *, known: str | None = None, number: int = 1) -> None:
        self._client = client
        self._number = number
        command = pb.CommandWatchTopicList(
            request_id=7, watcher_id=number, namespace=NAMESPACE, topics_pattern=pattern, topics_hash=known
        )
        client.send(pb.BaseCommand(type=64, watchTopicList=command))
        answer = client.answer()
        assert answer is not None and answer.type == 65, answer
        assert (answer.watchTopicListSuccess.request_id, answer.watchTopicListSuccess.watcher_id) == (7, number)
        self.names = set(answer.watchTopicListSuccess.topic)
        self.hash = answer.watchTopicListSuccess.topics_hash

    def hear(self) -> None:
        """The next update."""
        answer = self._client.answer()
        assert answer is not None and answer.type == 66, answer
        update = answer.watchTopicUpdate
        assert update.watcher_id == self._number
        assert set(update.deleted_topics) <= self.names
        self.names -= set(update.deleted_topics)
        assert not self.names & set(update.new_topics)
        self.names |= set(update.new_topics)
        self.hash = update.topics_hash
        assert self.hash == topics_hash(self.names)

    def until(self, names: set[str]) -> None:
        """Updates, until the list is this one."""
        while self.names != names:
            self.hear()


@pytest.fixture
def prefix() -> str:
    """Of the topics of this test alone."""
    return f"persistent://{NAMESPACE}/w-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Raw]:
    with raw(broker) as made:
        hello = made.handshake()
        assert hello is not None and hello.connected.feature_flags.supports_topic_watchers
        yield made


def rest(broker: BrokerProcess, method: str, topic: str, more: str = "", body: object = None) -> None:
    broker.rest(method, f"/admin/v2/{topic.replace('://', '/')}{more}", body)


def test_topics_of_administrators_and_clients(broker: BrokerProcess, client: Raw, prefix: str) -> None:
    rest(broker, "PUT", prefix + "first")
    watching = Watching(client, prefix + ".*")
    assert watching.names == {prefix + "first"} and watching.hash == topics_hash(watching.names)
    rest(broker, "PUT", prefix + "second")
    watching.until({prefix + "first", prefix + "second"})
    with raw(broker) as other:
        assert other.handshake() is not None
        opened = pb.CommandProducer(topic=prefix + "third", producer_id=1, request_id=1)
        other.send(pb.BaseCommand(type=5, producer=opened))
        watching.until({prefix + "first", prefix + "second", prefix + "third"})
    rest(broker, "DELETE", prefix + "first", "?force=true")
    watching.until({prefix + "second", prefix + "third"})


def test_partitions(broker: BrokerProcess, client: Raw, prefix: str) -> None:
    """Their topic's name has to match, not their own."""
    watching = Watching(client, prefix + "[a-z]+")
    rest(broker, "PUT", prefix + "p", "/partitions", 2)
    watching.until({prefix + f"p-partition-{number}" for number in range(2)})
    rest(broker, "POST", prefix + "p", "/partitions", 4)
    watching.until({prefix + f"p-partition-{number}" for number in range(4)})
    rest(broker, "DELETE", prefix + "p", "/partitions?force=true")
    watching.until(set())


def test_a_client_that_comes_back_is_sent_a_list_only_if_it_changed(
    broker: BrokerProcess, client: Raw, prefix: str
) -> None:
    rest(broker, "PUT", prefix + "a")
    first = Watching(client, prefix + ".*")
    with raw(broker) as again:
        again.handshake()
        second = Watching(again, prefix + ".*", known=first.hash)
        assert second.names == set()
        second.names = {prefix + "a"}  # as it knew
        rest(broker, "PUT", prefix + "b")
        for watching in (first, second):
            watching.until({prefix + "a", prefix + "b"})
        assert Watching(again, prefix + ".*", known="00000000", number=2).names == first.names


def test_the_end_of_a_watcher_and_of_its_connection(broker: BrokerProcess, client: Raw, prefix: str) -> None:
    before = broker.figure("magnetar_topic_watchers")
    Watching(client, prefix + ".*", number=1)
    watching = Watching(client, prefix + "[b]", number=2)
    assert broker.figure("magnetar_topic_watchers") == before + 2
    client.send(pb.BaseCommand(type=67, watchTopicListClose={"watcher_id": 1, "request_id": 9}))
    answer = client.answer()
    assert answer is not None and (answer.type, answer.success.request_id) == (13, 9)
    rest(broker, "PUT", prefix + "b")
    watching.until({prefix + "b"})  # nothing of the other one comes in between
    client.socket.close()
    eventually(lambda: broker.figure("magnetar_topic_watchers") == before, what="it went with its connection")


@pytest.mark.parametrize("pattern", ["(", "(a)\\1", "a" * 70_000])
def test_a_refused_pattern_harms_nothing_else(client: Raw, prefix: str, pattern: str) -> None:
    command = pb.CommandWatchTopicList(request_id=3, watcher_id=1, namespace=NAMESPACE, topics_pattern=pattern)
    client.send(pb.BaseCommand(type=64, watchTopicList=command))
    answer = client.answer()
    assert answer is not None
    assert (answer.type, answer.error.request_id, answer.error.error) == (14, 3, ErrorCode.NOT_ALLOWED)
    assert Watching(client, prefix + ".*").names == set()


def test_malformed_commands_end_the_connection(broker: BrokerProcess, client: Raw) -> None:
    """As every command without what it has to hold, and one that only a broker sends."""
    empty = b"\x08\x40\x82\x04\x00"  # WATCH_TOPIC_LIST, with a part in which nothing is
    client.socket.sendall((4 + len(empty)).to_bytes(4, "big") + len(empty).to_bytes(4, "big") + empty)
    assert client.answer() is None
    for kind, part in ((65, "watchTopicListSuccess"), (66, "watchTopicUpdate")):
        with raw(broker) as other:
            other.handshake()
            said = {"watcher_id": 1, "topics_hash": "00000000"} | ({"request_id": 1} if kind == 65 else {})
            other.send(pb.BaseCommand(type=kind, **{part: said}))  # type: ignore[arg-type]
            assert other.answer() is None


def test_before_connect_nothing_is_watched(broker: BrokerProcess) -> None:
    with raw(broker) as client:
        command = pb.CommandWatchTopicList(request_id=1, watcher_id=1, namespace=NAMESPACE, topics_pattern=".*")
        client.socket.sendall(encode(pb.BaseCommand(type=64, watchTopicList=command)))
        assert client.answer() is None


def test_a_pattern_that_takes_others_for_ever_holds_up_nobody(broker: BrokerProcess, client: Raw, prefix: str) -> None:
    name = prefix + "a" * 300
    rest(broker, "PUT", name)
    assert Watching(client, prefix + "(a+)+b").names == set()
    assert Watching(client, prefix + "(a|aa)*", number=2).names == {name}


def test_many_topics_are_few_updates(own_broker: BrokerProcess, prefix: str) -> None:
    with raw(own_broker) as client:
        client.handshake()
        watching = Watching(client, prefix + ".*")
        opened = 300
        with raw(own_broker) as other:
            other.handshake()
            for number in range(opened):
                command = pb.CommandProducer(topic=f"{prefix}{number}", producer_id=number, request_id=number)
                other.send(pb.BaseCommand(type=5, producer=command))
            watching.until({f"{prefix}{number}" for number in range(opened)})
        assert own_broker.figure("magnetar_topic_watch_updates_total") < opened / 2


def test_after_a_restart_the_list_is_the_same(tmp_path: Path, prefix: str) -> None:
    world = World(tmp_path, ["solo"]).start()
    try:
        for name in "ab":
            rest(world["solo"], "PUT", prefix + name)
        with raw(world["solo"]) as client:
            client.handshake()
            before = Watching(client, prefix + ".*")
        world["solo"].kill()
        world["solo"].start()
        with raw(world["solo"]) as client:
            client.handshake()
            assert Watching(client, prefix + ".*", known=before.hash).names == set()
            rest(world["solo"], "PUT", prefix + "c")
            assert client.answer().type == 66  # type: ignore[union-attr]
    finally:
        world.close()
