"""Idempotency keys of one topic: from being switched on, through what happens to each message, to being switched off.

    message arrives     key unknown: it is pushed, the entry staged -> in the log: persisted | failed: the key is taken back
                        key known: nothing is stored; answered as stored as soon as everything staged so far is in the log
    entry of a link     its keys are pushed as it is staged: they count here, but it is never refused
    switching on        the log of one window is read; until then no producer is let in
    start               the stored keys are loaded, the log behind them is read
    on                  the keys are stored now and then, what is new of them

The ring of keys has the order of the log, so that "taking back" is cutting off its end. What is in flight when a message
is answered as stored is the reason to wait: a first message that never reaches the disk must not have been confirmed by a
second one.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from magnetar.broker.deduplicating import READ_BYTES, READ_ENTRIES, Status
from magnetar.broker.effects import Note, Outbox, Read, Store, Timer
from magnetar.broker.idempotency import BLOCK_SHIFT, Fingerprint, KeyTable
from magnetar.broker.idempotency_keys import Message, Opened, key_in, open_entry, smaller
from magnetar.broker.idempotency_snapshot import Record, Stored, block_key, encode_block, load_block, record_key
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.metadata.idempotency import IdempotencyPolicy
from magnetar.storage.entries import Append, EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.metadata import Inspected, parse_metadata, split

EXPIRED_PER_STEP: Final = 256
"""Keys forgotten with each append, besides as many as it brings: what a step costs stays even."""

EXPIRED_PER_ROUND: Final = 200_000
"""Keys forgotten in one round of upkeep: some 50 ms."""

SAVE_ENTRIES: Final = 20_000
SAVE_MS: Final = 120_000
"""The keys are stored after so many entries, or when that is so long ago: what a start has to read of the log again."""

SAVE_BLOCKS_MAX: Final = 4
"""Blocks encoded in one step: some 40 ms and 600 KB; more of them follow when these are stored."""

_MARKER: Final = int(EntryFlags.MARKER)
_REPLICATED: Final = int(EntryFlags.REPLICATED)
_SPECIAL: Final = int(EntryFlags.MARKER | EntryFlags.BATCH | EntryFlags.CHUNK)


class Counters:
    """Of all topics of a broker, for its metrics.

    Attributes:
        duplicates: messages answered as stored.
        twice: messages that came over a link with a key that was known here: two clusters took it while apart.
        unreadable: batches of links that cannot be opened; their keys are not known here.
        evicted, expired: keys forgotten because there were too many, or for their age.
        replayed: entries read again.
    """

    __slots__ = ("duplicates", "evicted", "expired", "replayed", "twice", "unreadable")

    def __init__(self) -> None:
        self.duplicates = 0
        self.twice = 0
        self.unreadable = 0
        self.evicted = 0
        self.expired = 0
        self.replayed = 0


class Keyed(NamedTuple):
    """What was found out about an entry.

    Attributes:
        data, count: what to store of it.
        keys: to be remembered with it.
        first: where all of its messages are stored already, the number of the first one's key; else -1.
    """

    data: bytes
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    keys: list[Fingerprint]
    first: int


class TopicIdempotency:
    """The keys of one topic.

    Args:
        outbox: the broker's.
        topic: full name.
        log: of the topic.
        policy: which property, how long, how many.
        counters: of the broker.
        when_drained: calls back when no append of the topic is in flight.
    """

    def __init__(
        self,
        outbox: Outbox,
        topic: str,
        log: TopicLog,
        *,
        policy: IdempotencyPolicy,
        counters: Counters,
        when_drained: Callable[[Callable[[], None]], None],
    ) -> None:
        self.status = Status.RECOVERING
        self.topic = topic
        self.policy = policy
        self._property = policy.property
        self.table = KeyTable(window_ms=policy.window_seconds * 1000, keys_max=policy.keys_max)
        self.duplicates = 0
        self.twice = 0
        self._outbox = outbox
        self._log = log
        self._counters = counters
        self._when_drained = when_drained
        self._ready: list[Callable[[], None]] = []
        self._taken: list[int] = []
        """How many keys each entry brings that is about to be staged."""
        self._flying: deque[tuple[Append, int]] = deque()
        """What is staged and not confirmed, with the number behind its last key."""
        self._durable = 0
        """Behind the last key whose message is in the log."""
        self._told: set[str] = set()
        self._counted = (0, 0)
        self._covered = NONE
        """Up to here the stored keys make the log superfluous."""
        self._first_block = 0
        self._saved_tail = 0
        """Blocks before the one, and keys from the other on, are not stored."""
        self._block_max = -1
        """The highest block that was ever given to be stored."""
        self._saving = False
        self._since = 0
        self._save_ms = outbox.now_ms

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self, stored: Stored | None = None) -> None:
        """Begin with the stored keys; else read the log of one window, once what is in flight has landed."""
        if stored is None:
            self._when_drained(self._begin)
            return
        self._covered = stored.record.covered
        self._load(stored, 0)

    def fits(self, record: Record) -> bool:
        """Whether stored keys are of this topic, this property, and of a log that was not cut since."""
        same = record.name == self.policy.property and record.incarnation == self._log.incarnation
        return same and record.covered <= self._log.last

    def _load(self, stored: Stored, at: int) -> None:
        if self.status is not Status.RECOVERING:
            return
        record = stored.record
        if at < len(stored.blocks):
            try:
                load_block(self.table, stored.blocks[at], record.tail, self._outbox.now_ms)
            except ValueError as error:
                self._reload(stored, str(error))
                return
            # Other topics get their turn.
            self._outbox.put(Timer(self._outbox.now_ms, lambda _now_ms: self._load(stored, at + 1)))
            return
        if not len(self.table):
            self.table.begin(record.tail)
        if self.table.tail != record.tail:
            self._reload(stored, f"they end at {self.table.tail}, not at {record.tail}")
            return
        self._first_block, self._saved_tail = record.head >> BLOCK_SHIFT, record.tail
        self._block_max = record.tail >> BLOCK_SHIFT
        self._durable = record.tail
        self._replay(record.covered)

    def _reload(self, stored: Stored, why: str) -> None:
        """The stored keys are no good: what the log still has must do."""
        self._outbox.put(
            Note(
                "warning",
                f"the stored idempotency keys of {self.topic} are damaged: {why}; its retained log is read instead",
            )
        )
        self._outbox.put(Store({}, tuple(stored.keys), lambda _error: None))
        self._covered = NONE
        self.table = KeyTable(window_ms=self.table.window_ms, keys_max=self.table.keys_max)
        self._replay(self._window_start())

    def adjust(self, policy: IdempotencyPolicy) -> None:
        """Another window or another number of keys, of the same property."""
        self.policy = policy
        self.table.resize(window_ms=policy.window_seconds * 1000, keys_max=policy.keys_max)
        self._count()

    def _begin(self) -> None:
        if self.status is Status.RECOVERING:
            self._replay(self._window_start())

    def _window_start(self) -> Position:
        """A position behind which everything younger than the window stands."""
        since = self._outbox.now_ms - self.table.window_ms
        start = NONE
        for ledger in self._log.ledger_infos():
            if ledger.newest_ms >= since:
                break
            start = Position(ledger.ledger, ledger.entries - 1)
        return start

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
            since = self._outbox.now_ms - self.table.window_ms
            for entry in entries:
                if entry.broker_time > since:
                    self._remember(entry)
            self._durable = self.table.tail
            self._counters.replayed += len(entries)
            self._replay(entries[-1].position)

        self._outbox.put(Read(self.topic, start, READ_ENTRIES, READ_BYTES, taken))

    def _recovered(self) -> None:
        self.status = Status.ENABLED
        self._durable = self.table.tail
        # What links have staged meanwhile is not in the log yet.
        flying, self._flying = self._flying, deque()
        for append, _ in flying:
            self.staged(append)
        self._let_in()

    def _failed(self, error: str) -> None:
        self.status = Status.FAILED
        self._outbox.put(
            Note(
                "error",
                f"the idempotency keys of {self.topic} cannot be recovered: {error}; producers are refused until the entry "
                "is skipped or idempotency keys are switched off for this topic",
            )
        )
        self._let_in()

    def _let_in(self) -> None:
        waiting, self._ready = self._ready, []
        for then in waiting:
            then()

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when producers may be let in (at once if they may); see `check`."""
        if self.status is Status.RECOVERING:
            self._ready.append(then)
        else:
            then()

    def check(self) -> None:
        """Refuse producers when nothing can be judged.

        Raises:
            BrokerError: SERVICE_NOT_READY: it is not known yet which keys are stored, or the log cannot be read.
        """
        if self.status is Status.RECOVERING:
            raise BrokerError(
                ErrorCode.SERVICE_NOT_READY,
                f"the idempotency keys of {self.topic} are being read from its log: try again",
            )
        if self.status is Status.FAILED:
            raise BrokerError(
                ErrorCode.SERVICE_NOT_READY,
                f"the idempotency keys of {self.topic} cannot be recovered from its log: see the broker's log",
            )

    def stop(self) -> None:
        """Switched off; whoever waits is let in. What is stored goes."""
        self.status = Status.DISABLED
        self._let_in()
        keys = [block_key(self.topic, block) for block in range(self._first_block, self._block_max + 1)]

        def deleted(error: str) -> None:
            if error:
                text = f"cannot delete the idempotency keys of {self.topic}: {error}; the next start will"
                self._outbox.put(Note("warning", text))

        self._outbox.put(Store({}, (record_key(self.topic), *keys), deleted))

    # -------------------------------------------------------------------------------------------------------- judging

    def judge(self, seen: Inspected) -> Keyed | None:
        """Look an entry's keys up; nothing is remembered yet.

        Returns:
            None: it has no key, and is stored as it is.

        Raises:
            BrokerError: NOT_ALLOWED: see `open_entry`.
        """
        if not seen.flags & _SPECIAL:  # most messages: the same as below, for a third less
            key = key_in(seen.metadata.properties, self._property)
            if key is None:
                return None
            number = self.table.find(key, self._outbox.now_ms)
            if number < 0:
                return Keyed(seen.payload, seen.count, [key], -1)
            self.duplicates += 1
            self._counters.duplicates += 1
            return Keyed(b"", 0, [], number)
        opened = open_entry(self._property, seen.flags, seen.metadata, seen.payload, seen.metadata_end)
        if opened is None:
            return None
        now_ms = self._outbox.now_ms
        kept: list[Message] = []
        keys: list[Fingerprint] = []
        first = -1
        for message in opened.messages:
            key = message.key
            if key is not None:
                number = self.table.find(key, now_ms)
                if number >= 0 or (len(opened.messages) > 1 and key in keys):
                    first = number if first < 0 else first
                    continue
                keys.append(key)
            kept.append(message)
        repeated = len(opened.messages) - len(kept)
        self.duplicates += repeated
        self._counters.duplicates += repeated
        if not kept:
            return Keyed(b"", 0, [], first)
        data = seen.payload
        if repeated and opened.batch is not None:
            data = smaller(seen.metadata, opened.batch, kept)
        return Keyed(data, len(kept) if opened.batch is not None else seen.count, keys if opened.complete else [], -1)

    def take(self, keys: list[Fingerprint]) -> None:
        """An entry is about to be staged: its keys are known from now on. Every entry of an append is announced so."""
        now_ms = self._outbox.now_ms
        for key in keys:
            self.table.push(key, now_ms)
        self._taken.append(len(keys))

    def give_back(self) -> None:
        """What was announced will not be staged."""
        self.table.truncate(self.table.tail - sum(self._taken))
        self._taken.clear()

    def staged(self, append: Append) -> None:
        """Entries have positions."""
        if self.status is Status.ENABLED:
            taken, self._taken = self._taken, []
            if taken:
                number = self.table.tail - sum(taken)
                for entry, count in zip(append.entries, taken, strict=True):
                    for _ in range(count):
                        if number >= self.table.head:
                            self.table.place(number, entry.position)
                        number += 1
            else:
                for entry in append.entries:
                    if entry.flags & _REPLICATED:
                        self._remember(entry, count_twice=True)
            self.table.expire(self._outbox.now_ms, EXPIRED_PER_STEP + sum(taken))
            self._count()
        self._flying.append((append, self.table.tail))

    def confirmed(self, append: Append) -> None:
        """An append is in the log."""
        if self._flying and self._flying[0][0] is append:
            self._durable = max(self._flying.popleft()[1], self._durable)
        self._since += len(append.entries)
        if self._since >= SAVE_ENTRIES:
            self.save()

    def fail(self) -> None:
        """An append failed, and with it all that were in flight; the log was told, and this is called for each of them."""
        epoch = self._log.epoch
        lost = len(self._flying)
        self._flying = deque(pair for pair in self._flying if pair[0].epoch == epoch)
        # What was staged since the first of these failures lives; it cannot have been staged before that was told.
        if len(self._flying) < lost and self.status is Status.ENABLED:
            assert not self._flying, f"{self.topic}: entries were staged while a failure was not told"
            self.table.truncate(self._durable)

    def position(self, number: int) -> Position:
        """Where the message of a key is (or will be) stored; NONE: not known."""
        return self.table.position(number)

    def _open(self, entry: StoredEntry) -> Opened | None:
        metadata = parse_metadata(entry.data)
        return open_entry(self.policy.property, entry.flags, metadata, entry.data, split(entry.data))

    def _remember(self, entry: StoredEntry, *, count_twice: bool = False) -> None:
        if entry.flags & _MARKER:
            return
        try:
            opened = self._open(entry)
        except (BrokerError, ProtocolError) as error:
            self._counters.unreadable += 1
            if entry.origin not in self._told:
                self._told.add(entry.origin)
                where = f"entry {entry.position}" + (f" of {entry.origin}" if entry.origin else "")
                self._outbox.put(Note("warning", f"idempotency keys of {self.topic}: {where}: {error}"))
            return
        if opened is None or not opened.complete:
            return
        for message in opened.messages:
            if message.key is None:
                continue
            if count_twice and self.table.find(message.key, self._outbox.now_ms) >= 0:
                self.twice += 1
                self._counters.twice += 1
            self.table.place(self.table.push(message.key, entry.broker_time), entry.position)

    # --------------------------------------------------------------------------------------------------------- upkeep

    def durable_low(self) -> Position:
        """Everything behind it is needed to know the keys again after a crash."""
        if self.status is not Status.ENABLED:
            return self._covered
        if not len(self.table):
            return self._log.last
        oldest = self.table.position(self.table.head)
        return max(self._covered, Position(oldest.ledger, oldest.entry - 1))

    def tick(self, now_ms: int) -> None:
        """Now and then: forget what is old."""
        if self.status is Status.ENABLED:
            self.table.expire(now_ms, EXPIRED_PER_ROUND)
            self._count()
            if now_ms - self._save_ms >= SAVE_MS and self._log.last > self._covered:
                self.save()

    def save(self) -> None:
        """Store what is new of the keys; what is in flight is left out."""
        if self._saving or self.status is not Status.ENABLED:
            return
        self._saving, self._since, self._save_ms = True, 0, self._outbox.now_ms
        table = self.table
        head = min(table.head, self._durable)
        first, start = head >> BLOCK_SHIFT, max(self._saved_tail, head) >> BLOCK_SHIFT
        tail, covered = self._durable, self._log.last
        complete = tail <= start + SAVE_BLOCKS_MAX << BLOCK_SHIFT
        if not complete:
            tail = start + SAVE_BLOCKS_MAX << BLOCK_SHIFT
            # The first one left out may share its entry with others: that entry is read again.
            position = table.position(tail)
            covered = Position(position.ledger, position.entry - 1)
        blocks = range(start, (tail - 1 >> BLOCK_SHIFT) + 1) if tail > head else range(0)
        puts = {block_key(self.topic, block): encode_block(table, block, tail, self._outbox.now_ms) for block in blocks}
        record = Record(
            incarnation=self._log.incarnation,
            name=self.policy.property,
            ledger=covered.ledger,
            entry=covered.entry,
            head=head,
            tail=tail,
        )
        puts[record_key(self.topic)] = msgspec.json.encode(record)
        self._block_max = max([self._block_max, *blocks])
        gone = tuple(block_key(self.topic, block) for block in range(self._first_block, first))

        def stored(error: str) -> None:
            self._saving = False
            if error:
                self._outbox.put(Note("warning", f"cannot store the idempotency keys of {self.topic}: {error}"))
                return
            self._covered, self._saved_tail, self._first_block = max(covered, self._covered), tail, first
            if not complete:
                self.save()

        self._outbox.put(Store(puts, gone, stored))

    def _count(self) -> None:
        table, (evicted, expired) = self.table, self._counted
        if table.evicted != evicted or table.expired != expired:
            self._counters.evicted += table.evicted - evicted
            self._counters.expired += table.expired - expired
            self._counted = (table.evicted, table.expired)

    def stats(self) -> dict[str, Any]:
        """For the topic's statistics."""
        keys, index = self.table.memory()
        return {
            "status": self.status.value,
            "property": self.policy.property,
            "windowSeconds": self.policy.window_seconds,
            "keysMax": self.policy.keys_max,
            "keys": len(self.table),
            "keyBytes": keys,
            "indexBytes": index,
            "duplicates": self.duplicates,
            "twice": self.twice,
            "evicted": self.table.evicted,
            "expired": self.table.expired,
            "storedUpTo": str(self._covered),
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.table.validate()
        assert not self._taken, "keys were announced and never staged"
        assert self.status is Status.RECOVERING or not self._ready, "somebody waits for a recovery that is over"
