"""Planning the range of messages that a query reads: pure arithmetic over what brokers report.

There are two plans: a batch read is cut into stretches for several tasks; a micro-batch is bounded by its limits.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.spark.offsets import EARLIEST, MessagePosition, Positions

ENTRIES_PER_TASK_MIN: Final = 500
"""Below this a further task costs more than it saves."""


@dataclass(frozen=True)
class Span:
    """One ledger of a topic, as far as it is known."""

    ledger: int
    entries: int


def cut(
    first: MessagePosition,
    last: MessagePosition,
    spans: list[Span] | None,
    tasks: int,
    entries_min: int = ENTRIES_PER_TASK_MIN,
) -> list[tuple[MessagePosition, MessagePosition]]:
    """Cut the range first < p <= last into at most `tasks` stretches of about the same number of entries.

    The borders need not be positions of messages.

    Args:
        first, last: exclusive and inclusive.
        spans: the topic's ledgers in order, if known; without them only a range inside one ledger can be cut.
        tasks: most stretches.
        entries_min: least number of entries of each.
    """
    if last.reach <= first.reach:
        return []
    if spans is None:
        spans = [Span(last.ledger, last.entry + 1)] if first == EARLIEST or first.ledger == last.ledger else []
        # Older ledgers, which are not known, all go to the first task.
    held: list[tuple[int, int, int]] = []  # ledger, first entry, entries
    for span in spans:
        begin = first.entry + 1 if span.ledger == first.ledger else 0
        past = min(span.entries, last.entry + 1) if span.ledger == last.ledger else span.entries
        if first.ledger <= span.ledger <= last.ledger and past > begin:
            held.append((span.ledger, begin, past - begin))
    total = sum(entries for _, _, entries in held)
    pieces = max(1, min(tasks, total // entries_min))
    borders = [_at(held, total * number // pieces) for number in range(1, pieces)]
    positions = [first, *borders, last]
    return [(a, b) for a, b in itertools.pairwise(positions) if b.reach > a.reach]


def _at(held: list[tuple[int, int, int]], offset: int) -> MessagePosition:
    """The position of the entry before which there are `offset` entries."""
    for ledger, begin, entries in held:
        if offset <= entries:
            return MessagePosition(ledger, begin + offset - 1)
        offset -= entries
    raise AssertionError("an offset beyond the end")


@dataclass(frozen=True)
class Pending:
    """An entry that waits to be admitted; its messages from index `first` on.

    Attributes:
        position: position of the entry.
        first, count: index of its first unread message, and messages in all.
        bytes: as stored.
        batch: whether it is a batch, so that a part of it can be read.
    """

    position: MessagePosition
    first: int
    count: int
    bytes: int
    batch: bool


def admit(
    start: Mapping[str, MessagePosition], waiting: Mapping[str, Iterator[Pending]], messages_max: int, bytes_max: int
) -> Positions:
    """The end of a micro-batch in each topic: entries are admitted from the topics in turns, until a limit is reached.

    At least one entry is admitted if there is any, or one larger than the limit would stop the query for good. The limit
    of messages is exact (a batch is cut), the limit of bytes holds for whole entries.

    Args:
        start: the query's position in each topic.
        waiting: entries after it, in order.
        messages_max, bytes_max: 0: no limit.
    """
    positions = dict(start)
    messages = size = 0
    turn = {topic: waiting[topic] for topic in sorted(waiting)}
    while turn:
        for topic in list(turn):
            entry = next(turn[topic], None)
            if entry is None:
                del turn[topic]
                continue
            if bytes_max and messages and size + entry.bytes > bytes_max:
                return positions
            fresh = entry.count - entry.first
            if messages_max and messages + fresh > messages_max:
                if entry.batch and messages_max > messages:
                    positions[topic] = MessagePosition(
                        entry.position.ledger, entry.position.entry, entry.first + messages_max - messages - 1
                    )
                return positions
            positions[topic] = MessagePosition(entry.position.ledger, entry.position.entry)
            messages += fresh
            size += entry.bytes
            if (messages_max and messages >= messages_max) or (bytes_max and size >= bytes_max):
                return positions
    return positions


def behind(positions: Mapping[str, MessagePosition], last: Mapping[str, MessagePosition]) -> dict[str, int]:
    """The number of entries between a query's position and the end, by topic; a batch that was read in part counts.

    The protocol does not report the number of entries of a ledger: if the position is in an earlier ledger than the
    end, only the last ledger is counted, and the number is a lower bound.
    """
    result: dict[str, int] = {}
    for topic, end in last.items():
        position = positions.get(topic, EARLIEST)
        if end.reach <= position.reach:
            continue
        same = position.ledger == end.ledger
        result[topic] = end.entry - position.entry + (position.index >= 0) if same else end.entry + 1
    return result
