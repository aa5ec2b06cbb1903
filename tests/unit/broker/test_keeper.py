"""The keeper of cursors: what is under way to the store when something else happens to it."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.effects import Store
from magnetar.broker.records import cursor_key
from tests.support.geoworld import TOPIC, Client, Node, World


def _acknowledging(world: World) -> tuple[Client, int, Store]:
    """A consumer of `s` whose first acknowledgement is under way to a store that answers nothing."""
    node = world["a"]
    node.create()
    client = node.client()
    number = client.subscribe("s", kind=1, replicated=False)
    first, _second = node.publish(b"0", b"1")
    world.advance(1_000)
    client.flow(number)
    node.hold_stores = True
    client.ack(number, first)
    world.advance(1_000)
    return client, number, _taken(node, lambda store: cursor_key(TOPIC, "s") in store.puts)


def _taken(node: Node, which: Callable[[Store], bool]) -> Store:
    """The one store under way of that kind, which is answered by hand from now on."""
    (store,) = [store for store in node.stores if which(store)]
    node.stores.remove(store)
    return store


def _fail(node: Node, store: Store) -> None:
    assert store.then is not None
    node.run(store.then, "disk I/O error")


def _release(node: Node) -> None:
    node.hold_stores = False
    node.world.advance(5_000)


def test_a_subscription_that_was_deleted_does_not_come_back_by_its_failed_commit() -> None:
    world = World("a")
    node = world["a"]
    client, number, commit = _acknowledging(world)
    client.unsubscribe(number)
    _fail(node, commit)
    _release(node)
    answer = client.answered(9000 + number)
    assert answer is not None and answer.type == 13
    assert cursor_key(TOPIC, "s") not in node.meta
    node.restart()
    assert "s" not in node.topic.subscriptions


def test_the_next_topic_of_a_name_gets_no_cursor_by_a_failed_commit() -> None:
    world = World("a")
    node = world["a"]
    _client, _number, commit = _acknowledging(world)
    answers: list[Any] = []
    node.control.delete_topic(TOPIC, True, answers.append)
    world.settle()
    _fail(node, commit)
    _release(node)
    assert answers == [None]
    assert not [key for key in node.meta if key.startswith(cursor_key(TOPIC, ""))]
    node.create()
    node.restart()
    assert not node.topic.subscriptions


@pytest.mark.parametrize("first", ["commit", "deletion"])
def test_a_topic_that_stays_after_all_stores_what_a_commit_could_not(first: str) -> None:
    world = World("a")
    node = world["a"]
    _client, _number, commit = _acknowledging(world)
    answers: list[Any] = []
    node.control.delete_topic(TOPIC, True, answers.append)
    world.settle()
    deletion = _taken(node, lambda store: cursor_key(TOPIC, "s") in store.deletes)
    for store in (commit, deletion) if first == "commit" else (deletion, commit):
        _fail(node, store)
    _release(node)
    assert len(answers) == 1 and answers[0] is not None
    node.restart()
    assert node.topic.subscriptions["s"].backlog_entries() == 1


def test_a_subscription_that_is_made_anew_is_stored_although_the_former_ones_commit_fails() -> None:
    world = World("a")
    node = world["a"]
    client, number, commit = _acknowledging(world)
    client.unsubscribe(number)
    again = client.subscribe("s", kind=1, replicated=False)
    world.settle()
    for store in node.stores:
        assert store.then is not None
        node.meta.update(store.puts)
        node.run(store.then, "")
    node.stores.clear()
    client.flow(again)
    world.settle()
    both = client.take(again)
    assert [message.data for message in both] == [b"0", b"1"]
    client.ack(again, both[1])
    world.advance(1_000)
    _fail(node, commit)
    _release(node)
    node.restart()
    cursor = node.topic.subscriptions["s"].cursor
    assert cursor.is_acked(both[1].position) and not cursor.is_acked(both[0].position)
