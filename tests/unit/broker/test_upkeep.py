"""The regular round over all topics: each is looked at once an interval, few in one event."""

from collections import Counter

import pytest

from magnetar.broker.topic import Topic
from magnetar.broker.upkeep import STEP_TOPICS_MIN, Upkeep
from tests.support.geoworld import World

INTERVAL_MS = 1_000


@pytest.mark.parametrize(
    ("total", "at_a_time"), [(3, 3), (STEP_TOPICS_MIN, STEP_TOPICS_MIN), (700, 70)], ids=["few", "a part", "many"]
)
def test_every_topic_once_an_interval_and_few_in_one_event(
    total: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("a", limits={"retention_interval_ms": INTERVAL_MS})
    node = world["a"]
    monkeypatch.setattr(node.broker, "validate", lambda: None)
    for number in range(total):
        node.create(f"persistent://public/default/u-{number}")
    seen: Counter[str] = Counter()
    by_time: Counter[int] = Counter()

    def look(self: Upkeep, topic: Topic, now_ms: int) -> None:
        seen[topic.text] += 1
        by_time[now_ms] += 1

    monkeypatch.setattr(Upkeep, "_look_after", look)
    first = node.broker.started_ms + INTERVAL_MS
    world.advance(first - world.now_ms + INTERVAL_MS - 1)
    assert len(seen) == total
    assert set(seen.values()) == {1}, "once"
    assert max(by_time.values()) == at_a_time
    assert min(by_time) == first
    world.advance(INTERVAL_MS)
    assert set(seen.values()) == {2}, "the next round begins an interval after the last one did"


def test_a_topic_deleted_during_the_round_is_left_alone() -> None:
    world = World("a", limits={"retention_interval_ms": INTERVAL_MS})
    node = world["a"]
    topics = [f"persistent://public/default/u-{number}" for number in range(STEP_TOPICS_MIN * 2)]
    for topic in topics:
        node.create(topic)
    node.publish(b"x", topic=topics[-1])
    world.advance(node.broker.started_ms + INTERVAL_MS - world.now_ms)
    assert node.control_call(lambda done: node.control.delete_topic(topics[-1], True, done)) is None
    world.advance(2 * INTERVAL_MS)
    assert len(node.broker.topics) == len(topics) - 1
