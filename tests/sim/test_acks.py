"""The world's memory of acknowledgements: an update of snapshot mode may claim what its writer may count."""

import pytest

from magnetar.core.ids import OriginKey, Position
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.acksets import CREATION, AckedSet, AckedSetsMarker
from magnetar.wire.markers import Claim, Update, build_marker
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.memory.records import Violation
from magnetar_sim.world import World

AT = Position(7, 0)
ORIGIN = OriginKey("b", 5)


def _update(position: Position, *messages: int, origin: str = "") -> StoredEntry:
    """As a disk has it: in the writer's log, or in that of a cluster that a link brought it to. `messages` in one run."""
    claim = Claim({ORIGIN: [(messages[0], messages[-1] + 1)]} if messages else {})
    data = build_marker(Update("s", {}, claim), 0)
    return StoredEntry(*position, EntryFlags.MARKER, 1, 0, 0, origin, 5 if origin else 0, -1, AT, data)


def _world() -> tuple[World, str]:
    """Messages 1, 2, 23 and 24 are b's, under these numbers."""
    world = World(3, "snapshot", checkers=CHECKERS)
    for each in (1, 2, 23, 24):
        world.truth.messages[world.context.topics[0], ORIGIN.cluster, ORIGIN.incarnation, each] = each
    return world, world.context.topics[0]


def test_what_was_sought_back_after_an_update_was_written_may_still_be_claimed_by_it() -> None:
    """Seed 524: b sought to the end, wrote an update, and sought back; a got the update when all that was over."""
    world, topic = _world()
    writer, reader = world.clusters["b"], world.clusters["a"]
    truth = world.acks.get(("b", topic, "s"))
    truth.may = {23, 24}
    world.acks.marker_stored(writer, topic, _update(AT, 23, 24))
    truth.may = set()
    world.acks.marker_stored(reader, topic, _update(Position(9, 4), 23, 24, origin="b"))
    assert world.acks.get(("a", topic, "s")).may == {23, 24}


def test_an_update_on_its_way_to_the_disk_when_the_seek_came_counts_too() -> None:
    world, topic = _world()
    world.acks.get(("b", topic, "s")).undone = {23}
    world.acks.marker_stored(world.clusters["b"], topic, _update(AT, 23))
    world.acks.marker_stored(world.clusters["a"], topic, _update(Position(9, 4), 23, origin="b"))
    assert world.acks.get(("a", topic, "s")).may == {23}


def test_what_was_acknowledged_after_an_update_was_written_is_not_claimed_by_it() -> None:
    """Else what the writer knows when its update arrives would pass for claimed: a machine that invents would go unseen."""
    world, topic = _world()
    truth = world.acks.get(("b", topic, "s"))
    truth.may = {1}
    world.acks.marker_stored(world.clusters["b"], topic, _update(AT, 1))
    truth.may = {1, 2}
    world.acks.marker_stored(world.clusters["a"], topic, _update(Position(9, 4), 1, origin="b"))
    assert world.acks.get(("a", topic, "s")).may == {1}


def test_an_update_that_claims_what_its_writer_cannot_know_is_noticed() -> None:
    world, topic = _world()
    world.acks.get(("b", topic, "s")).may = {1}
    with pytest.raises(Violation, match="cannot know"):
        world.acks.marker_stored(world.clusters["b"], topic, _update(AT, 1, 2))


def test_the_final_state_of_a_failover_counts_in_snapshot_mode_too() -> None:
    """Seed 2515: a sought forward, and moved to b: what the seek passed over counts in b."""
    world, topic = _world()
    world.acks.get(("a", topic, "s")).may = {1, 2}
    final = AckedSetsMarker("a", 5, 9, (), (), (AckedSet("s", CREATION, True, 1, 1, {}, None, (), None),))
    data = build_marker(final, 0)
    for name, entry in (("a", _update(AT)), ("b", _update(Position(9, 4), origin="a"))):
        world.acks.marker_stored(world.clusters[name], topic, entry._replace(data=data))
    assert world.acks.get(("b", topic, "s")).may == {1, 2}
