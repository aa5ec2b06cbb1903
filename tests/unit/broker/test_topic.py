"""A topic tells its subscriptions of new entries, a few in each event."""

from typing import Any, cast

from magnetar.broker.effects import Timer
from magnetar.broker.topic import WOKEN_AT_ONCE
from tests.support.geoworld import World

MANY = 3 * WOKEN_AT_ONCE - 1


class Told:
    """In place of a subscription."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    def available(self) -> None:
        self._seen.append(self._name)


def test_many_subscriptions_are_told_in_several_events_each_once_and_in_turn() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    world.settle()
    topic, seen = node.topic, cast("list[str]", [])
    names = [f"s{number:03}" for number in range(MANY)]
    topic.subscriptions.update({name: cast("Any", Told(name, seen)) for name in names})
    topic.outbox.drain()
    topic.dispatch()
    assert seen == names[:WOKEN_AT_ONCE]
    topic.dispatch()  # new entries while some have not heard of the first ones: those that have hear again, behind the others
    assert seen == names[:WOKEN_AT_ONCE]
    del topic.subscriptions[names[-1]]
    events = 0
    while timers := [effect for effect in topic.outbox.drain() if isinstance(effect, Timer)]:
        (timer,) = timers
        before = len(seen)
        timer.then(world.now_ms)
        assert len(seen) - before <= WOKEN_AT_ONCE
        events += 1
    assert seen == names[:WOKEN_AT_ONCE] + names[WOKEN_AT_ONCE:-1] + names[:WOKEN_AT_ONCE]
    assert events == 3
