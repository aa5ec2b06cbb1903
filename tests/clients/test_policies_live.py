"""What is kept and for how long, on live topics: the topic's policy, else its namespace's, else the broker's `[policies]`."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import World, eventually
from tests.support.namespaces import Space
from tests.support.receiving import receive

CONFIG = """
[broker]
retention_interval_ms = 100
ledger_entries_max = 10

[policies]
ttl = 1
max-producers = 1
retention = { time_minutes = -1, size_mb = -1 }
"""
MESSAGES = 40
LEDGER = 10
"""As `ledger_entries_max`."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("policies"), ["solo"], CONFIG).start()
    yield made
    made.close()


@pytest.fixture
def space(world: World) -> Space:
    return Space(world["solo"])


@pytest.fixture
def client(world: World) -> Iterator[pulsar.Client]:
    client = connect(world["solo"])
    yield client
    client.close()


def stored(space: Space, topic: str) -> int:
    """Entries that a topic still has."""
    path = f"/admin/v2/persistent/{space.name}/{topic}/internalStats"
    return int(space.broker.rest("GET", path)["numberOfEntries"])


def backlog(space: Space, topic: str) -> int:
    """Messages that its subscription has not acknowledged."""
    return int(space.stats(topic)["subscriptions"]["s"]["msgBacklog"])


def used(client: pulsar.Client, space: Space, topic: str) -> None:
    """Publish, consume and acknowledge so many that several ledgers are full: what is stored in one go is in one of them."""
    consumer = client.subscribe(space.topic(topic), "s")
    producer = client.create_producer(space.topic(topic), batching_enabled=False)
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, callback=None)
        if number % LEDGER == LEDGER - 1:
            producer.flush()
    assert len(receive(consumer, MESSAGES)) == MESSAGES
    consumer.close()
    producer.close()


def test_retention_of_topic_namespace_and_broker(client: pulsar.Client, space: Space) -> None:
    nothing, all_of_it = ({"retentionTimeInMinutes": limit, "retentionSizeInMB": limit} for limit in (0, -1))
    for topic in ("own", "shared"):
        used(client, space, topic)
    space.set("retention", nothing, topic="own")
    eventually(lambda: stored(space, "own") < MESSAGES)
    assert stored(space, "shared") == MESSAGES, "the broker's default keeps it"
    space.set("retention", nothing)
    eventually(lambda: stored(space, "shared") < MESSAGES)
    used(client, space, "kept")
    eventually(lambda: stored(space, "kept") < MESSAGES)
    assert space.get("retention?applied=true", topic="kept") == nothing
    space.unset("retention")
    assert space.get("retention?applied=true", topic="kept") == all_of_it, "the broker's again"


def test_expiry_of_topic_namespace_and_broker(client: pulsar.Client, space: Space) -> None:
    for topic in ("own", "shared", "other"):
        client.subscribe(space.topic(topic), "s").close()
    space.set("messageTTL", 0)
    space.set("messageTTL", 1, topic="own")
    for topic in ("own", "shared"):
        client.create_producer(space.topic(topic)).send(b"x")
    eventually(lambda: backlog(space, "own") == 0, what="the topic's own second has passed")
    assert backlog(space, "shared") == 1, "its namespace says that nothing expires"
    space.unset("messageTTL")
    eventually(lambda: backlog(space, "shared") == 0, what="the broker's default is a second")


def test_numbers_of_topic_namespace_and_broker(client: pulsar.Client, space: Space) -> None:
    topic = space.topic()
    client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    assert space.get("maxProducersPerTopic?applied=true") == 1
    space.set("maxProducersPerTopic", 2)
    client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    space.set("maxProducers", 3, topic="t")
    client.create_producer(topic)
    space.unset("maxProducers", topic="t")
    space.unset("maxProducersPerTopic")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)


def test_a_default_that_cannot_be_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    made = World(tmp_path, ["solo"], "[policies]\nttl = -3\n")
    try:
        with pytest.raises(Exception, match="policies.ttl: "):
            made.start()
    finally:
        made.close()
