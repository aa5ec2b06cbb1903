"""`verify` on a real session: planted faults are found, and nothing else is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.errors import MagnetarError
from magnetar.spark.verify import Findings, VerifyResult, verify
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.spark.fakes import TOKEN, Entry, FakeCluster, Position, entry_bytes

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
    assert [identity.index for _, identity in found.examples["reordered"] if identity.cluster == "a"] == [6]
    assert found.examples["missing"] == [(T, ("a", lost.incarnation, 4))]


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
