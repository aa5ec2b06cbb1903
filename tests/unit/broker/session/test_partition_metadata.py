"""PARTITIONED_METADATA: how many partitions a topic has, and what is said of one that is not there."""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.types import AutoTopicCreation
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import partitions_asked
from tests.support.geoworld import TOPIC, Node, World

PASSING: Final = "non-persistent://public/default/t"


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize(("create", "allowed"), [(False, True), (True, False)])
def test_partitions_are_there_whether_anybody_opened_them_or_not(topic: str, create: bool, allowed: bool) -> None:
    node = World("a", limits={"auto_create_topics": allowed})["a"]
    node.control_call(lambda done: node.control.topics.create(topic, 3, {}, done))
    assert partitions_asked(node, topic, create=create) == 3
    assert partitions_asked(node, f"{topic}-partition-2", create=create) == 0
    assert partitions_asked(node, f"{topic}-partition-3", create=create) is ErrorCode.TOPIC_NOT_FOUND
    assert partitions_asked(node, f"{topic}-other", create=create) is ErrorCode.TOPIC_NOT_FOUND
    assert partitions_asked(node, f"{topic}-other-partition-0", create=create) is ErrorCode.TOPIC_NOT_FOUND


def _new_topics(node: Node, policy: AutoTopicCreation) -> None:
    node.apply(node.broker.resources.change_policies(NamespaceName("public", "default"), auto_topic_creation=policy))


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_new_topics_are_partitioned_where_the_policy_says_so(topic: str) -> None:
    node = World("a")["a"]
    node.control_call(lambda done: node.control.topics.create(f"{topic}-plain", None, {}, done))
    _new_topics(node, AutoTopicCreation(True, "partitioned", 3))
    assert partitions_asked(node, topic, create=False) is ErrorCode.TOPIC_NOT_FOUND
    assert partitions_asked(node, topic, create=True) == 3
    assert node.control.topics.partitions(topic) == 3
    assert [partitions_asked(node, f"{topic}-partition-{number}", create=False) for number in range(3)] == [0, 0, 0]
    # What is there stays as it is, whatever the policy says by then.
    assert partitions_asked(node, f"{topic}-plain", create=True) == 0
    _new_topics(node, AutoTopicCreation(True, "partitioned", 5))
    assert partitions_asked(node, topic, create=True) == 3
    assert partitions_asked(node, f"{topic}-partition-4", create=True) is ErrorCode.TOPIC_NOT_FOUND
    assert partitions_asked(node, f"{topic}-none-partition-0", create=True) is ErrorCode.TOPIC_NOT_FOUND
    assert partitions_asked(node, topic.replace("/t", "/__own"), create=True) == 0
    _new_topics(node, AutoTopicCreation(False, "partitioned", 5))
    assert partitions_asked(node, f"{topic}-other", create=True) is ErrorCode.TOPIC_NOT_FOUND
    _new_topics(node, AutoTopicCreation(True, "non-partitioned"))
    assert partitions_asked(node, f"{topic}-other", create=True) == 0


def test_partitions_that_are_too_many_are_not_made() -> None:
    node = World("a")["a"]
    node.apply(node.broker.resources.change_policies(NamespaceName("public", "default"), max_topics_per_namespace=2))
    _new_topics(node, AutoTopicCreation(True, "partitioned", 3))
    assert partitions_asked(node, TOPIC, create=True) is ErrorCode.NOT_ALLOWED
    assert node.control.topics.partitions(TOPIC) is None


def test_who_asks_while_they_are_made_is_to_come_again() -> None:
    node = World("a")["a"]
    _new_topics(node, AutoTopicCreation(True, "partitioned", 3))
    first, second = node.client(), node.client()
    command = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1, metadata_auto_creation_enabled=True)
    for client in (first, second):
        client.send(pb.BaseCommand(type=21, partitionMetadata=command))
    node.world.advance(100)
    answers = [client.answers[-1].partitionMetadataResponse for client in (first, second)]
    assert answers[0].partitions == 3
    assert ErrorCode(answers[1].error) is ErrorCode.METADATA  # at which clients try again
    assert partitions_asked(node, TOPIC, create=True) == 3
