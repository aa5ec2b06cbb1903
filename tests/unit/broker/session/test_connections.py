"""Thousands of connections that come and go: what each leaves behind, and that those who say nothing are closed in time."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.effects.outbox import Close, Timer
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from tests.support.geoworld import Node, World


def visit(node: Node, times: int) -> None:
    """Connect, shake hands, go."""
    for _ in range(times):
        number = node.client().number
        node.run(node.broker.disconnected, number)
        del node.clients[number]


def circles(world: World, come_and_go: Callable[[int], None]) -> int:
    """Containers in circles that ten comings and goings leave."""
    come_and_go(3)
    world.advance(5_000)
    gc.collect()
    gc.disable()
    try:
        come_and_go(10)
        world.advance(5_000)
        return gc.collect()
    finally:
        gc.enable()


def test_a_connection_leaves_next_to_nothing_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    node = World("a")["a"]
    monkeypatch.setattr(node.broker, "validate", lambda: None)
    visit(node, 10)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        visit(node, 200)
        left = (len(gc.get_objects()) - before) / 200
    finally:
        gc.enable()
    assert left < 20, f"{left} objects of each wait for the collector"


@pytest.mark.parametrize("topic", ["persistent://public/default/t", "non-persistent://public/default/n"])
def test_a_connection_that_had_everything_leaves_no_circle(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Not even while answers to it are on their way."""
    world = World("a")
    node = world["a"]
    monkeypatch.setattr(node.broker, "validate", lambda: None)

    def visit(times: int) -> None:
        for _ in range(times):
            client = node.client()
            client.subscribe("s", 1, topic=topic, replicated=False)
            client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=900)))
            world.settle()
            client.send(
                pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=topic + "-2", producer_id=2, request_id=901))
            )
            watch = pb.CommandWatchTopicList(
                request_id=902,
                watcher_id=1,
                namespace="public/default",
                topics_pattern="persistent://public/default/.*",
            )
            client.send(pb.BaseCommand(type=64, watchTopicList=watch))
            node.run(node.broker.disconnected, client.number)
            del node.clients[client.number]
            world.settle()

    assert circles(world, visit) == 0


def test_a_links_connection_leaves_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("a")
    node = world["a"]
    monkeypatch.setattr(node.broker, "validate", lambda: None)
    connect = pb.CommandConnect(
        client_version="t", protocol_version=20, auth_method_name="magnetar-link", auth_data=node.link_token
    )

    def visit(times: int) -> None:
        for number in range(100, 100 + times):
            node.run(node.broker.connected, number, "test:1")
            node.run(node.broker.frames, number, [Frame(pb.BaseCommand(type=2, connect=connect), b"")])
            assert node.broker.sessions[number].geo is not None
            node.run(node.broker.disconnected, number)

    assert circles(world, visit) == 0


@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["exclusive", "shared", "failover", "key_shared"])
def test_a_subscription_leaves_nothing_for_the_collector(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """What survived a look of the collector is set aside: a circle that lived some seconds would stay for an hour."""
    world = World("a")
    node = world["a"]
    monkeypatch.setattr(node.broker, "validate", lambda: None)
    client = node.client()

    def come_and_go(times: int) -> None:
        for _ in range(times):
            consumer = client.subscribe("s", kind, topic="persistent://public/default/t", replicated=False)
            client.flow(consumer)
            world.settle()
            positions = node.publish(b"one", b"two", topic="persistent://public/default/t")
            world.settle()
            client.ack(consumer, positions[0])
            client.take(consumer)
            client.unsubscribe(consumer)
            world.settle()
            client.answers.clear()

    assert circles(world, come_and_go) == 0


def test_connections_that_do_not_shake_hands_are_closed_when_their_time_is_over_by_one_timer() -> None:
    world = World("a", limits={"handshake_ms_max": 1_000})
    node = world["a"]
    timers: list[Timer] = []
    closed: list[tuple[int, int]] = []

    def watched(kind: type, see: Callable[[Any], object]) -> None:
        perform = node.host.carry_out[kind]
        node.host.carry_out[kind] = lambda effect: (see(effect), perform(effect))

    watched(Timer, timers.append)
    watched(Close, lambda effect: closed.append((world.now_ms - start, effect.connection)))
    start = world.now_ms
    for number in range(1, 6):
        node.run(node.broker.connected, 1_000 + number, "test:1")
        world.advance(100)
    shaken = node.client()
    node.run(node.broker.disconnected, 1_003)
    assert len([timer for timer in timers if timer.at_ms == start + 1_000]) == 1
    assert len(timers) == 1, "the others have none of their own"
    world.advance(2_000)
    assert closed == [(1_000, 1_001), (1_100, 1_002), (1_300, 1_004), (1_400, 1_005)]
    assert shaken.number in node.broker.sessions
    node.run(node.broker.connected, 2_000, "test:1")
    world.advance(1_000)
    assert closed[-1][1] == 2_000, "the timer comes again with the next one"
