"""Divides the frames of a connection into events of limited work: one command can have a thousand acknowledgements.

The official clients gather acknowledgements for 100 ms, up to 1,000 of them. Each costs some 3 us, and no other client is served
meanwhile; the log's thread, which has a publish to write, waits this time for the interpreter, several times per publish. So a
command that names many messages is handled as several commands, each with some of the messages. The effect is the same, because
acknowledgements of single messages do not depend on each other. The last command has the fields that the first ones lack, above
all the request for an answer.

Commands that ask for redelivery by message ids are divided in the same way, a thousand ids at a time: the messages of one command
come back lowest first, and the Java client divides its own commands by the same number.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame, PlainSend

IDS_MAX: Final = 60
"""Message ids that one event acknowledges, some 0.2 ms; as many as it dispatches entries (`dispatch_entries_max`)."""

REDELIVERED_MAX: Final = 1_000
"""Message ids that one event gives back, some 2 ms. The Java client names as many in one command: none of its own is divided."""

_ACK: Final = 10
_REDELIVER: Final = 20
"""Types of commands."""

_SINGLE: Final = 0
"""`ack_type` of acknowledgements of single messages."""

_ROUNDING: Final = 1e-9
"""Fractions of an event's room do not add up to it exactly."""


class Portions:
    """Frames of one connection that wait to be handled; false when there are none."""

    def __init__(self) -> None:
        self._waiting: deque[Frame] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, frames: Sequence[Frame]) -> None:
        """Put frames after those that wait."""
        self._waiting.extend(frames)

    def take(self) -> list[Frame]:
        """The frames of the next event, at least one, if any wait.

        Returns:
            As many as wait, until they acknowledge `IDS_MAX` messages, give back `REDELIVERED_MAX`, or an equal share of both
            together; a single one may have more if it cannot be divided.
        """
        waiting = self._waiting
        room, count = 1.0, 0
        for frame in waiting:
            if type(frame) is PlainSend:
                count += 1
                continue
            kind = frame.command.type
            if kind == _ACK:
                room -= len(frame.command.ack.message_id) / IDS_MAX
            elif kind == _REDELIVER:
                room -= len(frame.command.redeliverUnacknowledgedMessages.message_ids) / REDELIVERED_MAX
            if room < -_ROUNDING:
                break
            count += 1
        else:
            frames = list(waiting)
            waiting.clear()
            return frames
        if count:
            frames = list(islice(waiting, count))
            for _ in range(count):
                waiting.popleft()
            return frames
        first = waiting[0].command
        if first.type == _REDELIVER:
            return [_first_redelivered(first.redeliverUnacknowledgedMessages)]
        if _divisible(first.ack):
            return [_first_of(first.ack)]
        return [waiting.popleft()]


def _divisible(ack: pb.CommandAck) -> bool:
    """Whether it only acknowledges single messages. Other commands stay whole: if the broker refuses one, it does so once."""
    return ack.ack_type == _SINGLE and not ack.HasField("txnid_most_bits") and not ack.HasField("txnid_least_bits")


def _first_of(ack: pb.CommandAck) -> Frame:
    """Take the first ids out of a command, as one of its own."""
    part = pb.CommandAck(consumer_id=ack.consumer_id, ack_type=_SINGLE, message_id=ack.message_id[:IDS_MAX])
    del ack.message_id[:IDS_MAX]
    return Frame(pb.BaseCommand(type=_ACK, ack=part), b"")


def _first_redelivered(command: pb.CommandRedeliverUnacknowledgedMessages) -> Frame:
    """The same with ids that are given back; the epoch, if there is one, belongs to all of them."""
    part = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=command.consumer_id, message_ids=command.message_ids[:REDELIVERED_MAX]
    )
    if command.HasField("consumer_epoch"):
        part.consumer_epoch = command.consumer_epoch
    del command.message_ids[:REDELIVERED_MAX]
    return Frame(pb.BaseCommand(type=_REDELIVER, redeliverUnacknowledgedMessages=part), b"")
