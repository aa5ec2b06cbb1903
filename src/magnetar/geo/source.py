"""The source side of a link: the broker from which entries go to one other cluster.

    creation   the topic's transaction holds the link's cursor, so nothing published can be missed
    poll       GEO_TOPICS: cursors, what is pending, what is blocked; as changes since a counter
    read       GEO_READ: what is for the link
    commit     GEO_COMMIT: progress (volatile at once, durable soon) and the destination's watermarks; a watermark below
               S is a rewind, which is used only when it is durable
    trimming   retention asks `durable_low`; what was deleted past the link is counted
    operating  pause, resume, throttle, skip
    ending     a cursor without link or policy is an orphan: it holds its data for `orphan_ms`, or until deleted by name

The machine has no clock and no I/O: it puts effects into the outbox; what the store has is known when it says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.broker.effects import Note, Outbox, Store, Timer
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import LATEST, NONE, LinkCursor, Position
from magnetar.geo.linktopic import LinkTopic
from magnetar.geo.policy import local_messages, may_go
from magnetar.geo.polling import Changes, Lease, Polls
from magnetar.geo.reading import Reading, ReadReply, geo, place
from magnetar.geo.records import LINK_PREFIX, LinkRecord, LinkTopicRecord, link_cursor_key, link_cursors
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb

FLUSH_MS: Final = 100
"""Cursors that moved are stored together this often: a crash sends again at most what was confirmed meanwhile, and the
destination knows it. Retention waits for the stored ones."""

RETRY_MS: Final = 500
"""After a store that failed."""

READ_BYTES_MAX: Final = 8 << 20
POLL_MS_MAX: Final = 20_000
ORPHAN_MS: Final = 7 * 24 * 3_600_000

TopicsReply = Callable[[pb.CommandGeoTopicsResponse], None]
CommitReply = Callable[[pb.CommandGeoCommitResponse], None]
Done = Callable[[str], None]
Puts = dict[str, bytes]


class Skip(NamedTuple):
    """What a skip gives up in one topic.

    Attributes:
        topic: full name.
        through: the last position that is given up.
        messages: published here and not settled yet; an upper bound, as some may not be for this cluster.
        entries, bytes: of all that is stepped over.
    """

    topic: str
    through: Position
    messages: int
    entries: int
    bytes: int


class LinkSource:
    """One outgoing link.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        to: the target cluster.
        boot: clock at this broker's start, ms; never the same twice.
        partitions: of the partitioned topic that a topic belongs to, 0 for none.
        linked: whether a link to `to` is configured; else everything found here is an orphan.
        read_bytes_max, poll_ms_max, orphan_ms: limits, see `core.config.BrokerConfig`.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        uuid: str,
        to: str,
        boot: int,
        partitions: Callable[[str], int] = lambda _topic: 0,
        linked: bool = True,
        read_bytes_max: int = READ_BYTES_MAX,
        poll_ms_max: int = POLL_MS_MAX,
        orphan_ms: int = ORPHAN_MS,
    ) -> None:
        self.outbox = outbox
        self.cluster, self.uuid, self.to, self.linked = cluster, uuid, to, linked
        self.topics: dict[str, LinkTopic] = {}
        self.record = LinkRecord()
        self.changes = Changes(boot)
        self.lease = Lease(outbox)
        self.polls = Polls(outbox, self.changes, self.lease)
        self.trouble, self.trouble_reason, self.trouble_since_ms, self.throttled = "", "", outbox.now_ms, False
        self._partitions = partitions
        self._read_bytes_max, self._poll_ms_max, self._orphan_ms = read_bytes_max, poll_ms_max, orphan_ms
        self._stored: dict[str, LinkTopicRecord] = {}
        self._dirty: set[str] = set()
        self._flushing = False

    # ------------------------------------------------------------------------------------------- which topics are on it

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start; `added` follows for every topic there is.

        Raises:
            StorageError: a record is damaged.
        """
        key = LINK_PREFIX + self.to
        if key in stored:
            self.record = LinkRecord.decode(key, stored[key])
        self._stored = dict(link_cursors(stored, self.to))

    def creation(self, topic: str, incarnation: int) -> Puts:
        """What the transaction that creates a topic has to hold, so that the link begins with its first message."""
        record = LinkTopicRecord(incarnation=incarnation, c=NONE, s=NONE, gen=1, marks=[(-1, -1, 0)])
        return {link_cursor_key(topic, self.to): record.encode()}

    def added(self, topic: str, log: TopicLog, *, wanted: bool, latest: bool = False, created: bool = False) -> None:
        """A topic exists (durably): at start, or just created.

        Args:
            topic, log: which.
            wanted: whether its policy names the target and a link leads there.
            latest: where the link begins if it has no cursor yet (a link configured after the topic was made).
            created: just now, with `creation` in its transaction.
        """
        record = self._stored.pop(topic, None)
        if created and wanted:
            state = LinkTopic.create(topic, log, latest=False)
            state.durable = state.cursor
        elif record is not None and record.incarnation == log.incarnation:
            state = LinkTopic.load(topic, log, record)
        elif wanted:
            state = LinkTopic.create(topic, log, latest=latest)
            self._dirty.add(topic)
        else:
            return
        state.wanted = wanted
        self.topics[topic] = state
        if wanted == bool(state.orphan_since_ms):
            state.orphan_since_ms = 0 if wanted else max(1, self.outbox.now_ms)
            self._dirty.add(topic)
        if state.cursor.c > log.last:
            # Settled past the end: a foreign watermark was met before the restart, or all entries are deleted. What comes
            # next must not be taken for settled.
            log.roll(self.outbox.now_ms, above=state.cursor.c.ledger)
        # A crash may have come between a deletion and the count of what it took from the link.
        if lost := state.note_trimmed():
            self._gap(state, lost, "were deleted before they could be sent")
            self._dirty.add(topic)
        if topic in self._dirty:
            self.flush()
        self._changed(state)

    def rewanted(
        self, topic: str, log: TopicLog, wanted: bool, *, latest: bool = False
    ) -> tuple[Puts, Callable[[], None]]:
        """A policy changes: whether this topic's entries go to the target.

        Returns:
            What the transaction of the change has to hold, and what to call when it is durable.
        """
        before = self.topics.get(topic)
        if before is None:
            if not wanted:
                return {}, _nothing
            state = LinkTopic.create(topic, log, latest=latest)
        else:
            state = before
            if state.wanted == wanted:
                return {}, _nothing
        since = 0 if wanted else max(1, self.outbox.now_ms)
        record = state.record()
        record.orphan_since_ms = since

        def apply() -> None:
            state.wanted, state.orphan_since_ms = wanted, since
            if before is None:
                state.durable = record.cursor
                self.topics[topic] = state
            self._changed(state)

        return {link_cursor_key(topic, self.to): record.encode()}, apply

    def copies(self, log: TopicLog, *, latest: bool) -> int:
        """How many messages a link that begins now would copy (for the one who changes the policy); an upper bound."""
        state = LinkTopic.create(log.name, log, latest=latest)
        return state.lag_messages()

    def deletion(self, topic: str) -> tuple[str, ...]:
        """Keys that the transaction that deletes a topic has to delete."""
        return (link_cursor_key(topic, self.to),) if topic in self.topics else ()

    def removed(self, topic: str) -> None:
        """The topic is gone (durably)."""
        if self.topics.pop(topic, None) is not None:
            self._dirty.discard(topic)
            self.changes.touch(topic)
            self.polls.news()

    def wants(self, topic: str) -> bool:
        """Whether the topic's entries go over this link."""
        state = self.topics.get(topic)
        return state is not None and state.wanted

    # --------------------------------------------------------------------------------------------- what the topic tells

    def confirmed(self, topic: str) -> None:
        """Entries became readable."""
        state = self.topics.get(topic)
        if state is not None:
            if lost := state.count_unsendable():
                self._gap(state, lost, f"are at or below what {self.to} holds of an earlier life: they cannot be sent")
                self._touch_record(state)
            if state.pass_over():
                self._touch_record(state)
                if not lost and state.cursor.c >= state.log.last:
                    return  # nothing for the pipeline to do: it is not woken
            self._changed(state)

    def touched(self, topic: str) -> None:
        """Something else that the pipeline is told of changed: the number of partitions."""
        state = self.topics.get(topic)
        if state is not None:
            self._changed(state)

    def durable_low(self, topic: str) -> Position | None:
        """Retention may delete up to here as far as this link goes (A7); None: the link holds nothing."""
        state = self.topics.get(topic)
        return None if state is None else state.low

    def trimmed(self, topic: str) -> None:
        """Ledgers of the topic were deleted: count what the link had not sent."""
        state = self.topics.get(topic)
        if state is None:
            return
        lost = state.note_trimmed()
        if lost:
            self._gap(state, lost, "were deleted before they could be sent")
            self._touch_record(state)
            self._changed(state)

    # ------------------------------------------------------------------------------------------------------------- poll

    def poll(self, connection: int, request: pb.CommandGeoTopics, reply: TopicsReply) -> None:
        """GEO_TOPICS: answered at once if there is news, else within `wait_ms` (at most `poll_ms_max`)."""
        known = self.changes.known(request.counter, request.boot)
        granted = self.lease.ask(request.pipeline, request.lease_ms)
        wait_ms = min(request.wait_ms, self._poll_ms_max)

        def answer() -> None:
            leased = self.lease.ask(request.pipeline, request.lease_ms)
            reply(self._topics(request.request_id, known, leased))

        if known == 0 or known < self.changes.counter or not wait_ms:
            reply(self._topics(request.request_id, known, granted))
        else:
            self.polls.hold(connection, known, self.outbox.now_ms + wait_ms, request.pipeline, answer)

    def disconnected(self, connection: int) -> None:
        """A connection is gone; its poll is forgotten."""
        self.polls.cancel(connection)

    def _topics(self, request_id: int, known: int, leased: bool) -> pb.CommandGeoTopicsResponse:
        response = pb.CommandGeoTopicsResponse(
            request_id=request_id, counter=self.changes.counter, uuid=self.uuid, lease=leased,
            lease_holder=self.lease.holder, paused=self.record.paused or not self.linked,
            throttle_bytes_per_second=self.record.throttle_bytes_per_s, boot=self.changes.boot,
        )  # fmt: skip
        names: Iterable[str] = self.changes.since(known) if known else self.topics
        for name in names:
            state = self.topics.get(name)
            if state is not None and state.wanted:
                self._describe(state, response.topics.add())
            elif known:
                response.topics.add(
                    topic=name, incarnation=0, partitions=0, cursor=pb.GeoCursor(c=geo(NONE), s=geo(NONE), gen=0),
                    last=geo(NONE), pending_entries=0, pending_bytes=0, removed=True,
                )  # fmt: skip
        return response

    def _describe(self, state: LinkTopic, told: pb.GeoTopicState) -> None:
        entries, size, oldest = state.pending()
        c, s, gen = state.cursor
        told.topic, told.incarnation, told.partitions = state.name, state.log.incarnation, self._partitions(state.name)
        told.cursor.c.ledger, told.cursor.c.entry = c
        told.cursor.s.ledger, told.cursor.s.entry = s
        told.cursor.gen = gen
        told.last.ledger, told.last.entry = state.last
        told.pending_entries, told.pending_bytes, told.oldest_ms = entries, size, max(0, oldest)
        told.gap, told.paused, told.learned = state.gap, state.paused, state.learned
        if state.blocked is not None:
            told.blocked, told.reason = state.blocked.kind, state.blocked.reason

    # ------------------------------------------------------------------------------------------------------------- read

    def read(self, request: pb.CommandGeoRead, reply: ReadReply) -> None:
        """GEO_READ for this link."""
        state = self.topics.get(request.topic)
        if state is None or not state.wanted or state.paused or self.record.paused or not self.linked:
            why = "is paused" if state is not None and state.wanted else f"is not on the link to {self.to}"
            reply(_empty(request, f"topic {request.topic} {why}"), ())
            return
        stop = state.blocked
        if stop is not None and stop.retry_at_ms > self.outbox.now_ms:
            response = _empty(request, stop.reason)
            response.blocked = stop.kind
            reply(response, ())
            return
        after = place(request.after)

        def failed(position: Position, error: str) -> None:
            reason = f"entry {position} cannot be read: {error}"
            if state.block("corrupt", reason, self.outbox.now_ms, position, here=True):
                self._note("error", f"{state.name} is blocked (corrupt): {reason}")
            self._changed(state)

        def answered(response: pb.CommandGeoReadResponse, buffers: Sequence[bytes]) -> None:
            stop = state.blocked
            if stop is not None and stop.retry_at_ms and place(response.end) >= stop.position and state.unblock():
                self._changed(state)
            reply(response, buffers)

        Reading(
            self.outbox, state.log, cluster=self.cluster, to=self.to, request_id=request.request_id, after=after,
            up_to=place(request.up_to) if request.HasField("up_to") else None,
            bytes_max=min(request.bytes_max, self._read_bytes_max), reply=answered, failed=failed,
        ).start()  # fmt: skip

    # ----------------------------------------------------------------------------------------------------------- commit

    def commit(self, request: pb.CommandGeoCommit, reply: CommitReply) -> None:
        """GEO_COMMIT: progress and watermarks; answered when every rewind that follows from it is durable."""
        response = pb.CommandGeoCommitResponse(request_id=request.request_id)
        waiting = 1

        def stored(error: str) -> None:
            nonlocal waiting
            waiting -= 1
            if error:
                response.error, response.message = int(ErrorCode.PERSISTENCE), error
            if not waiting:
                reply(response)

        if request.HasField("trouble") or request.HasField("throttled"):
            self._note_trouble(request)
        for commit in request.commits:
            if not self._commit_topic(commit):
                response.ignored.append(commit.topic)
        for learnt in request.learned:
            if self._learn_topic(learnt, stored):
                waiting += 1
        stored("")

    def _note_trouble(self, request: pb.CommandGeoCommit) -> None:
        self.throttled = request.throttled
        if request.HasField("trouble") and (request.trouble, request.reason) != (self.trouble, self.trouble_reason):
            if request.trouble != self.trouble:
                self.trouble_since_ms = self.outbox.now_ms
            self.trouble, self.trouble_reason = request.trouble, request.reason

    def _commit_topic(self, commit: pb.GeoCommitTopic) -> bool:
        state = self.topics.get(commit.topic)
        if state is None:
            return False
        cursor = LinkCursor(place(commit.cursor.c), place(commit.cursor.s), commit.cursor.gen)
        moved = state.commit(commit.incarnation, cursor)
        present = commit.incarnation == state.log.incarnation and cursor.gen == state.cursor.gen
        # What is said of a point before C, which a skip has left behind, is no news of the present.
        if present and commit.HasField("blocked") and cursor.c >= state.cursor.c:
            position = place(commit.position) if commit.HasField("position") else NONE
            self._told_blocked(state, commit.blocked, commit.reason, position)
        elif moved and state.blocked is not None and state.blocked.position <= cursor.c and not commit.blocked:
            state.unblock()
        if moved:
            self._touch_record(state)
            self._changed(state)
        return moved or (present and cursor.c <= state.cursor.c)

    def _told_blocked(self, state: LinkTopic, kind: str, reason: str, position: Position) -> None:
        if not kind:
            changed = state.unblock()
        elif changed := state.block(kind, reason, self.outbox.now_ms, position):
            self._note("warning", f"{state.name} is blocked ({kind}): {reason}")
        if changed:
            self._changed(state)

    def _learn_topic(self, learnt: pb.GeoLearnTopic, stored: Done) -> bool:
        """Take a destination's watermark; True if a rewind is being stored, which will call `stored`."""
        state = self.topics.get(learnt.topic)
        if state is None or learnt.incarnation != state.log.incarnation:
            return False
        if learnt.HasField("blocked"):
            self._told_blocked(state, learnt.blocked, learnt.reason, NONE)
        elif state.blocked is not None and state.blocked.kind in ("policy", "partitions", "identity"):
            self._told_blocked(state, "", "", NONE)
        if learnt.gen and learnt.gen != state.cursor.gen:
            return False
        watermark = place(learnt.watermark)
        if state.learned != learnt.counter:
            state.learned = learnt.counter
            self._changed(state)
        if state.overtaken(watermark, foreign=learnt.foreign):
            self._overtaken(state, watermark, stored)
            return True
        if learnt.foreign:
            return False
        target = None if learnt.blocked else state.learn(watermark)
        if target is None:
            return False
        self._rewind(state, target, stored)
        return True

    def _rewind(self, state: LinkTopic, target: LinkCursor, stored: Done) -> None:
        """The destination lost what was behind `target.s`: send it again (A2)."""

        def apply() -> None:
            lost = state.rewound(target)
            self._note("warning", f"{state.name} goes back to {target.s}: the destination lost what was behind it")
            if lost:
                self._gap(state, lost, "are missing there and were already deleted here")
                self._touch_record(state)

        self._move(state, target, state.record(target), apply, stored)

    def _overtaken(self, state: LinkTopic, watermark: Position, stored: Done) -> None:
        """The log has to get above what the destination holds under this cluster's name (A8)."""
        last = state.log.last
        if watermark > last:
            state.log.roll(self.outbox.now_ms, above=watermark.ledger)

        def apply() -> None:
            lost = state.jumped(target)
            self._note(
                "warning",
                f"{state.name} ended at {last}, but {self.to} holds {watermark} of an earlier life of {self.cluster}: "
                f"it goes on behind that; {lost} messages at or below cannot be sent",
            )

        target, record = state.jump_record(watermark)
        self._move(state, target, record, apply, stored)

    def _move(
        self, state: LinkTopic, target: LinkCursor, record: LinkTopicRecord, apply: Callable[[], None], stored: Done
    ) -> None:
        """Put the cursor somewhere else: durable first, then used."""
        state.rewinding = target

        def done(error: str) -> None:
            if self.topics.get(state.name) is state:
                if not error:
                    apply()
                else:
                    if state.rewinding == target:
                        state.rewinding = None
                    self._note("error", f"cannot store the new place of {state.name}: {error}")
                self._changed(state)
            stored(error)

        self.outbox.put(Store({link_cursor_key(state.name, self.to): record.encode()}, (), done))

    # ---------------------------------------------------------------------------------------------------------- storing

    def _touch_record(self, state: LinkTopic) -> None:
        self._dirty.add(state.name)
        self._schedule(FLUSH_MS)

    def _schedule(self, delay_ms: int) -> None:
        if not self._flushing:
            self._flushing = True
            self.outbox.put(Timer(self.outbox.now_ms + delay_ms, self._flush_due))

    def _flush_due(self, _now_ms: int) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Store all cursors that moved, in one transaction (also at shut-down)."""
        # A rewind on its way is stored by itself; until the store has said yes or no, nothing else may be.
        states = [state for name in sorted(self._dirty) if (state := self.topics[name]).rewinding is None]
        self._dirty -= {state.name for state in states}
        if self._dirty:
            self._schedule(FLUSH_MS)
        if not states:
            return
        puts = {}
        cursors: list[tuple[LinkTopic, LinkCursor]] = []
        for state in states:
            record = state.record()
            puts[link_cursor_key(state.name, self.to)] = record.encode()
            cursors.append((state, record.cursor))

        def stored(error: str) -> None:
            if error:
                self._note("error", f"cannot store {len(cursors)} cursors: {error}; trying again")
                self._again([state for state, _ in cursors])
                return
            for state, cursor in cursors:
                state.stored(cursor)

        self.outbox.put(Store(puts, (), stored))

    def _again(self, states: Iterable[LinkTopic]) -> None:
        self._dirty.update(state.name for state in states if self.topics.get(state.name) is state)
        self._schedule(RETRY_MS)

    def _changed(self, state: LinkTopic) -> None:
        state.changed = self.changes.touch(state.name)
        self.polls.news()

    def _gap(self, state: LinkTopic, lost: int, how: str) -> None:
        self._note("error", f"{lost} messages of {state.name} {how}")

    def _note(self, level: str, text: str) -> None:
        self.outbox.put(Note(level, f"link to {self.to}: {text}"))

    # -------------------------------------------------------------------------------------------------------- operating

    def _chosen(self, topic: str | None) -> list[LinkTopic]:
        if topic is None:
            return [state for state in self.topics.values() if state.wanted]
        state = self.topics.get(topic)
        if state is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic} is not on the link to {self.to}")
        return [state]

    def pause(self, topic: str | None, paused: bool, done: Done) -> None:
        """Stop or go on with the link, or with one topic; `done("")` when it is durable.

        Raises:
            BrokerError: the topic is not on this link.
        """
        states = self._chosen(topic)
        if not paused:
            for state in states:
                if state.unblock():
                    self._changed(state)
        if topic is None:
            self._store_link(LinkRecord(paused=paused, throttle_bytes_per_s=self.record.throttle_bytes_per_s), done)
            return
        state = states[0]
        state.paused = paused
        self._changed(state)
        self._store_now([state], done)

    def throttle(self, bytes_per_s: int | None, done: Done) -> None:
        """Limit the link's rate (None: no limit); `done("")` when it is durable."""
        self._store_link(LinkRecord(paused=self.record.paused, throttle_bytes_per_s=bytes_per_s or 0), done)

    def _store_link(self, record: LinkRecord, done: Done) -> None:
        before, self.record = self.record, record
        self.changes.bump()
        self.polls.news()

        def stored(error: str) -> None:
            if error and self.record is record:
                self.record = before
                self.changes.bump()
                self.polls.news()
            done(error)

        self.outbox.put(Store({LINK_PREFIX + self.to: record.encode()}, (), stored))

    def skip_preview(self, topic: str | None, through: Position | None) -> list[Skip]:
        """What `skip` with the same arguments gives up; topics that lose nothing are left out.

        Args:
            topic: None for every topic of the link.
            through: the last position; LATEST: all there is now; None: the entry that blocks the topic.

        Raises:
            BrokerError: the topic is not on this link.
        """
        found = []
        for state in self._chosen(topic):
            end = self._skip_end(state, through)
            if end > state.cursor.c:
                log, c = state.log, state.cursor.c
                messages = local_messages(log, c, end)
                found.append(Skip(state.name, end, messages, log.entries_between(c, end), log.bytes_between(c, end)))
        return found

    def skip(self, topic: str | None, through: Position | None, done: Done) -> int:
        """Settle entries without sending them: C moves, S does not; `done("")` when it is durable.

        Returns:
            How many messages were given up.

        Raises:
            BrokerError: the topic is not on this link, nothing would be skipped, or a rewind is just being stored.
        """
        skipped: list[LinkTopic] = []
        lost = 0
        chosen = self._chosen(topic)
        if any(state.rewinding is not None for state in chosen):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"the link to {self.to} is going back just now: try again")
        for state in chosen:
            end = self._skip_end(state, through)
            if end > state.cursor.c:
                lost += state.skip(end)
                state.unblock()
                skipped.append(state)
                self._changed(state)
        if not skipped:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"nothing to skip on the link to {self.to}")
        self._note("warning", f"{lost} messages of {len(skipped)} topics were skipped by command")
        self._store_now(skipped, done)
        return lost

    @staticmethod
    def _skip_end(state: LinkTopic, through: Position | None) -> Position:
        if through is None:
            if state.blocked is None:
                return state.cursor.c
            return state.blocked.position if state.blocked.position > state.cursor.c else _first_wanted(state)
        return min(through, state.log.last) if through != LATEST else state.log.last

    def _store_now(self, states: list[LinkTopic], done: Done) -> None:
        self._dirty -= {state.name for state in states}
        records = [(state, state.record()) for state in states]

        def stored(error: str) -> None:
            if error:
                self._again(states)
            else:
                for state, record in records:
                    state.stored(record.cursor)
            done(error)

        self.outbox.put(Store({link_cursor_key(s.name, self.to): record.encode() for s, record in records}, (), stored))

    # ---------------------------------------------------------------------------------------------------------- orphans

    def tick(self, now_ms: int) -> None:
        """Now and then: delete cursors that were orphans for too long."""
        for state in list(self.topics.values()):
            if state.orphan_since_ms and now_ms - state.orphan_since_ms >= self._orphan_ms:
                self._delete_orphan(state, _ignore)

    def delete_orphan(self, topic: str, done: Done) -> None:
        """Give up the data that a cursor without link or policy holds; `done("")` when it is durable.

        Raises:
            BrokerError: no such cursor, or it is in use.
        """
        state = self._chosen(topic)[0]
        if state.wanted:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"the cursor of the link to {self.to} in {topic} is in use")
        self._delete_orphan(state, done)

    def _delete_orphan(self, state: LinkTopic, done: Done) -> None:
        def stored(error: str) -> None:
            if not error and self.topics.get(state.name) is state and not state.wanted:
                self.removed(state.name)
                self._note("info", f"the orphaned cursor in {state.name} is deleted")
            done(error)

        self._dirty.discard(state.name)
        self.outbox.put(Store({}, (link_cursor_key(state.name, self.to),), stored))

    # ----------------------------------------------------------------------------------------------------------- status

    def status(self, request_id: int = 0) -> pb.CommandGeoStatusResponse:
        """GEO_STATUS: what is blocked and why."""
        response = pb.CommandGeoStatusResponse(request_id=request_id, gap=sum(s.gap for s in self.topics.values()))
        for state in self.topics.values():
            if (stop := state.blocked) is not None:
                told = response.blocked.add(
                    topic=state.name, kind=stop.kind, reason=stop.reason, since_ms=stop.since_ms
                )
                told.to = self.to
                if stop.position != NONE:
                    told.position.ledger, told.position.entry = stop.position
        return response

    def validate(self) -> None:
        """Check what must hold after every step."""
        for state in self.topics.values():
            state.validate()
        assert self._dirty <= self.topics.keys(), "a topic that is gone would be stored"


def _first_wanted(state: LinkTopic) -> Position:
    """The first entry behind C that may go: the one that blocks, when nobody named it."""
    position = state.log.next_after(state.cursor.c)
    while position is not None and not may_go(state.log.flags_at(position)):
        position = state.log.next_after(position)
    return position or state.cursor.c


def _empty(request: pb.CommandGeoRead, message: str) -> pb.CommandGeoReadResponse:
    return pb.CommandGeoReadResponse(request_id=request.request_id, end=request.after, message=message)


def _nothing() -> None:
    """Nothing changes."""


def _ignore(_error: str) -> None:
    """The next tick tries again."""
