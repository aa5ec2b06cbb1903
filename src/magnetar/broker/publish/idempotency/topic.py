"""Idempotency keys of one topic: switching them on, checking each message, and switching them off.

    message arrives     key unknown: it is pushed, the entry staged -> in the log: persisted | failed: the key is removed
                        key known: nothing is stored; the receipt follows as soon as everything staged so far is in the log
    entry of a link     its keys are pushed as it is staged: they count here, but it is never refused; if a key is known from
                        another cluster's message, one of the two loses (`idempotency_conflicts`), and is withdrawn
    switching on        the log of one window is read; until then no producer is accepted
    start               the stored keys are loaded, the log after them is read
    on                  new keys are stored from time to time

The ring of keys has the order of the log, so removing the keys of failed appends cuts off its end. The receipt of a
repeated message waits for the appends in flight, because a first message that never reaches the disk must not be
confirmed by the receipt of a second one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.publish.deduplication import READ_BYTES, READ_ENTRIES, Status
from magnetar.broker.publish.idempotency.block import PART_SHIFT, pack
from magnetar.broker.publish.idempotency.conflicts import Conflicts
from magnetar.broker.publish.idempotency.judging import NEW, Counters, Keyed, judge, numbered, part_number, stats_of
from magnetar.broker.publish.idempotency.saving import Saving
from magnetar.broker.publish.idempotency.snapshot import VERSION, Record, Stored, before, load_block
from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.broker.publish.opening import Openings
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.ready_gate import ReadyGate
from magnetar.effects.outbox import Note, Outbox, Read, Timer
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.storage.entries import Append, EntryFlags, NewEntry, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.idempotency_keys import (
    ENTRY_HEADER_BYTES,
    Found,
    KeyProperty,
    find_stored,
    stored_takes_long,
)
from magnetar.wire.metadata import Inspected

if TYPE_CHECKING:
    from magnetar.broker.publish.idempotency.table import KeyTable

EXPIRED_PER_STEP: Final = 256
"""Keys forgotten with each append, in addition to as many as it adds: so the cost of a step stays even."""

EXPIRED_PER_ENTRY: Final = 8
"""The same while the log is read again."""

EXPIRED_PER_ROUND: Final = 200_000
"""Keys forgotten in one round of upkeep: some 50 ms."""

SAVE_ENTRIES: Final = 20_000
SAVE_MS: Final = 120_000
"""The keys are stored after this many entries, or this long after the last time: it limits the part of the log that a
start has to read again.
"""

NEVER: Final = -(2**63)
"""A time before all others."""

from_bytes = int.from_bytes
_MASK_32: Final = 2**32 - 1
_MARKER: Final = int(EntryFlags.MARKER)
_REPLICATED: Final = int(EntryFlags.REPLICATED)


class TopicIdempotency:
    """The keys of one topic.

    Attributes:
        pending: keys of entries that are about to be staged, in order, with the packed facts of each.
        taken: number of keys of each of these entries.

    Args:
        outbox: the broker's.
        topic: full name.
        log: the topic's log.
        policy: the property, the window, the most keys.
        counters: the broker's counters.
        when_drained: calls a function when no append of the topic is in flight.
        cluster: this cluster.
        withdrawals: the topic's withdrawn messages.
        withdraw: withdraws messages that are in the log from all subscriptions; returns the number of those that may
            have been dispatched.
        openings: opens large batches outside the event loop.
        secret: secret of the fingerprints, if the stored keys have none.
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
        cluster: str,
        withdrawals: Withdrawals,
        withdraw: Callable[[list[Loser]], tuple[int, int]],
        openings: Openings,
        secret: bytes = b"",
    ) -> None:
        self.status = Status.RECOVERING
        self.topic = topic
        self.policy = policy
        self._openings = openings
        self._secret = secret
        self._property = KeyProperty(policy.property, secret)
        self.table = _table(policy.window_seconds * 1000, policy.keys_max)
        self.duplicates = 0
        self.twice = 0
        self.withdrawn = 0
        self._conflicts = Conflicts(cluster, self.table)
        self._withdrawals = withdrawals
        self._withdraw = withdraw
        self._losers: list[Loser] = []
        """The losers of the append that is being staged, or of the entries just read."""
        self._resolves = True
        """Whether conflicts found in the log are resolved: not in what was stored before keys were switched on."""
        self._outbox = outbox
        self._log = log
        self._counters = counters
        self._when_drained = when_drained
        self._ready = ReadyGate(lambda: self.status is not Status.RECOVERING)
        self.pending: dict[bytes, int] = {}
        self.taken: list[int] = []
        self._announced: tuple[list[bytes], list[int]] = ([], [])
        """Used instead of these two: the keys of an append whose entries have one each."""
        self._ahead: Found | None = None
        self._flying: deque[tuple[Append, int, list[Loser]]] = deque()
        """Staged, unconfirmed appends, with the number after their last key, and the messages that they withdraw."""
        self._durable = 0
        """The number after the last key whose message is in the log."""
        self._warned_of: set[str] = set()
        self._counted = (0, 0)
        self._saving = Saving(outbox, topic, withdrawals)
        self._since = 0
        self._save_ms = outbox.now_ms

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self, stored: Stored | None = None) -> None:
        """Begin with the stored keys; else read the log of one window, after the appends in flight."""
        if stored is None:
            self._resolves = False
            self._when_drained(self._begin)
            return
        self._saving.covered = stored.record.covered
        self._load(stored, 0)

    def fits(self, record: Record) -> bool:
        """Whether stored keys are of this topic, this property, this layout, and of a log that was not cut since."""
        same = record.name == self.policy.property and record.incarnation == self._log.incarnation
        return same and record.version == VERSION and record.covered <= self._log.last

    def _load(self, stored: Stored, at: int) -> None:
        if self.status is not Status.RECOVERING:
            return
        record = stored.record
        if at < len(stored.blocks):
            try:
                load_block(self.table, stored.blocks[at], record.tail)
            except ValueError as error:
                self._reload(stored, str(error))
                return
            # Other topics get their turn.
            self._outbox.put(Timer(self._outbox.now_ms, lambda _now_ms: self._load(stored, at + 1)))
            return
        if not len(self.table):
            self.table.begin(record.tail)
        if self.table.tail != record.tail or self.table.head > record.head:
            self._reload(stored, f"they are {self.table.head} to {self.table.tail}, not {record.head} to {record.tail}")
            return
        self.table.forget_below(record.head)
        self.table.newest_ms = record.newest_ms
        # The cluster's own secret may have changed since; these keys keep theirs.
        self._secret, self._property = record.secret, KeyProperty(self.policy.property, record.secret)
        self._conflicts = Conflicts(self._conflicts.origins[0], self.table, record.origins)
        self._saving.found(stored)
        self._durable = record.tail
        self._replay(record.covered, NEVER)

    def _reload(self, stored: Stored, why: str) -> None:
        """The stored keys cannot be used: read the log instead."""
        text = f"the stored idempotency keys of {self.topic} are damaged: {why}; its retained log is read instead"
        self._outbox.put(Note("warning", text))
        self._saving.discard(stored)
        self.table = _table(self.table.window_ms, self.table.keys_max)
        self._conflicts = Conflicts(self._conflicts.origins[0], self.table)
        self._begin()

    def adjust(self, policy: IdempotencyPolicy) -> None:
        """Another window or another number of keys, of the same property."""
        self.policy = policy
        self.table.resize(window_ms=policy.window_seconds * 1000, keys_max=policy.keys_max)
        self._count()

    def _begin(self) -> None:
        if self.status is Status.RECOVERING:
            since_ms = self._outbox.day_ms - self.table.window_ms
            self._replay(before(self._log, since_ms), since_ms)

    def _replay(self, after: Position, since_ms: int) -> None:
        """Read the log after a position, entries stored after a time only. After stored keys, older entries count as
        well: they may have withdrawn others.
        """
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
            self._counters.replayed += len(entries)
            self._walk(iter(entries), entries[-1].position, since_ms)

        self._outbox.put(Read(self.topic, start, READ_ENTRIES, READ_BYTES, taken))

    def _walk(self, entries: Iterator[StoredEntry], last: Position, since_ms: int) -> None:
        """Push the keys of entries that were read, the last one at `last`. A large batch is opened off the event loop."""
        for entry in entries:
            if entry.broker_time <= since_ms:
                continue
            if stored_takes_long(entry):
                self._walked()
                found = partial(self._found, entry, entries, last, since_ms)
                self._openings.open(self.topic, partial(find_stored, self._property, entry), found)
                return
            self._remember_again(entry)
        self._walked()
        self._replay(last, since_ms)

    def _found(
        self, entry: StoredEntry, entries: Iterator[StoredEntry], last: Position, since_ms: int, found: Found
    ) -> None:
        if self.status is Status.RECOVERING:
            self._remember_again(entry, found)
            self._walk(entries, last, since_ms)

    def _remember_again(self, entry: StoredEntry, found: Found | None = None) -> None:
        self._remember(entry, found)
        self.table.expire(entry.broker_time, EXPIRED_PER_ENTRY)

    def _walked(self) -> None:
        """The keys pushed so far are in the log."""
        self._durable = self.table.tail
        losers, self._losers = self._losers, []
        if losers:
            self._withdraw(losers)

    def _recovered(self) -> None:
        self.status = Status.ENABLED
        self._resolves = True
        self.table.expire(self._outbox.day_ms, EXPIRED_PER_ROUND)
        self._durable = self.table.tail
        # Appends that links have staged since then are not in the log yet.
        flying, self._flying = self._flying, deque()
        for append, _, _ in flying:
            self.staged(append)
        if self._saving.covered == NONE:
            self.save()  # from now on a start decides about everything after it
        self._ready.release()

    def _failed(self, error: str) -> None:
        self.status = Status.FAILED
        text = (
            f"the idempotency keys of {self.topic} cannot be recovered: {error}; producers are refused until the entry "
        )
        self._outbox.put(Note("error", text + "is skipped or idempotency keys are switched off for this topic"))
        self._ready.release()

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when producers may be let in (at once if they may); see `check`."""
        self._ready.when_open(then)

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
        """Switch off; waiting producers are accepted. The stored keys are deleted."""
        self.status = Status.DISABLED
        self._ready.release()
        self._saving.delete()

    # -------------------------------------------------------------------------------------------------------- judging

    def new_keys(self, entries: Iterable[tuple[bytes, int]]) -> list[bytes] | None:
        """The keys of single messages; None unless each has one, easily found, and all are new.

        Args:
            entries: bytes of each, and where its metadata ends in them.
        """
        keys = self._property.easily(entries)
        if None in keys or len(set(keys)) < len(keys):
            return None
        found: list[bytes] = keys  # type: ignore[assignment]  # there is no None in it
        return found if self.table.all_new(found, self._outbox.day_ms) else None

    def take_new(self, keys: list[bytes], entries: Sequence[NewEntry]) -> None:
        """Entries with one new key each are about to be staged, as one append."""
        self._announced = (keys, [entry.publish_time & _MASK_32 for entry in entries])

    def look_up(self, entries: Sequence[bytes]) -> tuple[list[bytes | None], list[int], bool]:
        """The keys of entries that came together, as far as they are easily found, and their numbers.

        That entries are single messages, and sound, is still to be seen.

        Returns:
            Keys; None: none, or to be looked for by `judge`. Numbers; NEW: not known. Whether no key comes twice.
        """
        keys = self._property.easily((data, ENTRY_HEADER_BYTES + from_bytes(data[6:10], "big")) for data in entries)
        now_ms = self._outbox.day_ms
        if None in keys:
            find = self.table.find
            return keys, [NEW if key is None else find(key, now_ms) for key in keys], False
        numbers = self.table.find_all(keys, now_ms)  # type: ignore[arg-type]  # there is no None in it
        return keys, numbers, len(set(keys)) == len(keys)

    def number(self, key: bytes, looked_up: int) -> int:
        """The number of a key that was looked up with others, some of which may have been taken since."""
        if looked_up == NEW:
            looked_up = numbered(self.table, self.pending, key, self._outbox.day_ms)
        if looked_up != NEW:
            self._count_repeated(1)
        return looked_up

    @property
    def name(self) -> KeyProperty:
        """The property, with the secret of the fingerprints."""
        return self._property

    def judge(self, seen: Inspected, found: Found | None = None) -> Keyed | None:
        """Look up an entry's keys; nothing is remembered yet.

        Args:
            seen: the entry.
            found: the result of opening it outside the event loop, with `name`; None: it does not take long.

        Returns:
            None: it has no key, and is stored as it is.

        Raises:
            BrokerError: NOT_ALLOWED: see `idempotency_keys.open_entry`.
        """
        keyed = judge(self.table, self.pending, self._property, seen, self._outbox.day_ms, found)
        if keyed is not None and keyed.repeated:
            self._count_repeated(keyed.repeated)
        return keyed

    def _count_repeated(self, messages: int) -> None:
        self.duplicates += messages
        self._counters.duplicates += messages

    def take(self, keys: list[tuple[bytes, int]], publish_ms: int) -> None:
        """An entry is about to be staged: its keys are known from now on. Every entry of an append is announced so, or by
        writing to `pending` and `taken`.
        """
        about = pack(publish_ms, 0, 0)
        self.pending |= {key: about | part << PART_SHIFT for key, part in keys}
        self.taken.append(len(keys))

    def long_at(self, entries: Sequence[NewEntry], found: Found | None) -> int:
        """The index of the first entry of a link whose batch has to be opened outside the event loop; the number of
        entries if there is none.

        While the log is read, entries of links are not opened: their keys are found when they are read from the log.

        Args:
            entries: in order.
            found: the result of opening the first one; None: none yet.
        """
        if self.status is not Status.ENABLED:
            return len(entries)
        known = found is not None and found.name is self._property
        return next((at for at in range(known, len(entries)) if stored_takes_long(entries[at])), len(entries))

    def open_ahead(self, entry: NewEntry, then: Callable[[Found], None]) -> None:
        """Open an entry of a link off the event loop, in its turn."""
        self._openings.open(self.topic, partial(find_stored, self._property, entry), then)

    def known_ahead(self, found: Found | None) -> None:
        """Set the result of opening the first entry of the next append; None: clear it."""
        self._ahead = found

    def give_back(self) -> None:
        """Drop the announced keys: their entries will not be staged."""
        self.pending.clear()
        self.taken.clear()
        self._announced = ([], [])

    def staged(self, append: Append) -> None:
        """Entries have positions."""
        losers: list[Loser] = []
        if self.status is Status.ENABLED:
            brought = len(self.pending) or len(self._announced[0])
            if brought or self.taken:
                self._enter(append)
            else:
                found, self._ahead = self._ahead, None
                if found is not None and found.name is not self._property:
                    found = None
                for entry in append.entries:
                    if entry.flags & _REPLICATED:
                        self._remember(entry, found)
                        found = None
                losers, self._losers = self._losers, []
            self.table.expire(self._outbox.day_ms, EXPIRED_PER_STEP + brought)
            self._count()
        self._flying.append((append, self.table.tail, losers))

    def _enter(self, append: Append) -> None:
        """Enter the announced keys with their positions."""
        keys, abouts = self._announced
        if keys:
            self._announced = ([], [])
            entries = [entry.entry for entry in append.entries]
            self.table.extend(keys, self._outbox.day_ms, abouts, append.entries[0].ledger, entries)
            return
        pending, taken = self.pending, self.taken
        if pending:
            entries = [entry.entry for entry in append.entries]
            if len(pending) != len(entries) or max(taken) > 1:
                entries = [entry for entry, count in zip(entries, taken, strict=True) for _ in range(count)]
            about = list(pending.values())
            self.table.extend(list(pending), self._outbox.day_ms, about, append.entries[0].ledger, entries)
            pending.clear()
        taken.clear()

    def confirmed(self, append: Append) -> None:
        """An append is in the log."""
        if self._flying and self._flying[0][0] is append:
            _, tail, losers = self._flying.popleft()
            self._durable = max(tail, self._durable)
            if losers:
                self._drive_out(losers)
        self._since += len(append.entries)
        if self._since >= SAVE_ENTRIES:
            self.save()

    def fail(self) -> None:
        """An append failed, and with it all in flight; this is called for each of them after the log has handled it."""
        epoch = self._log.write_epoch
        lost = len(self._flying)
        self._flying = deque(pair for pair in self._flying if pair[0].write_epoch == epoch)
        # Appends that were staged after the first of these failures are valid: they can only be staged after the log
        # has handled it.
        if len(self._flying) < lost and self.status is Status.ENABLED:
            assert not self._flying, f"{self.topic}: entries were staged while a failure was not told"
            self.table.truncate(self._durable)

    def _remember(self, entry: StoredEntry, found: Found | None = None) -> None:
        """Push an entry's keys, taken from `found` if it is set; the messages that lose because of them wait in
        `_losers`.
        """
        if entry.flags & _MARKER:
            return
        if found is None:
            found = find_stored(self._property, entry)
        opened = found.opened
        if found.error is not None:
            error = found.error
            self._counters.unreadable += 1
            if entry.origin not in self._warned_of:
                self._warned_of.add(entry.origin)
                where = f"entry {entry.position}" + (f" of {entry.origin}" if entry.origin else "")
                self._outbox.put(Note("warning", f"idempotency keys of {self.topic}: {where}: {error}"))
            return
        if opened is None or not opened.complete:
            return
        table = self.table
        origin = self._conflicts.number(entry.origin)
        for at, (key, _, _) in enumerate(opened.messages):
            if key is None:
                continue
            rivals = self._resolves and table.find(key, entry.broker_time) >= 0
            about = pack(entry.publish_time, origin, part_number(entry.flags, at))
            number = table.push(key, entry.broker_time, about)
            table.set_position(number, entry.position)
            if rivals:
                for loser, possible in self._conflicts.losers(key, number, entry.broker_time):
                    if possible:
                        self._losers.append(loser)
                    elif self.status is Status.ENABLED:
                        self._twice(1)

    def _drive_out(self, losers: list[Loser]) -> None:
        """Withdraw messages; the message that wins is in the log."""
        withdrawn, given = self._withdraw(losers)
        self.withdrawn += withdrawn
        self._counters.withdrawn += withdrawn
        self._twice(given)

    def _twice(self, messages: int) -> None:
        self.twice += messages
        self._counters.twice += messages

    # --------------------------------------------------------------------------------------------------------- upkeep

    def durable_low(self) -> Position:
        """The position after which all entries are needed to find the keys again after a crash."""
        covered = self._saving.covered
        if self.status is not Status.ENABLED or self._withdrawals.dirty:
            return covered
        if not len(self.table):
            return self._log.last
        oldest = self.table.position(self.table.head)
        return max(covered, Position(oldest.ledger, oldest.entry - 1))

    def tick(self, now_ms: int) -> None:
        """Now and then: forget what is old."""
        if self.status is Status.ENABLED:
            self.table.expire(self._outbox.day_ms, EXPIRED_PER_ROUND)
            self._count()
            if now_ms - self._save_ms >= SAVE_MS and self._log.last > self._saving.covered:
                self.save()

    def save(self) -> None:
        """Store the new keys, except those in flight."""
        if self._saving.saving or self.status is not Status.ENABLED:
            return
        self._since, self._save_ms = 0, self._outbox.now_ms
        record = Record(
            incarnation=self._log.incarnation,
            name=self.policy.property,
            origins=self._conflicts.origins,
            secret=self._secret,
        )
        self._saving.save(self.table, self._durable, self._log.last, record, self.save)

    def _count(self) -> None:
        table, (evicted, expired) = self.table, self._counted
        if table.evicted != evicted or table.expired != expired:
            self._counters.evicted += table.evicted - evicted
            self._counters.expired += table.expired - expired
            self._counted = (table.evicted, table.expired)

    def stats(self) -> dict[str, Any]:
        """The figures for the topic's statistics."""
        messages = {"duplicates": self.duplicates, "withdrawn": self.withdrawn, "twice": self.twice}
        messages["withdrawnInLog"] = self._withdrawals.messages
        return stats_of(self.status, self.policy, self.table) | messages | {"storedUpTo": str(self._saving.covered)}

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.table.validate()
        self._withdrawals.validate()
        assert not self._losers, "losers were found and not taken along"
        assert not self.pending, "keys are pending that nobody stages"
        assert not self.taken, "keys were announced and never staged"
        assert not self._announced[0], "keys were announced and never staged"
        self._ready.validate()


def _table(window_ms: int, keys_max: int) -> "KeyTable":
    from magnetar.broker.publish.idempotency.table import (
        KeyTable,  # numpy takes 0.2 s to import: only for those who have keys
    )

    return KeyTable(window_ms=window_ms, keys_max=keys_max)
