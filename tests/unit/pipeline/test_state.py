"""What may be planned when, and what is told to whom."""

import random

import pytest

from magnetar.core.ids import NONE, LinkCursor
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline.link_state import ALL, Owed
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.pipeline.planner import BULK, TAIL
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto

from .worlds import LINKS, ROUTES, at, outcome, pipeline_state, ranges, ready, report, shake, state, told

MB = 1 << 20
IDLE_MS = ReplicationLimits().handshake_idle_ms


def test_nothing_is_planned_before_the_handshake() -> None:
    of = pipeline_state()
    assert not ranges(of)
    report(of, state())
    assert not ranges(of)
    [asked] = shake(of)
    assert [query.topic for query in asked.topics] == ["t"]
    assert asked.uuid == "ua"
    [part] = ranges(of)
    assert (part.after, part.s, part.up_to, part.gen) == ((-1, -1), (-1, -1), (5, 9), 1)


def test_the_handshake_is_told_to_the_source_until_it_answers() -> None:
    of = ready()
    [(link, commits, learned, _, _)] = of.owed("a", 0)
    assert not commits
    assert [(one.topic, one.counter) for one in learned] == [("t", 3)]
    assert of.owed("a", 0), "it stays owed until it is told"
    of.commit_answered(Owed(link, commits, learned, [], []), (), 1, 0)
    assert not of.owed("a", 0)


def test_a_range_starts_where_the_cursor_stands_and_says_what_was_sent() -> None:
    of = ready(states=(state(c=6, s=4, gen=3),), w={"t": 4})
    [part] = ranges(of)
    assert (part.after, part.s, part.gen) == ((5, 6), (5, 4), 3)


def test_a_watermark_behind_s_waits_for_the_source_to_rewind() -> None:
    of = ready(states=(state(c=6, s=6, gen=3),), w={"t": 2})
    assert not ranges(of)
    [(_, _, [learn], _, _)] = of.owed("a", 0)
    assert (learn.watermark.ledger, learn.watermark.entry) == (5, 2)
    report(of, state(c=6, s=6, gen=3))
    assert not ranges(of), "an old report is not the rewind"
    report(of, state(c=2, s=2, gen=4))
    [part] = ranges(of)
    assert (part.after, part.s, part.gen) == ((5, 2), (5, 2), 4)


def test_an_answer_is_about_the_generation_that_was_asked_for() -> None:
    """The source may rewind while it is on its way: then it says nothing, and the question is asked again."""
    of = pipeline_state()
    report(of, state(c=5, s=5))
    [asked] = of.handshakes("b", 0)
    report(of, state(c=2, s=2, gen=2))
    marks = [pb.GeoWatermark(topic="t", persisted=position_to_proto(at(5)), foreign=True)]
    blocked = pb.CommandGeoWatermarksResponse(request_id=1, counter=3, uuid="ub", topics=marks, blocked="identity")
    of.handshake_answered(asked, blocked, 0)
    [(_, _, [learn], _, _)] = of.owed("a", 0)
    assert (learn.foreign, learn.gen) == (True, 1)
    of.commit_answered(Owed(LINKS[0], [], [learn], [], []), (), 1, 0)
    answer = pb.CommandGeoWatermarksResponse(
        request_id=1, counter=3, uuid="ub", topics=[pb.GeoWatermark(topic="t", persisted=position_to_proto(NONE))]
    )
    of.handshake_answered(asked, answer, 0)
    assert of.owed("a", 0) == []
    assert ranges(of) == []
    shake(of, w={"t": 2})
    assert [part.gen for part in ranges(of)] == [2]


def test_a_source_that_never_rewinds_is_compared_again() -> None:
    of = ready(states=(state(c=6, s=6, gen=3),), w={"t": 2})
    assert not of.handshakes("b", 10)
    ranges(of, now=60_000)
    assert of.handshakes("b", 60_000)[0].topics


def test_what_tasks_confirmed_is_planned_from_at_once_and_owed() -> None:
    of = ready()
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=4, s=3))
    [following] = ranges(of)
    assert (following.after, following.s) == ((5, 4), (5, 3))
    [(_, [commit], _, _, _)] = of.owed("a", 0)
    assert (commit.cursor.c.entry, commit.cursor.s.entry, commit.cursor.gen) == (4, 3, 1)
    report(of, state(c=-1))
    assert ranges(of)[0].after == (5, 4), "an older report of the same generation does not undo it"


def test_a_source_that_lost_confirmations_at_its_restart_is_believed() -> None:
    """Else a destination that lost its disk, too, would be compared with an S that the source no longer knows, for ever."""
    of = pipeline_state()
    report(of, state(), boot=1)
    shake(of)
    told(of, ALL, outcome(ranges(of)[0], c=4, s=3))
    [(link, commits, learned, _, _)] = of.owed("a", 0)
    of.commit_answered(Owed(link, commits, learned, [], []), (), 1, 0)
    of.source_lost("a")
    report(of, state(), boot=2)
    of.target_changed(0)
    shake(of, counter=4)
    [part] = ranges(of)
    assert (part.after, part.s, part.gen) == ((-1, -1), (-1, -1), 1)


def test_filtered_ranges_move_c_but_not_s() -> None:
    of = ready(states=(state(c=1, s=0),), w={"t": 0})
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=9))
    [(_, [commit], _, _, _)] = of.owed("a", 0)
    assert (commit.cursor.c.entry, commit.cursor.s.entry) == (9, 0)
    assert not ranges(of)


def test_a_commit_that_changed_meanwhile_stays_owed() -> None:
    of = ready()
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=4, s=4))
    [(link, commits, learned, _, _)] = of.owed("a", 0)
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=7, s=7))
    of.commit_answered(Owed(link, commits, learned, [], []), (), 1, 0)
    [(_, [commit], _, _, _)] = of.owed("a", 0)
    assert commit.cursor.c.entry == 7


def test_an_ignored_commit_voids_what_was_folded_until_the_source_reports() -> None:
    of = ready()
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=4, s=4))
    [(link, commits, learned, _, _)] = of.owed("a", 0)
    of.commit_answered(Owed(link, commits, learned, [], []), ["t"], 1, 0)
    assert not ranges(of)
    assert of.links[0].doubtful
    report(of, state(c=1, s=1, gen=2))
    assert ranges(of)[0].after == (5, 1)


def test_an_ignored_commit_does_not_void_a_newer_report() -> None:
    of = ready()
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=4, s=4))
    [(link, commits, learned, _, _)] = of.owed("a", 0)
    report(of, state(c=1, s=1, gen=2))
    of.commit_answered(Owed(link, commits, learned, [], []), ["t"], 1, 0)
    assert ranges(of)[0].gen == 2


@pytest.mark.parametrize("late", [{"gen": 0}, {"incarnation": 4}])
def test_a_late_report_of_another_generation_or_incarnation_is_ignored(late: dict[str, int]) -> None:
    of = ready()
    [part] = ranges(of)
    stale = m.Range(*(late.get(name, getattr(part, name)) for name in part.__struct_fields__))
    told(of, ALL, outcome(stale, c=9, s=9))
    assert of.links[0].topics["t"].cursor == LinkCursor(at(-1), at(-1), 1)
    assert not of.links[0].owed


@pytest.mark.parametrize("again", [False, True])
def test_a_report_that_comes_when_its_batch_was_taken_as_over_hides_no_loss(again: bool) -> None:
    """The destination lost what it had confirmed, and was compared since: with nothing, for nothing had been reported sent."""
    of = ready()
    [part] = ranges(of)
    of.batch_over(ALL)
    of.target_changed(0)
    assert shake(of, counter=4, w={"t": -1})[0].topics
    if again:
        [fresh] = ranges(of)  # the next run of the query
        assert fresh.after == part.after
    told(of, ALL, outcome(part, c=9, s=9, bytes=7))
    assert of.links[0].topics["t"].cursor == LinkCursor(at(-1), at(-1), 1)
    assert not of.links[0].owed
    if again:
        assert of.links[0].flying, "the next batch is under way as before"
        told(of, ALL, outcome(fresh, c=9, s=9))
        assert of.links[0].topics["t"].cursor == LinkCursor(at(9), at(9), 1)


def test_a_refusal_leads_to_a_handshake_before_the_next_range() -> None:
    of = ready()
    [part] = ranges(of)
    assert not of.handshakes("b", 0)
    told(of, ALL, outcome(part, trouble=m.REFUSED))
    assert not ranges(of, now=50_000)
    [asked] = shake(of, now=50_000)
    assert [query.topic for query in asked.topics] == ["t"]
    assert ranges(of, now=50_000)


def test_a_topic_in_flight_is_not_compared() -> None:
    of = ready()
    ranges(of)
    of.target_changed(0)
    assert not of.handshakes("b", 100), "a confirmation of before the loss could still come"
    told(of, ALL)
    assert of.handshakes("b", 100)[0].topics


def test_a_changed_counter_makes_all_topics_be_compared() -> None:
    of = ready(states=(state("t"), state("u", c=9)))
    [asked] = shake(of, counter=4, now=IDLE_MS)
    assert not asked.topics, "idle: only the counters"
    assert asked.counter == 3
    assert not ranges(of, now=IDLE_MS)
    [asked] = shake(of, counter=4, now=IDLE_MS)
    assert {query.topic for query in asked.topics} == {"t", "u"}
    assert asked.counter == 4
    assert ranges(of, now=IDLE_MS)


def test_an_equal_counter_compares_nothing() -> None:
    of = ready()
    shake(of, now=IDLE_MS)
    assert ranges(of, now=IDLE_MS)
    assert not of.links[0].unready


def test_a_blocked_topic_is_told_to_the_source_and_tried_again_ever_more_rarely() -> None:
    of, now, pauses = ready(states=(state("t"), state("u"))), 0, []
    for _ in range(9):
        parts = {part.topic: part for part in ranges(of, now=now)}
        told(of, ALL, outcome(parts["t"], trouble=m.BLOCKED, kind="size", reason="too large"), now=now)
        assert of.links[0].owed["t"].blocked == "size"
        topic = of.links[0].topics["t"]
        assert [part.topic for part in ranges(of, now=now)] == ["u"], "the others go on"
        told(of, ALL, now=now)
        pauses.append(topic.retry_at_ms - now)
        now = topic.retry_at_ms
    assert pauses[0] < 2000
    assert pauses[-1] > 20_000
    assert max(pauses) <= ReplicationLimits().blocked_retry_ms_max * 1.25
    parts = {part.topic: part for part in ranges(of, now=now)}
    told(of, ALL, outcome(parts["t"], c=3, s=3), now=now)
    owed = of.links[0].owed["t"]
    assert owed.HasField("blocked")
    assert owed.blocked == ""
    assert not of.links[0].troubled


def test_a_topic_blocked_at_the_handshake() -> None:
    of = pipeline_state()
    report(of, state())
    [asked] = of.handshakes("b", 0)
    mark = pb.GeoWatermark(
        topic="t", persisted=pb.GeoPosition(ledger=-1, entry=-1), blocked="partitions", reason="4 and 8"
    )
    of.handshake_answered(asked, pb.CommandGeoWatermarksResponse(request_id=1, counter=3, uuid="ub", topics=[mark]), 0)
    assert not ranges(of)
    assert not of.handshakes("b", 10)
    [(_, _, [learn], _, _)] = of.owed("a", 0)
    assert learn.blocked == "partitions"
    shake(of, now=90_000)
    assert ranges(of, now=90_000)


def test_a_destination_that_may_let_a_topic_in_is_asked_at_once() -> None:
    of = pipeline_state()
    report(of, state())
    assert not of.listens("b"), "it knows nothing of this source yet"
    [asked] = of.handshakes("b", 0)
    nowhere = pb.GeoPosition(ledger=-1, entry=-1)
    mark = pb.GeoWatermark(topic="t", persisted=nowhere, blocked="policy", reason="was deleted")
    of.handshake_answered(asked, pb.CommandGeoWatermarksResponse(request_id=1, counter=3, uuid="ub", topics=[mark]), 0)
    [waits] = of.listens("b")
    assert (waits.topics, waits.uuid) == ((), "ua") and not of.listens("a")
    assert not of.handshakes("b", 10)
    of.refusals_changed("a")
    assert not of.handshakes("b", 10)
    of.refusals_changed("b")
    shake(of, now=10)
    assert ranges(of, now=10)
    told(of, ALL, outcome(ranges(of, now=10)[0], c=9, s=9), now=11)
    assert not of.listens("b")


def test_what_the_source_blocks_is_not_asked_for_at_the_destination() -> None:
    of = ready()
    told(of, ALL, outcome(ranges(of)[0], trouble=m.BLOCKED, kind="corrupt", reason="disk"))
    assert of.links[0].troubled and not of.listens("b")


def test_a_new_topic_need_not_wait_for_the_batches_of_others() -> None:
    """It is made there at its handshake: clients that come first would make it otherwise."""
    of = ready()
    assert ranges(of)
    report(of, state(), state("new", last=-1))
    [asked] = of.handshakes("b", 0)
    assert [query.topic for query in asked.topics] == ["new"]
    of.links[0].unready.add("t")
    [asked] = of.handshakes("b", 0)
    assert [query.topic for query in asked.topics] == ["new"], "what is in flight waits"


def test_the_first_handshake_of_all_waits_for_no_batch_of_a_former_life() -> None:
    of = pipeline_state()
    report(of, state())
    assert len(of.handshakes("b", 0)) == 1


def test_a_blocked_link_is_tried_again() -> None:
    of = pipeline_state()
    report(of, state())
    shake(of, blocked="identity", reason="two uuids")
    assert of.links[0].blocked == "identity"
    assert not of.handshakes("b", 10)
    assert not ranges(of)
    shake(of, now=90_000)
    assert ranges(of, now=90_000)


def test_a_restarted_source_hears_of_the_trouble_again() -> None:
    """It has forgotten it, and would take its link for one that works."""
    of = pipeline_state()
    report(of, state(), boot=1)
    shake(of, blocked="identity", reason="two uuids")
    [(link, trouble)] = of.troubles("a")
    of.trouble_reported(link, trouble)
    report(of, state(), boot=1)
    assert not of.troubles("a")
    report(of, state(), boot=2)
    assert of.troubles("a") == [(link, trouble)]


def test_nothing_is_planned_towards_or_from_a_broken_cluster() -> None:
    of = ready(*LINKS)
    assert {part.link for part in ranges(of)} == {0, 1, 2}
    parts = {part.link: part for part in ranges(of)}
    told(of, ALL, outcome(parts[0], trouble=m.TARGET_DOWN, reason="b: refused"))
    assert {part.link for part in ranges(of, now=10_000)} == {2}, "b is source of link 1, too"
    assert of.breakers["b"].probe(10_000)
    of.breakers["b"].worked()
    assert {part.link for part in ranges(of, now=10_000)} == {0, 1, 2}


def test_a_lost_source_has_to_report_first() -> None:
    of = ready()
    of.source_lost("a")
    assert not ranges(of)
    report(of)
    assert ranges(of)


@pytest.mark.parametrize("more", [{"paused": True}, {"lease": False}])
def test_a_paused_or_leased_link_rests(more: dict[str, bool]) -> None:
    of = ready()
    report(of, **more)
    assert not ranges(of)
    report(of)
    assert ranges(of)


def test_a_paused_topic_rests() -> None:
    of = ready(states=(state("t", paused=True), state("u")))
    assert [part.topic for part in ranges(of)] == ["u"]


def test_a_removed_topic_is_forgotten() -> None:
    of = ready()
    report(of, state(removed=True))
    assert not ranges(of)
    assert not of.links[0].topics
    assert not of.owed("a", 0)


def test_a_recreated_topic_starts_with_a_handshake() -> None:
    of = ready()
    report(of, state(incarnation=8))
    assert not ranges(of)
    shake(of)
    assert ranges(of)[0].incarnation == 8


def test_a_throttled_link_waits_and_says_when() -> None:
    of = ready()
    report(of, throttle_bytes_per_second=1000)
    [part] = ranges(of)
    assert part.bytes_max == 1000
    told(of, ALL, outcome(part, c=4, s=4, bytes=5000))
    works, wake = of.available(ALL, 0)
    assert not works
    assert 4000 < wake <= 4100
    assert of.available(ALL, wake)[0]


def test_a_throttling_destination_gets_a_pause_and_smaller_batches() -> None:
    of = ready(states=(state(size=10 * MB),))
    [part] = ranges(of)
    told(of, ALL, outcome(part, c=1, s=1, throttle_ms=700))
    works, wake = of.available(ALL, 10)
    assert not works
    assert wake == 700
    [part] = ranges(of, now=700)
    assert part.bytes_max == 8 * MB
    for _ in range(20):
        told(of, ALL, outcome(part, c=1, s=1), now=700)
    assert of.destinations["b"].pace_bytes == 0, "and larger ones again when it accepts them"


def test_two_queries_never_plan_the_same_topic() -> None:
    of = ready(states=(state("near"), state("far", size=20 * MB)))
    assert [part.topic for part in ranges(of, TAIL)] == ["near"]
    assert [part.topic for part in ranges(of, BULK)] == ["far"]
    report(of, state("far", c=8, size=MB))
    assert [part.topic for part in ranges(of, TAIL)] == ["near"], "the bulk query still has it"
    told(of, BULK)
    assert {part.topic for part in ranges(of, TAIL)} == {"near", "far"}


def test_one_query_gives_catching_up_a_small_part_beside_the_tail() -> None:
    of = ready(states=(state("near"), state("far", size=20 * MB)))
    parts = {part.topic: part for part in ranges(of, ALL)}
    assert parts["near"].bytes_max < MB
    assert parts["far"].bytes_max == 8 * MB
    of = ready(states=(state("far", size=40 * MB),))
    assert ranges(of, ALL)[0].bytes_max == ReplicationLimits().bulk_batch_bytes_max < 400 * MB


def test_a_range_that_does_not_move_is_no_hot_loop() -> None:
    of = ready()
    [part] = ranges(of)
    told(of, ALL, m.RangeReport(0, "t", 5, 1, None, part.s))
    works, wake = of.available(ALL, 0)
    assert not works
    assert wake > 0


def test_tasks_carry_the_routes_of_their_links_and_the_source_uuid() -> None:
    of = ready(*LINKS)
    [task] = of.plan(ALL, ROUTES, 0)
    assert [(r.link, r.source, r.target, r.uuid) for r in task.routes] == [
        (0, "a", "b", "ua"),
        (1, "b", "a", "ua"),
        (2, "a", "c", "ua"),
    ]
    assert [part.number for part in task.ranges] == [0, 1, 2]
    assert m.decode_task(m.encode(task)) == task


def test_new_partitions_are_told_to_the_destination() -> None:
    of = ready()
    report(of, pb.GeoTopicState.FromString(state().SerializeToString().replace(b"\x18\x00", b"\x18\x04")))
    [asked] = of.handshakes("b", 0)
    assert [query.partitions for query in asked.topics] == [4]


def test_limits_reach_tasks_and_batches() -> None:
    limits = ReplicationLimits(progress_ms=7, window_bytes=8, buffer_bytes_max=9, tail_batch_bytes_max=MB)
    of = PipelineState(LINKS[:1], random.Random(7), 2, limits)
    report(of, state(size=MB))
    shake(of)
    [task] = of.plan(ALL, ROUTES, 0)
    [route] = task.routes
    assert (route.progress_ms, route.window_bytes, route.buffer_bytes_max) == (7, 8, 9)
    assert sum(part.bytes_max for part in task.ranges) == MB
    of = PipelineState(LINKS[:1], random.Random(7), 2)
    report(of, state(size=MB))
    shake(of)
    assert sum(part.bytes_max for part in of.plan(ALL, ROUTES, 0)[0].ranges) > MB
