"""What is shown of how far other clusters are behind, and because of whom."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.replicated_subscriptions.progress import MARKERS_MAX, Lag, Progress, subscriptions_in
from magnetar.core.ids import EARLIEST, NONE, OriginKey, Position
from magnetar.replication.marker_host import Acked
from magnetar.replication.snapshots.unreported import UNREPORTED_MAX, Unreported
from magnetar.wire.acksets import CREATION, AckedSet, AckedSetsMarker, Epoch, SoughtEpoch, StateRequest
from magnetar.wire.markers import Claim, Marker, Snapshot, SnapshotRequest, SnapshotResponse, Update, build_marker
from tests.support.geosteps import SHARED, consumer, set_mode, two
from tests.support.geoworld import TOPIC, Client, Node, World
from tests.unit.replication.snapshots.host import Host


def shown(node: Node) -> dict[str, Any]:
    node.run(lambda: None)  # so that it looks at its clock
    (state,) = node.control.replicated.subscriptions(TOPIC)
    return state


def lag(node: Node, target: str = "b") -> tuple[int, int]:
    towards = shown(node)["towards"][target]
    return towards["lagMessages"], towards["lagMs"]


# ------------------------------------------------------------------------------------------------------ snapshot mode


def unanswered() -> tuple[World, Client, int]:
    """Snapshots of a never come back from b, which lacks six messages that were acknowledged in a."""
    world = two(mode="snapshot")
    client, number = consumer(world["a"])
    world.advance(3_000)
    world.cut.add(("b", "a"))
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, positions[5], cumulative=True)
    return world, client, number


def test_who_does_not_answer_snapshots_is_told_and_what_it_lacks_counts() -> None:
    world, client, number = unanswered()
    world.advance(5_000)
    assert shown(world["a"])["stalled"] == "", "within the timeout"
    assert lag(world["a"])[0] == 6
    assert 3_000 <= lag(world["a"])[1] <= 5_000
    world.advance(25_000)
    for _ in range(20):
        (position,) = world["a"].publish(b"y")
        client.ack(number, position)
        world.advance(1_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 26
    messages, since_ms = lag(world["a"])
    assert messages == 26
    assert 48_000 <= since_ms <= 50_000
    state = shown(world["a"])
    assert state["stalled"] == "b has not answered a snapshot since 2023-11-14T22:13:23Z; 1 was dropped"
    assert state["untold"] == 26
    world.advance(40_000)
    assert shown(world["a"])["stalled"].endswith("; 2 were dropped")
    world.cut.clear()
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0
    assert lag(world["a"]) == (0, 0)
    state = shown(world["a"])
    assert (state["stalled"], state["untold"], state["untoldSinceMs"], state["dropped"]) == ("", 0, 0, 0)


def test_an_update_that_waits_for_its_link_counts_from_the_acknowledgement_on() -> None:
    world = two(mode="snapshot")
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, positions[1], cumulative=True)
    world.advance(3_000)
    assert lag(world["a"])[0] == 2, "no snapshot was passed"
    world.cut.add(("a", "b"))
    client.ack(number, positions[5], cumulative=True)
    world.advance(3_000)
    state = shown(world["a"])
    assert (state["untold"], state["toTell"]) == (0, False)
    messages, since_ms = lag(world["a"])
    assert messages == 6
    assert 4_000 <= since_ms <= 6_000
    later = world["a"].publish(b"6", b"7", b"8")
    client.ack(number, later[0])
    world.settle()
    assert lag(world["a"])[0] == 7
    world.cut.clear()
    world.settle()
    assert lag(world["a"])[0] == 1, "the update has six of them"
    client.ack(number, later[2], cumulative=True)
    world.advance(3_000)
    assert lag(world["a"]) == (0, 0)


def test_what_lies_behind_a_hole_is_not_told_and_a_seek_takes_it_back() -> None:
    for seeking in "ab":
        world = two(mode="snapshot")
        client, number = consumer(world["a"], kind=SHARED)
        positions = world["a"].publish(*(b"%d" % n for n in range(6)))
        world.advance(3_000)
        client.ack(number, *positions[2:])
        world.advance(20_000)
        assert lag(world["a"])[0] == 4
        assert lag(world["a"])[1] >= 18_000
        other = consumer(world["b"], kind=SHARED) if seeking == "b" else (client, number)
        other[0].seek(other[1], EARLIEST)
        world.advance(5_000)
        assert lag(world["a"]) == (0, 0), f"{seeking} sought: nothing from before will be told"


def test_a_failover_takes_along_what_lies_behind_a_hole() -> None:
    world = two(mode="snapshot")
    client, number = consumer(world["a"], kind=SHARED)
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, *positions[2:])
    world["a"].control.failovers.begin(TOPIC, "s", "b", "", 200, lambda _error: None)
    world.advance(5_000)
    assert lag(world["a"])[0] == 4, "it may be put back"
    token = str(world["a"].broker.fences.fence(TOPIC, "s").token)
    for name, step in (("b", "activate"), ("a", "complete")):
        world[name].control.failovers.step(step, TOPIC, "s", token, lambda _error: None)
        world.advance(1_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 2
    assert lag(world["a"]) == (0, 0)


def test_after_a_restart_what_was_not_told_still_counts() -> None:
    world, _, _ = unanswered()
    world.advance(5_000)
    world["a"].restart()
    world.advance(3_000)
    messages, since_ms = lag(world["a"])
    assert messages == 6
    assert 0 < since_ms <= 3_000
    world.cut.clear()
    world.advance(5_000)
    assert lag(world["a"]) == (0, 0)


def test_after_a_restart_the_starting_point_does_not_count() -> None:
    world = two(mode="snapshot")
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.cut.add(("b", "a"))
    client, number = consumer(world["a"], kind=SHARED, earliest=False)
    positions = world["a"].publish(*(b"%d" % n for n in range(6)), batch=10)
    client.ack(number, positions[0], positions[2])
    world.advance(5_000)
    assert lag(world["a"])[0] == 20
    world["a"].restart()
    world.advance(3_000)
    assert lag(world["a"])[0] == 20


def test_a_change_of_the_mode_forgets_nothing_that_is_to_be_told() -> None:
    world, _, _ = unanswered()
    world.cut.add(("a", "b"))
    world.advance(5_000)
    before = lag(world["a"])
    set_mode(world, "exact")
    world.advance(1_000)
    messages, since_ms = lag(world["a"])
    assert messages == 6
    assert since_ms > before[1]
    world.cut.clear()
    world.advance(1_000)
    assert lag(world["a"]) == (0, 0)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0


def test_when_updates_were_written_and_read() -> None:
    world = two(mode="snapshot")
    client, number = consumer(world["a"])
    created_ms = shown(world["a"])["lastSentMs"]
    positions = world["a"].publish(b"0")
    world.advance(3_000)
    client.ack(number, positions[0])
    world.settle()
    sent_ms = shown(world["a"])["lastSentMs"]
    assert sent_ms >= created_ms + 2_000
    assert shown(world["b"])["lastReceivedMs"] == {"a": sent_ms}
    assert shown(world["b"])["lastSentMs"] == 0, "b was told, and tells nothing"
    assert shown(world["a"])["lastReceivedMs"] == {}


# --------------------------------------------------------------------------------------------------------- exact mode


def test_a_marker_counts_from_its_acknowledgements_on_and_only_for_its_subscriptions() -> None:
    world = two()
    client, number = consumer(world["a"])
    other, there = consumer(world["a"], "t")
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.advance(1_000)
    world.cut.add(("a", "b"))
    client.ack(number, positions[0], positions[2])
    world.advance(2_000)
    states = {
        state["subscription"]: state["towards"]["b"] for state in world["a"].control.replicated.subscriptions(TOPIC)
    }
    assert states["s"]["lagMessages"] == 2
    assert states["s"]["lagMs"] > 0
    assert states["t"] == {"lagMessages": 0, "lagMs": 0, "stalled": ""}
    # Told at once, and alone: what is collected of another subscription is not in that marker.
    client.ack(number, positions[1])
    other.seek(there, EARLIEST)
    world.cut.clear()
    world.settle()
    assert lag_of(world["a"], "s") == 1
    world.advance(5_000)  # the link was slow a moment ago
    assert lag_of(world["a"], "s") == 0


def lag_of(node: Node, subscription: str) -> int:
    states = {state["subscription"]: state for state in node.control.replicated.subscriptions(TOPIC)}
    return int(states[subscription]["towards"]["b"]["lagMessages"])


def test_what_is_acknowledged_while_a_marker_is_written_is_not_in_it() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.advance(1_000)
    node = world["a"]
    node.hold_log = True
    client.ack(number, positions[0])
    world.advance(200)
    assert node.log._queue
    client.ack(number, positions[1])
    assert lag(node)[0] == 2
    node.hold_log = False
    world.settle()
    assert lag(node)[0] == 1
    world.advance(1_000)
    assert lag(node) == (0, 0)


def test_a_marker_that_was_not_written_carries_nothing() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world.advance(1_000)
    node = world["a"]
    node.hold_log = True
    client.ack(number, positions[0])
    world.advance(200)
    lost, node.log._queue = list(node.log._queue), []
    assert lost
    node.run(node.broker.append_failed, lost, "the disk failed")
    assert lag(node)[0] == 1
    node.hold_log = False
    node.run(node.broker.healed)
    world.advance(1_000)
    assert lag(node) == (0, 0)


def test_another_clusters_seek_takes_back_what_was_to_be_told() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1")
    world["b"].publish(b"2")
    world.advance(1_000)
    other, there = consumer(world["b"])
    other.seek(there, EARLIEST)
    client.ack(number, positions[0])
    world.settle()
    world.advance(5_000)
    assert lag(world["a"]) == (0, 0)


@pytest.mark.parametrize("looking", [False, True])
def test_looking_changes_no_figure(looking: bool) -> None:
    """What a seek took back never counts again, whether somebody looked in between or not."""
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2", b"3")
    world.advance(1_000)
    other, there = consumer(world["b"])
    client.ack(number, *positions[:3])
    other.seek(there, EARLIEST)
    world.advance(5_000)
    progress = world["a"].topic.replicated_subscriptions.progress  # type: ignore[union-attr]
    progress.collect("s", Lag(3, 1_000))  # as a race of the seek with the acknowledgements leaves it
    before = dict(progress._collected), list(progress._under_way), list(progress._written)
    if looking:
        assert lag(world["a"]) == (0, 0)
        after = progress._collected, progress._under_way, list(progress._written)
        assert after == before, "describing changes nothing"
    world.cut.add(("a", "b"))
    client, number = consumer(world["a"])
    client.ack(number, positions[3])
    world.advance(2_000)
    assert lag(world["a"])[0] == 1
    assert lag(world["a"])[1] <= 2_000


def test_a_cluster_that_spoke_once_and_is_down_holds_acknowledgements() -> None:
    world = two("abc", limits={"ledger_entries_max": 2, "retention_interval_ms": 1000})
    clients = {name: consumer(world[name], kind=SHARED) for name in "abc"}

    def consume(name: str) -> None:
        client, number = clients[name]
        client.ack(number, *client.take(number))
        world.advance(2_000)

    world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(500)
    consume("c")
    assert shown(world["a"])["lastReceivedMs"]["c"] > 0
    world["c"].kill()
    for _ in range(6):
        world["a"].publish(b"x", b"y")
        world.advance(500)
        consume("a")
        world["b"].publish(b"z")
        world.advance(500)
        consume("b")
    assert shown(world["a"])["heldBy"] == ["c"]


# -------------------------------------------------------------------------------------------------------------- parts


def acked(subscription: str, part: int) -> AckedSet:
    """One of two parts of what a marker says of a subscription: only with the last all of it is told."""
    return AckedSet(subscription, CREATION, False, part, 2, {}, None, (), None)


@pytest.mark.parametrize(
    ("marker", "names"),
    [
        (SnapshotRequest("i", "a"), ()),
        (SnapshotResponse("i", "a", Position(1, 1)), ()),
        (Snapshot("i", Position(1, 1), {}, {}), ()),
        (SoughtEpoch("a", "s", Epoch(1, 5, "a", 1)), ()),
        (StateRequest("a", ("s",)), ()),
        (Update("s", {"b": NONE}, Claim({}, created=True)), ()),
        (Update("s", {"b": NONE}, Claim({OriginKey("a", 1): [(0, 3)]})), ("s",)),
        (Update("s", {"b": Position(1, 1)}), ("s",)),
        (AckedSetsMarker("a", 1, 9, (), (), (acked("s", 1), acked("t", 2))), ("t",)),
    ],
)
def test_markers_that_carry_acknowledgements(marker: Marker, names: tuple[str, ...]) -> None:
    assert subscriptions_in(build_marker(marker, 1)) == names


def test_what_was_not_written_is_collected_again() -> None:
    progress = Progress(Host().log)
    progress.collect("s", Lag(3, 1_000))
    first = progress.begin(("s", "t"), 1_100)
    progress.collect("s", Lag(2, 1_200))
    assert first is not None
    assert progress.lag("s", NONE) == Lag(5, 1_000)
    progress.failed(first)
    assert progress.lag("s", NONE) == Lag(5, 1_000)
    assert progress.lag("t", NONE) == Lag(), "it carried nothing of that"
    second = progress.begin(("s",), 1_300)
    assert second is not None
    progress.healed()
    progress.written(second, Position(7, 1), 1_400)
    assert progress.lag("s", Position(7, 1)) == Lag(5, 1_000), (
        "whoever says so after the storage has healed is too late"
    )
    assert progress.waiting_since(NONE) == 0
    third = progress.begin(("s",), 1_500)
    assert third is not None
    progress.written(third, Position(7, 2), 1_600)
    assert progress.lag("s", Position(7, 1)) == Lag(5, 1_000)
    assert progress.waiting_since(Position(7, 1)) == 1_600
    assert progress.lag("s", Position(7, 2)) == Lag()
    progress.forget("s")
    assert progress.lag("s", NONE) == Lag()
    assert progress.begin((), 1_700) is None


def test_many_markers_make_times_coarser_and_lose_no_message() -> None:
    progress = Progress(Host().log)
    for n in range(10 * MARKERS_MAX):
        progress.collect("s", Lag(3, 1_000 + n))
        made = progress.begin(("s",), 1_000 + n)
        assert made is not None
        progress.written(made, Position(7, n), 1_000 + n)
    assert progress.lag("s", NONE) == Lag(30 * MARKERS_MAX, 1_000)
    # A link that is always as far behind: what it has carried no longer counts, up to one step of the coarse ones.
    messages, since_ms = progress.lag("s", Position(7, 8 * MARKERS_MAX))
    assert 6 * MARKERS_MAX - 3 <= messages <= 6 * MARKERS_MAX + 100
    assert since_ms > 1_000 + 8 * MARKERS_MAX - 50
    assert progress.lag("t", NONE) == Lag()


def test_many_acknowledgements_that_wait_for_an_update() -> None:
    host = Host("b")
    host.subscribe()
    state = host.machine.states["s"]
    untold = Unreported(host.log, state)
    publish: Callable[[], Position] = host.publish
    positions = [publish() for _ in range(3 * UNREPORTED_MAX)]
    for n, position in enumerate(positions):
        untold.acknowledged(Acked(entries=(position,)), 1_000 + n)
    assert untold.look() == (3 * UNREPORTED_MAX, 1_000)
    state.reported = positions[2 * UNREPORTED_MAX - 1]
    messages, since_ms = untold.look()
    assert UNREPORTED_MAX <= messages <= UNREPORTED_MAX + 8
    assert 1_000 + 2 * UNREPORTED_MAX - 8 <= since_ms <= 1_000 + 2 * UNREPORTED_MAX
    state.reported = positions[-1]
    assert untold.look() == (0, 0)
    state.reported = NONE
    untold.acknowledged(Acked(after=NONE, up_to=positions[9]), 5_000)
    assert untold.look() == (10, 5_000)
    state.restart()
    assert untold.look() == (0, 0)
