"""Rates in statistics and metrics: what came and went over the last interval, and nothing when nothing does."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.metrics import metric, scrape

TOPIC = "persistent://public/default/rated"
FLEETING = "non-persistent://public/default/rated"


@dataclass
class Tick:
    """An update of the rates, as seen from outside: it came after `after` and not later than `by` (seconds)."""

    after: float
    by: float
    stats: dict[str, Any]


def ticked(broker: BrokerProcess, path: str, old: float) -> Tick:
    """Wait until a topic tells another rate than this one."""
    before = time.monotonic()

    def changed() -> Tick | None:
        nonlocal before
        asked = time.monotonic()
        stats = broker.rest("GET", path)
        if stats["msgRateIn"] != old:
            return Tick(before, time.monotonic(), stats)
        before = asked
        return None

    tick: Tick = eventually(changed, every_s=0.01)
    return tick


@pytest.mark.parametrize("topic", [TOPIC, FLEETING])
def test_rates_are_what_was_published_over_the_time_that_passed(tmp_path: Path, topic: str) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 1500\n").start()
    broker = world["solo"]
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    count, size = 300, 1_000
    client = connect(broker)
    try:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)

        def burst(messages: int) -> None:
            for _ in range(messages):
                producer.send_async(bytes(size), lambda _result, _id: None)
            producer.flush()
            for _ in range(messages):
                consumer.acknowledge(consumer.receive(60_000))

        def measured() -> tuple[float, float, dict[str, Any], str] | None:
            """A burst within one interval: the shortest and the longest that this can have been, and what was told."""
            idle = broker.rest("GET", path)["msgRateIn"]
            burst(5)
            # A few messages make another rate at the end of their interval: this is how the beginning of one is seen.
            begin = ticked(broker, path, idle)
            burst(count)
            if broker.rest("GET", path)["msgRateIn"] != begin.stats["msgRateIn"]:
                return None  # too slow: the burst is in two intervals
            end = ticked(broker, path, begin.stats["msgRateIn"])
            text = scrape(broker)
            if broker.rest("GET", path)["msgRateIn"] != end.stats["msgRateIn"]:
                return None  # the metrics may be those of the next interval
            shortest, longest = end.after - begin.by, end.by - begin.after
            # Only a sharp measurement decides anything; one on a machine that stood still is done again.
            return (shortest, longest, end.stats, text) if longest < 1.2 * shortest else None

        def told() -> bool:
            burst(1)
            return bool(broker.rest("GET", path)["msgRateIn"])

        # A topic's first look at its counters is where its first interval begins: what came before is in no rate.
        eventually(told)
        shortest, longest, stats, text = eventually(measured, within_s=80)
        subscription, (publisher,) = stats["subscriptions"]["s"], stats["publishers"]
        (reading,) = subscription["consumers"]
        low, high = 0.9 * count / longest, 1.1 * count / shortest
        for each, key in (
            (stats, "msgRateIn"),
            (publisher, "msgRateIn"),
            (stats, "msgRateOut"),
            (subscription, "msgRateOut"),
            (reading, "msgRateOut"),
        ):
            assert low < each[key] < high, key
        # An entry is its payload and some tens of bytes.
        low, high = low * size, high * 1.1 * size
        for each, key in (
            (stats, "msgThroughputIn"),
            (publisher, "msgThroughputIn"),
            (stats, "msgThroughputOut"),
            (subscription, "msgThroughputOut"),
            (reading, "msgThroughputOut"),
        ):
            assert low < each[key] < high, key
        assert size < stats["averageMsgSize"] < 1.1 * size
        if topic is TOPIC:
            for name, key in (
                ("pulsar_rate_in", "msgRateIn"),
                ("pulsar_rate_out", "msgRateOut"),
                ("pulsar_throughput_in", "msgThroughputIn"),
                ("pulsar_throughput_out", "msgThroughputOut"),
            ):
                assert metric(text, name, topic) == pytest.approx(stats[key]), name
            rate_out = metric(text, "pulsar_subscription_msg_rate_out", topic, "s")
            assert rate_out == pytest.approx(subscription["msgRateOut"])
    finally:
        client.close()
        world.close()


def test_what_is_dropped_has_a_rate(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 300\n").start()
    broker = world["solo"]
    path = f"/admin/v2/{FLEETING.replace('://', '/')}/stats"
    client = connect(broker)
    try:
        consumer = client.subscribe(FLEETING, "slow", receiver_queue_size=1)
        producer = client.create_producer(FLEETING, batching_enabled=False)

        def dropping() -> dict[str, Any] | None:
            for _ in range(20):
                producer.send(b"x")
            stats: dict[str, Any] = broker.rest("GET", path)
            return stats if stats["msgDropRate"] else None

        stats = eventually(dropping)
        assert stats["msgDropRate"] == stats["subscriptions"]["slow"]["msgDropRate"]
        assert stats["publishers"][0]["msgDropRate"] == 0
        eventually(lambda: broker.rest("GET", path)["msgDropRate"] == 0)
        assert consumer.receive(60_000).data() == b"x"
    finally:
        client.close()
        world.close()


def test_chunks_have_a_rate(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 300\n").start()
    broker = world["solo"]
    path = f"/admin/v2/{TOPIC.replace('://', '/')}/stats"
    client = connect(broker)
    try:
        client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, batching_enabled=False, chunking_enabled=True)
        producer.send(b"small")
        assert broker.rest("GET", path)["msgChunkPublished"] is False

        def told() -> bool:
            producer.send(bytes(12 << 20))
            stats = broker.rest("GET", path)
            subscription = stats["subscriptions"]["s"]
            ends = [stats["publishers"][0], subscription, subscription["consumers"][0]]
            return all(end["chunkedMessageRate"] > 0 for end in ends)

        eventually(told)
        assert broker.rest("GET", path)["msgChunkPublished"] is True
    finally:
        client.close()
        world.close()


def test_rates_of_topics_producers_and_subscriptions(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 300\n").start()
    broker = world["solo"]
    try:
        client = connect(broker)
        for topic in (TOPIC, FLEETING):
            consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            producer = client.create_producer(topic)
            path = f"/admin/v2/{topic.replace('://', '/')}/stats"

            def flowing() -> dict[str, float] | None:
                producer.send(b"x" * 100)  # noqa: B023 - called here, in this turn
                consumer.acknowledge(consumer.receive(60_000))  # noqa: B023
                seen = broker.rest("GET", path)  # noqa: B023
                rates = {key: seen[key] for key in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")}
                return seen if all(rates.values()) and seen["publishers"][0]["msgRateIn"] else None

            seen = eventually(flowing)
            # Payloads of 100 bytes, each an entry with some tens of bytes around it.
            assert 100 < seen["msgThroughputIn"] / seen["msgRateIn"] < 300
            assert 100 < seen["averageMsgSize"] < 300
            assert seen["subscriptions"]["s"]["msgRateOut"] > 0
            if topic is TOPIC:
                text = scrape(broker)
                assert metric(text, "pulsar_rate_in", TOPIC) > 0
                assert metric(text, "pulsar_throughput_out", TOPIC) > 0
                assert metric(text, "pulsar_subscription_msg_rate_out", TOPIC, "s") > 0
                assert metric(text, "pulsar_msg_backlog", TOPIC) >= 0
                eventually(
                    lambda: metric(scrape(broker), "pulsar_msg_backlog", TOPIC) == 0
                )  # once acknowledgements are in
            eventually(lambda path=path: not broker.rest("GET", path)["msgRateIn"])
        client.close()
    finally:
        world.close()


def windowed(
    broker: BrokerProcess, path: str, act: Callable[[], object], keys: dict[str, Callable[[Any], float]]
) -> Any:
    """Do something again and again until all of these rates are told at once; the statistics that tell them."""

    def told() -> Any:
        act()
        stats = broker.rest("GET", path)
        return stats if all(rate(stats) > 0 for rate in keys.values()) else None

    return eventually(told, what=", ".join(keys))


def test_rates_of_redeliveries_and_acknowledgements(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 500\n").start()
    broker = world["solo"]
    client = connect(broker)
    path = f"/admin/v2/{TOPIC.replace('://', '/')}/stats"
    try:
        consumer = client.subscribe(
            TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1
        )
        producer = client.create_producer(TOPIC, batching_enabled=False)

        def of_subscription(key: str) -> Callable[[Any], float]:
            return lambda stats: float(stats["subscriptions"]["s"][key])

        def of_consumer(key: str) -> Callable[[Any], float]:
            return lambda stats: float(stats["subscriptions"]["s"]["consumers"][0][key])

        # Something is sent and sent again, and nothing acknowledged.
        producer.send(b"again")
        keys = {"redeliver": of_subscription("msgRateRedeliver"), "its": of_consumer("msgRateRedeliver")}
        stats = windowed(broker, path, lambda: consumer.negative_acknowledge(consumer.receive(60_000)), keys)
        assert of_subscription("messageAckRate")(stats) == of_consumer("messageAckRate")(stats) == 0
        # What is sent again is sent: it is part of what goes out, and here nearly all of it.
        assert of_subscription("msgRateRedeliver")(stats) <= of_subscription("msgRateOut")(stats)

        def told_of_the_topic() -> bool:
            consumer.negative_acknowledge(consumer.receive(60_000))
            return metric(scrape(broker), "pulsar_consumer_msg_rate_redeliver", TOPIC) > 0

        eventually(told_of_the_topic)
        # Each is acknowledged as it comes, and nothing is sent again any more.
        consumer.acknowledge(consumer.receive(60_000))
        eventually(lambda: of_subscription("msgRateRedeliver")(broker.rest("GET", path)) == 0)

        def once() -> None:
            producer.send(b"once")
            consumer.acknowledge(consumer.receive(60_000))

        keys = {"ack": of_subscription("messageAckRate"), "its": of_consumer("messageAckRate")}
        stats = windowed(broker, path, once, keys)
        assert of_subscription("msgRateRedeliver")(stats) == 0
        text = scrape(broker)
        assert metric(text, "pulsar_subscription_msg_rate_redeliver", TOPIC, "s") == 0
        assert metric(text, "pulsar_consumer_msg_ack_rate", TOPIC) == metric(
            text, "pulsar_subscription_msg_ack_rate", TOPIC, "s"
        )
        # Interval by interval, what was acknowledged is about what went out: a message's two halves may be in two of them.
        sent = acknowledged = 0.0
        last = broker.rest("GET", path)

        def balanced() -> bool:
            nonlocal sent, acknowledged, last
            once()
            stats = broker.rest("GET", path)
            if of_subscription("msgRateOut")(stats) != of_subscription("msgRateOut")(last):
                sent += of_subscription("msgRateOut")(stats)
                acknowledged += of_subscription("messageAckRate")(stats)
                last = stats
            return bool(sent) and 0.7 < acknowledged / sent < 1.3

        eventually(balanced)
        eventually(lambda: of_subscription("messageAckRate")(broker.rest("GET", path)) == 0)
    finally:
        client.close()
        world.close()


def test_rates_of_a_partitioned_topic_are_those_of_its_partitions(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 500\n").start()
    broker = world["solo"]
    client = connect(broker)
    path = f"/admin/v2/{TOPIC.replace('://', '/')}"
    keys = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
    try:
        broker.rest("PUT", f"{path}/partitions", 2)
        consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(
            TOPIC,
            batching_enabled=False,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )

        def flowing() -> Any:
            for _ in range(4):
                producer.send(bytes(200))
                consumer.acknowledge(consumer.receive(60_000))
            stats = broker.rest("GET", f"{path}/partitioned-stats")
            each = stats["partitions"].values()
            rated = all(part[key] and part["subscriptions"]["s"]["messageAckRate"] for part in each for key in keys)
            return stats if rated else None

        stats = eventually(flowing)
        parts = list(stats["partitions"].values())
        assert len(parts) == 2
        for key in keys:
            assert stats[key] == pytest.approx(sum(part[key] for part in parts)), key
        whole = stats["subscriptions"]["s"]
        for key in ("msgRateOut", "msgThroughputOut", "messageAckRate", "msgRateRedeliver"):
            assert whole[key] == pytest.approx(sum(part["subscriptions"]["s"][key] for part in parts)), key
        # Both get every other message: neither has nearly all.
        slower, faster = sorted(part["msgRateIn"] for part in parts)
        assert faster < 4 * slower
        for part in (f"{TOPIC}-partition-{number}" for number in range(2)):
            assert metric(scrape(broker), "pulsar_in_messages_total", part) > 0

        def idle() -> bool:
            stats = broker.rest("GET", f"{path}/partitioned-stats")
            return not any(stats[key] for key in keys)

        eventually(idle)
    finally:
        client.close()
        world.close()
