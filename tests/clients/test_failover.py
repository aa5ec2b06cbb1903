"""Planned and unplanned failover with official clients, unmodified, between two real brokers; a replicator carries the links."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.admin.client import AdminClient
from magnetar.cli.commands.failover import Move, Report
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import World, eventually
from tests.support.raw_client import raw
from tests.support.replicator import Replicator

pytestmark = pytest.mark.e2e

PATIENT_MS = 60_000
"""Of grace: on a machine that is busy with other tests an application may be slow; then it must not count as such."""


class Pair:
    """Clusters a and b, linked both ways."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicators = [Replicator(world, "a", "b"), Replicator(world, "b", "a")]
        self.topic = f"persistent://public/default/f-{uuid.uuid4().hex[:12]}"
        self._clients: list[pulsar.Client] = []

    def client(self, cluster: str | pulsar.AutoClusterFailover) -> pulsar.Client:
        """An official client; its consumers are closed with it."""
        logger = logging.getLogger("pulsar-client")
        logger.setLevel(logging.CRITICAL)
        url = self.world[cluster].url if isinstance(cluster, str) else cluster
        self._clients.append(pulsar.Client(url, operation_timeout_seconds=20, logger=logger))
        return self._clients[-1]

    def move(self, source: str, target: str, *, timeout_s: float = 60, grace_ms: int = PATIENT_MS) -> Report:
        """`magnetar failover`, in this process."""
        at = [AdminClient(self.world[name].web) for name in (source, target)]
        move = Move(TopicName.parse(self.topic), "s", source, target, at[0], at[1], say=lambda _text: None)
        move.plan()
        return move.run(timeout_s, grace_ms)

    def path(self, *rest: str) -> str:
        return "/".join(["/geo/v1/failover", self.topic.replace("://", "/"), "s", *rest])

    def phase(self, cluster: str) -> str:
        return str(self.world[cluster].rest("GET", self.path())[0]["phase"])

    def followed(self, cluster: str, consumers: int = 1) -> None:
        """The consumers are connected there."""
        eventually(
            lambda: self.world[cluster].rest("GET", self.path())[0]["consumers"] == consumers,
            what=f"{consumers} consumers in {cluster}",
        )

    def ready(self, *, topics: int = 1) -> None:
        """The subscription is known in both clusters, and pipelines serve the links."""

        def there() -> bool:
            with contextlib.suppress(OSError):
                rows = [self.world[name].rest("GET", self.path()) for name in "ab"]
                return all(
                    len(found) == topics and all(link["lease"] for row in found for link in row["links"].values())
                    for found in rows
                )
            return False

        eventually(there, what="the subscription in both clusters")

    def told(self) -> str:
        """What each cluster says of the subscription: for whoever reads of a failure."""
        found = []
        for name in "ab":
            path = f"/admin/v2/{self.topic.replace('://', '/')}"
            stats = self.world[name].rest("GET", f"{path}/stats")["subscriptions"]["s"]
            cursor = self.world[name].rest("GET", f"{path}/internalStats")["cursors"]["s"]
            fence = self.world[name].rest("GET", self.path())
            found.append(f"{name}: {stats}, {cursor}, {fence}")
        return "; ".join(found)

    def close_clients(self) -> None:
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()
        self._clients.clear()

    def close(self) -> None:
        self.close_clients()
        for replicator in self.replicators:
            replicator.close()
        self.world.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Of this test alone: it may break it."""
    pair = Pair(World(tmp_path, ["a", "b"]).start())
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(World(tmp_path_factory.mktemp("pair"), ["a", "b"]).start())
    yield pair
    pair.close()


@pytest.fixture
def shared(lasting: Pair) -> Iterator[Pair]:
    """Shared by tests that break nothing; each has its own topic."""
    lasting.topic = f"persistent://public/default/f-{uuid.uuid4().hex[:12]}"
    yield lasting
    lasting.close_clients()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    made: list[World] = []

    def make(extra: str) -> World:
        made.append(World(tmp_path, ["a", "b"], extra).start())
        return made[-1]

    yield make
    for world in made:
        world.close()


class App:
    """An application: receives, remembers, acknowledges, on a thread of its own."""

    def __init__(self, consumer: pulsar.Consumer, acknowledge: Callable[[pulsar.Consumer, Any], None] | None = None):
        self.seen: list[bytes] = []
        self.consumer = consumer
        self._acknowledge = acknowledge or (lambda consumer, message: consumer.acknowledge(message))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self.consumer.receive(200)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:
                return
            self.seen.append(message.data())
            with contextlib.suppress(pulsar.PulsarException):
                self._acknowledge(self.consumer, message)

    def state(self) -> str:
        return f"{len(self.seen)} seen, {'running' if self._thread.is_alive() else 'ended'}"

    def close(self) -> None:
        self._stop.set()
        self._thread.join(20)


ROUNDS = 100
"""There and back."""

BURST = 2
"""Messages of a producer every 4 ms, or as fast as the machine can: consumers always have some in hand when they are moved, and
a slow machine has time left for moving them.
"""


class Load:
    """A producer that never stops, but waits when a thousand messages have no receipt: without that the client would throw
    away what it is given then, and say so in the answer only.
    """

    def __init__(self, client: pulsar.Client, topic: str, name: str, **options: Any) -> None:
        self.name = name
        self.sent = 0
        self._failed: Counter[str] = Counter()
        self._producer = client.create_producer(topic, block_if_queue_full=True, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.004):
            for _ in range(BURST):
                self._producer.send_async(f"{self.name}{self.sent}".encode(), self._told)
                self.sent += 1

    def _told(self, result: pulsar.Result, _id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            self._failed[str(result)] += 1

    def close(self) -> list[bytes]:
        """All that was sent, confirmed."""
        self._stop.set()
        self._thread.join(20)
        self._producer.flush()
        assert not self._failed, f"not all was published: {self._failed}"
        return [f"{self.name}{number}".encode() for number in range(self.sent)]


SILENT_S = 60
"""Who gets nothing new for so long will not get what is missing; how long all of it takes is the machine's affair."""


def settled(apps: "list[App] | list[AppProcess]", expected: list[bytes]) -> Counter[bytes]:
    """What the applications saw when as many different messages as were sent have come."""
    known, until = 0, time.monotonic() + SILENT_S
    while (found := len(seen := {one for app in apps for one in app.seen})) < len(expected):
        if found > known:
            known, until = found, time.monotonic() + SILENT_S
        if time.monotonic() > until:
            missing = sorted(set(expected) - seen)[:5]
            raise AssertionError(f"{len(expected) - found} of {len(expected)} messages do not come: {missing}")
        time.sleep(0.05)
    return Counter(message for app in apps for message in app.seen)


CONSUMER_PROCESS = """
import sys, pulsar
url, topic = sys.argv[1:]
client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
consumer = client.subscribe(topic, "s", replicate_subscription_state_enabled=True)
print("ready", flush=True)
while True:
    message = consumer.receive()
    consumer.acknowledge(message)
    print(message.data().decode(), flush=True)
"""


class AppProcess:
    """An application in a process of its own, with the client's own logger: with one of Python's, client 3.13 would abort."""

    def __init__(self, url: str, topic: str) -> None:
        words = [sys.executable, "-c", CONSUMER_PROCESS, url, topic]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.seen: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen.append(line.rstrip(b"\n"))

    def state(self) -> str:
        return f"{len(self.seen)} seen, exit code {self._process.poll()}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._thread.join(20)


@pytest.mark.timeout(600)  # each wait in it has its own limit; all of them together are long on a busy machine
def test_round_trips_under_load(shared: Pair) -> None:
    """Producers in both clusters never stop; the consumer follows again and again; nothing is lost, nothing comes twice."""
    consumer = shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True)
    round_trips(shared, App(consumer), ROUNDS // 4)


@pytest.mark.timeout(600)
def test_a_hundred_round_trips_under_load_by_topic_migrated(make_world: Callable[[str], World]) -> None:
    """The same where clients of the C++ family are sent TOPIC_MIGRATED, too."""
    pair = Pair(make_world("[broker]\ntopic_migrated_to_cpp = true\n"))
    try:
        round_trips(pair, AppProcess(pair.world["a"].url, pair.topic), ROUNDS)
    finally:
        pair.close()


def round_trips(pair: Pair, app: App | AppProcess, rounds: int) -> None:
    """There and back, so many times, under load."""
    loads = [Load(pair.client(name), pair.topic, name) for name in "ab"]
    pair.ready()
    reports = []
    for _ in range(rounds):
        for source, target in (("a", "b"), ("b", "a")):
            reports.append(pair.move(source, target))
            pair.followed(target)
    expected = [message for load in loads for message in load.close()]
    assert len(expected) > 2 * len(reports), "hardly a load"
    apps: Any = [app]
    try:
        settled(apps, expected)
    except AssertionError as missing:
        raise AssertionError(f"{missing}; {pair.told()}; consumer: {app.state()}") from None
    eventually(lambda: pair.world["a"].rest("GET", pair.path())[0]["backlog"] == 0, what="everything acknowledged")
    seen = settled(apps, expected)
    assert set(expected) - set(seen) == set(), "lost"
    assert {message: count for message, count in seen.items() if count > 1} == {}, "delivered twice"
    assert {(report.redelivered, report.skipped) for report in reports} == {(0, 0)}
    app.close()


def test_without_patience_no_more_comes_twice_than_is_reported(shared: Pair) -> None:
    """With no grace at all; nothing is lost in any case."""
    app = App(shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True))
    load = Load(shared.client("a"), shared.topic, "a")
    shared.ready()
    told = 0
    for _ in range(10):
        for source, target in (("a", "b"), ("b", "a")):
            told += shared.move(source, target, grace_ms=0).redelivered
            shared.followed(target)
    expected = load.close()
    settled([app], expected)
    eventually(lambda: shared.world["a"].rest("GET", shared.path())[0]["backlog"] == 0, what="everything acknowledged")
    seen = settled([app], expected)
    assert set(expected) - set(seen) == set(), "lost"
    assert sum(seen.values()) - len(seen) <= told
    app.close()


@pytest.mark.parametrize("kind", ["Shared", "KeyShared", "Failover"])
def test_several_consumers_follow(shared: Pair, kind: str) -> None:
    client = shared.client("a")
    apps = [
        App(
            client.subscribe(
                shared.topic,
                "s",
                consumer_type=getattr(pulsar.ConsumerType, kind),
                consumer_name=f"c{number}",
                replicate_subscription_state_enabled=True,
            )
        )
        for number in range(3)
    ]
    loads = [Load(shared.client("a"), shared.topic, "a", batching_enabled=kind != "KeyShared")]
    shared.ready()
    for _ in range(5):
        for source, target in (("a", "b"), ("b", "a")):
            shared.move(source, target)
            shared.followed(target, 3)
    expected = [message for load in loads for message in load.close()]
    seen = settled(apps, expected)
    assert seen == Counter(expected)
    for app in apps:
        app.close()


def test_all_partitions_move(shared: Pair) -> None:
    admin = f"/admin/v2/{shared.topic.replace('://', '/')}/partitions"
    shared.world["a"].rest("PUT", admin, 3)
    eventually(lambda: _partitions(shared, "b", admin) == 3)
    app = App(shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True))
    options = {"message_routing_mode": pulsar.PartitionsRoutingMode.RoundRobinDistribution, "batching_enabled": False}
    loads = [Load(shared.client(name), shared.topic, name, **options) for name in "ab"]
    shared.ready(topics=3)
    for _ in range(5):
        assert shared.move("a", "b").partitions == 3
        shared.move("b", "a")
    expected = [message for load in loads for message in load.close()]
    assert settled([app], expected) == Counter(expected)
    app.close()


def _partitions(pair: Pair, cluster: str, path: str) -> int:
    with contextlib.suppress(OSError):
        return int(pair.world[cluster].rest("GET", path)["partitions"])
    return 0


def test_whoever_subscribes_after_the_move_is_sent_after_it(shared: Pair) -> None:
    first = shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True)
    producer = shared.client("a").create_producer(shared.topic)
    producer.send(b"one")
    first.acknowledge(first.receive(60_000))
    shared.ready()
    first.close()
    shared.move("a", "b")
    producer.send(b"two")
    late = shared.client("a").subscribe(shared.topic, "s")
    assert late.receive(60_000).data() == b"two"
    assert shared.world["a"].rest("GET", shared.path())[0]["consumers"] == 0
    assert shared.world["b"].rest("GET", shared.path())[0]["consumers"] == 1


def test_what_was_received_and_not_acknowledged_comes_again_and_is_counted(shared: Pair) -> None:
    consumer = shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True)
    producer = shared.client("a").create_producer(shared.topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    messages = [consumer.receive(60_000) for _ in range(10)]
    for message in messages[:4] + messages[7:]:
        consumer.acknowledge(message)
    shared.ready()
    report = shared.move("a", "b", grace_ms=300)
    assert (report.redelivered, report.skipped) == (3, 0)
    assert [consumer.receive(60_000).data() for _ in range(3)] == [b"4", b"5", b"6"]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_topic_migrated_makes_clients_remember_the_way(make_world: Callable[[str], World]) -> None:
    """With `topic_migrated_to_cpp`: when the connection breaks they find the new cluster although their own is off.

    The consumer is a process of its own with the client's own logger: with one of Python's, client 3.13 would abort.
    """
    pair = Pair(make_world("[broker]\ntopic_migrated_to_cpp = true\n"))
    words = [sys.executable, "-c", CONSUMER_PROCESS, pair.world["a"].url, pair.topic]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            producer = pair.client("b").create_producer(pair.topic, batching_enabled=False)
            pair.ready()
            for number in range(10):
                pair.move(*(("b", "a") if number % 2 else ("a", "b")))
                producer.send(b"%d" % number)
                assert process.stdout.readline() == f"{number}\n"
            pair.move("a", "b")
            pair.followed("b")
            pair.world["a"].kill()
            pair.world["b"].kill()
            pair.world["b"].start()
            producer.send(b"after")
            assert process.stdout.readline() == "after\n"
        finally:
            process.kill()
            pair.close()


@pytest.mark.parametrize(
    ("client", "version", "expected"),
    [
        ("Pulsar-Java-v4.0.0", 21, [13, 68, 16]),
        ("Pulsar-CPP-v4.2.0", 20, [13, 16]),
        ("Pulsar-CPP-v2.8.0", 18, [14]),
    ],
)
def test_what_a_client_is_sent_that_comes_late(shared: Pair, client: str, version: int, expected: list[int]) -> None:
    """SUCCESS and TOPIC_MIGRATED for this consumer alone; what the client cannot bear is left out."""
    shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True)
    shared.ready()
    shared.move("a", "b")
    with raw(shared.world["a"]) as late:
        late.send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version=client, protocol_version=version)))
        assert late.answer().type == 3  # type: ignore[union-attr]
        late.send(
            pb.BaseCommand(
                type=4,
                subscribe=pb.CommandSubscribe(
                    topic=shared.topic, subscription="s", subType=0, consumer_id=7, request_id=1
                ),
            )
        )
        answers = [late.answer() for _ in expected]
        assert [answer.type for answer in answers if answer] == expected
        url = shared.world["b"].url
        for answer in answers:
            assert answer is not None
            if answer.type == 68:
                migrated = answer.topicMigrated
                assert (migrated.resource_id, migrated.resource_type, migrated.brokerServiceUrl) == (7, 1, url)
            elif answer.type == 16:
                assert answer.close_consumer.consumer_id == 7
                assert answer.close_consumer.assignedBrokerServiceUrl == url
            elif answer.type == 14:
                assert url in answer.error.message
        # The connection and its producers stay.
        late.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=shared.topic, producer_id=1, request_id=2)))
        assert late.answer().type == 17  # type: ignore[union-attr]


def test_cumulative_consumers(shared: Pair) -> None:
    """They are moved where ids are higher, and not where their client would drop messages; restarted ones go on."""
    consumer = shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True)
    app = App(consumer, lambda consumer, message: consumer.acknowledge_cumulative(message))
    producer = shared.client("a").create_producer(shared.topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    settled([app], [b""] * 10)
    shared.ready()
    shared.move("a", "b")
    for number in range(10, 20):
        producer.send(b"%d" % number)
    settled([app], [b""] * 20)
    with pytest.raises(MagnetarError, match="1 consumers acknowledge cumulatively.*--force"):
        shared.move("b", "a")
    app.close()
    consumer.close()
    shared.move("b", "a")
    again = App(
        shared.client("b").subscribe(shared.topic, "s"),
        lambda consumer, message: consumer.acknowledge_cumulative(message),
    )
    for number in range(20, 30):
        producer.send(b"%d" % number)
    assert settled([app, again], [b""] * 30) == Counter(b"%d" % number for number in range(30))
    again.close()


# --------------------------------------------------------------------------------------------------------------- faults


def test_a_fenced_source_that_is_killed_is_still_fenced(pair: Pair) -> None:
    consumer = pair.client("a").subscribe(pair.topic, "s", replicate_subscription_state_enabled=True)
    app = App(consumer)
    producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)
    settled([app], [b""] * 20)
    pair.ready()
    pair.replicators[0].pause()
    with pytest.raises(MagnetarError, match="b did not confirm"):
        pair.move("a", "b", timeout_s=1)
    assert pair.phase("a") == "active"
    fenced = pair.world["a"].rest("POST", pair.path("fence"), {"to": "b"})
    assert fenced[0]["phase"] in {"fencing", "fenced"}
    pair.world["a"].kill()
    pair.world["a"].start()
    eventually(lambda: pair.phase("a") == "fenced", what="a kill while fencing ends in it")
    status = pair.world["a"].rest("GET", "/geo/v1/status")
    assert [one["phase"] for one in status["failovers"]] == ["fenced"]
    producer.send(b"20")
    eventually(lambda: pair.world["a"].rest("GET", pair.path())[0]["consumers"] == 1, what="the consumer is back")
    assert len(app.seen) == 20, "dispatched while fenced"
    pair.replicators[0].resume()
    eventually(lambda: pair.world["a"].rest("GET", pair.path())[0]["links"]["b"]["lease"], what="a pipeline")
    assert pair.move("a", "b").skipped == 0
    assert settled([app], [b""] * 21) == Counter(b"%d" % number for number in range(21))
    pair.world["a"].kill()
    pair.world["a"].start()
    assert pair.phase("a") == "moved"
    app.close()


def test_a_target_that_is_killed_in_the_middle_and_the_source_is_put_back(pair: Pair) -> None:
    consumer = pair.client("a").subscribe(pair.topic, "s", replicate_subscription_state_enabled=True)
    app = App(consumer)
    producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
    producer.send(b"0")
    pair.ready()
    pair.replicators[0].pause()
    killer = threading.Timer(0.5, pair.world["b"].kill)
    killer.start()
    with pytest.raises(MagnetarError, match="b does not answer.*active in a as before"):
        pair.move("a", "b", timeout_s=20)
    killer.join()
    producer.send(b"1")
    assert settled([app], [b""] * 2) == Counter([b"0", b"1"])
    pair.replicators[0].resume()
    pair.world["b"].start()
    eventually(lambda: pair.world["a"].rest("GET", pair.path())[0]["links"]["b"]["lease"], what="a pipeline")
    pair.move("a", "b")
    producer.send(b"2")
    assert settled([app], [b""] * 3) == Counter([b"0", b"1", b"2"])
    app.close()


def test_a_target_that_dies_after_the_move_keeps_the_subscription(pair: Pair) -> None:
    consumer = pair.client("a").subscribe(pair.topic, "s", replicate_subscription_state_enabled=True)
    app = App(consumer)
    producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
    producer.send(b"0")
    settled([app], [b"0"])
    pair.ready()
    pair.move("a", "b")
    pair.world["b"].kill()
    producer.send(b"1")
    pair.world["b"].start()
    assert settled([app], [b""] * 2) == Counter([b"0", b"1"])
    assert pair.phase("a") == "moved"
    app.close()


def test_two_failovers_at_once_join(shared: Pair) -> None:
    app = App(shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True))
    load = Load(shared.client("a"), shared.topic, "a")
    shared.ready()
    reports: list[Report | MagnetarError] = []

    def move() -> None:
        try:
            reports.append(shared.move("a", "b"))
        except MagnetarError as error:
            reports.append(error)

    threads = [threading.Thread(target=move) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = {tuple(report.tokens.values()) for report in reports if isinstance(report, Report)}
    assert len(reports) == 3 and len(tokens) == 1, reports
    assert (shared.phase("a"), shared.phase("b")) == ("moved", "active")
    expected = load.close()
    assert settled([app], expected) == Counter(expected)
    app.close()


def test_a_command_that_is_killed_is_seen_and_repeated(shared: Pair) -> None:
    app = App(shared.client("a").subscribe(shared.topic, "s", replicate_subscription_state_enabled=True))
    producer = shared.client("a").create_producer(shared.topic, batching_enabled=False)
    producer.send(b"0")
    settled([app], [b"0"])
    shared.ready()
    shared.replicators[0].pause()
    words = [
        "failover",
        shared.topic,
        "s",
        "--from",
        "a",
        "--to",
        "b",
        "-c",
        str(shared.world.config),
        "--timeout",
        "60",
    ]
    command = subprocess.Popen([sys.executable, "-m", "magnetar", *words], stdout=subprocess.PIPE, text=True)
    eventually(lambda: shared.phase("a") == "fenced", what="fenced")
    command.kill()
    command.wait(20)
    seen = _magnetar("status", "-c", str(shared.world.config))
    assert "fenced, to be moved to b" in " ".join(seen.split())
    producer.send(b"1")
    shared.replicators[0].resume()
    done = _magnetar(*words)
    assert "0 messages re-delivered, 0 skipped" in done
    assert settled([app], [b""] * 2) == Counter([b"0", b"1"])
    app.close()


def _magnetar(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --------------------------------------------------------------------------------------------------- what is refused


def test_what_cannot_be_moved(shared: Pair) -> None:
    plain = shared.client("a").subscribe(shared.topic, "s")
    path = shared.path("fence")
    with pytest.raises(MagnetarError, match="cannot be moved: it is not replicated"):
        shared.move("a", "b")
    assert "is not replicated" in _refusal(shared, path, {"to": "b"})
    assert "in a already" in _refusal(shared, path, {"to": "a"})
    assert "does not know where clients reach cluster nowhere" in _refusal(shared, path, {"to": "nowhere"})
    assert "grace period" in _refusal(shared, path, {"to": "b", "grace_ms": 90_000})
    plain.close()
    other = shared.path("fence").replace("/s/", "/unknown/")
    assert "subscription unknown" in _refusal(shared, other, {"to": "b"})


def _refusal(pair: Pair, path: str, body: dict[str, object]) -> str:
    with pytest.raises(MagnetarError) as caught:
        AdminClient(pair.world["a"].web).post(path, body)
    return str(caught.value)


def test_a_one_way_link_moves_one_way(make_world: Callable[[str], World]) -> None:
    world = make_world('[[links]]\nfrom = "a"\nto = "b"\n')
    pair = Pair.__new__(Pair)
    pair.world, pair.replicators, pair._clients = world, [Replicator(world, "a", "b")], []
    pair.topic = "persistent://public/default/oneway"
    try:
        app = App(pair.client("a").subscribe(pair.topic, "s", replicate_subscription_state_enabled=True))
        producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
        producer.send(b"0")
        settled([app], [b"0"])
        pair.ready()
        pair.move("a", "b")
        producer.send(b"1")
        assert settled([app], [b""] * 2) == Counter([b"0", b"1"])
        with pytest.raises(MagnetarError, match="no link b -> a"):
            pair.move("b", "a")
        app.close()
    finally:
        pair.close()


def test_snapshot_mode_moves_exactly_too(make_world: Callable[[str], World]) -> None:
    """What was acknowledged out of order, and after the last snapshot, comes with the final state; and so back again."""
    pair = Pair(make_world('[subscriptions]\nmode = "snapshot"\n'))
    try:
        consumer = pair.client("a").subscribe(
            pair.topic, "s", pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True
        )
        producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
        pair.ready()
        row = pair.world["a"].rest("GET", pair.path())[0]
        assert (row["mode"], row["refused"]) == ("snapshot", "")
        for source, target in [("a", "b"), ("b", "a")] * 3:
            for number in range(10):
                producer.send(b"%d" % number)
            messages = {int(one.data()): one for one in (consumer.receive(60_000) for _ in range(10))}
            assert sorted(messages) == list(range(10))
            for number in messages.keys() - {2, 5, 6}:
                consumer.acknowledge(messages[number])
            report = pair.move(source, target, grace_ms=300)
            assert (report.redelivered, report.skipped) == (3, 0)
            pair.followed(target)
            again = [consumer.receive(60_000) for _ in range(3)]
            assert sorted(int(one.data()) for one in again) == [2, 5, 6]
            for one in again:
                consumer.acknowledge(one)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
    finally:
        pair.close()


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_the_prediction_says_exactly_what_the_target_lacks(make_world: Callable[[str], World], mode: str) -> None:
    """The link stands still: of ten messages that the target has, and of seven that it has not, some are acknowledged."""
    pair = Pair(make_world(f'[subscriptions]\nmode = "{mode}"\n'))
    try:
        consumer = pair.client("a").subscribe(
            pair.topic, "s", pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True
        )
        producer = pair.client("a").create_producer(pair.topic, batching_enabled=False)
        pair.ready()
        for number in range(10):
            producer.send(b"%d" % number)
        eventually(lambda: _row(pair, "b")["backlog"] == 10, what="ten messages in b")
        eventually(lambda: _row(pair, "a")["links"]["b"]["lag_messages"] == 0, what="b's confirmation in a")
        pair.replicators[0].pause()
        for number in range(10, 17):
            producer.send(b"%d" % number)
        messages = {int(one.data()): one for one in (consumer.receive(60_000) for _ in range(17))}
        acknowledged = {1, 2, 5, 7, 9, 11, 12, 16}
        for number in acknowledged:
            consumer.acknowledge(messages[number])
        eventually(lambda: _row(pair, "a")["backlog"] == 9, what="the acknowledgements")
        if mode == "exact":
            # What is in a marker has not come any further than what is not.
            eventually(lambda: _row(pair, "a")["unsent"] == 0, what="the marker")

        def unchanged() -> list[dict[str, Any]]:
            """Of both clusters what a failover changes; markers may go on being written."""
            keys = ("phase", "token", "given_up", "version", "consumers", "in_flight", "backlog")
            return [{key: _row(pair, name)[key] for key in keys} for name in "ab"]

        before = unchanged()
        assert _prediction(pair, "a", "b") == (7, len(acknowledged), 9)
        assert _prediction(pair, "a", "b") == (7, len(acknowledged), 9)
        assert unchanged() == before
        assert [(row["phase"], row["backlog"]) for row in before] == [("active", 9), ("active", 10)]
        pair.replicators[0].resume()
        report = pair.move("a", "b", grace_ms=300)
        assert (report.redelivered, report.skipped) == (9, 0)
        pair.followed("b")
        again = [consumer.receive(60_000) for _ in range(9)]
        assert {int(one.data()) for one in again} == messages.keys() - acknowledged
        assert _prediction(pair, "b", "a") == (0, 0, 9)
    finally:
        pair.close()


def _row(pair: Pair, cluster: str) -> dict[str, Any]:
    return dict(pair.world[cluster].rest("GET", pair.path())[0])


def _prediction(pair: Pair, source: str, target: str) -> tuple[int, int, int]:
    """Messages, acknowledgements, in flight: of `magnetar failover --dry-run --json`."""
    words = ["failover", pair.topic, "s", "--from", source, "--to", target, "--dry-run", "--json"]
    plan = json.loads(_magnetar(*words, "-c", str(pair.world.config)))
    return plan["messages"], plan["acknowledgements"], plan["in_flight"]


# ------------------------------------------------------------------------------------------------------------ unplanned


def test_a_killed_cluster_and_auto_cluster_failover(pair: Pair) -> None:
    """The client goes to b by itself; twice come only those whose acknowledgement had not reached b."""
    services = [pulsar.ServiceInfo(pair.world[name].url) for name in "ab"]
    failing_over = pulsar.AutoClusterFailover(services[0], services[1:], check_interval_ms=200)
    consumer = pair.client(failing_over).subscribe(pair.topic, "s", replicate_subscription_state_enabled=True)
    app = App(consumer)
    load = Load(pair.client("b"), pair.topic, "b")
    pair.ready()
    eventually(lambda: len(app.seen) > 500, what="messages before the kill")
    behind = _last_known(pair, "b", len(app.seen))
    pair.world["a"].kill()
    before = len(app.seen)
    eventually(lambda: len(app.seen) > before + 500, within_s=60, what="messages after the kill")
    expected = load.close()
    seen = settled([app], expected)
    assert set(expected) - set(seen) == set(), "lost"
    twice = [message for message, count in seen.items() if count > 1]
    assert max((seen[message] for message in twice), default=0) <= 2
    # Everything that comes twice was acknowledged after what b was last known to have of a.
    assert all(int(message[1:]) >= behind for message in twice), (behind, sorted(twice))
    app.close()


def _last_known(pair: Pair, cluster: str, at_least: int) -> int:
    """How many of the messages of b, in order, b's subscription knows to be acknowledged: all earlier ones stay acknowledged."""
    row = pair.world[cluster].rest("GET", pair.path("unacknowledged"))
    firsts = [first for origin, _, first, _ in row["runs"] if origin == "b"]
    return min(firsts, default=at_least)
