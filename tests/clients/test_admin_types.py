"""What Pulsar's own administration tools read: every key of statistics has the JSON type that they expect of it.

A tool of a typed language, such as pulsarctl, refuses the whole answer for one number where it wants a text.
"""

import re
import urllib.request
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, eventually

NUMBER = (int, float)
"""JSON has one kind of number; where Go wants a float any will do, where it wants an integer only an integer."""

Types = dict[str, Any]
"""Key -> type of its value; a dict of types for an object, a list of one for a list, `{"*": ...}` for an object by name."""

RATES_IN: Types = {"msgRateIn": NUMBER, "msgThroughputIn": NUMBER, "averageMsgSize": NUMBER}
RATES_OUT: Types = {"msgRateOut": NUMBER, "msgThroughputOut": NUMBER}
CLIENT: Types = {"address": str, "connectedSince": str, "clientVersion": str, "metadata": {"*": str}}

PUBLISHER: Types = (
    RATES_IN
    | CLIENT
    | {"producerName": str, "producerId": int, "accessMode": str, "msgInCounter": int, "bytesInCounter": int}
)

CONSUMER: Types = (
    RATES_OUT
    | CLIENT
    | {
        "consumerName": str,
        "msgRateRedeliver": NUMBER,
        "messageAckRate": NUMBER,
        "msgOutCounter": int,
        "bytesOutCounter": int,
        "availablePermits": int,
        "unackedMessages": int,
        "blockedConsumerOnUnackedMsgs": bool,
        "avgMessagesPerEntry": int,
        "lastAckedTimestamp": int,
        "lastConsumedTimestamp": int,
    }
)

SUBSCRIPTION: Types = RATES_OUT | {
    "msgRateRedeliver": NUMBER,
    "messageAckRate": NUMBER,
    "type": str,
    "isDurable": bool,
    "isReplicated": bool,
    "durable": bool,
    "replicated": bool,
    "msgBacklog": int,
    "msgBacklogNoDelayed": int,
    "msgBacklogMessages": int,
    "backlogSize": int,
    "earliestMsgPublishTimeInBacklog": int,
    "unackedMessages": int,
    "blockedSubscriptionOnUnackedMsgs": bool,
    "msgDelayed": int,
    "msgInReplay": int,
    "activeConsumerName": str,
    "consumers": [CONSUMER],
    "msgOutCounter": int,
    "bytesOutCounter": int,
    "nonContiguousDeletedMessagesRanges": int,
    "lastConsumedFlowTimestamp": int,
    "lastConsumedTimestamp": int,
    "lastAckedTimestamp": int,
    "lastMarkDeleteAdvancedTimestamp": int,
    "lastExpireTimestamp": int,
    "msgRateExpired": NUMBER,
    "totalMsgExpired": int,
    "subscriptionProperties": {"*": str},
}

SUMMED: Types = (
    RATES_IN
    | RATES_OUT
    | {
        "msgInCounter": int,
        "bytesInCounter": int,
        "msgOutCounter": int,
        "bytesOutCounter": int,
        "storageSize": int,
        "backlogSize": int,
        "earliestMsgPublishTimeInBacklogs": int,
        "topicCreationTimeStamp": int,
        "lastPublishTimeStamp": int,
        "publishers": [PUBLISHER],
        "waitingPublishers": int,
        "subscriptions": {"*": SUBSCRIPTION},
        "replication": {"*": dict},
        "deduplicationStatus": str,
        "compaction": {
            "lastCompactionRemovedEventCount": int,
            "lastCompactionSucceedTimestamp": int,
            "lastCompactionFailedTimestamp": int,
            "lastCompactionDurationTimeInMills": int,
        },
    }
)

TOPIC: Types = SUMMED | {"ownerBroker": str, "originIndexNext": int, "incarnation": int}

PARTITIONED: Types = SUMMED | {
    "metadata": {"partitions": int, "deleted": bool},
    "partitions": {"*": TOPIC},
}

LEDGER: Types = {"ledgerId": int, "entries": int, "size": int, "offloaded": bool}

CURSOR: Types = {
    "markDeletePosition": str,
    "durableMarkDeletePosition": str,
    "readPosition": str,
    "individuallyDeletedMessages": str,
    "messagesConsumedCounter": int,
    "numberOfEntriesSinceFirstNotAckedMessage": int,
    "totalNonContiguousDeletedMessagesRange": int,
    "partiallyAcknowledgedBatches": int,
    "waitingReadOp": bool,
    "pendingReadOps": int,
    "cursorLedger": int,
    "cursorLedgerLastEntry": int,
    "state": str,
    "active": bool,
    "properties": {"*": int},
}

INTERNAL: Types = {
    "entriesAddedCounter": int,
    "numberOfEntries": int,
    "totalSize": int,
    "currentLedgerEntries": int,
    "currentLedgerSize": int,
    "lastLedgerCreatedTimestamp": str,
    "lastConfirmedEntry": str,
    "state": str,
    "ledgers": [LEDGER | {"timestamp": int}],
    "cursors": {"*": CURSOR},
    "schemaLedgers": [LEDGER],
    "compactedLedger": LEDGER,
    "compactedUpTo": str,
    "watermarks": {"*": str},
}

PASSING_CLIENT: Types = {"address": str, "connectedSince": str, "metadata": {"*": str}}
PASSING: Types = {
    "publishers": [PASSING_CLIENT],
    "subscriptions": {"*": {"msgDropCount": int, "type": str, "consumers": [PASSING_CLIENT]}},
    "storageSize": int,
    "msgDropCount": int,
}

OURS = {"idempotency", "replicatedMode", "replicatedState"}
"""Keys that no tool of Pulsar's reads and that may be null."""


def faults(shown: Any, wanted: Any, where: str, *, all_known: bool = True) -> list[str]:
    """What is missing, unknown or of another type."""
    if isinstance(wanted, list):
        if not isinstance(shown, list):
            return [f"{where} is no list"]
        return [fault for each in shown for fault in faults(each, wanted[0], f"{where}[]", all_known=all_known)]
    if isinstance(wanted, dict):
        if not isinstance(shown, dict):
            return [f"{where} is no object"]
        if "*" in wanted:
            each = wanted["*"]
            return [f for key in shown for f in faults(shown[key], each, f"{where}.{key}", all_known=all_known)]
        found = [f"{where}.{key} is missing" for key in sorted(wanted.keys() - shown.keys())]
        if all_known:
            found += [f"{where}.{key} is not in the table" for key in sorted(shown.keys() - wanted.keys() - OURS)]
        for key in wanted.keys() & shown.keys():
            found += faults(shown[key], wanted[key], f"{where}.{key}", all_known=all_known)
        return found
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    # In Python a boolean is an integer, in JSON it is not.
    right = type(shown) in kinds
    return [] if right else [f"{where} is {shown!r}, not {' or '.join(kind.__name__ for kind in kinds)}"]


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def metrics_of(broker: BrokerProcess, topic: str) -> dict[str, float]:
    """Name -> value of the series of a topic."""
    with urllib.request.urlopen(f"{broker.web}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line.rsplit(" ", 1) for line in lines if f'topic="{topic}"' in line]
    return {series.partition("{")[0]: float(value) for series, value in rows}


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)")


def used(client: pulsar.Client, topic: str) -> tuple[pulsar.Producer, pulsar.Consumer]:
    """A topic in use: a producer, a consumer that has acknowledged something, some backlog."""
    producer = client.create_producer(topic, batching_enabled=False, properties={"who": "test"})
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, properties={"who": "test"})
    for number in range(6):
        producer.send(b"%d" % number)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(10_000))
    return producer, consumer


def test_a_topic(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    _, consumer = used(client, topic)
    path = path_of(topic)
    eventually(lambda: broker.rest("GET", f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 4)
    stats = broker.rest("GET", f"{path}/stats")
    assert faults(stats, TOPIC, "stats") == []
    subscription = stats["subscriptions"]["s"]
    ends = [*stats["publishers"], *subscription["consumers"]]
    assert len(ends) == 2
    assert all(TIME.fullmatch(end["connectedSince"]) for end in ends)
    assert all(end["clientVersion"].startswith("Pulsar-CPP") for end in ends)
    assert subscription["msgBacklogNoDelayed"] == 4
    earliest = subscription["earliestMsgPublishTimeInBacklog"]
    assert stats["topicCreationTimeStamp"] <= earliest <= stats["lastPublishTimeStamp"]
    assert stats["earliestMsgPublishTimeInBacklogs"] == earliest
    internal = broker.rest("GET", f"{path}/internalStats")
    assert faults(internal, INTERNAL, "internal") == []
    assert internal["cursors"].keys() == {"s"}
    assert TIME.fullmatch(internal["lastLedgerCreatedTimestamp"])
    assert [ledger["timestamp"] for ledger in internal["ledgers"]] == [0]
    assert internal["compactedLedger"]["entries"] == -1
    for _ in range(4):
        consumer.acknowledge(consumer.receive(10_000))
    eventually(lambda: broker.rest("GET", f"{path}/stats")["earliestMsgPublishTimeInBacklogs"] == 0)


def test_delayed_messages_are_no_backlog_yet(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer, _ = used(client, topic)
    for _ in range(3):
        producer.send(b"later", deliver_after=timedelta(hours=1))

    def told() -> bool:
        one = broker.rest("GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]
        return (one["msgBacklog"], one["msgBacklogNoDelayed"]) == (7, 4)

    eventually(told)


def test_a_partitioned_topic(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", f"{path}/partitions", 2)
    used(client, topic)
    stats = broker.rest("GET", f"{path}/partitioned-stats")
    assert faults(stats, PARTITIONED, "stats") == []
    created = [part["topicCreationTimeStamp"] for part in stats["partitions"].values()]
    assert stats["topicCreationTimeStamp"] == min(created)
    internal = broker.rest("GET", f"{path}/partitioned-internalStats")
    assert faults(internal["partitions"], {"*": INTERNAL}, "internal") == []
    assert internal["metadata"]["partitions"] == 2
    assert sorted(internal["partitions"]) == [f"{topic}-partition-{number}" for number in range(2)]
    assert sum(part["numberOfEntries"] for part in internal["partitions"].values()) == 6


def test_a_topic_that_stores_nothing(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    used(client, topic)
    stats = broker.rest("GET", f"{path_of(topic)}/stats")
    assert faults(stats, PASSING, "stats", all_known=False) == []
    ends = [*stats["publishers"], *stats["subscriptions"]["s"]["consumers"]]
    assert len(ends) == 2
    assert all(TIME.fullmatch(end["connectedSince"]) for end in ends)


def test_compaction_is_told(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    path = path_of(topic)
    broker.rest("PUT", f"{path}/compaction")
    eventually(lambda: broker.rest("GET", f"{path}/compaction")["status"] == "SUCCESS", within_s=20)
    internal = broker.rest("GET", f"{path}/internalStats")
    assert internal["compactedLedger"]["entries"] == 3
    assert internal["compactedUpTo"] == internal["lastConfirmedEntry"]
    stats = broker.rest("GET", f"{path}/stats")
    told = stats["compaction"]
    assert (told["lastCompactionRemovedEventCount"], told["lastCompactionFailedTimestamp"]) == (7, 0)
    assert stats["topicCreationTimeStamp"] <= told["lastCompactionSucceedTimestamp"]
    assert 0 <= told["lastCompactionDurationTimeInMills"] < 20_000


def test_expiry_is_told(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer, consumer = used(client, topic)
    consumer.close()
    path = path_of(topic)
    before = broker.rest("GET", f"{path}/stats")["subscriptions"]["s"]
    assert (before["totalMsgExpired"], before["msgRateExpired"], before["lastExpireTimestamp"]) == (0, 0, 0)

    def all_expired() -> bool:  # what is published in the very millisecond of the request is no older than it
        broker.rest("POST", f"{path}/subscription/s/expireMessages/0")
        return bool(broker.rest("GET", f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)

    eventually(all_expired)
    producer.send(b"later")
    stats = broker.rest("GET", f"{path}/stats")
    after = stats["subscriptions"]["s"]
    assert (after["totalMsgExpired"], after["msgBacklog"]) == (4, 1)
    assert after["lastExpireTimestamp"] >= stats["topicCreationTimeStamp"]
    told = metrics_of(broker, topic)
    assert told["pulsar_subscription_total_msg_expired"] == 4
    assert told["pulsar_subscription_last_expire_timestamp"] == after["lastExpireTimestamp"]
    assert told["pulsar_subscription_msg_rate_expired"] >= 0


def test_partitions_are_terminated(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", f"{path}/partitions", 2)
    producer, _ = used(client, topic)
    last = broker.rest("POST", f"{path}/terminate/partitions")
    assert [last[str(number)]["partitionIndex"] for number in range(2)] == [0, 1]
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    states = broker.rest("GET", f"{path}/partitioned-internalStats")["partitions"].values()
    assert [part["state"] for part in states] == ["Terminated"] * 2
    assert broker.rest("POST", f"{path}/createMissedPartitions") is None
