"""SUBSCRIBE: where a consumer begins, and what is left of one that is refused."""

from typing import Any, Final

import pytest

from magnetar.broker.catalog import catalog
from magnetar.core.errors import ErrorCode
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.types import AutoSubscriptionCreation, AutoTopicCreation
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import Person
from tests.support.geoworld import TOPIC, Client, Node

NAMESPACE: Final = NamespaceName("public", "default")
PASSING: Final = "non-persistent://public/default/t"
STRING: Final = pb.Schema(name="s", schema_data=b"", type=1)


def at(position: Position) -> pb.MessageIdData:
    """A message id as it travels."""
    return pb.MessageIdData(ledgerId=position.ledger % (1 << 64), entryId=position.entry % (1 << 64))


def subscribe(client: Client, number: int = 1, **more: Any) -> None:
    """Ask for a consumer, and do not wait."""
    command: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "subType": 0, "durable": False, **more}
    asked = pb.CommandSubscribe(consumer_id=number, request_id=1000 + number, **command)
    client.send(pb.BaseCommand(type=4, subscribe=asked))


def outcome(client: Client, number: int = 1) -> str:
    """How the newest request for a consumer ended: "in", or the error."""
    found = ""
    for command in client.answers:
        if command.type == 13 and command.success.request_id == 1000 + number:
            found = "in"
        elif command.type == 14 and command.error.request_id == 1000 + number:
            found = ErrorCode(command.error.error).name
    return found


def receive(client: Client, number: int = 1) -> list[bytes]:
    client.flow(number)
    client.node.world.work()
    return [message.data for message in client.take(number)]


# ------------------------------------------------------------------------------------------------------ where it begins


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, []),
        ({"initialPosition": 0}, []),
        ({"initialPosition": 1}, [b"1", b"2"]),
        ({"initialPosition": 0, "start_message_id": at(EARLIEST)}, [b"1", b"2"]),
    ],
)
def test_a_consumer_that_is_not_durable_begins_where_it_says(
    node: Node, more: dict[str, Any], expected: list[bytes]
) -> None:
    """By a message, as readers do, or else by the initial position: Java's and Go's non-durable consumers name no message."""
    node.publish(b"1", b"2")
    client = node.client()
    subscribe(client, **more)
    assert receive(client) == expected
    node.publish(b"3")
    assert receive(client) == [b"3"]


# ------------------------------------------------------------------------------------------------------ who is refused


@pytest.mark.parametrize("policy", ["max_consumers_per_subscription", "max_consumers_per_topic"])
@pytest.mark.parametrize("more", [{}, {"schema": STRING}, {"durable": False}, {"topic": PASSING, "schema": STRING}])
def test_limits_hold_for_those_who_come_at_once(node: Node, policy: str, more: dict[str, Any]) -> None:
    """The first one waits for its subscription, or its schema, to be stored; others come meanwhile."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, **{policy: 2}))
    client = node.client()
    node.hold_stores = True
    for number in range(1, 6):
        subscribe(client, number, subType=1, **{"durable": True, **more})
    node.hold_stores = False
    node.world.work()
    assert sorted(outcome(client, number) for number in range(1, 6)) == ["CONSUMER_BUSY"] * 3 + ["in"] * 2
    topic = node.broker.nonpersistent.topics[PASSING] if "topic" in more else node.topic
    assert len(topic.subscriptions["s"].consumers) == 2


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_an_exclusive_consumer_is_not_one_too_many(node: Node, topic: str) -> None:
    """Its subscription has one at most: whether the one that is there lives is asked before a newcomer is refused."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_consumers_per_subscription=1))
    gone, newcomer = node.client(), node.client()
    subscribe(gone, topic=topic)
    subscribe(newcomer, topic=topic)
    assert outcome(newcomer) == ""
    node.world.advance(5_000)  # nobody answers the ping
    assert outcome(newcomer) == "in"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", [1, 3])
def test_who_may_not_read_compacted_leaves_no_subscription(node: Node, kind: int, durable: bool) -> None:
    client = node.client()
    subscribe(client, subType=kind, read_compacted=True, durable=durable)
    node.world.work()
    assert outcome(client) == "NOT_ALLOWED"
    assert not node.topic.subscriptions


def test_a_refused_consumer_leaves_no_subscription_that_ends_with_it(node: Node) -> None:
    ranges = pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=9, end=3)])
    client = node.client()
    subscribe(client, subType=3, keySharedMeta=ranges)
    assert outcome(client) == "CONSUMER_ASSIGN"
    assert not node.topic.subscriptions
    subscribe(client, durable=True)
    node.world.work()
    assert outcome(client) == "in"


# ----------------------------------------------------------------------------------------------- topics that store nothing


def test_a_topic_that_nobody_has_is_not_made_by_who_does_not_want_that(node: Node) -> None:
    """Java's pattern consumers come back to the topics that they found: they must not bring back what was deleted."""
    client = node.client()
    subscribe(client, topic=PASSING, force_topic_creation=False)
    assert outcome(client) == "TOPIC_NOT_FOUND"
    assert not node.broker.nonpersistent.topics
    subscribe(client, topic=PASSING)
    subscribe(client, 2, topic=PASSING, subscription="other", force_topic_creation=False)
    assert (outcome(client), outcome(client, 2)) == ("in", "in")


@pytest.mark.parametrize("kind", [0, 1])
def test_what_is_not_stored_cannot_be_read_compacted(node: Node, kind: int) -> None:
    """As in Pulsar: nothing of it would be compacted."""
    client = node.client()
    subscribe(client, topic=PASSING, subType=kind, read_compacted=True)
    assert outcome(client) == "NOT_ALLOWED"
    assert not node.broker.nonpersistent.topics


def test_who_does_not_want_it_made_finds_an_unloaded_topic_again(node: Node) -> None:
    client = node.client()
    subscribe(client, topic=PASSING)
    node.control_call(lambda done: node.control.topics.unload(PASSING, done))
    assert client.closed_consumers == [1]
    client.answers.clear()
    subscribe(client, topic=PASSING, force_topic_creation=False)
    assert outcome(client) == "in"
    node.world.advance(60_000)
    client.send(pb.BaseCommand(type=16, close_consumer={"consumer_id": 1, "request_id": 5}))
    assert not node.broker.nonpersistent.topics


@pytest.mark.parametrize("deleted", [True, False])
def test_an_unloaded_topic_to_which_nobody_comes_back_ends(node: Node, deleted: bool) -> None:
    client = node.client()
    subscribe(client, topic=PASSING)
    node.control_call(lambda done: node.control.topics.unload(PASSING, done))
    if deleted:
        node.control_call(lambda done: node.control.topics.delete(PASSING, False, done))
    else:
        assert node.broker.nonpersistent.topics
        node.world.advance(60_000)
    assert not node.broker.nonpersistent.topics


def test_partitions_that_store_nothing_are_there_for_everybody(node: Node) -> None:
    node.control_call(lambda done: node.control.topics.create(PASSING, 2, {}, done))
    client = node.client()
    subscribe(client, topic=f"{PASSING}-partition-1", force_topic_creation=False)
    assert outcome(client) == "in"


def test_limits_on_producers_of_topics_that_store_nothing_are_followed(node: Node) -> None:
    client = node.client()

    def opened(number: int) -> bool:
        command = pb.CommandProducer(topic=PASSING, producer_id=number, request_id=number)
        client.send(pb.BaseCommand(type=5, producer=command))
        return client.answers[-1].type == 17

    assert opened(1)
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_producers_per_topic=1))
    assert not opened(2)
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_producers_per_topic=2))
    assert opened(2)


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_whoever_joins_a_failover_subscription_is_told_whether_it_is_the_active_one(node: Node, topic: str) -> None:
    """On a partition a newcomer can change which of the others it is."""
    parts = f"{topic}-parts"
    assert node.control_call(lambda done: node.control.topics.create(parts, 2, {}, done)) is None
    partition = f"{parts}-partition-1"
    client = node.client()
    for number, name in enumerate("bdac"):
        before = len(client.answers)
        subscribe(client, number, topic=partition, subType=2, consumer_name=name)
        node.world.advance(2_000)  # the one before has that long for its last acknowledgements
        told = {}
        for command in client.answers[before:]:
            if command.type == 31:
                told[command.active_consumer_change.consumer_id] = command.active_consumer_change.is_active
        present = sorted("bdac"[: number + 1])
        assert told.get(number) is (present[1 % len(present)] == name)


def test_where_consumers_make_no_subscriptions_an_administrators_and_readers_are_let_in(node: Node) -> None:
    resources = node.broker.resources
    durable = node.client()
    subscribe(durable, subscription="early", durable=True)
    node.world.work()
    assert outcome(durable) == "in"
    node.apply(resources.change_policies(NAMESPACE, auto_subscription_creation=AutoSubscriptionCreation(allow=False)))
    client = node.client()
    subscribe(client, 1, subscription="s", durable=True)
    subscribe(client, 2, subscription="reader", start_message_id=at(EARLIEST))
    subscribe(client, 3, subscription="early", durable=True, subType=0)
    node.world.work()
    assert [outcome(client, number) for number in (1, 2)] == ["SUBSCRIPTION_NOT_FOUND", "in"]
    assert outcome(client, 3) != "SUBSCRIPTION_NOT_FOUND", "it is there: somebody is on it"
    producing = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7, initial_subscription_name="first")
    client.send(pb.BaseCommand(type=5, producer=producing))
    node.world.work()
    answer = client.answered(7)
    assert answer is not None and answer.error.error == ErrorCode.NOT_ALLOWED
    topic = TopicName.parse(TOPIC)
    node.apply(
        resources.change_topic_policies(topic, auto_subscription_creation_override=AutoSubscriptionCreation(allow=True))
    )
    subscribe(client, 4, subscription="s", durable=True)
    node.world.work()
    assert outcome(client, 4) == "in", "the topic's own policy goes before"


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_types_that_are_not_enabled_are_refused(node: Node, topic: str) -> None:
    node.apply(node.broker.resources.change_policies(NAMESPACE, subscription_types_enabled=["Shared", "Key_Shared"]))
    client = node.client()
    for number, kind in enumerate(range(4)):
        subscribe(client, number, topic=topic, subscription=f"s{kind}", durable=True, subType=kind)
    node.world.work()
    assert [outcome(client, number) for number in range(4)] == ["NOT_ALLOWED", "in", "NOT_ALLOWED", "in"]
    node.apply(node.broker.resources.change_policies(NAMESPACE, subscription_types_enabled=None))
    subscribe(client, 9, topic=topic, subscription="s9", durable=True, subType=0)
    node.world.work()
    assert outcome(client, 9) == "in"


@pytest.mark.parametrize("topic", [TOPIC + "-new", PASSING + "-new"])
def test_topics_come_into_being_where_their_namespace_says_so(node: Node, topic: str) -> None:
    def opens(number: int) -> str:
        client = node.client()
        subscribe(client, number, topic=topic, subscription=f"s{number}", durable=True, subType=1)
        node.world.work()
        return outcome(client, number)

    node.apply(node.broker.resources.change_policies(NAMESPACE, auto_topic_creation=AutoTopicCreation(allow=False)))
    asked = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=3)
    client = node.client()
    client.send(pb.BaseCommand(type=21, partitionMetadata=asked))
    [answer] = [command for command in client.answers if command.type == 22]
    assert answer.partitionMetadataResponse.error == ErrorCode.TOPIC_NOT_FOUND
    assert opens(1) == "TOPIC_NOT_FOUND"
    node.apply(node.broker.resources.change_policies(NAMESPACE, auto_topic_creation=AutoTopicCreation(allow=True)))
    assert opens(2) == "in"


# ------------------------------------------------------------------------------------------------- readers that come back


def reading(node: Node) -> tuple[Client, list[Position]]:
    """A reader that got three messages; their positions."""
    node.publish(b"1", b"2", b"3")
    client = node.client()
    subscribe(client, start_message_id=at(EARLIEST))
    client.flow(1)
    node.world.work()
    return client, [message.position for message in client.take(1)]


def unloaded_under_a_reader(node: Node) -> tuple[Client, list[Position]]:
    """It got three messages, and its acknowledgements did not arrive; their positions."""
    client, positions = reading(node)
    node.run(node.broker.clients.close_all, node.topic)
    assert client.closed_consumers == [1]
    return client, positions


def test_a_reader_that_comes_back_goes_on_where_it_says(node: Node) -> None:
    """It leaves out the message that it names, and no others."""
    client, positions = unloaded_under_a_reader(node)
    subscribe(client, start_message_id=at(positions[1]))
    assert receive(client) == [b"2", b"3"]


def test_of_several_that_share_out_nobody_speaks_for_the_others(node: Node) -> None:
    """What lies in front of the message that it names may have been another's."""
    client, positions = unloaded_under_a_reader(node)
    subscribe(client, subType=1, start_message_id=at(positions[2]))
    assert receive(client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("start", [EARLIEST, Position(1 << 62, 0), LATEST])
def test_a_reader_that_has_read_nothing_misses_nothing(node: Node, start: Position) -> None:
    client, _ = unloaded_under_a_reader(node)
    node.publish(b"4")
    subscribe(client, start_message_id=at(start))
    assert receive(client) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_reader_that_sought_is_where_the_seek_put_it(node: Node, named: int) -> None:
    client, positions = reading(node)
    client.seek(1, positions[1])
    subscribe(client, start_message_id=at(positions[named]))
    assert receive(client) == [b"2", b"3"]


def test_a_reader_that_comes_in_beside_another_moves_nothing(node: Node) -> None:
    node.publish(b"1", b"2", b"3")
    client = node.client()
    subscribe(client, subType=1, start_message_id=at(EARLIEST))
    subscribe(client, 2, subType=1, start_message_id=at(node.topic.log.last))
    assert receive(client) == [b"1", b"2", b"3"]


# -------------------------------------------------------------------------------------- before the subscription is stored


@pytest.mark.parametrize("error", ["", "the disk is full"])
def test_all_wait_until_their_subscription_is_stored(node: Node, error: str) -> None:
    """An answer before that would promise what a broker that ends now forgets, with the messages that are published meanwhile."""
    clients, producer = [node.client(), node.client()], Person(node)
    node.hold_stores = True
    for client in clients:
        subscribe(client, subType=1, durable=True)
    producer.produce(1, initial_subscription_name="s")
    node.world.settle()
    assert [outcome(client) for client in clients] == ["", ""]
    assert producer.told(1) is None
    (creation,) = node.stores
    node.stores.clear()
    assert creation.then is not None
    node.run(creation.then, error)
    node.hold_stores = False
    node.world.settle()
    assert [outcome(client) for client in clients] == ["METADATA" if error else "in"] * 2
    assert isinstance(producer.told(1), tuple if error else str)
    assert ("s" in node.topic.subscriptions) == (not error)


def test_a_consumer_that_waited_for_a_subscription_that_was_deleted_meanwhile_creates_it_again(node: Node) -> None:
    first, second = node.client(), node.client()
    node.hold_stores = True
    for client in (first, second):
        subscribe(client, subType=1, durable=True)
    node.control.subscriptions.delete(TOPIC, "s", True, lambda _: None)
    node.hold_stores = False
    node.world.settle()
    assert outcome(second) == "in"
    assert node.topic.subscriptions["s"].consumers


def test_the_one_who_created_a_subscription_waits_for_another_that_has_come_in_its_place(node: Node) -> None:
    first, second = node.client(), node.client()
    node.hold_stores = True
    subscribe(first, subType=1, durable=True)
    node.control.subscriptions.delete(TOPIC, "s", True, lambda _: None)
    subscribe(second, subType=1, durable=True)
    creation, deletion, _creation_in_its_place = node.stores
    for store in (creation, deletion):
        node.store.answer(which=store)
    node.world.settle()
    assert [outcome(client) for client in (first, second)] == ["", ""]
    node.hold_stores = False
    node.world.settle()
    assert [outcome(client) for client in (first, second)] == ["in", "in"]
    assert len(node.topic.subscriptions["s"].consumers) == 2


def test_a_producer_may_name_an_administrators_subscription_that_is_not_stored_yet(node: Node) -> None:
    change = node.broker.resources.change_policies(
        NAMESPACE, auto_subscription_creation=AutoSubscriptionCreation(allow=False)
    )
    node.apply(change)
    producer = Person(node)
    node.hold_stores = True
    node.control.subscriptions.create(TOPIC, "s", EARLIEST, False, {}, lambda _: None)
    producer.produce(1, initial_subscription_name="s")
    node.world.settle()
    assert producer.told(1) is None
    node.hold_stores = False
    node.world.settle()
    assert isinstance(producer.told(1), str)


def test_consumers_that_wait_for_a_subscription_do_not_pile_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "WAITING_MAX", 2)
    clients = [node.client() for _ in range(4)]
    node.hold_stores = True
    for client in clients:
        subscribe(client, subType=1, durable=True)
    assert [outcome(client) for client in clients] == ["", "", "", "SERVICE_NOT_READY"]
    node.hold_stores = False
    node.world.settle()
    assert [outcome(client) for client in clients[:3]] == ["in"] * 3
