"""The state of a subscription as bytes: version u8, GeoAckState (pulsar.proto), crc32c u32 little-endian."""

import struct
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError, StorageError
from magnetar.core.ids import Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState, marks_of, to_marks
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import (
    AckedSet,
    LowWater,
    low_message,
    marks_message,
    read_low,
    read_marks,
    read_set,
    set_message,
)
from magnetar.wire.text import text_is_valid

VERSION: Final = 1


@dataclass
class Stored:
    """The record that is stored with a subscription.

    Attributes:
        state: None: unsubscribed here.
        covered: markers up to here are in it.
        low, own, next, clock_ms: of the topic (`low_water.LowWaterMarks`, `seek_clock.SeekClock`); kept with each subscription.
    """

    state: SubscriptionState | None
    covered: Position
    low: tuple[LowWater, ...] = ()
    own: dict[str, tuple[int, int]] = field(default_factory=dict)
    next: dict[str, tuple[int, int]] = field(default_factory=dict)
    clock_ms: int = 0


def encode(subscription: str, stored: Stored) -> bytes:
    """The bytes that are stored.

    They include acknowledgements that were not written into the topic yet, but no note of that: after every start a full state
    is written.
    """
    message = pb.GeoAckState(
        covered=pb.GeoPosition(ledger=stored.covered.ledger, entry=stored.covered.entry),
        low=low_message(stored.low),
        own=marks_message(to_marks(stored.own)),
        next=marks_message(to_marks(stored.next)),
        clock_ms=stored.clock_ms,
    )
    state = stored.state
    if state is not None:
        state.acks.optimize()
        base = None if state.base is None else state.base.origins
        part = AckedSet(
            subscription, state.epoch, True, 1, 1, state.acks.origins, base, to_marks(state.floor), state.fence
        )
        message.state.CopyFrom(set_message(part))
        message.forgot.extend(marks_message(to_marks(state.forgot)))
    body = bytes((VERSION,)) + message.SerializeToString()
    return body + struct.pack("<I", crc32c(body))


def decode(subscription: str, data: bytes) -> Stored:
    """Read what `encode` wrote.

    Raises:
        StorageError: damaged, or of another version.
    """
    if not data or data[0] != VERSION:
        raise StorageError(
            f"the stored acknowledged set of {subscription} has version {data[0] if data else 'none'}; "
            f"this broker reads {VERSION}"
        )
    if len(data) < 5 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise StorageError(f"the stored acknowledged set of {subscription} is damaged: its checksum is wrong")
    try:
        message = pb.GeoAckState.FromString(data[1:-4])
        if not message.IsInitialized() or not text_is_valid(message):
            raise ProtocolError("it lacks required fields")
        return _read(message)
    except (DecodeError, ProtocolError) as error:
        raise StorageError(f"the stored acknowledged set of {subscription} is damaged: {error}") from None


def _read(message: pb.GeoAckState) -> Stored:
    state = None
    if message.HasField("state"):
        part = read_set(message.state)
        state = SubscriptionState(
            epoch=part.epoch,
            base=None if part.base is None else MessageSet(part.base),
            floor=marks_of(part.floor),
            acks=MessageSet(part.acks),
            forgot=marks_of(read_marks(message.forgot)),
            fence=part.fence,
        )
    return Stored(
        state,
        Position(message.covered.ledger, message.covered.entry),
        read_low(message.low),
        marks_of(read_marks(message.own)),
        marks_of(read_marks(message.next)),
        message.clock_ms,
    )
