"""GEO_FETCH: the session of one pipeline at the source of a link, for long batches.

A short batch reads a planned range of each topic (`replication.link.reading`). A long batch asks for the next entries of any
topic. The source holds each question until there are entries, as in a long poll (docs/design/pipeline.md#long-batches).

    grant      the pipeline has compared a topic with the destination: from now on its entries may be handed out
    fetch      entries of granted topics, in the order in which they became readable
    commit     the position that the destination persisted; it counts only under the topic's present grant
    end        the grant is over: revoked, given back by the task, or no longer valid (another generation, deleted, blocked)

Why a grant has a number: when the destination loses entries, the pipeline compares the topic again. A confirmation from before
the loss that comes after this comparison would hide the loss. So the pipeline revokes the grant before it compares, and
confirmations under the old number are ignored. For the same reason every grant ends when another pipeline takes the link's lease:
that pipeline compares first.

A reader is one running task on one connection. A new reader begins at the cursors: another task, a later epoch, or the same task
on another connection (answers may have been lost with the first one). Entries that were handed out do not count as sent before
they are committed, so a reader may die at any point.

The machine has no clock and no I/O.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.rates import TokenBucket
from magnetar.effects.outbox import Outbox, Timer
from magnetar.replication.link.link_topic import Blocked, LinkTopic
from magnetar.replication.link.reading import ENTRIES_MAX, ReadReply
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto, position_to_proto

WINDOW_BYTES: Final = 32 << 20
"""Bytes handed out and not committed, if the reader asks for no other ceiling: 100 MB/s over a round trip of 300 ms. The task
holds as many in memory for a destination that does not answer. The last answer that begins below the ceiling may exceed it."""

PART_BYTES: Final = 128
"""A part counts this much in the window in addition to its entries: parts without entries have to be remembered as well."""

HELD_MAX: Final = 64
"""Questions of one reader that are held: over a wide area one for each answer that is on its way. When there are more, the oldest
is answered at once, empty."""

PARTS_MAX: Final = 256
"""Topics in one answer: its command stays small, and the loop is not blocked for longer than a millisecond."""

TOPICS_LOOKED_MAX: Final = 500
"""Topics examined in one turn, whether or not they have entries: about a millisecond. A new reader may have thousands."""

FORMER_MAX: Final = 64
"""Superseded readers of an epoch that are remembered: Spark tries a task a few times."""

TASKS_MAX: Final = 16
"""Tasks whose totals are remembered: two at a time, and those that Spark tries again."""

SPACING_MS_MIN: Final = 1
SPACING_MS_MAX: Final = 4
"""Least and largest spacing of answers: each answer costs a fixed amount in five processes, some 1 ms of processor in all. The
clock counts whole milliseconds, so answers are up to 1 ms further apart. With 2 to 6 ms a message waited 0.7 ms for its answer at
500 a second, and 3.5 ms at 1,000, which was the longest step of its way. 1 to 4 ms cost a tenth more of the processor at 1,000 a
second (docs/performance.md#long-batch)."""

SPACING_RATE: Final = 0.75
"""Entries per millisecond, since the last answer: from here on the spacing grows, and below it shrinks. The rate counts, and not
the size of an answer: that follows the spacing, so at 1,000 entries a second the spacing would be at either end by chance. At 750
a second two processors have nothing left for answers of single entries."""

FetchReply = Callable[[pb.CommandGeoFetchResponse, Sequence[bytes]], None]
Refusal = Callable[[str], str]
StartReading = Callable[[LinkTopic, Position, int, ReadReply], None]


class Ended(NamedTuple):
    """Why a topic's grant ended, for the pipeline: `kind` as in GeoCommitTopic.ended, or "gone"."""

    kind: str
    reason: str


@dataclass(slots=True)
class Granted:
    """A topic's grant.

    Attributes:
        number, incarnation, gen: as granted.
        blocked: the block at that time: the grant is a probe, and ends with the next block.
        sent: the last position handed out to the present reader; None: nothing yet.
        under_way: (last position, bytes) of the parts that were handed out and are not committed.
    """

    number: int
    incarnation: int
    gen: int
    blocked: Blocked | None = None
    sent: Position | None = None
    under_way: deque[tuple[Position, int]] = field(default_factory=deque)


class _Reader(NamedTuple):
    """The asker: one task that runs. `connection` is -1 when that is gone."""

    connection: int
    epoch: int
    number: int


_NO_READER: Final = _Reader(-1, -1, -1)


class _Held(NamedTuple):
    request: pb.CommandGeoFetch
    reply: FetchReply
    refusal: Refusal
    until_ms: int


class FetchSession:
    """The session of one pipeline.

    Args:
        outbox: the broker's.
        topics: of the link, by name.
        uuid: of this cluster.
        start: starts to read a topic's entries after a position, up to a number of bytes.
        stopped: whether the link is paused, or leads nowhere.
        rate: the link's limit in bytes per second; 0: none.
        wait_ms_max: a question is held for no longer.
        bytes_max: of an answer's entries, whatever the reader asks for; the last entry may go beyond it.

    Attributes:
        pipeline: name of the pipeline that has the link's lease; "" before the first.
        grants: by topic.
        totals: messages, bytes and duplicates that all tasks confirmed since the broker's start.
    """

    def __init__(
        self,
        outbox: Outbox,
        topics: Mapping[str, LinkTopic],
        *,
        uuid: str,
        start: StartReading,
        stopped: Callable[[], bool],
        rate: Callable[[], int],
        wait_ms_max: int,
        bytes_max: int,
    ) -> None:
        self._outbox, self._topics, self._uuid = outbox, topics, uuid
        self._start, self._stopped, self._rate = start, stopped, rate
        self._wait_ms_max, self._bytes_max = wait_ms_max, bytes_max
        self.pipeline = ""
        self.grants: dict[str, Granted] = {}
        self.totals = pb.GeoFetchTotals(task=0, messages=0, bytes=0, duplicates=0)
        self._tasks: dict[int, pb.GeoFetchTotals] = {}
        self._commanding = 0
        """The newest connection over which this pipeline has granted or revoked."""
        self._numbers: dict[str, int] = {}
        """The number of the last grant of each topic, also when it is over: a late message must not bring one back."""
        self._ended: dict[str, Ended] = {}
        self._reader = _NO_READER
        self._former: dict[int, None] = {}
        """Superseded readers of this epoch, the oldest first."""
        self._window_bytes = WINDOW_BYTES
        self._under_way_bytes = 0
        self._ready: dict[str, None] = {}
        self._held: deque[_Held] = deque()
        self._throttle: TokenBucket | None = None
        self._asked: _Held | None = None
        """The question whose answer is being collected."""
        self._collection = 0
        self._collecting = self._reading = False
        self._left = self._looked = 0
        self._filling = pb.CommandGeoFetchResponse()
        self._buffers: list[bytes] = []
        self._spacing_ms = SPACING_MS_MIN
        self._answered_ms = -SPACING_MS_MAX
        self._due_ms = 0
        self._alarm_ms = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when the session is forgotten."""
        return not (self.grants or self._held or self._asked)

    # ------------------------------------------------------------------------------------------------------------ grants

    def hand_to(self, pipeline: str) -> None:
        """A pipeline took, or kept, the link's lease. The grants of another one are over: this one compares first."""
        if pipeline == self.pipeline:
            return
        self.pipeline = pipeline
        for former in self._questions():
            former.reply(self._refused(former.request), ())
        for topic in list(self.grants):
            self._forget(topic)
        self._commanding = 0
        self._numbers.clear()
        self._ended.clear()
        self._reader = _NO_READER
        self._former.clear()

    def commands(self, pipeline: str, connection: int) -> bool:
        """Whether grants and revocations that a pipeline sends over a connection count.

        They do not count if another pipeline has the lease. They are outdated if a newer connection has brought some.

        A command may be stuck in a connection that its pipeline has given up. A grant that arrives only after it was revoked has
        a number that looks new: without this check it would be installed between the comparison and the next grant.

        Args:
            pipeline: that sent them; "": they do not count.
            connection: later ones have higher numbers.
        """
        if not pipeline or pipeline != self.pipeline or connection < self._commanding:
            return False
        self._commanding = connection
        return True

    def grant(self, grant: pb.GeoGrant) -> bool:
        """Allow a topic's entries to be handed out; whether the grant is about the topic as it is now, and not outdated."""
        state = self._topics.get(grant.topic)
        if state is None or (state.blocked is not None and state.blocked.retry_at_ms > self._outbox.now_ms):
            return False
        granted = Granted(grant.number, grant.incarnation, grant.gen, state.blocked)
        if not _valid(state, granted):
            return False
        if grant.number <= self._numbers.get(grant.topic, 0):
            return self.counts(grant.topic, grant.number)  # a repeated message: the grant continues
        self._forget(grant.topic)
        self._numbers[grant.topic] = grant.number
        self.grants[grant.topic] = granted
        self._ready[grant.topic] = None
        self._go_on()
        return True

    def revoke(self, topic: str) -> None:
        """End a grant that its pipeline has revoked."""
        self._forget(topic)
        self._ended.pop(topic, None)
        self._go_on()

    def end(self, topic: str, number: int, why: Ended) -> None:
        """End a grant because a task gave it back, if it is the present one."""
        if self.counts(topic, number):
            self._forget(topic)
            self._ended[topic] = why
            self._go_on()

    def counts(self, topic: str, number: int) -> bool:
        """Whether a grant of this number is the topic's present one."""
        granted = self.grants.get(topic)
        return granted is not None and granted.number == number

    def describe(self, report: pb.GeoTopicState) -> None:
        """Put a topic's grant, or the reason why the last one ended, into the pipeline's news."""
        granted = self.grants.get(report.topic)
        if granted is not None:
            report.grant = granted.number
        elif (ended := self._ended.get(report.topic)) is not None:
            report.ended, report.ended_reason = ended

    def _forget(self, topic: str) -> None:
        granted = self.grants.pop(topic, None)
        self._ready.pop(topic, None)
        if granted is not None:
            self._under_way_bytes -= sum(size for _, size in granted.under_way)

    # ---------------------------------------------------------------------------------------------------- what happened

    def changed(self, state: LinkTopic) -> bool:
        """A topic changed; returns whether its grant holds, so that the pipeline need not learn of the change at once."""
        granted = self.grants.get(state.name)
        if granted is None:
            return False
        valid = _valid(state, granted)
        if not valid:
            self._forget(state.name)
            self._ended[state.name] = Ended("blocked", state.blocked.reason) if state.blocked else Ended("gone", "")
        else:
            self._settled(granted, state.cursor.c)
            if _after(granted, state) < state.last:
                self._ready[state.name] = None
        self._go_on()
        return valid

    def _settled(self, granted: Granted, c: Position) -> None:
        """Everything up to `c` is settled: the window has room again."""
        while granted.under_way and granted.under_way[0][0] <= c:
            self._under_way_bytes -= granted.under_way.popleft()[1]

    def removed(self, topic: str) -> None:
        """A topic is gone."""
        self._forget(topic)
        self._ended.pop(topic, None)
        self._numbers.pop(topic, None)
        self._go_on()

    def link_changed(self) -> None:
        """The link was paused or resumed, or has another limit."""
        self._follow_rate()
        self._go_on()

    def _follow_rate(self) -> None:
        rate = self._rate()
        if rate != (self._throttle.tokens if self._throttle is not None else 0):
            self._throttle = TokenBucket(rate, 1000, self._outbox.now_ms) if rate else None

    def add_totals(self, totals: pb.GeoFetchTotals) -> bool:
        """Take the totals that a task confirmed since it began; returns whether it lost its destination once more."""
        before = self._tasks.pop(totals.task, None) or pb.GeoFetchTotals()
        self._tasks[totals.task] = totals
        if len(self._tasks) > TASKS_MAX:
            del self._tasks[next(iter(self._tasks))]
        every = self.totals
        every.messages += max(0, totals.messages - before.messages)
        every.bytes += max(0, totals.bytes - before.bytes)
        every.duplicates += max(0, totals.duplicates - before.duplicates)
        every.lag_ms = totals.lag_ms
        lost = totals.downs > before.downs
        if lost:
            every.down = totals.down
            every.downs += 1
        return lost

    def disconnected(self, connection: int) -> None:
        """A connection is gone, and with it the questions and the answers that were on their way."""
        if connection == self._reader.connection:
            self._reader = self._reader._replace(connection=-1)
            self._questions()

    # ------------------------------------------------------------------------------------------------------------- fetch

    def fetch(self, connection: int, request: pb.CommandGeoFetch, reply: FetchReply, refusal: Refusal) -> None:
        """Answer with the next entries, at once or when there are some; after `wait_ms` the answer is empty.

        Args:
            connection, request, reply: of the reader.
            refusal: why it may not have a topic, "" if it may; asked each time, because permissions change.
        """
        self.pipeline = self.pipeline or request.pipeline  # after a start, a task may come before its pipeline does
        if request.pipeline != self.pipeline:
            reply(self._refused(request), ())
            return
        reader = _Reader(connection, request.epoch, request.reader)
        if reader != self._reader:
            if reader.epoch < self._reader.epoch or reader.number in self._former:
                reply(self._response(request, superseded=True), ())
                return
            self._begin(reader, request.window_bytes)
        until_ms = self._outbox.now_ms + min(request.wait_ms, self._wait_ms_max)
        self._held.append(_Held(request, reply, refusal, until_ms))
        if len(self._held) + (self._asked is not None) > HELD_MAX:
            self._answer_empty(self._held.popleft())
        self._set_alarm()
        self._go_on()

    def _begin(self, reader: _Reader, window_bytes: int) -> None:
        """Another reader: entries that the one before got are handed out again, unless they are committed."""
        for former in self._questions():
            former.reply(self._response(former.request, superseded=True), ())
        if reader.epoch != self._reader.epoch:
            self._former.clear()
        elif reader.number != self._reader.number:
            if len(self._former) >= FORMER_MAX:
                del self._former[next(iter(self._former))]
            self._former[self._reader.number] = None
        self._reader = reader
        self._window_bytes = window_bytes or WINDOW_BYTES
        self._under_way_bytes = 0
        for granted in self.grants.values():
            granted.sent = None
            granted.under_way.clear()
        self._ready = dict.fromkeys(self.grants)
        self._follow_rate()

    def _questions(self) -> list[_Held]:
        """Take all questions; the entries collected for one of them are discarded."""
        asked, held = self._asked, self._held
        self._asked, self._held = None, deque()
        self._collection += 1
        self._reading = False
        return [*([asked] if asked else []), *held]

    def _response(
        self, request: pb.CommandGeoFetch, *, superseded: bool = False, refused: str = ""
    ) -> pb.CommandGeoFetchResponse:
        response = pb.CommandGeoFetchResponse(request_id=request.request_id, uuid=self._uuid)
        if superseded:
            response.superseded = True
        if refused:
            response.refused = refused
        return response

    def _refused(self, request: pb.CommandGeoFetch) -> pb.CommandGeoFetchResponse:
        return self._response(request, refused=f"the link's lease belongs to {self.pipeline}")

    def _answer_empty(self, held: _Held) -> None:
        held.reply(self._response(held.request), ())

    # --------------------------------------------------------------------------------------------------------- handing out

    def _go_on(self) -> None:
        """Begin the next answer, if a question is held, entries are ready and no limit delays it; changes of these call it."""
        if self._asked or not (self._held and self._ready):
            return
        if self._stopped() or self._under_way_bytes >= self._window_bytes:
            return
        now_ms = self._outbox.now_ms
        due_ms = self._answered_ms + self._spacing_ms
        if self._throttle is not None:
            due_ms = max(due_ms, now_ms + self._throttle.wait_ms(now_ms))
        if due_ms > now_ms:
            self._go_on_at(due_ms)
            return
        self._asked = self._held.popleft()
        self._filling, self._buffers = self._response(self._asked.request), []
        most = min(self._asked.request.bytes_max, self._bytes_max)
        self._left = max(1, most if self._throttle is None else min(most, self._throttle.room(now_ms)))
        self._collect(self._asked)

    def _go_on_at(self, due_ms: int) -> None:
        if not self._due_ms or due_ms < self._due_ms:
            self._due_ms = due_ms
            self._outbox.put(Timer(due_ms, self._due))

    def _due(self, now_ms: int) -> None:
        if self._due_ms and now_ms >= self._due_ms:  # else the timer is one of a wait that is over
            self._due_ms = 0
            self._go_on()

    def _collect(self, asked: _Held) -> None:
        """Read one topic after the other until the answer is full; a read that has to wait for the disk continues in `got`."""
        self._collecting, self._looked = True, 0
        while not self._reading and self._ready and not self._full:
            name = next(iter(self._ready))
            del self._ready[name]
            self._looked += 1
            state, granted = self._topics[name], self.grants[name]
            if refused := asked.refusal(name):
                self._refuse_topic(state, granted, refused)
            elif not state.paused and _after(granted, state) < state.last:
                self._read(asked, state, granted)
        self._collecting = False
        if not self._reading:
            self._answer(asked)

    @property
    def _full(self) -> bool:
        """Whether the answer that is being collected is large enough, or it took long enough."""
        looked_long = self._looked >= TOPICS_LOOKED_MAX
        return (
            looked_long or self._left <= 0 or len(self._filling.parts) >= PARTS_MAX or len(self._buffers) >= ENTRIES_MAX
        )

    def _refuse_topic(self, state: LinkTopic, granted: Granted, reason: str) -> None:
        """The reader's role may no longer replicate the topic: report it as an answer to GEO_READ would."""
        self._forget(state.name)
        self._ended[state.name] = Ended("gone", reason)
        read = pb.CommandGeoReadResponse(
            request_id=0, end=position_to_proto(_after(granted, state)), blocked="policy", message=reason,
            error=int(ErrorCode.AUTHORIZATION),
        )  # fmt: skip
        self._add_part(state.name, granted, read, None)

    def _add_part(
        self, topic: str, granted: Granted, read: pb.CommandGeoReadResponse, p: pb.GeoPosition | None
    ) -> None:
        self._filling.parts.add(
            topic=topic, incarnation=granted.incarnation, grant=granted.number, gen=granted.gen, p=p, read=read
        )

    def _read(self, asked: _Held, state: LinkTopic, granted: Granted) -> None:
        collection, after, p = self._collection, _after(granted, state), None
        if granted.sent is None or granted.sent < state.cursor.c:
            # The next entries do not follow the last ones of this reader: the part names the position before them.
            p = position_to_proto(state.cursor.s)

        def got(read: pb.CommandGeoReadResponse, buffers: Sequence[bytes]) -> None:
            if collection != self._collection:
                return
            self._reading = False
            end = position_from_proto(read.end)
            if end > after and self.grants.get(state.name) is granted:
                size = sum(map(len, buffers))
                granted.sent = end
                granted.under_way.append((end, size + PART_BYTES))
                self._under_way_bytes += size + PART_BYTES
                self._left -= size
                self._add_part(state.name, granted, read, p)
                self._buffers.extend(buffers)
                self._settled(granted, state.cursor.c)
                if end < state.last:
                    self._ready[state.name], self._left = None, 0  # the next entry did not fit
            if not self._collecting:
                self._collect(asked)

        self._reading = True
        self._start(state, after, self._left, got)

    def _answer(self, asked: _Held) -> None:
        response, buffers, self._asked = self._filling, self._buffers, None
        if not response.parts:
            self._held.appendleft(asked)
            self._set_alarm()
            if self._ready:
                self._go_on_at(self._outbox.now_ms)
            return
        if self._throttle is not None:
            self._throttle.take(sum(map(len, buffers)))
        if self._ready and self._throttle is None:
            self._spacing_ms = 0  # there is more: waiting has no benefit
        else:
            # A rest before a burst is no low rate.
            elapsed_ms = min(self._outbox.now_ms - self._answered_ms, SPACING_MS_MAX)
            step = 1 if len(buffers) > SPACING_RATE * elapsed_ms else -1
            self._spacing_ms = min(max(self._spacing_ms + step, SPACING_MS_MIN), SPACING_MS_MAX)
        self._answered_ms = self._outbox.now_ms
        asked.reply(response, buffers)
        self._go_on()

    # ------------------------------------------------------------------------------------------------------------- alarm

    def _set_alarm(self) -> None:
        if not self._held:
            return
        until_ms = min(held.until_ms for held in self._held)
        if not self._alarm_ms or until_ms < self._alarm_ms:
            self._alarm_ms = until_ms
            self._outbox.put(Timer(until_ms, self._alarm))

    def _alarm(self, now_ms: int) -> None:
        if now_ms >= self._alarm_ms:
            self._alarm_ms = 0
        over = [held for held in self._held if held.until_ms <= now_ms]
        self._held = deque(held for held in self._held if held.until_ms > now_ms)
        for held in over:
            self._answer_empty(held)
        self._set_alarm()

    def validate(self) -> None:
        """Check what must hold after every step."""
        under_way = sum(size for granted in self.grants.values() for _, size in granted.under_way)
        assert under_way == self._under_way_bytes, f"{under_way} bytes under way, counted {self._under_way_bytes}"
        assert len(self._held) + (self._asked is not None) <= HELD_MAX
        assert self._asked or not self._reading
        assert self._ready.keys() <= self.grants.keys() <= self._topics.keys()
        assert self.grants.keys() <= self._numbers.keys()
        for name, granted in self.grants.items():
            state = self._topics[name]
            if state.rewinding is None:  # else it ends when the rewind is durable
                assert _valid(state, granted), f"{name}: the grant is about the past"
            assert not granted.under_way or state.cursor.c < granted.under_way[0][0] <= (granted.sent or NONE)


def _valid(state: LinkTopic, granted: Granted) -> bool:
    """Whether a grant is about the topic as it is now, and the topic may go."""
    of_now = (state.log.incarnation, state.cursor.gen) == (granted.incarnation, granted.gen)
    probing = state.blocked is None or state.blocked is granted.blocked
    # A pause only stops the handing out: what is under way may still be confirmed.
    return of_now and state.wanted and state.rewinding is None and probing


def _after(granted: Granted, state: LinkTopic) -> Position:
    """The position after which the present reader continues."""
    return state.cursor.c if granted.sent is None else max(granted.sent, state.cursor.c)
