"""However many lives and clusters markers name: what is kept of them is stored, and can be read again by everybody."""

from collections.abc import Callable

import pytest

from magnetar.core.ids import EARLIEST, LATEST, NONE, OriginKey, Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import too_many
from magnetar.storage.cursor import Cursor
from magnetar.wire.acksets import CLUSTERS_MAX, ORIGINS_MAX, Epoch, LowWater, Mark
from tests.unit.replication.acked_sets.rig import Rig, bits, marker, told, union

SEEK = Epoch(1, 2_000_000, "b", 3)
AHEAD = Epoch(1, 3_000_000, "c", 3)


def lives(cluster: str, first: int, count: int = ORIGINS_MAX) -> MessageSet:
    """A message of each of so many lives."""
    found = MessageSet()
    for incarnation in range(first, first + count):
        found.add_range(OriginKey(cluster, incarnation), 0, 1)
    return found


def claims(rig: Rig) -> None:
    """What several markers say was acknowledged."""
    for turn in range(3):
        rig.hear(marker("b", told(acks=lives("c", 10 + turn * ORIGINS_MAX))))


def bases(rig: Rig) -> None:
    """What one states nothing about is taken from the other."""
    for cluster in ("b", "c"):
        rig.hear(marker(cluster, told(full=True, epoch=SEEK, base=lives(cluster, 10), floor=())))


def a_base_and_claims_and_a_seek_elsewhere(rig: Rig) -> None:
    """What a higher epoch's base does not state stays."""
    rig.hear(marker("b", told(full=True, epoch=SEEK, base=lives("b", 10), floor=())))
    rig.hear(marker("b", told(epoch=SEEK, acks=lives("c", 10))))
    rig.hear(marker("c", told(full=True, epoch=AHEAD, base=MessageSet(), floor=())))


def a_base_and_claims_and_a_seek_here(rig: Rig) -> None:
    """What is not here stays consumed."""
    rig.hear(marker("b", told(full=True, epoch=SEEK, base=lives("b", 10), floor=())))
    rig.hear(marker("b", told(epoch=SEEK, acks=lives("c", 10))))
    rig.machine.sought("s", lambda _error: None)
    rig.sync()


def updates(rig: Rig) -> None:
    """Those of snapshot mode."""
    for turn in range(6):
        claimed = {OriginKey("c", life): [(0, 1)] for life in range(10 + turn * 1000, 1010 + turn * 1000)}
        rig.machine.learnt("s", NONE, "b", claimed, claimed, made=False)


@pytest.mark.parametrize(
    "tell", [claims, bases, a_base_and_claims_and_a_seek_elsewhere, a_base_and_claims_and_a_seek_here, updates]
)
def test_a_state_of_many_lives_is_read_again(tell: Callable[[Rig], None]) -> None:
    rig = Rig()
    rig.subscribe()
    rig.hear(marker("b", told(acks=bits("b", 7))))
    tell(rig)
    rig.machine.validate()
    state = rig.machine.topic.states["s"]
    for kept in (state.acks, state.base):
        assert kept is None or len(kept.origins) <= ORIGINS_MAX
    assert rig.machine.topic.notices.counters["over_limit"] > 0
    assert sum("left out" in text for _, text in rig.notes) == 1, "one line, however often"
    rig.persist()
    rig.restart()
    assert rig.machine.topic.notices.counters["damaged_states"] == 0
    assert rig.machine.topic.states["s"].acks == state.acks and rig.machine.topic.states["s"].base == state.base
    assert rig.pass_time(100_000), "what is written of it is read by others, too"


def test_a_base_from_a_log_of_many_lives_is_read_again() -> None:
    """By a creation behind them, and by a seek to their end."""
    rig = Rig()
    lived = range(10, 10 + ORIGINS_MAX + 5)
    last = rig.store(*(rig.foreign("b", b"", 0, 1, incarnation, 0) for incarnation in lived))
    rig.cursors["s"] = Cursor.at(rig.log, LATEST)
    rig.machine.created("s")
    rig.cursors["t"] = Cursor.at(rig.log, EARLIEST)
    rig.machine.created("t")
    rig.cursors["t"] = Cursor.at(rig.log, LATEST)
    rig.machine.sought("t", lambda _error: None)
    assert {rig.machine.topic.states[name].left_out for name in "st"} == {0}, "it was told"
    assert sum("left out" in text for _, text in rig.notes) == 2
    newest = lives("b", 15)
    written = [one for found in rig.sync() for one in found.sets if one.base is not None]
    assert {one.subscription: MessageSet(one.base) for one in written if one.base} == {"s": newest, "t": newest}
    rig.persist()
    rig.restart()
    assert (
        rig.machine.topic.notices.counters["damaged_states"] == 0
        and rig.machine.topic.notices.counters["malformed"] == 0
    )
    assert rig.machine.topic.states["s"].base == newest == rig.machine.topic.states["t"].base
    assert all(rig.cursors[name].is_acked(last) for name in "st")


def test_what_is_known_stays_and_the_newest_of_what_is_new_comes() -> None:
    rig = Rig()
    rig.subscribe()
    known = lives("b", 10, ORIGINS_MAX - 2)
    rig.hear(marker("b", told(acks=known)))
    rig.hear(marker("b", told(acks=union(lives("c", 10, 5), bits("b", 1, incarnation=11)))))
    assert rig.machine.topic.states["s"].acks == union(known, lives("c", 13, 2), bits("b", 1, incarnation=11))


def test_what_there_is_no_room_for_is_acknowledged_here_alone() -> None:
    rig = Rig()
    rig.subscribe()
    position = rig.publish()
    rig.hear(marker("b", told(acks=lives("c", 10))))
    assert rig.machine.topic.notices.counters["over_limit"] == 0
    rig.ack(position)
    assert rig.machine.topic.notices.counters["over_limit"] == 1
    assert len(rig.machine.topic.states["s"].acks.origins) == ORIGINS_MAX
    assert rig.cursors["s"].is_acked(position)


def test_marks_of_any_number_of_clusters_are_read_again() -> None:
    rig = Rig()
    rig.subscribe()
    for turn in range(3):
        names = [f"x{turn}-{number:03}" for number in range(CLUSTERS_MAX)]
        marks = tuple(Mark(name, 1, 5) for name in names)
        low = [LowWater(name, 1, Position(1, 1), (Mark("a", 1, 1),)) for name in names]
        told_base = told(full=True, epoch=SEEK, base=bits("b", 1), floor=marks)
        rig.hear(marker("b", told_base, low=low, own=marks))
    rig.hear(marker("c", told(), low=[LowWater("c", 3, Position(1, 1), (Mark("b", 3, 7),))], own=[Mark("c", 3, 9)]))
    rig.persist()
    rig.restart()
    assert rig.machine.topic.notices.counters["damaged_states"] == 0
    assert rig.pass_time(100_000)


def test_there_is_room_up_to_the_limit() -> None:
    known = {OriginKey("a", life) for life in range(ORIGINS_MAX - 1)}
    strange = [OriginKey("b", 1), OriginKey("b", 3), OriginKey("b", 2)]
    assert too_many(strange[:1], known) == [] == too_many(known, known)
    assert too_many(strange, known) == [OriginKey("b", 1), OriginKey("b", 2)]
