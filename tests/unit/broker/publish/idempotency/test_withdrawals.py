"""Messages that are withdrawn, or superfluous since a compaction, and are gone from the log some day."""

import msgspec
import pytest

from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.core.ids import EARLIEST, Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.topiclog import Retention
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World
from tests.support.subscriptions import add_entries, entry, new_log


class Trimmed:
    """Two ledgers, each with a batch of which a message is withdrawn and another is superfluous; retention deletes the first."""

    def __init__(self) -> None:
        self.world = World("a")
        self.node: Node = self.world["a"]
        self.node.create()
        self.world.settle()
        self.client: Client = self.node.client()
        self.consumer = self.client.subscribe("s", replicated=False)
        self.world.settle()
        self.positions = self.node.publish(b"x", batch=4)
        self.node.run(lambda: self.node.topic.log.roll(self.world.now_ms))
        self.positions += self.node.publish(b"x", batch=4)
        for position in self.positions:
            self.node.run(self.node.topic.withdraw, [Loser(position, 1)])
            self.node.topic.compacted.gone.add([Loser(position, 2)])
        self.client.flow(self.consumer)
        self.world.settle()
        self.client.ack(self.consumer, *self.client.take(self.consumer))
        self.world.advance(1_000)
        self.node.control_call(lambda done: self.node.control.topics.truncate(TOPIC, done))
        assert not self.node.topic.log.valid(self.positions[0])

    def reads(self, consumer: int) -> list[tuple[Position, tuple[int, ...]]]:
        """What a consumer is given: entries, and which of their messages are left."""
        self.world.settle()
        self.client.flow(consumer)
        self.world.settle()
        return [(message.position, message.ack_set) for message in self.client.take(consumer)]


@pytest.mark.parametrize("compacted", [False, True])
def test_who_comes_after_retention_deleted_what_was_withdrawn(compacted: bool) -> None:
    trimmed = Trimmed()
    came = trimmed.client.subscribe("late", replicated=False, read_compacted=compacted)
    assert trimmed.reads(came) == [(trimmed.positions[1], (0b1001 if compacted else 0b1101,))]


def test_a_seek_after_retention_deleted_what_was_withdrawn() -> None:
    trimmed = Trimmed()
    request = trimmed.client.seek(trimmed.consumer, EARLIEST)
    trimmed.world.advance(1_000)
    assert trimmed.client.answered(request) is not None
    came = trimmed.client.subscribe("s", replicated=False)
    assert trimmed.reads(came) == [(trimmed.positions[1], (0b1101,))]


def test_what_retention_deleted_is_forgotten_at_once() -> None:
    trimmed = Trimmed()
    for held in (trimmed.node.topic.withdrawals, trimmed.node.topic.compacted.gone):
        assert list(held.parts) == [trimmed.positions[1]]
        assert held.messages == 1
        held.validate()


def test_what_is_withdrawn_is_stored_with_the_messages_of_batches() -> None:
    log = new_log()
    batch = add_entries(log, [entry(count=3)])[0].position
    whole = add_entries(log, [entry()])[0].position
    held, again = Withdrawals(log), Withdrawals(log)
    held.add([Loser(batch, 0), Loser(batch, 2), Loser(whole, -1)])
    again.load(held.encode())
    assert (again.parts, again.messages) == ({batch: 0b101}, 3)
    assert whole in again.entries


@pytest.mark.parametrize("parts", [[[1, 2]], [[1, "2", b"x"]], [7]])
def test_a_damaged_record_of_withdrawals_is_refused(parts: list[object]) -> None:
    damaged = msgspec.msgpack.encode({"incarnation": 0, "entries": {}, "parts": parts})
    with pytest.raises(ValueError, match="withdrawn messages: "):
        Withdrawals(new_log()).load(damaged)


def test_a_cursor_is_covered_before_the_deleted_is_forgotten() -> None:
    log = new_log()
    first = add_entries(log, [entry(count=3)])[0].position
    log.roll(0)
    second = add_entries(log, [entry(count=3)])[0].position
    held = Withdrawals(log)
    held.add([Loser(first, 0), Loser(second, 0)])
    going = log.trim(None, 1, Retention(0, 0))
    assert going is not None
    log.forget(going)
    cursor = Cursor.at(log, EARLIEST)
    held.acknowledge_in(cursor)
    assert {position: partial.bits for position, partial in cursor.partial.items()} == {second: 0b110}


WHOLE = -1


@pytest.mark.parametrize(
    ("withdrawn", "superfluous", "expected"),
    [
        ([(2, WHOLE)], [(0, WHOLE)], (1, 2)),
        ([(2, WHOLE)], [(1, 2)], (1, 1)),
        ([(1, 2)], [(2, WHOLE)], (1, 1)),
        ([(2, WHOLE), (1, 1)], [(1, 0), (1, 2)], (0, -1)),
        ([(2, WHOLE), (0, WHOLE)], [(1, WHOLE)], None),
        ([(0, WHOLE)], [(1, WHOLE)], (2, -1)),
    ],
)
def test_the_last_message_of_who_reads_compacted_is_one_that_it_is_given(
    withdrawn: list[tuple[int, int]], superfluous: list[tuple[int, int]], expected: tuple[int, int] | None
) -> None:
    """Readers wait for the message that they are told is the last."""
    world = World("a")
    node = world["a"]
    node.create()
    positions = [*node.publish(b"x"), *node.publish(b"x", batch=3), *node.publish(b"x")]
    node.run(node.topic.withdraw, [Loser(positions[entry], index) for entry, index in withdrawn])
    node.topic.compacted.gone.add([Loser(positions[entry], index) for entry, index in superfluous])
    client = node.client()
    reader = client.subscribe("r", replicated=False, read_compacted=True)
    world.settle()
    client.flow(reader)
    world.settle()
    received = client.take(reader)
    client.send(pb.BaseCommand(type=29, getLastMessageId=pb.CommandGetLastMessageId(consumer_id=reader, request_id=1)))
    told = client.answers[-1].getLastMessageIdResponse.last_message_id
    if expected is None:
        assert (told.ledgerId, received) == ((1 << 64) - 1, [])
    else:
        entry, index = expected
        assert (told.ledgerId, told.entryId, told.batch_index) == (*positions[entry], index)
        assert received[-1].position == positions[entry]
