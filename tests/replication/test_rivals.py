"""Two clusters under one name, and writers that wake up late: what they send is refused, told, and nothing is lost."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.ids import NONE, Position
from magnetar.runtime.network.link_client import Entries, LinkClient, geo_position
from magnetar.wire import pulsar_pb2 as pb
from tests.replication.conftest import Mesh
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.pipelines import Pipeline
from tests.support.traffic import contents

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


class Rivals:
    """Clusters a and b that know each other, and somewhere else another cluster that is called a and knows the same b.

    Args:
        folder: for both installations.
        extra: more lines of the first one's file.
        rival_knows: which cluster of the first installation the rival's file calls b.
    """

    def __init__(self, folder: Path, extra: str = "", rival_knows: str = "b") -> None:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        world = World(folder / "one", ["a", "b"], extra).start()
        known = world[rival_knows]
        table = f'[clusters.b]\npulsar = "127.0.0.1:{known.pulsar_port}"\nhttp = "127.0.0.1:{known.http_port}"\nhere = false\n'
        token = f'[replication]\ntoken_file = "{folder / "one" / "data" / "link.token"}"\n'
        self.first = Mesh(world, Pipeline(world.config))
        other = World(folder / "two", ["a"], table + token).start()
        self.second = Mesh(other, Pipeline(other.config))
        self.third = world["b"]

    def publish(self, mesh: Mesh, topic: str, *data: bytes) -> None:
        """In the cluster a of one of them."""
        producer = mesh.client("a").create_producer(topic, batching_enabled=False)
        for one in data:
            producer.send(one)
        producer.close()

    def in_third(self, topic: str) -> list[bytes]:
        """What b holds."""
        return contents(self.first.client("b"), topic)

    def close(self) -> None:
        """End everything."""
        self.first.close()
        self.second.close()


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[Any]:
    """Make the installations; ended with the test."""
    made: list[Rivals] = []

    def make(extra: str = "", rival_knows: str = "b") -> Rivals:
        made.append(Rivals(tmp_path, extra, rival_knows))
        return made[-1]

    yield make
    for one in made:
        one.close()


def position(mark: pb.GeoPosition) -> Position:
    """As a tuple."""
    return Position(mark.ledger, mark.entry)


class Writer:
    """A writer that took its work from a source and may send it at any later time, as a Spark task that hung.

    Args:
        mesh: of its cluster a.
        topic: what.
        target: the broker that it sends to.
    """

    def __init__(self, mesh: Mesh, topic: str, target: BrokerProcess) -> None:
        self._source, self._target = mesh["a"], target
        with self.client(self._source) as source:
            (self.state,) = [one for one in source.topics("b").topics if one.topic == topic]
            self.uuid = source.hello.uuid
            last, after = position(self.state.last), position(self.state.cursor.s)
            self.pieces: list[tuple[Position, Entries]] = []
            while after < last:
                piece = source.read(topic, after, to="b", bytes_max=2000)
                self.pieces.append((after, piece))
                after = Position(piece.response.ledgers[-1], piece.response.entries[-1])

    def client(self, broker: BrokerProcess) -> LinkClient:
        """A new connection; the token is that of the broker's installation."""
        token = (self._target.config.parent / "data" / "link.token").read_bytes().strip()
        return LinkClient.connect(f"127.0.0.1:{broker.pulsar_port}", token)

    def greet(self) -> pb.CommandGeoWatermarksResponse:
        """Shake hands."""
        query = pb.GeoWatermarkQuery(
            topic=self.state.topic, incarnation=self.state.incarnation, partitions=0, last=self.state.last,
            start=self.state.cursor.c,
        )  # fmt: skip
        with self.client(self._target) as target:
            return target.watermarks("a", self.uuid, [query])

    def send(self) -> list[pb.CommandGeoAppendResponse]:
        """All of it, over a new connection; the answers in order."""
        answers: list[pb.CommandGeoAppendResponse] = []
        with self.client(self._target) as target:
            for p, piece in self.pieces:
                columns = piece.response
                append = pb.CommandGeoAppend(
                    request_id=0, topic=self.state.topic, source="a", uuid=self.uuid, p=geo_position(p),
                    incarnation=self.state.incarnation, gen=self.state.cursor.gen, ledgers=columns.ledgers,
                    entries=columns.entries, first_indexes=columns.first_indexes, counts=columns.counts, sizes=columns.sizes,
                )  # fmt: skip
                target.append_async(append, [piece.payload])
            while target.in_flight:
                answers += [one.response for one in target.poll(10_000)]
        return answers

    def confirm(self) -> bool:
        """Tell the source that it is done; whether it was believed."""
        done = pb.GeoCursor(c=self.state.last, s=self.state.last, gen=self.state.cursor.gen)
        commit = pb.GeoCommitTopic(topic=self.state.topic, incarnation=self.state.incarnation, cursor=done)
        with self.client(self._source) as source:
            return not source.commit("b", [commit]).ignored


def uuid_of(mesh: Mesh) -> str:
    """Of the cluster a of one of them."""
    return str(mesh["a"].rest("GET", "/geo/v1/status")["uuid"])


def link_to_b(mesh: Mesh) -> Any:
    """How the cluster a of one of them sees its link."""
    return mesh["a"].rest("GET", "/geo/v1/links/b")


def test_a_second_cluster_of_a_name_is_refused_and_told(rivals: Any, topic: str) -> None:
    both: Rivals = rivals("[broker]\nidentity_silence_ms = 600_000\n")
    both.publish(both.first, topic, b"true 0")
    both.first.pipeline.start()
    eventually(lambda: both.in_third(topic) == [b"true 0"], within_s=180, every_s=0.2)
    both.publish(both.second, topic, b"rival 0", b"rival 1")
    second = Pipeline(both.second.world.config, "--once", "--link", "a:b", name="rival").start(wait=False)
    assert second.wait() == 1
    told = second.output()
    assert "two clusters are called a" in told
    assert uuid_of(both.first) in told
    assert uuid_of(both.second) in told
    assert "Traceback" not in told + second.log.read_text()
    # Nothing of it is in b, nothing of it is lost: its link waits with everything.
    assert both.in_third(topic) == [b"true 0"]
    assert link_to_b(both.second)["lag_messages"] == 2
    # The true one goes on.
    both.publish(both.first, topic, b"true 1")
    eventually(lambda: both.in_third(topic) == [b"true 0", b"true 1"], within_s=180, every_s=0.2)
    assert both.third.rest("GET", "/geo/v1/status")["incoming"]["a"]["uuid"] == uuid_of(both.first)


def test_a_name_that_was_silent_goes_to_the_other_and_the_first_keeps_what_it_has(rivals: Any, topic: str) -> None:
    both: Rivals = rivals("[broker]\nidentity_silence_ms = 1000\n")
    both.publish(both.first, topic, b"true 0")
    first = Writer(both.first, topic, both.third)
    assert not first.greet().blocked
    assert not any(answer.refused or answer.blocked for answer in first.send())
    # Nobody speaks for the first one any more. The other's ledgers are younger, so it is taken for the first one born again.
    both.publish(both.second, topic, b"rival 0")
    second = Writer(both.second, topic, both.third)
    eventually(lambda: not second.greet().blocked, within_s=30, every_s=0.2)
    assert not any(answer.refused or answer.blocked for answer in second.send())
    assert both.in_third(topic) == [b"true 0", b"rival 0"]
    both.publish(both.first, topic, b"true 1")
    late = Writer(both.first, topic, both.third)
    refused = [late.greet(), *late.send()]
    assert {answer.blocked for answer in refused} == {"identity"}
    for answer in refused:
        assert f"{uuid_of(both.first)} had the name a until" in answer.reason
        assert f"it is {uuid_of(both.second)} now: give one of them another name" in answer.reason
    assert both.in_third(topic) == [b"true 0", b"rival 0"]
    assert link_to_b(both.first)["lag_messages"] == 2  # this test's writers confirm nothing: all is held


def test_two_clusters_of_a_name_linked_to_each_other(rivals: Any, topic: str) -> None:
    both: Rivals = rivals(rival_knows="a")
    both.publish(both.second, topic, b"rival 0")
    second = Pipeline(both.second.world.config, "--once", "--link", "a:b", name="rival").start(wait=False)
    assert second.wait() == 1
    told = second.output()
    assert "two clusters are called a" in told
    assert uuid_of(both.first) in told
    assert uuid_of(both.second) in told
    assert link_to_b(both.second)["lag_messages"] == 1
    assert topic not in both.first["a"].rest("GET", "/admin/v2/persistent/public/default")


def test_a_zombie_that_repeats_an_old_range_stores_nothing(make_mesh: Any, topic: str) -> None:
    mesh: Mesh = make_mesh(["a", "b"])
    first = [b"%d " % n * 50 for n in range(20)]
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for data in first:
        producer.send(data)
    zombie = Writer(mesh, topic, mesh["b"])
    assert len(zombie.pieces) > 1
    mesh.pipeline.start()
    eventually(lambda: _held(mesh, topic) == first, within_s=180, every_s=0.2)
    # Behind the pipeline, while it goes on: everything old again, twice, and a confirmation of an old position.
    producer.send(b"new 0")
    for _ in range(2):
        answers = zombie.send()
        assert [answer.duplicates for answer in answers] == [len(piece.response.sizes) for _, piece in zombie.pieces]
        assert all(position(answer.persisted) >= position(zombie.state.last) for answer in answers)
    producer.send(b"new 1")
    eventually(lambda: len(_held(mesh, topic)) >= 22, within_s=180, every_s=0.2)
    zombie.confirm()
    producer.send(b"new 2")
    expected = [*first, b"new 0", b"new 1", b"new 2"]
    eventually(lambda: len(_held(mesh, topic)) >= 23, within_s=180, every_s=0.2)
    assert _held(mesh, topic) == expected
    link = mesh["a"].rest("GET", "/geo/v1/links/b")
    eventually(
        lambda: mesh["a"].rest("GET", "/geo/v1/links/b")["lag_messages"] == 0, within_s=180, every_s=0.2, what=link
    )


def test_a_zombie_from_before_a_lost_disk_leaves_no_hole(make_mesh: Any, topic: str) -> None:
    mesh: Mesh = make_mesh(["a", "b"])
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    first = [b"%d " % n * 50 for n in range(20)]
    for data in first[:10]:
        producer.send(data)
    before = Writer(mesh, topic, mesh["b"])
    assert not before.greet().blocked
    before.send()
    assert before.confirm()
    assert _held(mesh, topic) == first[:10]
    for data in first[10:]:
        producer.send(data)
    zombie = Writer(mesh, topic, mesh["b"])
    assert zombie.pieces[0][0] != NONE, "it has only what comes behind the first ten"
    mesh["b"].kill()
    shutil.rmtree(mesh.world.folder / "data" / "b")
    mesh["b"].start()
    # b knows nothing of a now: what would begin in the middle is refused, before it has shaken hands and after.
    assert all(answer.retry for answer in zombie.send())
    (mark,) = zombie.greet().topics
    assert position(mark.persisted) == NONE
    assert all(answer.refused for answer in zombie.send())
    assert Pipeline(mesh.world.config, "--once", name="after").start(wait=False).wait() == 0
    assert _held(mesh, topic) == first
    # It confirms the generation of before the loss: ignored. What it sends is there already.
    assert not zombie.confirm()
    assert all(answer.duplicates for answer in zombie.send())
    assert _held(mesh, topic) == first


def _held(mesh: Mesh, topic: str) -> list[bytes]:
    return contents(mesh.client("b"), topic)
