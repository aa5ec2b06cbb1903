"""What keeps a cluster from being switched off, asked of whole brokers."""

from collections.abc import Callable

import pytest

from magnetar.broker.admin.draining import DrainState
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.snapshots.machine import Snapshots
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, World


def look(world: World, name: str = "a") -> DrainState:
    return world[name].control.links.drain()


def made() -> World:
    world = World("abc")
    world["a"].create()
    world.advance(1_000)
    assert look(world)["safe"]
    return world


def test_messages_wait_for_every_destination() -> None:
    world = made()
    world.cut = {("a", "c")}
    world["a"].publish(b"x", b"y")
    waiting = look(world)
    assert not waiting["safe"]
    assert [(link["target"], link["messages"], link["entries"]) for link in waiting["links"]] == [
        ("b", 2, 2),
        ("c", 2, 2),
    ]
    world.settle()
    waiting = look(world)
    assert [(link["target"], link["topics_waiting"]) for link in waiting["links"]] == [("b", 0), ("c", 1)]
    assert {link["topics_linked"] for link in waiting["links"]} == {1}
    (topic,) = waiting["links"][1]["topics"]
    assert topic["topic"] == TOPIC and "no pipeline serves this link" in topic["reason"]
    world.cut = set()
    world.settle()
    assert look(world)["safe"]


def test_paused_topics_are_named_with_the_command_to_run() -> None:
    world = made()
    world["a"].control_call(lambda done: world["a"].control.links.pause("b", TOPIC, done))
    world["a"].publish(b"x")
    (link, _) = look(world)["links"]
    assert link["topics"][0]["reason"] == f"paused: magnetar links resume a:b --topic {TOPIC}"


def test_a_pipeline_that_is_gone_serves_no_link() -> None:
    """What it left behind looked as if it were on its way, for as long as this broker ran; nor was a failover refused."""
    world = made()
    node, other = world["a"], 77
    world.cut = {("a", "b")}
    node.publish(b"x")
    poll = pb.CommandGeoTopics(request_id=1, to="b", pipeline="p", lease_ms=10_000)
    node.run(node.broker.links.sources["b"].poll, other, poll, lambda _told: None)
    node.client().subscribe("s")
    world.settle()
    (link, _) = look(world)["links"]
    assert (link["state"], link["topics"][0]["reason"]) == ("up", "on its way")
    assert node.control.failovers.state(TOPIC, "s")["links"]["b"]["lease"]
    node.run(node.broker.links.disconnected, other)
    world.advance(2_000)
    node.publish(b"y")
    (link, _) = look(world)["links"]
    assert link["state"] == "idle" and "no pipeline serves this link" in link["topics"][0]["reason"]
    assert not node.control.failovers.state(TOPIC, "s")["links"]["b"]["lease"]


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_look_works_out_nothing_of_what_waits_for_nobody(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand replicated subscriptions the broker served nobody for two seconds, up to ten times a second."""
    world = World("ab", mode=mode)
    node = world["a"]
    node.create()
    client = node.client()
    number = client.subscribe("s", 1)
    positions = node.publish(b"0", b"1", b"2")
    world.advance(2_000)
    client.ack(number, positions[2])
    world.advance(2_000)

    def worked_out(*_: object) -> None:
        raise AssertionError("of a topic that is settled")

    for kind in (AckedSets, Snapshots):
        monkeypatch.setattr(kind, "describe", worked_out)
    monkeypatch.setattr("magnetar.broker.links.reports.LinkReporter._topic_state", worked_out)
    waiting = look(world)
    assert waiting["safe"] == (mode == "exact")
    assert ["consume those" in one["reason"] for one in waiting["subscriptions"]] == ([] if mode == "exact" else [True])


def test_messages_of_others_do_not_count() -> None:
    world = made()
    world["b"].publish(b"x")
    world.settle()
    assert look(world)["safe"] and look(world, "b")["safe"]


def test_writes_on_their_way_count() -> None:
    world = made()
    node = world["a"]
    node.hold_log = True
    node.publish(b"x")
    assert (look(world)["safe"], look(world)["writes"]) == (False, 1)


def test_producers_are_named() -> None:
    world = made()
    client = world["a"].client()
    command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p-1")
    client.send(pb.BaseCommand(type=5, producer=command))
    world.settle()
    state = look(world)
    assert (state["safe"], state["producers_connected"]) == (False, 1)
    assert state["producers"][0]["producer"] == "p-1" and state["producers"][0]["topic"] == TOPIC


def test_acknowledgements_wait_until_they_are_written_and_delivered() -> None:
    world = made()
    node = world["a"]
    client = node.client()
    consumer = client.subscribe("s", kind=1)
    world.advance(1_000)
    client.flow(consumer)
    node.publish(b"x", b"y")
    world.advance(1_000)
    assert look(world)["safe"]
    for message in client.take(consumer):
        client.ack(consumer, message)
    world.work()
    state = look(world)
    assert (state["safe"], state["subscriptions_waiting"]) == (False, 1)
    (waiting,) = state["subscriptions"]
    assert (waiting["subscription"], waiting["reason"]) == ("s", "2 acknowledgements are not written yet")
    world.cut = {("a", "b")}
    world.advance(1_000)
    state = look(world)
    assert (state["subscriptions_waiting"], state["links"][0]["messages"], state["links"][0]["entries"]) == (0, 0, 1)
    world.cut = set()
    world.advance(1_000)
    assert look(world)["safe"]


def snapshot_world_with_a_hole() -> tuple[World, Callable[[], None]]:
    """Six messages in two clusters in snapshot mode; all but the first two are acknowledged. What fills the hole."""
    world = World("ab", mode="snapshot")
    world["a"].create()
    client = world["a"].client()
    consumer = client.subscribe("s", kind=1)
    world.advance(3_000)
    client.flow(consumer)
    world["a"].publish(*(b"x" for _ in range(6)))
    world.advance(3_000)
    messages = client.take(consumer)
    client.ack(consumer, *messages[2:])
    world.advance(60_000)
    return world, lambda: client.ack(consumer, *messages[:2])


def test_snapshot_mode_says_what_to_do_about_what_it_cannot_tell() -> None:
    """No snapshot is passed while something in front of what is acknowledged is not: waiting alone would never end."""
    world, fill = snapshot_world_with_a_hole()
    state = look(world)
    assert (state["safe"], state["subscriptions_waiting"]) == (False, 1)
    reason = state["subscriptions"][0]["reason"]
    assert "consume those" in reason and "magnetar failover" in reason
    fill()
    world.advance(10_000)
    assert look(world)["safe"]


def test_a_subscription_that_was_moved_keeps_nothing_to_itself() -> None:
    world, _ = snapshot_world_with_a_hole()
    here, there = world["a"], world["b"]
    here.control.failovers.begin(TOPIC, "s", "b", "", 200, lambda _error: None)
    world.advance(5_000)
    token = str(here.broker.fences.fence(TOPIC, "s").token)
    assert not look(world)["safe"], "it is not moved yet"
    for node, step in ((there, "activate"), (here, "complete")):
        node.control.failovers.step(step, TOPIC, "s", token, lambda _error: None)
        world.advance(1_000)
    assert there.topic.subscriptions["s"].backlog_entries() == 2, "the target has every acknowledgement"
    assert look(world)["safe"]


def test_what_no_link_takes_is_told() -> None:
    world = World("ab", routes=[])
    world["a"].create()
    world["a"].publish(b"x", b"y", b"z")
    state = look(world)
    assert (state["safe"], state["only_here_topics"], state["only_here_messages"]) == (True, 1, 3)
