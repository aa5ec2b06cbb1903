"""Builds the content of markers: deltas and full states of several subscriptions, split where they are too large."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pyroaring import BitMap64

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState, to_marks
from magnetar.wire.acksets import AckedSet, set_message

MARKER_BYTES_MAX: Final = 1 << 20
"""Above this a marker is split: well below the smallest limit on messages that links meet (5 MiB by default)."""

ROOM_MIN: Final = 4096
"""The part of a marker that remains for sets, however much its low-water marks take; without it no split would end."""


class Parts(NamedTuple):
    """One marker's worth of sets.

    Attributes:
        sets: in order.
        bytes: their size.
    """

    sets: tuple[AckedSet, ...]
    bytes: int


def sets_of(subscription: str, state: SubscriptionState, *, full: bool, bytes_max: int) -> list[AckedSet]:
    """The part that a subscription has to report: its full state, or a delta of what is dirty."""
    acks = state.acks if full else state.dirty
    acks.optimize()
    pieces = split(acks, bytes_max) or [MessageSet()]
    count = len(pieces)
    floor = to_marks(state.floor)
    base = state.base.origins if full and state.base is not None else None
    return [
        AckedSet(
            subscription,
            state.epoch,
            full,
            number,
            count,
            piece.origins,
            # Whole and first: bases are intersected, so the parts of a base would leave nothing of it.
            base if number == 1 else None,
            floor if number == 1 and base is not None else (),
            state.fence if full else None,
        )
        for number, piece in enumerate(pieces, start=1)
    ]


def split(messages: MessageSet, bytes_max: int) -> list[MessageSet]:
    """Sets of at most `bytes_max` whose union is the given one; their order means nothing."""
    if messages.bytes() <= bytes_max:
        return [messages] if messages else []
    result: list[MessageSet] = []
    room = 0
    for key, bitmap, size in _pieces(messages, bytes_max):
        if size > room or key in result[-1].origins:
            result.append(MessageSet())
            room = bytes_max
        result[-1].origins[key] = bitmap
        room -= size
    return result


def _pieces(messages: MessageSet, bytes_max: int) -> Iterable[tuple[OriginKey, BitMap64, int]]:
    for key, bitmap in sorted(messages.origins.items(), key=lambda item: item[0]):
        ahead = [bitmap]
        while ahead:
            piece = ahead.pop()
            size = len(piece.serialize())
            if size <= bytes_max or len(piece) == 1:
                yield key, piece, size
                continue
            # Half of the messages each: a piece of a bitmap is never larger than the whole.
            middle = piece[len(piece) // 2]
            low = piece.copy()
            low.remove_range(middle, piece.max() + 1)
            high = piece - low
            for half in (high, low):
                half.run_optimize()
                ahead.append(half)


def pack(sets: Iterable[AckedSet], bytes_max: int) -> list[Parts]:
    """Sets in order, several to a marker as long as there is room."""
    result: list[Parts] = []
    for one in sets:
        size = set_message(one).ByteSize() + 8
        if result and result[-1].bytes + size <= bytes_max:
            result[-1] = Parts((*result[-1].sets, one), result[-1].bytes + size)
        else:
            result.append(Parts((one,), size))
    return result
