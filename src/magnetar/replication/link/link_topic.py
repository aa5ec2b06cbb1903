"""One topic of one outgoing link: its cursor in three versions, and the number of messages that the link lost.

    volatile   moves with every confirmation; the pipeline works with this one
    durable    the one in the store; retention may delete up to here and no further (docs/design/links.md#durable-cursor)
    rewinding  a rewind on its way to the store. It is used only when it is durable (docs/design/links.md#handshake). As soon
               as it is known, no older cursor may be stored over it, and retention keeps the entries that it needs

A message that was deleted here before it could be sent is a *gap*: counted, shown, never silent. Origin indexes are dense,
so the count needs no memory of the messages: it is the difference of two indexes. It may include messages that were not
for this link's cluster (`replicate_to`), so it is an upper bound.
"""

from dataclasses import dataclass, field
from typing import Final

from magnetar.core.backoff import pause
from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.core.rates import Rate
from magnetar.replication.link import chain
from magnetar.replication.link.policy import MAY_GO, index_after, local_messages, may_go
from magnetar.replication.link.records import LinkTopicRecord
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb

MARKS_MAX: Final = 64
"""A ceiling on remembered (position, index) pairs of a topic: one a ledger, the older half is thinned out beyond."""

RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000
"""An entry that cannot be read is tried again after pauses between these: its disk may come back, seldom soon."""


LET_GO_MAX: Final = 10_000
"""Entries that one event releases under a rate: some 10 ms of work, which a timer continues."""

LET_GO_MS: Final = 50
"""A topic that waits for its rate is looked at this often at most: the pipeline moves a handful at a time, not one by one."""


@dataclass(slots=True)
class Blocked:
    """Why a topic is blocked.

    Attributes:
        kind: `policy`, `partitions`, `size`, `identity`, `corrupt`, `schema`, `terminated`.
        reason: one line for the operator.
        since_ms: when it began.
        position: of the entry that is in the way; NONE if it is not one entry.
        retry_at_ms: when the source tries again by itself (entries it cannot read); 0: the pipeline does.
        failures: in a row.
        conflict: both schemas, where they are the cause.
    """

    kind: str
    reason: str
    since_ms: int
    position: Position = NONE
    retry_at_ms: int = 0
    failures: int = 1
    conflict: pb.GeoSchemaConflict | None = None


@dataclass(slots=True)
class LinkTopic:
    """The state of a link in one topic.

    Attributes:
        name, log: of the topic.
        cursor: volatile.
        durable: the cursor in the store; None while there is none (being created).
        rewinding: the cursor that is being stored; None when no rewind is under way.
        start: where the link began.
        index: origin index of the first message after `cursor.c`.
        gap, skipped: messages that were deleted before they could be sent, and that an operator gave up.
        loaded: both as they were when it was loaded, or last counted as gone.
        wanted: whether policy and links name the target; else the cursor is an orphan.
        floor: a foreign watermark (docs/design/links.md#ledger-ids-grow) that the log has not passed; NONE: none.
        counted: how far entries at or below `floor` were counted as gap.
        learned: the destination's change counter at the last comparison.
        there: incarnation of the destination's topic, the latest by its handshakes since the start; 0: none.
        changed: change counter of the link when this topic changed last.
        read_ms: when the link read of it last; 0: not since the start.
        rate: how much may go per period (policy `replicator-dispatch-rate`); None: no limit.
        paced_to: how far the rate has let the link go; it means nothing without a rate, or before C.
        due_ms: when a timer looks at what the rate does not let go yet; 0: none is set.
    """

    name: str
    log: TopicLog
    cursor: LinkCursor
    durable: LinkCursor | None = None
    rewinding: LinkCursor | None = None
    start: Position = NONE
    index: int = 0
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    gap: int = 0
    skipped: int = 0
    loaded: tuple[int, int] = (0, 0)
    paused: bool = False
    wanted: bool = True
    orphan_since_ms: int = 0
    blocked: Blocked | None = None
    floor: Position = NONE
    counted: Position = NONE
    learned: int = 0
    there: int = 0
    changed: int = 0
    read_ms: int = 0
    rate: Rate | None = None
    paced_to: Position = NONE
    due_ms: int = 0

    @classmethod
    def create(cls, name: str, log: TopicLog, *, latest: bool) -> "LinkTopic":
        """A link begins: with everything retained, or after the newest entry.

        Args:
            name, log: of the topic.
            latest: begin after the entries that are readable now.
        """
        start = log.last if latest else NONE
        index = index_after(log, start)
        mark = (start.ledger, start.entry, index)
        return cls(name, log, LinkCursor(start, NONE, 1), start=start, index=index, marks=[mark])

    @classmethod
    def load(cls, name: str, log: TopicLog, record: LinkTopicRecord) -> "LinkTopic":
        """A link continues after a restart."""
        return cls(
            name, log, record.cursor, durable=record.cursor, start=Position(*record.start), index=record.index,
            marks=list(record.marks), gap=record.gap, skipped=record.skipped, loaded=(record.gap, record.skipped),
            paused=record.paused, orphan_since_ms=record.orphan_since_ms,
            floor=record.cursor.c if record.cursor.c > log.last else NONE, counted=log.last,
        )  # fmt: skip

    def record(self, cursor: LinkCursor | None = None) -> LinkTopicRecord:
        """The record to store; a rewind under way has precedence."""
        c, s, gen = cursor or self.coming
        return LinkTopicRecord(
            incarnation=self.log.incarnation, c=(c[0], c[1]), s=(s[0], s[1]), gen=gen, start=(self.start[0], self.start[1]),
            index=self._index_at(c) if c < self.cursor.c else self.index, marks=list(self.marks), gap=self.gap,
            skipped=self.skipped, paused=self.paused, orphan_since_ms=self.orphan_since_ms,
        )  # fmt: skip

    @property
    def lost(self) -> tuple[int, int]:
        """How much `gap` and `skipped` grew since the broker's start."""
        return self.gap - self.loaded[0], self.skipped - self.loaded[1]

    # ---------------------------------------------------------------------------------------------------- how far it is

    @property
    def low(self) -> Position:
        """Retention may delete up to here, as far as this link goes."""
        if self.durable is None:
            return NONE
        lowest = min(self.durable.c, self.cursor.c)
        return lowest if self.rewinding is None else min(lowest, self.rewinding.c)

    @property
    def end(self) -> Position:
        """The newest entry that can go: confirmed, which in a replicated topic is synced.

        See docs/design/links.md#synced-only.

        NONE while a topic that was not replicated before has yet to be synced: nothing can be said of what it has.
        """
        return NONE if self.log.unsynced else self.log.last

    @property
    def last(self) -> Position:
        """The newest entry that the link may read now: `end`, or as far as `replicator-dispatch-rate` has let it go."""
        return self.end if self.rate is None else min(self.end, max(self.paced_to, self.cursor.c))

    def let_go(self, now_ms: int) -> int:
        """Let the link read on, as far as the rate has tokens.

        Returns:
            How long the rest has to wait, ms; 0: there is no rest.
        """
        rate = self.rate
        if rate is None:
            return 0
        log, end = self.log, self.end
        self.paced_to = max(self.paced_to, self.cursor.c)
        for _ in range(LET_GO_MAX):
            after = log.next_after(self.paced_to) if self.paced_to < end else None
            if after is None or after > end:
                return 0
            if may_go(log.flags_at(after)):
                if rate.wait_ms(now_ms):
                    break
                rate.take(log.count_at(after), log.size_at(after))
            self.paced_to = after
        return max(rate.wait_ms(now_ms), LET_GO_MS)

    def pending(self, last: Position) -> tuple[int, int, int]:
        """(entries, bytes, publish time of the first in ms) after C up to `last`, whether or not the link wants them."""
        c = self.cursor.c
        first = self.log.next_after(c) if c < last else None
        if first is None:
            return 0, 0, 0
        return self.log.entries_between(c, last), self.log.bytes_between(c, last), self.log.time_at(first)

    def lag_messages(self) -> int:
        """Messages published here that are not settled."""
        return local_messages(self.log, self.cursor.c, self.log.last)

    # ------------------------------------------------------------------------------------------------------- it moves

    @property
    def coming(self) -> LinkCursor:
        """The cursor that everything new is judged by: the one on its way to the store, if there is one."""
        return self.rewinding or self.cursor

    def commit(self, incarnation: int, commit: LinkCursor) -> bool:
        """A confirmation came; whether it moved the cursor. One of another incarnation or another generation does not.

        See docs/design/links.md#generation.
        """
        if incarnation != self.log.incarnation or self.rewinding is not None or commit.c > self.log.last:
            return False
        moved = chain.advance(self.cursor, commit)
        if moved is None:
            return False
        self._settle(moved.c)
        self.cursor = moved
        return True

    def skip(self, through: Position) -> int:
        """Settle without sending (C moves, S stays); returns how many messages were given up."""
        lost = local_messages(self.log, self.cursor.c, through)
        self._settle(through)
        self.cursor = self.cursor._replace(c=max(through, self.cursor.c))
        self.skipped += lost
        return lost

    def _settle(self, c: Position) -> None:
        if c <= self.cursor.c:
            return
        self.index += local_messages(self.log, self.cursor.c, c)
        if not self.marks or self.marks[-1][0] != c.ledger:
            if len(self.marks) >= MARKS_MAX:
                del self.marks[1 : MARKS_MAX // 2 : 2]
            self.marks.append((c.ledger, c.entry, self.index))
        else:
            self.marks[-1] = (c.ledger, c.entry, self.index)

    def learn(self, watermark: Position) -> LinkCursor | None:
        """The destination reported its persisted watermark; returns the cursor to rewind to, if it lost entries."""
        return chain.learn(self.coming, watermark, self.start)

    def stored(self, cursor: LinkCursor) -> None:
        """The store has this cursor."""
        self.durable = cursor
        # A move whose own store failed may have been stored along with something else: what is durable counts.
        if self.rewinding is None and cursor.gen > self.cursor.gen:
            self.rewound(cursor)
        elif self.rewinding is None and cursor.c > self.cursor.c:
            self.jumped(cursor)

    def rewound(self, cursor: LinkCursor) -> int:
        """A rewind is durable: use it. Returns the number of messages that are no longer here (a declared gap)."""
        self.durable = cursor
        self.index = self._index_at(cursor.c)
        self.marks = [mark for mark in self.marks if (mark[0], mark[1]) <= cursor.c] or self.marks[:1]
        self.cursor = cursor
        self.paced_to = cursor.c  # entries that are sent again count again
        if self.rewinding == cursor:
            self.rewinding = None
        return self.note_trimmed()

    def _index_at(self, c: Position) -> int:
        """The index after a position: from the log if that is retained, else from the last mark before."""
        first = self.log.first
        if first != NONE and c >= self.log.position_before(first):
            return index_after(self.log, c)
        return max((index for ledger, entry, index in self.marks if (ledger, entry) <= c), default=0)

    def note_trimmed(self) -> int:
        """Ledgers were deleted: entries that were not settled are lost to this link. C jumps over them, S stays.

        See docs/design/links.md#gaps.

        Returns:
            How many messages.
        """
        first = self.log.first
        if first == NONE or self.cursor.c >= Position(first.ledger, first.entry - 1):
            return 0
        index = index_after(self.log, Position(first.ledger, first.entry - 1))
        lost = index - self.index
        if lost <= 0:
            return 0
        self.gap += lost
        self.index = index
        self.cursor = self.cursor._replace(c=Position(first.ledger, first.entry - 1))
        return lost

    def recount(self) -> int:
        """After a start: entries at or below C that were stored when its record was on its way already (`jump_record`).

        Returns:
            How many messages, lost to this link like those that the record counts.
        """
        first, c = self.log.first, self.cursor.c
        if first == NONE or c < self.log.position_before(first):
            return 0
        lost = index_after(self.log, min(c, self.log.last)) - self.index
        if lost <= 0:
            return 0
        self.gap += lost
        self.index += lost
        return lost

    # ------------------------------------------------------------------------------------------------ foreign watermark

    def overtaken(self, watermark: Position, *, foreign: bool = False) -> bool:
        """Whether the destination holds positions of an earlier data folder of this cluster that are not below its log.

        See docs/design/links.md#ledger-ids-grow.

        Args:
            watermark: what it persisted.
            foreign: it says so itself, because this cluster's uuid is new to it; else the log must end below.
        """
        return watermark > self.coming.c and (foreign or watermark > self.log.last)

    def jump_record(self, watermark: Position) -> tuple[LinkCursor, LinkTopicRecord]:
        """The cursor that moves past a foreign watermark, and the record that has to be durable before it is used.

        It continues from the rewind that is on its way: its generation stays, and entries that the rewind took back do not
        count as sent.
        """
        start = self.coming
        target = LinkCursor(watermark, start.s, start.gen)
        lost = local_messages(self.log, start.c, min(self.log.last, watermark))
        record = self.record(target)
        index = self._index_at(start.c) if start.c < self.cursor.c else self.index
        record.index, record.gap = index + lost, self.gap + lost
        return target, record

    def jumped(self, target: LinkCursor) -> int:
        """It is durable: nothing at or below a foreign watermark can be sent, it would be taken for known.

        Returns:
            Messages that were published here at or below, so far.
        """
        if self.floor == NONE:
            self.counted = self.cursor.c
        self.floor = target.c
        self.cursor = self.durable = target
        if self.rewinding == target:
            self.rewinding = None
        return self.count_unsendable()

    def count_unsendable(self) -> int:
        """Count what is confirmed at or below a foreign watermark and not counted yet; returns how many messages."""
        if self.floor == NONE:
            return 0
        end = min(self.log.last, self.floor)
        lost = local_messages(self.log, self.counted, end)
        self.counted = max(self.counted, end)
        if self.log.last > self.floor:
            self.floor = NONE
        self.gap += lost
        self.index += lost
        return lost

    def pass_over(self) -> bool:
        """Settle the entries right after C that can never go over a link; whether C moved.

        No task is needed to judge entries that came over a link themselves, markers of other clusters included. In a mesh every
        entry would otherwise cost a read on each of the other links of the clusters it reached. C moves, S does not
        (docs/design/links.md#sent-position). A task that carries the same entries at this time commits at or after the new C
        and changes nothing.
        """
        c = self.cursor.c
        if self.rewinding is not None or self.floor != NONE or c >= self.end:
            return False
        for ledger in self.log.ledger_infos():
            if ledger.ledger < c.ledger:
                continue
            first = c.entry + 1 if ledger.ledger == c.ledger else 0
            if first < ledger.entries and MAY_GO[ledger.flags[first]]:
                break  # the common case, without looking at a whole backlog
            goes = ledger.flags[first:].translate(MAY_GO).find(1)
            end = ledger.entries if goes < 0 else first + goes
            if end > first:
                c = Position(ledger.ledger, end - 1)
            if goes >= 0:
                break
        if c == self.cursor.c:
            return False
        self.cursor = self.cursor._replace(c=c)
        return True

    # ------------------------------------------------------------------------------------------------------- it stops

    def block(
        self,
        kind: str,
        reason: str,
        now_ms: int,
        position: Position = NONE,
        *,
        here: bool = False,
        conflict: pb.GeoSchemaConflict | None = None,
    ) -> bool:
        """The topic is blocked; whether that is news.

        Args:
            kind, reason, position, conflict: see `Blocked`.
            now_ms: the clock.
            here: the cause is at the source, which waits a bounded, doubling time before it looks again.
        """
        before = self.blocked
        same = before is not None and before.kind == kind
        failures = before.failures + 1 if before is not None and same else 1
        retry_ms = now_ms + int(pause(failures, RETRY_MS_MIN, RETRY_MS_MAX)) if here else 0
        since = before.since_ms if before is not None and same else now_ms
        if position == NONE and before is not None and same:
            position = before.position
        self.blocked = Blocked(kind, reason, since, position, retry_ms, failures, conflict)
        return not same or (before is not None and before.reason != reason)

    def unblock(self) -> bool:
        """The cause is gone; whether there was one."""
        was, self.blocked = self.blocked is not None, None
        return was

    def validate(self) -> None:
        """Check what must hold after every step."""
        c, s, _ = self.cursor
        assert s <= c, f"{self.name}: S {s} above C {c}"
        assert self.low <= c, f"{self.name}: retention may pass the cursor"
        assert min(self.gap, self.skipped, self.index) >= 0
        if self.durable is not None and self.rewinding is None:
            assert self.durable.gen <= self.cursor.gen, f"{self.name}: an older generation is in use than is durable"
            assert self.durable.gen < self.cursor.gen or self.durable.c <= self.cursor.c, (
                f"{self.name}: durable C ahead"
            )
