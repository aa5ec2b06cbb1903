"""Statistics of subscriptions as plain dicts, with Pulsar's names of keys (docs/design/pulsar.md#admin)."""

from typing import Any

from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.subscriptions.consumer import Consumer, SubType, rates_out
from magnetar.broker.subscriptions.dispatch.base import NOTHING_DRAINS
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.times import iso_time

RANGES_SHOWN_MAX = 100
"""Ranges written out in internal stats; the count is exact, the text is for people."""


def stats(subscription: Subscription, *, consumers: bool = True) -> dict[str, Any]:
    """Pulsar's SubscriptionStats, with consumers or without. `msgBacklog` counts entries without markers, `msgBacklogMessages` is
    ours.
    """
    cursor, activity, dispatcher, log = (
        subscription.cursor,
        subscription.activity,
        subscription.dispatcher,
        subscription.log,
    )
    present = dispatcher.consumers
    counters = subscription.counters()
    active = dispatcher.active
    throttled = dispatcher.context.throttled
    shown: dict[str, Any] = (
        rates_out(activity.meter)
        | statkeys.of_subscriptions()
        | NOTHING_DRAINS
        | {
            "type": subscription.sub_type.shown if subscription.sub_type is not None else "None",
            "isDurable": subscription.durable,
            "isReplicated": subscription.replicated,
            "durable": subscription.durable,
            "replicated": subscription.replicated,
            "msgBacklog": cursor.backlog_entries(),
            "msgBacklogMessages": cursor.backlog_messages(),
            "backlogSize": log.bytes_between(cursor.mark_delete, log.last) if log.last > cursor.mark_delete else 0,
            "unackedMessages": sum(consumer.unacked for consumer in present),
            "blockedSubscriptionOnUnackedMsgs": False,
            "msgDelayed": 0,
            "delayedMessageIndexSizeInBytes": 0,
            "msgInReplay": 0,
            "allowOutOfOrderDelivery": False,
            "activeConsumerName": active.name if active is not None else "",
            "consumers": [stats_of(subscription, consumer) for consumer in present] if consumers else [],
            "msgOutCounter": counters.messages_out,
            "bytesOutCounter": counters.bytes_out,
            "nonContiguousDeletedMessagesRanges": cursor.acked.count_runs(),
            "nonContiguousDeletedMessagesRangesSerializedSize": cursor.runs_bytes,
            "lastConsumedFlowTimestamp": activity.flow_ms,
            "lastConsumedTimestamp": max((consumer.last_consumed_ms for consumer in present), default=0),
            "lastAckedTimestamp": activity.acked_ms,
            "lastMarkDeleteAdvancedTimestamp": activity.mark_delete_moved_ms,
            "lastExpireTimestamp": activity.expired_ms,
            # Entries, as Pulsar counts them, not the messages of their batches.
            "msgRateExpired": activity.expired_meter.per_s[0],
            "totalMsgExpired": activity.expired_entries,
            "subscriptionProperties": dict(cursor.labels),
            "dispatchThrottledMsgEventsBySubscriptionLimit": throttled.messages_own,
            "dispatchThrottledBytesEventsBySubscriptionLimit": throttled.bytes_own,
            "dispatchThrottledMsgEventsByBrokerLimit": throttled.messages_broker,
            "dispatchThrottledBytesEventsByBrokerLimit": throttled.bytes_broker,
            "dispatchThrottledMsgEventsByTopicLimit": throttled.messages_topic,
            "dispatchThrottledBytesEventsByTopicLimit": throttled.bytes_topic,
        }
        | dispatcher.stats()
    )
    if (stopped := dispatcher.stopped) is not None:
        shown["stoppedAt"], shown["stoppedReason"] = str(stopped[0]), stopped[1]  # ours
    shown["msgBacklogNoDelayed"] = max(0, shown["msgBacklog"] - shown["msgDelayed"])
    return shown


def stats_of(subscription: Subscription, consumer: Consumer) -> dict[str, Any]:
    """Pulsar's ConsumerStats of one of the subscription's consumers."""
    return consumer.stats() | subscription.dispatcher.consumer_stats(consumer)


def internal_stats(subscription: Subscription) -> dict[str, Any]:
    """Pulsar's CursorStats (of ManagedLedgerInternalStats)."""
    cursor, dispatcher = subscription.cursor, subscription.dispatcher
    runs: list[str] = []
    for first, last in cursor.acked.runs():
        if len(runs) == RANGES_SHOWN_MAX:
            runs.append("...")
            break
        # Pulsar writes ranges open at their lower end.
        runs.append(f"({first.ledger}:{first.entry - 1}..{last}]")
    reading, again = dispatcher.reading.in_flight, dispatcher.reads_again
    return statkeys.CURSOR | {
        "markDeletePosition": str(cursor.mark_delete),
        "durableMarkDeletePosition": str(subscription.durable_mark_delete),
        "readPosition": statkeys.read_position(
            dispatcher.context.log, max(cursor.mark_delete, dispatcher.reading.after)
        ),
        "individuallyDeletedMessages": f"[{', '.join(runs)}]",
        "messagesConsumedCounter": subscription.counters().messages_acked,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog_entries() + len(cursor.acked),
        "totalNonContiguousDeletedMessagesRange": cursor.acked.count_runs(),
        "partiallyAcknowledgedBatches": len(cursor.partial),
        "waitingReadOp": dispatcher.waits,
        "pendingReadOps": int(reading) + again,
        "subscriptionHavePendingRead": dispatcher.waits or reading,
        "subscriptionHavePendingReplayRead": again > 0,
        # Pulsar: since when the cursor has its ledger. Here it has none: since when it is open.
        "lastLedgerSwitchTimestamp": iso_time(subscription.created_ms),
        "state": "Closed" if subscription.closed else "Open" if subscription.durable else "NoLedger",
        "active": bool(dispatcher.consumers),
        "properties": dict(cursor.properties),
    }


def consumer_stats(subscription: Subscription, consumer: Consumer) -> dict[str, Any]:
    """The fields of CommandConsumerStatsResponse, without the request's."""
    backlog, expired_per_s = subscription.cursor.backlog_entries(), subscription.activity.expired_meter.per_s[0]
    return consumer_fields(consumer, backlog=backlog, expired_per_s=expired_per_s)


def consumer_fields(consumer: Consumer, *, backlog: int, expired_per_s: float = 0.0) -> dict[str, Any]:
    """The same for a consumer whose subscription has this backlog of entries, and this many expired entries per
    second.
    """
    messages_out, bytes_out, redelivered, acked, _ = consumer.meter.per_s
    return {
        "msgRateOut": messages_out,
        "msgThroughputOut": bytes_out,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "consumerName": consumer.name,
        "availablePermits": max(0, consumer.permits),
        "unackedMessages": consumer.unacked,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.address,
        "connectedSince": iso_time(consumer.connected_ms),
        "type": SubType(consumer.sub_type).shown,
        "msgRateExpired": expired_per_s,
        "msgBacklog": backlog,
    }
