"""Reports of a broker about its links: states, statistics, obstacles."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

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

    def states(self) -> list[LinkState]:
        """Every outgoing link."""
        return [
            self._state(source, [self.topic_state(state, source.to) for _, state in sorted(source.topics.items())])
            for source in self._sources.values()
        ]

    def state_alone(self, source: LinkSource) -> LinkState:
        """An outgoing link without its topics, and figures that are theirs."""
        return self._state(source, [])

    def topic_state(self, state: LinkTopic, target: str) -> LinkTopicState:
        """One topic of the link to a target."""
        return self._topic_state(state, self._outbox.day_ms, target)

    def _state(self, source: LinkSource, topics: list[LinkTopicState]) -> LinkState:
        wanted = [topic for topic in topics if not topic["orphan"]]
        state, detail = "up", ""
        if not source.linked:
            state, detail = "idle", "the link is no longer configured; orphaned cursors hold data"
        elif source.record.paused:
            state, detail = "paused", "paused by an operator"
        elif not source.lease.live:
            state, detail = "idle", LEASE_SILENT
        elif source.trouble:
            state, detail = ("blocked" if source.trouble == "identity" else "down"), source.trouble_reason
        sent, lost = self._sent[source.to], source.lost
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
            skipped_messages=sum(one.skipped for one in source.topics.values()),
            gap_messages=sum(one.gap for one in source.topics.values()),
            skipped_messages_total=lost[1],
            gap_messages_total=lost[0],
            lag_messages=sum(topic["lag_messages"] for topic in wanted),
            lag_bytes=sum(topic["lag_bytes"] for topic in wanted),
            lag_ms=max((topic["lag_ms"] for topic in wanted), default=0),
            topics=topics,
        )

    def _topic_state(self, state: LinkTopic, now_ms: int, target: str) -> LinkTopicState:
        here = self._context.cluster
        entries, size, oldest_ms = state.pending(state.end)
        report = LinkTopicState(
            topic=state.name,
            c=str(state.cursor.c),
            s=str(state.cursor.s),
            gen=state.cursor.gen,
            lag_messages=state.lag_messages() if entries else 0,
            lag_bytes=size if entries else 0,
            lag_ms=max(0, now_ms - oldest_ms) if entries else 0,
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
                report["schema_conflict"] = described_conflict(state.blocked.conflict, here, target)
        if not report["lag_messages"]:
            # Entries after C that no link has to send (they arrived over one) are not a lag.
            report["lag_bytes"] = report["lag_ms"] = 0
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

    def status(self) -> dict[str, Any]:
        """The destination's side, and what was lost."""
        return {
            "incoming": self._destination.status(),
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
                report = self._topic_state(state, now_ms, target)
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
                    "replicationBacklog": report["lag_messages"],
                    "connected": source.lease.live and not source.trouble,
                    "replicationDelayInSeconds": report["lag_ms"] // 1000,
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
