"""Statistics as plain dicts, with Pulsar's names of keys where Pulsar has them (pulsar-facts H)."""

from typing import TYPE_CHECKING, Any

from magnetar.broker.deduplicating import CURSOR_NAME, Status
from magnetar.broker.producers import rates_in
from magnetar.core.ids import NONE

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.topic import Topic


def topic_stats(broker: "Broker", topic: "Topic") -> dict[str, Any]:
    """Pulsar's stats of one topic or partition."""
    subscriptions = {name: subscription.stats() for name, subscription in topic.subscriptions.items()}
    for name in topic.replicated.subscriptions() if topic.replicated is not None else ():
        subscriptions[name]["replicatedMode"] = broker.replication.mode_of(topic)
    return rates_in(topic.meter, topic.messages_in, topic.bytes_in) | {
        "msgRateOut": sum(subscription["msgRateOut"] for subscription in subscriptions.values()),
        "msgThroughputOut": sum(subscription["msgThroughputOut"] for subscription in subscriptions.values()),
        "msgInCounter": topic.messages_in,
        "bytesInCounter": topic.bytes_in,
        "msgOutCounter": sum(subscription["msgOutCounter"] for subscription in subscriptions.values()),
        "bytesOutCounter": sum(subscription["bytesOutCounter"] for subscription in subscriptions.values()),
        "storageSize": topic.log.bytes_retained,
        "backlogSize": max((s.get("backlogSize", 0) for s in subscriptions.values()), default=0),
        "publishers": topic.publisher_stats(),
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": broker.links.topic_stats(topic),
        "deduplicationStatus": topic.deduplication.status if topic.deduplication is not None else Status.DISABLED,
        "idempotency": topic.idempotency.stats() if topic.idempotency is not None else None,
        "ownerBroker": broker.service_url.removeprefix("pulsar://"),
        "originIndexNext": topic.log.next_index,
        "incarnation": topic.record.incarnation,
    }


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
        "lastConfirmedEntry": str(log.last) if log.last != NONE else "-1:-1",
        "state": "Terminated" if topic.record.terminated else "Fenced" if topic.fenced else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": ledger.ledger,
                "entries": ledger.entries,
                "size": ledger.bytes,
                "offloaded": False,
            }
            for ledger in ledgers
        ],
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1,
            "entries": -1,
            "size": -1,
            "offloaded": False,
        },
        "watermarks": {source: str(position) for source, position in log.watermarks().items()},
    }


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
        "deduplication": broker.deduplications.stats(),
        "idempotency": broker.idempotencies.stats(),
        "schemas": broker.schemas.stats(),
        "security": broker.access.stats(),
        "ready": broker.healthy,
        "state": "" if broker.healthy else "the log cannot be written; publishing waits until it can",
    }
