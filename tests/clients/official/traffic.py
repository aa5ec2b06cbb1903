"""Two brokers with some of everything that metrics tell, so that dashboards made for Pulsar have something to show."""

import contextlib
import re
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pulsar

from tests.clients.conftest import connect
from tests.support.brokers import World, eventually
from tests.support.replicator import Replicator

TOPIC = "persistent://public/default/orders"
SETTINGS = "[broker]\nretention_interval_ms = 300\ncache_bytes_max = 1000000\n"

SIZES = (10, 300, 800, 1_000, 1_500, 3_000, 10_000, 90_000, 500_000)
"""Of messages, one at least for each bucket of entries by their size."""


class Seen(NamedTuple):
    """Of one metric.

    Attributes:
        labels: of its series.
        most: the highest value of any of them, at any time.
    """

    labels: frozenset[str]
    most: float


def _look(url: str, seen: dict[str, Seen]) -> None:
    with urllib.request.urlopen(url, timeout=20) as answer:
        page = answer.read().decode()
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
        before = seen.get(name, Seen(frozenset(), 0.0))
        seen[name] = Seen(before.labels | set(re.findall(r'(\w+)="', labels)), max(before.most, float(value)))


def _traffic(client: pulsar.Client, producer: pulsar.Producer, consumer: pulsar.Consumer) -> None:
    """Some messages: published, delivered, delivered again, acknowledged, left, and read from the disk."""
    for number, size in enumerate(SIZES):
        producer.send(bytes(size), partition_key=f"k{number % 3}")
    producer.send(b"later", deliver_after=timedelta(hours=1))
    again = consumer.receive(20_000)
    consumer.negative_acknowledge(again)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(20_000))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    for _ in range(20):
        if not reader.has_message_available():
            break
        reader.read_next(20_000)
    reader.close()


def watched(folder: Path, wanted: set[str]) -> dict[str, Seen]:
    """What `/metrics` of a broker tells while there is traffic.

    Args:
        folder: for the brokers' files.
        wanted: metrics for whose data the traffic goes on, for a while.

    Returns:
        By name of the sample.
    """
    world = World(folder, ["a", "b"], SETTINGS).start()
    replicators = [Replicator(world, "a", "b"), Replicator(world, "b", "a")]
    client, other = connect(world["a"]), connect(world["b"])
    seen: dict[str, Seen] = {}
    try:
        consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
        client.subscribe(TOPIC, "slow").close()
        producer = client.create_producer(TOPIC, batching_enabled=False)
        abroad = other.create_producer(TOPIC, batching_enabled=False)
        _traffic(client, producer, consumer)
        path = f"/admin/v2/{TOPIC.replace('://', '/')}"
        world["a"].rest("PUT", f"{path}/compaction")
        quota = {"limitSize": 1 << 30, "limitTime": 3_600, "policy": "producer_request_hold"}
        world["a"].rest("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
        client.create_producer("non-persistent://public/default/fleeting").send(b"gone")

        def all_has_data() -> bool:
            abroad.send(b"from b")
            _traffic(client, producer, consumer)
            _look(f"{world['a'].web}/metrics", seen)
            return all(name in seen and seen[name].most > 0 for name in wanted)

        with contextlib.suppress(AssertionError):  # what has no data is for the one who asked to judge
            eventually(all_has_data)
    finally:
        client.close()
        other.close()
        for replicator in replicators:
            replicator.close()
        world.close()
    return seen
