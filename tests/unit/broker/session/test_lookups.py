"""LOOKUP and PARTITIONED_METADATA: by which errors they are refused, for clients treat some of these in ways of their own.

When such an answer says ServiceNotReady, Java's client and the C++ client close the connection, with all that others have on it.
"""

from typing import Any, Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.namespace import Policies
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node

GOING: Final = NamespaceName("public", "going")
RETRIED: Final = {ErrorCode.METADATA}
"""What all official clients try again after, on the same connection."""
FINAL: Final = {ErrorCode.NOT_ALLOWED, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.AUTHORIZATION}


def look_up(client: Client, topic: str, listener: str = "") -> ErrorCode | str:
    """Where a topic is served, or why it cannot be said."""
    command = pb.CommandLookupTopic(topic=topic, request_id=1, advertised_listener_name=listener)
    client.send(pb.BaseCommand(type=23, lookupTopic=command))
    answer = client.answers[-1].lookupTopicResponse
    assert "\n" not in answer.message
    return ErrorCode(answer.error) if answer.response == 2 else answer.brokerServiceUrl


def partitions(client: Client, topic: str) -> ErrorCode | int:
    """How many there are, or why it cannot be said."""
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1)
    client.send(pb.BaseCommand(type=21, partitionMetadata=command))
    answer = client.answers[-1].partitionMetadataResponse
    return ErrorCode(answer.error) if answer.response else answer.partitions


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("ask", [look_up, partitions])
def test_a_namespace_that_is_being_deleted_costs_nobody_a_connection(node: Node, ask: Any, domain: str) -> None:
    resources = node.broker.resources
    node.apply(resources.create_namespace(GOING, Policies()))
    node.hold_stores = True
    node.control.policies.apply(resources.delete_namespace(GOING, []), lambda _error: None)
    client, text = node.client(), f"{domain}://{GOING}/t"
    assert ask(client, text) in RETRIED
    node.hold_stores = False
    node.world.work()
    assert ask(client, text) is ErrorCode.TOPIC_NOT_FOUND


def test_a_listener_that_there_is_not_is_told_at_once(node: Node) -> None:
    """Trying again does not help; with an error that clients try again after, they did so until their timeout."""
    client = node.client()
    assert isinstance(look_up(client, TOPIC), str)
    assert look_up(client, TOPIC, "nowhere") in FINAL
