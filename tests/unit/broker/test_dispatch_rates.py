"""Dispatch rates, limits and delays that change under way, in every type of subscription, in random worlds."""

import random
from typing import Any

import pytest

from magnetar.broker.consumer import SubType
from magnetar.broker.rates import Rate
from tests.support.subscriptions import World

LIMITS: dict[str, Any] = {
    "unacked_per_consumer_max": 1 << 40,
    "unacked_per_subscription_max": 1 << 40,
    "topic_rate": None,
    "own_rate": (0, 0, 1000),
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
    world.subscription.follow(**LIMITS | {"own_rate": (per_s, 0, 1000), "topic_rate": shared})
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
    world.subscription.follow(**LIMITS | {"own_rate": (3, 0, 3_600_000)})
    world.publish_many(30)
    world.pump()
    assert len(world.take(consumer)) == 3
    world.subscription.follow(**LIMITS)
    world.pump()
    assert len(world.take(consumer)) == 27


@pytest.mark.parametrize("sub_type", list(SubType))
def test_it_is_counted_whose_rate_was_waited_for(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=10_000)

    def told(*rates: Any, own: tuple[int, int, int] = (0, 0, 1000)) -> tuple[int, ...]:
        world.subscription.follow(**LIMITS | {"own_rate": own, "topic_rate": rates[0] if rates else None})
        world.publish_many(10)
        world.pump()
        world.take(consumer)
        stats = world.subscription.stats()
        kinds = [f"{what}EventsBy{whose}Limit" for whose in ("Subscription", "Topic") for what in ("Msg", "Bytes")]
        return tuple(stats[f"dispatchThrottled{kind}"] for kind in kinds)

    hour = 3_600_000
    assert told(own=(3, 0, hour)) == (1, 0, 0, 0)
    world.subscription.follow(**LIMITS)
    world.advance(hour)
    world.pump()
    assert told(Rate(0, 1, hour, world.outbox.now_ms))[3] == 1
    assert told(Rate(0, 1, hour, world.outbox.now_ms))[:3] == (1, 0, 0)
