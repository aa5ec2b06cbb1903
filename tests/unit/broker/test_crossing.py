"""Changes that cross: one is on its way to the store while another is made of what was there before it."""

from typing import Any

from magnetar.core.names import NamespaceName
from tests.support.geoworld import TOPIC, Node, World

NAMESPACE = NamespaceName.parse("public/default")


def _release(node: Node) -> None:
    node.hold_stores = False
    node.world.settle()


def _policy(node: Node, *clusters: str) -> list[Any]:
    answers: list[Any] = []
    node.control.apply(node.broker.resources.set_replication(NAMESPACE, list(clusters)), answers.append)
    return answers


def test_a_topic_that_is_deleted_leaves_nothing_on_links_whose_policy_changes() -> None:
    node = World("ab")["a"]
    node.create()
    assert node.broker.links.sources["b"].wants(TOPIC)
    node.hold_stores = True
    node.control.delete_topic(TOPIC, True, lambda _error: None)
    answers = _policy(node, "a")
    _release(node)
    assert answers == [None]
    assert TOPIC not in node.broker.topics
    assert TOPIC not in node.broker.links.sources["b"].topics
    node.create()
    assert _policy(node, "a", "b") == []
    _release(node)
    assert node.broker.links.sources["b"].topics[TOPIC].log is node.broker.topics[TOPIC].log


def test_a_policy_holds_for_a_topic_that_was_made_while_it_was_on_its_way() -> None:
    for before, after in ((("a", "b"), ("a",)), (("a",), ("a", "b"))):
        node = World("ab")["a"]
        _policy(node, *before)
        _release(node)
        node.hold_stores = True
        node.create()
        _policy(node, *after)
        _release(node)
        assert TOPIC in node.broker.topics
        assert node.broker.links.sources["b"].wants(TOPIC) == ("b" in after)


def test_a_subscription_that_cannot_be_stored_keeps_nobody() -> None:
    node = World("ab")["a"]
    node.create()
    node.hold_stores = True
    for _ in range(2):
        node.client().subscribe("s", kind=1)
    failed = list(node.stores)
    node.stores.clear()
    for store in failed:
        if store.then is not None:
            node.run(store.then, "no space left")
    assert not node.broker.topics[TOPIC].subscriptions
    assert not any(session.consumers.open for session in node.broker.sessions.values())
