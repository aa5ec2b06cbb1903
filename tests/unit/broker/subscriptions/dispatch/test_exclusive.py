import pytest

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.broker.subscriptions.dispatch.hashing import SLOTS, slot_of
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from tests.support.subscriptions import FIRST_LEDGER, World, entry


def test_nothing_is_sent_before_the_first_flow() -> None:
    world = World()
    consumer = world.consumer("a")
    world.publish_many(3)
    assert world.got(consumer) == []
    world.flow(consumer, 2)
    assert world.got(consumer) == [Position(FIRST_LEDGER, 0), Position(FIRST_LEDGER, 1)]


def test_all_that_permits_allow_goes_out_in_one_effect() -> None:
    world = World()
    consumer = world.consumer("a")
    world.publish_many(60)
    before = len(world.sends)
    world.flow(consumer, 1000)
    assert len(world.sends) == before + 1
    assert len(world.sends[-1].buffers) == 120
    assert len(world.got(consumer)) == 60
    assert consumer.permits == 940


def test_new_entries_are_pushed() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    [first] = world.publish(entry(b"one"))
    assert [(each.position, each.payload) for each in world.take(consumer)] == [(first, b"one")]


def test_permits_count_messages_and_may_go_below_zero_by_one_batch() -> None:
    world = World()
    consumer = world.consumer("a", permits=3)
    positions = world.publish(entry(count=2), entry(count=5), entry(count=1))
    assert world.got(consumer) == positions[:2]
    assert consumer.permits == -4
    world.flow(consumer, 4)
    assert world.got(consumer) == positions[:2]
    world.flow(consumer, 1)
    assert world.got(consumer) == positions


def test_a_second_consumer_is_refused() -> None:
    world = World()
    world.consumer("a")
    with pytest.raises(BrokerError) as refused:
        world.consumer("b")
    assert refused.value.code is ErrorCode.CONSUMER_BUSY
    assert "client-a" in refused.value.message


def test_markers_are_never_sent_and_leave_no_hole() -> None:
    world = World()
    consumer = world.consumer("a", permits=10)
    positions = world.publish(entry(), entry(marker=True), entry())
    assert world.got(consumer) == [positions[0], positions[2]]
    world.ack(consumer, positions[0])
    assert world.subscription.mark_delete == positions[1]
    assert world.subscription.backlog_entries() == 1


def test_redelivery_starts_again_behind_mark_delete() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    positions = world.publish_many(5)
    world.ack(consumer, positions[0])
    world.ack(consumer, positions[2])
    world.take(consumer)
    world.redeliver(consumer)
    assert [each.position for each in world.take(consumer)] == [positions[1], positions[3], positions[4]]
    # Naming some means all: the order is worth more.
    world.redeliver(consumer, positions[4])
    assert [each.position for each in world.take(consumer)] == [positions[1], positions[3], positions[4]]


def test_the_epoch_of_a_redelivery_is_echoed_and_an_older_one_ignored() -> None:
    world = World()
    consumer = world.consumer("a", permits=100, epoch=1)
    world.publish_many(1)
    assert [each.epoch for each in world.take(consumer)] == [1]
    world.redeliver(consumer, epoch=2)
    assert [each.epoch for each in world.take(consumer)] == [2]
    world.redeliver(consumer, epoch=1)
    assert world.take(consumer) == []


def test_without_an_epoch_none_is_sent() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    world.publish_many(1)
    assert [each.epoch for each in world.take(consumer)] == [None]


def test_a_partly_acknowledged_batch_comes_with_what_is_left() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    [batch] = world.publish(entry(count=3))
    world.ack(consumer, batch, ack_set=[0b101])
    world.take(consumer)
    before = consumer.permits
    world.redeliver(consumer)
    assert [each.ack_set for each in world.take(consumer)] == [(0b101,)]
    assert consumer.permits == before - 2


def test_the_next_consumer_begins_behind_mark_delete() -> None:
    world = World()
    first = world.consumer("a", permits=100)
    positions = world.publish_many(4)
    world.ack(first, positions[1], cumulative=True)
    world.leave(first)
    second = world.consumer("b", permits=100)
    assert world.got(second) == positions[2:]


def test_a_paused_connection_gets_nothing_until_it_resumes() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    world.subscription.pause(consumer.connection)
    positions = world.publish_many(3)
    assert world.got(consumer) == []
    world.subscription.resume(consumer.connection)
    world.pump()
    assert world.got(consumer) == positions


def test_delayed_messages_are_not_delayed_here() -> None:
    world = World()
    consumer = world.consumer("a", permits=100)
    positions = world.publish(entry(deliver_at=10_000))
    assert world.got(consumer) == positions


def test_one_event_sends_a_bounded_number_of_bytes_and_the_next_goes_on() -> None:
    world = World()
    world.set_limits(dispatch_bytes_max=3_000)
    consumer = world.consumer("a")
    positions = world.publish(*(entry(b"x" * 1_000) for _ in range(10)))
    world.subscription.flow(consumer, 100)
    [sent] = [effect for effect in world.outbox.effects if hasattr(effect, "buffers")]
    assert sum(map(len, sent.buffers)) < 4_500
    world.pump()
    assert world.got(consumer) == positions


@pytest.mark.parametrize("sub_type", list(SubType))
def test_one_event_sends_a_bounded_number_of_entries_and_the_next_goes_on(sub_type: SubType) -> None:
    world = World()
    world.set_limits(dispatch_entries_max=50)
    consumer = world.consumer("a", sub_type)
    positions = world.publish(*(entry(b"x", key=f"k{number % 5}") for number in range(1_000)))
    world.subscription.flow(consumer, 10_000)
    turns = 0
    while world.outbox.effects:
        before = len(world.got(consumer))
        world.host.pump()
        assert len(world.got(consumer)) - before <= 50 + 100, "what was begun is ended, and no more"
        turns += 1
        for then in world.timers.due(0):
            then(0)
    assert turns >= 1_000 / 150
    assert world.got(consumer) == positions


def test_an_exclusive_consumer_is_not_told_that_it_is_active() -> None:
    """As in Pulsar: applications that listen for changes would take it for one."""
    world = World()
    world.consumer("a")
    assert world.commands == []


@pytest.mark.parametrize("cache_bytes", [0, 4_000])
def test_old_entries_are_read_from_disk_in_order(cache_bytes: int) -> None:
    world = World(cache_bytes=cache_bytes, ledger_entries_max=7)
    world.set_limits(read_entries_max=5)
    positions = [position for _ in range(10) for position in world.publish_many(3)]
    consumer = world.consumer("a", SubType.EXCLUSIVE, permits=4)
    assert world.got(consumer) == positions[:4]
    world.flow(consumer, 100)
    assert world.got(consumer) == positions
    assert world.reads_asked > 1
    later = world.publish_many(2)
    assert world.got(consumer) == positions + later


def test_at_most_one_read_is_in_flight() -> None:
    world = World(cache_bytes=0, auto_read=False)
    consumer = world.consumer("a", permits=5)
    positions = world.publish_many(20)
    for _ in range(3):
        world.flow(consumer, 1)
    assert len(world.reads) == 1
    while world.reads:
        world.answer_read()
        world.pump()
        assert len(world.reads) <= 1
    assert world.got(consumer) == positions[:8]


def test_a_read_overtaken_by_a_rewind_is_dropped() -> None:
    world = World(cache_bytes=0, auto_read=False)
    consumer = world.consumer("a", permits=5)
    positions = world.publish_many(3)
    stale = world.reads.pop()
    world.redeliver(consumer)
    world.answer_read()
    world.pump()
    stale.then(world.disk[:1], "")
    world.pump()
    assert world.got(consumer) == positions


def test_a_failing_disk_is_reported_and_tried_again() -> None:
    world = World(cache_bytes=0)
    world.disk_error = "segment 3: I/O error"
    consumer = world.consumer("a", permits=5)
    positions = world.publish_many(3)
    assert world.got(consumer) == []
    [note] = world.notes
    assert note.level == "error"
    assert "segment 3: I/O error" in note.text
    assert "subscription s of" in note.text
    world.flow(consumer, 1)
    assert world.reads_asked == 1
    world.disk_error = ""
    world.advance(1_000)
    assert world.got(consumer) == positions


def test_read_ahead_is_bounded() -> None:
    world = World(cache_bytes=0)
    world.set_limits(read_bytes_max=10_000)
    world.consumer("a", permits=1)
    world.publish(*(entry(b"x" * 1_000) for _ in range(100)))
    reading = world.subscription._dispatcher.reading
    assert 0 < reading._ahead_bytes <= 20_000


def test_a_reader_of_hash_ranges_gets_what_falls_into_them_and_no_more() -> None:
    """Java's `ReaderBuilder.keyHashRange`: several readers share a topic out by keys."""
    keys = ["a", "b", "c", "d", "e"]
    ranges = {slot_of(b"a"), slot_of(b"d")}
    world = World()
    reader = world.consumer("r", permits=100, ranges=[(slot, slot) for slot in sorted(ranges)])
    found = world.publish(entry(), *(entry(key=key) for key in keys * 2))[1:]
    assert world.got(reader) == [found[0], found[3], found[5], found[8]]
    assert reader.permits == 96, "what is passed over takes no permits"
    assert world.subscription.mark_delete < found[0], "nor is it acknowledged"
    world.redeliver(reader)
    assert world.got(reader)[4:] == [found[0], found[3], found[5], found[8]]
    world.leave(reader)
    everything = world.consumer("all", permits=100)
    assert len(world.got(everything)) == 11, "the ranges are those of one consumer"


def test_readers_of_all_ranges_together_get_every_message_once() -> None:
    halves = [(0, SLOTS // 2 - 1), (SLOTS // 2, SLOTS - 1)]
    got = []
    for half in halves:
        world = World()
        reader = world.consumer("r", permits=1000, ranges=[half])
        everything = world.publish(
            *(entry(key=f"k{number}") for number in range(50)),
            *(entry() for _ in range(50)),
            *(entry(chunk=(f"u{number}", part, 2)) for number in range(20) for part in range(2)),
        )
        got.append(set(world.got(reader)))
    assert got[0] | got[1] == set(everything) and not got[0] & got[1]
    chunks = everything[100:]
    assert all((one in got[0]) == (other in got[0]) for one, other in zip(chunks[::2], chunks[1::2], strict=True))


@pytest.mark.parametrize("ranges", [[(5, 4)], [(0, SLOTS)], [(0, 10), (10, 20)]])
def test_hash_ranges_of_a_reader_that_are_none_are_refused(ranges: list[tuple[int, int]]) -> None:
    world = World()
    with pytest.raises(BrokerError) as refused:
        world.consumer("r", ranges=ranges)
    assert refused.value.code is ErrorCode.CONSUMER_ASSIGN
    world.consumer("r", permits=1)
