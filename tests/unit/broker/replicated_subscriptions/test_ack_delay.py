"""How long acknowledgements are collected before they are told to other clusters."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.replicated_subscriptions.ack_interval import (
    EARLY_PER_S,
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    AckInterval,
)
from magnetar.core.ids import Position
from magnetar.replication.link_delivery import DeliveryTime
from tests.support.geoworld import TOPIC, World

SHORTEST = 100
NOW = 1_000_000
MARKER = Position(5, 7)


def delivering_in(ms: int | None, *, long: bool = False) -> DeliveryTime:
    """A link that has delivered within that time; None: nothing yet."""
    found = DeliveryTime()
    if ms is not None:
        found.begin("t", MARKER, 0)
        found.confirmed("t", MARKER, MARKER, ms, long=long)
    return found


def intervals(*links: tuple[Position, int], delivery_ms: int | None = None, long: bool = False) -> AckInterval:
    """With links that got so far and read last then."""
    topics = [SimpleNamespace(wanted=True, cursor=SimpleNamespace(c=c), read_ms=read_ms) for c, read_ms in links]
    sources = {
        str(number): SimpleNamespace(topics={"t": state}, delivery=delivering_in(delivery_ms, long=long))
        for number, state in enumerate(topics)
    }
    return AckInterval(cast("Any", SimpleNamespace(now_ms=NOW)), cast("Any", sources), SHORTEST)


def interval(*links: tuple[Position, int], written_ms: int, delivery_ms: int | None = None) -> int:
    """With a marker that was written then."""
    progress = SimpleNamespace(waiting_since=lambda carried: 0 if carried >= MARKER else written_ms)
    return intervals(*links, delivery_ms=delivery_ms).next_ms("t", cast("Any", progress))


@pytest.mark.parametrize(
    ("links", "written_ms", "expected"),
    [
        # Nobody reads because there was nothing to read: as fast as ever. (It was collected for as long as the topic had
        # been idle, and acknowledgements were seconds late after every pause.)
        ([(Position(5, 6), NOW - 60_000)], NOW - 50, SHORTEST),
        # The marker before waits for a link that is down: collected for as long as it has been waiting.
        ([(Position(5, 6), NOW - 60_000)], NOW - 3_000, 3_000),
        ([(Position(5, 6), 0)], NOW - 60_000, INTERVAL_MS_MAX),
        # One that keeps up is enough.
        ([(Position(5, 6), 0), (MARKER, 0)], NOW - 60_000, SHORTEST),
        # It was read and is on its way.
        ([(Position(5, 6), NOW - 300)], NOW - 3_000, 300),
        ([], NOW - 3_000, SHORTEST),
    ],
)
def test_collected_for_as_long_as_nobody_reads(
    links: list[tuple[Position, int]], written_ms: int, expected: int
) -> None:
    assert interval(*links, written_ms=written_ms) == expected


@pytest.mark.parametrize(
    ("delivery_ms", "expected"),
    [(None, SHORTEST), (0, INTERVAL_MS_MIN), (7, INTERVAL_MS_MIN), (60, 30), (250, SHORTEST), (90_000, SHORTEST)],
)
def test_half_of_what_the_link_needs(delivery_ms: int | None, expected: int) -> None:
    assert interval((MARKER, NOW), written_ms=NOW - 5, delivery_ms=delivery_ms) == expected


def test_a_far_cluster_is_not_told_later_than_a_near_one() -> None:
    """With 80 ms of round trip each position was collected for 40 ms, in addition to the way of 40 ms."""
    found = intervals((MARKER, NOW), delivery_ms=88, long=True)
    progress = cast("Any", SimpleNamespace(waiting_since=lambda _carried: 0))
    assert found.next_ms("t", progress) == INTERVAL_MS_MIN


def test_a_fast_link_that_stands_still_is_not_written_to_at_its_pace() -> None:
    assert interval((Position(5, 6), 0), written_ms=NOW - 3_000, delivery_ms=5) == 3_000


def test_many_topics_share_the_early_markers() -> None:
    """All of them together write so many a second before their usual time, and none waits longer than that."""
    found = intervals((MARKER, NOW), delivery_ms=5)
    progress = cast("Any", SimpleNamespace(waiting_since=lambda _carried: 0))
    given = [found.next_ms("t", progress) for _ in range(1_000)]
    early = [ms for ms in given if ms < SHORTEST]
    assert given[0] == INTERVAL_MS_MIN
    assert max(given) == SHORTEST
    assert len(early) <= EARLY_PER_S * 2 * SHORTEST // 1_000


def test_a_fast_link_gets_markers_sooner() -> None:
    """Two brokers: the first acknowledgements are collected for the usual time, the later ones at the pace of the link."""
    world = World("ab", ack_sync_interval_ms=1_000)
    a, b = world["a"], world["b"]
    a.create()
    client = a.client()
    consumer = client.subscribe("s")
    world.settle()
    client.flow(consumer)

    def staleness() -> int:
        """How long until b has the acknowledgement of one more message."""
        a.publish(b"x")
        world.advance(3)
        (message,) = client.take(consumer)
        client.ack(consumer, message)
        before = b.broker.topics[TOPIC].subscriptions["s"].cursor.backlog_messages()
        waited = 0
        while b.broker.topics[TOPIC].subscriptions["s"].cursor.backlog_messages() == before:
            assert waited < 5_000, "the acknowledgement did not arrive"
            world.advance(1)
            waited += 1
        return waited

    found = [staleness() for _ in range(5)]
    assert max(found[1:]) <= INTERVAL_MS_MIN + 5, found
