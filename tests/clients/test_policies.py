"""Policies as the official client meets them: each is set over REST on live topics, and taken back."""

import time
import uuid
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.namespaces import Space
from tests.support.receiving import WAIT_MS, receive


@pytest.fixture
def space(broker: BrokerProcess) -> Space:
    return Space(broker)


# ---------------------------------------------------------------------------------------------------------- numbers


def test_producers_are_limited_and_the_topic_overrides(client: pulsar.Client, space: Space) -> None:
    first = client.create_producer(space.topic())
    client.create_producer(space.topic())
    space.set("maxProducersPerTopic", 1)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(space.topic())
    first.send(b"who is there stays")
    space.set("maxProducers", 3, topic="t")
    assert space.get("maxProducers?applied=true", topic="t") == 3
    client.create_producer(space.topic())
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(space.topic())
    space.unset("maxProducers", topic="t")
    assert space.get("maxProducers?applied=true", topic="t") == 1
    space.unset("maxProducersPerTopic")
    client.create_producer(space.topic())


def test_consumers_are_limited_by_topic_and_by_subscription(client: pulsar.Client, space: Space) -> None:
    shared = pulsar.ConsumerType.Shared
    client.subscribe(space.topic(), "s", shared)
    space.set("maxConsumersPerSubscription", 1)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(space.topic(), "s", shared)
    client.subscribe(space.topic(), "other", shared)
    space.set("maxConsumers", 2, topic="t")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(space.topic(), "third", shared)
    space.set("maxConsumers", 0, topic="t")
    client.subscribe(space.topic(), "third", shared)


def test_subscriptions_and_topics_are_limited(client: pulsar.Client, space: Space, broker: BrokerProcess) -> None:
    client.subscribe(space.topic(), "a")
    space.set("maxSubscriptionsPerTopic", 1)
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(space.topic(), "b")
    client.create_reader(space.topic(), pulsar.MessageId.earliest)
    space.set("maxTopicsPerNamespace", 1)
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(space.topic("second"))
    with pytest.raises(OSError, match="412"):
        broker.rest("PUT", f"/admin/v2/persistent/{space.name}/parts/partitions", 2)
    space.set("maxTopicsPerNamespace", 3)
    broker.rest("PUT", f"/admin/v2/persistent/{space.name}/parts/partitions", 2)
    space.unset("maxTopicsPerNamespace")
    client.create_producer(space.topic("second"))


def test_a_message_over_the_size_is_refused_and_smaller_ones_pass(client: pulsar.Client, space: Space) -> None:
    space.set("maxMessageSize", 2000, root="/geo/v1")
    producer = client.create_producer(space.topic(), batching_enabled=False)
    told: list[tuple[int, Any]] = []
    for number in range(30):
        body = b"x" * (3000 if number % 3 == 1 else 1000)
        producer.send_async(body, lambda result, _id, number=number: told.append((number, result)))
    producer.flush()
    refused = [number for number, result in told if result == pulsar.Result.ChecksumError]
    assert refused == [number for number in range(30) if number % 3 == 1]
    assert sorted(number for number, result in told if result == pulsar.Result.Ok) == [
        n for n in range(30) if n % 3 != 1
    ]
    assert space.stats()["msgInCounter"] == 20
    assert len(space.stats()["publishers"]) == 1 and producer.is_connected()
    space.set("maxMessageSize", 5000, topic="t")
    client.create_producer(space.topic()).send(b"x" * 3000)


def test_a_cluster_that_is_not_allowed_creates_no_topics(
    client: pulsar.Client, broker: BrokerProcess, space: Space
) -> None:
    broker.rest("PUT", "/admin/v2/clusters/elsewhere", {"serviceUrl": "http://127.0.0.1:1"})
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    broker.rest("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["solo", "elsewhere"]})
    broker.rest(
        "PUT",
        f"/admin/v2/namespaces/{tenant}/ns",
        {"replication_clusters": ["elsewhere"], "allowed_clusters": ["elsewhere"]},
    )
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(f"persistent://{tenant}/ns/t")


# ------------------------------------------------------------------------------------------------------------- rates


def test_publishing_waits_for_its_rate_and_nothing_is_refused(client: pulsar.Client, space: Space) -> None:
    """How long it took is judged by the broker's tokens: 30 messages at 50/s with a burst of 10 need 20/50 s at least."""
    consumer = client.subscribe(space.topic(), "s")
    producer = client.create_producer(space.topic(), batching_enabled=False)
    space.set("publishRate", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1})
    began = time.monotonic()
    for number in range(30):
        producer.send_async(b"%d" % number, callback=None)
    assert receive(consumer, 10) == [b"%d" % number for number in range(10)], "a burst of one second's messages"
    waited = space.stats()["msgInCounter"]
    assert waited < 30, "all were stored although their rate forbids it"
    assert space.stats()["publishRateLimitedTimes"] >= 1
    # The same connection's consumer is served meanwhile: its acknowledgements and pings are behind SENDs that wait.
    assert receive(consumer, 2) == [b"10", b"11"]
    space.set("publishRate", {"publishThrottlingRateInMsg": 10_000}, topic="t")
    assert receive(consumer, 18) == [b"%d" % number for number in range(12, 30)]
    producer.flush()
    assert time.monotonic() > began


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_dispatch_waits_for_its_rate(client: pulsar.Client, space: Space, kind: str) -> None:
    producer = client.create_producer(space.topic(), batching_enabled=False)
    for number in range(60):
        producer.send_async(b"%d" % number, callback=None, partition_key=f"k{number % 7}")
    producer.flush()
    space.set("dispatchRate", {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 3600})
    consumer = client.subscribe(
        space.topic(), "s", getattr(pulsar.ConsumerType, kind), initial_position=pulsar.InitialPosition.Earliest
    )
    assert len(receive(consumer, 5)) == 5
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    throttled = space.stats()["subscriptions"]["s"]
    assert throttled["dispatchThrottledMsgEventsByTopicLimit"] >= 1
    assert throttled["dispatchThrottledMsgEventsBySubscriptionLimit"] == 0
    space.set("dispatchRate", {"dispatchThrottlingRateInMsg": 7, "ratePeriodInSecond": 3600}, topic="t")
    assert len(receive(consumer, 7)) == 7
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    space.unset("dispatchRate", topic="t")
    space.unset("dispatchRate")
    assert len(receive(consumer, 48)) == 48


def test_each_subscription_has_its_own_rate(client: pulsar.Client, space: Space) -> None:
    space.set("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 3, "ratePeriodInSecond": 3600})
    consumers = [client.subscribe(space.topic(), name) for name in ("a", "b")]
    producer = client.create_producer(space.topic(), batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    for consumer in consumers:
        assert receive(consumer, 3) == [b"0", b"1", b"2"]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
    space.unset("subscriptionDispatchRate")
    for consumer in consumers:
        assert len(receive(consumer, 7)) == 7


# ------------------------------------------------------------------------------------------------ dispatch and delays


def test_unacknowledged_messages_are_limited_and_raising_the_limit_goes_on(client: pulsar.Client, space: Space) -> None:
    consumer = client.subscribe(space.topic(), "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(space.topic(), batching_enabled=False)
    space.set("maxUnackedMessagesPerConsumer", 4)
    for number in range(12):
        producer.send(b"%d" % number)
    held = [consumer.receive(WAIT_MS) for _ in range(4)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    assert space.stats()["subscriptions"]["s"]["consumers"][0]["blockedConsumerOnUnackedMsgs"] is True
    space.set("maxUnackedMessagesOnConsumer", 8, topic="t")
    held += [consumer.receive(WAIT_MS) for _ in range(4)]
    space.set("maxUnackedMessagesOnSubscription", 6, topic="t")
    space.set("maxUnackedMessagesOnConsumer", 0, topic="t")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    for message in held:
        consumer.acknowledge(message)
    assert len(receive(consumer, 4)) == 4


def test_delayed_delivery_is_switched_off_for_what_waits_already(client: pulsar.Client, space: Space) -> None:
    consumer = client.subscribe(space.topic(), "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(space.topic())
    later = int(time.time() * 1000) + 3_600_000
    producer.send(b"in an hour", deliver_at=later)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    space.set("delayedDelivery", {"active": False, "tickTime": 1000})
    assert receive(consumer, 1) == [b"in an hour"]
    space.set("delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000})
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"too late", deliver_at=later)


# --------------------------------------------------------------------------------- backlog quotas, expiry, retention


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", "ProducerBlockedQuotaExceededError"),
        ("producer_exception", "ProducerBlockedQuotaExceededException"),
    ],
)
def test_a_backlog_over_its_quota_stops_producers(
    client: pulsar.Client, space: Space, broker: BrokerProcess, policy: str, error: str
) -> None:
    client.subscribe(space.topic(), "slow").close()
    producer = client.create_producer(space.topic())
    producer.send(b"x" * 5000)
    producer.close()
    space.set("backlogQuota?backlogQuotaType=destination_storage", {"limitSize": 1000, "policy": policy})
    with pytest.raises(getattr(pulsar, error)):
        eventually(lambda: client.create_producer(space.topic()).close(), within_s=5)
    broker.rest("POST", f"/admin/v2/persistent/{space.name}/t/subscription/slow/skip_all")
    space.set("backlogQuota", {"limitSize": 1000, "policy": policy}, topic="t")
    eventually(lambda: _opens(client, space.topic()))


def _opens(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.PulsarException:
        return False
    return True


def test_eviction_and_expiry_follow_a_policy_at_once(client: pulsar.Client, space: Space) -> None:
    client.subscribe(space.topic(), "slow").close()
    producer = client.create_producer(space.topic())
    for _ in range(3):
        producer.send(b"x" * 1000)
    space.set(
        "backlogQuota?backlogQuotaType=message_age", {"limitTime": 0, "policy": "consumer_backlog_eviction"}, topic="t"
    )
    eventually(lambda: space.stats()["subscriptions"]["slow"]["msgBacklog"] == 0, within_s=5)
    space.unset("backlogQuota?backlogQuotaType=message_age", topic="t")
    producer.send(b"x")
    assert space.stats()["subscriptions"]["slow"]["msgBacklog"] == 1
    time_before = space.stats()["subscriptions"]["slow"]["lastExpireTimestamp"]
    space.set("messageTTL", 3600)
    eventually(lambda: space.stats()["subscriptions"]["slow"]["lastExpireTimestamp"] > time_before, within_s=5)
    assert space.stats()["subscriptions"]["slow"]["msgBacklog"] == 1, "an hour old is nobody's message"


def test_inactive_topics_are_deleted_where_a_policy_asks_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 100\n").start()
    space = Space(world["solo"])
    client = connect(world["solo"])
    listed = f"/admin/v2/persistent/{space.name}"
    try:
        caught_up = client.subscribe(space.topic("caught-up"), "s")
        for name in ("unused", "caught-up", "behind", "kept"):
            client.create_producer(space.topic(name)).send(b"x")
        client.subscribe(space.topic("behind"), "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive(caught_up, 1) == [b"x"]
        world["solo"].rest("PUT", f"{listed}/parts/partitions", 2)
        client.close()
        policy = {"maxInactiveDurationSeconds": 1, "deleteWhileInactive": True}
        space.set("inactiveTopicPolicies", policy | {"inactiveTopicDeleteMode": "delete_when_no_subscriptions"})
        space.set("inactiveTopicPolicies", policy | {"deleteWhileInactive": False}, topic="kept")
        left = {space.topic(name) for name in ("caught-up", "behind", "kept", "parts-partition-0", "parts-partition-1")}
        eventually(lambda: set(world["solo"].rest("GET", listed)) == left)
        space.set("inactiveTopicPolicies", policy | {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"})
        eventually(lambda: set(world["solo"].rest("GET", listed)) == left - {space.topic("caught-up")})
    finally:
        world.close()


def test_a_topics_own_clusters_begin_and_end_its_links(tmp_path: Path) -> None:
    world = World(tmp_path, ["us-west", "us-east"])
    broker = world["us-west"].start()
    client = connect(broker)
    topic = "persistent://public/default/t"
    path = "/admin/v2/persistent/public/default/t/replication"

    def link() -> dict[str, Any]:
        (found,) = broker.rest("GET", "/geo/v1/links")
        return {one["topic"]: one for one in found["topics"]}

    try:
        broker.rest("POST", "/admin/v2/namespaces/public/default/replication", ["us-west"])
        producer = client.create_producer(topic)
        producer.send(b"before")
        assert topic not in link()
        broker.rest("POST", path, ["us-west", "us-east"])
        assert link()[topic]["lag_messages"] == 1 and not link()[topic]["orphan"]
        producer.send(b"after")
        eventually(lambda: link()[topic]["lag_messages"] == 2)
        with pytest.raises(OSError, match="403"):
            broker.rest("POST", path, ["us-west", "nowhere"])
        broker.rest("POST", "/admin/v2/namespaces/public/default/replication", ["us-east", "us-west"])
        broker.rest("POST", path, ["us-west"])
        assert link()[topic]["orphan"], "what was not sent yet stays for an operator to decide"
        broker.stop()
        broker.start()
        assert link()[topic]["orphan"] and broker.rest("GET", path) == ["us-west"]
        broker.rest("DELETE", path)
        assert not link()[topic]["orphan"] and link()[topic]["lag_messages"] == 2
    finally:
        client.close()
        world.close()


REPLICATE = "replicateSubscriptionState"
"""The official client subscribes without its flag in the tests of this one."""


def replicated(space: Space, topic: str) -> dict[str, bool]:
    """By subscription, as statistics tell."""
    return {name: one["isReplicated"] for name, one in space.stats(topic)["subscriptions"].items()}


def test_a_topics_policy_replicates_what_its_clients_did_not_ask_for(client: pulsar.Client, space: Space) -> None:
    client.subscribe(space.topic(), "present")
    client.subscribe(space.topic("other"), "present")
    assert replicated(space, "t") == {"present": False}
    space.set(REPLICATE, True, topic="t")
    client.subscribe(space.topic(), "later")
    assert replicated(space, "t") == {"present": True, "later": True}
    assert replicated(space, "other") == {"present": False}
    client.create_reader(space.topic(), pulsar.MessageId.earliest, subscription_role_prefix="r")
    found = replicated(space, "t")
    assert len(found) == 3 and sum(found.values()) == 2, "a reader is never replicated"


def test_a_topics_false_overrides_its_namespace(client: pulsar.Client, space: Space) -> None:
    client.subscribe(space.topic(), "present")
    space.set(REPLICATE, False, topic="t")
    space.set(REPLICATE, True)
    assert space.get(f"{REPLICATE}?applied=true", topic="t") is False
    client.subscribe(space.topic(), "later")
    client.subscribe(space.topic("other"), "later")
    assert replicated(space, "t") == {"present": False, "later": False}
    assert replicated(space, "other") == {"later": True}
    space.unset(REPLICATE, topic="t")
    assert replicated(space, "t") == {"present": True, "later": True}


def test_a_new_topic_of_the_name_has_none_of_the_old_ones(
    client: pulsar.Client, space: Space, broker: BrokerProcess
) -> None:
    client.create_producer(space.topic()).close()
    space.set("maxProducers", 1, "t")
    broker.rest("POST", f"/admin/v2/persistent/{space.name}/t/permissions/bob", ["consume"])
    broker.rest("DELETE", f"/admin/v2/persistent/{space.name}/t")
    first = client.create_producer(space.topic())
    second = client.create_producer(space.topic())
    assert space.get("maxProducers", "t") is None
    assert broker.rest("GET", f"/admin/v2/persistent/{space.name}/t/permissions") == {}
    first.close()
    second.close()


def test_partitions_follow_their_topic(client: pulsar.Client, space: Space) -> None:
    space.broker.rest("PUT", f"/admin/v2/persistent/{space.name}/t/partitions", 2)
    space.set(REPLICATE, True, topic="t")
    client.subscribe(space.topic(), "s")
    for number in range(2):
        assert replicated(space, f"t-partition-{number}") == {"s": True}
