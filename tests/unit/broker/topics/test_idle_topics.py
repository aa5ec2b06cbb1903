"""What an idle topic takes: of a hundred thousand, most are idle."""

import gc
import tracemalloc

import pytest

from magnetar import FORM
from magnetar.core.ids import NONE
from magnetar.metadata.topic_records import NOTHING, TopicRecord
from magnetar.runtime.interpreter.compiled import PURE
from tests.support.geoworld import Node, World

TOPICS = 100

TOPIC_BYTES_MAX = 3_400
"""It takes 2,850: the record, the topic, its log with one packed ledger, their names, an entry in the cache."""


def created(world: World, node: Node, name: str) -> None:
    """A topic with one message."""
    full = f"persistent://public/default/{name}"
    node.create(full)
    world.settle()
    node.publish(b"x" * 100, topic=full)
    world.settle()


def test_an_idle_topic_is_small() -> None:
    """What few topics need is made when it is first needed: thirty empty containers took 4 KB."""
    if FORM.name != PURE:
        pytest.skip("compiled objects have other sizes")
    world = World("a")
    node = world["a"]
    created(world, node, "first")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(TOPICS):
            created(world, node, f"idle-{number}")
        gc.collect()
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/magnetar/*")])
    finally:
        tracemalloc.stop()
    each = sum(one.size for one in own.statistics("filename")) / TOPICS
    assert each < TOPIC_BYTES_MAX, f"{each:.0f} bytes for each idle topic"


def test_what_looks_at_all_topics_makes_nothing_for_idle_ones() -> None:
    """Regular work, statistics, and the checks of the simulator."""
    world = World("a")
    node = world["a"]
    created(world, node, "idle")
    topic = node.broker.topics["persistent://public/default/idle"]
    assert topic.log.time_at(topic.log.last)
    (ledger,) = topic.log.ledger_infos()
    assert ledger._columns is not None, "it was read"
    world.advance(300_000)
    node.run(lambda: node.broker.upkeep.trim(topic, everything=True))
    node.broker.validate()
    assert topic.horizon == NONE
    assert topic._compacted is None and topic._withdrawals is None
    assert topic.writes is None and topic.read_meter is None
    assert ledger._columns is None


def test_records_share_what_is_empty_and_store_it_as_before() -> None:
    record = TopicRecord(incarnation=5, created_ms=6)
    stored = record.encode()
    assert b'"watermarks":{},"properties":{},"terminated":false,"restored":[]' in stored
    again = TopicRecord.decode("t", stored)
    assert again == record
    assert again.watermarks is again.properties is record.watermarks is NOTHING
    other = TopicRecord.decode("t", stored.replace(b'"properties":{}', b'"properties":{"k":"v"}'))
    assert other.properties == {"k": "v"}
    assert other.encode() == stored.replace(b'"properties":{}', b'"properties":{"k":"v"}')
