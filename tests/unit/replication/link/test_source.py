"""The source side: what is told, read, committed, trimmed, operated."""

import pytest

from magnetar.core.errors import BrokerError
from magnetar.core.ids import LATEST, NONE, LinkCursor, Position
from magnetar.core.rates import Rate
from magnetar.effects.store_batches import STORE_BYTES_MAX
from magnetar.metadata.errors import Conflict
from magnetar.replication.link.link_topic import MARKS_MAX, LinkTopic
from magnetar.replication.link.polling import LEFT_MS
from magnetar.replication.link.records import LinkTopicRecord, link_cursor_key
from magnetar.replication.link_delivery import PAUSE_MS
from magnetar.runtime.stores.znodes import TRANSACTION_BYTES_MAX, Write
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto, position_to_proto
from tests.unit.replication.link.rig import KEY, TOPIC, Link, message

# ---------------------------------------------------------------------------------------------------------- when it begins


def test_the_cursor_is_there_before_the_first_message() -> None:
    link = Link()
    assert link.stored().cursor == LinkCursor(NONE, NONE, 1)
    positions = link.topic.publish(message(), message())
    assert link.read()[0] == positions
    assert link.machine.durable_low(TOPIC) == NONE


def test_a_link_added_later_sends_everything_retained_or_only_what_is_new() -> None:
    for latest, expected in ((False, 0), (True, 2)):
        link = Link(wanted=False, created=False)
        positions = link.topic.publish(message(), message())
        assert link.machine.durable_low(TOPIC) is None
        assert link.machine.copies(link.topic.log, latest=latest) == 2 - expected
        puts, apply = link.machine.rewanted(TOPIC, link.topic.log, True, latest=latest)
        assert not link.machine.wants(TOPIC)
        link.rig.meta |= puts
        apply()
        positions += link.topic.publish(message())
        assert link.read(position_from_proto(link.told().cursor.c))[0] == positions[expected:]


def test_a_link_configured_between_two_starts_gets_its_cursor_at_start() -> None:
    link = Link(wanted=False, created=False)
    assert KEY not in link.rig.meta
    link.restart()
    link.rig.store()
    assert link.stored().cursor == LinkCursor(NONE, NONE, 1)


def test_a_record_of_an_earlier_incarnation_is_worth_nothing() -> None:
    link = Link()
    link.rig.meta[KEY] = LinkTopicRecord(incarnation=1, c=(9, 9), s=(9, 9), gen=4).encode()
    link.restart()
    assert link.state.cursor == LinkCursor(NONE, NONE, 1)


# ------------------------------------------------------------------------------------------------------------------ reading


def test_an_answer_with_the_entry_that_is_timed_says_so() -> None:
    link = Link()
    [first] = link.topic.publish(message())
    assert link.read()[1].timed
    link.commit(first, first)
    [second] = link.topic.publish(message())
    assert not link.read(after=first)[1].timed, "one was timed a short time ago"
    link.commit(second, second)
    link.rig.later(PAUSE_MS)
    [third] = link.topic.publish(message())
    assert link.read(after=second)[1].timed
    link.topic.publish(message())
    assert not link.read(after=third)[1].timed, "the one before it was not confirmed yet"


def test_only_what_is_for_the_link_is_read() -> None:
    link = Link(ledger_entries=20)
    entries = [
        message("plain"), message("from c", origin="c"), message("for b", to=("b", "x")), message("for x", to=("x",)),
        message("stays", to=("__local__",)), message("last", count=3), message("from c", origin="c"),
    ]  # fmt: skip
    positions = link.topic.publish(*entries)
    got, response, data = link.read()
    assert got == [positions[0], positions[2], positions[5]]
    assert position_from_proto(response.end) == positions[6]
    assert list(response.first_indexes) == [0, 1, 4]
    assert list(response.counts) == [1, 1, 3]
    assert list(response.sizes) == [len(one) for one in data]
    assert list(response.incarnations) == [link.topic.log.incarnation] * 3
    assert [response.origins[at] for at in response.origin_ids] == ["a", "a", "a"]


def test_what_was_left_out_moves_the_end_without_being_read() -> None:
    link = Link(ledger_entries=1000)
    positions = link.topic.publish(*[message(origin="c") for _ in range(300)])
    link.rig.spoilt = set(positions)
    got, response, _ = link.read()
    assert (got, position_from_proto(response.end)) == ([], positions[-1])


def test_a_read_is_bounded_by_bytes_and_by_its_range() -> None:
    link = Link()
    positions = link.topic.publish(*[message("x" * 100) for _ in range(8)])
    size = len(link.topic.disk[positions[0]].data)
    assert link.read(bytes_max=1)[0] == positions[:1], "one entry in any case"
    assert link.read(bytes_max=3 * size)[0] == positions[:3]
    assert link.read(bytes_max=4 * size + 1)[0] == positions[:4]
    assert link.read(positions[1], up_to=position_to_proto(positions[5]))[0] == positions[2:6]
    got, response, _ = link.read(positions[-1])
    assert (got, position_from_proto(response.end)) == ([], positions[-1])


def test_nothing_unconfirmed_is_read() -> None:
    link = Link()
    link.topic.append([message()], lambda _append, _error: None)
    link.rig.pump()
    assert link.read()[0] == []
    assert position_from_proto(link.told().last) == NONE


def test_an_entry_that_cannot_be_read_blocks_its_topic_until_it_can() -> None:
    link = Link()
    positions = link.topic.publish(message(), message(), message())
    link.rig.spoilt = {positions[1]}
    got, response, _ = link.read()
    assert (got, response.blocked) == (positions[:1], "")
    _, response, _ = link.read(positions[0])
    assert response.blocked == "corrupt"
    assert str(positions[1]) in response.message
    told = link.told()
    assert (told.blocked, str(positions[1]) in told.reason) == ("corrupt", True)
    link.rig.spoilt.clear()
    assert link.read(positions[0])[1].blocked == "corrupt", "not before the pause is over"
    link.rig.later(1_000)
    assert link.read(positions[0])[0] == positions[1:]
    assert link.told().blocked == ""


def test_pauses_of_a_blocked_topic_grow_and_are_bounded() -> None:
    link = Link()
    positions = link.topic.publish(message())
    link.rig.spoilt = set(positions)
    pauses = []
    for _ in range(9):
        link.read()
        pauses.append(link.state.blocked.retry_at_ms - link.rig.outbox.now_ms)
        link.rig.later(pauses[-1])
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert link.state.blocked.since_ms == 1_000
    assert len([note for note in link.rig.notes if "blocked" in note.text]) == 1, "said once"


# ------------------------------------------------------------------------------------------------------------------- polls


def test_answers_are_changes_since_a_counter() -> None:
    link = Link()
    first = link.poll()[0]
    assert [t.topic for t in first.topics] == [TOPIC]
    assert link.poll(first.counter)[0].topics == []
    link.topic.publish(message(), message())
    second = link.poll(first.counter)[0]
    assert (second.topics[0].pending_entries, second.topics[0].oldest_ms) == (2, 7)
    assert second.counter > first.counter


def test_a_counter_of_another_start_means_everything() -> None:
    link = Link()
    counter = link.poll()[0].counter
    link.restart()
    told = link.poll(counter)[0]
    assert [t.topic for t in told.topics] == [TOPIC]
    assert link.poll(told.counter, boot=told.boot)[0].topics == []
    assert link.poll(told.counter, boot=told.boot - 1)[0].topics != []


def test_a_poll_is_held_until_there_is_news_or_its_time_is_over() -> None:
    link = Link()
    counter = link.poll()[0].counter
    got = link.poll(counter, wait_ms=1_000)
    assert got == []
    link.topic.publish(message())
    assert got == [], "news is collected for a moment"
    link.rig.later(5)
    assert got[0].topics[0].pending_entries == 1
    quiet = link.poll(got[0].counter, wait_ms=1_000)
    link.rig.later(999)
    assert quiet == []
    link.rig.later(1)
    assert quiet[0].topics == []
    gone = link.poll(got[0].counter, wait_ms=1_000)
    link.machine.disconnected(1)
    link.topic.publish(message())
    link.rig.later(5_000)
    assert gone == []


def test_the_lease_goes_to_one_pipeline_and_on_when_that_is_silent() -> None:
    link = Link()
    assert link.poll(pipeline="p1", lease_ms=10_000)[0].lease
    second = link.poll(pipeline="p2", lease_ms=10_000, connection=2)[0]
    assert (second.lease, second.lease_holder) == (False, "p1")
    link.rig.later(9_999)
    assert not link.poll(pipeline="p2", connection=2)[0].lease
    link.rig.later(1)
    assert link.poll(pipeline="p2", connection=2)[0].lease
    assert not link.poll(pipeline="p1")[0].lease


def test_a_killed_pipeline_leaves_the_lease_soon_to_another_and_may_come_back_for_it() -> None:
    link = Link()
    assert link.poll(pipeline="p1", lease_ms=10_000)[0].lease
    assert not link.poll(pipeline="p2", connection=2)[0].lease
    link.machine.disconnected(2)
    link.rig.later(999)
    assert not link.poll(pipeline="p2", connection=3)[0].lease, "a stand-by that goes takes nothing from the holder"
    link.machine.disconnected(1)
    link.rig.later(LEFT_MS - 1)
    assert not link.poll(pipeline="p2", connection=3)[0].lease
    assert link.poll(pipeline="p1", lease_ms=10_000, connection=4)[0].lease
    link.rig.later(5_000)
    assert not link.poll(pipeline="p2", connection=3)[0].lease
    link.machine.disconnected(4)
    link.rig.later(LEFT_MS)
    assert link.poll(pipeline="p2", connection=3)[0].lease


def test_a_poll_held_open_is_not_silence() -> None:
    link = Link()
    counter = link.poll(pipeline="p1", lease_ms=1_000)[0].counter
    held = link.poll(counter, pipeline="p1", lease_ms=1_000, wait_ms=20_000)
    link.rig.later(15_000)
    assert held == []
    assert not link.poll(pipeline="p2", connection=2)[0].lease
    link.machine.disconnected(1)
    link.rig.later(1_000)
    assert link.poll(pipeline="p2", connection=2)[0].lease


# ------------------------------------------------------------------------------------------------------------------ commits


def test_progress_is_used_at_once_and_trimmed_to_when_durable() -> None:
    link = Link()
    positions = link.topic.publish(message(), message(), message())
    assert list(link.commit(positions[1], positions[0]).ignored) == []
    assert link.state.cursor == LinkCursor(positions[1], positions[0], 1)
    assert link.machine.durable_low(TOPIC) == NONE
    link.rig.later(100)
    assert link.machine.durable_low(TOPIC) == NONE
    link.rig.store()
    assert link.machine.durable_low(TOPIC) == positions[1]
    assert link.stored().cursor == link.state.cursor
    assert link.stored().index == 2


def test_a_store_that_fails_is_tried_again() -> None:
    link = Link()
    positions = link.topic.publish(message())
    link.commit(positions[0], positions[0])
    link.rig.later(100)
    link.rig.store("disk full")
    assert link.machine.durable_low(TOPIC) == NONE
    link.rig.later(500)
    link.rig.store()
    assert link.machine.durable_low(TOPIC) == positions[0]


def test_other_generations_incarnations_and_the_future_are_ignored() -> None:
    link = Link()
    positions = link.topic.publish(message(), message())
    assert list(link.commit(positions[0], positions[0], 2).ignored) == [TOPIC]
    assert list(link.commit(positions[0], positions[0], incarnation=1).ignored) == [TOPIC]
    assert list(link.commit(Position(positions[1].ledger, 99), positions[0]).ignored) == [TOPIC]
    assert link.state.cursor.c == NONE
    link.commit(positions[1], positions[1])
    assert list(link.commit(positions[0], positions[0]).ignored) == [], "old news is no trouble"
    assert link.state.cursor.c == positions[1]


def test_a_lost_destination_is_a_durable_rewind_with_a_new_generation() -> None:
    link = Link()
    positions = link.topic.publish(message(), message(), message())
    link.commit(positions[2], positions[2])
    assert link.learn(positions[2])[0].request_id == 1
    answers = link.learn(positions[0])
    assert answers == [], "not answered before it is durable"
    assert link.state.cursor.gen == 1
    assert list(link.commit(positions[2], positions[2]).ignored) == [TOPIC]
    link.rig.store()
    assert len(answers) == 1
    assert link.state.cursor == LinkCursor(positions[0], positions[0], 2)
    assert link.stored().cursor == link.state.cursor
    assert link.state.gap == 0
    assert list(link.commit(positions[2], positions[2], 1).ignored) == [TOPIC]
    link.machine.validate()


def _many_topics(count: int) -> tuple[Link, list[LinkTopic]]:
    """A link on which many topics moved, each with all the marks that a cursor may have."""
    link = Link()
    link.rig.store()
    states = []
    for number in range(count):
        name = f"persistent://public/default/orders-{number}"
        topic = link.rig.topic(name)
        link.machine.added(name, topic.log, wanted=True, created=True)
        state = link.machine.topics[name]
        state.marks = [(1_790_000_000_000 + at, 49_999, 50_000 * at) for at in range(MARKS_MAX)]
        (position,) = topic.publish(message())
        request = pb.CommandGeoCommit(request_id=1, to="b")
        cursor = pb.GeoCursor(c=position_to_proto(position), s=position_to_proto(position), gen=1)
        request.commits.add(topic=name, incarnation=topic.log.incarnation, cursor=cursor)
        link.tell(request)
        states.append(state)
    return link, states


def test_cursors_of_many_topics_are_cut_into_what_zookeeper_takes() -> None:
    link, states = _many_topics(500)
    link.machine.flush()
    link.rig.pump()
    stores = list(link.rig.stores.waiting)
    sizes = [Write(store.puts, store.deletes, None, lambda _error: None).size for store in stores]
    assert sum(sizes) > TRANSACTION_BYTES_MAX, "or this tests nothing"
    assert max(sizes) <= STORE_BYTES_MAX
    refused = stores.pop(1)
    assert refused.then is not None
    link.rig.stores.waiting.remove(refused)
    refused.then("no space left")
    link.rig.store()
    behind = {state.name for state in states if state.durable != state.cursor}
    assert {link_cursor_key(name, "b") for name in behind} == refused.puts.keys(), "one that fails holds up no other"
    link.machine.flush()
    link.rig.store()
    assert all(state.durable == state.cursor for state in states)


@pytest.mark.parametrize("fails", [False, True])
def test_a_skip_in_many_topics_is_answered_once_when_all_of_it_is_stored(fails: bool) -> None:
    link, states = _many_topics(500)
    link.machine.flush()
    link.rig.store()
    for state in states:
        link.rig.topics[state.name].publish(message())
    answers: list[str] = []
    link.machine.operations.skip(None, LATEST, answers.append)
    link.rig.pump()
    stores = list(link.rig.stores.waiting)
    link.rig.stores.waiting.clear()
    assert len(stores) > 1
    for number, store in enumerate(stores):
        assert store.then is not None and not answers
        store.then("no space left" if fails and not number else "")
    assert answers == ["no space left" if fails else ""]


def test_a_rewind_that_cannot_be_stored_is_not_used() -> None:
    link = Link()
    positions = link.topic.publish(message())
    link.commit(positions[0], positions[0])
    answers = link.learn(NONE)
    link.rig.store("disk full")
    assert answers[0].message == "disk full"
    assert link.state.cursor == LinkCursor(positions[0], positions[0], 1)
    link.learn(NONE)
    link.rig.store()
    assert link.state.cursor.gen == 2


def test_what_is_deleted_before_a_rewind_is_a_declared_gap() -> None:
    link = Link(ledger_entries=2)
    positions = link.topic.publish(*[message(count=2) for _ in range(2)])
    positions += link.topic.publish(message(), message(origin="c"))
    positions += link.topic.publish(message())
    link.commit(positions[-1], positions[-1])
    link.rig.later(100)
    link.rig.store()
    link.rig.trim(keep_after=link.machine.durable_low(TOPIC))
    link.machine.trimmed(TOPIC)
    assert link.told().gap == 0
    link.learn(NONE)
    link.rig.store()
    assert link.told().gap == 5
    assert link.read(position_from_proto(link.told().cursor.c))[0] == positions[4:]
    link.rig.later(100)
    link.rig.store()
    assert link.stored().gap == 5


def test_a_link_all_of_whose_entries_were_deleted_comes_to_the_end() -> None:
    """The destination lost them after the source had deleted them, and nothing new is published. The link would ask for ever."""
    link = Link()
    positions = link.topic.publish(message(), message(), message())
    link.commit(positions[-1], positions[-1])
    link.rig.later(100)
    link.rig.store()
    link.rig.trim(whole=True)
    link.machine.trimmed(TOPIC)
    assert not link.topic.log.ledger_ids()
    got, response, _ = link.read(positions[0])
    assert got == []
    assert position_from_proto(response.end) == positions[-1]


def test_quota_trimming_past_the_link_is_counted_and_the_chain_goes_on() -> None:
    link = Link(ledger_entries=1)
    positions = link.topic.publish(message())
    for _ in range(2):
        positions += link.topic.publish(message(count=2))
    link.commit(positions[0], positions[0])
    positions += link.topic.publish(message())
    link.rig.trim()
    link.machine.trimmed(TOPIC)
    assert link.state.gap == 4
    assert link.state.cursor.s == positions[0]
    assert link.read(link.state.cursor.c)[0] == positions[3:]


def test_a_link_that_began_at_the_newest_entry_never_goes_behind_it() -> None:
    link = Link(wanted=False, created=False)
    old = link.topic.publish(message(), message())
    puts, apply = link.machine.rewanted(TOPIC, link.topic.log, True, latest=True)
    link.rig.meta |= puts
    apply()
    new = link.topic.publish(message())
    link.commit(new[0], new[0])
    link.learn(NONE)
    link.rig.store()
    assert link.state.cursor == LinkCursor(old[1], NONE, 2)


def test_a_foreign_watermark_sends_the_topic_on_above_it() -> None:
    link = Link()
    below = link.topic.publish(message(), message(count=3))
    far = Position(below[0].ledger + 5_000, 3)
    answers = link.learn(far)
    assert answers == []
    link.rig.store()
    assert len(answers) == 1
    assert link.state.cursor == LinkCursor(far, NONE, 1)
    assert link.state.gap == 4
    assert "earlier data folder" in link.rig.notes[-1].text
    above = link.topic.publish(message())
    assert above[0] > far
    assert link.read(link.state.cursor.c)[0] == above
    link.restart()
    assert link.topic.publish(message())[0] > far
    assert link.state.gap == 4


def test_what_an_earlier_generation_learnt_is_void_while_the_rewind_that_ended_it_is_stored() -> None:
    """Seed mixed 5001073 of the simulator: a new source's first handshake came 12 s late, after the target's disk was lost."""
    link = Link()
    positions = link.topic.publish(message(), message())
    link.commit(positions[1], positions[1])
    rewound = link.learn(NONE, gen=1)
    late = link.learn(positions[0], gen=1, foreign=True)
    assert (len(rewound), len(late)) == (0, 1), "there is nothing to store for it"
    link.rig.store()
    link.machine.validate()
    assert link.state.cursor == link.stored().cursor == LinkCursor(NONE, NONE, 2)
    assert (link.state.gap, link.read()[0]) == (0, positions)


@pytest.mark.parametrize("crash", [True, False])
def test_a_foreign_watermark_met_during_a_rewind_goes_on_from_it(crash: bool) -> None:
    """The answer to a refusal names no generation. Had it the old S, nothing sent behind it would continue the chain."""
    link = Link()
    positions = link.topic.publish(message(), message(count=3))
    link.commit(positions[1], positions[1])
    link.learn(NONE, gen=1)
    far = Position(positions[0].ledger + 5_000, 3)
    link.learn(far)
    link.rig.store()
    if crash:
        link.restart()
    link.machine.validate()
    assert link.state.cursor == link.stored().cursor == LinkCursor(far, NONE, 2)
    assert link.state.gap == 4


# ---------------------------------------------------------------------------------------------------------------- operating


@pytest.mark.parametrize("crash", [True, False])
def test_what_is_published_while_a_foreign_watermark_is_left_behind_stays_counted(crash: bool) -> None:
    """Seed exact 738 of the simulator: the durable record knew 7 messages, 6 more came before the store answered."""
    link = Link()
    below = link.topic.publish(message(), message(count=3))
    late = link.topic.append([message(count=2)], lambda _append, _error: None)
    far = Position(below[0].ledger + 5_000, 3)
    link.learn(far)
    link.rig.pump()
    link.rig.sync()
    link.rig.store()
    assert late.entries[0].position < far
    assert link.state.gap == 6
    if not crash:
        link.rig.later(100)
        link.rig.store()
        assert link.stored().gap == 6
    link.restart()
    link.topic.publish(message())
    assert link.state.gap == 6


def test_pause_and_throttle_survive_a_restart() -> None:
    link = Link()
    link.topic.publish(message())
    done: list[str] = []
    link.machine.operations.pause(TOPIC, True, done.append)
    link.machine.operations.throttle(1_000, done.append)
    assert done == []
    link.rig.store()
    assert done == ["", ""]
    link.restart()
    assert (link.told().paused, link.poll()[0].throttle_bytes_per_second) == (True, 1_000)
    assert link.read()[0] == []
    link.machine.operations.pause(TOPIC, False, done.append)
    link.machine.operations.pause(None, True, done.append)
    link.rig.store()
    assert link.poll()[0].paused
    assert link.read()[0] == []
    link.machine.operations.pause(None, False, done.append)
    link.machine.operations.throttle(None, done.append)
    link.rig.store()
    assert len(link.read()[0]) == 1
    assert link.poll()[0].throttle_bytes_per_second == 0


def test_skip_says_what_is_lost_and_moves_c_alone() -> None:
    link = Link()
    positions = link.topic.publish(message(), message(count=4), message(origin="c"), message())
    link.commit(positions[0], positions[0])
    preview = link.machine.operations.skip_preview(TOPIC, positions[2])
    assert [(s.through, s.messages, s.entries) for s in preview] == [(positions[2], 4, 2)]
    done: list[str] = []
    assert link.machine.operations.skip(TOPIC, positions[2], done.append) == 4
    link.rig.store()
    assert done == [""]
    assert link.stored().cursor == LinkCursor(positions[2], positions[0], 1)
    assert (link.stored().skipped, link.stored().gap) == (4, 0)
    assert link.machine.operations.skip_preview(None, LATEST)[0].messages == 1
    with pytest.raises(Conflict, match="behind the last message"):
        link.machine.operations.skip_preview(TOPIC, positions[-1]._replace(entry=99))
    link.machine.operations.skip(None, LATEST, done.append)
    with pytest.raises(BrokerError, match="nothing to skip"):
        link.machine.operations.skip(None, LATEST, done.append)


def test_skip_of_the_blocking_entry() -> None:
    link = Link()
    positions = link.topic.publish(message(), message(origin="c"), message("big"), message())
    with pytest.raises(BrokerError, match="nothing to skip"):
        link.machine.operations.skip(TOPIC, None, lambda _error: None)
    link.commit(positions[1], positions[0], blocked="size", reason="too big", position=position_to_proto(positions[2]))
    assert link.told().blocked == "size"
    assert link.machine.status().blocked[0].position.entry == positions[2].entry
    preview = link.machine.operations.skip_preview(TOPIC, None)
    assert (preview[0].through, preview[0].messages) == (positions[2], 1)
    link.machine.operations.skip(TOPIC, None, lambda _error: None)
    assert link.told().blocked == ""
    link.commit(positions[1], positions[0], blocked="size", reason="too big")
    assert link.told().blocked == "", "a task that was on its way when the skip came tells old news"


def test_skip_without_a_named_entry_takes_the_first_that_may_go() -> None:
    link = Link()
    positions = link.topic.publish(message(origin="c"), message("big"), message())
    link.learn(NONE, blocked="policy", reason="no namespace")
    assert link.machine.operations.skip_preview(TOPIC, None)[0].through == positions[1]
    link.learn(NONE, blocked="", reason="")
    assert link.told().blocked == ""


def test_an_unknown_topic_is_told_so() -> None:
    link = Link()
    for call in (
        lambda: link.machine.operations.pause("persistent://a/b/c", True, lambda _error: None),
        lambda: link.machine.operations.skip("persistent://a/b/c", LATEST, lambda _error: None),
        lambda: link.machine.operations.delete_orphan("persistent://a/b/c", lambda _error: None),
    ):
        with pytest.raises(BrokerError, match="not on the link to b"):
            call()


# ------------------------------------------------------------------------------------------------------------------ orphans


def test_a_cursor_without_policy_holds_its_data_for_its_time() -> None:
    link = Link()
    link.restart(orphan_ms=60_000)
    positions = link.topic.publish(message())
    puts, apply = link.machine.rewanted(TOPIC, link.topic.log, False)
    link.rig.meta |= puts
    apply()
    assert link.read()[0] == []
    assert link.machine.durable_low(TOPIC) == NONE
    link.restart(wanted=False, orphan_ms=60_000)
    assert link.machine.durable_low(TOPIC) == NONE
    link.rig.outbox.now_ms += 58_000
    link.machine.tick(link.rig.outbox.now_ms)
    link.rig.store()
    assert KEY in link.rig.meta
    link.rig.outbox.now_ms += 2_000
    link.machine.tick(link.rig.outbox.now_ms)
    link.rig.store()
    assert KEY not in link.rig.meta
    assert link.machine.durable_low(TOPIC) is None
    assert positions


def test_a_policy_that_comes_back_finds_its_cursor() -> None:
    link = Link()
    positions = link.topic.publish(message(), message())
    link.commit(positions[0], positions[0])
    for wanted in (False, True):
        puts, apply = link.machine.rewanted(TOPIC, link.topic.log, wanted)
        link.rig.meta |= puts
        apply()
    assert link.state.orphan_since_ms == 0
    assert link.read(position_from_proto(link.told().cursor.c))[0] == positions[1:]


def test_an_orphan_is_deleted_by_name_but_never_one_in_use() -> None:
    link = Link()
    done: list[str] = []
    with pytest.raises(BrokerError, match="in use"):
        link.machine.operations.delete_orphan(TOPIC, done.append)
    counter = link.poll()[0].counter
    _, apply = link.machine.rewanted(TOPIC, link.topic.log, False)
    apply()
    assert [t.removed for t in link.poll(counter)[0].topics] == [True]
    link.machine.operations.delete_orphan(TOPIC, done.append)
    link.rig.store()
    assert done == [""]
    assert KEY not in link.rig.meta


def test_a_deleted_topic_is_told_as_removed() -> None:
    link = Link()
    counter = link.poll()[0].counter
    assert link.machine.deletion(TOPIC) == (KEY,)
    link.machine.removed(TOPIC)
    told = link.poll(counter)[0].topics
    assert [(t.topic, t.removed) for t in told] == [(TOPIC, True)]
    assert link.poll()[0].topics == []


def test_the_targets_present_life_is_learnt_and_late_handshakes_do_not_bring_back_a_former_one() -> None:
    link = Link()
    assert link.machine.incarnation_of(TOPIC) == 0
    link.learn(NONE, there=7)
    link.learn(NONE, there=9)
    link.learn(NONE, there=7)
    link.learn(NONE)
    assert link.machine.incarnation_of(TOPIC) == 9
    assert link.machine.incarnation_of("persistent://public/default/other") == 0


# -------------------------------------------------------------------------------------------- a topic has a rate of its own


def paced(link: Link, messages: int, size: int = 0) -> Rate:
    """The link with a rate per hour."""
    rate = Rate(messages, size, 3_600_000, link.rig.outbox.now_ms)
    link.machine.set_rate(TOPIC, rate)
    link.rig.pump()
    return rate


def test_a_topic_goes_as_far_as_its_rate_lets_it_and_on_by_itself() -> None:
    link = Link(ledger_entries=100)
    paced(link, 4)
    positions = link.topic.publish(*[message(str(number)) for number in range(10)])
    assert link.told().last.entry == positions[3].entry
    assert link.told().pending_entries == 4
    assert link.read()[0] == positions[:4]
    assert link.read(up_to=position_to_proto(positions[9]))[0] == positions[:4], (
        "a task that asks for more is sent no more"
    )
    link.commit(positions[3], positions[3])
    assert link.told().pending_entries == 0
    counter = link.machine.changes.counter
    link.rig.later(900_000)  # a quarter of an hour: one token more
    assert link.machine.changes.counter > counter, "the pipeline is told"
    assert link.read(positions[3])[0] == [positions[4]]
    assert link.state.lag_messages() == 6, "the whole lag is shown"
    assert link.state.pending(link.state.end)[0] == 6


def test_batches_count_as_their_messages_and_what_came_from_elsewhere_as_nothing() -> None:
    link = Link(ledger_entries=100)
    paced(link, 3)
    entries = [message("x", origin="c")] * 5 + [message("b", count=5)] + [message("y", origin="c")] * 5 + [message("z")]
    positions = link.topic.publish(*entries)
    assert link.read()[0] == [positions[5]], "a batch goes as a whole, and is made up for"
    assert link.state.last == positions[10]


def test_bytes_count_too() -> None:
    link = Link(ledger_entries=100)
    size = len(message("m" * 100).data)
    paced(link, 0, 2 * size)
    positions = link.topic.publish(*[message("m" * 100) for _ in range(5)])
    assert link.read()[0] == positions[:2]


def test_a_rate_that_is_lifted_or_raised_lets_the_rest_go() -> None:
    link = Link(ledger_entries=100)
    paced(link, 1)
    positions = link.topic.publish(*[message() for _ in range(6)])
    assert link.read()[0] == positions[:1]
    paced(link, 3)
    assert link.read()[0] == positions[:3]
    link.machine.set_rate(TOPIC, None)
    link.rig.pump()
    assert link.read()[0] == positions


def test_what_is_sent_again_counts_again() -> None:
    """The destination lost it all: going back for it must not be a way round the rate."""
    link = Link(ledger_entries=100)
    paced(link, 4)
    positions = link.topic.publish(*[message() for _ in range(4)])
    link.commit(positions[3], positions[3])
    link.learn(NONE)
    link.rig.store()
    assert link.state.cursor.c == NONE
    assert link.read()[0] == []
    link.rig.later(900_000)
    assert link.read()[0] == positions[:1]


def test_what_was_skipped_needs_no_token() -> None:
    link = Link(ledger_entries=100)
    paced(link, 1)
    positions = link.topic.publish(*[message() for _ in range(6)])
    link.machine.operations.skip(TOPIC, positions[4], lambda _error: None)
    link.rig.store()
    link.rig.later(3_600_000)
    assert link.read(link.state.cursor.c)[0] == positions[5:]
