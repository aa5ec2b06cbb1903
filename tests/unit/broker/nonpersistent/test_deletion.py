"""Subscriptions of topics that store nothing, deleted by an administrator."""

import pytest

from magnetar.metadata.errors import NotFound, PreconditionFailed
from tests.support.geosteps import SHARED, consumer
from tests.support.geoworld import Node, World

PASSING = "non-persistent://public/default/t"


def delete(node: Node, name: str, *, force: bool = False) -> None:
    answer = node.control_call(lambda done: node.control.subscriptions.delete(PASSING, name, force, done))
    assert answer is None


def test_it_goes_with_its_consumers_and_only_by_force() -> None:
    node = World("a")["a"]
    clients = [consumer(node, "s", SHARED, topic=PASSING) for _ in range(2)]
    other, kept = consumer(node, "kept", topic=PASSING)
    with pytest.raises(PreconditionFailed, match="has consumers"):
        delete(node, "s")
    with pytest.raises(NotFound):
        delete(node, "none", force=True)
    delete(node, "s", force=True)
    assert [client.closed_consumers for client, _ in clients] == [[number] for _, number in clients]
    assert other.closed_consumers == []
    assert node.control.subscriptions.names(PASSING) == ["kept"]
    other.unsubscribe(kept)
    assert PASSING not in node.broker.nonpersistent.topics


def test_the_topic_goes_with_the_last_one() -> None:
    node = World("a")["a"]
    consumer(node, topic=PASSING)
    delete(node, "s", force=True)
    assert PASSING not in node.broker.nonpersistent.topics


def test_a_forced_unsubscribe_takes_the_other_consumers_along() -> None:
    node = World("a")["a"]
    (leaving, number), (left, lefts) = [consumer(node, "s", SHARED, topic=PASSING) for _ in range(2)]
    leaving.unsubscribe(number)
    assert "has other consumers" in leaving.answers.pop().error.message
    leaving.unsubscribe(number, force=True)
    assert (leaving.closed_consumers, left.closed_consumers) == ([], [lefts])
    assert PASSING not in node.broker.nonpersistent.topics
