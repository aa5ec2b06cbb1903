"""Replicated subscriptions between real brokers, with the official client; replicators carry the links."""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.replicated_subscriptions import (
    TYPES,
    backlog,
    batch_indexes_and_cumulative_acknowledgements,
    consume,
    nothing,
    stats,
    take,
    until,
)
from tests.support.replicator import Replicator

pytestmark = pytest.mark.e2e


class Mesh:
    """Real brokers, replicators on their links, clients."""

    def __init__(self, world: World, links: list[str]) -> None:
        self.world = world.start()
        self.replicators = [Replicator(world, *link) for link in links]
        self._clients: dict[str, pulsar.Client] = {}

    def __getitem__(self, cluster: str) -> BrokerProcess:
        return self.world[cluster]

    def client(self, cluster: str) -> pulsar.Client:
        """An official client of one cluster."""
        if cluster not in self._clients:
            logger = logging.getLogger("pulsar-client")
            logger.setLevel(logging.CRITICAL)
            self._clients[cluster] = pulsar.Client(self[cluster].url, operation_timeout_seconds=20, logger=logger)
        return self._clients[cluster]

    def close(self) -> None:
        """End everything."""
        for client in self._clients.values():
            client.close()
        for replicator in self.replicators:
            replicator.close()
        self.world.close()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Clusters a, b, c, all linked."""
    mesh = Mesh(World(tmp_path_factory.mktemp("mesh"), ["a", "b", "c"]), ["ab", "ac", "ba", "bc", "ca", "cb"])
    yield mesh
    mesh.close()


@pytest.fixture
def make_mesh(tmp_path: Path) -> Iterator[Callable[..., Mesh]]:
    """A mesh of this test alone."""
    made: list[Mesh] = []

    def make(clusters: str, links: list[str], extra: str = "") -> Mesh:
        extra += "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\n' for a, b in links)
        made.append(Mesh(World(tmp_path, list(clusters), extra), links))
        return made[-1]

    yield make
    for mesh in made:
        mesh.close()


@pytest.fixture
def topic() -> str:
    """A topic of this test alone."""
    return f"persistent://public/default/s-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("kind", list(TYPES))
def test_a_consumer_elsewhere_gets_exactly_the_rest(mesh: Mesh, topic: str, kind: str) -> None:
    here = consume(mesh, "a", topic, kind)
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(20):
        producer.send(b"%d" % n, partition_key=str(n))
    until(mesh, "b", topic, 20)  # else 13 of them pass for what is left
    for message in take(here, 20):
        if int(message.data()) % 3 == 0:
            here.acknowledge(message)
    until(mesh, "b", topic, 13)
    there = consume(mesh, "b", topic, kind)
    assert sorted(int(m.data()) for m in take(there, 13)) == [n for n in range(20) if n % 3]
    assert nothing(there)
    assert stats(mesh, "b", topic)["isReplicated"]
    here.close()
    there.close()


def test_batch_indexes_and_cumulative_acknowledgements(mesh: Mesh, topic: str) -> None:
    batch_indexes_and_cumulative_acknowledgements(mesh, topic)


def test_seek_and_unsubscribe(mesh: Mesh, topic: str) -> None:
    here = consume(mesh, "a", topic)
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(6):
        producer.send(b"%d" % n)
    messages = take(here, 6)
    here.acknowledge_cumulative(messages[-1])
    until(mesh, "b", topic, 0)
    there = consume(mesh, "b", topic)
    here.seek(pulsar.MessageId.earliest)
    until(mesh, "b", topic, 6)
    # Consumers there were told to come back, and start over.
    assert [m.data() for m in take(there, 6)] == [b"%d" % n for n in range(6)]
    there.unsubscribe()
    for message in take(here, 6):
        here.acknowledge(message)
    until(mesh, "c", topic, 0)
    assert backlog(mesh, "b", topic) == -1
    here.close()


def test_a_partitioned_topic(mesh: Mesh, topic: str) -> None:
    mesh["a"].rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 3)
    here = consume(mesh, "a", topic, "shared")
    producer = mesh.client("a").create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for n in range(30):
        producer.send(b"%d" % n)
    parts = [f"{topic}-partition-{number}" for number in range(3)]

    def until_left(messages: int) -> None:
        def left() -> bool:
            found = [backlog(mesh, "b", part) for part in parts]
            return min(found) >= 0 and sum(found) == messages

        eventually(left, within_s=60, what=f"{messages} left in b")

    until_left(30)  # else 10 of them pass for what is left
    for message in take(here, 30):
        if int(message.data()) >= 10:
            here.acknowledge(message)
    until_left(10)
    there = consume(mesh, "b", topic, "shared")
    assert sorted(int(m.data()) for m in take(there, 10)) == list(range(10))
    status = mesh["b"].rest("GET", f"/admin/v2/{topic.replace('://', '/')}/subscription/s/replicatedSubscriptionStatus")
    assert status == dict.fromkeys(parts, True)
    here.close()
    there.close()


def in_mode(mesh: Mesh, mode: str, topic: str) -> str:
    """A topic like this one, in a namespace of that mode in all clusters."""
    namespace = f"public/{mode}-{uuid.uuid4().hex[:8]}"
    for name in "abc":
        path = f"/admin/v2/namespaces/{namespace}"
        mesh[name].rest("PUT", path, {"replication_clusters": ["a", "b", "c"]})
        mesh[name].rest("POST", f"/geo/v1/namespaces/{namespace}/subscriptionMode", mode)
    return topic.replace("public/default", namespace)


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_markers_are_seen_by_nobody(mesh: Mesh, topic: str, mode: str) -> None:
    topic = in_mode(mesh, mode, topic)
    here = consume(mesh, "a", topic)
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    here.acknowledge(take(here, 1)[0])
    until(mesh, "b", topic, 0)
    for cluster in "ab":
        reader = mesh.client(cluster).create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(60_000).data() == b"0"
        assert not reader.has_message_available()
        reader.close()
        internal = mesh[cluster].rest("GET", f"/admin/v2/{topic.replace('://', '/')}/internalStats")
        cursor = internal["cursors"]["s"]
        eventually(
            lambda cluster=cluster: (
                (mesh[cluster].rest("GET", f"/admin/v2/{topic.replace('://', '/')}/internalStats"))["cursors"]["s"][
                    "numberOfEntriesSinceFirstNotAckedMessage"
                ]
                == 0
            )
        )
        assert cursor["replicatedState"]["mode"] == mode
        state = list(mesh[cluster].rest("GET", f"/geo/v1/subscriptions?topic={topic}"))
        assert [(one["subscription"], one["backlog"]) for one in state] == [("s", 0)]
    here.close()


def run_over(mesh: Mesh, topic: str, restart: Callable[[], None]) -> None:
    """Acknowledge some in a, have a broker killed, go on in b."""
    here = consume(mesh, "a", topic, "shared")
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(30):
        producer.send(b"%d" % n)
    until(mesh, "b", topic, 30)  # else 15 of them pass for what is left
    for message in take(here, 30):
        if int(message.data()) % 2:
            here.acknowledge(message)
    until(mesh, "b", topic, 15)
    restart()
    until(mesh, "b", topic, 15)
    there = consume(mesh, "b", topic, "shared")
    messages = take(there, 15)
    assert sorted(int(m.data()) for m in messages) == list(range(0, 30, 2))
    for message in messages[:5]:
        there.acknowledge(message)
    until(mesh, "a", topic, 10)


def test_power_cuts_of_either_side(make_mesh: Callable[..., Mesh], topic: str) -> None:
    mesh = make_mesh("ab", ["ab", "ba"])

    def restart() -> None:
        for name in "ab":
            mesh[name].kill()
            mesh[name].start()

    run_over(mesh, topic, restart)


def test_one_way_and_a_dead_cluster(make_mesh: Callable[..., Mesh], topic: str) -> None:
    mesh = make_mesh("abc", ["ab", "ac", "ca"])
    here = consume(mesh, "a", topic, "shared")
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    until(mesh, "b", topic, 10)
    until(mesh, "c", topic, 10)
    mesh["c"].kill()
    for message in take(here, 10):
        if int(message.data()) < 7:
            here.acknowledge(message)
    until(mesh, "b", topic, 3)
    mesh["c"].start()
    until(mesh, "c", topic, 3)


def test_snapshot_mode(make_mesh: Callable[..., Mesh], topic: str) -> None:
    mesh = make_mesh("ab", ["ab", "ba"], '[subscriptions]\nmode = "snapshot"\nsnapshot_interval_ms = 300\n')
    here = consume(mesh, "a", topic)
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(20):
        producer.send(b"%d" % n)
    here.acknowledge_cumulative(take(here, 20)[-1])
    until(mesh, "b", topic, 0)
    (state,) = mesh["b"].rest("GET", "/geo/v1/subscriptions")
    assert state["mode"] == "snapshot"


class Publishing:
    """A producer on a thread of its own that does not stop by itself; its messages are the numbers from 0 on."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.sent = 0
        self._producer = client.create_producer(topic, batching_enabled=False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            self._producer.send(b"%d" % self.sent)
            self.sent += 1

    def close(self) -> int:
        """Stop; how many were sent."""
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.sent


@pytest.mark.parametrize(("first", "then"), [("snapshot", "exact"), ("exact", "snapshot")])
def test_the_mode_changes_under_load(make_mesh: Callable[..., Mesh], topic: str, first: str, then: str) -> None:
    """Somebody publishes and somebody acknowledges before, during and after the change in either cluster."""
    mesh = make_mesh("ab", ["ab", "ba"], f'[subscriptions]\nmode = "{first}"\nsnapshot_interval_ms = 300\n')
    here = consume(mesh, "a", topic, "shared")
    load = Publishing(mesh.client("a"), topic)
    left: dict[int, pulsar.Message] = {}
    taken = 0

    def consume_to(count: int) -> None:
        """All but every fifth are acknowledged."""
        nonlocal taken
        for message in take(here, count - taken):
            taken += 1
            number = int(message.data())
            if number % 5:
                here.acknowledge(message)
            else:
                left[number] = message

    consume_to(50)
    for name in "ab":
        before = load.sent
        mesh[name].rest("POST", "/geo/v1/namespaces/public/default/subscriptionMode", then)
        consume_to(taken + 50)
        assert load.sent > before, "nothing was published during the change"
    consume_to(taken + 50)
    count = load.close()
    consume_to(count)
    assert sorted(left) == list(range(0, count, 5))
    until(mesh, "a", topic, len(left))
    if then == "exact":
        # Also what snapshot mode could not tell: it lay behind holes.
        until(mesh, "b", topic, len(left))
        there = consume(mesh, "b", topic, "shared")
        assert {int(message.data()) for message in take(there, len(left))} == left.keys()
        assert nothing(there)
        there.close()
    for message in left.values():
        here.acknowledge(message)
    until(mesh, "b", topic, 0)
    for name in "ab":
        (state,) = mesh[name].rest("GET", f"/geo/v1/subscriptions?topic={topic}")
        assert (state["mode"], state["backlog"]) == (then, 0)
