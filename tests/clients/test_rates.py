"""Rates in statistics and metrics: what came and went over the last interval, and nothing when nothing does."""

import urllib.request
from pathlib import Path

import pulsar

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually

TOPIC = "persistent://public/default/rated"
FLEETING = "non-persistent://public/default/rated"


def metric(text: str, name: str, *labels: str) -> float:
    """The value of one series."""
    lines = [
        line
        for line in text.splitlines()
        if line.startswith(f"{name}{{") and all(f'"{label}"' in line for label in labels)
    ]
    assert len(lines) == 1, (name, labels, lines)
    return float(lines[0].rsplit(" ", 1)[1])


def scrape(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.web}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


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
                consumer.acknowledge(consumer.receive(10_000))  # noqa: B023
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
