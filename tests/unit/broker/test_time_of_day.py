"""The time of day, where it differs from the clock that never goes back: what goes by age, or by somebody else's clock."""

from typing import Any

import jwt
import pytest

from magnetar.broker.security.credentials import Keys
from magnetar.core.names import NamespaceName
from magnetar.core.security import AuthenticationConfig, Security
from magnetar.metadata.policies.namespace import RetentionPolicies
from magnetar.metadata.policies.types import InactiveTopics
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName("public", "default")
DAY_MS = 24 * 3_600_000
SECRET = b"s" * 64


def cluster(**policies: Any) -> tuple[World, Node]:
    world = World("a", limits={"ledger_age_ms_max": 60_000})
    node = world["a"]
    node.create()
    if policies:
        node.apply(node.broker.resources.change_policies(NAMESPACE, **policies))
    return world, node


def later(world: World, ms: int) -> None:
    """Time passes, with rounds of upkeep."""
    world.advance(ms)


def jump(world: World, ms: int = DAY_MS) -> None:
    """The clock jumps ahead, and is not believed."""
    world.ahead_ms += ms
    world.now_ms += ms
    later(world, 120_000)


def believe(world: World) -> None:
    """What it shows is believed."""
    world.ahead_ms = 0
    later(world, 120_000)


def delayed(node: Node, at_ms: int) -> None:
    client = node.client()
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    node.world.work()
    seen = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=at_ms, deliver_at_time=at_ms)
    client.send(
        pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=0)), metadata.build(seen, b"later")
    )
    node.world.work()


def shared(node: Node) -> tuple[Client, int]:
    client = node.client()
    consumer = client.subscribe("s", kind=1, replicated=False)
    node.world.work()
    client.flow(consumer)
    return client, consumer


def backlog(node: Node) -> int:
    return sum(one.backlog_entries() for one in node.topic.durable_subscriptions())


# -------------------------------------------------------------------------------------- a jump ahead that is not believed


def test_nothing_expires_by_a_jump_that_is_not_believed() -> None:
    world, node = cluster(message_ttl_in_seconds=3600)
    client, _consumer = shared(node)
    node.run(node.broker.disconnected, client.number)
    node.publish(b"1", b"2")
    jump(world)
    assert backlog(node) == 2
    believe(world)
    assert backlog(node) == 0


def test_nothing_is_deleted_by_it() -> None:
    world, node = cluster(retention_policies=RetentionPolicies(60, -1))
    node.publish(b"1")
    later(world, 61_000)
    node.publish(b"2")
    shared(node)
    for subscription in node.topic.durable_subscriptions():
        subscription.skip_all()
    first = node.topic.log.first
    jump(world)
    assert node.topic.log.first == first
    believe(world)
    assert node.topic.log.first > first


def test_no_unused_subscription_is_deleted_by_it() -> None:
    world, node = cluster(subscription_expiration_time_minutes=60)
    client, _consumer = shared(node)
    node.run(node.broker.disconnected, client.number)
    later(world, 11 * 60_000)
    jump(world)
    assert set(node.topic.subscriptions) == {"s"}
    believe(world)
    assert not node.topic.subscriptions


def test_nothing_is_delivered_early_by_it() -> None:
    world, node = cluster()
    client, consumer = shared(node)
    delayed(node, world.now_ms + 3_600_000)
    jump(world)
    assert client.take(consumer) == []
    later(world, 3_600_000)
    assert [one.data for one in client.take(consumer)] == [b"later"], "at its time of day"


def test_no_name_is_forgotten_by_it() -> None:
    world, node = cluster(deduplication_enabled=True)
    client = node.client()
    producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
    client.send(pb.BaseCommand(type=5, producer=producer))
    world.work()
    seen = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=7)), metadata.build(seen, b"x"))
    world.work()
    node.run(node.broker.disconnected, client.number)
    jump(world)
    assert node.control.topics.sequence_ids(TOPIC) == {"p": 7}
    believe(world)
    assert node.control.topics.sequence_ids(TOPIC) == {}


# ------------------------------------------------------------------------------------------- a clock that was set back


@pytest.fixture
def back() -> tuple[World, Node]:
    """A cluster whose clock was a day ahead, and believed, and is right again."""
    world, node = cluster(message_ttl_in_seconds=600)
    world.ahead_ms = DAY_MS
    world.now_ms += DAY_MS
    return world, node


def test_what_is_published_then_expires_in_time(back: tuple[World, Node]) -> None:
    world, node = back
    client, _consumer = shared(node)
    node.run(node.broker.disconnected, client.number)
    start = world.now_ms - world.ahead_ms
    node.publish(b"1")
    assert node.topic.log.stored_by(node.topic.log.last) == start, "it is stored with the time of day"
    later(world, 500_000)
    assert backlog(node) == 1
    later(world, 200_000)
    assert backlog(node) == 0


def test_what_was_published_before_is_kept_until_its_time_has_come(back: tuple[World, Node]) -> None:
    world, node = back
    client, consumer = shared(node)
    delayed(node, world.now_ms - world.ahead_ms + 60_000)
    later(world, 59_000)
    assert client.take(consumer) == []
    later(world, 2_000)
    assert [one.data for one in client.take(consumer)] == [b"later"]


def test_tokens_are_judged_by_the_time_of_day(back: tuple[World, Node]) -> None:
    world, node = back
    config = Security(authentication=AuthenticationConfig(methods=["token"], refresh_ms=1_000))
    node.secure(config, Keys((SECRET,)))
    today_s = (world.now_ms - world.ahead_ms) // 1000

    def client(expires_s: int) -> Client:
        token = jwt.encode({"sub": "app", "exp": today_s + expires_s}, SECRET, "HS256").encode()
        return node.client(auth_method_name="token", auth_data=token)

    assert client(600).answers[-1].type == 3
    assert client(-1).answers[-1].HasField("error")
    short = client(60)
    later(world, 59_000)
    assert short.number in node.clients
    later(world, 2_000)
    assert short.number not in node.clients, "it is closed at the end of its token"
    long = client(200)
    world.ahead_ms += 3_600_000
    world.now_ms += 3_600_000
    later(world, 1_000)
    world.ahead_ms += 3_600_000
    later(world, 500_000)
    assert long.number in node.clients, "the clock was set back by an hour: its token has that much longer"


def test_ids_of_ledgers_grow_whatever_the_clock() -> None:
    world, node = cluster()
    (before,) = node.publish(b"1")
    world.ahead_ms = DAY_MS
    (after,) = node.publish(b"2")
    assert after.ledger > before.ledger, "ids grow, whatever the clock"
    node.restart()
    (again,) = node.publish(b"3")
    assert again.ledger > after.ledger


def test_who_is_used_by_a_clock_ahead_is_not_used_for_a_day(back: tuple[World, Node]) -> None:
    world, node = back
    node.apply(node.broker.resources.change_policies(NAMESPACE, inactive_topic_policies=InactiveTopics(duration_s=60)))
    node.topic.used_ms = world.now_ms
    later(world, 240_000)
    assert TOPIC not in node.broker.topics
