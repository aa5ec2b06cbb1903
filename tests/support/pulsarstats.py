"""The keys of Pulsar's statistics and their JSON types, for what a broker tells to be compared with.

Of Pulsar 4.x: TopicStatsImpl and its like, as Jackson writes them, without what is null.
"""

from typing import Any, NamedTuple

NUMBER = (int, float)
"""JSON has one kind of number; where Go wants a float any will do, where it wants an integer only an integer."""

ANY: Any = object()

Types = dict[str, Any]
"""Key -> type of its value; a dict of types for an object, a list of one for a list, `{"*": ...}` for an object by name."""

RATES_IN: Types = {"msgRateIn": NUMBER, "msgThroughputIn": NUMBER, "averageMsgSize": NUMBER}
RATES_OUT: Types = {"msgRateOut": NUMBER, "msgThroughputOut": NUMBER}


class Maybe(NamedTuple):
    """A key that Pulsar leaves out while it has no value (null)."""

    kind: Any


PUBLISHER: Types = RATES_IN | {
    "accessMode": str,
    "chunkedMessageRate": NUMBER,
    "producerId": int,
    "supportsPartialProducer": bool,
    "producerName": str,
    "address": str,
    "connectedSince": str,
    "clientVersion": Maybe(str),
    "metadata": {"*": str},
}

CONSUMER: Types = RATES_OUT | {
    "appId": Maybe(str),
    "bytesOutCounter": int,
    "msgOutCounter": int,
    "msgRateRedeliver": NUMBER,
    "messageAckRate": NUMBER,
    "chunkedMessageRate": NUMBER,
    "consumerName": str,
    "availablePermits": int,
    "unackedMessages": int,
    "avgMessagesPerEntry": int,
    "blockedConsumerOnUnackedMsgs": bool,
    "readPositionWhenJoining": Maybe(str),  # of Key_Shared before version 4
    "drainingHashesCount": int,
    "drainingHashesClearedTotal": int,
    "drainingHashesUnackedMessages": int,
    "drainingHashes": Maybe([{"hash": int, "unackMsgs": int, "blockedAttempts": int}]),
    "address": str,
    "connectedSince": str,
    "clientVersion": Maybe(str),
    "lastAckedTimestamp": int,
    "lastAckedTime": str,
    "lastConsumedTimestamp": int,
    "lastConsumedTime": str,
    "firstMessagesSentTimestamp": int,
    "lastConsumedFlowTimestamp": int,
    "firstConsumedFlowTimestamp": int,
    "keyHashRangeArrays": Maybe([[int]]),
    "keyHashRanges": Maybe([str]),
    "metadata": {"*": str},
}

SUBSCRIPTION: Types = RATES_OUT | {
    "bytesOutCounter": int,
    "msgOutCounter": int,
    "msgRateRedeliver": NUMBER,
    "messageAckRate": NUMBER,
    "chunkedMessageRate": NUMBER,
    "msgBacklog": int,
    "backlogSize": int,
    "earliestMsgPublishTimeInBacklog": int,
    "msgBacklogNoDelayed": int,
    "blockedSubscriptionOnUnackedMsgs": bool,
    "msgDelayed": int,
    "msgInReplay": int,
    "unackedMessages": int,
    "type": str,
    "activeConsumerName": str,
    "msgRateExpired": NUMBER,
    "totalMsgExpired": int,
    "lastExpireTimestamp": int,
    "lastConsumedFlowTimestamp": int,
    "lastConsumedTimestamp": int,
    "lastAckedTimestamp": int,
    "lastMarkDeleteAdvancedTimestamp": int,
    "consumers": [CONSUMER],
    "isDurable": bool,
    "isReplicated": bool,
    "durable": bool,
    "replicated": bool,
    "allowOutOfOrderDelivery": bool,
    "keySharedMode": Maybe(str),
    "consumersAfterMarkDeletePosition": {"*": str},
    "drainingHashesCount": int,
    "drainingHashesClearedTotal": int,
    "drainingHashesUnackedMessages": int,
    "nonContiguousDeletedMessagesRanges": int,
    "nonContiguousDeletedMessagesRangesSerializedSize": int,
    "delayedMessageIndexSizeInBytes": int,
    "subscriptionProperties": {"*": str},
    "filterProcessedMsgCount": int,
    "filterAcceptedMsgCount": int,
    "filterRejectedMsgCount": int,
    "filterRescheduledMsgCount": int,
    "dispatchThrottledMsgEventsBySubscriptionLimit": int,
    "dispatchThrottledBytesEventsBySubscriptionLimit": int,
    "dispatchThrottledMsgEventsByTopicLimit": int,
    "dispatchThrottledBytesEventsByTopicLimit": int,
    "dispatchThrottledMsgEventsByBrokerLimit": int,
    "dispatchThrottledBytesEventsByBrokerLimit": int,
}

REPLICATOR: Types = RATES_OUT | {
    "msgRateIn": NUMBER,
    "msgThroughputIn": NUMBER,
    "msgInCount": int,
    "bytesInCount": int,
    "msgOutCount": int,
    "bytesOutCount": int,
    "msgRateExpired": NUMBER,
    "msgExpiredCount": int,
    "replicationBacklog": int,
    "connected": bool,
    "replicationDelayInSeconds": int,
    "inboundConnection": Maybe(str),
    "inboundConnectedSince": Maybe(str),
    "outboundConnection": Maybe(str),
    "outboundConnectedSince": Maybe(str),
}

TOPIC: Types = (
    RATES_IN
    | RATES_OUT
    | {
        "bytesInCounter": int,
        "msgInCounter": int,
        "systemTopicBytesInCounter": int,
        "bytesOutCounter": int,
        "msgOutCounter": int,
        "bytesOutInternalCounter": int,
        "msgChunkPublished": bool,
        "storageSize": int,
        "backlogSize": int,
        "backlogQuotaLimitSize": int,
        "backlogQuotaLimitTime": int,
        "oldestBacklogMessageAgeSeconds": int,
        "oldestBacklogMessageSubscriptionName": str,
        "publishRateLimitedTimes": int,
        "earliestMsgPublishTimeInBacklogs": int,
        "offloadedStorageSize": int,
        "lastOffloadLedgerId": int,
        "lastOffloadSuccessTimeStamp": int,
        "lastOffloadFailureTimeStamp": int,
        "ongoingTxnCount": int,
        "abortedTxnCount": int,
        "committedTxnCount": int,
        "publishers": [PUBLISHER],
        "waitingPublishers": int,
        "subscriptions": {"*": SUBSCRIPTION},
        "replication": {"*": REPLICATOR},
        "deduplicationStatus": str,
        "topicEpoch": Maybe(int),
        "nonContiguousDeletedMessagesRanges": int,
        "nonContiguousDeletedMessagesRangesSerializedSize": int,
        "delayedMessageIndexSizeInBytes": int,
        "compaction": {
            "lastCompactionRemovedEventCount": int,
            "lastCompactionSucceedTimestamp": int,
            "lastCompactionFailedTimestamp": int,
            "lastCompactionDurationTimeInMills": int,
        },
        "ownerBroker": Maybe(str),
        "topicCreationTimeStamp": int,
        "lastPublishTimeStamp": int,
    }
)

PARTITIONED: Types = TOPIC | {"metadata": {"partitions": int, "deleted": bool}, "partitions": {"*": TOPIC}}

DROPS: Types = {"msgDropRate": NUMBER}
PASSING: Types = (
    TOPIC
    | DROPS
    | {
        "publishers": [PUBLISHER | DROPS],
        "subscriptions": {"*": SUBSCRIPTION | DROPS},
        "replication": {"*": REPLICATOR | DROPS},
    }
)
PASSING_PARTITIONED: Types = PASSING | {"metadata": PARTITIONED["metadata"], "partitions": {"*": PASSING}}

LEDGER: Types = {
    "ledgerId": int,
    "entries": int,
    "size": int,
    "offloaded": bool,
    "metadata": Maybe(str),
    "underReplicated": bool,
    "properties": Maybe({"*": str}),
}

CURSOR: Types = {
    "markDeletePosition": str,
    "readPosition": str,
    "waitingReadOp": bool,
    "pendingReadOps": int,
    "messagesConsumedCounter": int,
    "cursorLedger": int,
    "cursorLedgerLastEntry": int,
    "individuallyDeletedMessages": str,
    "lastLedgerSwitchTimestamp": str,
    "state": str,
    "active": bool,
    "numberOfEntriesSinceFirstNotAckedMessage": int,
    "totalNonContiguousDeletedMessagesRange": int,
    "subscriptionHavePendingRead": bool,
    "subscriptionHavePendingReplayRead": bool,
    "properties": {"*": int},
}

INTERNAL: Types = {
    "entriesAddedCounter": int,
    "numberOfEntries": int,
    "totalSize": int,
    "currentLedgerEntries": int,
    "currentLedgerSize": int,
    "lastLedgerCreatedTimestamp": str,
    "lastLedgerCreationFailureTimestamp": Maybe(str),
    "waitingCursorsCount": int,
    "pendingAddEntriesCount": int,
    "lastConfirmedEntry": str,
    "state": str,
    "ledgers": [LEDGER | {"timestamp": int}],
    "cursors": {"*": CURSOR},
    "schemaLedgers": [LEDGER],
    "compactedLedger": LEDGER,
}

OURS: Types = {
    "originIndexNext": int,
    "incarnation": int,
    "idempotency": ANY,
    "msgInCounter": int,
    "bytesInCounter": int,
    "msgBacklogMessages": int,
    "msgDropCount": int,
    "replicatedMode": str,
    "compactedUpTo": str,
    "watermarks": {"*": str},
    "durableMarkDeletePosition": str,
    "partiallyAcknowledgedBatches": int,
    "replicatedState": ANY,
    "sentPosition": str,
    "generation": int,
    "durablePosition": str,
}
"""Keys that are told besides, and that no tool of Pulsar's reads."""


def faults(shown: Any, wanted: Any, where: str) -> list[str]:
    """What is missing, unknown or of another type."""
    if isinstance(wanted, Maybe):
        return faults(shown, wanted.kind, where)
    if isinstance(wanted, list):
        if not isinstance(shown, list):
            return [f"{where} is not a list"]
        return [fault for each in shown for fault in faults(each, wanted[0], f"{where}[]")]
    if isinstance(wanted, dict):
        if not isinstance(shown, dict):
            return [f"{where} is not an object"]
        if "*" in wanted:
            return [fault for key in shown for fault in faults(shown[key], wanted["*"], f"{where}.{key}")]
        needed = {key for key, kind in wanted.items() if not isinstance(kind, Maybe)}
        known = OURS | wanted
        found = [f"{where}.{key} is missing" for key in sorted(needed - shown.keys())]
        found += [f"{where}.{key} is not in the table" for key in sorted(shown.keys() - known.keys())]
        for key in known.keys() & shown.keys():
            found += faults(shown[key], known[key], f"{where}.{key}")
        return found
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    # In Python a boolean is an integer, in JSON it is not.
    right = wanted is ANY or type(shown) in kinds
    return [] if right else [f"{where} is {shown!r}, not {' or '.join(kind.__name__ for kind in kinds)}"]
