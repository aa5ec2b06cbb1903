"""Dispatch rates, limits and delays that change under way, in every type of subscription, in random worlds."""

import random
from typing import Any

import pytest

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.core.rates import Rate
from tests.support.subscriptions import World

LIMITS: dict[str, Any] = {
    "unacked_per_consumer_max": 1 << 40,
    "unacked_per_subscription_max": 1 << 40,
    "broker_rate": None,
    "topic_rate": None,
    "own_rate": None,
    "delays": True,
}


@pytest.mark.parametrize("sub_type", list(SubType))
@pytest.mark.parametrize("seed", range(15))
def test_no_more_than_the_rate_and_everything_in_the_end(sub_type: SubType, seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    consumers = [world.consumer("a", sub_type, permits=10_000)]
    if sub_type is not SubType.EXCLUSIVE:
        consumers.append(world.consumer("b", sub_type, permits=10_000))
    per_s = chance.randint(1, 20)
    shared = Rate(per_s * 2, 0, 1000, world.outbox.now_ms)
    world.subscription.follow(**LIMITS | {"own_rate": Rate(per_s, 0, 1000, world.outbox.now_ms), "topic_rate": shared})
    total, sent, began = chance.randint(1, 60), 0, world.outbox.now_ms
    world.publish_many(total)
    while sent < total:
        world.advance(chance.randint(1, 400))
        world.pump()
        for consumer in consumers:
            found = world.take(consumer)
            sent += len(found)
            if found and chance.random() < 0.8:
                world.ack(consumer, *[each.position for each in found])
        elapsed_s = (world.outbox.now_ms - began) / 1000
        assert sent <= per_s * (1 + elapsed_s), "more than the burst and the rate"
        assert elapsed_s < 200, "dispatch does not go on"
        world.subscription.validate()
    assert sent == total


@pytest.mark.parametrize("sub_type", list(SubType))
def test_a_rate_that_is_lifted_lets_everything_go_at_once(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=10_000)
    world.subscription.follow(**LIMITS | {"own_rate": Rate(3, 0, 3_600_000, world.outbox.now_ms)})
    world.publish_many(30)
    world.pump()
    assert len(world.take(consumer)) == 3
    world.subscription.follow(**LIMITS)
    world.pump()
    assert len(world.take(consumer)) == 27


@pytest.mark.parametrize("sub_type", list(SubType))
def test_a_rate_that_was_raised_is_not_waited_for_as_the_lower_one_said(sub_type: SubType) -> None:
    """Dispatch stood still until the timer of the rate before, here for an hour."""
    world = World()
    consumer = world.consumer("a", sub_type, permits=10_000)
    world.subscription.follow(**LIMITS | {"own_rate": Rate(1, 0, 3_600_000, world.outbox.now_ms)})
    world.publish_many(30)
    world.pump()
    assert len(world.take(consumer)) == 1
    world.subscription.follow(**LIMITS | {"own_rate": Rate(5, 0, 1000, world.outbox.now_ms)})
    world.pump()
    assert len(world.take(consumer)) == 5
    for _ in range(20):
        world.advance(500)
        world.pump()
    assert len(world.take(consumer)) == 24


@pytest.mark.parametrize("sub_type", list(SubType))
def test_it_is_counted_whose_rate_was_waited_for(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=10_000)

    def told(**rates: Rate) -> tuple[int, ...]:
        world.subscription.follow(**LIMITS | rates)
        world.publish_many(10)
        world.pump()
        world.take(consumer)
        stats = world.stats()
        levels = ("Subscription", "Topic", "Broker")
        return tuple(
            stats[f"dispatchThrottled{what}EventsBy{level}Limit"] for level in levels for what in ("Msg", "Bytes")
        )

    hour = 3_600_000
    assert told(own_rate=Rate(3, 0, hour, world.outbox.now_ms)) == (1, 0, 0, 0, 0, 0)
    world.subscription.follow(**LIMITS)
    world.advance(hour)
    world.pump()
    assert told(topic_rate=Rate(0, 1, hour, world.outbox.now_ms)) == (1, 0, 0, 1, 0, 0)
    world.subscription.follow(**LIMITS)
    world.advance(hour)
    world.pump()
    assert told(broker_rate=Rate(3, 0, hour, world.outbox.now_ms)) == (1, 0, 0, 1, 1, 0)
