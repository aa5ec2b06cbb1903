"""The blocking link client carries a topic from one real broker to another, by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.runtime.network.link_client import Entries, LinkClient, LinkDown, LinkRefused, geo_position
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.clients.conftest import connect
from tests.support.brokers import World

pytestmark = pytest.mark.e2e


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, ["aa", "bb"], '[namespaces."public/default"]\nclusters = ["aa", "bb"]\n').start()
    yield world
    world.close()


def link(world: World, cluster: str) -> LinkClient:
    (token,) = world.folder.rglob("link.token")
    return LinkClient.connect(f"127.0.0.1:{world[cluster].pulsar_port}", token.read_bytes().strip())


def read_all(client: LinkClient, topic: str, last: Position, **options: object) -> list[Entries]:
    """In small pieces, so that there are several."""
    pieces: list[Entries] = []
    after = NONE
    while after < last:
        pieces.append(client.read(topic, after, bytes_max=3000, **options))
        end = pieces[-1].response.end
        after = Position(end.ledger, end.entry)
    return pieces


def an_append(piece: Entries, state: pb.GeoTopicState, uuid: str, p: Position) -> pb.CommandGeoAppend:
    columns = piece.response
    return pb.CommandGeoAppend(
        request_id=0,
        topic=state.topic,
        source="aa",
        uuid=uuid,
        incarnation=state.incarnation,
        gen=state.cursor.gen,
        p=geo_position(p),
        ledgers=columns.ledgers,
        entries=columns.entries,
        first_indexes=columns.first_indexes,
        counts=columns.counts,
        sizes=columns.sizes,
    )


def bodies(pieces: list[Entries]) -> list[bytes]:
    """Each entry's bytes, without what replication changes."""
    found = []
    for piece in pieces:
        at = 0
        for size in piece.response.sizes:
            found.append(metadata.without_replication(piece.payload[at : at + size]))
            at += size
    return found


def test_a_topic_is_carried_over_once_in_order(world):
    user = connect(world["aa"])
    producer = user.create_producer("carried")
    for number in range(50):
        producer.send(b"%d " % number * 100, properties={"number": str(number)})
    with link(world, "aa") as source, link(world, "bb") as target:
        assert (source.hello.cluster, target.hello.cluster) == ("aa", "bb")
        uuid = source.hello.uuid
        (state,) = source.topics("bb").topics
        last = Position(state.last.ledger, state.last.entry)
        query = pb.GeoWatermarkQuery(
            topic=state.topic, incarnation=state.incarnation, partitions=0, last=state.last, start=state.cursor.c
        )
        (before,) = target.watermarks("aa", uuid, [query]).topics
        assert Position(before.persisted.ledger, before.persisted.entry) == NONE

        pieces = read_all(source, state.topic, last, to="bb")
        assert len(pieces) > 3
        for _ in range(2):  # all of it twice: a zombie's range is answered, not stored again
            p = NONE
            for piece in pieces:
                target.append_async(an_append(piece, state, uuid, p), [piece.payload])
                p = Position(piece.response.ledgers[-1], piece.response.entries[-1])
            answers = []
            while target.in_flight or not answers:
                answers += target.poll(10_000)
            assert not any(answer.response.refused or answer.response.blocked or answer.refusal for answer in answers)
            persisted = answers[-1].response.persisted
            assert Position(persisted.ledger, persisted.entry) == last

        cursor = pb.GeoCursor(c=geo_position(last), s=geo_position(last), gen=state.cursor.gen)
        done = pb.GeoCommitTopic(topic=state.topic, incarnation=state.incarnation, cursor=cursor)
        assert not source.commit("bb", [done]).ignored
        (after,) = [one for one in source.topics("bb").topics if one.topic == state.topic]
        assert after.cursor.c == geo_position(last)
        assert after.pending_entries == 0

        (there,) = target.topics("aa").topics
        copies = read_all(target, state.topic, Position(there.last.ledger, there.last.entry))
        assert bodies(copies) == bodies(pieces)
        assert [index for piece in copies for index in piece.response.first_indexes] == list(range(50))
        assert {origin for piece in copies for origin in piece.response.origins} == {"aa"}
    user.close()


def test_refusals_and_the_end(world):
    address = f"127.0.0.1:{world['aa'].pulsar_port}"
    with pytest.raises(LinkRefused, match="link token") as caught:
        LinkClient.connect(address, "guessed")
    assert caught.value.code is ErrorCode.AUTHENTICATION
    with link(world, "aa") as client:
        with pytest.raises(LinkRefused):
            client.read("persistent://public/default/nowhere")
        assert client.status().gap == 0
        world["aa"].kill()
        with pytest.raises(LinkDown):
            client.status()
    with pytest.raises(LinkDown):
        LinkClient.connect(address, "whatever", timeout_ms=2000)
