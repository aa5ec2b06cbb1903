"""How many topics a namespace may have (`max-topics`), also for those who create them at the same time; and that the limits of a
topic hold from its creation, and after a restart.
"""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.types import DispatchRate, PublishRate
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE: Final = NamespaceName("public", "default")


@pytest.fixture
def node() -> Node:
    """Three topics are the most."""
    node = World("a")["a"]
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_topics_per_namespace=3))
    node.hold_stores = True
    return node


def opened(client: Client, *topics: str) -> list[str]:
    """How opening a producer on each of these topics ends, all of them asked for at once."""
    for number, topic in enumerate(topics):
        command = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
        client.send(pb.BaseCommand(type=5, producer=command))
    client.node.hold_stores = False
    client.node.world.work()
    found = dict.fromkeys(range(len(topics)), "")
    for command in client.answers:
        if command.type == 17:
            found[command.producer_success.request_id] = "open"
        elif command.type == 14:
            found[command.error.request_id] = ErrorCode(command.error.error).name
    return list(found.values())


def test_those_who_come_at_once(node: Node) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(5)]
    assert opened(node.client(), *topics) == ["open"] * 3 + ["NOT_ALLOWED"] * 2
    assert sorted(node.broker.topics) == topics[:3]


def test_one_that_is_being_created_is_no_other_one(node: Node) -> None:
    topics = [f"{TOPIC}-{number}" for number in (0, 1, 2, 2, 1, 0)]
    assert opened(node.client(), *topics) == ["open"] * 6


def test_partitions_that_are_being_created_count(node: Node) -> None:
    answers: list[object] = []
    node.run(node.control.topics.create, f"{TOPIC}-p", 2, {}, answers.append)
    assert opened(node.client(), TOPIC, f"{TOPIC}-2") == ["open", "NOT_ALLOWED"]
    assert answers == [None]


def test_rates_hold_for_a_topic_from_the_first_message_and_after_a_restart() -> None:
    node = World("a")["a"]
    rates = {"publish_rate": PublishRate(5, -1), "dispatch_rate": DispatchRate(6, -1, 1), "max_producers_per_topic": 7}
    node.apply(node.broker.resources.change_policies(NAMESPACE, **rates))
    node.create()

    def check() -> None:
        assert node.topic.publish_throttle is not None
        assert node.topic.dispatch_rate is not None
        assert node.topic.producers.maximum == 7
        assert node.topic.producers.limit == "policy max-producers of its namespace"

    check()
    node.restart()
    check()
