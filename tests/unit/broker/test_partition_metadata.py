"""PARTITIONED_METADATA: how many partitions a topic has, and what is said of one that is not there."""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Node, World

PASSING: Final = "non-persistent://public/default/t"


def asked(node: Node, topic: str, *, create: bool) -> int | ErrorCode:
    """What a client is told."""
    client = node.client()
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1, metadata_auto_creation_enabled=create)
    client.send(pb.BaseCommand(type=21, partitionMetadata=command))
    answer = client.answers[-1].partitionMetadataResponse
    return ErrorCode(answer.error) if answer.response else answer.partitions


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize(("create", "allowed"), [(False, True), (True, False)])
def test_partitions_are_there_whether_anybody_opened_them_or_not(topic: str, create: bool, allowed: bool) -> None:
    node = World("a", limits={"auto_create_topics": allowed})["a"]
    node.control_call(lambda done: node.control.create_topic(topic, 3, {}, done))
    assert asked(node, topic, create=create) == 3
    assert asked(node, f"{topic}-partition-2", create=create) == 0
    assert asked(node, f"{topic}-partition-3", create=create) is ErrorCode.TOPIC_NOT_FOUND
    assert asked(node, f"{topic}-other", create=create) is ErrorCode.TOPIC_NOT_FOUND
    assert asked(node, f"{topic}-other-partition-0", create=create) is ErrorCode.TOPIC_NOT_FOUND
