"""The machine of one topic, event by event."""

import json

import pytest

from magnetar.core.ids import LATEST, NONE, OriginKey, Position
from magnetar.replication.acked_sets import AckedSets, MarkerPacer
from magnetar.replication.acked_sets.marker_writer import FULL_EVERY, FULL_MS
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.marker_host import Acked, Machine
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags
from magnetar.wire.acksets import TIME_MS_MAX, AckedSetsMarker, Epoch, LowWater, Mark, StateRequest
from magnetar.wire.markers import build_marker
from tests.unit.replication.acked_sets.rig import FENCE, INCARNATION, MESH, Rig, bits, marker, told, union

SEEK = Epoch(1, 2_000_000, "b", 3)
CHAIN = frozenset({("b", "a"), ("a", "c")})


def test_it_is_a_machine():
    machine: Machine = Rig().machine
    assert machine.encode("s") == b""
    assert machine.describe("s") == {"mode": "exact", "unsubscribed": False}


# ---------------------------------------------------------------------------------------------------------------- telling


def test_a_creation_is_told_at_once_with_what_was_held_before_its_start():
    rig = Rig()
    rig.publish()
    rig.arrive("b", 4, 2)
    start = rig.publish(3)
    (said,) = rig.subscribe(position=start)
    (full,) = said.sets
    assert (said.writer, said.incarnation, said.next_index) == ("a", INCARNATION, 4)
    assert full.full
    assert MessageSet(full.base) == union(bits("a", 0), bits("b", 4, 5))
    assert not full.acks
    assert {mark.cluster for mark in full.floor} == {"a", "b", "c"}


def test_acknowledgements_are_collected_for_an_interval_and_told_as_a_delta():
    rig = Rig()
    first, second = rig.publish(), rig.publish(3)
    rig.subscribe()
    rig.ack(first)
    rig.cursors["s"].ack_indexes(second, 0b101)
    rig.machine.acknowledged("s", Acked(partial={second: 0b010}))
    assert rig.pass_time(99) == []
    (said,) = rig.pass_time(1)
    (delta,) = said.sets
    assert not delta.full
    assert delta.base is None
    assert MessageSet(delta.acks) == bits("a", 0, 2)


def test_an_idle_topic_writes_nothing_and_has_no_timer():
    rig = Rig()
    rig.subscribe()
    position = rig.publish()
    rig.ack(position)
    assert rig.pass_time()
    rig.ack(position)  # nothing new
    rig.arrive("b", 0)
    rig.hear(marker("b", told(acks=bits("b", 0))))
    assert rig.timers == []
    assert rig.pass_time(10_000) == []


def test_subscriptions_share_a_marker():
    rig = Rig()
    position = rig.publish()
    rig.subscribe("s")
    rig.subscribe("t")
    rig.ack(position, name="s")
    rig.ack(position, name="t")
    (said,) = rig.pass_time()
    assert [one.subscription for one in said.sets] == ["s", "t"]


def test_every_so_often_a_full_state():
    rig = Rig()
    rig.subscribe()
    kinds = []
    for _ in range(FULL_EVERY + 2):
        rig.ack(rig.publish())
        kinds += [said.sets[0].full for said in rig.pass_time()]
    assert kinds == [False] * FULL_EVERY + [True, False]


def test_a_fast_link_gets_no_more_full_states():
    """Ten times as many deltas in the same time, and the next full state as late as ever."""
    rig = Rig(interval_ms=lambda: 10)
    rig.subscribe()
    since, fulls = rig.now_ms, []
    for _ in range(12 * FULL_EVERY):
        rig.ack(rig.publish())
        fulls += [rig.now_ms - since for said in rig.pass_time(10) if said.sets[0].full]
    assert len(fulls) == 1
    assert fulls[0] >= FULL_MS


def test_a_full_state_over_the_limit_is_split():
    rig = Rig(marker_bytes_max=0)
    rig.subscribe()
    for number in range(20):
        positions = [rig.publish() for _ in range(3)]
        rig.arrive("b", number)
        rig.ack(positions[0])
    rig.machine.topic.states["s"].acks |= bits("c", *range(0, 60_000, 3))
    rig.machine.rebased("b")
    said = rig.pass_time()
    assert len(said) > 2
    assert [one.part for each in said for one in each.sets] == list(range(1, len(said) + 1))
    union_of = union(*(MessageSet(one.acks) for each in said for one in each.sets))
    assert union_of == rig.machine.topic.states["s"].acks
    assert [one.base is not None for each in said for one in each.sets] == [True] + [False] * (len(said) - 1)


def test_a_failed_write_is_told_again_as_a_full_state():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    rig.now_ms += 100
    (_, due), rig.timers = rig.timers[0], []
    due(rig.now_ms)
    rig.sync("disk failed")
    assert rig.machine.topic.notices.counters["write_failures"] == 1
    (said,) = rig.pass_time()
    assert said.sets[0].full
    assert MessageSet(said.sets[0].acks) == bits("a", 0)


def test_a_storage_that_takes_nothing_is_tried_again_when_it_is_well():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    rig.refusing = True
    assert rig.pass_time() == []
    assert rig.timers == [], "it does not poll"
    rig.refusing = False
    rig.machine.healed()
    (said,) = rig.pass_time()
    assert MessageSet(said.sets[0].acks) == bits("a", 0)


def test_the_broker_paces_its_topics():
    pacer = MarkerPacer(10)
    one, other = Rig(pacer=pacer), Rig(pacer=pacer)
    for rig in (one, other):
        rig.subscribe()
        rig.ack(rig.publish())
    assert one.pass_time()
    assert other.pass_time() == []
    assert other.pass_time()


def test_in_snapshot_mode_it_follows_and_writes_nothing():
    rig = Rig(writes=False)
    first, second = rig.publish(), rig.publish()
    assert rig.subscribe() == []
    rig.hear(marker("b", told(acks=bits("a", 0))))
    assert rig.cursors["s"].mark_delete == first
    rig.ack(second)
    answers = []
    rig.machine.sought("s", answers.append)
    assert answers == [""]
    assert rig.pass_time(10_000) == []
    rig.machine.set_writes(True)
    (said,) = rig.pass_time()
    assert said.sets[0].full
    assert MessageSet(said.sets[0].base) == bits("a", 0, 1)
    rig.ack(rig.publish())
    rig.machine.set_writes(False)
    assert rig.pass_time() == []


# ---------------------------------------------------------------------------------------------------------------- hearing


def test_what_others_acknowledge_is_acknowledged_here():
    rig = Rig()
    rig.subscribe()
    whole, batch = rig.publish(), rig.publish(3)
    rig.hear(marker("b", told(acks=bits("a", 0, 2))))
    assert rig.asked[-1] == ("apply", "s", [whole], {batch: 0b010})
    assert rig.cursors["s"].mark_delete == whole


def test_a_message_whose_bit_is_here_is_acknowledged_when_it_is_stored():
    rig = Rig()
    rig.subscribe()
    rig.hear(marker("b", told(acks=bits("c", 4, 5, 7))))
    assert rig.machine.describe("s")["pending"] == 3
    whole = rig.arrive("c", 4, 2)
    batch = rig.arrive("c", 6, 3)
    assert rig.asked[-2:] == [("apply", "s", [whole], {}), ("apply", "s", [], {batch: 0b010})]
    assert rig.machine.describe("s")["pending"] == 0


def test_a_subscription_is_created_by_the_first_marker():
    rig = Rig()
    rig.publish()
    rig.hear(marker("b", told(full=True, acks=bits("a", 0), base=MessageSet(), floor=(Mark("a", 0, 0),))))
    assert rig.asked[0] == ("create", "s")
    assert rig.machine.topic.states["s"].acks == bits("a", 0)
    assert rig.pass_time() == [], "who has it from a marker adds no base of its own"


def test_a_seek_elsewhere_is_a_seek_here():
    rig = Rig()
    rig.subscribe()
    first = rig.publish()
    second = rig.publish()
    rig.ack(first, second)
    floor = tuple(Mark(cluster, 0, 0) for cluster in "abc")
    rig.hear(marker("b", told(full=True, epoch=SEEK, base=bits("a", 0), floor=floor)))
    assert rig.asked[-1] == ("rebuild", "s", [first], {})
    assert rig.machine.topic.notices.counters["came_back"] == 1
    rig.hear(marker("c", told(acks=bits("a", 1))))
    assert rig.cursors["s"].mark_delete == first, "acknowledgements of a lower epoch are void"
    assert rig.machine.topic.notices.counters["older"] == 1


def test_bits_that_the_seeking_cluster_cannot_know_stay_and_are_told_again():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    rig.pass_time()
    rig.hear(marker("b", told(full=True, epoch=SEEK, base=MessageSet(), floor=(Mark("b", 0, 0),))))
    assert rig.machine.topic.states["s"].acks == bits("a", 0)
    (said,) = rig.pass_time()
    assert said.sets[0].full
    assert said.sets[0].epoch == SEEK


def test_two_creations_skip_what_both_skip():
    rig = Rig()
    rig.publish()
    second = rig.publish()
    rig.arrive("c", 0)
    rig.subscribe(position=second)
    floor = (Mark("a", 0, 0), Mark("b", 0, 0))
    rig.hear(marker("b", told(full=True, base=MessageSet(), floor=floor)))
    assert rig.machine.topic.states["s"].base == MessageSet()
    assert rig.asked[-1][0] == "rebuild", "what had been skipped comes back"


def test_relay_in_a_chain():
    rig = Rig(CHAIN)
    rig.hear(marker("b", told(full=True, base=MessageSet(), floor=(Mark("b", 0, 0),))))
    (said,) = rig.pass_time()
    assert said.sets[0].full
    rig.hear(marker("b", told(acks=bits("b", 3))))
    (said,) = rig.pass_time()
    assert not said.sets[0].full
    assert MessageSet(said.sets[0].acks) == bits("b", 3)
    rig.hear(marker("b", told(acks=bits("b", 3))))
    assert rig.timers == [], "a repeated marker is not repeated"


# ------------------------------------------------------------------------------------------------------------------ seeks


def test_a_seek_is_answered_when_its_full_state_is_durable():
    rig = Rig()
    rig.subscribe()
    rig.publish()
    rig.ack(rig.publish())
    rig.cursors["s"].reset(NONE)
    answers = []
    rig.machine.sought("s", answers.append)
    assert answers == []
    (said,) = rig.sync()
    assert answers == [""]
    assert said.sets[0].epoch == Epoch(1, rig.now_ms, "a", INCARNATION)
    assert MessageSet(said.sets[0].base) == MessageSet()


def test_a_seek_that_cannot_be_written_says_so_and_is_told_later():
    rig = Rig()
    rig.subscribe()
    answers = []
    rig.machine.sought("s", answers.append)
    rig.sync("disk failed")
    assert answers == ["disk failed"]
    (said,) = rig.pass_time()
    assert said.sets[0].epoch.kind == 1


def test_a_seek_waits_while_the_storage_takes_nothing():
    rig = Rig()
    rig.subscribe()
    rig.refusing = True
    answers = []
    rig.machine.sought("s", answers.append)
    rig.refusing = False
    rig.machine.healed()
    assert answers == []
    rig.pass_time()
    assert answers == [""]


def test_an_earlier_full_state_does_not_answer_a_later_seek():
    rig = Rig()
    rig.cursors["s"] = Cursor(rig.log)
    rig.machine.created("s")  # in flight
    answers = []
    rig.machine.sought("s", answers.append)
    creation, seek = rig.writing
    rig.writing = [creation]
    rig.sync()
    assert answers == []
    rig.writing = [seek]
    rig.sync()
    assert answers == [""]


def test_a_clock_that_was_lost_may_repeat_a_time_but_no_epoch():
    """The topic made anew has another incarnation, and its clock starts where the wall clock is."""
    epochs = []
    for incarnation in (INCARNATION, INCARNATION + 1):
        rig = Rig(incarnation=incarnation)
        rig.subscribe()
        rig.machine.sought("s", lambda _: None)
        epochs.append(rig.machine.topic.states["s"].epoch)
    assert epochs[0].time_ms == epochs[1].time_ms
    assert epochs[0] < epochs[1]


def test_seeks_grow_also_behind_a_clock_that_is_ahead():
    rig = Rig()
    rig.subscribe()
    ahead = Epoch(1, rig.now_ms + 3_600_000, "b", 3)
    rig.hear(marker("b", told(full=True, epoch=ahead, base=MessageSet(), floor=())))
    assert rig.machine.topic.notices.counters["clock_ahead"] == 1
    assert any("3600 s ahead" in text for _, text in rig.notes)
    rig.machine.sought("s", lambda _: None)
    assert rig.machine.topic.states["s"].epoch > ahead
    rig.sync()
    rig.persist()
    rig.restart()
    rig.machine.sought("s", lambda _: None)
    assert rig.machine.topic.states["s"].epoch.time_ms == ahead.time_ms + 2


# ---------------------------------------------------------------------------------------------------------------- restart


def test_a_restart_replays_markers_and_tells_everything():
    rig = Rig()
    rig.subscribe()
    first, second = rig.publish(), rig.publish()
    rig.persist()
    rig.ack(first)
    rig.pass_time()
    rig.hear(marker("b", told(acks=bits("a", 1))))
    rig.cursors["s"].reset(NONE)  # as it was stored
    rig.asked.clear()
    rig.restart()
    assert rig.asked == [("apply", "s", [first, second], {})]
    (said,) = rig.pass_time()
    assert said.sets[0].full
    assert MessageSet(said.sets[0].acks) == bits("a", 0, 1)
    assert rig.pass_time(10_000) == []


def test_what_was_persisted_and_never_told_is_told():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    rig.persist()
    rig.restart()
    (said,) = rig.pass_time()
    assert MessageSet(said.sets[0].acks) == bits("a", 0)


def test_a_subscription_without_a_state_begins_at_its_cursor():
    rig = Rig()
    position = rig.publish()
    rig.subscribe()
    rig.ack(position)
    rig.entries.clear()
    rig.disk = {"s": b"nonsense"}
    rig.restart()
    assert rig.machine.topic.notices.counters["damaged_states"] == 1
    assert rig.notes[-1][0] == "error"
    assert rig.machine.topic.states["s"].base == bits("a", 0)


def test_states_cover_the_markers_that_were_seen():
    rig = Rig()
    rig.subscribe()
    assert rig.machine.covered("s") == NONE
    rig.machine.encode("s")
    assert rig.machine.covered("s") == rig.log.last
    before = rig.log.last
    rig.ack(rig.publish())
    rig.pass_time()
    assert rig.machine.covered("s") == before


# ------------------------------------------------------------------------------------------------------------- unsubscribed


def test_deleted_here_stays_deleted_until_somebody_subscribes():
    rig = Rig()
    rig.subscribe()
    del rig.cursors["s"]
    rig.machine.deleted("s")
    rig.hear(marker("b", told(full=True, acks=bits("b", 1))))
    rig.persist()
    rig.restart()
    rig.hear(marker("b", told(full=True, acks=bits("b", 1))))
    assert "s" not in rig.cursors
    assert rig.machine.describe("s")["unsubscribed"]
    request, full = rig.subscribe()
    assert request == StateRequest("a", ("s",))
    assert full.sets[0].full
    rig.hear(marker("b", told(acks=bits("b", 2))))
    assert rig.machine.topic.states["s"].acks == bits("b", 2)


def test_who_is_asked_tells_its_full_state():
    rig = Rig()
    rig.subscribe()
    rig.hear(StateRequest("b", ("s", "unknown")))
    (said,) = rig.pass_time()
    assert [one.subscription for one in said.sets] == ["s"]
    assert said.sets[0].full


def test_one_of_that_name_that_is_not_replicated_is_left_alone():
    rig = Rig()
    rig.publish()
    rig.plain["s"] = Cursor.at(rig.log, NONE)
    rig.hear(marker("b", told(acks=bits("a", 0))))
    rig.hear(marker("b", told(acks=bits("a", 0))))
    assert rig.plain["s"].mark_delete == NONE
    assert rig.machine.topic.notices.counters["unknown_subscription"] == 2
    assert len(rig.notes) == 1
    rig.restart()
    assert "s" not in rig.machine.topic.states, "nor after a restart"
    rig.cursors["s"] = rig.plain.pop("s")
    rig.machine.created("s")
    assert rig.sync()[0] == StateRequest("a", ("s",))


# --------------------------------------------------------------------------------------------------------------- failover


@pytest.mark.parametrize("restarted", [False, True])
def test_one_that_is_not_replicated_any_more_goes_on_from_where_it_was(restarted):
    """What it acknowledged since is acknowledged, what it had skipped at its start is not; the others are asked for the rest."""
    rig = Rig()
    first = rig.publish()
    rig.subscribe(position=LATEST)
    positions = [rig.publish() for _ in range(3)]
    rig.hear(marker("b", told(full=True, base=MessageSet(), floor=(Mark("a", 0, 0),))))
    assert not rig.cursors["s"].is_acked(first), "the other creation wants it"
    rig.ack(positions[0])
    rig.plain["s"] = rig.cursors.pop("s")
    rig.machine.unreplicated("s")
    rig.machine.validate()
    rig.disk = {"s": rig.machine.encode("s")}
    rig.hear(marker("b", told(acks=bits("a", 3))))
    if restarted:
        rig.restart()
        rig.machine.validate()
    assert rig.machine.pauses("s") and not rig.machine.topic.states
    rig.plain["s"].ack([positions[1]])
    assert not rig.plain["s"].is_acked(positions[2]), "nothing is merged meanwhile"
    rig.cursors["s"] = rig.plain.pop("s")
    rig.machine.created("s")
    written = rig.sync()
    assert StateRequest("a", ("s",)) in written
    [full] = [one for found in written if isinstance(found, AckedSetsMarker) for one in found.sets]
    assert full.full and MessageSet(full.acks) == bits("a", 1, 2) and not full.base
    assert not rig.machine.pauses("s")
    rig.hear(marker("b", told(full=True, base=MessageSet(), acks=bits("a", 3))))
    assert [rig.cursors["s"].is_acked(at) for at in (first, *positions)] == [False, True, True, True]


def test_one_that_is_deleted_while_it_is_not_replicated_is_gone():
    rig = Rig()
    rig.subscribe()
    rig.plain["s"] = rig.cursors.pop("s")
    rig.machine.unreplicated("s")
    del rig.plain["s"]
    rig.machine.deleted("s")
    rig.machine.validate()
    assert rig.machine.unsubscribed("s") and not rig.machine.pauses("s")
    rig.disk = {"s": rig.machine.encode("s")}
    rig.restart()
    assert rig.machine.unsubscribed("s") and not rig.machine.pauses("s")


def test_the_final_state_carries_the_token_and_is_answered_when_durable():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    answers = []
    rig.machine.final("s", FENCE, lambda *told: answers.append(told))
    (said,) = rig.sync()
    assert said.sets[0].fence == FENCE
    assert said.sets[0].full
    assert answers == [(rig.log.last, "")]
    rig.machine.final("unknown", FENCE, lambda *told: answers.append(told))
    assert answers[-1][0] == NONE


def test_the_final_state_is_written_in_snapshot_mode_too_and_nothing_else():
    rig = Rig(writes=False)
    rig.subscribe()
    rig.ack(rig.publish())
    answers = []
    rig.refusing = True
    rig.machine.final("s", FENCE, lambda *told: answers.append(told))
    assert rig.pass_time() == [] and answers == [] and rig.timers == [], "waits until the storage is well"
    rig.refusing = False
    rig.machine.healed()
    (said,) = rig.pass_time()
    assert (said.sets[0].fence, said.sets[0].full, MessageSet(said.sets[0].acks)) == (FENCE, True, bits("a", 0))
    assert answers == [(rig.log.last, "")]
    rig.ack(rig.publish())
    assert rig.pass_time(10_000) == []
    rig.machine.validate()


def test_a_token_that_comes_is_kept():
    rig = Rig()
    rig.hear(marker("b", told(full=True, fence=FENCE)))
    assert rig.machine.fence("s") == FENCE
    rig.hear(marker("b", told(full=True, fence=FENCE._replace(time_ms=1))))
    assert rig.machine.fence("s") == FENCE, "an earlier stage does not replace it"
    rig.restart()
    assert rig.machine.fence("s") == FENCE, "replayed"


# ------------------------------------------------------------------------------------------------------------- forgetting


def waters(cluster, position, **indexes):
    incarnations = {"a": INCARNATION}
    marks = tuple(Mark(name, incarnations.get(name, 3), index) for name, index in indexes.items())
    return LowWater(cluster, 3, Position(3, position), marks)


def test_bits_are_forgotten_when_nobody_can_need_them():
    rig = Rig()
    rig.subscribe()
    rig.ack(*[rig.publish() for _ in range(9)])
    rig.pass_time()
    rig.trim()
    assert len(rig.machine.topic.states["s"].acks) == 9, "b and c were not heard of"
    rig.hear(marker("b", low=[waters("b", 1, a=4)]))
    rig.hear(marker("c", low=[waters("c", 1, a=3)]))
    assert rig.machine.topic.states["s"].acks == bits("a", *range(3, 9))
    assert rig.machine.describe("s")["forgottenBelow"]["a"] == f"{INCARNATION}:3"
    rig.hear(marker("b", told(acks=bits("a", *range(9)))))
    assert rig.machine.topic.states["s"].acks == bits("a", *range(3, 9)), "what was forgotten stays forgotten"
    rig.machine.rebased("b")
    rig.pass_time()
    rig.hear(marker("c", low=[waters("c", 2, a=9)]))
    assert len(rig.machine.topic.states["s"].acks) == 6, "a peer that lost its log counts as 0 until it speaks"


def test_what_a_handshake_told_of_a_peers_new_life_is_told_on_and_outlives_a_restart():
    """b's topic was made anew, and has not spoken since: who repeats b's former marks, or restarts, does not take them for new
    (simulator: exact, 96 steps, seed 700243).
    """
    rig = Rig()
    rig.subscribe()
    rig.ack(*[rig.publish() for _ in range(4)])
    rig.pass_time()
    rig.trim()
    rig.hear(marker("b", low=[waters("b", 1, a=0)]))
    rig.incarnations["b"] = 5
    rig.machine.rebased("b")
    (said,) = rig.pass_time()
    assert {low.cluster: low.incarnation for low in said.low} == {"a": INCARNATION, "b": 5}
    assert next(low for low in said.low if low.cluster == "b").marks == ()
    rig.persist()
    rig.incarnations.clear()
    rig.restart()
    rig.pass_time()
    rig.hear(marker("c", low=[waters("b", 2, a=4), waters("c", 1, a=4)]))
    assert rig.machine.topic.states["s"].acks == bits("a", 0, 1, 2, 3), "c has not heard of b's new life yet"
    rig.hear(marker("b", low=[LowWater("b", 5, Position(5, 0), (Mark("a", INCARNATION, 4),))], incarnation=5))
    assert rig.machine.topic.states["s"].acks == bits("a", 3), "the new life spoke for itself"


@pytest.mark.parametrize("told_of_it", [False, True])
def test_a_new_life_is_heard_of_from_another_cluster(told_of_it):
    """a and b have links with c only: what c says of b's present life makes b's former marks void, whoever repeats them."""
    rig = Rig(frozenset({("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}))
    rig.subscribe()
    own = [Mark("c", 3, 4)]
    rig.hear(marker("c", told(acks=bits("c", 0, 1, 2, 3)), low=[waters("c", 1, c=4), waters("b", 1, c=0)], own=own))
    rig.pass_time()
    if told_of_it:
        rig.hear(marker("c", low=[LowWater("b", 5, NONE, ())]))
    rig.hear(marker("c", low=[waters("b", 2, c=4)]))
    assert rig.machine.topic.states["s"].acks == (bits("c", 0, 1, 2, 3) if told_of_it else MessageSet())


@pytest.mark.parametrize("heard", ["by its link", "by its messages"])
def test_nothing_of_a_present_life_is_forgotten_by_marks_of_a_former_one(heard):
    """b lost its disk while its clock was behind: it lives in 3, and lived in 9 (simulator: exact, failovers and lost disks,
    seed 170).
    """
    rig = Rig()
    rig.subscribe()
    state = rig.machine.topic.states["s"]
    state.forgot = {"b": (9, 5), "c": (9, 5)}
    for known in ("b", "c"):
        rig.machine.topic.low_water.next[known] = rig.machine.topic.low_water.own[known] = (9, 5)
        rig.machine.topic.low_water.low[known] = LowWater(known, 3, NONE, (Mark("b", 9, 5), Mark("c", 9, 5)))
    if heard == "by its link":
        rig.incarnations["b"] = 3
    else:
        rig.arrive("b", 0, incarnation=3)
    rig.hear(
        marker(
            "c",
            told(acks=union(bits("b", 4, 5, incarnation=3), bits("b", 0, incarnation=2), bits("c", 4, incarnation=9))),
        )
    )
    assert state.acks == bits("b", 4, 5, incarnation=3)
    rig.pass_time(10_000)
    rig.machine.trimmed()
    assert state.acks == bits("b", 4, 5, incarnation=3)


@pytest.mark.parametrize("by", ["an update", "a full state"])
def test_a_creation_of_a_present_life_with_a_lower_number_is_intersected(by):
    """b lost its disk while its clock was behind: it lives in 3, and lived in 9. Another creation at the end of its new log must
    not skip messages here, where the subscription began before them (simulator: snapshot, 96 steps, seed 3923).
    """
    rig = Rig(writes=by == "a full state")
    rig.subscribe()
    rig.pass_time()
    state = rig.machine.topic.states["s"]
    state.floor["b"] = state.forgot["b"] = (9, 5)
    rig.incarnations["b"] = 3
    first = rig.arrive("b", 0)
    if by == "an update":
        rig.machine.learnt("s", first, "b", {}, {OriginKey("b", 3): [(0, 1)]}, made=False)
    else:
        rig.hear(marker("b", told(base=bits("b", 0), full=True, floor=(Mark("b", 0, 0),))))
    assert not rig.cursors["s"].is_acked(first)
    assert state.base == MessageSet()


def test_a_floor_of_a_former_life_says_nothing_of_the_present_one():
    """As above, and the cluster that has the former mark is c, which wrote before it heard of b's new life."""
    rig = Rig()
    first, second = rig.arrive("b", 0), rig.arrive("b", 1)
    rig.incarnations["b"] = 3
    rig.subscribe(position=second)
    rig.pass_time()
    rig.hear(marker("c", told(base=MessageSet(), full=True, floor=(Mark("b", 9, 5),))))
    assert not rig.cursors["s"].is_acked(first), "c's creation wants it"


def test_a_cluster_that_is_named_again_may_need_what_was_forgotten_without_it():
    """b's messages were forgotten while no policy named c, which holds them still and hears of them by this cluster only
    (simulator: exact, 96 steps, seed 16269).
    """
    rig = Rig()
    rig.subscribe()
    state = rig.machine.topic.states["s"]
    state.forgot = {"b": (3, 5)}
    rig.machine.topic.low_water.next["b"] = rig.machine.topic.low_water.own["b"] = (3, 9)
    rig.machine.topic.low_water.low["b"] = LowWater("b", 3, NONE, (Mark("b", 3, 9),))
    rig.machine.topic.low_water.low["c"] = LowWater("c", 3, NONE, (Mark("b", 3, 2),))
    rig.hear(marker("b", told(acks=bits("b", 1, 3))))
    assert state.acks == bits("b", 3), "below 2 c holds nothing and can get nothing"
    rig.pass_time(10_000)
    rig.machine.trimmed()
    assert state.acks == bits("b", 3)
    assert state.forgot["b"] >= (3, 5), "what this cluster states about b in a base is no more than before"


def test_links_tell_what_origins_retain():
    rig, other = Rig(), Rig()
    rig.publish()
    assert rig.machine.own_marks() == (Mark("a", INCARNATION, 0),)
    other.machine.learn_own((Mark("a", 1, 9), Mark("b", 3, 5)))
    assert other.machine.own_marks() == (Mark("a", INCARNATION, 0), Mark("b", 3, 5))


# --------------------------------------------------------------------------------------------------------------- bad input


def test_a_malformed_marker_changes_nothing():
    rig = Rig()
    rig.subscribe()
    before = rig.machine.encode("s")
    good = marker("b", told(acks=bits("b", 1)))
    data = rig.foreign("b", b"", int(EntryFlags.MARKER), 0, 3, -1)
    whole = build_marker(good, 1)
    rig.store(
        data._replace(data=whole[:-3]), rig.foreign("b", whole[: len(whole) // 2], int(EntryFlags.MARKER), 0, 3, -1)
    )
    rig.hear(good, cluster="c")
    assert rig.machine.topic.notices.counters["malformed"] == 3
    assert len(rig.notes) == 2, "one line for each cluster that they come from, however many come"
    assert all(text.startswith("t: marker ") and "ignored" in text for _, text in rig.notes)
    state = rig.machine.topic.states["s"]
    assert not state.acks
    assert before[:1] == rig.machine.encode("s")[:1]


def test_an_unknown_cluster_is_passed_over():
    rig = Rig()
    rig.subscribe()
    for _ in range(2):
        rig.hear(marker("x", told(acks=bits("b", 1))))
    assert rig.machine.topic.notices.counters["unknown_cluster"] == 2
    assert len(rig.notes) == 1
    assert not rig.machine.topic.states["s"].acks


@pytest.mark.parametrize(
    ("claimed", "taken"),
    [
        (bits("a", 0, 1, 7), bits("a", 0)),
        (bits("a", 0, incarnation=TIME_MS_MAX + 1), MessageSet()),
        (bits("b", 5, 9, 10), bits("b", 5, 9)),
        (bits("c", 1, incarnation=TIME_MS_MAX + 1), MessageSet()),
        (bits("b", 1, incarnation=2), bits("b", 1, incarnation=2)),
        (bits("c", 1000), bits("c", 1000)),
    ],
)
def test_indexes_that_nobody_gave_are_passed_over(claimed, taken):
    rig = Rig()
    rig.subscribe()
    rig.publish()
    rig.hear(marker("b", told(acks=claimed), next_index=10))
    assert rig.machine.topic.states["s"].acks == taken
    assert (rig.machine.topic.notices.counters["never_assigned"] > 0) == (claimed != taken)


def test_earlier_lives_may_have_higher_numbers():
    """After a lost disk and a lost time, and although nobody who is left has seen a message of them."""
    rig = Rig()
    rig.subscribe()
    claimed = union(bits("b", 0, 4, incarnation=9), bits("b", 1), bits("a", 3, incarnation=INCARNATION + 2))
    rig.hear(marker("b", told(acks=claimed), next_index=2))
    assert rig.machine.topic.states["s"].acks == claimed
    assert rig.machine.topic.notices.counters["never_assigned"] == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_life_that_is_heard_of_is_not_lived_again(restarted):
    """A topic made anew while the clock is still behind: its messages must not be born acknowledged."""
    rig = Rig()
    rig.subscribe()
    rig.hear(marker("b", told(acks=bits("a", 0, incarnation=INCARNATION + 2))))
    if restarted:
        rig.disk = {"s": rig.machine.encode("s")}
        rig.ids.last = INCARNATION
        rig.restart()
    assert rig.ids.allocate(INCARNATION + 2) == INCARNATION + 3


def test_a_base_of_a_life_unknown_here_stays_whole():
    """Bases are intersected: what a cluster that lost its disk and its time leaves out of one, nobody has any more
    (simulator: exact, 96 steps, focus on wipes, seed 52).
    """
    rig = Rig()
    rig.subscribe()
    lost = bits("a", 0, 1, incarnation=INCARNATION + 2)
    rig.hear(marker("b", told(full=True, epoch=SEEK, base=lost, floor=(Mark("a", 0, 0),))))
    assert rig.machine.topic.states["s"].base == lost


def test_a_set_over_the_limit_is_warned_of_and_kept():
    rig = Rig(set_bytes_max=200)
    rig.subscribe()
    rig.machine.topic.states["s"].acks |= bits("c", *range(0, 1000, 2))
    data = rig.machine.encode("s")
    assert rig.machine.topic.notices.counters["over_limit"] == 1
    assert rig.notes[-1][0] == "warning"
    rig.disk = {"s": data}
    rig.restart()
    assert len(rig.machine.topic.states["s"].acks) == 500


# ------------------------------------------------------------------------------------------------------------ membership


def test_when_links_change_everybody_tells_everything():
    rig = Rig()
    rig.subscribe()
    rig.routes = frozenset({("a", "b"), ("b", "a")})
    rig.machine.routes_changed()
    (said,) = rig.pass_time()
    assert said.sets[0].full
    rig.machine.routes_changed()
    assert rig.pass_time() == []


def test_a_source_that_is_named_again_is_asked_for_all_that_was_passed_over():
    """Seed exact 4033 of the simulator: nobody told those deltas anew."""
    rig = Rig()
    rig.subscribe()
    mesh, rig.routes = rig.routes, frozenset({("a", "b"), ("b", "a")})
    rig.machine.routes_changed()
    rig.pass_time()
    rig.hear(marker("c", told(acks=bits("b", 1))))
    assert not rig.machine.topic.states["s"].acks, "no link of this topic names it"
    rig.routes = mesh
    rig.machine.routes_changed()
    assert StateRequest("a", ("s",)) in rig.sync()
    rig.pass_time()
    rig.machine.routes_changed()
    assert rig.pass_time() == []


@pytest.mark.parametrize("refusing", [False, True])
def test_a_request_that_was_not_written_is_written_when_the_storage_is_well(refusing):
    rig = Rig(frozenset({("a", "b"), ("b", "a")}))
    rig.subscribe()
    rig.refusing = refusing
    rig.routes = MESH
    rig.machine.routes_changed()
    rig.sync("disk failed")
    rig.refusing = False
    rig.machine.healed()
    assert StateRequest("a", ("s",)) in rig.sync()


@pytest.mark.parametrize("peer", ["b", "c"])
def test_both_ends_of_a_link_that_began_anew_tell_everything(peer):
    """Also the end that has no link back: what the new log forgot may have been told to this cluster alone."""
    rig = Rig(CHAIN)
    rig.subscribe()
    rig.machine.rebased(peer)
    (said,) = rig.pass_time()
    assert said.sets[0].full


def test_describe_is_plain():
    rig = Rig()
    rig.subscribe()
    rig.ack(rig.publish())
    rig.pass_time()
    rig.hear(marker("b", told(acks=bits("b", 1), full=True, fence=FENCE)))
    described = rig.machine.describe("s")
    assert json.loads(json.dumps(described)) == described
    assert described["lastSentMs"] == rig.now_ms
    assert described["lastReceivedMs"] == {"b": rig.now_ms}
    assert described["runs"] == 2
    assert rig.machine.metrics()["markers_written"] == 2


# ----------------------------------------------------------------------------------------------- beside snapshot mode


def test_what_an_update_told_is_in_the_set_and_told_when_the_mode_changes():
    rig = Rig(writes=False)
    rig.subscribe()
    first = rig.arrive("b", 0)
    rig.machine.learnt("s", first, "b", {OriginKey("b", 3): [(0, 2)]}, None, made=False)
    assert rig.cursors["s"].is_acked(first)
    assert rig.pass_time(10_000) == []
    rig.machine.set_writes(True)
    (said,) = rig.pass_time()
    assert MessageSet(said.sets[0].acks) == bits("b", 0, 1)


def test_what_an_update_told_before_a_seek_is_not_learnt_again_from_the_log():
    rig = Rig(writes=False)
    rig.subscribe()
    first = rig.arrive("b", 0)
    rig.persist()
    rig.machine = AckedSets(rig, interval_ms=lambda: 100, pacer=MarkerPacer(0))
    rig.machine.load("s", rig.disk["s"])
    rig.machine.learnt("s", first, "b", {OriginKey("b", 3): [(0, 1)]}, None, made=False)
    rig.machine.started()
    assert not rig.cursors["s"].is_acked(first)


def test_the_base_of_an_update_is_intersected_as_that_of_a_creation():
    """Seed snapshot 627 of the simulator: a failover's state put the starting point back, and it was told as acknowledged."""
    rig = Rig(writes=False)
    first, _, third = (rig.arrive("b", index) for index in range(3))
    rig.subscribe(position=third)
    rig.machine.learnt("s", third, "b", {}, {OriginKey("b", 3): [(0, 1)]}, made=False)
    assert rig.asked[-1] == ("rebuild", "s", [first], {})
    assert rig.machine.topic.states["s"].base == bits("b", 0)


def test_what_only_an_update_made_known_binds_a_base_that_comes_later():
    rig = Rig(writes=False)
    first = rig.arrive("b", 0)
    rig.cursors["s"] = Cursor.at(rig.log, NONE)
    rig.machine.learnt("s", first, "b", {}, {}, made=True)
    rig.hear(marker("c", told(base=bits("b", 0), full=True, floor=(Mark("b", 0, 0),))))
    assert not rig.cursors["s"].is_acked(first)


def test_a_later_creation_elsewhere_skips_nothing_where_the_base_is_not_known():
    """The cluster that brought the subscription did not know its base. In snapshot mode nothing corrects that later (simulator:
    snapshot, seed 1413).
    """
    rig = Rig(writes=False)
    first = rig.arrive("b", 0)
    rig.cursors["s"] = Cursor.at(rig.log, NONE)
    rig.machine.learnt("s", first, "c", {}, None, made=True)
    rig.machine.learnt("s", first, "b", {}, {OriginKey("b", 3): [(0, 1)]}, made=False)
    assert not rig.cursors["s"].is_acked(first)


def test_the_seek_that_a_subscription_stands_behind():
    rig = Rig(writes=False)
    rig.subscribe()
    assert rig.machine.epoch("s") is None
    rig.machine.sought("s", lambda _: None)
    assert rig.machine.epoch("s").cluster == "a"
