"""Finding the entries in one topic's log that the message ids of an ACK name.

An id names an entry, or messages of an entry's batch (`ack_set`: a bit set of the messages that are *left*). A consumer
that was moved here may still send ids of another cluster's log: an id that is not an entry of this log is ignored.
"""

from collections.abc import Sequence

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import CursorLog, bits_of
from magnetar.wire.pulsar_pb2 import MessageIdData


def position_of(item: MessageIdData) -> Position:
    """The position that an id names. Ids travel as unsigned; Pulsar's -1 arrives as 2^64 - 1."""
    ledger, entry = item.ledgerId, item.entryId
    return Position(ledger - (1 << 64) if ledger >> 63 else ledger, entry - (1 << 64) if entry >> 63 else entry)


def messages_left(log: CursorLog, position: Position, item: MessageIdData) -> int:
    """The messages of an entry that an id leaves, as a bit set; 0 where there is no entry, or no ack_set.

    The client decides how long an ack_set is: of it no more is read than the batch has messages.
    """
    if not item.ack_set or not log.valid(position):
        return 0
    return bits_of(item.ack_set[: (log.count_at(position) + 63) // 64])


def acked_by(log: CursorLog, whole: Sequence[Position], parts: Sequence[MessageIdData]) -> Acked:
    """The entries and messages that an ACK names, including those that the cursor has already: an entry may have
    expired here and still be acknowledged.

    Args:
        log: the topic's log.
        whole: entries.
        parts: ids that name messages of batches.
    """
    if not parts and len(whole) == 1 and log.valid(whole[0]):
        return Acked(NONE, NONE, whole)  # one id in one frame: the list is as it should be
    whole = [position for position in whole if log.valid(position)]
    if not parts:
        return Acked(NONE, NONE, whole)
    partial: dict[Position, int] = {}
    for item in parts:
        position = Position(item.ledgerId, item.entryId)
        if log.valid(position):
            acked = ((1 << log.count_at(position)) - 1) & ~messages_left(log, position, item)
            partial[position] = partial.get(position, 0) | acked
    return Acked(NONE, NONE, [position for position in whole if position not in partial], partial)


def acked_up_to(log: CursorLog, before: Position, position: Position, left: int) -> Acked:
    """The entries and messages that a cumulative acknowledgement names.

    Args:
        log: the topic's log.
        before: position of the cursor before.
        position: position of the acknowledgement.
        left: the messages of the batch at `position` that are not acknowledged (a bit set); 0: none.
    """
    if not left or not log.valid(position):
        return Acked(before, position)
    acked = ((1 << log.count_at(position)) - 1) & ~left
    return Acked(before, Position(position.ledger, position.entry - 1), (), {position: acked})
