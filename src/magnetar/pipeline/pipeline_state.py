"""The state of a pipeline's links, and the decisions about the next steps: a pure machine.

Input: reports of source brokers (GEO_TOPICS), answers of destination brokers (GEO_WATERMARKS), reports of tasks, failures.
Output: the work that may be planned, the handshakes to make, the reports for the sources (GEO_COMMIT).

The authority on progress is the durable cursor in the source broker. Confirmations of tasks are applied here at once, so that the
next batch need not wait until the source knows them, and are *owed* to the source until it has answered. They hold only for the
same incarnation and generation; any other report of the source replaces them.

A topic is planned only when it is *ready*: since this pipeline started, and since its last refusal, its S was compared
with the position that the destination persisted (docs/design/links.md#handshake). When a destination's change counter moves,
every topic of the link becomes unready. Its handshake then waits until no batch of the link is in flight: if a confirmation from
before the destination's loss reached the source after the comparison, it would hide that loss. For the same reason late reports
of a batch that counted as over are ignored: each run of a query has a number (`query_generation`), and each range names its run.

Time (`now_ms`) and chance (`rng`) come in from outside.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Final

from magnetar.core.ids import NONE, LinkCursor
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline.breaker import Breaker, backoff_ms
from magnetar.pipeline.link_state import (
    ALL,
    NOWHERE,
    Destination,
    Handshake,
    Link,
    LinkState,
    Owed,
    TopicState,
    Trouble,
)
from magnetar.pipeline.long.grants import NOT_NOW, LinkGrants, Wanted
from magnetar.pipeline.planner import BULK, RANGE_BYTES_MIN, RANGES_MAX, TAIL, Work, plan, query_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto, position_to_proto

HANDSHAKE_FULL_EVERY: Final = 120
"""One in this number of idle handshakes compares all topics even if the counter has not changed: a second safeguard."""

HANDSHAKE_TOPICS_MAX: Final = 1000
"""Topics in one GEO_WATERMARKS: about 150 bytes each, far below any frame limit."""

BLOCKED_MS_MIN: Final = 1000
"""First pause of a blocked topic; the longest is `ReplicationLimits.blocked_retry_ms_max`."""

REFUSALS: Final = frozenset({"policy", "partitions"})
"""Kinds of blocks for which the destination reports when they may be over."""

BLOCKED_SCHEMA_MS_MAX: Final = 3_000
"""The longest pause of a topic that is blocked by a schema: when an operator makes it compatible, it continues soon."""

RETRY_MS_MIN: Final = 100
RETRY_MS_MAX: Final = 5_000
"""Passing troubles (a failed write, no room, nothing read) are tried again after pauses between these."""

AWAIT_MS_MAX: Final = 2_000
"""How long to wait for a source to report the rewind that it was asked to make, before asking the destination again."""

BESIDE_TAIL_BYTES_MAX: Final = 8 << 20
"""Bytes for topics with a backlog in a batch that also carries tails, where one query carries both kinds of topics."""


class PipelineState:
    """All links of one pipeline process.

    Args:
        links: numbered 0, 1, 2, ….
        rng: for the jitter of pauses.
        cores: tasks that can run at once.
        limits: of the pipeline.
        first_grant: with long batches, the number of the first grant; they grow over restarts. 0: short batches carry topics at
            their end, planned like the others.
    """

    def __init__(
        self,
        links: Sequence[Link],
        rng: random.Random,
        cores: int,
        limits: ReplicationLimits | None = None,
        *,
        first_grant: int = 0,
    ) -> None:
        self._limits = limits or ReplicationLimits()
        self.links = {link.number: LinkState(link) for link in links}
        self.breakers = {name: Breaker() for link in links for name in (link.source, link.target)}
        self.destinations = {link.target: Destination(self._limits.bulk_batch_bytes_max) for link in links}
        self._rng = rng
        self._cores = max(1, cores)
        self._query_generations: dict[str, int] = {}
        numbers = count(first_grant)
        self.grants = {link.number: LinkGrants(numbers) for link in links} if first_grant else {}

    # -------------------------------------------------------------------------------------------- reports of sources

    def source_reported(
        self, number: int, response: pb.CommandGeoTopicsResponse, now_ms: int, *, everything: bool = False
    ) -> None:
        """Apply one answer of GEO_TOPICS.

        Args:
            number: of the link.
            response: the answer.
            now_ms: the clock.
            everything: the source was asked for all topics: one that it does not report is gone.
        """
        state = self.links[number]
        state.reported = True
        if response.uuid != state.uuid:
            state.uuid, state.target_uuid, state.reported_trouble = response.uuid, "", None
            state.unready.update(state.topics)
            self._touch_all(state)
        state.lease, state.lease_holder, state.paused = response.lease, response.lease_holder, response.paused
        state.throttle.set_rate(response.throttle_bytes_per_second, now_ms)
        restarted = response.boot != state.boot
        state.boot = response.boot
        if restarted:
            state.reported_trouble = None
            # The cursors that it reports count, also lower ones (docs/design/links.md#restarted-source).
            for topic in state.topics.values():
                topic.cursor = NOWHERE
            if self.grants:
                self.grants[number].source_restarted()
        if everything:
            for name in state.topics.keys() - {reported.topic for reported in response.topics}:
                self._forget(state, name)
        for reported in response.topics:
            self._topic_reported(state, reported)
            if self.grants:
                self._grant_reported(state, reported, response.counter, now_ms)
        if self.grants and response.HasField("totals"):
            self._totals_reported(state, response.totals, now_ms, restarted=restarted)

    def source_lost(self, source: str) -> None:
        """The connection to a source broke: nothing is planned before it has reported its links again."""
        for state in self.links.values():
            if state.link.source == source:
                state.reported = False

    def _topic_reported(self, state: LinkState, reported: pb.GeoTopicState) -> None:
        name = reported.topic
        if reported.removed:
            self._forget(state, name)
            return
        topic = state.topics.get(name)
        if topic is None or topic.incarnation != reported.incarnation:
            # One that left the link and is back may have confirmations on their way.
            planned = any(name in names for names in state.in_flight.values())
            topic = state.topics[name] = TopicState(name, reported.incarnation, planned=planned)
            state.unready.add(name)
        elif topic.partitions != reported.partitions:
            state.unready.add(name)  # the destination must learn of the new partitions
        cursor = LinkCursor(
            position_from_proto(reported.cursor.c), position_from_proto(reported.cursor.s), reported.cursor.gen
        )
        if cursor.gen != topic.cursor.gen or cursor.c >= topic.cursor.c:
            topic.cursor = cursor
        if topic.awaited_gen and cursor.gen >= topic.awaited_gen:
            topic.awaited_gen = topic.retry_at_ms = 0
        topic.partitions, topic.last = reported.partitions, position_from_proto(reported.last)
        topic.pending_entries, topic.pending_bytes = reported.pending_entries, reported.pending_bytes
        topic.oldest_ms, topic.gap, topic.paused = reported.oldest_ms, reported.gap, reported.paused
        topic.retained = tuple(reported.retained)
        if name not in state.owed and name not in state.learned:  # else the source's report is older than our state
            self._set_blocked(state, topic, reported.blocked, reported.reason)
        self._note_pending(state, topic)

    def _forget(self, state: LinkState, name: str) -> None:
        """A topic is gone from the link."""
        for names in (state.pending, state.unready, state.troubled):
            names.discard(name)
        for things in (state.topics, state.owed, state.learned):
            things.pop(name, None)
        if self.grants:
            self.grants[state.link.number].forget(name)

    @staticmethod
    def _set_blocked(state: LinkState, topic: TopicState, kind: str, reason: str) -> None:
        topic.blocked, topic.reason = kind, reason
        (state.troubled.add if kind else state.troubled.discard)(topic.topic)

    @staticmethod
    def _note_pending(state: LinkState, topic: TopicState) -> None:
        if topic.pending:
            state.pending.add(topic.topic)
        else:
            state.pending.discard(topic.topic)
            topic.pending_entries = topic.pending_bytes = topic.oldest_ms = 0

    # ----------------------------------------------------------------------------------------------------- long batches

    def _touch(self, state: LinkState, topics: Iterable[str]) -> None:
        """Decide again whether these topics are granted: their state may have changed."""
        if self.grants:
            self.grants[state.link.number].touch(topics)

    def _touch_all(self, state: LinkState) -> None:
        if self.grants:
            self.grants[state.link.number].touch_all()

    def _carried(self, state: LinkState, topic: str) -> bool:
        """Whether a long batch has the topic, or may still confirm it."""
        return bool(self.grants) and self.grants[state.link.number].carries(topic)

    def _update_grants(self, state: LinkState, now_ms: int) -> None:
        def wanted(name: str) -> Wanted:
            return self._wanted(state, name, now_ms)

        # A pause ends no grant: the source hands out nothing, and what is under way may be confirmed.
        is_open = self._open_or_paused(state)
        self.grants[state.link.number].update(state.topics, is_open, wanted, now_ms)

    def _wanted(self, state: LinkState, name: str, now_ms: int) -> Wanted:
        topic = state.topics.get(name)
        if topic is None or name in state.unready:
            return Wanted(NOT_NOW)
        if topic.retry_at_ms > now_ms:
            return Wanted(topic.retry_at_ms)
        if topic.awaited_gen:  # the source never reported the rewind: compare again
            topic.awaited_gen = 0
            state.unready.add(name)
            return Wanted(NOT_NOW)
        if query_of(topic.pending_bytes) != TAIL or any(name in names for names in state.in_flight.values()):
            return Wanted(NOT_NOW)
        topic.planned = True
        return Wanted(0, topic.incarnation, topic.cursor.gen)

    def _grant_reported(self, state: LinkState, reported: pb.GeoTopicState, counter: int, now_ms: int) -> None:
        """A source reported whether a topic has its grant, and why not."""
        topic = state.topics.get(reported.topic)
        if topic is None:
            return
        grants = self.grants[state.link.number]
        grants.touch((reported.topic,))
        if not grants.reported(reported.topic, reported.grant, counter):
            if not topic.blocked and grants.carries(reported.topic):
                topic.failures = 0
            return
        if reported.ended == m.REFUSED:
            state.unready.add(topic.topic)
            self._again(topic, now_ms)
        elif reported.ended == m.BLOCKED:
            self._blocked(state, topic, reported.blocked or "corrupt", reported.reason or reported.ended_reason, now_ms)
        elif reported.ended == m.RETRY:
            self._again(topic, now_ms)
            if topic.failures > 1:
                state.unready.add(topic.topic)  # a destination may want to shake hands first

    def _totals_reported(self, state: LinkState, totals: pb.GeoFetchTotals, now_ms: int, *, restarted: bool) -> None:
        """A source reported the totals that long batches have confirmed since its start."""
        before, state.totals = state.totals, totals
        if before is None or restarted:
            return
        state.messages += totals.messages - before.messages
        state.bytes += totals.bytes - before.bytes
        state.duplicates += totals.duplicates - before.duplicates
        if totals.messages > before.messages:
            state.last_lag_ms = totals.lag_ms
            self.breakers[state.link.source].confirmed()
            self.breakers[state.link.target].confirmed()
        if totals.downs > before.downs:
            self.breakers[state.link.target].failed(now_ms, self._rng, totals.down)

    def next_grant_ms(self, source: str) -> int:
        """When a source's grants have to be checked again if nothing changes; 0: never."""
        times = (
            self.grants[state.link.number].next_ms() for state in self.links.values() if state.link.source == source
        )
        return min((at_ms for at_ms in times if at_ms), default=0) if self.grants else 0

    # -------------------------------------------------------------------------------------------------- the handshake

    def handshakes(self, target: str, now_ms: int) -> list[Handshake]:
        """The handshakes to make now; the caller answers each with `handshake_answered` or reports a failure."""
        return [
            handshake
            for state in self.links.values()
            if state.link.target == target and state.reported and state.lease and now_ms >= state.retry_at_ms
            if (handshake := self._handshake(state, now_ms)) is not None
        ]

    def _handshake(self, state: LinkState, now_ms: int) -> Handshake | None:
        names: Iterable[str] = ()
        if state.unready:
            names = list(
                islice((n for n in state.unready if self._may_compare(state, n, now_ms)), HANDSHAKE_TOPICS_MAX)
            )
        # Counters alone are compared only after a whole handshake: that one introduces a new source to the destination, which
        # can judge it only by positions.
        if not names and (not state.target_uuid or now_ms < state.checked_ms + self._limits.handshake_idle_ms):
            return None
        if not names:
            state.checked_ms = now_ms
            state.checks += 1
            if state.checks % HANDSHAKE_FULL_EVERY == 0:
                state.unready.update(state.topics)
                self._touch_all(state)
        topics = [state.topics[name] for name in names]
        queries, gens = tuple(map(self._query, topics)), tuple(topic.cursor.gen for topic in topics)
        return Handshake(state.link, state.uuid, state.counter, queries, gens)

    def _may_compare(self, state: LinkState, name: str, now_ms: int) -> bool:
        """Whether a topic may be compared now: while nothing of the link is in flight, as no confirmation may come later.

        A topic that was never planned has no confirmations: it need not wait for the others, and is created there at once.
        """
        topic = state.topics[name]
        if topic.retry_at_ms > now_ms or self._carried(state, name):
            return False
        return not state.flying or bool(state.target_uuid and not topic.planned)

    @staticmethod
    def _query(topic: TopicState) -> pb.GeoWatermarkQuery:
        return pb.GeoWatermarkQuery(
            topic=topic.topic, incarnation=topic.incarnation, partitions=topic.partitions, last=position_to_proto(topic.last),
            start=position_to_proto(topic.cursor.c), retained=topic.retained,
        )  # fmt: skip

    def handshake_answered(self, asked: Handshake, response: pb.CommandGeoWatermarksResponse, now_ms: int) -> None:
        """Apply a destination's answer; its watermarks are owed to the source from now on."""
        state = self.links[asked.link.number]
        state.blocked, state.reason = response.blocked, response.reason
        if response.blocked:
            state.failures += 1
            state.retry_at_ms = now_ms + backoff_ms(
                state.failures, self._rng, BLOCKED_MS_MIN, self._limits.blocked_retry_ms_max
            )
            state.unready.update(state.topics)
            self._touch_all(state)
            self._foreign_learned(state, asked, response)
            return
        state.failures = state.retry_at_ms = 0
        if (response.counter, response.uuid) != (state.counter, state.target_uuid):
            if state.target_uuid:
                state.unready.update(state.topics)
            self._touch_all(state)
            state.counter, state.target_uuid = response.counter, response.uuid
        state.checked_ms = now_ms
        answers = {answer.topic: answer for answer in response.topics}
        self._touch(state, (query.topic for query in asked.topics))
        for query, gen in zip(asked.topics, asked.gens, strict=True):
            topic = state.topics.get(query.topic)
            if topic is None or (topic.incarnation, topic.cursor.gen) != (query.incarnation, gen):
                continue  # it was created again meanwhile: it stays unready, and is compared again
            answer = answers.get(query.topic)
            if answer is None:
                topic.retry_at_ms = now_ms + RETRY_MS_MAX
            else:
                self._watermark_learned(state, topic, answer, now_ms)

    @staticmethod
    def _foreign_learned(state: LinkState, asked: Handshake, response: pb.CommandGeoWatermarksResponse) -> None:
        """Watermarks of an earlier data folder of the source: it has to move above those positions, then is believed.

        See docs/design/links.md#ledger-ids-grow.
        """
        about = {query.topic: (query.incarnation, gen) for query, gen in zip(asked.topics, asked.gens, strict=True)}
        for answer in response.topics:
            if answer.foreign and answer.topic in about and answer.topic in state.topics:
                incarnation, gen = about[answer.topic]
                state.learned[answer.topic] = pb.GeoLearnTopic(
                    topic=answer.topic, incarnation=incarnation, watermark=answer.persisted, gen=gen, foreign=True
                )

    def _watermark_learned(self, state: LinkState, topic: TopicState, answer: pb.GeoWatermark, now_ms: int) -> None:
        name, watermark = topic.topic, position_from_proto(answer.persisted)
        state.learned[name] = pb.GeoLearnTopic(
            topic=name, incarnation=topic.incarnation, watermark=answer.persisted, counter=state.counter,
            gen=topic.cursor.gen, foreign=answer.foreign, there=answer.incarnation,
        )  # fmt: skip
        if answer.blocked:
            state.learned[name].blocked, state.learned[name].reason = answer.blocked, answer.reason
            self._blocked(state, topic, answer.blocked, answer.reason, now_ms)
            return  # stays unready: it is asked again after the pause
        state.unready.discard(name)
        if watermark < topic.cursor.s and not answer.foreign:
            topic.awaited_gen = topic.cursor.gen + 1
            topic.retry_at_ms = now_ms + AWAIT_MS_MAX

    def listens(self, target: str) -> list[Handshake]:
        """The question to a destination about the end of its refusals; empty while it refuses nothing."""
        for state in self.links.values():
            asks = state.link.target == target and state.target_uuid and not state.blocked and state.lease
            if asks and any(state.topics[name].blocked in REFUSALS for name in state.troubled if name in state.topics):
                return [Handshake(state.link, state.uuid, state.counter, ())]
        return []

    def refusals_changed(self, target: str) -> None:
        """A destination may accept topics that it refused: compare them now, not after their pause."""
        for state in self.links.values():
            if state.link.target == target:
                for name in state.troubled & state.unready:
                    if state.topics[name].blocked in REFUSALS:
                        state.topics[name].retry_at_ms = 0

    def target_changed(self, number: int) -> None:
        """Every topic of a link has to be compared again."""
        state = self.links[number]
        state.unready.update(state.topics)
        self._touch_all(state)

    # ------------------------------------------------------------------------------------------------------ planning

    def available(self, query: str, now_ms: int) -> tuple[list[Work], int]:
        """The work that may be planned in a query now, and when to check again if nothing else happens (0: never)."""
        works: list[Work] = []
        wake = 0
        for state in self.links.values():
            if not state.pending or not self.open(state):
                continue
            wait = self._link_wait(state, now_ms)
            if wait:
                wake = min(wake or wait, wait)
                continue
            elsewhere = set().union(*(names for other, names in state.in_flight.items() if other != query))
            for name in state.pending:
                topic = state.topics[name]
                if topic.retry_at_ms > now_ms:
                    wake = min(wake or topic.retry_at_ms, topic.retry_at_ms)
                    continue
                if topic.awaited_gen:  # the source never reported the rewind: compare again
                    topic.awaited_gen = 0
                    state.unready.add(name)
                if topic.paused or name in state.unready or name in elsewhere or self._carried(state, name):
                    continue
                if query in (ALL, query_of(topic.pending_bytes)):
                    works.append(Work(state.link.number, name, max(1, topic.pending_bytes), topic.planned_ms))
        return works, wake

    def open(self, state: LinkState) -> bool:
        """Whether a link may carry entries now."""
        return not state.paused and self._open_or_paused(state)

    def _open_or_paused(self, state: LinkState) -> bool:
        link = state.link
        ready = state.reported and state.lease and not state.blocked
        return ready and self.breakers[link.source].closed and self.breakers[link.target].closed

    def _link_wait(self, state: LinkState, now_ms: int) -> int:
        """When a link may send again; 0: now."""
        until = max(self.destinations[state.link.target].quiet_until_ms, state.throttle.ready_at_ms(now_ms))
        return until if until > now_ms else 0

    def plan(self, query: str, routes: dict[int, tuple[str, str]], now_ms: int) -> list[m.Task]:
        """Plan one batch of a query. The query's last batch counts as over: its missing reports are not waited for.

        Args:
            query: `TAIL`, `BULK` or `ALL`.
            routes: addresses (source, destination) of each link.
            now_ms: the clock.
        """
        self._landed(query)
        works, _ = self.available(query, now_ms)
        bounds = self._bounds(works, now_ms)
        tasks = self._tasks(query, works, bounds)
        number, query_generation = 0, self._query_generations.get(query, 0)
        planned = []
        for portions in tasks:
            ranges = []
            for link, name, size in portions:
                state = self.links[link]
                topic = state.topics[name]
                topic.planned_ms, topic.planned = now_ms, True
                state.in_flight.setdefault(query, set()).add(name)
                # Entries published since the source's last report should go with the rest, unless a throttle counts.
                most = size if link in bounds else max(size, RANGE_BYTES_MIN)
                most = RANGE_BYTES_MIN if topic.blocked else most  # a probe: nothing after the blocking entry is taken
                ranges.append(self._range(number, link, topic, most, query_generation))
                number += 1
            used = sorted({r.link for r in ranges})
            planned.append(m.Task(tuple(self.route(link, routes[link]) for link in used), tuple(ranges)))
        return planned

    @staticmethod
    def _range(number: int, link: int, topic: TopicState, bytes_max: int, query_generation: int) -> m.Range:
        c, s, gen = topic.cursor
        after, sent, up_to = m.pair(c), m.pair(s), m.pair(topic.last)
        return m.Range(
            number, link, topic.topic, topic.incarnation, gen, after, sent, up_to, bytes_max, query_generation
        )

    def route(self, number: int, addresses: tuple[str, str]) -> m.Route:
        """A link as tasks see it; `addresses`: of its source and its destination."""
        state = self.links[number]
        limits = self._limits
        return m.Route(
            number, state.link.source, state.link.target, *addresses, state.uuid,
            limits.progress_ms, limits.window_bytes, limits.buffer_bytes_max,
        )  # fmt: skip

    def _bounds(self, works: Sequence[Work], now_ms: int) -> dict[int, int]:
        """Bytes that links may send in this batch, for links with a throttle or a pace."""
        bounds: dict[int, int] = {}
        for number in {work.link for work in works}:
            state = self.links[number]
            limits = [state.throttle.allowance(now_ms), self.destinations[state.link.target].pace_bytes or None]
            known = [limit for limit in limits if limit is not None]
            if known:
                bounds[number] = min(known)
        return bounds

    def _tasks(self, query: str, works: Sequence[Work], bounds: dict[int, int]) -> list[list[tuple[int, str, int]]]:
        tails = [work for work in works if query_of(work.pending_bytes) == TAIL]
        bulks = [work for work in works if query_of(work.pending_bytes) == BULK]
        if query != ALL or not tails or not bulks:
            limits = self._limits
            budget = limits.tail_batch_bytes_max if tails else limits.bulk_batch_bytes_max
            # The bulk query leaves a core to the tail, where there are two; long batches take two at their turns.
            cores = max(1, self._cores - (2 if self.grants else 1)) if query == BULK else self._cores
            planned = plan(works, cores=cores, batch_bytes_max=budget, link_bytes_max=bounds)
        else:
            most = self._limits.tail_batch_bytes_max
            planned = plan(tails, cores=self._cores, batch_bytes_max=most, link_bytes_max=bounds)
            room = RANGES_MAX - sum(map(len, planned))
            catching_up = plan(
                bulks, cores=1, batch_bytes_max=BESIDE_TAIL_BYTES_MAX, link_bytes_max=bounds, ranges_max=max(1, room)
            )
            # Catching up takes a core of its own where there is one, else it queues after the tail.
            planned = (
                planned + catching_up if len(planned) < self._cores else [*planned[:-1], planned[-1] + catching_up[0]]
            )
        return [[(portion.link, portion.topic, portion.bytes_max) for portion in task] for task in planned]

    # ----------------------------------------------------------------------------------------------- reports of tasks

    def batch_over(self, query: str) -> None:
        """A query's streaming query ended: its last batch counts as over, and later reports of it are ignored."""
        self._query_generations[query] = self._query_generations.get(query, 0) + 1
        self._landed(query)

    def _landed(self, query: str) -> None:
        """Nothing of a query is under way."""
        for state in self.links.values():
            self._touch(state, state.in_flight.pop(query, ()))

    def batch_reported(self, query: str, reports: Sequence[m.TaskReport], now_ms: int) -> None:
        """Apply the reports of the tasks of a query's batch."""
        query_generation = self._query_generations.get(query, 0)
        late = [one for report in reports for one in report.ranges if one.query_generation != query_generation]
        for one in late:
            self.links[one.link].throttle.spend(one.bytes)
        if late:
            return  # the ranges of a batch are of one query
        self._landed(query)
        troubled: set[str] = set()
        targets: set[str] = set()
        for report in reports:
            for one in report.ranges:
                state = self.links[one.link]
                targets.add(state.link.target)
                if one.throttle_ms:
                    troubled.add(state.link.target)
                    destination = self.destinations[state.link.target]
                    destination.throttled(now_ms, one.throttle_ms, self._limits.tail_batch_bytes_max)
                self._range_reported(state, one, now_ms)
                if one.done and one.entries:
                    self.breakers[state.link.source].confirmed()
                    self.breakers[state.link.target].confirmed()
        for target in targets - troubled:
            self.destinations[target].accepted()

    def _range_reported(self, state: LinkState, report: m.RangeReport, now_ms: int) -> None:
        state.throttle.spend(report.bytes)
        state.messages += report.messages
        state.bytes += report.bytes
        state.duplicates += report.duplicates
        if report.oldest_publish_ms and report.confirmed_ms:
            state.last_lag_ms = max(0, report.confirmed_ms - report.oldest_publish_ms)
        if report.trouble == m.SOURCE_DOWN:
            self.breakers[state.link.source].failed(now_ms, self._rng, report.reason)
        if report.trouble == m.TARGET_DOWN:
            self.breakers[state.link.target].failed(now_ms, self._rng, report.reason)
        topic = state.topics.get(report.topic)
        if topic is None or (topic.incarnation, topic.cursor.gen) != (report.incarnation, report.gen):
            return  # a late report: the topic was rewound or deleted since (docs/design/links.md#generation)
        moved = report.c is not None and m.position(report.c) > topic.cursor.c
        if moved and report.c is not None:
            topic.cursor = LinkCursor(m.position(report.c), max(topic.cursor.s, m.position(report.s)), report.gen)
            topic.pending_bytes = max(1, topic.pending_bytes - report.bytes)
            topic.pending_entries = max(1, topic.pending_entries - report.entries)
            self._note_pending(state, topic)
        self._judge(state, topic, report, moved, now_ms)

    def _judge(self, state: LinkState, topic: TopicState, report: m.RangeReport, moved: bool, now_ms: int) -> None:
        unblocked = False
        if report.trouble == m.BLOCKED:
            self._blocked(state, topic, report.kind, report.reason, now_ms)
        elif report.trouble == m.REFUSED:
            state.unready.add(topic.topic)
            self._again(topic, now_ms)
        elif report.trouble == m.RETRY or not (report.trouble or moved or report.done):
            self._again(topic, now_ms)
            if report.trouble and topic.failures > 1:
                state.unready.add(topic.topic)  # a destination may want to shake hands first
        elif not report.trouble:
            unblocked = bool(topic.blocked)
            topic.failures = topic.retry_at_ms = 0
            self._set_blocked(state, topic, "", "")
        if moved or unblocked or report.trouble == m.BLOCKED:
            c, s, gen = topic.cursor
            owed = pb.GeoCommitTopic(
                topic=topic.topic,
                incarnation=topic.incarnation,
                cursor=pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=gen),
            )
            if unblocked or topic.blocked:
                owed.blocked, owed.reason = topic.blocked, topic.reason
                if report.at is not None:
                    owed.position.ledger, owed.position.entry = report.at
                if report.conflict:
                    owed.conflict.MergeFromString(report.conflict)
            state.owed[topic.topic] = owed

    def _blocked(self, state: LinkState, topic: TopicState, kind: str, reason: str, now_ms: int) -> None:
        self._set_blocked(state, topic, kind, reason)
        topic.failures += 1
        most = self._limits.blocked_retry_ms_max
        if kind == "schema":  # a try is cheap: one read and one registration. It may succeed at once after the repair
            most = min(most, BLOCKED_SCHEMA_MS_MAX)
        topic.retry_at_ms = now_ms + backoff_ms(topic.failures, self._rng, BLOCKED_MS_MIN, most)

    def _again(self, topic: TopicState, now_ms: int) -> None:
        topic.failures += 1
        topic.retry_at_ms = now_ms + backoff_ms(topic.failures, self._rng, RETRY_MS_MIN, RETRY_MS_MAX)

    # -------------------------------------------------------------------------------------------- reports owed to sources

    def owed(self, source: str, now_ms: int) -> list[Owed]:
        """The reports for a source, a GEO_COMMIT for each link; they stay owed until `commit_answered`."""
        found = []
        for state in self.links.values():
            if state.link.source != source:
                continue
            grants: list[pb.GeoGrant] = []
            revoked: list[str] = []
            if self.grants:
                self._update_grants(state, now_ms)
                grants, revoked = self.grants[state.link.number].owed()
            if state.owed or state.learned or grants or revoked:
                found.append(Owed(state.link, list(state.owed.values()), list(state.learned.values()), grants, revoked))
        return found

    def troubles(self, source: str) -> list[tuple[Link, Trouble]]:
        """The troubles of a source's links that the source does not know yet."""
        return [
            (state.link, trouble)
            for state in self.links.values()
            if state.link.source == source
            and state.reported
            and (trouble := self._trouble(state)) != state.reported_trouble
        ]

    def _trouble(self, state: LinkState) -> Trouble:
        breaker = self.breakers[state.link.target]
        throttled = bool(self.destinations[state.link.target].pace_bytes)
        if not breaker.closed:
            return Trouble("down", breaker.reason, throttled)
        return Trouble(state.blocked, state.reason, throttled)

    def trouble_reported(self, link: Link, trouble: Trouble) -> None:
        """A source was sent the trouble of a link."""
        self.links[link.number].reported_trouble = trouble

    def commit_answered(self, owed: Owed, ignored: Sequence[str], counter: int, now_ms: int) -> None:
        """A source answered a GEO_COMMIT. What changed since it was sent stays owed.

        Args:
            owed: the reports that it was sent.
            ignored: topics whose commit or grant was about another generation or incarnation.
            counter: its change counter after that.
            now_ms: the clock.
        """
        state, commits = self.links[owed.link.number], owed.commits
        if self.grants:
            self.grants[owed.link.number].answered(owed.grants, owed.revoked, ignored, counter, now_ms)
        for commit in commits:
            if state.owed.get(commit.topic) is commit:
                del state.owed[commit.topic]
        for learn in owed.learned:
            if state.learned.get(learn.topic) is learn:
                del state.learned[learn.topic]
        generations = {commit.topic: (commit.incarnation, commit.cursor.gen) for commit in commits}
        for name in ignored:
            topic = state.topics.get(name)
            if topic is not None and generations.get(name) == (topic.incarnation, topic.cursor.gen):
                # The source has another generation or incarnation: applied confirmations are void until it has reported it.
                topic.cursor = NOWHERE
                topic.last = NONE
                self._note_pending(state, topic)
                state.doubtful = True

    def probes(self, target: str) -> list[Handshake]:
        """A comparison of counters for one link to a destination: the question that a probe asks."""
        for state in self.links.values():
            if state.link.target == target and state.target_uuid and not state.blocked:
                return [Handshake(state.link, state.uuid, state.counter, ())]
        return []
