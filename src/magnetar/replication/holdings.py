"""The messages of an origin that a topic holds, as runs of origin indexes: a summary of the origin index map.

Runs are `(first, end)`, end exclusive, ascending, disjoint, not touching. A cluster's own messages are under its own name,
whether they were published in this incarnation of the topic or came back from a peer (`replication.restore`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magnetar.storage.ledger import Ledger
from magnetar.storage.topiclog import TopicLog

Run = tuple[int, int]
Runs = list[Run]


class Holding(NamedTuple):
    """The messages that a topic holds of one incarnation of it in one origin cluster.

    Attributes:
        incarnation: of the topic there.
        runs: of origin indexes.
        entries, bytes: stored here for them, records as a whole; copies count.
    """

    incarnation: int
    runs: Runs
    entries: int
    bytes: int


def merged(runs: Iterable[Run]) -> Runs:
    """Any runs, as they should be."""
    found: Runs = []
    for first, end in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > first:
            found.append((first, end))
    return found


def covers(runs: Sequence[Run], first: int, end: int) -> bool:
    """Whether all of first..end-1 are in them."""
    at = bisect_right(runs, (first, 1 << 63)) - 1
    return at >= 0 and runs[at][0] <= first and end <= runs[at][1]


def without(runs: Sequence[Run], taken: Sequence[Run]) -> Runs:
    """The parts of `runs` that are not in `taken`."""
    left: Runs = []
    at = 0
    for first, end in runs:
        begin = first
        while at < len(taken) and taken[at][1] <= first:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] < end:
            if taken[look][0] > begin:
                left.append((begin, taken[look][0]))
            begin = max(begin, taken[look][1])
            look += 1
        if begin < end:
            left.append((begin, end))
    return left


def count(runs: Iterable[Run]) -> int:
    """How many indexes they are."""
    return sum(end - first for first, end in runs)


def holdings(log: TopicLog, origin: str, here: str) -> list[Holding]:
    """The messages that a topic holds of an origin, by incarnation, ascending.

    Args:
        log: of the topic.
        origin: a cluster's name.
        here: this cluster's.
    """
    return of_ledgers(log.ledger_infos(), origin, here, log.incarnation)


def of_ledgers(ledgers: Iterable[Ledger], origin: str, here: str, incarnation: int) -> list[Holding]:
    """As `holdings`, for some ledgers of a topic whose incarnation here is given."""
    runs: dict[int, Runs] = {}
    sizes: dict[int, list[int]] = {}
    for ledger in ledgers:
        columns = ledger.columns
        starts = [*columns.run_entries, ledger.entries]
        for number, key in enumerate(columns.run_origins):
            if key is None or (key.cluster or here) != origin:
                continue
            begin, stop = starts[number], starts[number + 1]
            of = key.incarnation if key.cluster else incarnation
            first = columns.run_firsts[number]
            runs.setdefault(of, []).append((first, first + ledger.messages_in(begin, stop)))
            size = sizes.setdefault(of, [0, 0])
            size[0] += stop - begin - ledger.markers_in(begin, stop)
            size[1] += ledger.bytes_in(begin, stop)
    return [
        Holding(number, merged(found), sizes[number][0], sizes[number][1]) for number, found in sorted(runs.items())
    ]
