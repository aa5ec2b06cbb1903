"""Sequence ids of one topic: the numbers that it keeps for every producer name, to find out which messages are new.

The rules: docs/design/deduplication.md#sequence-ids.

    incoming sequence id                     verdict      answer
    above pushed                             new          stored; pushed moves now, persisted when the log has it
    at or below persisted                    duplicate    a receipt with message id (-1, -1)
    at or below pushed, above persisted      unknown      an error that makes the client send again

A failed append sets pushed back to persisted, so that a repeated message is judged again. A batch is judged by its lowest id
alone, and counts with it: with batching by key, clients put other ids between its lowest and its highest one into other batches,
which come later. It counts with the highest one if it is known to have all ids in between. Clients send a batch again as it was,
and lowest ids grow from one batch to the next. The highest id is what a producer gets that asks for its last one. The chunks of
one large message share a sequence id; they are judged by their number within it, so that a message whose sending was interrupted
is completed and does not begin again (Pulsar judges the last chunk only and stores orphans).

A name has one sequence in all clusters: messages of that name that arrive over a link count too, so that a producer
that moves to another cluster continues there. (The scheme is that of PIP-6: docs/design/pulsar.md#deduplication.)
"""

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from magnetar.storage.entries import EntryFlags
from magnetar.wire.metadata import readable
from magnetar.wire.pulsar_pb2 import MessageMetadata

NOTHING: Final = -1
"""The number before the first sequence id, as in the protocol."""

SEQUENCE_MAX: Final = 2**63 - 1
"""Sequence ids are unsigned on the wire and signed in every client; beyond this none can be stored as a number."""

SEQUENCE_TAKEN_MAX: Final = SEQUENCE_MAX - (1 << 32)
"""The highest sequence id that is accepted, so that one message cannot use up the numbers of a name. Higher ones in an
older log or snapshot do not count.
"""

UUID_CHARACTERS_MAX: Final = 512
"""A ceiling on the name of a chunked message, which is kept until its last chunk: clients write producer name and number."""

_CHUNK: Final = int(EntryFlags.CHUNK)

_END: Final = "end"
"""The word in a label of a snapshot before the highest id of a batch. Former versions ignore such a label."""


class Verdict(IntEnum):
    """The decision about a message."""

    NEW = 0
    DUPLICATE = 1
    UNKNOWN = 2


class Chunk(NamedTuple):
    """The chunk of a large message that an entry is."""

    uuid: str
    number: int
    last: bool


def is_gapless(metadata: MessageMetadata) -> bool:
    """Whether a batch has all sequence ids from its lowest to its highest one: no other batch can have one of them."""
    return metadata.highest_sequence_id - metadata.sequence_id + 1 == metadata.num_messages_in_batch


def chunk_of(flags: int, metadata: MessageMetadata) -> Chunk | None:
    """The chunk that an entry is, or None; a message in one chunk does not count as chunked."""
    if not flags & _CHUNK or metadata.num_chunks_from_msg <= 1:
        return None
    number = metadata.chunk_id
    return Chunk(readable(metadata.uuid)[:UUID_CHARACTERS_MAX], number, number >= metadata.num_chunks_from_msg - 1)


class Parts:
    """A large message of which not all chunks are stored.

    Attributes:
        sequence, uuid: of the message.
        pushed, persisted: chunk numbers, as of `Numbers`.
    """

    __slots__ = ("persisted", "pushed", "sequence", "uuid")

    def __init__(self, sequence: int, uuid: str, before: int) -> None:
        self.sequence, self.uuid = sequence, uuid
        self.pushed = self.persisted = before


class SequenceMark(NamedTuple):
    """The state of a producer's numbers at one moment."""

    pushed: int
    pushed_end: int
    parts: Parts | None
    part: int


class Numbers:
    """The state of one producer name.

    Attributes:
        pushed: the highest sequence id handed to the log; of batches that may lack some ids the lowest ones count.
        persisted: the highest that the log has, likewise.
        pushed_end, end: the same of the highest ids of batches; those of other messages need not be in them.
        parts: the chunked message that is incomplete.
        stored_parts: the one of which the log has the first chunks and not the last. The next one may be under way already.
        used_ms: when the name was last used, wall clock.
        live: whether a producer of that name is connected here.
    """

    __slots__ = ("end", "live", "parts", "persisted", "pushed", "pushed_end", "stored_parts", "used_ms")

    def __init__(self, persisted: int = NOTHING, used_ms: int = 0) -> None:
        self.pushed = self.persisted = self.pushed_end = self.end = persisted
        self.parts: Parts | None = None
        self.stored_parts: Parts | None = None
        self.used_ms = used_ms
        self.live = False

    @property
    def last(self) -> int:
        """The highest sequence id of a message that the log has."""
        return max(self.persisted, self.end)

    def judge(self, low: int, high: int, chunk: Chunk | None = None, *, gapless: bool = False) -> Verdict:
        """Judge a message; a new one moves `pushed`.

        Args:
            low, high: its sequence ids, see `span`.
            chunk: its chunk of a large message, if it is one.
            gapless: see `is_gapless`.
        """
        if low <= self.pushed:
            return Verdict.DUPLICATE if low <= self.persisted else Verdict.UNKNOWN
        if chunk is not None:
            parts = self.parts
            if parts is None or parts.sequence != low or parts.uuid != chunk.uuid:
                # Another attempt at the same message, by a client that begins again: its first try stays incomplete.
                parts = self.parts = Parts(low, chunk.uuid, chunk.number - 1)
            if chunk.number <= parts.pushed:
                return Verdict.DUPLICATE if chunk.number <= parts.persisted else Verdict.UNKNOWN
            parts.pushed = chunk.number
            if not chunk.last:
                return Verdict.NEW
        self.pushed = high if gapless else low
        if high > self.pushed_end:
            self.pushed_end = high
        return Verdict.NEW

    def mark(self) -> SequenceMark:
        """The present state, for `persist` or `go_back`."""
        parts = self.parts
        return SequenceMark(self.pushed, self.pushed_end, parts, parts.pushed if parts is not None else NOTHING)

    def persist(self, mark: SequenceMark) -> None:
        """Everything that was pushed up to a mark is in the log."""
        if mark.pushed > self.persisted:
            self.persisted = mark.pushed
        if mark.pushed_end > self.end:
            self.end = mark.pushed_end
        parts = mark.parts
        if parts is not None:
            parts.persisted = max(parts.persisted, mark.part)
            complete = parts.sequence <= self.persisted
            self.stored_parts = None if complete else parts
            if self.parts is parts and complete:
                self.parts = None

    def go_back(self, mark: SequenceMark) -> None:
        """Everything that was pushed after a mark never reached the log."""
        self.pushed, self.pushed_end, self.parts = mark.pushed, mark.pushed_end, mark.parts
        if mark.parts is not None:
            mark.parts.pushed = mark.part

    def fail(self) -> None:
        """Nothing that is pushed and not persisted will be in the log."""
        self.pushed, self.pushed_end = self.persisted, self.end
        parts = self.parts = self.stored_parts
        if parts is not None:
            parts.pushed = parts.persisted

    def observe(self, low: int, high: int, chunk: Chunk | None = None, *, gapless: bool = False) -> None:
        """A message of this name is in the log: found at recovery, or arrived over a link."""
        if low > self.persisted and chunk is not None:
            parts = self.parts
            if parts is None or parts.sequence != low or parts.uuid != chunk.uuid:
                parts = self.parts = Parts(low, chunk.uuid, chunk.number)
            parts.persisted = max(parts.persisted, chunk.number)
            parts.pushed = max(parts.pushed, chunk.number)
            if not chunk.last:
                self.stored_parts = parts
                return
        self.persisted = max(self.persisted, high if gapless else low)
        self.pushed = max(self.pushed, self.persisted)
        self.end = max(self.end, high)
        self.pushed_end = max(self.pushed_end, self.end)
        if self.parts is not None and self.parts.sequence <= self.persisted:
            self.parts = None
        if self.stored_parts is not None and self.stored_parts.sequence <= self.persisted:
            self.stored_parts = None


class Deduplication:
    """The numbers of all producer names of one topic.

    Args:
        producers_max: names kept (`[deduplication] producers_max`); those of connected producers are never evicted.
        inactive_ms: names unused for this time are forgotten (`[deduplication] producer_inactive_s`).
        on_evicted: called with the number of names forgotten, and the reason ("limit" or "inactive").
    """

    def __init__(
        self,
        *,
        producers_max: int,
        inactive_ms: int,
        on_evicted: Callable[[int, str], None] = lambda _count, _why: None,
    ) -> None:
        self._max = producers_max
        self._inactive_ms = inactive_ms
        self._on_evicted = on_evicted
        self._names: dict[str, Numbers] = {}
        """In the order of last use, so that the first that is not connected is evicted next."""

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[tuple[str, Numbers]]:
        return iter(self._names.items())

    def get(self, name: str) -> Numbers | None:
        """The numbers of a name, if any are known."""
        return self._names.get(name)

    def of(self, name: str, now_ms: int) -> Numbers:
        """The numbers of a name, which counts as used now."""
        numbers = self._names.pop(name, None)
        if numbers is None:
            numbers = Numbers()
            self._make_room()
        numbers.used_ms = now_ms
        self._names[name] = numbers
        return numbers

    def undecided(self, name: str) -> bool:
        """Whether a number of this name is on its way to the log."""
        numbers = self._names.get(name)
        return numbers is not None and numbers.pushed > numbers.persisted

    def attach(self, name: str, now_ms: int) -> Numbers:
        """A producer of that name connected."""
        numbers = self.of(name, now_ms)
        numbers.live = True
        return numbers

    def detach(self, name: str, now_ms: int) -> None:
        """It is gone."""
        if name in self._names:
            self.of(name, now_ms).live = False

    def observe(
        self, name: str, low: int, high: int, chunk: Chunk | None, now_ms: int, *, gapless: bool = False
    ) -> None:
        """A message of that name is in the log, see `Numbers.observe`."""
        numbers = self._names.get(name)
        if numbers is None:
            numbers = self.of(name, now_ms)
        else:
            numbers.used_ms = now_ms
        numbers.observe(low, high, chunk, gapless=gapless)

    def fail(self) -> None:
        """An append of the topic failed, and with it everything in flight."""
        for numbers in self._names.values():
            numbers.fail()

    def forget(self, name: str) -> None:
        """Forget a name, even if it is in use: its next producer begins again."""
        self._names.pop(name, None)

    def expire(self, now_ms: int) -> int:
        """Forget the names that were unused for too long; how many."""
        gone = [
            name
            for name, numbers in self._names.items()
            if not numbers.live and now_ms - numbers.used_ms >= self._inactive_ms
        ]
        for name in gone:
            del self._names[name]
        if gone:
            self._on_evicted(len(gone), "inactive")
        return len(gone)

    def _make_room(self) -> None:
        if len(self._names) < self._max:
            return
        # Connected ones are few compared with the limit (producers_per_topic_max) and are at the end, where they were
        # put last.
        for name, numbers in self._names.items():
            if not numbers.live:
                del self._names[name]
                self._on_evicted(1, "limit")
                return

    # ------------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> tuple[dict[str, int], dict[str, str]]:
        """The numbers in the log, as properties and labels of the cursor `pulsar.dedup`: ids, and the end of a last batch or an
        incomplete chunked message. (A producer that sends batches sends no chunks.)
        """
        ids = {name: numbers.persisted for name, numbers in self._names.items() if numbers.persisted > NOTHING}
        labels = {
            name: f"{_END} {numbers.end}" for name, numbers in self._names.items() if numbers.end > numbers.persisted
        }
        labels |= {
            name: f"{parts.sequence} {parts.persisted} {parts.uuid}"
            for name, numbers in self._names.items()
            if (parts := numbers.stored_parts) is not None and parts.persisted > NOTHING
        }
        return ids, labels

    def load(self, ids: Mapping[str, int], labels: Mapping[str, str], now_ms: int) -> None:
        """Load a snapshot; a label that cannot be read is ignored (its checksum was right: another version)."""
        for name, persisted in ids.items():
            if persisted <= SEQUENCE_TAKEN_MAX:
                self.of(name, now_ms).observe(persisted, persisted)
        for name, text in labels.items():
            sequence, _, rest = text.partition(" ")
            if sequence == _END and rest.isdecimal() and int(rest) <= SEQUENCE_TAKEN_MAX:
                self.of(name, now_ms).observe(NOTHING, int(rest))
                continue
            number, _, uuid = rest.partition(" ")
            if sequence.isdecimal() and number.isdecimal():
                self.of(name, now_ms).observe(int(sequence), int(sequence), Chunk(uuid, int(number), False))

    def clear(self) -> None:
        """Forget everything (switched off)."""
        self._names.clear()

    def validate(self) -> None:
        """Check what must hold after every step."""
        for name, numbers in self._names.items():
            assert NOTHING <= numbers.persisted <= numbers.pushed, f"{name}: persisted is above pushed"
            assert NOTHING <= numbers.end <= numbers.pushed_end, (
                f"{name}: the end of what is persisted is above that of pushed"
            )
            parts = numbers.parts
            if parts is not None:
                assert parts.persisted <= parts.pushed, f"{name}: chunks persisted are above those pushed"
                assert parts.sequence > numbers.persisted, f"{name}: a complete message is kept as chunks"
