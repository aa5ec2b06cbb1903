"""Markers of other clusters that claim what this one never published: in both modes, both machines read both modes' markers."""

from collections.abc import Mapping

import pytest

from magnetar.core.ids import OriginKey
from magnetar.wire.acksets import TIME_MS_MAX
from magnetar.wire.markers import Claim, Update, build_marker
from tests.support.geoworld import Node, World
from tests.unit.broker.test_replicated import consumer, got, two

MODES = pytest.mark.parametrize("mode", ["exact", "snapshot"])

Runs = Mapping[OriginKey, list[tuple[int, int]]]


def told(node: Node, name: str, acked: Runs, base: Runs) -> None:
    """A cluster writes an update with this claim."""
    marker = build_marker(Update(name, {}, Claim(acked, base)), node.world.now_ms)
    node.run(lambda: node.topic.replicated.append_marker(marker, ()))  # type: ignore[union-attr]
    node.world.advance(3_000)


def warnings(world: World) -> list[str]:
    return [note.text for note in world["a"].notes if note.level == "warning" and "never published" in note.text]


def counted(world: World) -> int:
    replicated = world["a"].topic.replicated
    assert replicated is not None
    return int(replicated.metrics()["snapshot_never_assigned"])


@MODES
@pytest.mark.parametrize("known", [True, False], ids=["a subscription here", "one that the update makes"])
@pytest.mark.parametrize("part", ["acked", "base"])
def test_messages_to_come_are_not_born_acknowledged(mode: str, known: bool, part: str) -> None:
    world = two(mode=mode)
    name = "s" if known else "other"
    client, number = consumer(world["a"], name) if known else (None, 0)
    world.advance(3_000)
    world["a"].publish(b"there")
    world.advance(3_000)
    log = world["a"].topic.log
    forged: Runs = {OriginKey("a", log.incarnation): [(log.next_index - 1, log.next_index + 100)]}
    told(world["b"], name, *((forged, {}) if part == "acked" else ({}, forged)))
    if client is None:
        client, number = consumer(world["a"], name)
    got(client, number)
    world["a"].publish(*(b"%d" % each for each in range(5)))
    world.advance(3_000)
    assert got(client, number) == [b"%d" % each for each in range(5)]
    assert counted(world) == 1
    (line,) = warnings(world)
    assert f"b claims 100 acknowledgements of {name} for messages that were never published" in line


@MODES
def test_what_was_published_counts(mode: str) -> None:
    world = two(mode=mode)
    client, number = consumer(world["a"])
    world.advance(3_000)
    world["a"].publish(*(b"%d" % each for each in range(5)))
    world.advance(3_000)
    assert len(got(client, number)) == 5
    log = world["a"].topic.log
    told(world["b"], "s", {OriginKey("a", log.incarnation): [(0, log.next_index)]}, {})
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0
    assert not warnings(world)


@MODES
def test_a_life_that_no_clock_can_give_is_passed_over(mode: str) -> None:
    """An incarnation is a time: one beyond all times would also be what new topics have to be above."""
    world = two(mode=mode)
    consumer(world["a"])
    world.advance(3_000)
    told(world["b"], "s", {OriginKey("a", TIME_MS_MAX + 1): [(0, 10)]}, {})
    assert counted(world) == 1
    assert world["a"].topic.log._ledger_ids.last < TIME_MS_MAX


@MODES
def test_a_life_to_come_of_this_topic_is_never_lived(mode: str) -> None:
    """The clock will give that incarnation one day: whoever makes the topic then gets one above."""
    world = two(mode=mode)
    consumer(world["a"])
    world.advance(3_000)
    log = world["a"].topic.log
    later = world.now_ms + 1_000_000
    told(world["b"], "s", {OriginKey("a", later): [(0, 10)]}, {})
    assert log._ledger_ids.last == later


@MODES
@pytest.mark.parametrize("part", ["acked", "base"])
def test_an_origin_that_is_no_clusters_name_poisons_no_state(mode: str, part: str) -> None:
    """It would go into the acknowledged set, and the stored set could not be read at the next start."""
    world = two(mode=mode)
    client, number = consumer(world["a"], kind=1)
    world.advance(3_000)
    positions = world["a"].publish(*(b"%d" % each for each in range(4)))
    world.advance(3_000)
    forged: Runs = {OriginKey("no cluster!", 5): [(0, 1)]}
    told(world["b"], "s", *((forged, {}) if part == "acked" else ({}, forged)))
    client.ack(number, positions[2])
    world.advance(3_000)
    before = world["a"].topic.replicated
    assert before is not None
    for name in "ab":
        world[name].restart()
    world.advance(3_000)
    for name in "ab":
        replicated = world[name].topic.replicated
        assert replicated is not None
        assert replicated.metrics()["exact_damaged_states"] == 0
        assert len(got(*consumer(world[name], kind=1))) == (3 if mode == "exact" or name == "a" else 4)
    assert before.metrics()["snapshot_malformed"] == 1
