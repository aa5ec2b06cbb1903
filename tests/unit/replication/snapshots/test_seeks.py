"""Seeks against what others retell."""

import msgspec
import pytest

from magnetar.core.ids import LATEST, OriginKey, Position
from magnetar.replication.snapshots import Snapshots, state
from magnetar.replication.snapshots.state import later
from magnetar.storage.topiclog import Retention
from magnetar.wire.acksets import CREATION, Epoch, SoughtEpoch
from magnetar.wire.markers import CLUSTERS_MAX, Claim, SnapshotRequest, Update, build_marker, parse_marker
from tests.unit.replication.snapshots.host import Host


def retold(incarnation: int) -> int:
    """How many updates `b` gets after its link began anew, having sought in the life 1 of its topic."""
    host = Host("b")
    host.incarnation_of = lambda cluster: incarnation  # type: ignore[method-assign]
    host.subscribe()
    host.ack(host.publish())
    host.answer("b")
    host.told("b", SoughtEpoch("b", "s", Epoch(1, 5, "b", 1)))
    host.written.clear()
    host.machine.rebased("b")
    host.run()
    host.pass_ms(1000)
    if any(isinstance(marker, SnapshotRequest) for marker, _ in host.written):
        host.answer("b", Position(incarnation, 0))
    return len([update for update in host.take(Update) if not update.claim.created])


def test_a_link_that_begins_anew_does_not_undo_a_seek() -> None:
    assert retold(incarnation=1) == 0


def test_a_wiped_cluster_is_told_everything() -> None:
    assert retold(incarnation=2) == 1


def test_a_seek_that_another_cluster_was_told_of_sooner() -> None:
    """Seed snapshot 13 of the simulator: the seek's own marker is no news then, and what was acknowledged before undid it."""
    host = Host("b", "c")
    host.subscribe()
    host.ack(host.publish())
    seek = Epoch(1, 5, "c", 1)
    host.told("b", Update("s", {}, Claim({}, {}, (seek,), created=True)))
    host.told("c", SoughtEpoch("c", "s", seek))
    for cluster in ("b", "c"):
        host.answer(cluster)
    host.pass_ms(1000)
    assert not [update for update in host.take(Update) if update.claim.acked]
    host.ack(host.publish())
    host.pass_ms(1000)
    for cluster in ("b", "c"):
        host.answer(cluster)
    (update,) = (update for update in host.take(Update) if update.claim.acked)
    assert update.claim.seeks == (seek,)


B = OriginKey("b", 1)
BEFORE, BEHIND = Epoch(1, 5, "c", 1), Epoch(1, 9, "c", 1)


def _update(*seeks: Epoch) -> Update:
    return Update("s", {}, Claim({B: [(0, 1)]}, {}, seeks))


def test_an_update_that_does_not_know_the_seek_that_exact_mode_brought_here_does_not_count() -> None:
    host = Host("b", "c")
    first = host.arrives("b", 0)
    cursor = host.subscribe()
    host.held_by_epoch = BEHIND
    host.told("b", _update())
    host.told("b", _update(BEFORE))
    assert not cursor.is_acked(first)
    assert not host.learned
    host.told("b", _update(BEHIND))
    assert cursor.is_acked(first)
    assert [(name, writer) for name, writer, _, _ in host.learned] == [("s", "b")]


def test_an_announcement_that_does_not_know_that_seek_is_answered_by_one_that_names_it() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.held_by_epoch = BEHIND
    host.take(Update)
    host.told("b", Update("s", {}, Claim({}, {}, (), created=True)))
    (answer,) = host.take(Update)
    assert (answer.claim.created, answer.claim.seeks) == (True, (BEHIND,))


@pytest.mark.parametrize("made", ["here", "elsewhere"])
def test_a_creation_that_is_heard_of_after_a_seek_has_no_effect(made: str) -> None:
    """Seed mixed 507 of the simulator: the seek passed over the first message, and its cluster's own starting point had not."""
    host = Host("b", "c")
    passed, behind = host.arrives("b", 0), host.arrives("b", 1)
    if made == "here":
        host.subscribe(at=LATEST)
        host.cursors["s"].reset(behind)
        host.held_by_epoch = Epoch(1, host.now_ms, "a", host.log.incarnation)
        host.machine.sought("s", lambda _: None)
        host.run()
    else:
        host.create("s")
        host.cursors["s"].ack([passed])
        host.held_by_epoch = BEHIND
        host.machine.load("s", None)
    host.told("b", Update("s", {}, Claim({}, {}, (host.held_by_epoch,), created=True)))
    cursor = host.cursors["s"]
    assert not host.rebuilt
    assert cursor.is_acked(passed)
    assert not cursor.is_acked(behind)
    assert [base for _, _, _, base in host.learned] == [{}], "exact mode ignores it as well"


LIVES = [1, 0]
"""Of the topic here: a seek was made in this one, of a subscription that was deleted since, or in the one before."""


def named_by_others(life: int) -> tuple[Host, Position, Epoch]:
    """A subscription that was created again, and another cluster that names the seek of the one before."""
    host = Host("b", "c")
    first = host.arrives("b", 0)
    if life:
        host.subscribe()
        host.machine.sought("s", lambda _: None)
        host.run()
        (former,) = (marker.epoch for marker in host.take(SoughtEpoch))
        del host.cursors["s"]
        host.replicated.clear()
        host.machine.deleted("s")
    else:
        former = Epoch(1, host.now_ms, "a", host.log.incarnation - 1)
    host.subscribe()
    host.told("c", Update("s", {}, Claim({}, {}, (former,), created=True)))
    host.written.clear()
    return host, first, former


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("again", [False, True])
def test_a_seek_of_a_former_subscription_that_others_name_hides_no_acknowledgement(life: int, again: bool) -> None:
    """Seed 10149 of the simulator (snapshot mode, takeovers, 48 steps): it wants nothing again, and what was read came twice.

    Neither after a restart, when it is read once more: in an update, or in the marker of that time.
    """
    host, first, _ = named_by_others(life)
    if again:
        stored = host.machine.encode("s")
        host.machine = Snapshots(host, new_id=host.new_id)
        after = host.machine.load("s", stored)
        host.machine.stored([entry for entry in host.entries if entry.position > after])
        host.machine.started()
        host.run()
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, ())))
    assert host.cursors["s"].is_acked(first)


@pytest.mark.parametrize("life", LIVES)
def test_a_seek_of_a_former_subscription_is_not_written_again(life: int) -> None:
    """Clusters that hear of a seek drop what they have not reported yet."""
    host, _, _ = named_by_others(life)
    host.told("b", Update("s", {}, Claim({}, {}, (), created=True)))
    host.machine.rebased("b")
    host.run()
    assert not host.take(SoughtEpoch)


def test_the_next_seek_is_later_than_that_of_a_former_subscription() -> None:
    """Its name is remembered: the clock may have been set back since."""
    host, first, former = named_by_others(life=1)
    host.now_ms -= 60_000
    host.machine.sought("s", lambda _: None)
    host.run()
    (seek,) = (marker.epoch for marker in host.take(SoughtEpoch))
    assert later(former, seek)
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, (former,))))
    assert not host.cursors["s"].is_acked(first)


@pytest.mark.parametrize("life", LIVES)
def test_a_state_of_an_earlier_version_has_the_seek_that_it_names_of_this_life(life: int) -> None:
    host = Host("b")
    first = host.arrives("b", 0)
    host.subscribe()
    named = [("a", host.log.incarnation - 1 + life, host.now_ms)]
    stored = state.decode(host.machine.encode("s"))
    host.machine = Snapshots(host, new_id=host.new_id)
    host.machine.load("s", state.encode(msgspec.structs.replace(stored, seeks=named, sought=None, seek_untold=True)))
    host.machine.started()
    host.run()
    host.machine.validate()
    assert len(host.take(SoughtEpoch)) == life
    host.told("b", Update("s", {}, Claim({B: [(0, 1)]}, {}, ())))
    assert host.cursors["s"].is_acked(first) == (not life)


def test_what_exact_mode_took_back_is_neither_claimed_nor_told() -> None:
    host = Host("b", "c")
    host.subscribe()
    host.told("c", _update())
    host.held_by_epoch = BEHIND
    host.machine.moved_back("s", [])
    later = host.arrives("b", 0)
    assert not host.cursors["s"].is_acked(later)


def test_what_exact_mode_took_back_and_retention_had_taken_is_not_told_as_acknowledged() -> None:
    """Simulator, mixed, 96 steps about modes, failovers and seeks, seed 527: it was lost where it was retained."""
    host = Host("b", "c")
    cursor = host.subscribe()
    gone = host.arrives("b", 0)
    host.ack(gone)
    first_part = host.log.last
    host.log.roll(host.now_ms)
    kept = host.arrives("b", 1)
    trim = host.log.trim(first_part, host.now_ms + 1, Retention(0, 0))
    assert trim is not None
    host.log.forget(trim)
    assert not host.log.valid(gone)
    host.held_by_epoch = BEHIND
    host.machine.moved_back("s", [])
    host.take(Update)
    host.ack(kept)
    assert cursor.mark_delete >= kept
    for _ in range(3):
        host.pass_ms(1000)
        for cluster in ("b", "c"):
            host.answer(cluster)
    (update,) = (update for update in host.take(Update) if update.claim.acked)
    assert update.claim.acked == {B: [(1, 2)]}


def test_a_seek_has_the_name_that_exact_mode_gave_it() -> None:
    host = Host("b")
    host.subscribe()
    here = host.held_by_epoch = Epoch(1, host.now_ms + 70, "a", host.log.incarnation)
    host.machine.sought("s", lambda _: None)
    (told,) = host.take(SoughtEpoch)
    assert told.epoch == here
    host.machine.sought("s", lambda _: None)
    (told,) = host.take(SoughtEpoch)
    assert told.epoch > here


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("epoch", [CREATION, Epoch(1, 5, "c", 1), Epoch(1, 5, "a", 1)])
def test_a_seek_that_is_none_or_not_its_writers_is_passed_over_whether_its_subscription_is_here(
    here: bool, epoch: Epoch
) -> None:
    """What is not here is remembered until it is."""
    host = Host("b", "c")
    if here:
        host.subscribe()
    host.told("b", SoughtEpoch("b", "s", epoch))
    if not here:
        host.subscribe()
    host.machine.validate()
    assert host.machine.describe("s")["seeks"] == {}
    assert host.machine.metrics()["malformed"] == 1
    host.told("b", SoughtEpoch("b", "s", Epoch(1, 5, "b", 1)))
    assert host.machine.describe("s")["seeks"] == {"b": 5}


def test_seeks_of_any_number_of_clusters_can_be_told() -> None:
    host = Host("b")
    host.subscribe()
    for turn in range(3):
        seeks = tuple(Epoch(1, 5, f"x{turn}-{number}", 1) for number in range(CLUSTERS_MAX))
        host.told("b", Update("s", {}, Claim({}, {}, seeks)))
    host.told("b", Update("s", {}, Claim({}, {}, (Epoch(1, 9, "x0-1", 1),))))
    host.take(Update)
    host.ack(host.publish())
    host.pass_ms(1000)
    host.answer("b")
    (update,) = host.take(Update)
    assert len(update.claim.seeks) <= CLUSTERS_MAX and Epoch(1, 9, "x0-1", 1) in update.claim.seeks
    assert parse_marker(build_marker(update, 1)) == update
