"""Keys of Pulsar's statistics whose value is always the same here, each with the reason: typed clients expect them."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from magnetar.core.ids import Position
from magnetar.core.times import iso_time


def of_topics() -> dict[str, Any]:
    """Constant fields of TopicStats."""
    return {
        # There is no tiered storage: everything is on the broker's own disk.
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        # Transactions are refused.
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        # Links and compaction read the log themselves, not by a subscription that is the broker's own.
        "bytesOutInternalCounter": 0,
    }


def of_subscriptions() -> dict[str, Any]:
    """Constant fields of SubscriptionStats."""
    return {
        # There are no entry filters.
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        # No consumer waits for mark-delete to pass the entries from before it joined: hashes drain instead (PIP-379).
        "consumersAfterMarkDeletePosition": {},
    }


def of_subscriptions_without_log() -> dict[str, Any]:
    """Constant fields of SubscriptionStats for non-persistent topics: no cursor, no backlog, no delayed or repeated
    messages, no rates.
    """
    return of_subscriptions() | {
        "isDurable": False,
        "isReplicated": False,
        "durable": False,
        "replicated": False,
        "msgBacklog": 0,
        "msgBacklogNoDelayed": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "unackedMessages": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "msgInReplay": 0,
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "lastExpireTimestamp": 0,
        "msgRateExpired": 0.0,
        "totalMsgExpired": 0,
        "subscriptionProperties": {},
        "dispatchThrottledMsgEventsBySubscriptionLimit": 0,
        "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
        "dispatchThrottledMsgEventsByBrokerLimit": 0,
        "dispatchThrottledBytesEventsByBrokerLimit": 0,
        "dispatchThrottledMsgEventsByTopicLimit": 0,
        "dispatchThrottledBytesEventsByTopicLimit": 0,
    }


def of_topics_without_log() -> dict[str, Any]:
    """Constant fields of TopicStats for non-persistent topics: no backlog, no quota on it, no deduplication, no
    compaction, no rates.
    """
    return of_topics() | {
        "storageSize": 0,
        "backlogSize": 0,
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": -1,
        "oldestBacklogMessageSubscriptionName": "",
        "earliestMsgPublishTimeInBacklogs": 0,
        "publishRateLimitedTimes": 0,
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "replication": {},  # links carry what is stored
        "deduplicationStatus": "Disabled",
        "compaction": {
            "lastCompactionRemovedEventCount": 0,
            "lastCompactionSucceedTimestamp": 0,
            "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": 0,
        },
    }


LEDGER: Final = {
    # There is no tiered storage, and no copy of a ledger that could be missing: copies are other clusters' own.
    "offloaded": False,
    "underReplicated": False,
}
"""Constant fields of LedgerInfo."""

CURSOR: Final = {
    # Cursors are kept in the metadata store, not in ledgers.
    "cursorLedger": -1,
    "cursorLedgerLastEntry": -1,
}
"""Constant fields of CursorStats."""


class Follows(Protocol):
    """Part of a topic's log."""

    def next_after(self, position: Position) -> Position | None:
        """The first entry after a position, or None."""
        ...


def read_position(log: Follows, taken: Position) -> str:
    """The read position of a cursor that has taken everything up to a position: the next entry, or where that will
    be.
    """
    return str(log.next_after(taken) or Position(taken.ledger, taken.entry + 1))


def internal_cursor(
    log: Follows,
    *,
    mark_delete: Position,
    taken: Position,
    entries_behind: int,
    consumed: int,
    state: str,
    active: bool,
    waiting: bool,
    since_ms: int,
    properties: Mapping[str, int],
) -> dict[str, Any]:
    """CursorStats of the broker's own cursors: they have no holes, and no dispatcher.

    Args:
        log: the topic's log.
        mark_delete, taken: the positions of both.
        entries_behind: number of entries that mark-delete has to pass yet.
        consumed: messages that it passed since the broker's start.
        state: a word.
        active: it is in use.
        waiting: it waits for new entries.
        since_ms: when it was opened.
        properties: numbers kept with it.
    """
    return CURSOR | {
        "markDeletePosition": str(mark_delete),
        "readPosition": read_position(log, taken),
        "individuallyDeletedMessages": "[]",
        "messagesConsumedCounter": consumed,
        "numberOfEntriesSinceFirstNotAckedMessage": entries_behind,
        "totalNonContiguousDeletedMessagesRange": 0,
        "waitingReadOp": waiting,
        "pendingReadOps": 0,
        "subscriptionHavePendingRead": waiting,
        "subscriptionHavePendingReplayRead": False,
        "lastLedgerSwitchTimestamp": iso_time(since_ms),
        "state": state,
        "active": active,
        "properties": dict(properties),
    }
