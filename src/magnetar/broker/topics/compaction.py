"""Compaction: for consumers that read compacted, only the newest message of each key in the log counts.

    log                                   k1=a  k2=b  k1=c  k3=d  k2=(null)  -> horizon | k1=e
    a reader that begins                              k1=c  k3=d                        | k1=e
    a reader that continues after k1=a                k1=c  k3=d  k2=(null)             | k1=e

Nothing is copied. Messages up to the horizon that have a newer message of their key are *removed*: they are remembered
as a set of positions, and a subscription that reads compacted has them acknowledged from the start, also after a seek.
So message ids, batches and statistics are those of the log. The newest message of each key holds back retention, so a
table is kept as long as it has rows.

An empty message is a deletion. A client that read an older message of its key and continues after that has to get the
deletion. So a deletion stays for a time (policy compaction-delete-retention, as Kafka's delete.retention.ms) after the
compaction that passed it first. It is removed then, or when its key has a newer message. A subscription that is created
at the beginning of the topic has nothing to delete, and does not get it.

Compaction covers single messages and batches that the broker can open (uncompressed, or with zlib). Others are kept
unchanged: messages without a key, chunks, and batches that are encrypted or compressed otherwise. After such a batch or
chunk, deletions are kept as well: without them, a row that they delete would appear again.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from pyroaring import BitMap

from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Compute, Outbox, Read, Timer
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.batches import walk_batch
from magnetar.wire.idempotency_keys import uncompressed
from magnetar.wire.metadata import parse_metadata, split, text_bytes
from magnetar.wire.pulsar_pb2 import MessageMetadata

PREFIX: Final = "compacted/"
"""Key in the metadata store; the topic's name follows."""

KEYS_MAX: Final = 5_000_000
"""A ceiling on the different keys of one run: all are in memory at once, some 150 bytes each in addition to the key
itself.
"""

GONE_MAX: Final = 1 << 31
"""Superfluous messages of one topic: bitmaps, so that billions are a matter of MB."""

ENTRIES_PER_READ: Final = 1_000
BYTES_PER_READ: Final = 1 << 20
"""The bytes of one step of a run: other events are handled in between."""

MESSAGES_PER_STEP: Final = 2_000
"""The messages and entries of one step: some milliseconds. A batch may have many times as many."""

DELETIONS_PER_STEP: Final = 2_000
"""The deletions of one step at the end of a run: some milliseconds."""

GROUPS: Final = 16
"""The number of groups of deletions during the time that they are kept; each deletion stays up to a sixteenth of this
time longer.
"""

DAY_MS: Final = 24 * 3_600_000
"""A group of deletions that are kept for ever."""

_MARKER: Final = int(EntryFlags.MARKER)
_CHUNK: Final = int(EntryFlags.CHUNK)
_BATCH: Final = int(EntryFlags.BATCH)


class _Record(msgspec.Struct, kw_only=True):
    horizon: tuple[int, int]
    gone: bytes
    deletions: list[tuple[int, bytes]] = []


class Deletions:
    """Deletions that compaction has passed and that continuing readers still get, by the time at which they were
    passed.

    Args:
        log: the topic's log.

    Attributes:
        groups: time at which they were passed, wall clock ms (up to a sixteenth of their time earlier) -> their
            positions.
    """

    def __init__(self, log: TopicLog) -> None:
        self.groups: dict[int, Withdrawals] = {}
        self._log = log

    def __bool__(self) -> bool:
        return any(self.groups.values())

    def acknowledge_in(self, cursor: Cursor) -> None:
        """Acknowledge them on a cursor."""
        for group in self.groups.values():
            group.acknowledge_in(cursor)

    def since(self, deletion: Loser) -> int | None:
        """The time at which one was first passed; None: it is not among them."""
        return next((since_ms for since_ms, group in self.groups.items() if group.has(deletion)), None)

    def add(self, since_ms: int, deletions: list[Loser]) -> None:
        """Keep some more."""
        group = self.groups.get(since_ms)
        if group is None:
            group = self.groups[since_ms] = Withdrawals(self._log, messages_max=GONE_MAX)
        group.add(deletions)

    def take_until(self, since_ms: int) -> list[Withdrawals]:
        """Give up those that were passed at a time or before."""
        return [self.groups.pop(each) for each in list(self.groups) if each <= since_ms]

    def beside(self, ledger: int, entries: BitMap) -> BitMap:
        """Some entries of a ledger, and those that are deletions as a whole."""
        found = (each.entries.ledgers.get(ledger) for each in self.groups.values())
        return BitMap.union(entries, *(each for each in found if each is not None))

    def trim(self) -> None:
        """Retention deleted ledgers: forget what was in them."""
        for group in self.groups.values():
            group.trim()

    def encode(self) -> list[tuple[int, bytes]]:
        """The stored form."""
        return [(since_ms, group.encode()) for since_ms, group in self.groups.items() if group]

    def load(self, stored: list[tuple[int, bytes]]) -> None:
        """Take what `encode` made.

        Raises:
            ValueError: it is damaged.
        """
        for since_ms, data in stored:
            self.groups[since_ms] = group = Withdrawals(self._log, messages_max=GONE_MAX)
            group.load(data)

    def validate(self) -> None:
        """Check what must hold after every step."""
        for group in self.groups.values():
            group.validate()


class Compacted:
    """The messages of one topic that compaction has removed.

    Args:
        log: the topic's log.

    Attributes:
        horizon: the position up to which the topic is compacted; NONE: it never was.
        gone: the removed messages.
        deletions: deletions that are kept for a time. Another object after each compaction.
    """

    def __init__(self, log: TopicLog) -> None:
        self.horizon = NONE
        self.gone = Withdrawals(log, messages_max=GONE_MAX)
        self.deletions = Deletions(log)
        self._log = log

    def acknowledge_in(self, cursor: Cursor) -> None:
        """Acknowledge the removed messages on a cursor."""
        self.gone.acknowledge_in(cursor)

    def expire(self, now_ms: int, retention_ms: int) -> None:
        """Remove deletions that were kept for this time (-1: for ever)."""
        if retention_ms >= 0:
            for group in self.deletions.take_until(now_ms - _longest(retention_ms)):
                self.gone.absorb(group)

    def trim(self) -> None:
        """Retention deleted ledgers: forget what was in them."""
        self.gone.trim()
        self.deletions.trim()

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.gone.validate()
        self.deletions.validate()

    def low(self) -> Position | None:
        """The position up to which retention may delete without affecting compaction; None: any."""
        if self.horizon == NONE:
            return None
        low = NONE
        for ledger in self._log.ledger_infos():
            end = Position(ledger.ledger, ledger.entries - 1)
            markers = self._log.markers_between(Position(ledger.ledger, -1), end)
            superfluous = self.gone.entries.ledgers.get(ledger.ledger, ())
            if ledger.ledger >= self.horizon.ledger or len(superfluous) + markers < ledger.entries:
                break
            low = end
        return low

    def encode(self) -> bytes:
        """The stored form."""
        return msgspec.msgpack.encode(
            _Record(
                horizon=(self.horizon.ledger, self.horizon.entry),
                gone=self.gone.encode(),
                deletions=self.deletions.encode(),
            )
        )

    def load(self, data: bytes) -> None:
        """Load what `encode` made; messages of an earlier incarnation are ignored.

        Raises:
            ValueError: it is damaged.
        """
        try:
            record = msgspec.msgpack.decode(data, type=_Record)
        except msgspec.DecodeError as error:
            raise ValueError(f"compacted messages: {error}") from None
        self.gone.load(record.gone)
        self.deletions.load(record.deletions)
        horizon = Position(*record.horizon)
        self.horizon = horizon if horizon.ledger >= self._log.incarnation else NONE


_Message = tuple[bytes, bool, Loser]
"""A message that is compacted: its key, whether it is empty, its position."""


class Run:
    """One compaction of one topic: a scan of the log, a stretch at a time.

    Args:
        outbox: the broker's.
        log: the topic's log.
        compacted: gets the removed messages as they are found.
        withdrawn: withdrawn messages do not count.
        retention_ms: time for which deletions are kept from now on; -1: for ever.
        done: called once with the run, and "" or the reason why it could not continue; only after success
            `compacted.horizon` has moved.

    Attributes:
        began_ms: when it was started, wall clock.
        removed: number of messages removed by this run.
        unread: batches that were kept whole because they could not be opened.
        read_bytes: bytes of the entries that were read.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: TopicLog,
        compacted: Compacted,
        withdrawn: Withdrawals,
        retention_ms: int,
        done: Callable[["Run", str], None],
    ) -> None:
        self.began_ms = outbox.now_ms
        self.removed = 0
        self.unread = 0
        self.read_bytes = 0
        self._outbox, self._log, self._compacted, self._done = outbox, log, compacted, done
        self._withdrawn = withdrawn
        self._retention_ms = retention_ms
        self._end = log.last
        self._after = NONE
        self._newest: dict[bytes, Loser] = {}
        self._deletions: dict[bytes, Loser] = {}
        self._opaque: Position | None = None
        """The first entry that may have messages of any key."""

    def start(self) -> None:
        """Begin; `done` is called at once if there is nothing."""
        self._step()

    def _step(self) -> None:
        first = self._log.first if self._after == NONE else self._log.next_after(self._after)
        if self._end == NONE or first is None or first == NONE or first > self._end:
            self._finish()
            return
        self._outbox.put(
            Read(
                self._log.name,
                first,
                ENTRIES_PER_READ,
                BYTES_PER_READ,
                lambda read, error: self._got(first, read, error),
            )
        )

    def _got(self, first: Position, entries: list[StoredEntry], error: str) -> None:
        read = [entry for entry in entries if first <= entry.position <= self._end]
        if not read:
            if self._log.first != NONE and self._log.first > first:
                self._step()  # retention was faster
                return
            self._done(self, f"the entry at {first} cannot be read: {error or 'nothing is there'}")
            return
        self._after = read[-1].position
        self._walk(iter(read), iter(()))

    def _walk(self, entries: Iterator[StoredEntry], messages: Iterator[_Message]) -> None:
        """Process read entries, some messages per event.

        A batch that is compressed or long is opened outside the event loop: a hostile one takes tenths of a second.
        """
        superfluous: list[Loser] = []
        left = MESSAGES_PER_STEP
        while left > 0:
            some = list(islice(messages, left))
            for key, empty, message in some:
                if message.index >= 0 and (self._compacted.gone.has(message) or self._withdrawn.has(message)):
                    continue
                older = self._newest.pop(key, None) or self._deletions.pop(key, None)
                if older is not None:
                    superfluous.append(older)
                (self._deletions if empty else self._newest)[key] = message
            left -= 1 + len(some)
            if left <= 0:
                break
            entry = next(entries, None)
            if entry is None:
                break
            self.read_bytes += len(entry.data)
            if not self._takes_part(entry):
                continue
            metadata = parse_metadata(entry.data)
            if entry.flags & _BATCH and (metadata.compression or entry.count > MESSAGES_PER_STEP // 10):
                self.removed += len(self._compacted.gone.add(superfluous))
                self._outbox.put(
                    Compute(partial(_opened, entry), lambda found, entry=entry: self._open(entry, entries, found))  # type: ignore[misc]
                )
                return
            messages = iter(
                self._looked_at(entry, _opened(entry) if entry.flags & _BATCH else _single(entry, metadata))
            )
        self.removed += len(self._compacted.gone.add(superfluous))
        if len(self._newest) + len(self._deletions) > KEYS_MAX:
            self._done(self, f"the topic has more than {KEYS_MAX} different keys, the most that are compacted")
        elif left <= 0:
            self._outbox.put(Timer(self._outbox.now_ms, lambda _now_ms: self._walk(entries, messages)))
        else:
            self._step()

    def _takes_part(self, entry: StoredEntry) -> bool:
        position = entry.position
        if entry.flags & _MARKER or position in self._compacted.gone.entries or position in self._withdrawn.entries:
            return False
        if entry.flags & _CHUNK:
            self._opaque = self._opaque or position
            return False
        return True

    def _open(self, entry: StoredEntry, entries: Iterator[StoredEntry], found: list[_Message] | None) -> None:
        """A compressed batch was opened, or could not be."""
        self._walk(entries, iter(self._looked_at(entry, found)))

    def _looked_at(self, entry: StoredEntry, found: list[_Message] | None) -> list[_Message]:
        if found is None:
            self.unread += 1
            self._opaque = self._opaque or entry.position
        return found or []

    def _finish(self) -> None:
        self._keep(iter(self._deletions.values()), Deletions(self._log))

    def _keep(self, left: Iterator[Loser], kept: Deletions) -> None:
        """Decide about some deletions: those that have been kept for long enough are superfluous."""
        known, gone = self._compacted.deletions, self._compacted.gone
        now_ms, retention_ms = self._outbox.day_ms, self._retention_ms
        step_ms = max(1, retention_ms // GROUPS) if retention_ms >= 0 else DAY_MS
        fresh_ms = now_ms // step_ms * step_ms
        some = list(islice(left, DELETIONS_PER_STEP))
        expired: list[Loser] = []
        groups: dict[int, list[Loser]] = {}
        for deletion in some:
            if self._opaque is not None and deletion.position > self._opaque:
                continue  # the message that it deletes may be in there, and is delivered: so the deletion is kept too
            since_ms = known.since(deletion)
            if since_ms is None:
                since_ms = fresh_ms
            if retention_ms >= 0 and now_ms - since_ms >= _longest(retention_ms):
                expired.append(deletion)
            elif not gone.has(deletion):  # it may have expired while the topic was read
                groups.setdefault(since_ms, []).append(deletion)
        self.removed += len(gone.add(expired))
        for since_ms, deletions in groups.items():
            kept.add(since_ms, deletions)
        if len(some) == DELETIONS_PER_STEP:
            self._outbox.put(Timer(now_ms, lambda _now_ms: self._keep(left, kept)))
            return
        self._compacted.deletions = kept
        self._compacted.horizon = max(self._end, self._compacted.horizon)
        self._done(self, "")


def _single(entry: StoredEntry, metadata: MessageMetadata) -> list[_Message]:
    """Key, emptiness and position of an entry that is one message; nothing without a key."""
    if not metadata.HasField("partition_key"):
        return []
    empty = metadata.null_value or _empty(metadata, len(entry.data) - split(entry.data))
    return [(text_bytes(metadata.partition_key), empty, Loser(entry.position, -1))]


def _opened(entry: StoredEntry) -> list[_Message] | None:
    """The same for the messages of a batch that have keys; None: it cannot be opened. Pure, because it runs on another
    thread.
    """
    found: list[_Message] = []
    try:
        batch = uncompressed(parse_metadata(entry.data), memoryview(entry.data)[split(entry.data) :])
        for index, (one, _, _, _) in enumerate(walk_batch(batch, entry.count)):
            if one.HasField("partition_key"):
                empty = one.null_value or not one.payload_size
                found.append((text_bytes(one.partition_key), empty, Loser(entry.position, index)))
    except (BrokerError, ProtocolError):
        return None
    return found


def _longest(retention_ms: int) -> int:
    """The longest time that a deletion stays; never less than the policy says."""
    return retention_ms + retention_ms // GROUPS


def _empty(metadata: MessageMetadata, stored_bytes: int) -> bool:
    """Whether a single message has no payload. For a compressed or encrypted one, its producer's statement counts,
    because "nothing" takes some bytes too.
    """
    if (metadata.compression or metadata.encryption_keys) and metadata.HasField("uncompressed_size"):
        return metadata.uncompressed_size == 0
    return stored_bytes == 0
