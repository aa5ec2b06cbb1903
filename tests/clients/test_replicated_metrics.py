"""What `/metrics` says of replicated subscriptions: real brokers, from the machine that counts to the line of text."""

import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.runtime.network.link_client import LinkClient, geo_position
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import CREATION, AckedSet, AckedSetsMarker
from magnetar.wire.markers import MarkerType, build_marker
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually

pytestmark = pytest.mark.e2e

TOPIC = "persistent://public/default/measured"
PREFIX = "magnetar_replicated_subscription"
LIFE = 1_700_000_000_000
"""Incarnation of the topic in a cluster that does not run: the test speaks for it."""


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str, str], World]]:
    made: list[World] = []

    def make(names: str, extra: str) -> World:
        made.append(World(tmp_path, list(names), extra))
        return made[-1]

    yield make
    for world in made:
        world.close()


def scrape(broker: BrokerProcess) -> list[Sample]:
    """Every sample."""
    with urllib.request.urlopen(broker.web + "/metrics", timeout=20) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return [sample for family in families for sample in family.samples]


def of_subscription(broker: BrokerProcess, name: str = "s") -> dict[str, float]:
    """What is told of one subscription, without the prefix and with the other cluster, if the line has one."""
    labels = {"cluster": broker.cluster, "namespace": "public/default", "topic": TOPIC, "subscription": name}
    return {
        f"{sample.name.removeprefix(PREFIX + '_')} {sample.labels.get('remote_cluster', '')}".strip(): sample.value
        for sample in scrape(broker)
        if sample.name.startswith(PREFIX + "_") and labels.items() <= sample.labels.items()
    }


def events(broker: BrokerProcess) -> dict[str, float]:
    """The counters by event."""
    return {one.labels["event"]: one.value for one in scrape(broker) if one.name == PREFIX + "s_events_total"}


def figure(broker: BrokerProcess, name: str) -> float:
    """The one sample of this name."""
    (found,) = [one.value for one in scrape(broker) if one.name == name]
    return float(found)


def test_what_others_lack_and_what_the_state_weighs(make_world: Callable[[str, str], World]) -> None:
    """Every second of 40 messages is acknowledged, and the next marker is an hour away.

    No pipeline runs. The delivery time of a link would shorten the hour (decision 58).
    """
    extra = "[subscriptions]\nack_sync_interval_ms = 3_600_000\nset_bytes_max = 1\n[broker]\ncursor_ranges_max = 5\n"
    world = make_world("ab", extra).start()
    client = connect(world["a"])
    try:
        consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(40):
            producer.send(b"%d" % number)
        for number, message in enumerate([consumer.receive(60_000) for _ in range(40)]):
            if number % 2:
                consumer.acknowledge(message)

        def told() -> dict[str, Any]:
            (row,) = world["a"].rest("GET", "/geo/v1/subscriptions")
            return dict(row)

        eventually(lambda: told()["unsent"] == 20, what="twenty acknowledgements to be told")
        # The broker's time is that of its last event.
        seen = eventually(lambda: (found := of_subscription(world["a"]))["lag_seconds b"] > 0 and found, what="a lag")
        del seen["lag_seconds b"]
        assert seen == {"set_bytes": told()["setBytes"], "runs": 20, "pending": 0, "unsent": 20, "lag_messages b": 20}
        assert told()["setBytes"] > 0
        assert figure(world["a"], PREFIX + "s") == figure(world["a"], PREFIX + "s_waiting") == 1
        eventually(lambda: events(world["a"])["exact_over_limit"] > 0, what="a set over the limit, counted")
        name = "magnetar_cursor_ranges_left_out_total"
        eventually(lambda: figure(world["a"], name) == 15, what="20 ranges, of which 5 are stored")
        assert figure(world["b"], name) == 0
    finally:
        client.close()


def test_what_others_tell_is_counted(make_world: Callable[[str, str], World]) -> None:
    """Cluster a is this test: it tells of messages of c that have not come, of one subscription too many, and rubbish."""
    world = make_world("abc", "[broker]\nsubscriptions_per_topic_max = 1\n")
    world["b"].start()
    acks = MessageSet()
    acks.add_range(OriginKey("c", LIFE), 0, 5)
    sets = tuple(AckedSet(name, CREATION, False, 1, 1, acks.origins, None, (), None) for name in ("s", "too-many"))
    good = build_marker(AckedSetsMarker("a", LIFE, 0, (), (), sets), LIFE)
    rubbish = [
        metadata.build(
            pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=LIFE, marker_type=kind), b"\xff"
        )
        for kind in (MarkerType.ACKED_SETS, MarkerType.UPDATE)
    ]
    carry(world, [good, *rubbish])
    seen = eventually(lambda: of_subscription(world["b"]), what="the subscription")
    assert (seen["pending"], seen["runs"]) == (5, 1)
    assert not of_subscription(world["b"], "too-many")
    counted = events(world["b"])
    assert counted["exact_malformed"] == counted["snapshot_malformed"] == counted["subscriptions_not_made"] == 1
    log = world["b"].log.read_text()
    assert "subscription too-many of another cluster is not made: 1 exist" in log
    assert "from a is ignored" in log and "a marker of a at" in log


def carry(world: World, entries: list[bytes]) -> None:
    """Bring entries to b as the pipeline of a's link would."""
    (token,) = world.folder.rglob("link.token")
    identity = str(uuid.uuid4())
    last = Position(LIFE, len(entries) - 1)
    with LinkClient.connect(f"127.0.0.1:{world['b'].pulsar_port}", token.read_bytes().strip()) as target:
        query = pb.GeoWatermarkQuery(
            topic=TOPIC, incarnation=LIFE, partitions=0, last=geo_position(last), start=geo_position(NONE)
        )
        target.watermarks("a", identity, [query])
        append = pb.CommandGeoAppend(
            request_id=0,
            topic=TOPIC,
            source="a",
            uuid=identity,
            incarnation=LIFE,
            gen=1,
            p=geo_position(NONE),
            ledgers=[LIFE] * len(entries),
            entries=range(len(entries)),
            first_indexes=[-1] * len(entries),
            counts=[0] * len(entries),
            sizes=[len(entry) for entry in entries],
        )
        target.append_async(append, [b"".join(entries)])
        (answer,) = eventually(lambda: target.poll(3_000), what="an answer")
        assert not (answer.refusal or answer.response.refused or answer.response.blocked), answer
