"""`CursorFlusher`: what is under way to the store when something else happens to it."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.replicated_subscriptions.state_store import decode_checkpoint
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.core.ids import NONE, Position
from magnetar.effects import store_batches as batching
from magnetar.effects.outbox import Outbox, Store
from magnetar.effects.store_batches import STORE_BYTES_MAX, STORE_KEYS_MAX
from magnetar.metadata.topic_records import cursor_key, replicated_key
from magnetar.runtime.stores.znodes import TRANSACTION_BYTES_MAX, Write
from magnetar_sim.host.host import Host
from tests.support.geosteps import two
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
    node.control.topics.delete(TOPIC, True, answers.append)
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
    node.control.topics.delete(TOPIC, True, answers.append)
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


# ----------------------------------------------------------------------------------------------------------- in parts


class _Cursor:
    """A cursor of some bytes."""

    durable_mark_delete = NONE
    mark_delete = Position(7, 7)

    def __init__(self, size: int) -> None:
        self._data = bytes(size)

    def encode(self) -> bytes:
        return self._data


def _name(number: int) -> str:
    return cursor_key(f"persistent://public/default/orders-{number}", "billing")


class _Kept:
    """A flusher alone, and a store that takes no more at once than ZooKeeper."""

    def __init__(self) -> None:
        self.outbox = Outbox(now_ms=1_000)
        self.flusher = CursorFlusher(self.outbox, 20, lambda _keys: ())
        self.meta: dict[str, bytes] = {}
        self.host = Host(self.outbox, {}, self.meta)

    def flush(self) -> list[tuple[Store, str]]:
        """The timer is due and the store answers; what it was given, and said."""
        self.host.pump()
        self.host.advance(max(at_ms for at_ms, _, _ in self.host.timers.waiting))
        said = []
        for store in list(self.host.store.waiting):
            size = Write(store.puts, store.deletes, None, lambda _error: None).size
            said.append((store, "too large" if size > TRANSACTION_BYTES_MAX else ""))
            self.host.store.answer(said[-1][1])
        return said


@pytest.mark.parametrize("size", [40, 2_000])
def test_more_cursors_than_zookeeper_takes_at_once_become_durable(size: int) -> None:
    kept = _Kept()
    cursors = {_name(number): _Cursor(size) for number in range(3_000)}
    for key, cursor in cursors.items():
        kept.flusher.dirty(key, cursor)
    answers: list[str] = []
    kept.flusher.when_durable(_name(2_999), cursors[_name(2_999)], answers.append)
    stores = [store for store, _error in kept.flush()]
    assert kept.meta.keys() == cursors.keys()
    assert answers == [""]
    assert all(cursor.durable_mark_delete == (7, 7) for cursor in cursors.values())
    assert all(len(store.puts) <= STORE_KEYS_MAX for store in stores)
    assert all(Write(store.puts, (), None, lambda _error: None).size <= STORE_BYTES_MAX for store in stores)


def test_a_cursor_that_is_too_large_holds_up_nobody_else() -> None:
    kept = _Kept()
    cursors = {_name(number): _Cursor(1_000_000 if number == 3 else 40) for number in range(8)}
    answers: list[tuple[int, str]] = []
    for number, (key, cursor) in enumerate(cursors.items()):
        kept.flusher.when_durable(key, cursor, lambda error, number=number: answers.append((number, error)))  # type: ignore[misc]
    kept.flush()
    assert kept.meta.keys() == cursors.keys() - {_name(3)}
    assert sorted(answers) == [(number, "too large" if number == 3 else "") for number in range(8)]
    assert [list(store.puts) for store, _error in kept.flush()] == [[_name(3)]], "only that one is tried again"


def _many(monkeypatch: pytest.MonkeyPatch, keys: int) -> tuple[World, Client, dict[str, int], list[Position]]:
    """Six replicated subscriptions, all consumers there, and a flusher whose transactions take so many keys."""
    world = two(mode="exact")
    node = world["a"]
    client = node.client()
    consumers = {name: client.subscribe(name, kind=1) for name in "uvwxyz"}
    positions = node.publish(*(b"%d" % number for number in range(4)))
    world.advance(3_000)
    for number in consumers.values():
        client.flow(number)
    world.settle()
    monkeypatch.setattr(batching, "STORE_KEYS_MAX", keys)
    return world, client, consumers, positions


def _acknowledge(node: Node, client: Client, consumers: dict[str, int], position: Position) -> list[Store]:
    """Everybody acknowledges, and checkpoints are wanted; the flush's transactions, which nobody answers."""
    node.hold_stores = True
    for number in consumers.values():
        client.ack(number, position)
    node.run(node.broker.replicated_subscriptions.flush)
    assert not node.stores
    node.run(node.broker.flusher.flush)
    found = list(node.stores)
    node.stores.clear()
    return found


def _answer(node: Node, stores: list[Store], *, failing: int = -1) -> None:
    for number, store in enumerate(stores):
        assert store.then is not None
        if number == failing:
            node.run(store.then, "disk I/O error")
            continue
        node.meta.update(store.puts)
        for key in store.deletes:
            node.meta.pop(key, None)
        node.run(store.then, "")


def test_states_stay_with_their_cursors_however_their_topic_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    world, client, consumers, positions = _many(monkeypatch, 4)
    stores = _acknowledge(world["a"], client, consumers, positions[0])
    assert len(stores) >= 3
    for store in stores:
        for name in consumers:
            assert (cursor_key(TOPIC, name) in store.puts) == (replicated_key(TOPIC, name) in store.puts)
    assert all(len(store.puts) <= 4 for store in stores)


def test_the_checkpoint_of_a_topic_that_is_cut_follows_when_all_of_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, client, consumers, positions = _many(monkeypatch, 4)
    node = world["a"]
    own = replicated_key(TOPIC)
    before, last = decode_checkpoint(node.meta.get(own, b"")), node.topic.log.last
    assert before < last, "there is no marker to cover, or this tests nothing"
    stores = _acknowledge(node, client, consumers, positions[0])
    assert all(decode_checkpoint(store.puts.get(own, b"")) <= before for store in stores), "one of them may still fail"
    _answer(node, stores)
    assert decode_checkpoint(node.meta.get(own, b"")) <= before
    _release(node)
    assert decode_checkpoint(node.meta[own]) >= last
    host = node.topic.replicated_subscriptions
    assert host is not None and host.states.checkpoint == decode_checkpoint(node.meta[own])


def test_the_checkpoint_stays_where_a_part_of_its_topic_was_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    world, client, consumers, positions = _many(monkeypatch, 4)
    node = world["a"]
    own = replicated_key(TOPIC)
    before, last = decode_checkpoint(node.meta.get(own, b"")), node.topic.log.last
    stores = _acknowledge(node, client, consumers, positions[0])
    _answer(node, stores, failing=1)
    assert (
        node.topic.replicated_subscriptions is not None
        and node.topic.replicated_subscriptions.states.checkpoint <= before
    )
    assert node.topic.replicated_subscriptions.states.reached <= before, (
        "a state that is not stored has yet to cover them"
    )
    _release(node)
    for name in consumers:
        assert {cursor_key(TOPIC, name), replicated_key(TOPIC, name)} <= node.meta.keys()
    node.broker.replicated_subscriptions.flush()
    node.run(node.broker.flusher.flush)
    world.advance(1_000)
    assert decode_checkpoint(node.meta[own]) >= last


def test_a_topic_that_fits_is_stored_with_its_cover_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, client, consumers, positions = _many(monkeypatch, 20)
    node = world["a"]
    last = node.topic.log.last
    (store,) = _acknowledge(node, client, consumers, positions[0])
    assert decode_checkpoint(store.puts[replicated_key(TOPIC)]) >= last


def test_a_clean_stop_stores_what_changed_while_a_commit_was_under_way() -> None:
    world = World("a")
    node = world["a"]
    client, number, commit = _acknowledging(world)
    second = node.topic.log.last
    client.ack(number, second)
    world.advance(1_000)
    key = cursor_key(TOPIC, "s")
    assert not [store for store in node.stores if key in store.puts], (
        "two commits of one key are not under way together"
    )
    node.run(node.broker.shut_down)
    stored = [store.puts[key] for store in (commit, *node.stores) if key in store.puts]
    assert stored[-1] == node.topic.subscriptions["s"].encode()
    assert len(stored) == 2
