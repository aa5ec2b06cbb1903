"""Publisher deduplication of one topic: switching it on and off, and storing its sequence ids so that they survive a
restart.

    on at start     load the cursor `pulsar.dedup` and replay the log after it; then producers are accepted
    switched on     nothing is accepted until the appends in flight are in the log and the retained end of the log is
                    replayed: there is no window in which a duplicate is stored
    on              every `snapshot_entries` entries and every `snapshot_s` seconds the sequence ids are stored as a cursor
    switched off    the cursor is deleted

The cursor holds back retention, as in Pulsar, because everything after it has to be replayed
(docs/design/links.md#saved-before-deletion).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from magnetar.broker.publish.sequence_numbers import (
    NOTHING,
    SEQUENCE_TAKEN_MAX,
    Deduplication,
    Numbers,
    Verdict,
    chunk_of,
    is_gapless,
)
from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import check_producer
from magnetar.core.ready_gate import ReadyGate
from magnetar.effects.outbox import Note, Outbox, Read
from magnetar.metadata.topic_records import cursor_key
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.metadata import parse_metadata, sender, span
from magnetar.wire.pulsar_pb2 import MessageMetadata

CURSOR_NAME: Final = "pulsar.dedup"
"""Pulsar's name of the cursor."""

READ_ENTRIES: Final = 10_000
READ_BYTES: Final = 8 << 20
"""A step of the replay: large enough that a read is a few large preads, small enough that other topics get their turn."""

_MARKER: Final = int(EntryFlags.MARKER)
_REPLICATED: Final = int(EntryFlags.REPLICATED)
_SEVERAL: Final = int(EntryFlags.BATCH | EntryFlags.CHUNK)
_SPECIAL: Final = int(EntryFlags.REPLICATED | EntryFlags.MARKER | EntryFlags.CHUNK)


class Status(StrEnum):
    """Pulsar's words in `deduplicationStatus`."""

    DISABLED = "Disabled"
    RECOVERING = "Recovering"
    ENABLED = "Enabled"
    FAILED = "Failed"


_NO_IDS: Final = (NOTHING, NOTHING)
_ENABLED: Final = Status.ENABLED
_NEW: Final = Verdict.NEW


class DeduplicationSettings(Protocol):
    """The settings that deduplication reads (`core.settings.DeduplicationConfig`)."""

    @property
    def producers_max(self) -> int:
        """Names kept per topic."""

    @property
    def producer_inactive_s(self) -> int:
        """Unused names are forgotten after this."""

    @property
    def snapshot_entries(self) -> int:
        """Entries between two snapshots."""

    @property
    def snapshot_s(self) -> int:
        """Seconds between two snapshots."""

    @property
    def replay_entries_max(self) -> int:
        """Entries replayed when it is switched on without a snapshot."""


class Counters:
    """Counters of all topics of a broker, for its metrics."""

    __slots__ = ("duplicates", "evicted_inactive", "evicted_limit", "replayed", "unknown")

    def __init__(self) -> None:
        self.duplicates = 0
        self.unknown = 0
        self.evicted_limit = 0
        self.evicted_inactive = 0
        self.replayed = 0

    def evicted(self, count: int, why: str) -> None:
        """Producer names were forgotten, because of the "limit" or because they were "inactive"."""
        if why == "limit":
            self.evicted_limit += count
        else:
            self.evicted_inactive += count


def _counted(name: str | bytes) -> str:
    """The producer name in a message; "" for a name that no producer can have, so that it never affects deduplication.

    Messages that were published without deduplication, or in another cluster, have any name that their client wrote.
    """
    try:
        text = name if isinstance(name, str) else name.decode()
        check_producer(text)
    except (UnicodeDecodeError, NameNotValid):
        return ""
    return text


class TopicDeduplication:
    """Deduplication of one topic, from being switched on to being switched off.

    Args:
        outbox: the broker's.
        topic: full name.
        log: of the topic.
        flusher: stores the cursor.
        settings: limits.
        counters: of the broker.
        when_drained: calls back when no append of the topic is in flight.
        snapshot_s: of the namespace or topic, if they have their own; None: of the settings.
    """

    def __init__(
        self,
        outbox: Outbox,
        topic: str,
        log: TopicLog,
        *,
        flusher: CursorFlusher,
        settings: DeduplicationSettings,
        counters: Counters,
        when_drained: Callable[[Callable[[], None]], None],
        snapshot_s: int | None = None,
    ) -> None:
        self.status = Status.RECOVERING
        self.topic = topic
        self.key = cursor_key(topic, CURSOR_NAME)
        self.numbers = Deduplication(
            producers_max=settings.producers_max,
            inactive_ms=settings.producer_inactive_s * 1000,
            on_evicted=counters.evicted,
        )
        self.durable_mark_delete = NONE
        self.duplicates = 0
        self.snapshot_s = snapshot_s
        self._outbox = outbox
        self._log = log
        self._flusher = flusher
        self._settings = settings
        self._counters = counters
        self._when_drained = when_drained
        self._ready = ReadyGate(lambda: self.status is not Status.RECOVERING)
        self._since = 0
        self._taken = 0
        """Entries that were taken into account since it began."""
        self._snapshot_ms = self._began_ms = outbox.now_ms
        self._told_names: set[str] = set()
        self._restored_names: set[str] = set()

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self, stored: bytes | None) -> None:
        """Begin: with the stored cursor, else with the retained end of the log.

        Raises:
            StorageError: the stored cursor is damaged.
        """
        if stored is not None:
            cursor = Cursor.decode(self._log, stored)
            self.numbers.load(cursor.properties, cursor.labels, self._outbox.day_ms)
            self.durable_mark_delete = cursor.mark_delete
            self._replay(cursor.mark_delete)
            return
        # Messages in flight were not checked; they are part of the history as soon as they are in the log.
        self._when_drained(self._begin)

    def _begin(self) -> None:
        if self.status is Status.RECOVERING:
            self._replay(self._history_start())

    def _history_start(self) -> Position:
        """The position with at most `replay_entries_max` entries after it."""
        left = self._settings.replay_entries_max
        for ledger in reversed(self._log.ledger_infos()):
            if ledger.entries >= left:
                return Position(ledger.ledger, ledger.entries - left - 1)
            left -= ledger.entries
        return NONE

    def _replay(self, after: Position) -> None:
        start = self._log.next_after(after)
        if start is None:
            self._recovered()
            return

        def taken(entries: list[StoredEntry], error: str) -> None:
            if self.status is not Status.RECOVERING:
                return
            if error or not entries:
                self._failed(error or f"nothing could be read at {start}")
                return
            self._observe_all(entries)
            self._counters.replayed += len(entries)
            self._since += len(entries)
            self._taken += len(entries)
            self._replay(entries[-1].position)

        self._outbox.put(Read(self.topic, start, READ_ENTRIES, READ_BYTES, taken))

    def _recovered(self) -> None:
        self.status = Status.ENABLED
        if self._since >= self._settings.snapshot_entries or self.durable_mark_delete == NONE:
            self.snapshot()
        self._ready.release()

    def _failed(self, error: str) -> None:
        self.status = Status.FAILED
        self._outbox.put(
            Note(
                "error",
                f"deduplication of {self.topic} cannot be recovered: {error}; producers are refused until the entry is "
                "skipped or deduplication is switched off for this topic",
            )
        )
        self._ready.release()

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when producers may be let in (at once if they may); see `check`."""
        self._ready.when_open(then)

    def check(self) -> None:
        """Refuse producers when nothing can be judged.

        Raises:
            BrokerError: SERVICE_NOT_READY: the replay failed.
        """
        if self.status is Status.FAILED:
            raise BrokerError(
                ErrorCode.SERVICE_NOT_READY,
                f"the deduplication numbers of {self.topic} cannot be recovered from its log: see the broker's log",
            )

    def set_interval(self, snapshot_s: int | None) -> None:
        """Change how often the numbers are stored.

        Args:
            snapshot_s: of the namespace or topic, if they have their own; None: of the settings.
        """
        self.snapshot_s = snapshot_s

    def stop(self) -> None:
        """Switch off; waiting producers are accepted. The caller deletes the cursor's key."""
        self.status = Status.DISABLED
        self._flusher.forget(self.key)
        self.numbers.clear()
        self._ready.release()

    # -------------------------------------------------------------------------------------------------------- judging

    def judge(self, name: str, numbers: Numbers, flags: int, metadata: MessageMetadata) -> Verdict:
        """Judge a message of a connected producer.

        Args:
            name: of the producer.
            numbers: what `Deduplication.attach` gave for it.
            flags, metadata: of the message.

        Raises:
            BrokerError: NOT_ALLOWED: it carries another producer's name (recovery would take it for that one's), or a
                sequence id that cannot be one.
        """
        if self.status is not _ENABLED:
            return Verdict.UNKNOWN
        if metadata.producer_name != name:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"a message of producer {metadata.producer_name[:100]!r} sent by producer {name!r}: with deduplication on, "
                "a message carries the name of the producer that sends it",
            )
        gapless = False
        if flags & _SEVERAL:
            low, high = span(metadata)
            gapless = is_gapless(metadata)
        else:
            low = metadata.sequence_id
            high = max(low, metadata.highest_sequence_id)
            if (
                numbers.pushed < low == high <= SEQUENCE_TAKEN_MAX
            ):  # as nearly always: what `numbers.judge` says of it, sooner
                numbers.pushed = low
                return _NEW
        if high > SEQUENCE_TAKEN_MAX:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"sequence id {high} leaves no room for later ones: {SEQUENCE_TAKEN_MAX} is the highest that is taken",
            )
        verdict = numbers.judge(low, high, chunk_of(flags, metadata), gapless=gapless)
        if verdict is Verdict.DUPLICATE:
            self.duplicates += 1
            self._counters.duplicates += 1
        elif verdict is Verdict.UNKNOWN:
            self._counters.unknown += 1
        return verdict

    def leading_new(self, numbers: Numbers, sequence_ids: list[int]) -> int:
        """Judge single messages of a connected producer that carry its name, as `judge` does, up to one that is not simply new.

        Args:
            numbers: see `judge`.
            sequence_ids: of the messages.

        Returns:
            How many are new; the others are not judged yet.
        """
        if self.status is not _ENABLED:
            return 0
        pushed = numbers.pushed
        for count, sequence in enumerate(sequence_ids):
            if not pushed < sequence <= SEQUENCE_TAKEN_MAX:
                numbers.pushed = pushed
                return count
            pushed = sequence
        numbers.pushed = pushed
        return len(sequence_ids)

    def confirmed(self, entries: list[StoredEntry]) -> None:
        """Entries are in the log. Own ones are counted by their producer's receipt; those of links here."""
        if entries[0].flags & _REPLICATED:
            for entry in entries:
                self._observe(entry)
        self._since += len(entries)
        self._taken += len(entries)
        if self._since >= self._settings.snapshot_entries and self.status is Status.ENABLED:
            self._since = 0
            # The receipts of this very append are handled after this; the cursor is encoded later, in the flusher's round.
            self.snapshot()

    def _observe_all(self, entries: list[StoredEntry]) -> None:
        """Many entries at once. Of most only the name and the number count, and of these only the highest."""
        highest: dict[bytes, tuple[int, int]] = {}
        for entry in entries:
            if not entry.flags & _SPECIAL:
                found = sender(entry.data)
                if found is not None:
                    name, low = found
                    before = highest.get(name, _NO_IDS)
                    if (high := low + entry.count - 1) <= SEQUENCE_TAKEN_MAX and (low > before[0] or high > before[1]):
                        highest[name] = max(low, before[0]), max(high, before[1])
                    continue
            self._observe_highest(highest)
            self._observe(entry)
        self._observe_highest(highest)

    def _observe_highest(self, highest: dict[bytes, tuple[int, int]]) -> None:
        now_ms = self._outbox.day_ms
        for found, (low, high) in highest.items():
            name = _counted(found)
            if name:
                self.numbers.observe(name, low, high, None, now_ms)
        highest.clear()

    def _observe(self, entry: StoredEntry) -> None:
        if entry.flags & _MARKER:
            return
        try:
            metadata = parse_metadata(entry.data)
        except ProtocolError as error:
            self._outbox.put(Note("warning", f"deduplication of {self.topic}: entry {entry.position}: {error}"))
            return
        low, high = span(metadata)
        name = _counted(metadata.producer_name)
        if not name or high > SEQUENCE_TAKEN_MAX:
            return
        known = self.numbers.get(name)
        if entry.flags & _REPLICATED and not metadata.HasField("replicated_from"):
            # Restored messages were published before this data folder existed (`replication.restore`). A producer that
            # publishes now may have begun with new numbers, and must not count as one that repeats restored messages. A
            # name that is otherwise unknown continues with its old number.
            if known is None:
                self._restored_names.add(name)
            elif known.live or name not in self._restored_names:
                return
        if known is not None and known.live and entry.flags & _REPLICATED and name not in self._told_names:
            self._told_names.add(name)
            self._outbox.put(
                Note(
                    "warning",
                    f"producer name {name!r} of {self.topic} is in use here and in {entry.origin}: deduplication counts both "
                    "as one sequence and drops lower ids; give producers that run at the same time different names",
                )
            )
        self.numbers.observe(
            name, low, high, chunk_of(entry.flags, metadata), self._outbox.day_ms, gapless=is_gapless(metadata)
        )

    def fail(self) -> None:
        """An append of the topic failed."""
        self.numbers.fail()

    def forget(self, name: str, then: Callable[[str], None]) -> None:
        """Forget a producer's number; `then("")` is called when no restart can restore it.

        The caller has closed its producers, and their messages in flight are answered. Entries that are in the log now
        are never read for numbers again.
        """
        self.numbers.forget(name)
        self._told_names.discard(name)
        self._restored_names.discard(name)
        self._snapshot_ms, self._since = self._outbox.now_ms, 0
        self._flusher.when_durable(self.key, self, then)

    # ------------------------------------------------------------------------------------------------------- snapshots

    def tick(self, now_ms: int) -> None:
        """Now and then: forget unused names, store the numbers when that is due."""
        if self.status is not Status.ENABLED:
            return
        evicted = self.numbers.expire(self._outbox.day_ms)
        every = self._settings.snapshot_s if self.snapshot_s is None else self.snapshot_s
        due = every > 0 and now_ms - self._snapshot_ms >= every * 1000
        if evicted or (due and self._log.last > self.durable_mark_delete):
            self.snapshot()

    def snapshot(self) -> None:
        """Store the numbers soon."""
        self._snapshot_ms = self._outbox.now_ms
        self._since = 0
        self._flusher.dirty(self.key, self)

    @property
    def mark_delete(self) -> Position:
        """The position up to which a snapshot taken now covers the log."""
        return self._log.last

    def encode(self) -> bytes:
        """The snapshot, as a cursor at the newest entry."""
        ids, under_way = self.numbers.snapshot()
        return Cursor(self._log, self._log.last, ids, under_way).encode()

    def internal_stats(self) -> dict[str, object]:
        """One of the `cursors` of the internal stats."""
        ids, _ = self.numbers.snapshot()
        last = self._log.last
        behind = self._log.entries_between(self.durable_mark_delete, last) if last > self.durable_mark_delete else 0
        return statkeys.internal_cursor(
            self._log,
            mark_delete=self.durable_mark_delete,
            taken=last,
            entries_behind=behind,
            consumed=max(0, self._taken - behind),
            state=self.status.value,
            active=self.status is Status.ENABLED,
            waiting=False,  # it learns of new entries directly, and reads only older ones
            since_ms=self._began_ms,
            properties=ids,
        )

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.numbers.validate()
        assert self.durable_mark_delete <= self._log.last, "the stored snapshot covers more than there is"
        self._ready.validate()
