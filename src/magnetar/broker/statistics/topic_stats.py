"""Statistics as plain dicts, with Pulsar's names of keys if Pulsar has them (docs/design/pulsar.md#admin)."""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from pyroaring import BitMap

from magnetar.broker.clients import Clients
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.links.reports import LinkReporter
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.publish.deduplication import CURSOR_NAME, Status
from magnetar.broker.publish.producers import rates_in
from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions
from magnetar.broker.security.access import Access
from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.compaction_runs import Compactions
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import NONE
from magnetar.core.names import TopicName
from magnetar.core.times import iso_time
from magnetar.metadata.policies.namespace import BacklogQuota

NOTHING: Final = BitMap()
NO_QUOTA: Final = BacklogQuota()


_T = TypeVar("_T")

Steps = Generator[None, None, dict[str, Any]]
"""Makes statistics, a few clients, subscriptions or ledgers per step, so that its caller can do other work in between.
The values may change meanwhile.
"""

CLIENTS_A_STEP: Final = 20
"""Producers or consumers: some 0.3 ms."""


def at_once(steps: Generator[None, None, _T]) -> _T:
    """Run all steps at once, for statistics of few clients or topics."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


_Shown = Generator[None, None, list[dict[str, Any]]]

SUMMED: Final = (
    "msgRateOut",
    "msgThroughputOut",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
)
"""The keys of a topic that are sums over its subscriptions."""


class TopicStatistics:
    """Describes the topics of one broker; changes nothing.

    Args:
        context: of the broker.
        clients: the connected ones.
        access: whether they have to prove who they are.
        reports: describes links.
        replicated_subscriptions: of the broker.
        compactions: of the broker.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: Clients,
        access: Access,
        reports: LinkReporter,
        replicated_subscriptions: ReplicatedSubscriptions,
        compactions: Compactions,
    ) -> None:
        self._context, self._clients, self._access = context, clients, access
        self._reports, self._replicated_subscriptions, self._compactions = (
            reports,
            replicated_subscriptions,
            compactions,
        )

    def stored(self, topic: Topic, *, publishers: bool = True, consumers: bool = True) -> Steps:
        """Pulsar's stats of one topic or partition.

        Args:
            topic: the topic.
            publishers: with producers.
            consumers: with consumers of each subscription.
        """
        subscriptions: dict[str, dict[str, Any]] = {}
        host = topic.replicated_subscriptions
        replicated = frozenset(host.subscriptions() if host is not None else ())
        for name, subscription in list(topic.subscriptions.items()):
            shown = subscription_stats.stats(subscription, consumers=False)
            shown["earliestMsgPublishTimeInBacklog"] = _earliest(topic, subscription)
            if name in replicated:
                shown["replicatedMode"] = self._replicated_subscriptions.mode_of(topic)
            if consumers:
                shown["consumers"] = yield from self._consumers(
                    subscription.consumers, partial(subscription_stats.stats_of, subscription)
                )
            subscriptions[name] = shown
            yield
        shown_publishers = (yield from self._publishers(topic)) if publishers else []
        earliest = [s["earliestMsgPublishTimeInBacklog"] for s in subscriptions.values()]
        last = topic.last_message_position()
        return (
            rates_in(topic.meter)
            | statkeys.of_topics()
            | self._backlog(topic, subscriptions)
            | {
                **{key: sum(subscription[key] for subscription in subscriptions.values()) for key in SUMMED},
                "msgInCounter": topic.messages_in,
                "bytesInCounter": topic.bytes_in,
                "msgOutCounter": topic.traffic().messages_out,
                "bytesOutCounter": topic.traffic().bytes_out,
                "systemTopicBytesInCounter": topic.bytes_in if topic.name.local.startswith("__") else 0,
                "msgChunkPublished": topic.chunked,
                "publishRateLimitedTimes": topic.publish_limited,
                "storageSize": topic.log.bytes_retained,
                "earliestMsgPublishTimeInBacklogs": min(filter(None, earliest), default=0),
                "topicCreationTimeStamp": topic.record.created_ms,
                "lastPublishTimeStamp": topic.log.time_at(last) if topic.log.valid(last) else 0,
                "publishers": shown_publishers,
                "waitingPublishers": len(topic.producers.waiting),
                "subscriptions": subscriptions,
                "replication": self._reports.topic_stats(topic),
                "deduplicationStatus": (
                    Status.DISABLED if topic.deduplication is None else topic.deduplication.status
                ).value,
                "compaction": self._compactions.status(topic).stats(),
                "idempotency": topic.idempotency.stats() if topic.idempotency is not None else None,
                "ownerBroker": self._owner(),
                "originIndexNext": topic.log.next_index,
                "incarnation": topic.record.incarnation,
            }
            | _epoch(topic)
        )

    def nonpersistent(self, topic: NonPersistentTopic, *, publishers: bool = True, consumers: bool = True) -> Steps:
        """The same of a topic, or partition, that stores nothing."""
        subscriptions: dict[str, dict[str, Any]] = {}
        for name, subscription in list(topic.subscriptions.items()):
            subscriptions[name] = subscription.stats(consumers=False)
            if consumers:
                subscriptions[name]["consumers"] = yield from self._consumers(
                    subscription.consumers, subscription.stats_of
                )
            yield
        shown = topic.stats(subscriptions) | {"ownerBroker": self._owner()} | _epoch(topic)
        if publishers:
            # A producer that is too fast is slowed down by its socket: nothing is dropped before the subscriptions.
            shown["publishers"] = [one | {"msgDropRate": 0.0} for one in (yield from self._publishers(topic))]
        return shown

    def unopened(self, name: TopicName) -> Steps:
        """The same for a partition without clients: it begins with its first client and ends with its last."""
        shown = yield from self.nonpersistent(NonPersistentTopic(name, self._context.outbox, ledger=0))
        return shown | {"topicCreationTimeStamp": 0}

    def internal(self, topic: Topic) -> Steps:
        """Pulsar's internal stats of one topic or partition."""
        log = topic.log
        cursors: dict[str, dict[str, Any]] = {}
        for name, subscription in list(topic.subscriptions.items()):
            cursors[name] = subscription_stats.internal_stats(subscription)
            yield
        for state in self._replicated_subscriptions.states(topic):
            if state["subscription"] in cursors:  # others came meanwhile
                cursors[state["subscription"]]["replicatedState"] = state
        yield
        ledgers = log.ledger_infos()
        cursors |= self._reports.cursor_stats(topic)
        if topic.deduplication is not None:
            cursors[CURSOR_NAME] = topic.deduplication.internal_stats()
        current = ledgers[-1] if ledgers else None
        return {
            "entriesAddedCounter": topic.entries_in,
            "numberOfEntries": sum(ledger.entries for ledger in ledgers),
            "totalSize": log.bytes_retained,
            "currentLedgerEntries": current.entries if current else 0,
            "currentLedgerSize": current.bytes if current else 0,
            "lastLedgerCreatedTimestamp": iso_time(current.created_ms) if current else "",
            "lastConfirmedEntry": str(log.last) if log.last != NONE else "-1:-1",
            "waitingCursorsCount": sum(cursor.get("waitingReadOp", False) for cursor in cursors.values()),
            "pendingAddEntriesCount": topic.entries_pending,
            "state": "Terminated" if topic.terminated else "Fenced" if topic.write_failed else "LedgerOpened",
            "ledgers": [
                statkeys.LEDGER
                | {
                    "ledgerId": ledger.ledger,
                    "entries": ledger.entries,
                    "size": ledger.bytes,
                    # Pulsar: when it was closed, 0 before. Of that only the time of the last entry is kept.
                    "timestamp": ledger.newest_ms if ledger.closed else 0,
                }
                for ledger in ledgers
            ],
            "cursors": cursors,
            "schemaLedgers": [],
            "compactedLedger": _compacted(topic),
            "compactedUpTo": str(topic.horizon),
            "watermarks": {source: str(position) for source, position in log.watermarks().items()},
        }

    def _backlog(self, topic: Topic, subscriptions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """A topic's backlog and its quotas. As for the quotas, the age is that of durable subscriptions only."""
        quotas = self._context.resources.backlog_quotas(topic.name)
        size, age = quotas.get("destination_storage", NO_QUOTA), quotas.get("message_age", NO_QUOTA)
        times = {name: s["earliestMsgPublishTimeInBacklog"] for name, s in subscriptions.items() if s["isDurable"]}
        oldest_ms, oldest = min(((at_ms, name) for name, at_ms in times.items() if at_ms), default=(0, ""))
        return {
            "backlogSize": max((s["backlogSize"] for s in subscriptions.values()), default=0),
            "backlogQuotaLimitSize": size.limit_size,
            "backlogQuotaLimitTime": age.limit_time,
            "oldestBacklogMessageAgeSeconds": max(0, self._context.outbox.day_ms - oldest_ms) // 1000 if oldest else -1,
            "oldestBacklogMessageSubscriptionName": oldest,
        }

    def _owner(self) -> str:
        """The broker's name as in Pulsar: host and port of its admin interface, as in `/admin/v2/brokers`."""
        return self._context.web_url.partition("://")[2]

    def _publishers(self, topic: Topic | NonPersistentTopic) -> _Shown:
        """Producers, with what their connections alone know."""
        found: list[dict[str, Any]] = []
        for producer in list(topic.producers.live.values()):
            shown = producer.stats()
            self._add_client(producer.connection, shown)
            found.append(shown)
            if len(found) % CLIENTS_A_STEP == 0:
                yield
        return found

    def _consumers(self, consumers: Iterable[Consumer], stats_of: Callable[[Consumer], dict[str, Any]]) -> _Shown:
        """Consumers of a subscription, likewise."""
        found: list[dict[str, Any]] = []
        for consumer in list(consumers):
            shown = stats_of(consumer)
            connection = self._add_client(consumer.connection, shown)
            if connection is not None and self._access.enabled:
                shown["appId"] = connection.identity.role
            found.append(shown)
            if len(found) % CLIENTS_A_STEP == 0:
                yield
        return found

    def _add_client(self, number: int, shown: dict[str, Any]) -> Connection | None:
        """Add a client's own description; links and clients that are just disconnecting have no connection here."""
        connection = self._clients.connection(number)
        if connection is not None and connection.client_version:
            shown["clientVersion"] = connection.client_version
        return connection


def _earliest(topic: Topic, subscription: Subscription) -> int:
    """The publish time of the first unacknowledged message of a subscription, ms; 0 if there is none."""
    first = subscription.nth_unacknowledged(1)
    return topic.log.time_at(first) if first is not None else 0


def _epoch(topic: Topic | NonPersistentTopic) -> dict[str, int]:
    """The topic epoch of its producers; as in Pulsar, nothing before the first one with exclusive access."""
    epoch = topic.producers.topic_epoch
    return {"topicEpoch": epoch} if epoch else {}


def _compacted(topic: Topic) -> dict[str, Any]:
    """Statistics with Pulsar's keys. Compaction copies nothing: there is no ledger of its own, and its size is not
    counted.
    """
    return statkeys.LEDGER | {"ledgerId": -1, "entries": compacted_entries(topic), "size": -1}


def compacted_entries(topic: Topic) -> int:
    """Entries of the compacted part that a reader of the compacted topic gets; -1 when the topic never was."""
    horizon = topic.horizon
    if horizon == NONE:
        return -1
    superfluous, deletions = topic.compacted.gone.entries.ledgers, topic.compacted.deletions
    kept = 0
    for ledger, first, end in topic.log.pieces(NONE, horizon):
        gone = deletions.beside(ledger.ledger, superfluous.get(ledger.ledger, NOTHING)).rank(end - 1)
        kept += end - first - ledger.markers_in(first, end) - gone
    return kept
