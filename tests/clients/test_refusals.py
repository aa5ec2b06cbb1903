"""What applications see when the broker refuses something: the exception of the official client that they see with Pulsar.

Exceptions that the client makes by itself are not here. None of these is tried again: each has to come at once.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, eventually
from tests.support.patience import PATIENCE

AT_ONCE_S = 5 * PATIENCE
"""A deadline well below the client's operation timeout (20 s), up to which it tries again what may be tried again."""

Shared, Failover, KeyShared = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared
LOW = pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 100)])


class Number(Record):  # type: ignore[misc]
    """A schema."""

    field = Integer(required=True)


class Text(Record):  # type: ignore[misc]
    """Another one, which cannot be read as the first."""

    field = String(required=True)


class Scene:
    """Two clients of a broker, and a namespace of their own.

    Args:
        broker: where.
        domain: of `topic`.
    """

    def __init__(self, broker: BrokerProcess, domain: str = "persistent") -> None:
        self.broker = broker
        self.one, self.two = connect(broker), connect(broker)
        self.namespace = f"public/n-{uuid.uuid4().hex[:12]}"
        broker.rest("PUT", f"/admin/v2/namespaces/{self.namespace}")
        self.topic = f"{domain}://{self.namespace}/t"

    def policy(self, name: str, value: Any) -> None:
        """Set a policy of the namespace."""
        self.broker.rest("POST", f"/admin/v2/namespaces/{self.namespace}/{name}", value)

    def admin(self, method: str, what: str, body: Any = None) -> None:
        """Do something with the topic."""
        self.broker.rest(method, f"/admin/v2/{self.topic.replace('://', '/')}{what}", body)

    def close(self) -> None:
        """End both."""
        for client in (self.one, self.two):
            with contextlib.suppress(
                pulsar.AlreadyClosed
            ):  # the client's way to say that something on it was closed before
                client.close()


@pytest.fixture(params=["persistent", "non-persistent"])
def either(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """With a topic that is stored, and with one that is not."""
    scene = Scene(broker, request.param)
    yield scene
    scene.close()


@pytest.fixture
def scene(broker: BrokerProcess) -> Iterator[Scene]:
    scene = Scene(broker)
    yield scene
    scene.close()


def refused(error: type[Exception], ask: Callable[[], object]) -> None:
    """It is refused with this exception, and at once."""
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        ask()
    assert type(caught.value) is error
    assert time.monotonic() - begin < AT_ONCE_S


def test_a_namespace_that_there_is_not(either: Scene) -> None:
    nowhere = either.topic.replace(either.namespace, "public/nowhere")
    refused(pulsar.TopicNotFound, lambda: either.one.create_producer(nowhere))
    refused(pulsar.TopicNotFound, lambda: either.one.subscribe(nowhere, "s"))
    refused(pulsar.TopicNotFound, lambda: either.one.create_reader(nowhere, pulsar.MessageId.earliest))
    refused(pulsar.TopicNotFound, lambda: either.one.get_topic_partitions(nowhere))


def test_names_and_limits_of_producers(either: Scene) -> None:
    either.one.create_producer(either.topic, "p")
    refused(pulsar.ProducerBusy, lambda: either.two.create_producer(either.topic, "p"))
    either.policy("maxProducersPerTopic", 1)
    refused(pulsar.ProducerBusy, lambda: either.two.create_producer(either.topic))


def test_a_place_that_is_taken(either: Scene) -> None:
    either.one.subscribe(either.topic, "s")
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s"))
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s", Shared))
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s", Failover))
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s", KeyShared))


def test_hash_ranges_that_are_taken(either: Scene) -> None:
    either.one.subscribe(either.topic, "s", KeyShared, key_shared_policy=LOW)
    refused(
        pulsar.ConsumerAssignError,
        lambda: either.two.subscribe(either.topic, "s", KeyShared, key_shared_policy=LOW),
    )
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s", KeyShared))


def test_limits_of_consumers(either: Scene) -> None:
    either.policy("maxConsumersPerSubscription", 1)
    either.one.subscribe(either.topic, "s", Shared)
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "s", Shared))
    either.policy("maxConsumersPerTopic", 1)
    refused(pulsar.ConsumerBusy, lambda: either.two.subscribe(either.topic, "other"))


def test_limits_of_subscriptions_and_topics(scene: Scene) -> None:
    scene.policy("maxSubscriptionsPerTopic", 1)
    scene.one.subscribe(scene.topic, "s")
    refused(pulsar.NotAllowedError, lambda: scene.two.subscribe(scene.topic, "other"))
    scene.policy("maxTopicsPerNamespace", 1)
    refused(pulsar.NotAllowedError, lambda: scene.two.create_producer(scene.topic + "-other"))


def test_schemas_that_do_not_fit(either: Scene) -> None:
    either.one.create_producer(either.topic, schema=AvroSchema(Number))
    refused(pulsar.IncompatibleSchema, lambda: either.two.create_producer(either.topic, schema=AvroSchema(Text)))
    refused(pulsar.IncompatibleSchema, lambda: either.two.subscribe(either.topic, "s", schema=AvroSchema(Text)))


def test_a_subscription_that_others_use_is_not_deleted(either: Scene) -> None:
    consumer = either.one.subscribe(either.topic, "s", Shared)
    other = either.two.subscribe(either.topic, "s", Shared)
    refused(pulsar.BrokerMetadataError, consumer.unsubscribe)
    other.close()
    consumer.unsubscribe()


def test_a_topic_that_is_terminated(scene: Scene) -> None:
    producer = scene.one.create_producer(scene.topic, batching_enabled=False)
    other = scene.one.create_producer(scene.topic + "-other")
    (before,) = scene.broker.rest("GET", f"/admin/v2/persistent/{scene.namespace}/t-other/stats")["publishers"]
    producer.send(b"x")
    scene.admin("POST", "/terminate")
    refused(pulsar.TopicTerminated, lambda: producer.send(b"y"))
    refused(pulsar.TopicTerminated, lambda: scene.two.create_producer(scene.topic))
    other.send(b"z")
    (after,) = scene.broker.rest("GET", f"/admin/v2/persistent/{scene.namespace}/t-other/stats")["publishers"]
    assert after["connectedSince"] == before["connectedSince"], "what others had on the connection goes on"


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
    ],
)
def test_a_backlog_over_its_quota(scene: Scene, stop: str, error: type[Exception]) -> None:
    scene.one.subscribe(scene.topic, "s")
    scene.one.create_producer(scene.topic).send(b"x" * 1000)
    scene.policy("backlogQuota", {"limitSize": 10, "policy": stop})
    deadline = time.monotonic() + AT_ONCE_S
    while time.monotonic() < deadline:  # the quota is looked at in an event of its own
        try:
            scene.two.create_producer(scene.topic).close()
        except error:
            break
    refused(error, lambda: scene.two.create_producer(scene.topic))


def test_partitions_that_there_are_not(either: Scene) -> None:
    """Not as with Pulsar (NotAllowed): for a partition that is gone Go's producers and Java's consumers stop coming back."""
    either.admin("PUT", "/partitions", 2)
    for absent in (f"{either.topic}-partition-2", f"{either.topic}-other-partition-0"):
        refused(pulsar.TopicNotFound, lambda absent=absent: either.one.create_producer(absent))
        refused(pulsar.TopicNotFound, lambda absent=absent: either.one.subscribe(absent, "s"))
        refused(pulsar.TopicNotFound, lambda absent=absent: either.one.create_reader(absent, pulsar.MessageId.earliest))


def test_partitions_do_not_come_back_behind_their_topic(either: Scene) -> None:
    """Their clients try again and again, whatever they are told; none of them is connected to what is no more."""
    either.admin("PUT", "/partitions", 3)
    consumer = either.one.subscribe(either.topic, "s", Shared)
    producer = either.one.create_producer(either.topic)
    producer.send(b"before")
    consumer.receive(5_000 * PATIENCE)
    either.admin("DELETE", "/partitions?force=true")
    eventually(lambda: not consumer.is_connected(), what="the consumer of a topic that is gone is not connected")
    plain = either.two.create_producer(either.topic)
    plain.send(b"after")
    domain = either.topic.partition("://")[0]
    assert either.broker.rest("GET", f"/admin/v2/{domain}/{either.namespace}") == [either.topic]
    plain.close()
    if domain == "persistent":  # the other kind goes with its last client
        either.admin("DELETE", "")
    either.admin("PUT", "/partitions", 3)
    eventually(consumer.is_connected, what="who waited for its partitions has them again")
    either.two.create_producer(either.topic).send(b"now")
    assert consumer.receive(5_000 * PATIENCE).data() == b"now"
