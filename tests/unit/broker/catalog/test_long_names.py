"""A partitioned topic's name may be valid and those of its partitions too long: refused, whoever asks."""

import msgspec
import pytest

from magnetar.core.names import TOPIC_BYTES_MAX, TopicName
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.keys import partitioned_key
from magnetar.metadata.policies.namespace import PartitionedTopic
from magnetar.metadata.topic_records import TOPIC_PREFIX, TopicRecord, cursor_key
from tests.support.geoworld import TOPIC, World


def named(size: int) -> TopicName:
    """A topic whose full name has so many bytes."""
    start = "persistent://public/default/"
    return TopicName.parse(start + "n" * (size - len(start)))


LAST = TOPIC_BYTES_MAX - len("-partition-9")
"""So long is the longest name that can have ten partitions; it cannot have eleven."""


def test_administration_is_told_why_and_the_broker_starts_again() -> None:
    world = World("a")
    a = world["a"]
    for name, partitions in ((named(TOPIC_BYTES_MAX), 1), (named(LAST + 1), 1), (named(LAST), 11)):
        with pytest.raises(PreconditionFailed, match=f"at most {TOPIC_BYTES_MAX} bytes"):
            a.control.topics.create(str(name), partitions, {}, print)
    assert a.control_call(lambda done: a.control.topics.create(str(named(LAST)), 10, {}, done)) is None
    with pytest.raises(PreconditionFailed, match="at most"):
        a.control.topics.update_partitions(str(named(LAST)), 11, print)
    a.restart()
    assert str(named(LAST).with_partition(9)) in a.broker.topics
    assert a.broker.resources.partitions(named(LAST)) == 10


def test_a_link_that_brings_one_is_told_why() -> None:
    a = World("ab")["a"]
    told: list[str] = []
    a.run(a.broker.links.host.create, named(LAST), 11, told.append)
    assert len(told) == 1 and "at most" in told[0]
    assert a.broker.resources.partitions(named(LAST)) is None


@pytest.mark.parametrize("size", [LAST, TOPIC_BYTES_MAX])
def test_one_that_was_stored_before_is_left_out_and_can_be_deleted(size: int) -> None:
    world = World("a")
    a = world["a"]
    a.create(TOPIC)
    name = named(size)
    a.meta[partitioned_key(name)] = msgspec.json.encode(PartitionedTopic(11))
    for number in range(11):
        text = str(name.with_partition(number))
        a.meta[TOPIC_PREFIX + text] = TopicRecord(incarnation=1_000 + number, created_ms=1).encode()
        a.meta[cursor_key(text, "s")] = b"damaged"
    if size == LAST:
        for number in range(10):
            del a.meta[cursor_key(str(name.with_partition(number)), "s")]
    a.restart()
    left = 1 if size == LAST else 11
    (note,) = [note for note in a.notes if "left out" in note.text]
    assert note.level == "error" and note.text.startswith(f"{left} stored topics") and "at most" in note.text
    assert TOPIC in a.broker.topics and len(a.broker.topics) == 1 + 11 - left
    assert a.control_call(lambda done: a.control.topics.delete(str(name), False, done)) is None
    assert not [key for key in a.meta if key.startswith(TOPIC_PREFIX) and str(name) in key]
    a.restart()
    assert not [note for note in a.notes if "left out" in note.text]
