"""Sets of messages by identity: per origin and incarnation the origin indexes, as runs.

Both the *vector* of a snapshot and the claim of an update are such sets. One number per origin, the highest index, would claim
messages that never came (because of a link's filter, a message for another cluster, a cluster that joined late, a gap that a
quota made), so the vector is the exact set (decision 11). Where no message is missing it is one run per origin.

A set that gets too large is cut on the safe side: a claim forgets its oldest runs (`cut`), an exclusion fills the holes between
its oldest runs (`widen`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self

from pyroaring import BitMap

from magnetar.core.ids import LATEST, NONE, OriginKey, Position
from magnetar.replication.holdings import Run, Runs, covers, merged, without
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import Cursor
from magnetar.storage.ledger import Ledger
from magnetar.storage.positions import PositionSet, runs_of
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.markers import RANGES_MAX

__all__ = ["RANGES_MAX", "MessageRuns", "acked_above", "covered_by", "entries_of", "going", "held_by"]

_NONE: Final = BitMap()


class MessageRuns:
    """A mutable set of messages.

    Args:
        runs: per origin; taken over, not copied.

    Attributes:
        origins: per origin its runs, ascending, apart, never empty.
    """

    __slots__ = ("origins",)

    def __init__(self, runs: Mapping[OriginKey, Sequence[Run]] | None = None) -> None:
        self.origins: dict[OriginKey, Runs] = {key: list(found) for key, found in (runs or {}).items() if found}

    def __bool__(self) -> bool:
        return bool(self.origins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageRuns) and self.origins == other.origins

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"MessageRuns({self.origins})"

    def add(self, key: OriginKey, first: int, end: int) -> None:
        """Add indexes first..end-1; in order, the usual case, that makes the last run longer."""
        runs = self.origins.get(key)
        if runs is None:
            self.origins[key] = [(first, end)]
        elif first == runs[-1][1]:
            runs[-1] = (runs[-1][0], end)
        elif first > runs[-1][1]:
            runs.append((first, end))
        else:
            self.origins[key] = merged([*runs, (first, end)])

    def has(self, key: OriginKey, first: int, end: int) -> bool:
        """Whether all of first..end-1 are in it."""
        runs = self.origins.get(key)
        return runs is not None and covers(runs, first, end)

    def remove_from(self, key: OriginKey, first: int) -> int:
        """Take out the indexes of an origin from `first` on; how many there were."""
        runs = self.origins.pop(key, [])
        kept = [(low, min(end, first)) for low, end in runs if low < first]
        if kept:
            self.origins[key] = kept
        return sum(end - low for low, end in runs) - sum(end - low for low, end in kept)

    def update(self, other: "MessageRuns") -> None:
        """Add all of another set."""
        for key, runs in other.origins.items():
            mine = self.origins.get(key)
            self.origins[key] = list(runs) if mine is None else merged([*mine, *runs])

    def minus(self, *others: "MessageRuns") -> "MessageRuns":
        """A new set without the members of others."""
        found = MessageRuns(self.origins)
        for other in others:
            for key, taken in other.origins.items():
                if key in found.origins:
                    left = without(found.origins[key], taken)
                    if left:
                        found.origins[key] = left
                    else:
                        del found.origins[key]
        return found

    def common(self, other: "MessageRuns") -> "MessageRuns":
        """A new set of the messages that are in both."""
        return self.minus(self.minus(other))

    def copy(self) -> "MessageRuns":
        """A new set, equal."""
        return MessageRuns(self.origins)

    def count_runs(self) -> int:
        """How many runs there are."""
        return sum(map(len, self.origins.values()))

    def cut(self, ranges_max: int = RANGES_MAX) -> Self:
        """Forget the oldest runs of each origin when there are more than `ranges_max`; safe for a claim. Itself."""
        if self.count_runs() > ranges_max:
            share = max(1, ranges_max // len(self.origins))
            newest = sorted(self.origins, key=lambda key: key.incarnation)[-ranges_max:]
            self.origins = {key: self.origins[key][-share:] for key in newest}
        return self

    def widen(self, ranges_max: int = RANGES_MAX) -> Self:
        """Fill the holes between the oldest runs of each origin when there are too many; safe for an exclusion. Itself."""
        if self.count_runs() > ranges_max:
            share = max(1, ranges_max // len(self.origins))
            for key, runs in self.origins.items():
                if len(runs) > share:
                    at = len(runs) - share
                    self.origins[key] = [(runs[0][0], runs[at][1]), *runs[at + 1 :]]
        return self

    def validate(self) -> None:
        """Check what must hold after every step."""
        for key, runs in self.origins.items():
            assert runs, f"{key} has no runs"
            assert all(first < end for first, end in runs), f"{key}: {runs}"
            assert all(a[1] < b[0] for a, b in pairwise(runs)), f"{key}: {runs}"


class _Piece(NamedTuple):
    """Entries first..end-1 of a ledger that follow each other in one origin; the first message has `origin_index`."""

    ledger: Ledger
    first: int
    end: int
    key: OriginKey
    origin_index: int


def _pieces(log: TopicLog, here: str, after: Position, up_to: Position) -> Iterator[_Piece]:
    """The entries with after < p <= up_to, without those that damage took; markers may be among them."""
    own = OriginKey(here, log.incarnation)
    for ledger in log.ledger_infos():
        if not after.ledger <= ledger.ledger <= up_to.ledger:
            continue
        begin = max(0, after.entry + 1) if ledger.ledger == after.ledger else 0
        stop = min(ledger.entries, up_to.entry + 1) if ledger.ledger == up_to.ledger else ledger.entries
        columns = ledger.columns
        starts = columns.run_entries
        for number in range(max(0, bisect_right(starts, begin) - 1), len(starts)):
            key = columns.run_origins[number]
            first = max(begin, starts[number])
            end = min(stop, starts[number + 1] if number + 1 < len(starts) else ledger.entries)
            if first >= stop:
                break
            if key is None or first >= end:
                continue
            index = columns.run_firsts[number] + ledger.messages_in(starts[number], first)
            yield _Piece(ledger, first, end, key if key.cluster else own, index)


def held_by(log: TopicLog, here: str, after: Position = NONE, up_to: Position = LATEST) -> MessageRuns:
    """The messages of the retained entries with after < p <= up_to.

    Args:
        log: of the topic.
        here: this cluster's name; its own messages are under it.
        after, up_to: positions.
    """
    found: dict[OriginKey, Runs] = {}
    for piece in _pieces(log, here, after, up_to):
        count = piece.ledger.messages_in(piece.first, piece.end)
        if count:
            found.setdefault(piece.key, []).append((piece.origin_index, piece.origin_index + count))
    return MessageRuns({key: merged(runs) for key, runs in found.items()})


def going(log: TopicLog, here: str, cursor: Cursor, first_kept: int) -> MessageRuns:
    """The messages of ledgers that are being deleted which a cursor has not acknowledged.

    Args:
        log: of the topic.
        here: this cluster's name.
        cursor: the cursor.
        first_kept: the ledgers below it are being deleted.
    """
    found = held_by(log, here, cursor.mark_delete, Position(first_kept, -1))
    return found.minus(acked_above(log, here, cursor)) if found else found


def acked_above(log: TopicLog, here: str, cursor: Cursor) -> MessageRuns:
    """The messages that a cursor has acknowledged above its mark-delete, those of batches that it has in part, too.

    Args:
        log: of the topic.
        here: this cluster's name.
        cursor: the cursor.
    """
    found: dict[OriginKey, Runs] = {}
    for piece in _pieces(log, here, NONE, LATEST) if cursor.acked else ():
        for first, last in runs_of(
            cursor.acked.ledgers.get(piece.ledger.ledger, _NONE) & BitMap(range(piece.first, piece.end))
        ):
            index = piece.origin_index + piece.ledger.messages_in(piece.first, first)
            found.setdefault(piece.key, []).append((index, index + piece.ledger.messages_in(first, last + 1)))
    parts = {at: ~part.bits & ((1 << part.size) - 1) for at, part in cursor.partial.items()}
    for key, first, end in _of_batches(log, here, parts):
        found.setdefault(key, []).append((first, end))
    return MessageRuns({key: merged(runs) for key, runs in found.items()})


def covered_by(log: TopicLog, here: str, acked: Acked) -> MessageRuns:
    """The retained messages that an acknowledgement covers.

    Args:
        log: of the topic.
        here: this cluster's name.
        acked: the acknowledgement.
    """
    found = held_by(log, here, acked.after, acked.up_to)
    for position in acked.entries:
        found.update(held_by(log, here, Position(position.ledger, position.entry - 1), position))
    for key, first, end in _of_batches(log, here, acked.partial):
        found.add(key, first, end)
    return found


def _of_batches(log: TopicLog, here: str, parts: Mapping[Position, int]) -> Iterator[tuple[OriginKey, int, int]]:
    """Messages of batches, by bit sets of their numbers: runs (origin, first, end)."""
    for at, bits in parts.items():
        if (message := log.identity_of(at)) is None:
            continue
        key = OriginKey(message.cluster, message.incarnation) if message.cluster else OriginKey(here, log.incarnation)
        for number in range(bits.bit_length()):
            if bits >> number & 1:
                yield key, message.index + number, message.index + number + 1


def entries_of(
    log: TopicLog, here: str, held: MessageRuns, after: Position = NONE, up_to: Position = LATEST
) -> PositionSet:
    """The retained entries with after < p <= up_to of which every message is in a set; no markers.

    Args:
        log: of the topic.
        here: this cluster's name.
        held: the set.
        after, up_to: positions.
    """
    found = PositionSet()
    if not held:
        return found
    for piece in _pieces(log, here, after, up_to):
        runs = held.origins.get(piece.key)
        if runs is None:
            continue
        for first, end in _entries(piece, runs):
            entries = found.ledgers.get(piece.ledger.ledger)
            if entries is None:
                entries = found.ledgers[piece.ledger.ledger] = BitMap()
            entries.add_range(first, end)
    infos = {ledger.ledger: ledger for ledger in log.ledger_infos()}
    for ledger in list(found.ledgers):
        entries = found.ledgers[ledger]
        entries.difference_update(BitMap(infos[ledger].markers))
        if not entries:
            del found.ledgers[ledger]
    found.size = sum(map(len, found.ledgers.values()))
    return found


def _entries(piece: _Piece, runs: Sequence[Run]) -> Iterable[Run]:
    """Runs of entries of a piece of which every message is in `runs`."""
    ledger, first, end, _, index = piece
    messages = ledger.messages
    before = messages[first - 1] if first else 0
    last = index + messages[end - 1] - before
    for at in range(max(0, bisect_right(runs, (index, 1 << 63)) - 1), len(runs)):
        low, high = runs[at]
        if low >= last:
            break
        begin = first if low <= index else bisect_left(messages, before + low - index, first, end) + 1
        stop = bisect_right(messages, before + high - index, first, end)
        if begin < stop:
            yield begin, stop
