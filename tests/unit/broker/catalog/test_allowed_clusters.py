"""Where topics of a namespace may exist: one rule for clients, administrators and links; what is there stays."""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import PreconditionFailed
from tests.support.geosteps import Person
from tests.support.geoworld import TOPIC, Node, World

OWN: Final = NamespaceName.parse("public/default")
PASSING: Final = "non-persistent://public/default/t"
CASES: Final = pytest.mark.parametrize(
    ("replication", "allowed", "here"),
    [("ab", "", True), ("b", "", False), ("b", "ab", True), ("bc", "bc", False), ("a", "abc", True)],
)


def policy(node: Node, replication: str, allowed: str) -> None:
    resources = node.broker.resources
    node.apply(resources.change_policies(OWN, replication_clusters=list(replication), allowed_clusters=list(allowed)))


def opened(node: Node, topic: str) -> bool:
    person = Person(node)
    person.produce(1, topic)
    node.world.settle()
    if isinstance(person.told(1), str):
        return True
    assert person.refused(
        1, ErrorCode.NOT_ALLOWED, "a is not among the allowed clusters of namespace public/default; allow it: "
    )
    return False


@CASES
def test_clients_administrators_and_links_are_held_to_one_rule(replication: str, allowed: str, here: bool) -> None:
    world = World("abc")
    a, b = world["a"], world["b"]
    policy(a, replication, allowed)
    assert opened(a, TOPIC) is opened(a, PASSING) is here
    for name, partitions in (("x", None), ("y", 2)):
        full = f"persistent://public/default/{name}"
        if here:
            assert (
                a.control_call(lambda done, full=full, count=partitions: a.control.topics.create(full, count, {}, done))
                is None
            )
        else:
            with pytest.raises(PreconditionFailed, match="is not among the allowed clusters"):
                a.control.topics.create(full, partitions, {}, lambda _error: None)
    other = "persistent://public/default/z"
    b.create(other)
    b.publish(b"x", topic=other)
    world.advance(100)
    assert (other in a.broker.topics) is here
    stop = b.broker.links.sources["a"].topics[other].blocked
    assert (stop is None) is here
    assert stop is None or "namespace public/default does not allow cluster a; allow it: " in stop.reason


def test_topics_that_are_there_stay_in_use() -> None:
    a = World("ab")["a"]
    a.create()
    policy(a, "b", "")
    assert opened(a, TOPIC) and not opened(a, TOPIC + "-new")
