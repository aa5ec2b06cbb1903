"""Policies of a topic that stores nothing: its own come before its namespace's."""

from typing import Final

from magnetar.core.errors import ErrorCode
from magnetar.core.names import TopicName
from magnetar.metadata.policies.types import PublishRate
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import Client, Node, World

PASSING: Final = "non-persistent://public/default/t"
NAME: Final = TopicName.parse(PASSING)


def opened() -> tuple[Node, Client]:
    node = World("a")["a"]
    return node, node.client()


def produce(client: Client, number: int) -> str:
    command = pb.CommandProducer(topic=PASSING, producer_id=number, request_id=number)
    client.send(pb.BaseCommand(type=5, producer=command))
    client.node.world.work()
    for answer in client.answers:
        if answer.type == 17 and answer.producer_success.request_id == number:
            return "open"
        if answer.type == 14 and answer.error.request_id == number:
            return ErrorCode(answer.error.error).name
    return ""


def test_a_number_of_its_own_holds() -> None:
    node, client = opened()
    assert produce(client, 1) == "open"
    node.apply(node.broker.resources.change_topic_policies(NAME, max_producers_per_topic=2))
    assert [produce(client, number) for number in (2, 3)] == ["open", "PRODUCER_BUSY"]
    node.apply(node.broker.resources.change_topic_policies(NAME, max_producers_per_topic=None))
    assert produce(client, 4) == "open"


def test_a_rate_of_its_own_holds() -> None:
    node, client = opened()
    assert produce(client, 1) == "open"
    node.apply(node.broker.resources.change_topic_policies(NAME, publish_rate=PublishRate(1, -1)))
    topic = node.broker.nonpersistent.topics[PASSING]
    assert topic.publish_throttle is not None
    node.apply(node.broker.resources.change_topic_policies(NAME, publish_rate=None))
    assert topic.publish_throttle is None
