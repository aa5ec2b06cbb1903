"""Statistics as plain dicts, with Pulsar's names of keys where Pulsar has them (pulsar-facts H)."""

from typing import TYPE_CHECKING, Any

from magnetar.broker.deduplicating import CURSOR_NAME, Status
from magnetar.broker.producers import rates_in
from magnetar.core.ids import NONE
from magnetar.core.times import iso_time

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.subscription import Subscription
    from magnetar.broker.topic import Topic


def topic_stats(broker: "Broker", topic: "Topic") -> dict[str, Any]:
    """Pulsar's stats of one topic or partition."""
    subscriptions = {name: subscription.stats() for name, subscription in topic.subscriptions.items()}
    for name in topic.replicated.subscriptions() if topic.replicated is not None else ():
        subscriptions[name]["replicatedMode"] = broker.replication.mode_of(topic)
    for name, subscription in topic.subscriptions.items():
        subscriptions[name]["earliestMsgPublishTimeInBacklog"] = _earliest(topic, subscription)
        for consumer, shown in zip(subscription.consumers, subscriptions[name]["consumers"], strict=True):
            _add_version(broker, consumer.connection, shown)
    publishers = topic.publisher_stats()
    for producer, shown in zip(topic.producers.live.values(), publishers, strict=True):
        _add_version(broker, producer.connection, shown)
    earliest = [s["earliestMsgPublishTimeInBacklog"] for s in subscriptions.values()]
    last = topic.last_message_position()
    return rates_in(topic.meter, topic.messages_in, topic.bytes_in) | {
        "msgRateOut": sum(subscription["msgRateOut"] for subscription in subscriptions.values()),
        "msgThroughputOut": sum(subscription["msgThroughputOut"] for subscription in subscriptions.values()),
        "msgInCounter": topic.messages_in,
        "bytesInCounter": topic.bytes_in,
        "msgOutCounter": sum(subscription["msgOutCounter"] for subscription in subscriptions.values()),
        "bytesOutCounter": sum(subscription["bytesOutCounter"] for subscription in subscriptions.values()),
        "storageSize": topic.log.bytes_retained,
        "backlogSize": max((s.get("backlogSize", 0) for s in subscriptions.values()), default=0),
        "earliestMsgPublishTimeInBacklogs": min(filter(None, earliest), default=0),
        "topicCreationTimeStamp": topic.record.created_ms,
        "lastPublishTimeStamp": topic.log.time_at(last) if topic.log.valid(last) else 0,
        "publishers": publishers,
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": broker.links.topic_stats(topic),
        "deduplicationStatus": topic.deduplication.status if topic.deduplication is not None else Status.DISABLED,
        "compaction": broker.compactions.status(topic).stats(),
        "idempotency": topic.idempotency.stats() if topic.idempotency is not None else None,
        "ownerBroker": broker.service_url.removeprefix("pulsar://"),
        "originIndexNext": topic.log.next_index,
        "incarnation": topic.record.incarnation,
    }


def _earliest(topic: "Topic", subscription: "Subscription") -> int:
    """When the first message that a subscription has not acknowledged was published, ms; 0 when there is none."""
    first = subscription.nth_unacknowledged(1)
    return topic.log.time_at(first) if first is not None else 0


def _add_version(broker: "Broker", connection: int, shown: dict[str, Any]) -> None:
    """What the client of a producer or consumer calls itself; links and clients that are just going have no session."""
    session = broker.sessions.get(connection)
    if session is not None and session.client_version:
        shown["clientVersion"] = session.client_version


def internal_stats(broker: "Broker", topic: "Topic") -> dict[str, Any]:
    """Pulsar's internal stats of one topic or partition."""
    log = topic.log
    ledgers = log.ledger_infos()
    cursors = {name: subscription.internal_stats() for name, subscription in topic.subscriptions.items()}
    for state in broker.replication.states(topic):
        cursors[state["subscription"]]["replicatedState"] = state
    cursors |= broker.links.cursor_stats(topic)
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
        "state": "Terminated" if topic.record.terminated else "Fenced" if topic.fenced else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": ledger.ledger,
                "entries": ledger.entries,
                "size": ledger.bytes,
                # Pulsar: when it was closed, 0 before. Of that only the time of the last entry is kept.
                "timestamp": ledger.newest_ms if ledger.closed else 0,
                "offloaded": False,
            }
            for ledger in ledgers
        ],
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": _compacted(topic),
        "compactedUpTo": str(topic.compacted.horizon),
        "watermarks": {source: str(position) for source, position in log.watermarks().items()},
    }


def _compacted(topic: "Topic") -> dict[str, Any]:
    """With Pulsar's keys. Compaction copies nothing: there is no ledger of its own, and its size is not counted."""
    return {"ledgerId": -1, "entries": _compacted_entries(topic), "size": -1, "offloaded": False}


def _compacted_entries(topic: "Topic") -> int:
    """Entries that one who reads compacted is given of what is compacted; -1 when the topic never was."""
    horizon, superfluous = topic.compacted.horizon, topic.compacted.gone.entries.ledgers
    if horizon == NONE:
        return -1
    kept = 0
    for ledger, first, end in topic.log.pieces(NONE, horizon):
        gone = superfluous[ledger.ledger].rank(end - 1) if ledger.ledger in superfluous else 0
        kept += end - first - ledger.markers_in(first, end) - gone
    return kept


def broker_stats(broker: "Broker") -> dict[str, Any]:
    """Figures of the whole broker; counters since its start."""
    topics = broker.topics.values()
    subscriptions = [subscription for topic in topics for subscription in topic.subscriptions.values()]
    return {
        "connections": len(broker.sessions),
        "producers": sum(len(topic.producers.live) for topic in topics),
        "consumers": sum(len(subscription.consumers) for subscription in subscriptions),
        "topics": len(broker.topics),
        "subscriptions": len(subscriptions),
        "msgInCounter": sum(topic.messages_in for topic in topics),
        "bytesInCounter": sum(topic.bytes_in for topic in topics),
        "msgOutCounter": sum(subscription.messages_out for subscription in subscriptions),
        "bytesOutCounter": sum(subscription.bytes_out for subscription in subscriptions),
        "pendingPublishBytes": broker.pending_bytes,
        "storageSize": sum(topic.log.bytes_retained for topic in topics),
        "cursorRangesLeftOut": broker.ranges_left_out,
        "deduplication": broker.deduplications.stats(),
        "idempotency": broker.idempotencies.stats(),
        "schemas": broker.schemas.stats(),
        "security": broker.access.stats(),
        "ready": broker.healthy,
        "state": "" if broker.healthy else "the log cannot be written; publishing waits until it can",
    }
