"""A planned failover's target goes on only while it has the source's final state."""

import pytest

from magnetar.core.errors import MagnetarError
from magnetar.metadata.errors import BadRequest, Conflict
from magnetar.replication.failover import Token
from magnetar.wire.acksets import TIME_MS_MAX
from tests.support.geoworld import TOPIC, Node, World


def fenced() -> tuple[World, str]:
    """A subscription that is on its way from a to b, and the failover's token; its final state is written, and in a only."""
    world = World("ab")
    world["a"].create()
    world.settle()
    client = world["a"].client()
    number = client.subscribe("s", 1)
    world.settle()
    client.flow(number)
    stored = world["a"].publish(b"0", b"1")
    world["b"].publish(b"2")
    world.advance(500)
    client.ack(number, stored[0])
    world.advance(3_000)
    world.cut.add(("a", "b"))
    assert (
        world["a"].control_call(lambda done: world["a"].control.failovers.begin(TOPIC, "s", "b", "", 0, done)) is None
    )
    fence = world["a"].broker.fences.fence(TOPIC, "s")
    assert fence.final is not None
    return world, str(fence.token)


def activate(node: Node, token: str) -> MagnetarError | None:
    found: MagnetarError | None = node.control_call(
        lambda done: node.control.failovers.step("activate", TOPIC, "s", token, done)
    )
    return found


def test_without_the_final_state_it_is_refused() -> None:
    world, token = fenced()
    refused = activate(world["b"], token)
    assert isinstance(refused, Conflict)
    assert "final state is not in b" in str(refused)
    world.cut.clear()
    world.advance(1_000)
    assert activate(world["b"], token) is None
    assert activate(world["b"], token) is None, "it may be repeated"


def test_it_is_known_after_a_restart_too() -> None:
    world, token = fenced()
    world.cut.clear()
    world.advance(2_000)
    world["b"].restart()
    assert activate(world["b"], token) is None


def test_what_a_replay_found_is_known_after_the_next_restart_too() -> None:
    world, token = fenced()
    node = world["b"]
    node.hold_stores = True
    world.cut.clear()
    world.advance(2_000)
    node.restart()
    node.hold_stores = False
    world.advance(66_000)  # a round of retention, which moves the checkpoint
    host, log = node.topic.replicated_subscriptions, node.topic.log
    assert host is not None and not log.markers_between(host.states.checkpoint, log.last), "no replay reads it again"
    node.restart()
    world.advance(1_000)
    assert activate(node, token) is None


def test_the_final_state_of_another_failover_is_not_enough() -> None:
    world, token = fenced()
    world.cut.clear()
    world.advance(1_000)
    time, _, cluster = token.partition("@")
    for other in (-1, 1):  # an earlier one, too: its clock may have been set back
        assert isinstance(activate(world["b"], f"{int(time) + other}@{cluster}"), Conflict)


def test_a_failover_is_later_than_all_whose_final_state_was_heard() -> None:
    """Also when the clock was set back, and with the disk the fence was lost."""
    world, token = fenced()
    world.cut.clear()
    world.advance(1_000)
    world.now_ms -= 500_000
    began = world["b"].control_call(lambda done: world["b"].control.failovers.begin(TOPIC, "s", "a", "", 0, done))
    assert began is None
    assert world["b"].broker.fences.fence(TOPIC, "s").token > Token.parse(token)


def moved(world: World, source: str, target: str, above: str = "") -> Token:
    """A failover from one to the other, step by step."""
    there, here = world[target], world[source]
    assert here.control_call(lambda done: here.control.failovers.begin(TOPIC, "s", target, above, 0, done)) is None
    token = here.broker.fences.fence(TOPIC, "s").token
    world.advance(2_000)
    assert activate(there, str(token)) is None
    assert here.control_call(lambda done: here.control.failovers.step("complete", TOPIC, "s", str(token), done)) is None
    return token


def test_however_late_the_others_say_it_is_there_is_a_later_time() -> None:
    world = World("ab")
    world["a"].create()
    world.settle()
    world["a"].client().subscribe("s", 1)
    world.advance(1_000)
    control = world["a"].control
    for refused in (TIME_MS_MAX, TIME_MS_MAX - 1, TIME_MS_MAX - (1 << 40)):
        with pytest.raises(BadRequest, match="no room for later ones"):
            control.failovers.begin(TOPIC, "s", "b", f"{refused}@b", 0, lambda _: None)
        with pytest.raises(BadRequest, match="no room for later ones"):
            control.failovers.step("give-up", TOPIC, "s", f"{refused}@b", lambda _: None)
    latest = TIME_MS_MAX - (1 << 40) - 1
    above = f"{latest}@b"
    for source, target in ("ab", "ba", "ab"):
        above = str(moved(world, source, target, above))
    assert Token.parse(above).time_ms == latest + 3
    for name in "ab":
        world[name].restart()
        world.advance(1_000)
        told = world[name].topic.replicated_subscriptions
        assert told is not None
        assert told.metrics()["exact_damaged_states"] == told.metrics()["exact_malformed"] == 0
