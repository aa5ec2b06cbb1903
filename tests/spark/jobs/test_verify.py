"""`verify` on a real session: planted faults are found, and nothing else is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.config import load
from magnetar.core.errors import MagnetarError
from magnetar.jobs.verify import Findings, VerifyProgress, VerifyResult, verify, verify_config
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.clients.conftest import connect
from tests.spark.fakes import TOKEN, Entry, FakeCluster, Position, entry_bytes
from tests.support.brokers import BrokerProcess, World
from tests.support.planting import KINDS, LyingLink

pytestmark = pytest.mark.spark

T = "persistent://public/default/t"
MESH = [(x, y) for x in "abc" for y in "abc" if x != y]


def copy(target: FakeCluster, entry: Entry, topic: str) -> None:
    """Hold a copy of another cluster's entry, as a link would."""
    held = target.topics[topic]
    place = Position(held.ledger, held.log[-1].position.entry + 1 if held.log else 0)
    data = metadata.with_replicated_from(entry.data, entry.origin)
    flags = int(EntryFlags.REPLICATED) | entry.flags
    held.log.append(
        Entry(place, entry.origin, entry.incarnation, entry.first_index, entry.count, flags, 0, data, entry.only_for)
    )


def filled(clusters: list[FakeCluster], topic: str = T, count: int = 12) -> dict[str, list[Entry]]:
    """Each cluster publishes, each holds everything of all."""
    for cluster in clusters:
        cluster.create(topic)
        for number in range(count):
            data = entry_bytes(50, producer=cluster.name, sequence=number)
            cluster.publish(topic, data, count=1 + number % 2)
    own = {cluster.name: list(cluster.topics[topic].log) for cluster in clusters}
    for cluster in clusters:
        for name, entries in own.items():
            if name != cluster.name:
                for entry in entries:
                    copy(cluster, entry, topic)
    return own


@pytest.fixture
def compare(spark: Any, tmp_path: Path) -> Callable[..., VerifyResult]:
    token = tmp_path / "token"
    token.write_text(TOKEN)

    def run(
        clusters: list[FakeCluster], *, links: list[tuple[str, str]] = MESH, topic: str = T, partitions: int = 0
    ) -> VerifyResult:
        addresses = {cluster.name: cluster.address for cluster in clusters}
        return verify(spark, topic, addresses=addresses, links=links, token_file=token, partitions=partitions)

    return run


Start = Callable[..., list[FakeCluster]]


def test_a_clean_topic_with_partitions(clusters: Start, compare: Callable[..., VerifyResult]) -> None:
    mesh = clusters("a", "b", "c")
    for number in range(2):
        filled(mesh, f"{T}-partition-{number}")
    result = compare(mesh, partitions=2)
    assert result.clean
    assert result.messages == 2 * 3 * 18
    assert {name: findings.messages for name, findings in result.clusters.items()} == dict.fromkeys("abc", 108)


def test_every_kind_of_fault_is_found_where_it_is(clusters: Start, compare: Callable[..., VerifyResult]) -> None:
    mesh = _, b, _ = clusters("a", "b", "c")
    own = filled(list(mesh))
    log = b.topics[T].log

    def at(origin: str, index: int) -> int:
        return next(n for n, entry in enumerate(log) if (entry.origin, entry.first_index) == (origin, index))

    del log[at("a", 4)]
    copy(b, own["c"][0], T)  # a second copy, which also stands behind later ones
    one, other = at("a", 6), at("a", 7)
    log[one], log[other] = log[other], log[one]
    broken = log[at("a", 10)]
    broken.data = metadata.with_replicated_from(entry_bytes(50, producer="x", sequence=9), "a")
    for number, entry in enumerate(log):
        entry.position = Position(entry.position.ledger, number)
    result = compare(list(mesh))
    assert result.clusters["a"].clean
    assert result.clusters["c"].clean
    found = result.clusters["b"]
    assert not found.clean
    lost = next(entry for entry in own["a"] if entry.first_index == 4)
    assert found.missing == lost.count
    assert found.missing_before_first == 0
    assert found.duplicated == own["c"][0].count
    assert found.altered == next(entry for entry in own["a"] if entry.first_index == 10).count
    assert [one.identity.index for one in found.examples["reordered"]] == [6]
    assert [(one.topic, one.identity) for one in found.examples["missing"]] == [(T, ("a", lost.incarnation, 4))]


def test_what_was_not_meant_for_a_cluster_is_not_missed(clusters: Start, compare: Callable[..., VerifyResult]) -> None:
    mesh = a, b, _ = clusters("a", "b", "c")
    for cluster in mesh:
        cluster.create(T)
    described = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, replicate_to=["b"])
    restricted = metadata.build(described, b"only for b")
    a.publish(T, restricted, only_for=("b",))
    copy(b, a.topics[T].log[0], T)
    assert compare(list(mesh)).clean
    b.topics[T].log.clear()
    result = compare(list(mesh))
    assert result.clusters["b"].missing == 1
    assert result.clusters["c"] == Findings()
    a.publish(T, entry_bytes(5))  # a one-way link a -> b: c is not missing it
    copy(b, a.topics[T].log[0], T)
    copy(b, a.topics[T].log[1], T)
    assert compare(list(mesh), links=[("a", "b")]).clean


def test_a_late_joiner_misses_what_lies_before_its_first(clusters: Start, compare: Callable[..., VerifyResult]) -> None:
    mesh = clusters("a", "b", "c")
    filled(mesh)
    log = mesh[2].topics[T].log
    log[:] = [entry for entry in log if entry.origin != "a" or entry.first_index >= 6]
    found = compare(mesh).clusters["c"]
    assert found.missing == found.missing_before_first == 6


def test_a_cluster_that_is_down_is_one_line(clusters: Start, compare: Callable[..., VerifyResult]) -> None:
    mesh = clusters("a", "b")
    filled(mesh)
    mesh[1].stop()
    with pytest.raises(MagnetarError, match="refused") as caught:
        compare(mesh)
    assert "\n" not in str(caught.value)


def test_faults_in_the_logs_of_real_brokers(spark: Any, tmp_path: Path) -> None:
    """Partitions, several messages an entry, several parts a log; the faults are written over the links' protocol."""
    world = World(tmp_path, ["west", "east"], "[broker]\nledger_entries_max = 100\n").start()
    try:
        name = "persistent://public/default/planted"
        world["west"].rest("PUT", "/admin/v2/persistent/public/default/planted/partitions", 2)
        (token,) = tmp_path.rglob("link.token")
        link = LyingLink(world["west"], world["east"], token)
        planted = []
        for number in range(2):
            publish_entries(world["west"], f"{name}-partition-{number}", 400)
            planted.append(link.copy(f"{name}-partition-{number}", 400, each=3, seed=number, partitions=2))
        link.close()
        steps: list[VerifyProgress] = []
        result = verify_config(spark, load(world.config), "planted", examples_max=5, report=steps.append)
        assert (result.partitions, result.messages) == (2, 2 * 400 * 5)
        assert result.clusters["west"] == Findings(messages=2 * 400 * 5)
        east = result.clusters["east"]
        for kind in KINDS:
            assert getattr(east, kind) == sum(one.messages[kind] for one in planted) == 2 * 3 * 5
            first = [(0, index) for index in sorted(planted[0].indexes[kind])]
            first += [(1, index) for index in sorted(planted[1].indexes[kind])]
            shown = [(int(one.topic[-1]), one.identity.index) for one in east.examples[kind]]
            assert shown == first[:5]
        assert east.messages == result.messages  # as many doubled as missing
        assert (east.missing_before_first, east.missing_after_last) == (0, 0)
        reading = [(step.done, step.total) for step in steps if step.step == "reading"]
        assert reading[0] == (0, 1600)
        assert steps[-1].step == "comparing" and steps[-1].done == steps[-1].total == 2
        assert steps[-1].messages == 2 * result.messages
    finally:
        world.close()


def publish_entries(broker: BrokerProcess, topic: str, entries: int) -> None:
    """Entries of five messages each."""
    client = connect(broker)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=5,
        batching_max_publish_delay_ms=10_000,
        block_if_queue_full=True,
    )
    for number in range(entries * 5):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    client.close()
