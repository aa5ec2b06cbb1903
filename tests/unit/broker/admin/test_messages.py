"""Administration of single messages and places, through a whole broker."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.admin.messages import backlog_from, nth_message, subscription_start
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.metadata.errors import BadRequest, Conflict, NotFound, PreconditionFailed
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import StoredEntry
from magnetar.wire.metadata import split
from tests.support.geosteps import two
from tests.support.geoworld import TOPIC, Client, Node, World
from tests.support.subscriptions import add_entries, entry, new_log

SHARED = 1


def alone() -> Node:
    return two("a")["a"]


def consumer(node: Node, **more: Any) -> tuple[Client, int]:
    client = node.client()
    number = client.subscribe("s", SHARED, **more)
    node.world.settle()
    client.flow(number)
    node.world.settle()
    return client, number


def backlog(node: Node) -> int:
    return node.topic.subscriptions["s"].backlog_entries()


def expire(node: Node, position: Position, *, exclusive: bool = False) -> None:
    control = node.control
    assert (
        node.control_call(lambda done: control.subscriptions.expire_to(TOPIC, "s", position, exclusive, done)) is None
    )


def ledgers(node: Node, *payloads: bytes) -> list[Position]:
    """Entries of two bytes each in a ledger of their own, the last one excepted, which is written."""
    positions = []
    for payload in payloads:
        positions += node.publish(payload)
        node.run(lambda: node.topic.log.roll(node.world.now_ms))
    return positions


# ----------------------------------------------------------------------------------------------------------------- expiry


def test_expiry_up_to_a_message_includes_it_or_not() -> None:
    node = alone()
    consumer(node, replicated=False)
    positions = node.publish(*(b"%d" % number for number in range(5)))
    node.world.settle()
    expire(node, positions[1])
    assert node.topic.subscriptions["s"].mark_delete == positions[1]
    expire(node, positions[3], exclusive=True)
    assert node.topic.subscriptions["s"].mark_delete == positions[2]
    expire(node, positions[0])
    assert backlog(node) == 2
    stats = node.control.statistics.topic(TOPIC)["subscriptions"]["s"]
    assert stats["totalMsgExpired"] == 3
    assert stats["lastExpireTimestamp"] > 0
    node.restart()
    assert backlog(node) == 2, "it was answered when it was durable"


def test_a_place_without_a_message_stands_for_all_in_front_of_it() -> None:
    node = alone()
    consumer(node, replicated=False)
    positions = ledgers(node, b"0", b"1", b"2")
    node.world.settle()
    expire(node, EARLIEST)
    expire(node, Position(positions[0].ledger - 1, 7))
    assert backlog(node) == 3
    expire(node, Position(positions[0].ledger, 99))
    assert backlog(node) == 2
    expire(node, Position(positions[1].ledger, 99), exclusive=True)
    assert backlog(node) == 1


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("behind", [0, 1])
def test_what_is_behind_the_last_message_is_refused(behind: int, exclusive: bool) -> None:
    node = alone()
    consumer(node, replicated=False)
    (last,) = node.publish(b"0")
    node.world.settle()
    place = LATEST if behind else Position(last.ledger, last.entry + 1)
    with pytest.raises(Conflict, match="behind the last message"):
        node.control.subscriptions.expire_to(TOPIC, "s", place, exclusive, lambda _error: None)
    with pytest.raises(NotFound):
        node.control.subscriptions.expire_to(TOPIC, "other", last, exclusive, lambda _error: None)
    assert backlog(node) == 1


# ------------------------------------------------------------------------------------------------------------ reset


@pytest.mark.parametrize(
    ("index", "exclusive", "left"),
    [
        (-1, False, 4),
        (0, False, 4),
        (0, True, 3),
        (2, False, 2),
        (2, True, 1),
        (3, True, 0),
        (-1, True, 0),
    ],
)
def test_a_subscription_is_moved_to_a_message_of_a_batch(index: int, exclusive: bool, left: int) -> None:
    node = alone()
    client, number = consumer(node, replicated=False)
    batch, _ = *node.publish(b"batch", batch=4), *node.publish(b"behind")
    node.world.settle()
    client.ack(number, batch)
    control = node.control
    refused = node.control_call(
        lambda done: control.subscriptions.reset_cursor(TOPIC, "s", batch, exclusive, done, batch_index=index)
    )
    assert refused is None
    assert node.topic.subscriptions["s"].cursor.backlog_messages() == left + 1
    node.restart()
    assert node.topic.subscriptions["s"].cursor.backlog_messages() == left + 1, "it was answered when it was durable"


def places(node: Node) -> tuple[list[Position], list[Position]]:
    """Ids that a topic of three ledgers, of which retention deleted the first, may have had, and some that it never had."""
    # Another topic has a ledger below its first one, and one in between.
    node.create(OTHER)
    node.publish(b"0", topic=OTHER)
    node.create()
    (gone,) = ledgers(node, b"gone")
    consumer(node, replicated=False)
    node.run(node.topic.subscriptions["s"].skip_all)
    (batch,) = node.publish(b"batch", batch=4)
    node.run(lambda: node.topic.log.roll(node.world.now_ms))
    node.run(lambda: node.broker.topics[OTHER].log.roll(node.world.now_ms))
    (theirs,) = node.publish(b"1", topic=OTHER)
    (last,) = node.publish(b"last")
    node.world.advance(1_000)
    node.run(lambda: node.broker.upkeep.trim(node.topic, everything=True))
    node.world.settle()
    assert not node.topic.log.valid(gone)
    assert gone.ledger < batch.ledger < theirs.ledger < last.ledger
    never = [
        Position(last.ledger, last.entry + 2),
        Position(last.ledger + 1000, 0),
        Position(batch.ledger, 1),
        Position(batch.ledger, 99),
        Position(batch.ledger, -2),
        Position(theirs.ledger, 0),
        Position(node.topic.log.incarnation - 1, 0),
        Position(-7, 3),
    ]
    return [EARLIEST, LATEST, Position(batch.ledger, -1), batch, last], never


OTHER = TOPIC + "-other"


def test_a_subscription_is_not_moved_to_a_message_that_never_was() -> None:
    node = World("a")["a"]
    were, never = places(node)
    before = node.topic.subscriptions["s"].mark_delete
    assert backlog(node) == 2
    for exclusive in (False, True):
        for position in [*never, Position(were[-1].ledger, were[-1].entry + 1)]:
            with pytest.raises(Conflict, match=f"{position}"):
                node.control.subscriptions.reset_cursor(TOPIC, "s", position, exclusive, lambda _error: None)
        for index in (4, 9):
            with pytest.raises(Conflict, match="has 4 messages"):
                node.control.subscriptions.reset_cursor(
                    TOPIC, "s", were[3], exclusive, lambda _error: None, batch_index=index
                )
        with pytest.raises(Conflict, match="has 1 messages"):
            node.control.subscriptions.reset_cursor(TOPIC, "s", were[4], exclusive, lambda _error: None, batch_index=1)
    assert (node.topic.subscriptions["s"].mark_delete, backlog(node)) == (before, 2), "nothing was skipped"
    control = node.control
    for position in were:
        refused = node.control_call(
            lambda done, at=position: control.subscriptions.reset_cursor(TOPIC, "s", at, False, done)
        )  # type: ignore[misc]
        assert refused is None


def test_what_retention_deleted_may_be_named() -> None:
    """A ledger that is gone was the topic's, as far as anybody knows: the first message that there is comes next."""
    node = alone()
    (gone, *_) = ledgers(node, b"0", b"1")
    consumer(node, replicated=False)
    node.run(node.topic.subscriptions["s"].skip, 1)
    node.world.advance(1_000)
    node.run(lambda: node.broker.upkeep.trim(node.topic, everything=True))
    node.world.settle()
    assert not node.topic.log.valid(gone)
    control = node.control
    for place, index in ((gone, -1), (Position(gone.ledger, 7), -1), (gone, 5)):
        moved = node.control_call(
            lambda done, at=place, n=index: control.subscriptions.reset_cursor(
                TOPIC, "s", at, False, done, batch_index=n
            )  # type: ignore[misc]
        )
        assert moved is None
        assert backlog(node) == 1


def test_a_topic_without_messages_has_no_ids() -> None:
    node = alone()
    consumer(node, replicated=False)
    control = node.control
    for position in (Position(node.topic.log.incarnation, 0), Position(0, 0), Position(7, 7)):
        with pytest.raises(Conflict):
            control.subscriptions.reset_cursor(TOPIC, "s", position, False, lambda _error: None)
        with pytest.raises(PreconditionFailed):
            control.subscriptions.create(TOPIC, "new", position, False, {}, lambda _error: None)
    for position in (EARLIEST, LATEST):
        assert (
            node.control_call(lambda done, at=position: control.subscriptions.reset_cursor(TOPIC, "s", at, False, done))
            is None
        )  # type: ignore[misc]


def test_a_subscription_is_not_made_at_a_message_that_never_was() -> None:
    node = World("a")["a"]
    were, never = places(node)
    control = node.control
    for position in never:
        with pytest.raises(PreconditionFailed, match=f"{position}"):
            control.subscriptions.create(TOPIC, "new", position, False, {}, lambda _error: None)
    with pytest.raises(PreconditionFailed, match="batch index 4"):
        control.subscriptions.create(TOPIC, "new", were[3], False, {}, lambda _error: None, batch_index=4)
    assert "new" not in node.topic.subscriptions
    # The place of the message that comes next is what `messageid/{timestamp}` gives for a time to come.
    following = Position(were[-1].ledger, were[-1].entry + 1)
    for number, position in enumerate([*were, following]):
        made = node.control_call(
            lambda done, at=position, n=number: control.subscriptions.create(TOPIC, f"n{n}", at, False, {}, done)  # type: ignore[misc]
        )
        assert made is None
    backlogs = [node.topic.subscriptions[f"n{number}"].backlog_entries() for number in range(6)]
    assert backlogs == [2, 0, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("index", "exclusive", "left"), [(-1, False, 5), (-1, True, 1), (0, False, 5), (2, False, 3), (3, True, 1)]
)
@pytest.mark.parametrize("replicated", [False, True])
def test_a_subscription_begins_within_a_batch(index: int, exclusive: bool, left: int, replicated: bool) -> None:
    world = two()
    node = world["a"]
    batch, _ = *node.publish(b"batch", batch=4), *node.publish(b"behind")
    world.advance(1_000)
    control = node.control
    made = node.control_call(
        lambda done: control.subscriptions.create(
            TOPIC, "s", batch, replicated, {}, done, exclusive=exclusive, batch_index=index
        )
    )
    assert made is None
    assert node.topic.subscriptions["s"].cursor.backlog_messages() == left
    node.restart()
    assert node.topic.subscriptions["s"].cursor.backlog_messages() == left, "it was answered when it was durable"


def test_clients_may_seek_where_nothing_is() -> None:
    """As in Pulsar: clients that kept an id for long, or that of another cluster, go on with the next there is."""
    node = World("a")["a"]
    _, never = places(node)
    for position in never:
        client, number = consumer(node, replicated=False)
        request = client.seek(number, position)
        node.world.advance(1_000)
        answer = client.answered(request)
        assert answer is not None
        assert answer.type != 14, f"{position}: {answer}"
        node.run(node.broker.disconnected, client.number)


def test_an_index_means_nothing_where_there_is_no_batch() -> None:
    log = new_log()
    first, second = (stored.position for stored in add_entries(log, [entry(), entry()]))
    assert subscription_start(log, first, 5, exclusive=False) == (first, [])
    assert subscription_start(log, first, 5, exclusive=True) == (second, [])
    assert subscription_start(log, second, 0, exclusive=True) == (LATEST, [])
    assert subscription_start(log, EARLIEST, 3, exclusive=False) == (EARLIEST, [])
    assert subscription_start(log, LATEST, 3, exclusive=True) == (LATEST, [])
    gone = Position(first.ledger - 1, 0)
    assert subscription_start(log, gone, 3, exclusive=False) == (gone, [])


def test_expiry_up_to_a_message_is_no_acknowledgement() -> None:
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(b"0", b"1", b"2")
    world.advance(500)
    there = nth_message(world["b"].topic.log, 1, newest=False)
    assert there is not None
    expire(world["b"], there)
    world.advance(1_000)
    assert (backlog(world["a"]), backlog(world["b"])) == (3, 2)
    client.ack(number, *positions[1:])
    world.advance(500)
    client.seek(number, positions[0])
    world.advance(500)
    world["b"].restart()
    world.advance(500)
    found, there_too = consumer(world["b"])
    assert [message.data for message in found.take(there_too)] == [b"1", b"2"], "what expired there stays away"


# ---------------------------------------------------------------------------------------------------------------- looking


def looked(node: Node, call: Any) -> bytes:
    """The payload that a call gives."""
    answers: list[tuple[StoredEntry | None, MagnetarError | None]] = []
    call(lambda *answer: answers.append(answer))
    node.world.settle()
    ((found, error),) = answers
    assert found is not None and error is None
    return found.data[split(found.data) :]


def mark(node: Node) -> Position:
    """One marker."""
    data = entry(marker=True)
    positions: list[Position] = []
    node.run(lambda: node.topic.append([data], lambda append, _e: positions.extend(e.position for e in append.entries)))
    node.world.settle()
    return positions[0]


def test_messages_are_found_by_number_and_by_id() -> None:
    node = alone()
    mark(node)
    positions = node.publish(b"0", b"1")
    marker = mark(node)
    positions += ledgers(node, b"2", b"3")
    mark(node)
    control = node.control
    for number in range(4):
        assert (
            looked(node, lambda done, n=number: control.messages.examine(TOPIC, n + 1, False, done)) == b"%d" % number
        )
        assert looked(node, lambda done, n=number: control.messages.examine(TOPIC, 4 - n, True, done)) == b"%d" % number
        assert looked(node, lambda done, n=number: control.messages.at(TOPIC, positions[n], done)) == b"%d" % number
    looked(node, lambda done: control.messages.at(TOPIC, marker, done))
    for newest in (False, True):
        with pytest.raises(NotFound, match="fewer than 5"):
            control.messages.examine(TOPIC, 5, newest, lambda *_: None)
    for bad in (NONE, LATEST, Position(positions[3].ledger, 9)):
        with pytest.raises(NotFound, match="has no message"):
            control.messages.at(TOPIC, bad, lambda *_: None)
    with pytest.raises(PreconditionFailed):
        control.messages.examine(TOPIC, 0, True, lambda *_: None)


def test_an_empty_topic_has_no_first_and_no_last_message() -> None:
    node = alone()
    for newest in (False, True):
        with pytest.raises(NotFound):
            node.control.messages.examine(TOPIC, 1, newest, lambda *_: None)
    assert node.control.messages.position_since(TOPIC, 0) == EARLIEST
    assert node.control.messages.bytes_from(TOPIC, EARLIEST) == 0
    assert node.control.topics.ledger_info(TOPIC)["ledgers"] == []


def test_a_time_names_the_first_message_of_then_or_later() -> None:
    node = alone()
    (first,) = node.publish(b"0")
    began_ms = node.world.now_ms
    node.world.advance(1_000)
    (second,) = node.publish(b"1")
    since = node.control.messages.position_since
    assert since(TOPIC, 0) == since(TOPIC, began_ms) == first
    assert since(TOPIC, began_ms + 1) == since(TOPIC, began_ms + 1_000) == second
    assert since(TOPIC, began_ms + 1_001) == Position(second.ledger, second.entry + 1)


def test_bytes_from_a_message_on_include_its_own() -> None:
    node = alone()
    positions = ledgers(node, b"0", b"111", b"22")
    size = node.control.messages.bytes_from
    total = node.topic.log.bytes_retained
    assert size(TOPIC, EARLIEST) == size(TOPIC, positions[0]) == total
    assert total > size(TOPIC, positions[1]) > size(TOPIC, positions[2]) > 0
    sizes = [size(TOPIC, position) for position in positions]
    assert (sizes[1] - sizes[2]) - (sizes[0] - sizes[1]) == len(b"111") - len(b"0")
    assert size(TOPIC, Position(positions[1].ledger, 99)) == size(TOPIC, positions[2])
    assert size(TOPIC, LATEST) == size(TOPIC, Position(positions[2].ledger, 1)) == 0


# ---------------------------------------------------------------------------------------------------------------- backlog

KINDS = st.lists(st.sampled_from([0, 1, 1, 3]), min_size=1, max_size=12)
"""Entries: 0 stands for a marker, else how many messages there are."""


@given(
    kinds=KINDS, acks=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 7)), max_size=12), start=st.integers(-1, 13)
)
def test_a_backlog_is_what_counting_finds(kinds: list[int], acks: list[tuple[int, int]], start: int) -> None:
    log = new_log(ledger_entries_max=5)
    add_entries(log, [entry(count=kind or 1, marker=not kind) for kind in kinds])
    positions: list[Position] = []
    while (following := log.next_after(positions[-1] if positions else NONE)) is not None:
        positions.append(following)
    cursor = Cursor(log)
    left = [(1 << kind) - 1 for kind in kinds]
    for number, bits in acks:
        if number < len(kinds) and kinds[number]:
            cursor.ack_indexes(positions[number], bits)
            left[number] &= bits
    before = cursor.encode()
    cursor.dirty = False
    from_ = positions[start] if 0 <= start < len(positions) else (EARLIEST if start < 0 else LATEST)
    counted = [bits.bit_count() for position, bits in zip(positions, left, strict=True) if bits and position >= from_]
    found = backlog_from(cursor, log, from_)
    assert (found["entries"], found["messages"]) == (len(counted), sum(counted))
    assert found["filterAcceptedMessages"] == found["messages"]
    if start < 0:
        assert found == backlog_from(cursor, log, None)
    assert not cursor.dirty and cursor.encode() == before, "the subscription's own cursor is not touched"


# --------------------------------------------------------------------------------------------------------------- trimming


def consumed(*payloads: bytes) -> tuple[Node, list[Position]]:
    """Ledgers, of which nobody needs the first."""
    node = alone()
    client, number = consumer(node, replicated=False)
    positions = ledgers(node, *payloads)
    node.world.settle()
    client.ack(number, positions[0])
    node.world.advance(500)
    return node, positions


def test_trim_is_answered_when_nobody_is_given_it_any_more() -> None:
    node, positions = consumed(b"0", b"1", b"2")
    answers: list[Any] = []
    node.hold_stores = True
    node.control.topics.trim(TOPIC, answers.append)
    node.world.settle()
    assert (answers, node.topic.log.valid(positions[0])) == ([], True)
    node.hold_stores = False
    node.world.settle()
    assert answers == [None]
    assert [node.topic.log.valid(position) for position in positions] == [False, True, True]
    assert node.control_call(lambda done: node.control.topics.trim(TOPIC, done)) is None, "there is nothing more"


def test_trim_that_cannot_be_stored_says_so() -> None:
    node, positions = consumed(b"0", b"1")
    answers: list[Any] = []
    node.hold_stores = True
    node.control.topics.trim(TOPIC, answers.append)
    (store,) = node.stores
    assert node.store.answer("the disk is gone", store)
    assert "the disk is gone" in str(answers)
    assert node.topic.log.valid(positions[0])
    node.hold_stores = False
    node.world.advance(1_000)
    assert not node.topic.log.valid(positions[0]), "it is tried again"
    assert len(answers) == 1


# -------------------------------------------------------------------------------------------------------------- properties


def test_properties_of_a_topic_are_set_one_by_one_and_last() -> None:
    node = alone()
    control = node.control

    def change(puts: dict[str, str], delete: str | None = None) -> None:
        assert node.control_call(lambda done: control.topics.change_properties(TOPIC, puts, delete, done)) is None

    change({"a": "1", "b": "2"})
    change({"b": "3", "c": "4"})
    change({}, "a")
    change({}, "never there")
    assert node.control.topics.properties(TOPIC) == {"b": "3", "c": "4"}
    node.restart()
    assert node.control.topics.properties(TOPIC) == {"b": "3", "c": "4"}
    with pytest.raises(BadRequest, match="too many"):
        node.control.topics.change_properties(TOPIC, {str(n): "" for n in range(10_000)}, None, lambda _error: None)


def test_properties_that_cannot_be_stored_are_not_there() -> None:
    node = alone()
    answers: list[Any] = []
    node.hold_stores = True
    node.control.topics.change_properties(TOPIC, {"a": "1"}, None, answers.append)
    (store,) = node.stores
    assert node.store.answer("the disk is gone", store)
    assert "the disk is gone" in str(answers)
    assert node.control.topics.properties(TOPIC) == {}


def test_properties_of_a_subscription_are_replaced_and_last() -> None:
    node = alone()
    consumer(node, replicated=False)
    control = node.control
    for wanted in ({"a": "1", "b": "2"}, {"b": "3"}):
        assert (
            node.control_call(lambda done, w=wanted: control.subscriptions.set_properties(TOPIC, "s", w, done)) is None
        )  # type: ignore[misc]
        assert node.control.subscriptions.properties(TOPIC, "s") == wanted
        assert node.control.statistics.topic(TOPIC)["subscriptions"]["s"]["subscriptionProperties"] == wanted
    node.restart()
    assert node.control.subscriptions.properties(TOPIC, "s") == {"b": "3"}


# ------------------------------------------------------------------------------------------------------------ what is stored


def test_what_is_stored_is_told_and_not_what_memory_knows() -> None:
    node = alone()
    client, number = consumer(node, replicated=False)
    positions = node.publish(b"0", b"1")
    node.world.settle()
    node.hold_stores = True
    client.ack(number, positions[0])
    node.world.advance(500)
    info = node.control.topics.ledger_info(TOPIC)
    stored = info["cursors"]["s"]["markDelete"]
    assert (stored["ledgerId"], stored["entryId"]) < positions[0]
    node.hold_stores = False
    node.world.advance(500)
    info = node.control.topics.ledger_info(TOPIC)
    assert info["cursors"]["s"]["markDelete"] == {"ledgerId": positions[0].ledger, "entryId": 0}
    assert [(ledger["ledgerId"], ledger["entries"], ledger["timestamp"]) for ledger in info["ledgers"]] == [
        (positions[0].ledger, 2, 0)
    ]
    assert "terminatedPosition" not in info
    control = node.control
    control.topics.terminate(TOPIC, lambda _position, _error: None)
    node.world.settle()
    told = control.topics.ledger_info(TOPIC)["terminatedPosition"]
    assert told == {"ledgerId": positions[1].ledger, "entryId": 1}


def test_the_last_message_of_a_batch_is_told_with_its_index() -> None:
    node = alone()
    assert (node.control.topics.last_message_id(TOPIC), node.control.topics.last_batch_index(TOPIC)) == (NONE, -1)
    for batch, index in ((1, -1), (10, 9), (1, -1)):
        (position,) = node.publish(b"x", batch=batch)
        assert (node.control.topics.last_message_id(TOPIC), node.control.topics.last_batch_index(TOPIC)) == (
            position,
            index,
        )
