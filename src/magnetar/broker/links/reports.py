"""Reports of a broker about its links: states, statistics, obstacles."""

from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext
from magnetar.broker.links.restores import Restores
from magnetar.broker.links.schemas import described_conflict
from magnetar.broker.links.states import LinkState, LinkTopicState
from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.statistics.link_flow import NO_FLOW
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import NONE
from magnetar.core.names import link_cursor_name
from magnetar.core.times import iso_time
from magnetar.replication.link.destination import LinkDestination
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.policy import unlinked
from magnetar.replication.link.source import LinkSource

LEASE_SILENT: Final = "no pipeline serves this link; start one: magnetar replicate"

TOPICS_A_STEP: Final = 200
"""Topics that are read for the figures of a link before others get their turn: some 0.2 ms where they have no lag."""


class Lag(NamedTuple):
    """The messages that a topic has still to send."""

    messages: int = 0
    size: int = 0
    age_ms: int = 0


NO_LAG: Final = Lag()


@dataclass(slots=True)
class _Sums:
    """The figures of a link that are sums over its topics; `age_ms` is the largest."""

    skipped: int = 0
    gap: int = 0
    messages: int = 0
    size: int = 0
    age_ms: int = 0

    def add(self, state: LinkTopic, lag: Lag) -> None:
        """Count one topic; the lag of an orphan is no lag of the link."""
        self.skipped += state.skipped
        self.gap += state.gap
        if state.wanted and lag is not NO_LAG:
            self.messages += lag.messages
            self.size += lag.size
            self.age_ms = max(self.age_ms, lag.age_ms)


class LinkReporter:
    """Describes the links of one broker; changes nothing.

    Args:
        context: the broker's context.
        linked: clusters that a configured link leads to from here.
        sources, destination, restores: the machines to report.
        sent: by target, the messages and bytes that were confirmed since the start.
        clients: the connected peers.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        linked: frozenset[str],
        sources: Mapping[str, LinkSource],
        destination: LinkDestination,
        restores: Restores,
        sent: Mapping[str, Sequence[int]],
        clients: Clients,
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._linked = linked
        self._sources = sources
        self._destination = destination
        self._restores = restores
        self._sent = sent
        self._clients = clients

    def states(self, shown: Container[str] | None = None) -> Generator[None, None, list[LinkState]]:
        """Every outgoing link with its topics by name, in steps of `TOPICS_A_STEP` topics.

        Args:
            shown: the topics that are described; so are those that are blocked. The others are in the sums alone. None: all.
        """
        found: list[LinkState] = []
        for source in list(self._sources.values()):
            found += [(yield from self._with_topics(source, shown))]
        return found

    def _with_topics(self, source: LinkSource, shown: Container[str] | None) -> Generator[None, None, LinkState]:
        sums, topics, losers = _Sums(), [], []
        now_ms, of = self._outbox.day_ms, source.topics
        for number, state in enumerate(list(of.values()), 1):
            if of.get(state.name) is state:  # it may have been deleted since
                lag = self._lag(state, now_ms)
                sums.add(state, lag)
                if state.gap or state.skipped:
                    losers.append(state)
                if shown is None or state.blocked is not None or state.name in shown:
                    topics.append(self._topic_state(state, lag, source.to))
            if number % TOPICS_A_STEP == 0:
                yield
        topics.sort(key=lambda topic: topic["topic"])
        return self._state(source, topics, sums, source.lost_by(losers))

    def state_alone(self, source: LinkSource) -> LinkState:
        """An outgoing link without its topics, and without their lag."""
        sums = _Sums()
        for state in source.topics.values():
            sums.add(state, NO_LAG)
        return self._state(source, [], sums, source.lost)

    def topic_state(self, state: LinkTopic, target: str) -> LinkTopicState:
        """One topic of the link to a target."""
        return self._topic_state(state, self._lag(state, self._outbox.day_ms), target)

    def _state(self, source: LinkSource, topics: list[LinkTopicState], sums: _Sums, lost: tuple[int, int]) -> LinkState:
        state, detail = "up", ""
        if not source.linked:
            state, detail = "idle", "the link is no longer configured; orphaned cursors hold data"
        elif source.record.paused:
            state, detail = "paused", "paused by an operator"
        elif not source.lease.live:
            state, detail = "idle", LEASE_SILENT
        elif source.trouble:
            state, detail = ("blocked" if source.trouble == "identity" else "down"), source.trouble_reason
        sent = self._sent[source.to]
        return LinkState(
            source=self._context.cluster,
            target=source.to,
            state=state,
            since_ms=source.trouble_since_ms,
            detail=detail,
            paused=source.record.paused,
            throttle_bytes_per_s=source.record.throttle_bytes_per_s or None,
            throttled=source.throttled,
            messages_sent=sent[0],
            bytes_sent=sent[1],
            skipped_messages=sums.skipped,
            gap_messages=sums.gap,
            skipped_messages_total=lost[1],
            gap_messages_total=lost[0],
            lag_messages=sums.messages,
            lag_bytes=sums.size,
            lag_ms=sums.age_ms,
            topics=topics,
        )

    @staticmethod
    def _lag(state: LinkTopic, now_ms: int) -> Lag:
        if state.cursor.c >= state.end:
            return NO_LAG
        entries, size, oldest_ms = state.pending(state.end)
        messages = state.lag_messages() if entries else 0
        # Entries after C that no link has to send (they arrived over one) are not a lag.
        return Lag(messages, size, max(0, now_ms - oldest_ms)) if messages else NO_LAG

    def _topic_state(self, state: LinkTopic, lag: Lag, target: str) -> LinkTopicState:
        report = LinkTopicState(
            topic=state.name,
            c=str(state.cursor.c),
            s=str(state.cursor.s),
            gen=state.cursor.gen,
            lag_messages=lag.messages,
            lag_bytes=lag.size,
            lag_ms=lag.age_ms,
            paused=state.paused,
            blocked=state.blocked.kind if state.blocked is not None else "",
            orphan=not state.wanted,
            gap_messages=state.gap,
        )
        if state.blocked is not None:
            report["blocked_detail"] = state.blocked.reason
            report["blocked_since_ms"] = state.blocked.since_ms
            if state.blocked.position != NONE:
                report["blocked_at"] = str(state.blocked.position)
            if state.blocked.conflict is not None:
                report["schema_conflict"] = described_conflict(state.blocked.conflict, self._context.cluster, target)
        return report

    def why_not(self, source: LinkSource, state: LinkTopic) -> str:
        """The reason why a topic does not continue on a link, in one line; "" if none is known."""
        if source.record.paused or state.paused:
            return "the link is paused" if source.record.paused else "the topic is paused on the link"
        if state.blocked is not None:
            return f"blocked ({state.blocked.kind}): {state.blocked.reason}"
        if not source.lease.live:
            return LEASE_SILENT
        return source.trouble_reason if source.trouble else ""

    def incoming(self) -> dict[str, Any]:
        """The destination's side: by source, plain values."""
        return self._destination.status()

    def status(self) -> dict[str, Any]:
        """The destination's side, and what was lost."""
        return {
            "incoming": self.incoming(),
            "gaps": {
                f"{source.to} {state.name}": state.gap
                for source in self._sources.values()
                for state in source.topics.values()
                if state.gap
            },
            "unlinked": self.unlinked(),
            "restored": self._restores.status(),
        }

    def unlinked(self) -> dict[str, list[str]]:
        """By namespace: clusters that its policy names although no link leads there, so they get nothing."""
        resources, found = self._context.resources, {}
        for namespace in resources.all_namespaces():
            if resources.serves(namespace):
                named = unlinked(self._context.cluster, resources.replication_clusters(namespace), self._linked)
                if named:
                    found[str(namespace)] = sorted(named)
        return found

    def topic_stats(self, topic: Topic) -> dict[str, Any]:
        """Pulsar's `replication` part of a topic's statistics."""
        now_ms = self._outbox.day_ms
        found: dict[str, Any] = {}
        for target, source in self._sources.items():
            state = source.topics.get(topic.text)
            if state is not None and state.wanted:
                lag = self._lag(state, now_ms)
                flow = topic.flows.get(target, NO_FLOW)
                messages_in, bytes_in, messages_out, bytes_out = flow.meter.per_s
                found[target] = {
                    "msgRateIn": messages_in,
                    "msgThroughputIn": bytes_in,
                    "msgRateOut": messages_out,
                    "msgThroughputOut": bytes_out,
                    "msgInCount": flow.messages_in,
                    "bytesInCount": flow.bytes_in,
                    "msgOutCount": flow.messages_out,
                    "bytesOutCount": flow.bytes_out,
                    # Links do not expire messages: unsent ones would be lost.
                    "msgRateExpired": 0.0,
                    "msgExpiredCount": 0,
                    "replicationBacklog": lag.messages,
                    "connected": source.lease.live and not source.trouble,
                    "replicationDelayInSeconds": lag.age_ms // 1000,
                    **self._connection("inbound", flow.inbound),
                    **self._connection("outbound", source.lease.connection if source.lease.live else None),
                }
        return found

    def _connection(self, direction: str, number: int | None) -> dict[str, str]:
        """A pipeline's connection to this broker, with Pulsar's keys; empty if it is gone, or never existed.

        Pulsar's brokers connect to each other; here a pipeline reads entries from one and appends them to the other.
        """
        connection = self._clients.connection(number) if number is not None else None
        if connection is None:
            return {}
        return {
            f"{direction}Connection": connection.address,
            f"{direction}ConnectedSince": iso_time(connection.connected_ms),
        }

    def cursor_stats(self, topic: Topic) -> dict[str, Any]:
        """The links' cursors, for internal statistics."""
        found: dict[str, Any] = {}
        for target, source in self._sources.items():
            state = source.topics.get(topic.text)
            if state is not None:
                to_go = state.pending(state.end)[0]
                active = source.lease.live
                found[link_cursor_name(target)] = statkeys.internal_cursor(
                    topic.log,
                    mark_delete=state.cursor.c,
                    taken=max(state.cursor.c, state.cursor.s),
                    entries_behind=to_go,
                    state="Open" if state.wanted else "Orphan",
                    active=active,
                    waiting=active and state.wanted and not to_go,
                    since_ms=self._context.boot,
                    properties={},
                    consumed=topic.flows.get(target, NO_FLOW).messages_out,
                ) | {
                    "sentPosition": str(state.cursor.s),
                    "generation": state.cursor.gen,
                    "durablePosition": str(state.low),
                }
        return found
