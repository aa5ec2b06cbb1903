"""What one event takes of what a connection sent: acknowledgements come by the thousand in one command.

The official clients gather them for 100 ms, up to 1,000 of them. Each costs some 3 us, and nobody is served meanwhile; the log's
thread, with somebody's publish in its hands, waits as long for the interpreter, several times for each publish. So a command that
names many messages is handled as several, each with some of them: that is the same, for no acknowledgement of a single message
depends on another one, and the last command has what the first ones lack, the wish for an answer above all.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame

IDS_MAX: Final = 60
"""Message ids that one event acknowledges, some 0.2 ms; as many as it dispatches entries (`dispatch_entries_max`)."""

_ACK: Final = 10
"""The command's type."""

_SINGLE: Final = 0
"""`ack_type` of acknowledgements of single messages."""


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
            As many as wait while they acknowledge `IDS_MAX` messages or fewer; one alone may be more if it cannot be divided.
        """
        waiting = self._waiting
        room, count = IDS_MAX, 0
        for frame in waiting:
            if frame.command.type == _ACK:
                room -= len(frame.command.ack.message_id)
                if room < 0:
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
        if _divisible(waiting[0].command.ack):
            return [_first_of(waiting[0].command.ack)]
        return [waiting.popleft()]


def _divisible(ack: pb.CommandAck) -> bool:
    """Whether it is nothing but acknowledgements of single messages: what is refused is refused once."""
    return ack.ack_type == _SINGLE and not ack.HasField("txnid_most_bits") and not ack.HasField("txnid_least_bits")


def _first_of(ack: pb.CommandAck) -> Frame:
    """Take the first ids out of a command, as one of its own."""
    part = pb.CommandAck(consumer_id=ack.consumer_id, ack_type=_SINGLE, message_id=ack.message_id[:IDS_MAX])
    del ack.message_id[:IDS_MAX]
    return Frame(pb.BaseCommand(type=_ACK, ack=part), b"")
