"""What one event takes of what a connection sent: acknowledgements come by the thousand in one command.

The official clients gather them for 100 ms, up to 1,000 of them. Each costs some 3 us, and nobody is served meanwhile; the log's
thread, with somebody's publish in its hands, waits as long for the interpreter, several times for each publish. So a command that
names many messages is handled as several, each with some of them: that is the same, for no acknowledgement of a single message
depends on another one, and the last command has what the first ones lack, the wish for an answer above all.

So it is with messages that are given back by their ids, but by the thousand: those of one command come back lowest first, and
the Java client divides its own by so many.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame

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
        """Put frames behind those that wait."""
        self._waiting.extend(frames)

    def take(self) -> list[Frame]:
        """The frames of the next event, at least one, if any wait.

        Returns:
            As many as wait while they acknowledge `IDS_MAX` messages, give back `REDELIVERED_MAX`, or so much of both together;
            one alone may be more if it cannot be divided.
        """
        waiting = self._waiting
        room, count = 1.0, 0
        for frame in waiting:
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
    """Whether it is nothing but acknowledgements of single messages: what is refused is refused once."""
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
