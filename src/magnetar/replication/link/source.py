"""The source side of a link: the broker that sends entries to one other cluster.

    creation   the topic's transaction has the link's cursor, so no published message can be missed
    poll       GEO_TOPICS: cursors, backlogs and blocked topics, as changes since a counter
    read       GEO_READ: the entries for the link
    fetch      GEO_FETCH: the same for long batches, see `replication.link.fetching`
    commit     GEO_COMMIT: progress (volatile at once, durable soon) and the destination's watermarks; a watermark below
               S causes a rewind, which is used only when it is durable
    trimming   retention asks `durable_low`; messages that were deleted before the link sent them are counted
    operating  pause, resume, throttle, skip
    ending     a cursor without link or policy is an orphan: it holds its data for `orphan_ms`, or until deleted by name

The machine has no clock and no I/O: it puts effects into the outbox, and learns from events when the store has a record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import LEDGER_BELIEVED_MAX, LEDGER_MAX, NONE, LinkCursor, Position
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Outbox
from magnetar.replication.link.cursor_store import Done, LinkCursorStore
from magnetar.replication.link.fetch_sessions import FetchSessions
from magnetar.replication.link.fetching import Ended, FetchReply, FetchSession, Refusal
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.link_topics import LinkTopics
from magnetar.replication.link.operations import ORPHAN_MS, LinkOperations
from magnetar.replication.link.polling import Lease, Leases
from magnetar.replication.link.ports import SourceHost
from magnetar.replication.link.reading import Reading, ReadReply
from magnetar.replication.link.records import LinkRecord, LinkTopicRecord
from magnetar.replication.link_delivery import DeliveryTime
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import marks_message
from magnetar.wire.positions import position_from_proto, position_to_proto

READ_BYTES_MAX: Final = 8 << 20
POLL_MS_MAX: Final = 20_000

TopicsReply = Callable[[pb.CommandGeoTopicsResponse], None]
CommitReply = Callable[[pb.CommandGeoCommitResponse], None]
Puts = dict[str, bytes]


def _refuse_none(_topic: str) -> str:
    """Every topic may be replicated."""
    return ""


class LinkSource:
    """One outgoing link.

    Args:
        outbox: the broker's.
        cluster, uuid: this one.
        to: the target cluster.
        boot: clock at this broker's start, ms; never the same twice.
        host: the broker.
        linked: whether a link to `to` is configured; else everything found here is an orphan.
        read_bytes_max, poll_ms_max, orphan_ms: limits, see `core.settings.BrokerConfig`.

    Attributes:
        topics: those that have a cursor for this link, by name, orphans included.
        operations: what operators do with the link.
        lease: of pipelines that may replicate everything.
        delivery: how long the link needs for an entry.
        trouble, trouble_reason, trouble_since_ms, throttled: what the pipeline reported of the whole link.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        cluster: str,
        uuid: str,
        to: str,
        boot: int,
        host: SourceHost,
        linked: bool = True,
        read_bytes_max: int = READ_BYTES_MAX,
        poll_ms_max: int = POLL_MS_MAX,
        orphan_ms: int = ORPHAN_MS,
    ) -> None:
        self.outbox = outbox
        self.to = to
        self.cluster, self.uuid, self.linked = cluster, uuid, linked
        self.trouble, self.trouble_reason, self.trouble_since_ms, self.throttled = "", "", outbox.now_ms, False
        self._host = host
        self.delivery = DeliveryTime()
        self.topics: dict[str, LinkTopic] = {}
        self._read_bytes_max, self._poll_ms_max = read_bytes_max, poll_ms_max
        self._sessions = FetchSessions(self._fetch_session)
        self._topics = LinkTopics(outbox, to, boot, self.topics, self._sessions)
        self.changes, self._polls = self._topics.changes, self._topics.polls
        self._leases = Leases(outbox)
        self.lease = self._leases.whole
        self._cursors = LinkCursorStore(outbox, self._topics)
        self.operations = LinkOperations(outbox, self._topics, self._cursors, self._rebased, orphan_ms)

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start; `added` follows for every topic there is.

        Raises:
            StorageError: a record is damaged.
        """
        self.operations.load(stored)
        self._cursors.load(stored)

    @property
    def record(self) -> LinkRecord:
        """The operator's settings for the whole link."""
        return self.operations.record

    @property
    def lost(self) -> tuple[int, int]:
        """Gap and skipped messages since the broker's start; neither ever falls."""
        return self._topics.lost

    def lost_by(self, losers: Iterable[LinkTopic]) -> tuple[int, int]:
        """The same, if these are all topics that have lost something; some may be gone since."""
        return self._topics.lost_by(losers)

    def _rebased(self, topic: str) -> None:
        self._host.rebased(topic, self.to)

    def _gap(self, state: LinkTopic, lost: int, how: str) -> None:
        self._topics.note("error", f"{lost} messages of {state.name} {how}")
        self._rebased(state.name)

    # ------------------------------------------------------------------------------------------- which topics are on it

    def creation(self, topic: str, incarnation: int) -> Puts:
        """The records for the transaction that creates a topic, so that the link begins with its first message."""
        record = LinkTopicRecord(incarnation=incarnation, c=NONE, s=NONE, gen=1, marks=[(-1, -1, 0)])
        return {self._cursors.key(topic): record.encode()}

    def added(self, topic: str, log: TopicLog, *, wanted: bool, latest: bool = False, created: bool = False) -> None:
        """A topic exists (durably): at start, or just created.

        Args:
            topic, log: which.
            wanted: whether its policy names the target and a link leads there.
            latest: where the link begins if it has no cursor yet (a link configured after the topic was made).
            created: just now, with `creation` in its transaction.
        """
        record = self._cursors.found(topic)
        dirty = False
        if created and wanted:
            state = LinkTopic.create(topic, log, latest=False)
            state.durable = state.cursor
        elif record is not None and record.incarnation == log.incarnation:
            state = LinkTopic.load(topic, log, record)
        elif wanted:
            state = LinkTopic.create(topic, log, latest=latest)
            dirty = True
        else:
            return
        state.wanted = wanted
        self.topics[topic] = state
        if wanted == bool(state.orphan_since_ms):
            state.orphan_since_ms = 0 if wanted else max(1, self.outbox.day_ms)
            dirty = True
        if state.cursor.c > log.last:
            # Settled past the end: a foreign watermark was met before the restart, or all entries are deleted. What comes
            # next must not be taken for settled.
            log.roll(self.outbox.now_ms, above=state.cursor.c.ledger)
        # A crash may have come between a deletion and the count of what it took from the link.
        if lost := state.note_trimmed():
            self._gap(state, lost, "were deleted before they could be sent")
            dirty = True
        if lost := state.recount():
            self._gap(
                state,
                lost,
                f"are at or below the positions that {self.to} has from an earlier data folder: they cannot be sent",
            )
            dirty = True
        if dirty:
            self._cursors.flush_with(state)
        self._topics.changed(state)

    def moved(self, topic: str, record: LinkTopicRecord) -> None:
        """A topic continues under this name, with the position that it has on the link (durably); `added` follows."""
        self._cursors.keep(topic, record)

    def removed(self, topic: str) -> None:
        """A topic is gone (durably)."""
        self._topics.removed(topic)
        self._cursors.removed(topic)

    def rewanted(
        self, topic: str, log: TopicLog, wanted: bool, *, latest: bool = False
    ) -> tuple[Puts, Callable[[], None]]:
        """A policy changes: whether this topic's entries go to the target.

        Returns:
            The records for the transaction of the change, and the function to call when it is durable.
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
        since = 0 if wanted else max(1, self.outbox.day_ms)
        record = state.record()
        record.orphan_since_ms = since

        def apply() -> None:
            begins = (wanted and not state.wanted) or before is None
            state.wanted, state.orphan_since_ms = wanted, since
            if before is None or topic not in self.topics:
                state.durable = record.cursor
                self.topics[topic] = state  # also when the orphan's deletion came between
            self._topics.changed(state)
            if begins:
                self._rebased(topic)

        return {self._cursors.key(topic): record.encode()}, apply

    def late(self, topic: str, log: TopicLog, *, wanted: bool, latest: bool) -> None:
        """A change of policies is in force: it holds too for a topic that was made while it was on its way."""
        state = self.topics.get(topic)
        if state is None:
            self.added(topic, log, wanted=wanted, latest=latest)
        elif state.wanted != wanted:
            state.wanted, state.orphan_since_ms = wanted, 0 if wanted else max(1, self.outbox.day_ms)
            self._cursors.moved(state)
            self._topics.changed(state)
        else:
            return
        if wanted:
            self._rebased(topic)

    def copies(self, log: TopicLog, *, latest: bool) -> int:
        """How many messages a link that begins now would copy (for the one who changes the policy); an upper bound."""
        state = LinkTopic.create(log.name, log, latest=latest)
        return state.lag_messages()

    def deletion(self, topic: str) -> tuple[str, ...]:
        """Keys that the transaction that deletes a topic has to delete."""
        return (self._cursors.key(topic),) if topic in self.topics else ()

    def incarnation_of(self, topic: str) -> int:
        """The incarnation of a topic in this link's target, as answers to this link's handshakes have shown since the start.

        0: none has shown it.
        """
        state = self.topics.get(topic)
        return state.there if state is not None else 0

    def carries(self, topic: str) -> bool:
        """Whether a pipeline is at work that brings the topic's entries to the target, as far as is known here."""
        state = self.topics.get(topic)
        works = self.linked and self.lease.live and not self.record.paused and not self.trouble
        return works and state is not None and state.wanted and not state.paused and state.blocked is None

    def wants(self, topic: str) -> bool:
        """Whether the topic's entries go over this link."""
        state = self.topics.get(topic)
        return state is not None and state.wanted

    # --------------------------------------------------------------------------------------------- what the topic reports

    def confirmed(self, topic: str) -> None:
        """Entries became readable."""
        state = self.topics.get(topic)
        if state is not None:
            if lost := state.count_unsendable():
                self._gap(
                    state,
                    lost,
                    f"are at or below the positions that {self.to} has from an earlier data folder: they cannot be sent",
                )
                self._cursors.moved(state)
            if state.pass_over():
                self._cursors.moved(state)
                if not lost and state.cursor.c >= state.log.last:
                    self._sessions.changed(state)
                    return  # nothing for the pipeline to do: it is not woken
            if not self.delivery.follows and state.wanted and state.blocked is None:
                self.delivery.begin(topic, state.log.last, self.outbox.now_ms)
            self._topics.changed(state)

    def touched(self, topic: str) -> None:
        """Something else that a pipeline knows of a topic changed: the number of partitions."""
        state = self.topics.get(topic)
        if state is not None:
            self._topics.changed(state, urgent=True)

    def durable_low(self, topic: str) -> Position | None:
        """Retention may delete up to here as far as this link goes; None: the link holds nothing.

        See docs/design/links.md#durable-cursor.
        """
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
            self._cursors.moved(state)
            self._topics.changed(state)

    # ------------------------------------------------------------------------------------------------------------- rate

    def rate_of(self, topic: str) -> Rate | None:
        """The rate that a topic's messages go at; None: no limit, or the topic is not on this link."""
        state = self.topics.get(topic)
        return None if state is None else state.rate

    def set_rate(self, topic: str, rate: Rate | None) -> None:
        """The rate that a topic's messages go at from now on (policy `replicator-dispatch-rate`); None: no limit."""
        state = self.topics.get(topic)
        if state is not None and state.rate is not rate:
            state.rate, state.paced_to, state.due_ms = rate, state.cursor.c, 0
            self._topics.changed(state)

    # ---------------------------------------------------------------------------------------------------------- storing

    def tick(self, now_ms: int) -> None:
        """Now and then: delete cursors that were orphans for too long."""
        self.operations.tick(now_ms)

    def flush(self) -> None:
        """Store all cursors that moved (also at shut-down)."""
        self._cursors.flush()

    # ------------------------------------------------------------------------------------------------------------- poll

    def poll(self, connection: int, request: pb.CommandGeoTopics, reply: TopicsReply, *, narrow: str = "") -> None:
        """GEO_TOPICS: answered at once if there is news, else within `wait_ms` (at most `poll_ms_max`).

        Args:
            connection, request, reply: of the asker.
            narrow: its role, if that may replicate some topics only: it has a lease of its own.

        Raises:
            BrokerError: deletions since the counter are forgotten; the asker has to ask for everything, with 0.
        """
        known = self.changes.known(request.counter, request.boot)
        if known and known < self.changes.forgotten:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"link to {self.to}: too many topics are gone since counter {known}; ask with counter 0",
            )
        lease = self._leases.of(narrow)
        self._ask_lease(lease, connection, request)
        session = self._session(narrow)
        wait_ms = min(request.wait_ms, self._poll_ms_max)

        def answer() -> None:
            self._ask_lease(lease, connection, request)
            reply(self._answer(request, known, lease, self._session(narrow)))

        if known == 0 or known < self.changes.urgent or not wait_ms:
            reply(self._answer(request, known, lease, session))
        else:
            self._polls.hold(connection, known, self.outbox.now_ms + wait_ms, request.pipeline, answer, lease)

    @staticmethod
    def _ask_lease(lease: Lease, connection: int, request: pb.CommandGeoTopics) -> None:
        if lease.ask(request.pipeline, request.lease_ms) and request.pipeline:
            lease.connection = connection

    def disconnected(self, connection: int) -> None:
        """A connection is gone; its poll is forgotten."""
        self._polls.cancel(connection)
        self._leases.disconnected(connection)
        self._sessions.disconnected(connection)

    def _answer(
        self, request: pb.CommandGeoTopics, known: int, lease: Lease, session: FetchSession
    ) -> pb.CommandGeoTopicsResponse:
        leased = lease.holder == request.pipeline if request.pipeline else not lease.live
        response = pb.CommandGeoTopicsResponse(
            request_id=request.request_id, counter=self.changes.counter, uuid=self.uuid, lease=leased,
            lease_holder=lease.holder, paused=self.record.paused or not self.linked,
            throttle_bytes_per_second=self.record.throttle_bytes_per_s, boot=self.changes.boot,
        )  # fmt: skip
        nowhere = position_to_proto(NONE)
        names: Iterable[str] = self.changes.since(known) if known else self.topics
        for name in names:
            state = self.topics.get(name)
            if state is not None and state.wanted:
                report = response.topics.add()
                self._describe(state, report)
                session.describe(report)
            elif known:
                response.topics.add(
                    topic=name, incarnation=0, partitions=0, cursor=pb.GeoCursor(c=nowhere, s=nowhere, gen=0),
                    last=nowhere, pending_entries=0, pending_bytes=0, removed=True,
                )  # fmt: skip
        response.totals.CopyFrom(session.totals)
        return response

    def _describe(self, state: LinkTopic, report: pb.GeoTopicState) -> None:
        entries, size, oldest = state.pending(state.last)
        c, s, gen = state.cursor
        report.topic, report.incarnation, report.partitions = (
            state.name,
            state.log.incarnation,
            self._host.partitions_of(state.name),
        )
        report.cursor.c.ledger, report.cursor.c.entry = c
        report.cursor.s.ledger, report.cursor.s.entry = s
        report.cursor.gen = gen
        report.last.ledger, report.last.entry = state.last
        report.pending_entries, report.pending_bytes, report.oldest_ms = entries, size, max(0, oldest)
        report.gap, report.paused, report.learned = state.gap, state.paused, state.learned
        report.retained.extend(marks_message(self._host.retained(state.name)))
        if state.blocked is not None:
            report.blocked, report.reason = state.blocked.kind, state.blocked.reason

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
        up_to = min(position_from_proto(request.up_to), state.last) if request.HasField("up_to") else state.last
        after = position_from_proto(request.after)
        self._read_topic(state, after, up_to, request.bytes_max, reply, request.request_id)

    def _start_reading(self, state: LinkTopic, after: Position, bytes_max: int, reply: ReadReply) -> None:
        self._read_topic(state, after, state.last, bytes_max, reply)

    def _read_topic(
        self, state: LinkTopic, after: Position, up_to: Position, bytes_max: int, reply: ReadReply, request_id: int = 0
    ) -> None:
        state.read_ms = self.outbox.now_ms

        def failed(position: Position, error: str) -> None:
            reason = f"entry {position} cannot be read: {error}"
            if state.block("corrupt", reason, self.outbox.now_ms, position, here=True):
                self._topics.note("error", f"{state.name} is blocked (corrupt): {reason}")
            self._topics.changed(state)

        def answered(response: pb.CommandGeoReadResponse, buffers: Sequence[bytes]) -> None:
            stop = state.blocked
            if (
                stop is not None
                and stop.retry_at_ms
                and position_from_proto(response.end) >= stop.position
                and state.unblock()
            ):
                self._topics.changed(state)
            response.schema_numbering = self._host.schema_numbering(state.name)
            if self.delivery.mark(state.name, position_from_proto(response.end)):
                response.timed = True
            reply(response, buffers)

        Reading(
            self.outbox, state.log, cluster=self.cluster, to=self.to, request_id=request_id, after=after,
            up_to=up_to, bytes_max=min(bytes_max, self._read_bytes_max), reply=answered, failed=failed,
        ).start()  # fmt: skip

    # ------------------------------------------------------------------------------------------------------------ fetch

    def fetch(
        self,
        connection: int,
        request: pb.CommandGeoFetch,
        reply: FetchReply,
        *,
        refusal: Refusal = _refuse_none,
        narrow: str = "",
    ) -> None:
        """GEO_FETCH; `refusal`: see `FetchSession.fetch`, `connection` and `narrow`: as for `poll`."""
        self._session(narrow).fetch(connection, request, reply, refusal)

    def _session(self, narrow: str) -> FetchSession:
        """The fetch session of a role (see `FetchSessions.of`), which belongs to the pipeline that has its lease."""
        session, holder = self._sessions.of(narrow), self._leases.of(narrow).holder
        if holder:
            session.hand_to(holder)
        return session

    def _fetch_session(self) -> FetchSession:
        return FetchSession(
            self.outbox, self.topics, uuid=self.uuid, start=self._start_reading, stopped=self._stopped,
            rate=self._link_rate, wait_ms_max=self._poll_ms_max, bytes_max=self._read_bytes_max,
        )  # fmt: skip

    def _stopped(self) -> bool:
        return self.record.paused or not self.linked

    def _link_rate(self) -> int:
        return self.record.throttle_bytes_per_s

    # ----------------------------------------------------------------------------------------------------------- commit

    def commit(
        self,
        request: pb.CommandGeoCommit,
        reply: CommitReply,
        *,
        connection: int = 0,
        whole: bool = True,
        narrow: str = "",
    ) -> None:
        """GEO_COMMIT: progress, watermarks and grants; answered when every rewind that follows from it is durable.

        `connection`: over which it came; grants and revocations count over the newest one only (`FetchSession.commands`).
        `whole`: the sender may replicate everything. Else it says nothing of the whole link, nor of this cluster's earlier uuids.
        `narrow`: the role of one that may not.
        """
        response = pb.CommandGeoCommitResponse(request_id=request.request_id)
        waiting = 1

        def stored(error: str) -> None:
            nonlocal waiting
            waiting -= 1
            if error:
                response.error, response.message = int(ErrorCode.PERSISTENCE), error
            if not waiting:
                reply(response)

        if whole and (request.HasField("trouble") or request.HasField("throttled")):
            self._note_trouble(request)
        session = self._session(narrow)
        for commit in request.commits:
            if not self._commit_topic(commit, session):
                response.ignored.append(commit.topic)
        commands = bool(request.revoked or request.grants) and session.commands(request.pipeline, connection)
        for topic in request.revoked if commands else ():
            session.revoke(topic)
        for learnt in request.learned:
            if self._learn_topic(learnt, stored, whole):
                waiting += 1
        for grant in request.grants:
            if not (commands and session.grant(grant)):
                response.ignored.append(grant.topic)
        if request.HasField("totals") and session.add_totals(request.totals):
            self._topics.link_changed()
        response.counter = self.changes.counter
        stored("")

    def _note_trouble(self, request: pb.CommandGeoCommit) -> None:
        self.throttled = request.throttled
        if request.HasField("trouble") and (request.trouble, request.reason) != (self.trouble, self.trouble_reason):
            if request.trouble != self.trouble:
                self.trouble_since_ms = self.outbox.now_ms
            self.trouble, self.trouble_reason = request.trouble, request.reason

    def _commit_topic(self, commit: pb.GeoCommitTopic, session: FetchSession) -> bool:
        state = self.topics.get(commit.topic)
        if state is None or (commit.grant and not session.counts(commit.topic, commit.grant)):
            return False
        cursor = LinkCursor(
            position_from_proto(commit.cursor.c), position_from_proto(commit.cursor.s), commit.cursor.gen
        )
        moved = state.commit(commit.incarnation, cursor)
        present = commit.incarnation == state.log.incarnation and cursor.gen == state.cursor.gen
        # A report about a position before C, which a skip has given up, is outdated.
        if present and commit.HasField("blocked") and cursor.c >= state.cursor.c:
            position = position_from_proto(commit.position) if commit.HasField("position") else NONE
            conflict = commit.conflict if commit.HasField("conflict") else None
            self._blocked_reported(state, commit.blocked, commit.reason, position, conflict)
        elif moved and state.blocked is not None and state.blocked.position <= cursor.c and not commit.blocked:
            state.unblock()
        if commit.ended:
            session.end(commit.topic, commit.grant, Ended(commit.ended, commit.ended_reason))
        if moved:
            self._cursors.moved(state)
            self.delivery.confirmed(commit.topic, cursor.c, cursor.s, self.outbox.now_ms, long=bool(commit.grant))
        if moved or commit.ended:
            self._topics.changed(state)
        return moved or (present and state.rewinding is None and cursor.c <= state.cursor.c)

    def _blocked_reported(
        self,
        state: LinkTopic,
        kind: str,
        reason: str,
        position: Position,
        conflict: pb.GeoSchemaConflict | None = None,
    ) -> None:
        if not kind:
            changed = state.unblock()
        elif changed := state.block(kind, reason, self.outbox.now_ms, position, conflict=conflict):
            self._topics.note("warning", f"{state.name} is blocked ({kind}): {reason}")
        if changed:
            self._topics.changed(state)

    def _learn_topic(self, learnt: pb.GeoLearnTopic, stored: Done, whole: bool) -> bool:
        """Take a destination's watermark; True if a rewind is being stored, which will call `stored`."""
        state = self.topics.get(learnt.topic)
        if state is None or learnt.incarnation != state.log.incarnation:
            return False
        watermark = position_from_proto(learnt.watermark)
        if learnt.there <= LEDGER_MAX:
            # Handshakes may come late, and incarnations grow (but for a lost disk and a slow clock, decision 0020).
            state.there = max(state.there, learnt.there)
        if learnt.HasField("blocked"):
            self._blocked_reported(state, learnt.blocked, learnt.reason, NONE)
        elif watermark.ledger > LEDGER_BELIEVED_MAX and watermark > state.log.last:
            # Above it there would be no room for other ids, of any topic here.
            reason = (
                f"{self.to} holds {watermark} under the name of {self.cluster}, which no ledger here can have had: "
                f"delete the topic in {self.to}, and create it there again"
            )
            self._blocked_reported(state, "identity", reason, NONE)
            return False
        elif state.blocked is not None and state.blocked.kind in ("policy", "partitions", "identity"):
            self._blocked_reported(state, "", "", NONE)
        if learnt.gen and learnt.gen != state.coming.gen:
            return False  # of the past, also while the rewind that ended it is on its way to the store
        if state.learned != learnt.counter:
            state.learned = learnt.counter
            self._topics.changed(state)
        if state.overtaken(watermark, foreign=learnt.foreign):
            if not whole:
                return False
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
        """The destination lost the entries after `target.s`: send them again (docs/design/links.md#handshake)."""

        def apply() -> None:
            lost = state.rewound(target)
            self._topics.note(
                "warning", f"{state.name} goes back to {target.s}: the destination lost the entries after it"
            )
            if lost:
                self._gap(state, lost, "are missing there and were already deleted here")
                self._cursors.moved(state)
            self._rebased(state.name)

        self._cursors.move(state, target, state.record(target), apply, stored)

    def _overtaken(self, state: LinkTopic, watermark: Position, stored: Done) -> None:
        """The log has to get above what the destination holds under this cluster's name.

        See docs/design/links.md#ledger-ids-grow.
        """
        last = state.log.last
        if watermark > last:
            state.log.roll(self.outbox.now_ms, above=watermark.ledger)

        def apply() -> None:
            lost = state.jumped(target)
            self._cursors.moved(state)  # more may have been stored, and counted, than the durable record says
            self._topics.note(
                "warning",
                f"{state.name} ended at {last}, but {self.to} has {watermark} from an earlier data folder of {self.cluster}: "
                f"it continues after that; {lost} messages at or below it cannot be sent",
            )
            self._rebased(state.name)

        target, record = state.jump_record(watermark)
        self._cursors.move(state, target, record, apply, stored)

    # ----------------------------------------------------------------------------------------------------------- status

    def status(self, request_id: int = 0) -> pb.CommandGeoStatusResponse:
        """GEO_STATUS: the blocked topics, and the reasons."""
        response = pb.CommandGeoStatusResponse(request_id=request_id, gap=sum(s.gap for s in self.topics.values()))
        for state in self.topics.values():
            if (stop := state.blocked) is not None:
                blocked = response.blocked.add(
                    topic=state.name, kind=stop.kind, reason=stop.reason, since_ms=stop.since_ms
                )
                blocked.to = self.to
                if stop.position != NONE:
                    blocked.position.ledger, blocked.position.entry = stop.position
                if stop.conflict is not None:
                    blocked.conflict.CopyFrom(stop.conflict)
        return response

    def validate(self) -> None:
        """Check what must hold after every step."""
        self._topics.validate()
        self._cursors.validate()
        self._sessions.validate()


def _empty(request: pb.CommandGeoRead, message: str) -> pb.CommandGeoReadResponse:
    return pb.CommandGeoReadResponse(request_id=request.request_id, end=request.after, message=message)


def _nothing() -> None:
    """Nothing changes."""
