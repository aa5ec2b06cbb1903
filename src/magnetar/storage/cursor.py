"""The cursor of a subscription in a topic's log: the messages that it has acknowledged.

    mark-delete   everything at or below is acknowledged (or is a marker, or is gone)
    acked         entries above it that are acknowledged one by one, never next to it
    partial       batches of which only some messages are acknowledged: one bit per message, 1 = not yet

    ack of the entry after mark-delete -> mark-delete moves over it, over the acknowledged run after it, and over markers
    ack of a later entry               -> acked
    ack of some messages of a batch    -> partial (AND); none left -> ack of the entry

Mark-delete moves only forward, except by `reset` (a seek). Markers are stepped over as soon as they are next to it, and
are never in `acked`: they make no holes and are not in the backlog (Pulsar #6437, #22926). That stepping is not stored;
it is done again when the cursor is loaded.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c
from pyroaring import BitMap

from magnetar.core.errors import StorageError
from magnetar.core.ids import LATEST, NONE, Position
from magnetar.storage.entries import EntryFlags
from magnetar.storage.positions import ENTRY_MAX, PositionSet, count_runs

RUNS_STORED_MAX: Final = 200_000
"""Ceiling on the stored runs of individually acknowledged entries, as Pulsar's managedLedgerMaxUnackedRangesToPersist.
More runs mean that a consumer lost something long ago. Runs beyond the ceiling stay only in memory, and their messages
are delivered again after a crash.
"""

PARTIALS_STORED_MAX: Final = 200_000
"""The same for partly acknowledged batches (Pulsar's managedLedgerMaxBatchDeletedIndexToPersist)."""

BYTES_STORED_MAX: Final = 1 << 40
"""A ceiling on the bytes of runs and batches together: none in effect, unless the store has a limit."""

EXPIRED_LEDGER: Final = "magnetar.expired.ledger"
EXPIRED_ENTRY: Final = "magnetar.expired.entry"
"""Cursor properties: everything at or below this position has expired *here*. Expiry is not an acknowledgement
(docs/design/acknowledged-sets.md#expiry-is-local): it is not sent to other clusters, and when a seek in another cluster
makes messages unacknowledged again, those that expired here stay expired.
"""

USED: Final = "magnetar.used.ms"
"""Property: when a consumer was last there, where subscriptions expire."""

VERSION: Final = 1
_RUNS_HEAD: Final = struct.Struct("<qI")
_PARTIAL_HEAD: Final = struct.Struct("<qqII")
_MARKER: Final = int(EntryFlags.MARKER)
_WORD: Final = (1 << 64) - 1


class CursorLog(Protocol):
    """The part of the topic's log (`storage.topiclog.TopicLog`) that a cursor uses."""

    @property
    def last(self) -> Position:
        """The newest readable entry, or NONE."""

    def next_after(self, position: Position) -> Position | None:
        """The first entry after a position, or None."""

    def position_before(self, position: Position) -> Position:
        """The entry in front of a position, or a position before everything retained."""

    def entries_between(self, after: Position, up_to: Position) -> int:
        """Entries with after < p <= up_to."""

    def messages_between(self, after: Position, up_to: Position) -> int:
        """Messages in those entries."""

    def markers_between(self, after: Position, up_to: Position) -> int:
        """Markers among those entries."""

    def flags_at(self, position: Position) -> int:
        """The flags of an entry."""

    def count_at(self, position: Position) -> int:
        """Messages in an entry."""

    def valid(self, position: Position) -> bool:
        """Whether there is an entry at a position."""

    def message_ids(self, ledger: int) -> BitMap:
        """Entry ids of a ledger without its markers; the caller's own. Empty when it is not here."""


def bits_of(words: Sequence[int]) -> int:
    """A client's ack_set as one number: little-endian 64-bit words, signed on the wire; bit 1 = not acknowledged."""
    # Clients decide how many: adding one to a number after the other would take the square of it.
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *[word & _WORD for word in words]), "little")


def words_of(bits: int) -> list[int]:
    """The reverse of `bits_of`, without trailing zero words, as Java's BitSet writes it."""
    words = []
    while bits:
        word = bits & _WORD
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


class Tally(NamedTuple):
    """The progress of a cursor: `above` counts the acknowledged messages after `mark_delete`."""

    mark_delete: Position
    above: int


class Partial(NamedTuple):
    """A partly acknowledged batch: `bits` has a 1 for each of its `size` messages that is not acknowledged."""

    bits: int
    size: int


class Cursor:
    """The acknowledged messages of one subscription in one topic.

    Args:
        log: the topic's.
        mark_delete: its start: everything at or below counts as acknowledged.
        properties: numbers kept with it (Pulsar's cursor properties, such as the mark of a replicated subscription).
        labels: texts kept with it (Pulsar's subscription properties).

    Attributes:
        dirty: changed since the last `encode`.
        runs_left_out, partials_left_out: the runs and partial batches that the last `encode` left out (RUNS_STORED_MAX,
            PARTIALS_STORED_MAX).
        runs_bytes: bytes of the runs in what was stored last.
    """

    def __init__(
        self,
        log: CursorLog,
        mark_delete: Position = NONE,
        properties: dict[str, int] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self._log = log
        self.mark_delete = mark_delete
        self.acked = PositionSet()
        self.partial: dict[Position, Partial] = {}
        self.properties = properties if properties is not None else {}
        self.labels = labels if labels is not None else {}
        self.dirty = False
        self.runs_left_out = 0
        self.partials_left_out = 0
        self.runs_bytes = 0
        self._acked_messages = 0
        self._partial_messages = 0
        self._advance()

    @property
    def expired(self) -> Position:
        """Everything at or below has expired; NONE when that is not known of anything."""
        properties = self.properties
        return Position(properties.get(EXPIRED_LEDGER, NONE.ledger), properties.get(EXPIRED_ENTRY, NONE.entry))

    @classmethod
    def at(cls, log: CursorLog, position: Position) -> "Cursor":
        """A new cursor whose next entry is the one at `position`, or the next there is (see `before`)."""
        return cls(log, before(log, position))

    # --------------------------------------------------------------------------------------------------- questions

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self.acked

    @property
    def in_order(self) -> bool:
        """Nothing above mark-delete is acknowledged, not even in part."""
        return not self.acked and not self.partial

    def backlog_entries(self) -> int:
        """Entries not acknowledged, without markers."""
        last = self._log.last
        if last <= self.mark_delete:
            return 0
        entries = self._log.entries_between(self.mark_delete, last) - self._log.markers_between(self.mark_delete, last)
        return entries - len(self.acked)

    def backlog_messages(self) -> int:
        """Messages not acknowledged."""
        last = self._log.last
        if last <= self.mark_delete:
            return 0
        return self._log.messages_between(self.mark_delete, last) - self._acked_messages - self._partial_messages

    def tally(self) -> Tally:
        """The current progress, for `acknowledged_since`."""
        return Tally(self.mark_delete, self._acked_messages + self._partial_messages)

    def acknowledged_since(self, then: Tally) -> int:
        """Messages that were acknowledged since a tally, if nothing was given back in between."""
        mark_delete, above = self.tally()
        return self._log.messages_between(then.mark_delete, mark_delete) + above - then.above

    def nth_open(self, number: int) -> tuple[Position, int]:
        """The `number`-th (from 1) entry that is not acknowledged and no marker, or the last one if there are fewer, and which
        number it has; NONE and 0 if there is none.
        """
        log = self._log
        reached, found = NONE, 0
        following = log.next_after(self.mark_delete)
        if number == 1 and following is not None and not (following in self.acked or log.flags_at(following) & _MARKER):
            return following, 1  # what statistics ask for, of every subscription
        while following is not None and found < number:
            # Ledger by ledger: an administrator may skip millions of entries in one event.
            entries = self._open_entries(following.ledger)
            if entries:
                wanted = min(number - found, len(entries))
                reached, found = Position(following.ledger, entries[wanted - 1]), found + wanted
            following = log.next_after(Position(following.ledger, ENTRY_MAX))
        return reached, found

    # --------------------------------------------------------------------------------------------- acknowledgements

    def ack(self, positions: Iterable[Position]) -> int:
        """Acknowledge entries. Positions without an entry, markers and acknowledged entries are ignored.

        Returns:
            The number of entries that were not acknowledged before.
        """
        log = self._log
        acked = self.acked
        fresh = 0
        for position in positions:
            if position <= self.mark_delete or position in acked or not log.valid(position):
                continue
            if log.flags_at(position) & _MARKER:
                continue
            ledger, entry = position
            at = self.mark_delete
            if ledger == at.ledger and (
                entry == at.entry + 1
                or (entry == at.entry + 2 and log.flags_at(Position(ledger, at.entry + 1)) & _MARKER)
            ):
                # The entries are in order, as usual, or with a marker in between: no bitmap is touched.
                self.mark_delete = position
            else:
                acked.add(ledger, entry)
                self._acked_messages += log.count_at(position)
            if self.partial:
                self._drop_partial(position)
            fresh += 1
        if fresh:
            self.dirty = True
            self._advance()
        return fresh

    def ack_indexes(self, position: Position, bits: int) -> int:
        """Acknowledge some messages of a batch: those whose bit is 0 (PIP-54).

        Returns:
            How many messages were not acknowledged before.
        """
        if self.is_acked(position) or not self._log.valid(position):
            return 0
        size = self._log.count_at(position)
        full = (1 << size) - 1
        before = self.partial[position].bits if position in self.partial else full
        after = before & bits
        if after == before:
            return 0
        if not after:
            self.ack((position,))
            return before.bit_count()
        self._drop_partial(position)
        self.partial[position] = Partial(after, size)
        self._partial_messages += size - after.bit_count()
        self.dirty = True
        return (before ^ after).bit_count()

    def ack_up_to(self, position: Position, bits: int = 0) -> bool:
        """Acknowledge everything at or below a position; with `bits`, of its own batch only the messages with bit 0.

        Returns:
            Whether anything changed. A position after the newest entry is refused: nothing changes.
        """
        if position > self._log.last or position <= self.mark_delete:
            return False
        changed = False
        if bits and self._log.valid(position):
            changed = self.ack_indexes(position, bits) > 0
            if not self.is_acked(position):
                position = Position(position.ledger, position.entry - 1)
        position = self._normal(position)
        if position <= self.mark_delete:
            return changed
        self.mark_delete = position
        self._forget_up_to(position)
        self.dirty = True
        self._advance()
        return True

    def step_over_markers(self) -> bool:
        """Move over markers next to mark-delete; call it when one was appended.

        Returns:
            Whether mark-delete moved. The cursor is not dirty by that.
        """
        before = self.mark_delete
        self._advance()
        return self.mark_delete != before

    def reset(self, position: Position, bits: int = 0) -> None:
        """Seek: the next entry is the one at `position`, or the next there is; acknowledgements above it are forgotten.

        EARLIEST is the first entry and LATEST the position after the last. `bits`, if not 0, marks the messages of the
        entry at `position` whose bit is 0 as acknowledged.
        """
        self.acked.clear()
        self.partial.clear()
        self._acked_messages = self._partial_messages = 0
        self.mark_delete = before(self._log, position)
        self.dirty = True
        if bits:
            self.ack_indexes(position, bits)
        self._advance()

    def ack_set(self, entries: PositionSet) -> PositionSet:
        """Acknowledge many entries at once; a run costs no object per entry.

        Returns:
            The entries that were not acknowledged before. Positions without an entry and markers are ignored.
        """
        fresh = PositionSet()
        for ledger, wanted in entries.ledgers.items():
            new = self._open_entries(ledger) & wanted
            if new:
                fresh.ledgers[ledger] = new
                fresh.size += len(new)
        if fresh:
            for position in [each for each in self.partial if each in fresh] if self.partial else ():
                self._drop_partial(position)
            for ledger, new in fresh.ledgers.items():
                present = self.acked.ledgers.get(ledger)
                self.acked.ledgers[ledger] = new.copy() if present is None else present | new
            self.acked.size += fresh.size
            self._acked_messages += self._messages_of(fresh)
            self.dirty = True
            self._advance()
        return fresh

    def _open_entries(self, ledger: int) -> BitMap:
        """Entries of a ledger that are not acknowledged, without markers."""
        found = self._log.message_ids(ledger)
        if ledger < self.mark_delete.ledger:
            return BitMap()
        if ledger == self.mark_delete.ledger and self.mark_delete.entry >= 0:
            found.remove_range(0, self.mark_delete.entry + 1)
        acked = self.acked.ledgers.get(ledger)
        return found if acked is None else found - acked

    def replace(self, acked: PositionSet, partial: Mapping[Position, int], floor: Position = NONE) -> None:
        """Replace the acknowledged messages by exactly these, at any state of the cursor: used when a seek of another
        cluster takes effect here.

        Args:
            acked: whole entries. Positions without an entry and markers are ignored.
            partial: per batch a bit set of its acknowledged messages (1 = acknowledged).
            floor: everything at or below is acknowledged, too.
        """
        log = self._log
        self.acked.clear()
        self.partial.clear()
        self._acked_messages = self._partial_messages = 0
        self.mark_delete = NONE if floor == NONE else self._normal(min(floor, log.last))
        self.dirty = True
        self.ack_set(acked)
        for position, bits in partial.items():
            if log.valid(position):
                self.ack_indexes(position, ((1 << log.count_at(position)) - 1) & ~bits)
        self._advance()

    # ------------------------------------------------------------------------------------------------------- storing

    def encode(
        self,
        runs_max: int = RUNS_STORED_MAX,
        partials_max: int = PARTIALS_STORED_MAX,
        bytes_max: int = BYTES_STORED_MAX,
    ) -> bytes:
        """The cursor as bytes, and no longer dirty. Of too many runs or batches, or bytes of them, the lowest are kept.

        Layout (little-endian): version u8, mark-delete 2 x i64, properties u32 x (text, i64), labels u32 x (text, text),
        ledgers u32 x (i64, u32 size, portable roaring bitmap), batches u32 x (2 x i64, u32 messages, u32 size, bits),
        crc32c u32. A text is u32 size and UTF-8.
        """
        parts = [struct.pack("<Bqq", VERSION, *self.mark_delete)]
        parts.append(struct.pack("<I", len(self.properties)))
        for name, number in self.properties.items():
            parts.append(_text(name) + struct.pack("<q", number))
        parts.append(struct.pack("<I", len(self.labels)))
        for name, text in self.labels.items():
            parts.append(_text(name) + _text(text))
        ledgers, self.runs_left_out = self._runs_to_store(runs_max)
        runs: list[bytes] = []
        self.runs_bytes = 0
        for number, (ledger, entries) in enumerate(ledgers):
            data = entries.serialize()
            bytes_max -= len(data) + _RUNS_HEAD.size
            if bytes_max < 0:
                self.runs_left_out += sum(count_runs(left) for _, left in ledgers[number:])
                break
            runs.append(_RUNS_HEAD.pack(ledger, len(data)) + data)
            self.runs_bytes += len(data)
        batches: list[bytes] = []
        for position in sorted(self.partial)[:partials_max]:
            bits, size = self.partial[position]
            data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            bytes_max -= len(data) + _PARTIAL_HEAD.size
            if bytes_max < 0:
                break
            batches.append(_PARTIAL_HEAD.pack(*position, size, len(data)) + data)
        parts += [struct.pack("<I", len(runs)), *runs, struct.pack("<I", len(batches)), *batches]
        self.partials_left_out = len(self.partial) - len(batches)
        self.dirty = False
        body = b"".join(parts)
        return body + struct.pack("<I", crc32c(body))

    @classmethod
    def decode(cls, log: CursorLog, data: bytes) -> "Cursor":
        """Read what `encode` wrote.

        Raises:
            StorageError: damaged, or of another version.
        """
        if not data or data[0] != VERSION:
            raise StorageError(
                f"a stored cursor has version {data[0] if data else 'none'}; this broker reads {VERSION}"
            )
        if len(data) < 5 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise StorageError(f"a stored cursor of {len(data)} bytes is damaged: its checksum is wrong")
        try:
            return cls._decode(log, _Reader(data[:-4], 1))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise StorageError(f"a stored cursor of {len(data)} bytes is damaged: {error}") from error

    @classmethod
    def _decode(cls, log: CursorLog, reader: "_Reader") -> "Cursor":
        mark_delete = Position(*reader.numbers("<qq"))
        properties = {reader.text(): reader.numbers("<q")[0] for _ in range(reader.count())}
        labels = {reader.text(): reader.text() for _ in range(reader.count())}
        cursor = cls(log, mark_delete, properties, labels)
        for _ in range(reader.count()):
            (ledger,) = reader.numbers("<q")
            data = reader.bytes()
            entries = BitMap.deserialize(data)
            cursor.runs_bytes += len(data)
            cursor.acked.ledgers[ledger] = entries
            cursor.acked.size += len(entries)
        for _ in range(reader.count()):
            ledger, entry, size = reader.numbers("<qqI")
            cursor.partial[Position(ledger, entry)] = Partial(int.from_bytes(reader.bytes(), "little"), size)
        # The markers that were stepped over since it was stored, and ledgers that went meanwhile.
        cursor._forget_up_to(cursor.mark_delete)
        cursor._recount()
        cursor._advance()
        return cursor

    def _runs_to_store(self, runs_max: int) -> tuple[list[tuple[int, BitMap]], int]:
        total = self.acked.count_runs()
        ordered = sorted(self.acked.ledgers.items())
        if total <= runs_max:
            return ordered, 0
        kept: list[tuple[int, BitMap]] = []
        room = runs_max
        for ledger, entries in ordered:
            if room == 0:
                break
            starts = entries - entries.shift(1)
            # By select and cut: a loop over that many runs would block the broker at each commit.
            low = entries & BitMap(range(starts[room])) if len(starts) > room else entries
            room -= min(room, len(starts))
            kept.append((ledger, low))
        return kept, total - runs_max

    # ------------------------------------------------------------------------------------------------------ internal

    def _normal(self, position: Position) -> Position:
        """The same point of the log, written so that the next entry has the next entry id, if there is one."""
        if self._log.valid(position):
            return position
        following = self._log.next_after(position)
        return self._log.last if following is None else Position(following.ledger, following.entry - 1)

    def _advance(self) -> None:
        """Move mark-delete over the acknowledged entries after it, and over markers."""
        log = self._log
        acked = self.acked
        while True:
            ledger, entry = self.mark_delete
            if acked:
                run_end = acked.take_run_after(ledger, entry)
                if run_end != entry:
                    reached = Position(ledger, run_end)
                    self._acked_messages -= log.messages_between(self.mark_delete, reached)
                    self.mark_delete = reached
                    continue
            following = log.next_after(self.mark_delete)
            if following is None:
                return
            if following.ledger != ledger and (acked or self.partial):
                # Ledgers in between are gone (a quota, a force): so is what was acknowledged in them.
                self._forget_up_to(Position(following.ledger, -1))
            if following in acked:
                acked.discard(*following)
                self._acked_messages -= log.count_at(following)
            elif not log.flags_at(following) & _MARKER:
                return
            self.mark_delete = following

    def _forget_up_to(self, position: Position) -> None:
        if self.acked and self.acked.take_up_to(position):
            self._recount()
        for low in [low for low in self.partial if low <= position] if self.partial else ():
            self._drop_partial(low)

    def _drop_partial(self, position: Position) -> None:
        partial = self.partial.pop(position, None)
        if partial is not None:
            self._partial_messages -= partial.size - partial.bits.bit_count()

    def _recount(self) -> None:
        self._acked_messages = self._messages_of(self.acked)
        self._partial_messages = sum(partial.size - partial.bits.bit_count() for partial in self.partial.values())

    def _messages_of(self, entries: PositionSet) -> int:
        between = self._log.messages_between
        return sum(between(Position(first.ledger, first.entry - 1), last) for first, last in entries.runs())

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.acked.validate()
        first = self.acked.first()
        assert first is None or first > self.mark_delete, (
            f"{first} is acknowledged twice: mark-delete {self.mark_delete}"
        )
        following = self._log.next_after(self.mark_delete)
        if following is not None:
            assert following not in self.acked, f"mark-delete {self.mark_delete} did not move over {following}"
            assert not self._log.flags_at(following) & _MARKER, f"mark-delete stays before the marker {following}"
        for position, partial in self.partial.items():
            assert position > self.mark_delete, f"batch {position} is partial and acknowledged"
            assert position not in self.acked, f"batch {position} is partial and acknowledged"
            assert 0 < partial.bits < (1 << partial.size) - 1 or partial.bits.bit_count() < partial.size, "not partial"
        counts = self._acked_messages, self._partial_messages
        self._recount()
        assert counts == (self._acked_messages, self._partial_messages), f"counts {counts} are wrong"


def before(log: CursorLog, position: Position) -> Position:
    """The mark-delete position of a cursor whose next entry is the one at `position`, or the next there is.

    EARLIEST comes before every entry, LATEST after every entry (Pulsar's rules of a reset).
    """
    if position == NONE:
        return NONE
    if position == LATEST or position > log.last:
        return log.last
    if not log.valid(position):
        following = log.next_after(position)
        if following is None:
            return log.last
        position = following
    return Position(position.ledger, position.entry - 1)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


class _Reader:
    """Takes a record apart; struct.error or ValueError when it ends too early."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def numbers(self, layout: str) -> Sequence[int]:
        numbers: tuple[int, ...] = struct.unpack_from(layout, self._data, self._offset)
        self._offset += struct.calcsize(layout)
        return numbers

    def count(self) -> int:
        return self.numbers("<I")[0]

    def bytes(self) -> bytes:
        size = self.count()
        data = self._data[self._offset : self._offset + size]
        if len(data) != size:
            raise ValueError(f"{size} bytes expected, {len(data)} left")
        self._offset += size
        return data

    def text(self) -> str:
        return self.bytes().decode()
