import pytest

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.broker.subscriptions.dispatch import chunks as dispatch_chunks
from magnetar.broker.subscriptions.dispatch import multiple
from magnetar.core.ids import Position
from magnetar.storage.entries import NewEntry
from magnetar.storage.topiclog import Retention
from magnetar.wire import pulsar_pb2 as pb
from tests.support.subscriptions import FIRST_LEDGER, Limits, World, entry

SHARED = SubType.SHARED


def at(*entries: int) -> list[Position]:
    return [Position(FIRST_LEDGER, number) for number in entries]


def test_entries_go_round() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=1_000)
    b = world.consumer("b", SHARED, permits=1_000)
    world.publish_many(60)
    assert len(world.got(a)) + len(world.got(b)) == 60
    assert 20 <= len(world.got(a)) <= 40
    assert len(world.sends) == 2


def test_a_lower_priority_gets_only_what_the_higher_has_no_permits_for() -> None:
    world = World()
    low = world.consumer("low", SHARED, permits=1_000, priority=1)
    high = world.consumer("high", SHARED, permits=30, priority=0)
    positions = world.publish_many(50)
    assert world.got(high) == positions[:30]
    assert world.got(low) == positions[30:]


def test_what_a_gone_consumer_held_goes_to_others_in_order() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=10)
    positions = world.publish_many(10)
    b = world.consumer("b", SHARED, permits=100)
    world.ack(a, positions[3])
    world.leave(a)
    assert world.got(b) == [position for position in positions if position != positions[3]]
    # It was not the consumer's fault: that is no redelivery by request.
    assert {each.redelivery for each in world.take(b)} == {0}


def test_negative_acknowledgement_counts_redeliveries_and_sends_only_what_is_named() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=100)
    positions = world.publish_many(3)
    world.take(a)
    for expected in (1, 2):
        world.redeliver(a, positions[1])
        assert [(each.position, each.redelivery) for each in world.take(a)] == [(positions[1], expected)]
    world.ack(a, positions[1])
    world.redeliver(a, positions[1])
    assert world.take(a) == []


def test_redelivery_without_ids_is_of_everything_pending_on_that_consumer() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=2)
    b = world.consumer("b", SHARED, permits=2)
    positions = world.publish_many(4)
    mine = world.got(a)
    world.take(a), world.take(b)
    world.redeliver(a)
    assert world.take(b) == []
    world.flow(b, 10)
    assert [each.position for each in world.take(b)] == mine
    assert sorted(b.pending) == positions


def test_what_is_pending_on_another_consumer_is_not_redelivered() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=10)
    positions = world.publish_many(2)
    b = world.consumer("b", SHARED, permits=10)
    world.redeliver(b, *positions)
    assert world.got(b) == []
    assert list(a.pending) == positions


def test_too_many_unacknowledged_messages_stop_a_consumer_until_half_is_acknowledged() -> None:
    world = World(limits=Limits(unacked_messages_per_consumer_max=10))
    a = world.consumer("a", SHARED, permits=100)
    positions = world.publish(*(entry(count=3) for _ in range(10)))
    assert world.got(a) == positions[:4]
    assert a.blocked
    world.flow(a, 100)
    world.ack(a, positions[0])
    world.ack(a, positions[1])
    assert a.unacked == 6
    assert world.got(a) == positions[:4]
    world.ack(a, positions[2])
    assert world.got(a) == positions[:7]


@pytest.mark.parametrize("kind", [SubType.SHARED, SubType.KEY_SHARED])
def test_who_gives_messages_back_gets_them_again_however_many_it_keeps(kind: SubType) -> None:
    """As in Pulsar: an application that acknowledges the rest when these are done would wait for ever."""
    world = World(limits=Limits(unacked_messages_per_consumer_max=10))
    a = world.consumer("a", kind, permits=100)
    positions = world.publish_many(30)
    assert world.got(a) == positions[:10]
    assert a.blocked
    world.redeliver(a, Position(99, 99))
    assert a.blocked
    assert world.got(a) == positions[:10]
    world.redeliver(a, positions[7], positions[2])
    assert world.got(a)[10:] == [positions[2], positions[7]]
    assert a.blocked
    assert a.unacked == 10
    world.redeliver(a)
    assert world.got(a)[12:] == positions[:10]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", [SubType.SHARED, SubType.KEY_SHARED])
def test_much_comes_back_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, kind: SubType, leaves: bool) -> None:
    """Others' events come in between, and what they do counts."""
    monkeypatch.setattr(multiple, "RETURNED_MAX", 2)
    world = World()
    a = world.consumer("a", kind, permits=100)
    positions = world.publish_many(10)
    b = world.consumer("b", kind, permits=0)
    world.patient = True
    if leaves:
        world.leave(a)
    else:
        world.redeliver(a)
    assert len(a.pending) == 8, "only the first ones came back"
    world.ack(b, positions[4])
    assert len(a.pending) == 7, "whoever acknowledges it"
    world.subscription.skip(3)
    assert len(a.pending) == 6
    newer = world.publish_many(5)
    world.flow(b, 100)
    world.patient = False
    world.pump()
    assert not a.pending or not leaves
    again = sorted(world.got(a)[10:] + world.got(b))
    assert again == [each for each in positions[3:] if each != positions[4]] + newer


@pytest.mark.parametrize("kind", [SubType.SHARED, SubType.KEY_SHARED])
def test_what_is_given_back_meanwhile_comes_back_with_the_rest(monkeypatch: pytest.MonkeyPatch, kind: SubType) -> None:
    monkeypatch.setattr(multiple, "RETURNED_MAX", 2)
    world = World()
    a = world.consumer("a", kind, permits=100)
    positions = world.publish_many(12)
    world.patient = True
    world.redeliver(a, *positions[4:8])
    world.redeliver(a, *positions[6:9])
    world.ack(a, positions[7])
    world.patient = False
    world.pump()
    assert world.got(a)[12:] == [positions[each] for each in (4, 5, 6, 8)]
    world.patient = True
    world.redeliver(a, *positions[:3])
    world.redeliver(a)
    world.redeliver(a)
    world.patient = False
    world.pump()
    assert world.got(a)[16:] == [each for each in positions if each != positions[7]]
    assert a.can_receive


def test_a_subscription_that_starts_anew_waits_for_nothing_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple, "RETURNED_MAX", 2)
    world = World()
    a = world.consumer("a", SHARED, permits=100)
    b = world.consumer("b", SHARED, permits=0)
    positions = world.publish_many(10)
    world.patient = True
    world.leave(a)
    assert len(a.pending) == 8
    world.leave(b)
    assert not a.pending
    c = world.consumer("c", SHARED, permits=100)
    world.patient = False
    world.pump()
    assert world.got(c) == positions


def test_too_many_unacknowledged_messages_of_all_consumers_stop_the_subscription() -> None:
    world = World(limits=Limits(unacked_messages_per_subscription_max=40))
    a = world.consumer("a", SHARED, permits=1_000)
    b = world.consumer("b", SHARED, permits=1_000)
    world.publish_many(200)
    assert a.unacked + b.unacked == 40
    assert world.stats()["blockedSubscriptionOnUnackedMsgs"]
    for position in list(a.pending)[:19]:
        world.ack(a, position)
    assert len(world.got(a)) + len(world.got(b)) == 40
    world.ack(a, next(iter(a.pending)))
    assert len(world.got(a)) + len(world.got(b)) == 60


def test_acknowledging_what_another_consumer_holds_counts_for_that_one() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=10)
    positions = world.publish_many(1)
    b = world.consumer("b", SHARED, permits=10)
    assert world.ack(b, *positions)
    assert a.unacked == 0
    assert not a.pending


def test_part_of_a_batch() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=100)
    [batch] = world.publish(entry(count=4))
    world.ack(a, batch, ack_set=[0b0110])
    assert a.unacked == 2
    world.redeliver(a, batch)
    assert [each.ack_set for each in world.take(a)] == [(), (0b0110,)]
    world.ack(a, batch, ack_set=[0b0100])
    world.ack(a, batch, ack_set=[0b0010])
    assert a.unacked == 0
    assert world.subscription.mark_delete == batch


def test_delayed_entries_come_at_their_time_and_not_before() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=100)
    positions = world.publish(entry(deliver_at=500), entry(), entry(deliver_at=300), entry(deliver_at=300))
    assert world.got(a) == at(1)
    assert world.stats()["msgDelayed"] == 3
    world.advance(299)
    assert world.got(a) == at(1)
    world.advance(1)
    assert world.got(a) == at(1, 2, 3)
    world.advance(200)
    assert world.got(a) == at(1, 2, 3, 0)
    assert [each.redelivery for each in world.take(a)] == [0] * 4
    assert len(positions) == 4


def test_delayed_entries_survive_their_consumer() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=100)
    world.publish(entry(deliver_at=500))
    world.leave(a)
    b = world.consumer("b", SHARED, permits=100)
    world.advance(499)
    assert world.got(b) == []
    world.advance(1)
    assert world.got(b) == at(0)


def test_memory_for_delayed_entries_is_bounded_by_not_reading_on() -> None:
    world = World()
    world.set_limits(delayed_entries_max=150)
    a = world.consumer("a", SHARED, permits=1_000)
    world.publish(*(entry(deliver_at=1_000 + number) for number in range(300)), entry())
    assert 150 <= world.stats()["msgDelayed"] <= 170
    assert world.got(a) == []
    world.advance(2_000)
    assert sorted(world.got(a)) == at(*range(301))


def test_entries_to_be_redelivered_are_read_again_from_disk() -> None:
    world = World(cache_bytes=0, ledger_entries_max=6)
    world.set_limits(read_entries_max=4, read_bytes_max=200)
    a = world.consumer("a", SHARED, permits=15)
    positions = [position for _ in range(5) for position in world.publish_many(3)]
    assert world.got(a) == positions
    world.take(a)
    world.redeliver(a, *positions[3:12:2])
    assert world.got(a) == []
    world.flow(a, 100)
    assert world.got(a) == positions[3:12:2]


def test_acknowledged_while_it_is_read_again() -> None:
    world = World(cache_bytes=0, auto_read=False)
    a = world.consumer("a", SHARED, permits=20)
    world.publish_many(2)
    world.answer_read()
    world.pump()
    positions = world.got(a)
    world.redeliver(a)
    world.ack(a, positions[0])
    world.take(a)
    while world.reads:
        world.answer_read()
        world.pump()
    assert world.got(a) == positions[1:]


def test_skipping_takes_pending_entries_from_consumers() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=20)
    positions = world.publish_many(10)
    assert world.subscription.skip(4) == 4
    world.pump()
    assert list(a.pending) == positions[4:]
    assert a.unacked == 6
    world.subscription.skip_all()
    world.pump()
    assert a.unacked == 0
    assert world.subscription.backlog_entries() == 0


def test_redeliveries_beyond_the_limit_are_said_not_to_be_counted() -> None:
    world = World(limits=Limits(redeliveries_max=2))
    a = world.consumer("a", SHARED, permits=100)
    positions = world.publish_many(4)
    world.take(a)
    world.redeliver(a)
    assert [each.redelivery for each in world.take(a)] == [1, 1, 0, 0]
    [note] = world.notes
    assert "redeliveries_max" in note.text
    assert len(positions) == 4


def test_the_type_changes_when_nobody_is_connected() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=10)
    positions = world.publish_many(3)
    world.ack(a, positions[1])
    world.leave(a)
    b = world.consumer("b", SubType.EXCLUSIVE, permits=10)
    assert world.got(b) == [positions[0], positions[2]]
    assert world.stats()["type"] == "Exclusive"


def test_an_entry_that_cannot_be_read_again_does_not_stop_new_ones() -> None:
    world = World(cache_bytes=0)
    a = world.consumer("a", SHARED, permits=3)
    positions = world.publish_many(3)
    world.redeliver(a, positions[1])
    world.disk_error = "gone bad"
    world.take(a)
    world.flow(a, 100)
    assert [note.level for note in world.notes] == ["error"]
    world.disk_error = ""
    later = world.publish_many(2)
    assert world.got(a) == later
    world.advance(1_000)
    assert world.got(a) == [*later, positions[1]]


def test_an_answer_for_consumers_that_are_gone_is_dropped() -> None:
    world = World(cache_bytes=0, auto_read=False)
    a = world.consumer("a", SHARED, permits=20)
    positions = world.publish_many(2)
    world.answer_read()
    world.pump()
    world.redeliver(a)
    stale = world.reads.pop()
    world.leave(a)
    b = world.consumer("b", SHARED, permits=20)
    world.answer_read()
    world.pump()
    world.redeliver(b)
    world.take(b)
    stale.then([], "an error of long ago")
    world.pump()
    assert world.notes == []
    world.answer_read()
    world.pump()
    assert world.got(b) == positions


def test_one_ack_with_parts_and_wholes_sends_nothing_that_it_acknowledges() -> None:
    # Found by walk 2053: the part freed the blocked consumer before the whole entry was known to be acknowledged.
    world = World(limits=Limits(unacked_messages_per_consumer_max=4))
    a = world.consumer("a", SHARED, permits=100)
    positions = world.publish(entry(), entry(count=2), entry(count=2))
    world.redeliver(a, positions[0])
    world.take(a)
    assert a.blocked
    assert world.stats()["msgInReplay"] == 1
    ids = [
        pb.MessageIdData(ledgerId=100, entryId=0, ack_set=[2]),
        pb.MessageIdData(ledgerId=100, entryId=1, ack_set=[2]),
        pb.MessageIdData(ledgerId=100, entryId=2, ack_set=[2]),
    ]
    assert world.subscription.ack(a, ids, cumulative=False)
    world.pump()
    assert world.got(a) == []
    assert not a.blocked


def test_one_message_at_a_time_goes_round() -> None:
    """A turn that brings nothing is none: else every second consumer, of an even number, would get nothing ever."""
    world = World()
    consumers = [world.consumer(f"c{number}", SHARED, permits=1_000) for number in range(4)]
    for _ in range(40):
        world.publish(entry())
    assert [len(world.got(each)) for each in consumers] == [10] * 4


def chunks(*numbers: int, uuid: str = "u", of: int = 3) -> list[NewEntry]:
    return [entry(chunk=(uuid, number, of)) for number in numbers]


def test_all_chunks_of_a_message_go_to_one_consumer() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=1_000)
    b = world.consumer("b", SHARED, permits=1_000)
    for one, other in zip(chunks(0, 1, 2, uuid="u"), chunks(0, 1, 2, uuid="v"), strict=True):
        world.publish(one)
        world.publish(other)
        world.publish(entry())
    for first in (0, 1):
        mine = at(first, first + 3, first + 6)
        assert [set(mine) <= set(world.got(each)) for each in (a, b)] in ([True, False], [False, True])


def test_chunks_wait_for_a_consumer_that_has_no_permits_and_others_go_on() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=1)
    b = world.consumer("b", SHARED, permits=1_000)
    [first] = world.publish(*chunks(0))
    rest = world.publish(*chunks(1, 2), entry())
    assert world.got(a) == [first] and world.got(b) == rest[2:]
    assert world.stats()["msgInReplay"] == 2
    world.flow(a, 1)
    assert world.got(a) == [first, rest[0]], "in their order"
    world.flow(a, 1)
    assert world.got(a) == [first, *rest[:2]]


def test_chunks_of_a_consumer_that_goes_are_for_whoever_comes_next() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=2)
    positions = world.publish(*chunks(0, 1, 2))
    b = world.consumer("b", SHARED, permits=1_000)
    c = world.consumer("c", SHARED, permits=1_000)
    assert world.got(a) == positions[:2] and not world.got(b) + world.got(c)
    world.leave(a)
    assert sorted((world.got(b), world.got(c))) == [[], positions]


def test_a_chunk_whose_first_ones_are_acknowledged_is_for_anybody() -> None:
    world = World()
    a = world.consumer("a", SHARED, permits=1)
    positions = world.publish(*chunks(0))
    world.ack(a, *positions)
    world.leave(a)
    b = world.consumer("b", SHARED, permits=1_000)
    rest = world.publish(*chunks(1, 2))
    assert world.got(b) == rest


def test_no_more_chunks_wait_for_their_consumer_than_are_looked_ahead() -> None:
    world = World()
    world.set_limits(look_ahead_entries_max=2)
    a = world.consumer("a", SHARED, permits=1)
    b = world.consumer("b", SHARED, permits=1_000)
    positions = [world.publish(each)[0] for each in chunks(0, 1, 2, 3, of=4)]
    later = world.publish(entry())
    assert world.got(b) == []
    assert world.stats()["msgInReplay"] == 2
    world.flow(a, 3)
    assert (world.got(a), world.got(b)) == (positions, later)


def test_owners_of_messages_that_never_end_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_chunks, "OWNERS_MAX", 10)
    world = World()
    a = world.consumer("a", SHARED, permits=1_000)
    for number in range(30):
        world.publish(*chunks(0, uuid=f"u{number}"))
    assert len(world.got(a)) == 30
    world.subscription.validate()


def test_what_retention_deleted_under_a_reader_is_no_more_pending() -> None:
    world = World(durable=False, ledger_entries_max=10, limits=Limits(unacked_messages_per_consumer_max=10))
    a = world.consumer("a", SHARED, permits=1_000)
    positions = world.publish_many(10)
    world.publish_many(5)
    trim = world.log.trim(None, 10**12, Retention(0, 0))
    assert trim is not None
    world.log.forget(trim)
    world.ack(a, *positions)
    assert len(world.got(a)) == 15
