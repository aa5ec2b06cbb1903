"""A topic tells its subscriptions of new entries, a few in each event."""

from typing import Any, cast

import pytest

from magnetar.broker.subscriptions.consumer import Counters
from magnetar.broker.topics.topic import SENDING_AT_ONCE, WOKEN_AT_ONCE, Topic
from magnetar.effects.outbox import Note
from magnetar_sim.host.host import Host
from tests.support.geoworld import World


class FakeSubscription:
    """In place of a subscription.

    Args:
        name: of it.
        seen: who was told, in order.
        topic: whose outbox it sends to; None: it has nothing to send.
    """

    def __init__(self, name: str, seen: list[str], topic: Topic | None) -> None:
        self.name, self._seen, self._topic = name, seen, topic

    def available(self) -> bool:
        self._seen.append(self.name)
        if self._topic is not None:
            for _ in range(3):  # however many consumers it has
                self._topic.outbox.put(Note("info", "sent"))
        return self._topic is not None

    def counters(self) -> Counters:
        return Counters()


def with_subscriptions(number: int, *, sending: bool) -> tuple[World, Topic, list[str], list[str]]:
    """A topic with so many subscriptions; their names, and who was told."""
    world = World("a")
    node = world["a"]
    node.create()
    world.settle()
    topic, seen = node.topic, cast("list[str]", [])
    names = [f"s{each:03}" for each in range(number)]
    for name in names:
        topic.add_subscription(cast("Any", FakeSubscription(name, seen, topic if sending else None)))
    topic.outbox.drain()
    return world, topic, names, seen


@pytest.mark.parametrize(("sending", "at_once", "more"), [(False, WOKEN_AT_ONCE, 3), (True, SENDING_AT_ONCE, 2)])
def test_many_subscriptions_are_told_in_several_events_each_once_and_in_turn(
    sending: bool, at_once: int, more: int
) -> None:
    """The one that is gone by its turn counts as looked at, not as sending."""
    world, topic, names, seen = with_subscriptions(3 * at_once - 1, sending=sending)
    topic.dispatch()
    assert not seen, "the receipts of what came wait for this event's end"

    host = Host(topic.outbox, {})

    def event() -> bool:
        host.pump()
        timers = host.timers.due(world.now_ms)
        before = len(seen)
        for then in timers:
            then(world.now_ms)
        assert len(timers) <= 1
        assert len(seen) - before <= at_once
        return bool(timers)

    assert event()
    assert seen == names[:at_once]
    topic.dispatch()  # new entries while some have not heard of the first ones: those that have hear again, behind the others
    assert seen == names[:at_once]
    topic.forget(topic.subscriptions[names[-1]])
    events = 0
    while event():
        events += 1
    assert seen == names[:at_once] + names[at_once:-1] + names[:at_once]
    assert events == more


def test_few_are_told_in_the_event_that_brought_the_entries() -> None:
    _, topic, names, seen = with_subscriptions(SENDING_AT_ONCE, sending=True)
    topic.dispatch()
    assert seen == names
