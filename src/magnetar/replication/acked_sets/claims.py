"""Converts the claims of snapshot mode's updates into sets of exact mode, in bounded time.

An update names runs of indexes, and a run can have any length. A set has one bitmap per 65,536 indexes, so a claim of a few
bytes could occupy the broker for minutes. Messages that are known already are therefore left out before a bitmap is built,
and of the new messages only the newest `LEARNT_MAX` are taken. The rest comes with one of the next updates.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.marker_host import Messages

LEARNT_MAX: Final = 1 << 32
"""Messages taken from one update: some 50 ms of work, and a megabyte as runs."""

KNOWN_MAX: Final = 1 << 36
"""Updates do not enlarge a set that has this many: as runs that is 15 MiB, about the size that is warned of."""

STEP: Final = 1 << 24
"""Number of messages that are examined together: a tenth of a millisecond when they are new."""


class Learnt(NamedTuple):
    """The part of a claim that is taken.

    Attributes:
        messages: those that are new; some that are known may be among them.
        cut: per cluster of which not everything was taken the point below which nothing was.
    """

    messages: MessageSet
    cut: Mapping[str, tuple[int, int]]


def learn(claimed: Messages, known: MessageSet, most: int = LEARNT_MAX) -> Learnt:
    """Take the newest of a claim's messages that are not known, at most `most` of them."""
    taken, cut = MessageSet(), dict[str, tuple[int, int]]()
    room = most
    for key in sorted(claimed, reverse=True):  # of each cluster the newest incarnation first
        if key.cluster in cut:
            continue
        room, stopped = _take(taken, known, key, claimed, room)
        if stopped:
            cut[key.cluster] = key.incarnation, stopped
    return Learnt(taken, cut)


def _take(taken: MessageSet, known: MessageSet, key: OriginKey, claimed: Messages, room: int) -> tuple[int, int]:
    """The room that is left, and the index above which everything was taken; 0: everything was."""
    for first, end in reversed(claimed[key]):
        stop = end
        while stop > first:
            begin = max(first, stop - STEP)
            new = stop - begin - known.count_in(key, begin, stop)
            if new > room:
                return room, stop
            if new:
                taken.add_range(key, begin, stop)
                room -= new
            stop = begin
    return room, 0
