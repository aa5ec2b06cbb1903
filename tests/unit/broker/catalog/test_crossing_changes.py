"""Changes that cross: one is on its way to the store while another is made of what was there before it."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.core.errors import BrokerError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import Conflict
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.topic_records import DELETED_PREFIX, cursor_key, replicated_key
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import set_replication_clusters
from tests.support.geoworld import TOPIC, Client, Node, World


def _release(node: Node) -> None:
    node.hold_stores = False
    node.world.settle()


def test_a_topic_that_is_deleted_leaves_nothing_on_links_whose_policy_changes() -> None:
    node = World("ab")["a"]
    node.create()
    assert node.broker.links.sources["b"].wants(TOPIC)
    node.hold_stores = True
    node.control.topics.delete(TOPIC, True, lambda _error: None)
    answers = set_replication_clusters(node, "a")
    _release(node)
    assert answers == [None]
    assert TOPIC not in node.broker.topics
    assert TOPIC not in node.broker.links.sources["b"].topics
    node.create()
    assert set_replication_clusters(node, "a", "b") == []
    _release(node)
    assert node.broker.links.sources["b"].topics[TOPIC].log is node.broker.topics[TOPIC].log


def test_a_policy_holds_for_a_topic_that_was_made_while_it_was_on_its_way() -> None:
    for before, after in ((("a", "b"), ("a",)), (("a",), ("a", "b"))):
        node = World("ab")["a"]
        set_replication_clusters(node, *before)
        _release(node)
        node.hold_stores = True
        node.create()
        set_replication_clusters(node, *after)
        _release(node)
        assert TOPIC in node.broker.topics
        assert node.broker.links.sources["b"].wants(TOPIC) == ("b" in after)


def test_a_subscription_that_cannot_be_stored_keeps_nobody() -> None:
    node = World("ab")["a"]
    node.create()
    node.hold_stores = True
    for _ in range(2):
        node.client().subscribe("s", kind=1)
    for _ in list(node.stores):
        assert node.store.answer("no space left")
    assert not node.broker.topics[TOPIC].subscriptions
    assert not any(session.consumers.open for session in node.broker.sessions.values())


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
def test_what_was_acknowledged_on_a_subscription_that_cannot_be_stored_does_not_bring_it_back(
    flushed: bool, replicated: bool
) -> None:
    node = World("ab")["a"]
    node.create()
    node.publish(b"0")
    node.world.settle()
    node.hold_stores = True
    client, other = node.client(), node.client()
    client.subscribe("s", kind=1, replicated=replicated)
    consumer = other.subscribe("s", kind=1, replicated=replicated)
    (creation,) = node.stores
    other.flow(consumer)
    node.world.work()
    other.ack(consumer, *other.take(consumer))
    subscription, durable = node.topic.subscriptions["s"], list[str]()
    node.run(node.broker.loaded.when_cursor_durable, subscription, durable.append)
    if flushed:
        node.world.advance(node.limits.cursor_flush_ms)
        assert len(node.stores) > 1, "the cursor is not on its way: this test shows nothing"
    assert node.store.answer("no space left", creation)
    assert "s" not in node.topic.subscriptions and (durable == ["the subscription is gone"]) is not flushed
    _release(node)
    node.world.advance(5_000)
    assert cursor_key(TOPIC, "s") not in node.meta
    node.restart()
    assert "s" not in node.topic.subscriptions
    again = node.client()
    made = again.subscribe("s", kind=1, replicated=replicated)
    node.world.settle()
    answer = again.answered(1000 + made)
    assert answer is not None and answer.type == 13
    assert cursor_key(TOPIC, "s") in node.meta


def _seeks(world: World) -> tuple[Client, int, int]:
    """A client whose seek is on its way to the store: its answer is not there yet; and its consumer came back."""
    node = world["a"]
    node.create()
    client = node.client()
    before = client.subscribe("s", kind=1, replicated=False)
    world.settle()
    client.flow(before)
    node.publish(b"0", b"1")
    world.settle()
    assert len(client.take(before)) == 2
    node.hold_stores = True
    request = client.seek(before, EARLIEST)
    world.settle()
    assert client.closed_consumers == [before] and client.answered(request) is None
    again = client.subscribe("s", kind=1, replicated=False)
    world.advance(1_000)
    return client, request, again


def test_a_consumer_comes_back_behind_the_answer_to_its_seek() -> None:
    """The official clients throw away what they have when their seek is answered."""
    world = World("a")
    client, request, again = _seeks(world)
    assert client.answered(1000 + again) is None and client.take(again) == []
    world["a"].hold_stores = False
    world.advance(1_000)
    sought, subscribed = client.answered(request), client.answered(1000 + again)
    assert sought is not None and subscribed is not None and sought.type == subscribed.type == 13
    assert client.answers.index(sought) < client.answers.index(subscribed)
    client.flow(again)
    world.settle()
    assert [message.data for message in client.take(again)] == [b"0", b"1"]


def test_a_seek_that_cannot_be_stored_keeps_no_consumer_away() -> None:
    world = World("a")
    client, request, again = _seeks(world)
    node = world["a"]
    for _ in list(node.stores):
        assert node.store.answer("no space left")
    refused, subscribed = client.answered(request), client.answered(1000 + again)
    assert refused is not None and refused.type == 14 and "no space left" in refused.error.message
    assert subscribed is not None and subscribed.type == 13


def test_a_subscription_that_is_deleted_under_its_seek_is_made_again_by_who_waited() -> None:
    world = World("a")
    client, request, again = _seeks(world)
    node = world["a"]
    node.control.subscriptions.delete(TOPIC, "s", True, lambda _error: None)
    _release(node)
    sought, subscribed = client.answered(request), client.answered(1000 + again)
    assert sought is not None
    assert subscribed is not None and subscribed.type == 13
    assert len(node.topic.subscriptions["s"].consumers) == 1


def test_a_subscription_that_is_not_stored_yet_is_not_sought() -> None:
    """Simulator: snapshot, 96 steps, seed 800107. A consumer that came meanwhile sought, and the store answered the creation."""
    world = World("a")
    node = world["a"]
    node.create()
    node.publish(b"0")
    world.settle()
    node.hold_stores = True
    maker, guest = node.client(), node.client()
    made = maker.subscribe("s", kind=1, replicated=False)
    (creation,) = node.stores
    node.stores.clear()
    came = guest.subscribe("s", kind=1, replicated=False)
    early = guest.seek(came, EARLIEST)
    world.settle()
    assert guest.answered(1000 + came) is None
    refused = guest.answered(early)
    assert refused is not None and refused.type == 14
    assert creation.then is not None
    node.run(creation.then, "")
    node.hold_stores = False
    world.advance(1_000)
    for client, number in ((maker, made), (guest, came)):
        subscribed = client.answered(1000 + number)
        assert subscribed is not None and subscribed.type == 13
    sought = guest.seek(came, EARLIEST)
    world.advance(1_000)
    answered = guest.answered(sought)
    assert answered is not None and answered.type == 13


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_topic_is_stored_behind_its_deletion(fails: bool) -> None:
    """Else the next topic of its name finds a former one's subscriptions, and what they held (simulator: snapshot, 96 steps, seed
    810007). If the deletion fails, all of it is stored after all.
    """
    world = World("ab")
    node = world["a"]
    node.create()
    client = node.client()
    number = client.subscribe("s", kind=1)
    first, second = node.publish(b"0", b"1")
    world.advance(1_000)
    client.flow(number)
    client.ack(number, first)
    world.advance(1_000)
    held = {key for key in node.meta if TOPIC in key}
    assert {cursor_key(TOPIC, "s"), replicated_key(TOPIC, "s")} <= held
    node.hold_stores = True
    answers: list[Any] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    world.settle()
    node.run(node.broker.replicated_subscriptions.rebased, TOPIC, "b")
    skipped: list[Any] = []
    node.run(node.control.subscriptions.skip_all, TOPIC, "s", skipped.append)
    world.advance(1_000)
    if fails:
        deletion = next(store for store in node.stores if cursor_key(TOPIC, "s") in store.deletes)
        assert node.store.answer("no space left", deletion)
    node.hold_stores = False
    world.advance(2_000)
    assert len(answers) == 1 and (answers[0] is not None) == fails
    left = {key for key in node.meta if TOPIC in key}
    if not fails:
        assert left == {DELETED_PREFIX + TOPIC}
        assert len(skipped) == 1 and "gone" in str(skipped[0])
        return
    assert held <= left
    node.restart()
    world.settle()
    assert node.topic.subscriptions["s"].mark_delete >= second


@pytest.mark.parametrize(
    "change",
    [
        lambda control, done: control.topics.terminate(TOPIC, lambda _position, error: done(error)),
        lambda control, done: control.topics.change_properties(TOPIC, {"owner": "me"}, None, done),
        lambda control, done: control.subscriptions.create(TOPIC, "other", None, False, {}, done),
        lambda control, done: control.failovers.begin(TOPIC, "s", "b", "", 0, done),
    ],
    ids=["terminate", "properties", "subscription", "failover"],
)
def test_what_is_asked_of_a_topic_that_is_being_deleted_is_refused(change: Callable[[Any, Any], None]) -> None:
    """Its record stored behind the deletion would bring the topic back at the next start."""
    node = World("ab")["a"]
    node.create()
    node.client().subscribe("s", kind=1)
    node.world.advance(1_000)
    node.hold_stores = True
    node.control.topics.delete(TOPIC, True, lambda _error: None)
    node.world.settle()
    told: list[Any] = []
    try:
        change(node.control, told.append)
    except BrokerError as error:
        told.append(error)
    assert [str(error) for error in told] == [f"topic {TOPIC} is being deleted"]
    node.hold_stores = False
    node.world.advance(1_000)
    assert {key for key in node.meta if TOPIC in key} == {DELETED_PREFIX + TOPIC}


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_consumer_that_is_closed_while_it_is_opened_is_not_there_afterwards(kind: int) -> None:
    """Clients close what they have waited for in vain. A consumer that nobody knows would get messages for ever."""
    world = World("a")
    node = world["a"]
    node.create()
    one, other = node.client(), node.client()
    node.hold_stores = True
    gone = one.subscribe("s", kind=kind, replicated=False)
    one.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=gone, request_id=77)))
    closed, refused = one.answered(77), one.answered(1000 + gone)
    assert closed is not None and closed.type == 13
    assert refused is not None and "closed before it was open" in refused.error.message
    _release(node)
    assert node.topic.subscriptions["s"].consumers == []
    assert [answer.type for answer in one.answers].count(14) == 1, "it is answered once"
    comes = other.subscribe("s", kind=kind, replicated=False)
    world.settle()
    answer = other.answered(1000 + comes)
    assert answer is not None and answer.type == 13


def test_a_consumer_that_is_closed_and_asked_for_again_while_it_is_opened_is_there_once() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    client = node.client()
    node.hold_stores = True
    first = client.subscribe("s", replicated=False)
    client.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=first, request_id=77)))
    again = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=0, consumer_id=first, request_id=78, initialPosition=1
    )
    client.send(pb.BaseCommand(type=4, subscribe=again))
    _release(node)
    answer = client.answered(78)
    assert answer is not None and answer.type == 13
    assert len(node.topic.subscriptions["s"].consumers) == 1


def test_who_unsubscribes_is_not_told_to_come_back() -> None:
    """Official clients do at once, and made the subscription again when the store took longer than they."""
    world = World("a")
    node = world["a"]
    node.create()
    client, other = node.client(), node.client()
    consumer, second = (one.subscribe("s", kind=1, replicated=False) for one in (client, other))
    world.settle()
    other.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=second, request_id=77)))
    node.hold_stores = True
    client.unsubscribe(consumer)
    assert client.answered(9000 + consumer) is None
    _release(node)
    answer = client.answered(9000 + consumer)
    assert answer is not None and answer.type == 13
    assert client.closed_consumers == []
    assert "s" not in node.topic.subscriptions


def test_who_cannot_unsubscribe_comes_back() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    client = node.client()
    consumer = client.subscribe("s", replicated=False)
    world.settle()
    node.hold_stores = True
    client.unsubscribe(consumer)
    (store,) = node.stores
    assert node.store.answer("no space left", store)
    answer = client.answered(9000 + consumer)
    assert answer is not None and answer.type == 14 and "no space left" in answer.error.message
    assert client.closed_consumers == [consumer]


@pytest.mark.parametrize("replicated", [False, True])
def test_a_subscription_that_is_made_again_by_who_waited_for_the_seek_is_still_there_after_a_restart(
    replicated: bool,
) -> None:
    """The rest of the deletion hit the new one: its cursor was deleted behind its creation."""
    world = World("ab")
    node = world["a"]
    node.create()
    client = node.client()
    first = client.subscribe("s", kind=1, replicated=replicated)
    world.settle()
    node.publish(b"0", b"1")
    world.advance(2_000)
    node.hold_stores = True
    client.seek(first, EARLIEST)
    again = client.subscribe("s", kind=1, replicated=replicated)
    world.settle()
    deleted: list[Any] = []
    node.control.subscriptions.delete(TOPIC, "s", True, deleted.append)
    node.hold_stores = False
    world.advance(1_000)
    answer = client.answered(1000 + again)
    assert answer is not None and answer.type == 13 and deleted == [None]
    assert cursor_key(TOPIC, "s") in node.meta
    node.restart()
    world.advance(2_000)
    assert list(node.topic.subscriptions) == ["s"]


@pytest.mark.parametrize("what", ["subscription", "topic"])
def test_a_failover_on_its_way_to_the_store_ends_with_what_it_moves(what: str) -> None:
    """Its fence was stored behind the deletion: the next subscription of that name delivered nothing after a restart."""
    world = World("ab")
    node = world["a"]
    node.create()
    node.client().subscribe("s", kind=1)
    world.advance(1_000)
    node.hold_stores = True
    begun: list[Any] = []
    node.control.failovers.begin(TOPIC, "s", "b", "", 0, begun.append)
    if what == "topic":
        node.control.topics.delete(TOPIC, True, lambda _error: None)
    else:
        node.control.subscriptions.delete(TOPIC, "s", True, lambda _error: None)
    _release(node)
    world.advance(1_000)
    if what == "subscription":
        assert [str(error) for error in begun] == [f"subscription s of {TOPIC} was deleted meanwhile"]
    else:
        node.create()
    assert not [key for key in node.meta if key.startswith("fences/")]
    node.client().subscribe("s", kind=1)
    world.advance(1_000)
    node.restart()
    world.advance(3_000)
    client = node.client()
    consumer = client.subscribe("s", kind=1)
    world.advance(500)
    client.flow(consumer)
    node.publish(b"x")
    world.advance(1_000)
    assert [message.data for message in client.take(consumer)] == [b"x"]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_topic_that_comes_while_its_namespace_goes_is_refused(fails: bool, domain: str) -> None:
    """It was there without a namespace: nobody saw it, and a new namespace of the name had it."""
    node = World("a")["a"]
    going = NamespaceName("public", "going")
    resources = node.broker.resources
    node.apply(resources.create_namespace(going, Policies()))
    text = f"{domain}://{going}/t"
    node.hold_stores = True
    deleted: list[Any] = []
    node.control.policies.apply(
        resources.delete_namespace(going, node.control.topics.names(str(going))), deleted.append
    )
    client = node.client()
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=text, producer_id=1, request_id=1)))
    answers = [command.error for command in client.answers if command.type == 14]
    assert [(one.error, "is being deleted" in one.message) for one in answers] == [(6, True)]
    if fails:
        (store,) = node.stores
        assert node.store.answer("no space left", store)
    _release(node)
    assert (deleted == [None]) is not fails
    assert not node.broker.topics and not node.broker.nonpersistent.topics
    assert not [key for key in node.meta if key.startswith("topics/")]
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=text, producer_id=1, request_id=2)))
    _release(node)
    assert client.answered(2) is not None and (client.answered(2).type == 17) is fails  # type: ignore[union-attr]


def test_a_namespace_that_is_getting_a_topic_stays() -> None:
    node = World("a")["a"]
    going = NamespaceName("public", "going")
    resources = node.broker.resources
    node.apply(resources.create_namespace(going, Policies()))
    node.hold_stores = True
    node.create(f"persistent://{going}/t")
    with pytest.raises(Conflict, match="is getting topic persistent://public/going/t"):
        node.control.policies.apply(
            resources.delete_namespace(going, node.control.topics.names(str(going))), lambda _error: None
        )
    _release(node)
    assert resources.has_namespace(going) and f"persistent://{going}/t" in node.broker.topics
    node.control.topics.delete(f"persistent://{going}/t", True, lambda _error: None)
    _release(node)
    node.apply(resources.delete_namespace(going, node.control.topics.names(str(going))))
    assert not resources.has_namespace(going)
