"""What Pulsar's own administration tools read: every key of statistics has the JSON type that they expect of it.

A tool of a typed language, such as pulsarctl, refuses the whole answer for one number where it wants a text.
"""

import re
import time
import urllib.request
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, eventually, path_of
from tests.support.pulsarstats import INTERNAL, PARTITIONED, PASSING, PASSING_PARTITIONED, TOPIC, faults


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
        consumer.acknowledge(consumer.receive(60_000))
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
        consumer.acknowledge(consumer.receive(60_000))
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
    broker.rest("POST", f"{path}/backlogQuota", {"limitSize": 1 << 30})
    used(client, topic)
    stats = broker.rest("GET", f"{path}/partitioned-stats")
    assert faults(stats, PARTITIONED, "stats") == []
    created = [part["topicCreationTimeStamp"] for part in stats["partitions"].values()]
    assert stats["topicCreationTimeStamp"] == min(created)
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (1 << 30, -1)
    assert stats["oldestBacklogMessageSubscriptionName"] == "s"
    internal = broker.rest("GET", f"{path}/partitioned-internalStats")
    assert faults(internal["partitions"], {"*": INTERNAL}, "internal") == []
    assert internal["metadata"]["partitions"] == 2
    assert sorted(internal["partitions"]) == [f"{topic}-partition-{number}" for number in range(2)]
    assert sum(part["numberOfEntries"] for part in internal["partitions"].values()) == 6


def test_a_topic_that_stores_nothing(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    before_ms = time.time_ns() // 1_000_000
    used(client, topic)
    stats = broker.rest("GET", f"{path_of(topic)}/stats")
    assert faults(stats, PASSING, "stats") == []
    ends = [*stats["publishers"], *stats["subscriptions"]["s"]["consumers"]]
    assert len(ends) == 2
    assert all(TIME.fullmatch(end["connectedSince"]) for end in ends)
    assert all(end["clientVersion"].startswith("Pulsar-CPP") for end in ends)
    assert before_ms <= stats["topicCreationTimeStamp"] <= stats["lastPublishTimeStamp"]
    assert [stats["ownerBroker"]] == broker.rest("GET", "/admin/v2/brokers")
    assert stats["deduplicationStatus"] == "Disabled"


def test_partitions_that_store_nothing(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    broker.rest("PUT", f"{path_of(topic)}/partitions", 2)
    used(client, topic)
    stats = broker.rest("GET", f"{path_of(topic)}/partitioned-stats")
    assert faults(stats, PASSING_PARTITIONED, "stats") == []
    assert stats["msgInCounter"] == 6


def test_what_is_acknowledged_out_of_order_and_kept(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = path_of(topic)
    producer = client.create_producer(topic, batching_enabled=False, access_mode=pulsar.ProducerAccessMode.Exclusive)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    client.subscribe(topic, "ahead").close()
    broker.rest("POST", f"{path}/subscription/ahead/skip_all")
    broker.rest("POST", f"{path}/backlogQuota", {"limitSize": 1 << 30})
    broker.rest("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 3_600})
    began = time.monotonic()
    for number in range(6):
        producer.send(b"%d" % number)
    messages = [consumer.receive(60_000) for _ in range(6)]
    for message in (messages[1], messages[3]):
        consumer.acknowledge(message)

    def kept() -> dict[str, Any] | None:
        stats: dict[str, Any] = broker.rest("GET", f"{path}/stats")
        size = stats["nonContiguousDeletedMessagesRangesSerializedSize"]
        return stats if size and stats["oldestBacklogMessageAgeSeconds"] >= 1 else None

    stats = eventually(kept)
    assert stats["nonContiguousDeletedMessagesRanges"] == 2
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (1 << 30, 3_600)
    assert 1 <= stats["oldestBacklogMessageAgeSeconds"] <= time.monotonic() - began
    assert stats["oldestBacklogMessageSubscriptionName"] in ("s", "ahead")
    assert stats["topicEpoch"] == 1
    reading = stats["subscriptions"]["s"]["consumers"][0]
    first, last = reading["firstConsumedFlowTimestamp"], reading["lastConsumedFlowTimestamp"]
    assert stats["topicCreationTimeStamp"] <= first <= last == stats["subscriptions"]["s"]["lastConsumedFlowTimestamp"]
    assert first <= reading["firstMessagesSentTimestamp"] <= reading["lastConsumedTimestamp"]
    internal = broker.rest("GET", f"{path}/internalStats")
    assert internal["waitingCursorsCount"] == 1
    waiting = internal["cursors"]["s"]
    assert (waiting["waitingReadOp"], waiting["subscriptionHavePendingRead"], waiting["pendingReadOps"]) == (
        True,
        True,
        0,
    )
    assert internal["cursors"]["ahead"]["waitingReadOp"] is False
    assert TIME.fullmatch(waiting["lastLedgerSwitchTimestamp"])


def test_keys_have_their_ranges(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    stats = broker.rest("GET", f"{path_of(topic)}/stats")
    assert faults(stats, TOPIC, "stats") == []
    told = stats["subscriptions"]["s"]["consumers"]
    assert len(told) == len(consumers)
    assert all(one["keyHashRanges"] == [f"[{a}, {b}]" for a, b in one["keyHashRangeArrays"]] for one in told)
    ranges = sorted(tuple(each) for one in told for each in one["keyHashRangeArrays"])
    assert [ranges[0][0], ranges[-1][1]] == [0, 65_535]
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))


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
