from collections.abc import Sequence

import pytest

from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.consumer import SubType, rates_out
from magnetar.core.errors import BrokerError, ErrorCode, StorageError
from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.metadata.topic_records import cursor_key
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import Cursor, Partial, bits_of
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from tests.support import geoworld
from tests.support.subscriptions import TOPIC, Limits, World, entry

NOT_SHARED = [SubType.EXCLUSIVE, SubType.FAILOVER]
SHARED = [SubType.SHARED, SubType.KEY_SHARED]
ALL = [*NOT_SHARED, *SHARED]


class Listener:
    """Remembers what is acknowledged on a subscription."""

    def __init__(self, heard: list[Acked]) -> None:
        self._heard = heard

    def acknowledged(self, name: str, acked: Acked) -> None:
        self._heard.append(acked)

    def expired(self, name: str, after: Position, up_to: Position) -> None:
        raise AssertionError("nothing expires here")


@pytest.mark.parametrize("sub_type", ALL)
def test_publish_receive_acknowledge(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=100)
    positions = world.publish_many(10)
    received = world.take(consumer)
    assert [each.position for each in received] == positions
    assert [each.payload for each in received] == [b"%d" % number for number in range(10)]
    assert {(each.consumer_id, each.partition, each.redelivery, each.ack_set) for each in received} == {(7, -1, 0, ())}
    for position in reversed(positions):
        assert world.ack(consumer, position)
    assert world.subscription.mark_delete == positions[-1]
    assert world.subscription.backlog_entries() == 0
    assert not world.ack(consumer, positions[3])


@pytest.mark.parametrize("sub_type", ALL)
def test_the_partition_is_in_every_message_id(sub_type: SubType) -> None:
    world = World(partition=3)
    consumer = world.consumer("a", sub_type, permits=10)
    world.publish_many(1)
    assert [each.partition for each in world.take(consumer)] == [3]


@pytest.mark.parametrize("sub_type", ALL)
@pytest.mark.parametrize("other", ALL)
def test_types_do_not_mix(sub_type: SubType, other: SubType) -> None:
    if sub_type is other:
        return
    world = World()
    consumer = world.consumer("a", sub_type)
    with pytest.raises(BrokerError) as refused:
        world.consumer("b", other)
    assert refused.value.code is ErrorCode.CONSUMER_BUSY
    world.leave(consumer)
    world.consumer("b", other)


@pytest.mark.parametrize("sub_type", SHARED)
def test_cumulative_acknowledgement_is_refused_where_there_is_no_order(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=10)
    positions = world.publish_many(3)
    with pytest.raises(BrokerError, match="one by one") as refused:
        world.ack(consumer, positions[1], cumulative=True)
    assert refused.value.code is ErrorCode.NOT_ALLOWED
    assert world.subscription.mark_delete == NONE


def test_cumulative_acknowledgement_names_one_id() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    positions = world.publish_many(3)
    with pytest.raises(BrokerError, match="not 2"):
        world.ack(consumer, *positions[:2], cumulative=True)


def test_cumulative_acknowledgement_within_a_batch() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    positions = world.publish(entry(), entry(count=4))
    assert world.ack(consumer, positions[1], cumulative=True, ack_set=[0b1100])
    assert world.subscription.mark_delete == positions[0]
    world.take(consumer)
    world.redeliver(consumer)
    assert [(each.position, each.ack_set) for each in world.take(consumer)] == [(positions[1], (0b1100,))]


@pytest.mark.parametrize(
    ("sub_type", "cumulative"), [(SubType.EXCLUSIVE, True), *((sub_type, False) for sub_type in ALL)]
)
def test_of_an_ack_set_no_more_is_read_than_its_batch_has(
    sub_type: SubType, cumulative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def bits_read(words: Sequence[int]) -> int:
        read.append(len(words))
        return bits_of(words)

    monkeypatch.setattr("magnetar.broker.subscriptions.acked_ids.bits_of", bits_read)
    world = World()
    told: list[Acked] = []
    world.subscription.listen(Listener(told))
    consumer = world.consumer("a", sub_type, permits=1000)
    small, large = world.publish(entry(count=3), entry(count=65))
    many = [0b011, *[-1] * 1000]
    assert not world.ack(consumer, Position(small.ledger, 77), cumulative=cumulative, ack_set=many)
    assert not world.ack(consumer, Position(small.ledger - 1, 0), cumulative=cumulative, ack_set=many)
    assert not any(read), "of what is not there, nothing"
    assert world.ack(consumer, small, cumulative=cumulative, ack_set=many)
    assert max(read) == 1
    assert world.subscription.cursor.partial == {small: Partial(0b011, 3)}
    assert world.ack(consumer, large, cumulative=cumulative, ack_set=[0, 1, *many])
    assert max(read) == 2
    assert world.subscription.cursor.partial[large] == Partial(1 << 64, 65)
    assert [acked.partial for acked in told if acked.partial] == [{small: 0b100}, {large: (1 << 64) - 1}]
    assert world.ack(consumer, large, cumulative=cumulative, ack_set=[0, 0, *many]), "its words leave no message"
    assert world.subscription.cursor.is_acked(large)


def test_of_the_ack_set_of_a_seek_no_more_is_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def bits_read(words: Sequence[int]) -> int:
        read.append(len(words))
        return bits_of(words)

    monkeypatch.setattr("magnetar.broker.subscriptions.subscription.bits_of", bits_read)
    world = World()
    small, large = world.publish(entry(count=3), entry(count=65))
    many = [-1] * 1000
    for position in (EARLIEST, LATEST, Position(small.ledger, 77)):
        world.subscription.seek_to(position, many)
    assert not any(read), "of what is not there, nothing"
    world.subscription.seek_to(small, [0b110, *many])
    assert world.subscription.cursor.partial == {small: Partial(0b110, 3)}
    world.subscription.seek_to(large, [0, 1, *many])
    assert world.subscription.cursor.partial == {large: Partial(1 << 64, 65)}
    assert max(read) == 2


@pytest.mark.parametrize("sub_type", NOT_SHARED)
def test_cumulative_acknowledgement_of_what_is_in_front_of_a_ledger(sub_type: SubType) -> None:
    """C++ clients, from within the first batch of a ledger: (ledger, -1), which is no entry."""
    world = World(ledger_entries_max=3)
    told: list[Acked] = []
    world.subscription.listen(Listener(told))
    consumer = world.consumer("a", sub_type, permits=1000)
    positions = [world.publish(entry(count=5))[0] for _ in range(7)]
    ledgers = sorted({position.ledger for position in positions})
    assert len(ledgers) == 3
    minus_one = (1 << 64) - 1
    for forged in ((ledgers[1], minus_one - 1), (ledgers[2] + 1, minus_one), (ledgers[0] - 1, minus_one)):
        assert not world.ack(consumer, Position(*forged), cumulative=True)
    assert not world.ack(consumer, Position(ledgers[0], minus_one), cumulative=True), "nothing is in front of it"
    assert world.subscription.mark_delete == NONE and not told
    assert world.ack(consumer, Position(ledgers[1], minus_one), cumulative=True)
    assert world.subscription.mark_delete == positions[2]
    assert world.subscription.in_flight() == 4 * 5
    assert told == [Acked(NONE, positions[2])]
    assert not world.ack(consumer, Position(ledgers[1], minus_one), cumulative=True)
    assert world.ack(consumer, Position(ledgers[2], minus_one), cumulative=True)
    assert world.subscription.mark_delete == positions[5]
    assert not world.ack(consumer, Position(ledgers[2], minus_one)), "one by one it names nothing"


def test_strange_ids_are_passed_over() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    world.publish_many(3)
    biggest = Position(2**64 - 1, 2**64 - 1)
    assert not world.ack(consumer, biggest)
    assert not world.ack(consumer, biggest, cumulative=True)
    assert not world.ack(consumer, Position(100, 77))
    assert not world.ack(consumer, Position(2**63 - 1, 5), cumulative=True)
    assert not world.ack(consumer, biggest, ack_set=[1])


def test_acknowledging_marks_dirty_and_encode_makes_clean() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    positions = world.publish_many(3)
    assert world.dirty == 0
    world.ack(consumer, positions[0])
    assert world.dirty == 1
    again = Cursor.decode(world.log, world.subscription.encode())
    assert again.mark_delete == positions[0]
    assert not world.subscription.cursor.dirty
    world.ack(consumer, positions[0])
    assert world.dirty == 1


@pytest.mark.parametrize("sub_type", ALL)
def test_markers_are_stepped_over_with_and_without_a_consumer(sub_type: SubType) -> None:
    world = World()
    [first] = world.publish(entry(marker=True))
    assert world.subscription.mark_delete == first
    consumer = world.consumer("a", sub_type, permits=10)
    positions = world.publish(entry(), entry(marker=True), entry(marker=True))
    world.ack(consumer, positions[0])
    assert world.subscription.mark_delete == positions[-1]
    [later] = world.publish(entry(marker=True))
    assert world.subscription.mark_delete == later
    assert world.got(consumer) == positions[:1]
    assert world.dirty == 1
    message = world.publish_many(1)
    assert world.got(consumer) == positions[:1] + message


# ------------------------------------------------------------------------------------------------------------- seeking


@pytest.mark.parametrize("sub_type", ALL)
def test_seek_drops_all_consumers_and_starts_from_there(sub_type: SubType) -> None:
    world = World()
    consumers = [world.consumer("a", sub_type, permits=3)]
    if sub_type is not SubType.EXCLUSIVE:
        consumers.append(world.consumer("b", sub_type, permits=3))
    positions = world.publish_many(10)
    for consumer in consumers:
        for position in world.got(consumer)[1:]:
            world.ack(consumer, position)
    sent = sum(len(world.got(consumer)) for consumer in consumers)
    world.commands.clear()
    dirty = world.dirty
    world.subscription.seek_to(positions[4])
    world.pump()
    closed = [(connection, command.close_consumer.consumer_id) for connection, command in world.commands]
    assert closed == [(consumer.connection, 7) for consumer in consumers]
    assert all(command.type == 16 for _, command in world.commands)
    assert world.detached == closed
    assert world.subscription.consumers == []
    assert world.dirty > dirty
    # The others are not sent what the first one held on its way out.
    assert sum(len(world.got(consumer)) for consumer in consumers) == sent
    again = world.consumer("a", sub_type, permits=100)
    assert world.got(again) == positions[4:]
    assert {each.redelivery for each in world.take(again)} == {0}


def test_seek_forward_backward_and_to_the_ends() -> None:
    world = World()
    positions = world.publish_many(5)
    for target, expected in [
        (positions[3], positions[2]),
        (positions[1], positions[0]),
        (LATEST, positions[4]),
        (EARLIEST, NONE),
        (Position(100, 99), positions[4]),
    ]:
        world.subscription.seek_to(target)
        assert world.subscription.mark_delete == expected


def test_seek_into_a_batch() -> None:
    world = World()
    positions = world.publish(entry(), entry(count=3), entry())
    world.subscription.seek_to(positions[1], [0b110])
    consumer = world.consumer("a", permits=10)
    assert [(each.position, each.ack_set) for each in world.take(consumer)] == [
        (positions[1], (0b110,)),
        (positions[2], ()),
    ]


def test_seek_by_publish_time() -> None:
    world = World()
    positions = world.publish(*(entry(publish_time=1_000 * number) for number in range(5)))
    for time_ms, expected in [(2_000, positions[2:]), (2_001, positions[3:]), (0, positions), (9_999, [])]:
        world.subscription.seek_time(time_ms)
        consumer = world.consumer("a", permits=10)
        assert world.got(consumer) == expected
        world.leave(consumer)


def test_a_read_in_flight_across_a_seek_brings_nothing_old() -> None:
    world = World(cache_bytes=0, auto_read=False)
    positions = world.publish_many(4)
    world.consumer("a", permits=10)
    old = world.reads.pop()
    world.subscription.seek_to(positions[2])
    world.pump()
    consumer = world.consumer("a", permits=10)
    old.then(world.disk, "")
    world.answer_read()
    world.pump()
    assert world.got(consumer) == positions[2:]


# ------------------------------------------------------------------------------------------------------ administration


def test_skip_counts_unacknowledged_messages_only() -> None:
    world = World()
    consumer = world.consumer("a", permits=3)
    positions = world.publish(entry(), entry(), entry(marker=True), entry(), entry(), entry())
    world.ack(consumer, positions[1])
    assert world.subscription.nth_unacknowledged(1) == positions[0]
    assert world.subscription.nth_unacknowledged(2) == positions[3]
    assert world.subscription.nth_unacknowledged(5) is None
    assert world.subscription.skip(2) == 2
    assert world.subscription.mark_delete == positions[3]
    world.pump()
    world.flow(consumer, 10)
    assert world.got(consumer) == [positions[number] for number in (0, 1, 3, 4, 5)]
    assert world.subscription.skip(100) == 2
    assert world.subscription.skip(1) == 0
    assert world.subscription.backlog_entries() == 0


def test_skip_goes_by_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of entries in one event, in which nobody else has a turn: none is looked at by itself."""
    world = World(ledger_entries_max=500)
    consumer = world.consumer("a")
    positions = [position for _ in range(4) for position in world.publish(*([entry()] * 499), entry(marker=True))]
    world.ack(consumer, *positions[700:900])
    steps: list[Position] = []
    right = TopicLog.next_after

    def next_after(log: TopicLog, position: Position) -> Position | None:
        steps.append(position)
        return right(log, position)

    monkeypatch.setattr(TopicLog, "next_after", next_after)
    assert world.subscription.nth_unacknowledged(499 * 3) == positions[1_699]
    assert world.subscription.skip(499 + 400) == 499 + 400
    assert world.subscription.mark_delete == positions[1_100]
    assert world.subscription.skip(1_000_000) == 499 * 2 - 101
    assert world.subscription.backlog_entries() == 0
    assert len(steps) < 50


def test_skip_all_also_moves_what_is_still_to_be_read() -> None:
    world = World()
    consumer = world.consumer("a")
    world.publish_many(5)
    world.subscription.skip_all()
    world.flow(consumer, 10)
    assert world.got(consumer) == []
    later = world.publish_many(2)
    assert world.got(consumer) == later


def test_expire() -> None:
    world = World()
    world.advance(10_000)
    positions = world.publish(*(entry(publish_time=1_000 * number) for number in range(5)))
    world.subscription.expire(2_500)
    assert world.subscription.mark_delete == positions[2]
    world.subscription.expire(1_000)
    assert world.subscription.mark_delete == positions[2]
    world.subscription.expire(99_000)
    assert world.subscription.mark_delete == positions[4]


def test_a_message_of_the_future_keeps_nothing_from_expiring() -> None:
    """Of a producer whose clock is a year ahead: it was there when its ledger was."""
    world = World()
    positions: list[Position] = []
    for _ in range(3):
        world.advance(1_000)
        positions += world.publish(entry(publish_time=1_000), entry(publish_time=1 << 40))
        world.log.roll(world.outbox.now_ms)
    for before_ms, expired in [(1_000, 0), (1_001, 3), (2_000, 3), (2_001, 5), (3_000, 5), (3_001, 6)]:
        world.subscription.expire(before_ms)
        assert sum(position <= world.subscription.mark_delete for position in positions) == expired
    assert world.log.stored_by(positions[1]) == 1_000
    assert world.log.seek_time(2_000) == positions[1], "who seeks, seeks what producers say"


def test_expired_entries_are_counted_once_and_as_entries() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    world.advance(10_000)
    positions = world.publish(*(entry(publish_time=1_000 * number, count=3) for number in range(6)))
    world.ack(consumer, positions[1])
    world.subscription.update_rates(10_000)
    world.subscription.expire(2_500)
    world.subscription.expire(2_500)
    stats = world.stats()
    assert (stats["totalMsgExpired"], stats["lastExpireTimestamp"]) == (2, 10_000), "one of three was acknowledged"
    world.subscription.advance_to(positions[3])
    assert world.stats()["totalMsgExpired"] == 2, "a quota on bytes lets nothing expire"
    world.subscription.update_rates(14_000)
    assert world.stats()["msgRateExpired"] == 0.5
    assert subscription_stats.consumer_stats(world.subscription, consumer)["msgRateExpired"] == 0.5
    world.subscription.update_rates(18_000)
    assert world.stats()["msgRateExpired"] == 0.0


def test_expiry_up_to_a_position_never_goes_back_or_beyond() -> None:
    world = World()
    positions = world.publish_many(3)
    world.subscription.expire_to(positions[1])
    world.subscription.expire_to(positions[0])
    world.subscription.expire_to(Position(999, 0))
    assert world.subscription.mark_delete == positions[1]
    assert world.subscription.activity.expired_entries == 2


def test_advance_to_never_goes_back_or_beyond() -> None:
    world = World()
    positions = world.publish_many(3)
    world.subscription.advance_to(positions[1])
    world.subscription.advance_to(positions[0])
    world.subscription.advance_to(Position(999, 0))
    assert world.subscription.mark_delete == positions[1]


@pytest.mark.parametrize("sub_type", ALL)
def test_disconnect_all_lets_them_come_back(sub_type: SubType) -> None:
    world = World()
    world.consumer("a", sub_type, permits=10)
    positions = world.publish_many(2)
    world.commands.clear()
    world.subscription.disconnect_all()
    world.pump()
    assert [command.type for _, command in world.commands] == [16]
    again = world.consumer("a", sub_type, permits=10)
    assert world.got(again) == positions


def test_a_closed_subscription_takes_no_consumers_and_sends_nothing() -> None:
    world = World(cache_bytes=0, auto_read=False)
    consumer = world.consumer("a", permits=10)
    world.publish_many(2)
    world.subscription.close("deleted")
    world.answer_read()
    world.pump()
    assert world.got(consumer) == []
    assert world.detached == [(consumer.connection, 7)]
    with pytest.raises(BrokerError) as refused:
        world.consumer("b")
    assert refused.value.code is ErrorCode.SERVICE_NOT_READY


def test_removing_twice_is_harmless() -> None:
    world = World()
    consumer = world.consumer("a")
    world.leave(consumer)
    world.leave(consumer)
    assert world.subscription.consumers == []


def test_the_replicated_mark_is_kept_in_the_cursor() -> None:
    world = World()
    assert not world.subscription.replicated
    world.subscription.set_replicated(True)
    world.subscription.set_replicated(True)
    assert world.dirty == 1
    assert world.subscribe(Cursor.decode(world.log, world.subscription.encode())).replicated
    world.subscription.set_replicated(False)
    assert not world.subscription.replicated


def test_holes_that_are_not_stored_are_said_once() -> None:
    world = World(limits=Limits(cursor_ranges_max=2))
    counted = world.left_out
    consumer = world.consumer("a", permits=100)
    positions = world.publish_many(20)
    for position in positions[1:12:2]:
        world.ack(consumer, position)
        world.subscription.encode()
    world.pump()
    [note] = world.notes
    assert note.level == "warning"
    assert TOPIC in note.text
    assert "cursor_ranges_max = 2" in note.text
    assert len(world.subscription.cursor.acked) == 6
    assert sum(counted) == 4, "each of those that are not stored, however often the cursor is"
    world.subscription.encode()
    assert sum(counted) == 4
    world.ack(consumer, positions[11], cumulative=True)
    world.subscription.encode()
    for position in positions[13:20:2]:
        world.ack(consumer, position)
        world.subscription.encode()
    world.pump()
    assert len(world.notes) == 2


# ---------------------------------------------------------------------------------------------------------- statistics


def test_stats_have_pulsars_keys() -> None:
    world = World()
    consumer = world.consumer("a", SubType.SHARED, permits=5)
    positions = world.publish(entry(b"12345"), entry(marker=True), entry(count=3), entry(), entry())
    world.ack(consumer, positions[2])
    stats = world.stats()
    assert stats["type"] == "Shared"
    assert stats["msgBacklog"] == 3
    assert stats["msgBacklogMessages"] == 3
    assert stats["unackedMessages"] == 2
    assert stats["isDurable"]
    assert not stats["isReplicated"]
    assert stats["nonContiguousDeletedMessagesRanges"] == 1
    assert stats["msgOutCounter"] == 5
    assert stats["activeConsumerName"] == ""
    assert stats["backlogSize"] > 0
    [shown] = stats["consumers"]
    assert shown["consumerName"] == "a"
    assert shown["availablePermits"] == 0
    assert shown["unackedMessages"] == 2
    internal = world.internal_stats()
    assert internal["markDeletePosition"] == "-1:-1"
    assert internal["individuallyDeletedMessages"] == "[(100:1..100:2]]"
    assert internal["readPosition"] == "100:4"
    world.leave(consumer)
    assert world.stats()["msgOutCounter"] == 5
    assert world.subscription.messages_out == 5
    assert world.subscription.bytes_out > 0


def test_the_read_position_is_that_of_the_next_entry() -> None:
    world = World()
    told = lambda: world.internal_stats()["readPosition"]  # noqa: E731
    assert told() == "-1:0"
    first, second, _ = world.publish_many(3)
    assert told() == str(first)
    world.subscription.skip(1)
    assert told() == str(second)
    world.subscription.skip_all()
    assert told() == "100:3", "where the next one will be"
    world.log.roll(0)
    (later,) = world.publish_many(1)
    assert (later.ledger, told()) == (101, "101:0")
    consumer = world.consumer("a", permits=10)
    world.take(consumer)
    assert told() == "101:1"


def test_the_active_consumer_is_named() -> None:
    world = World()
    world.consumer("b", SubType.FAILOVER)
    world.consumer("c", SubType.FAILOVER)
    assert world.stats()["activeConsumerName"] == "b"


def test_rates_are_per_second_since_the_last_update() -> None:
    world = World()
    consumer = world.consumer("a", permits=1_000)
    world.advance(1_000)
    world.subscription.update_rates(1_000)
    world.publish_many(50)
    world.subscription.update_rates(6_000)
    assert world.stats()["msgRateOut"] == 10.0
    assert rates_out(consumer.meter)["msgRateOut"] == 10.0
    world.subscription.update_rates(7_000)
    assert world.stats()["msgRateOut"] == 0.0


@pytest.mark.parametrize("sub_type", ALL)
def test_what_is_acknowledged_is_counted_in_messages(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=1_000)
    first, second, third, fourth = world.publish(entry(count=3), entry(count=4), entry(), entry(count=5))

    def counted() -> int:
        consumed: int = world.internal_stats()["messagesConsumedCounter"]
        assert consumer.messages_acked == consumed
        return consumed

    world.ack(consumer, second)
    assert counted() == 4
    world.ack(consumer, first, ack_set=[0b110])
    assert counted() == 5
    world.ack(consumer, first, second)
    assert counted() == 7, "what was acknowledged counts once"
    world.ack(consumer, third, fourth)
    assert counted() == 13


@pytest.mark.parametrize("sub_type", NOT_SHARED)
def test_what_is_acknowledged_cumulatively_is_counted_in_messages(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=1_000)
    _, second, third, fourth = world.publish(entry(count=3), entry(count=4), entry(marker=True), entry(count=5))
    world.ack(consumer, second, cumulative=True, ack_set=[0b1100])
    assert consumer.messages_acked == 5
    world.ack(consumer, fourth)
    assert consumer.messages_acked == 10
    world.ack(consumer, third, cumulative=True)
    world.ack(consumer, fourth, cumulative=True)
    assert consumer.messages_acked == 12


def test_consumer_stats_fit_the_command() -> None:
    from magnetar.wire import commands

    world = World()
    consumer = world.consumer("a", permits=1)
    world.publish(entry(count=5))
    assert consumer.permits == -4
    stats = subscription_stats.consumer_stats(world.subscription, consumer)
    assert stats["availablePermits"] == 0
    assert commands.consumer_stats(1, stats)


def test_a_subscription_that_starts_at_a_position() -> None:
    world = World(durable=False)
    positions = world.publish_many(5)
    for start, expected in [(positions[2], positions[2:]), (EARLIEST, positions), (LATEST, [])]:
        world.subscription = world.subscribe(start=start)
        consumer = world.consumer("reader", permits=10)
        assert world.got(consumer) == expected
    assert world.stats()["isDurable"] is False


@pytest.mark.parametrize("kind", [SubType.SHARED, SubType.EXCLUSIVE, SubType.FAILOVER])
def test_a_consumer_of_another_type_that_is_refused_leaves_the_subscription_as_it_was(kind: SubType) -> None:
    world = World()
    world.leave(world.consumer("a", kind, permits=1_000))
    sticky = pb.KeySharedMeta(keySharedMode=1)  # without ranges
    with pytest.raises(BrokerError, match="no hash ranges"):
        world.subscription.add_consumer(world.new_consumer("bad", SubType.KEY_SHARED), sticky)
    b = world.consumer("b", kind, permits=1_000)
    positions = world.publish_many(1_000)
    world.advance(10_000)
    assert world.got(b) == positions


def test_a_damaged_cursor_is_named_at_the_start() -> None:
    """Of a thousand subscriptions nobody can guess which one it is."""
    node = geoworld.World("a")["a"]
    node.create()
    node.client().subscribe("s", 1, replicated=False)
    node.world.advance(1_000)
    key = cursor_key(geoworld.TOPIC, "s")
    node.meta[key] = node.meta[key][:-1] + b"?"
    with pytest.raises(StorageError, match=r"subscription s of persistent://public/default/t: .*checksum"):
        node.restart()
