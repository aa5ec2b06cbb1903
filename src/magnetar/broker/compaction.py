"""Compaction: of the messages of a key that are in the log, only the newest counts, for those who ask to read so.

    log          k1=a  k2=b  k1=c  k3=d  k2=(null)  -> horizon | k1=e
    compacted          .     k1=c  k3=d                        | k1=e

Nothing is copied: what a newer message of its key made superfluous, up to the horizon, is remembered as a set of positions, and a
subscription that reads compacted has them acknowledged from the start, also after a seek. So message ids, batches and statistics
are those of the log. The newest message of each key holds back retention: a table is kept for as long as it has rows.

What takes part: single messages and batches that the broker can open (not compressed, or with zlib). What does not is kept as it
is: messages without a key, chunks, and batches that are encrypted or compressed otherwise. An empty message is a deletion: it
goes itself once it has made the older ones go.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from magnetar.broker.effects import Outbox, Read
from magnetar.broker.idempotency_keys import uncompressed
from magnetar.broker.withdrawals import Loser, Withdrawals
from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.batches import walk_batch
from magnetar.wire.metadata import parse_metadata, split, text_bytes
from magnetar.wire.pulsar_pb2 import MessageMetadata

PREFIX: Final = "compacted/"
"""Key in the metadata store; the topic's name follows."""

KEYS_MAX: Final = 5_000_000
"""A ceiling on the different keys of one run: they are all in memory at once, some 150 bytes each beside the key itself."""

GONE_MAX: Final = 1 << 31
"""Superfluous messages of one topic: bitmaps, so that billions are a matter of MB."""

ENTRIES_PER_READ: Final = 1_000
BYTES_PER_READ: Final = 1 << 20
"""Of one step of a run: other events come in between."""

_MARKER: Final = int(EntryFlags.MARKER)
_CHUNK: Final = int(EntryFlags.CHUNK)
_BATCH: Final = int(EntryFlags.BATCH)


class _Record(msgspec.Struct, kw_only=True):
    horizon: tuple[int, int]
    gone: bytes


class Compacted:
    """What compaction has found superfluous in one topic.

    Args:
        log: of the topic.

    Attributes:
        horizon: up to where the topic is compacted; NONE: it never was.
        gone: the messages that are superfluous.
    """

    def __init__(self, log: TopicLog) -> None:
        self.horizon = NONE
        self.gone = Withdrawals(log, messages_max=GONE_MAX)
        self._log = log

    def cover(self, cursor: Cursor) -> None:
        """Let a cursor pass over what is superfluous."""
        self.gone.cover(cursor)

    def low(self) -> Position | None:
        """Up to where retention may delete as far as compaction is concerned; None: it needs nothing."""
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
        """As it is stored."""
        return msgspec.msgpack.encode(
            _Record(horizon=(self.horizon.ledger, self.horizon.entry), gone=self.gone.encode())
        )

    def load(self, data: bytes) -> None:
        """Take what `encode` made; of an earlier life of the topic nothing is taken.

        Raises:
            ValueError: it is damaged.
        """
        try:
            record = msgspec.msgpack.decode(data, type=_Record)
        except msgspec.DecodeError as error:
            raise ValueError(f"compacted messages: {error}") from None
        self.gone.load(record.gone)
        horizon = Position(*record.horizon)
        self.horizon = horizon if horizon.ledger >= self._log.incarnation else NONE


class Run:
    """One compaction of one topic: a walk over the log, a stretch at a time.

    Args:
        outbox: the broker's.
        log: of the topic.
        compacted: gets what is superfluous, as it is found.
        withdrawn: messages that nobody is given do not count as anything.
        done: called once with the run, and "" or why it could not go on; `compacted.horizon` has moved then, or not.

    Attributes:
        began_ms: when it was made, wall clock.
        removed: messages found superfluous that were not before.
        unread: batches that were kept whole because they could not be opened.
        read_bytes: of the entries that were looked at.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: TopicLog,
        compacted: Compacted,
        withdrawn: Withdrawals,
        done: Callable[["Run", str], None],
    ) -> None:
        self.began_ms = outbox.now_ms
        self.removed = 0
        self.unread = 0
        self.read_bytes = 0
        self._outbox, self._log, self._compacted, self._done = outbox, log, compacted, done
        self._withdrawn = withdrawn
        self._end = log.last
        self._after = NONE
        self._newest: dict[bytes, Loser] = {}
        self._deletions: dict[bytes, Loser] = {}

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
        superfluous: list[Loser] = []
        for entry in read:
            self.read_bytes += len(entry.data)
            for key, empty, place in self._messages(entry):
                older = self._newest.pop(key, None) or self._deletions.pop(key, None)
                if older is not None:
                    superfluous.append(older)
                (self._deletions if empty else self._newest)[key] = place
        self.removed += len(self._compacted.gone.add(superfluous))
        self._after = read[-1].position
        if len(self._newest) + len(self._deletions) > KEYS_MAX:
            self._done(self, f"the topic has more than {KEYS_MAX} different keys, the most that are compacted")
            return
        self._step()

    def _messages(self, entry: StoredEntry) -> Iterator[tuple[bytes, bool, Loser]]:
        """Key, emptiness and place of the messages that take part."""
        position, gone = entry.position, self._compacted.gone
        if entry.flags & (_MARKER | _CHUNK) or position in gone.entries or position in self._withdrawn.entries:
            return
        metadata = parse_metadata(entry.data)
        if not entry.flags & _BATCH:
            if metadata.HasField("partition_key"):
                empty = metadata.null_value or _empty(metadata, len(entry.data) - split(entry.data))
                yield text_bytes(metadata.partition_key), empty, Loser(position, -1)
            return
        try:
            batch = uncompressed(metadata, memoryview(entry.data)[split(entry.data) :])
            for index, (one, _, _, _) in enumerate(walk_batch(batch, entry.count)):
                place = Loser(position, index)
                if one.HasField("partition_key") and not gone.has(place) and not self._withdrawn.has(place):
                    yield text_bytes(one.partition_key), one.null_value or not one.payload_size, place
        except (BrokerError, ProtocolError):
            self.unread += 1

    def _finish(self) -> None:
        self.removed += len(self._compacted.gone.add(self._deletions.values()))
        self._compacted.horizon = max(self._end, self._compacted.horizon)
        self._done(self, "")


def _empty(metadata: MessageMetadata, stored_bytes: int) -> bool:
    """Whether a single message has no payload; of a compressed or encrypted one its producer says so: nothing takes some bytes,
    too.
    """
    if (metadata.compression or metadata.encryption_keys) and metadata.HasField("uncompressed_size"):
        return metadata.uncompressed_size == 0
    return stored_bytes == 0
