"""One replicated subscription that is consumed in two clusters at once: most messages come in both, and the log says so."""

import pytest

from magnetar.broker.replicated_subscriptions.topic import BOTH_AGAIN_MS
from tests.support.geosteps import EXCLUSIVE, SHARED, consumer, two
from tests.support.geoworld import Client, Node, World

LIMITS = {"retention_interval_ms": 5_000}
"""A round of upkeep every five seconds."""


def warnings(node: Node) -> list[str]:
    found = [note.text for note in node.notes if "in another cluster at the same time" in note.text]
    assert all(note.level == "warning" for note in node.notes if note.text in found)
    return found


def work(world: World, consumers: dict[str, tuple[Client, int]], ms: int, publish: str = "a") -> dict[str, int]:
    """Time passes with a message every half second, which consumers acknowledge as they get it; how many each got."""
    got = dict.fromkeys(consumers, 0)
    for _ in range(ms // 500):
        world[publish].publish(b"x")
        world.settle()
        for name, (client, number) in consumers.items():
            for message in client.take(number):
                client.ack(number, message)
                got[name] += 1
        world.advance(500)
    return got


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_consumers_in_two_clusters_are_warned_of_in_both(kind: int, mode: str) -> None:
    world = two(mode=mode, limits=LIMITS)
    consumers = {"a": consumer(world["a"], kind=kind)}
    world.advance(2_000)
    consumers["b"] = consumer(world["b"], kind=kind)
    got = work(world, consumers, 20_000)
    assert min(got.values()) > 30, f"of 40 messages most come in both: {got}"
    for node in world.nodes.values():
        assert len(warnings(node)) == 1
        assert all("subscription s of persistent://public/default/t" in text for text in warnings(node))


def test_it_is_said_again_after_an_hour_and_not_before() -> None:
    world = two(limits=LIMITS)
    consumers = {name: consumer(world[name], kind=SHARED) for name in "a"}
    world.advance(2_000)
    consumers["b"] = consumer(world["b"], kind=SHARED)
    work(world, consumers, 20_000)
    assert len(warnings(world["b"])) == 1
    world.advance(BOTH_AGAIN_MS)
    work(world, consumers, 20_000)
    assert len(warnings(world["b"])) == 2


def test_a_consumer_that_moves_is_not_warned_of() -> None:
    world = two(limits=LIMITS)
    first = consumer(world["a"], kind=SHARED)
    work(world, {"a": first}, 15_000)
    world["a"].publish(*[b"x"] * 10)
    world.settle()
    client, number = first
    late = client.take(number)
    second = consumer(world["b"], kind=SHARED)
    for message in late:  # what it still holds it acknowledges while the other one works
        client.ack(number, message)
    work(world, {"b": second}, 1_000)
    world["a"].run(world["a"].broker.disconnected, client.number)
    work(world, {"b": second}, 20_000)
    assert not warnings(world["a"])
    assert not warnings(world["b"])


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_subscription_that_is_consumed_in_one_cluster_is_not_warned_of(mode: str) -> None:
    """Also with a consumer elsewhere that only stands by: it acknowledges nothing."""
    world = two(mode=mode, limits=LIMITS)
    first = consumer(world["a"], kind=SHARED)
    world.advance(2_000)
    consumer(world["b"], kind=SHARED)
    work(world, {"a": first}, 20_000)
    assert not warnings(world["a"])
    assert not warnings(world["b"])


def test_who_hands_on_what_is_acknowledged_here_is_no_other_consumer() -> None:
    """From a to c no link leads: b tells c what a acknowledges, and a hears it, too."""
    world = two("abc", limits=LIMITS, routes=[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")])
    world.advance(2_000)
    first = consumer(world["a"], kind=SHARED)
    world.advance(2_000)
    work(world, {"a": first}, 20_000)
    assert not any(warnings(node) for node in world.nodes.values())
