"""Names of partitions that no partitioned topic has: nothing makes them but the partitioned topic itself.

They came back behind the deletion of their topic, because its clients opened them again, and whoever might use one topic could
make as many as there are numbers.
"""

from typing import Final

import pytest

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.metadata.errors import InFlight
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import Person, partitions_asked
from tests.support.geoworld import TOPIC, Node, World

PASSING: Final = "non-persistent://public/default/t"
BOTH: Final = pytest.mark.parametrize("topic", [TOPIC, PASSING])


def names(topic: str, count: int) -> list[str]:
    return [f"{topic}-partition-{number}" for number in range(count)]


def there(node: Node) -> list[str]:
    return sorted([*node.broker.topics, *node.broker.nonpersistent.topics])


def make(node: Node, topic: str, partitions: int) -> None:
    assert node.control_call(lambda done: node.control.topics.create(topic, partitions, {}, done)) is None


def refused(node: Node, topic: str) -> set[ErrorCode]:
    """How every kind of client is refused that opens a topic."""
    found = set()
    attempts = [
        lambda person: person.produce(1, topic),
        lambda person: person.produce(1, topic, initial_subscription_name="s"),
        lambda person: person.subscribe(1, topic),
        lambda person: person.subscribe(1, topic, force_topic_creation=True),
        lambda person: person.subscribe(1, topic, durable=False, force_topic_creation=True),  # a reader
    ]
    for attempt in attempts:
        person = Person(node)
        attempt(person)
        node.world.settle()
        answer = person.told(1)
        assert isinstance(answer, tuple), f"{topic} was opened"
        found.add(answer[0])
    return found | {
        answer
        for create in (True, False)
        if isinstance(answer := partitions_asked(node, topic, create=create), ErrorCode)
    }


@BOTH
@pytest.mark.parametrize(
    "name", ["{}-partition-0", "{}-partition-4095", "{}-partition-0-partition-1", "new-{}-partition-7"]
)
def test_nobody_opens_a_partition_of_what_is_not_partitioned(topic: str, name: str) -> None:
    """Official clients stop at this code, where they go on for ever after others."""
    node = World("a")["a"]
    head, _, local = topic.rpartition("/")
    assert refused(node, f"{head}/{name.format(local)}") == {ErrorCode.TOPIC_NOT_FOUND}
    node.create(topic) if topic == TOPIC else None
    assert refused(node, f"{head}/{name.format(local)}") == {ErrorCode.TOPIC_NOT_FOUND}
    assert there(node) == ([TOPIC] if topic == TOPIC else [])


@BOTH
def test_nobody_opens_more_partitions_than_there_are(topic: str) -> None:
    node = World("a")["a"]
    make(node, topic, 2)
    before = there(node)
    assert refused(node, f"{topic}-partition-2") == {ErrorCode.TOPIC_NOT_FOUND}
    assert there(node) == before
    person = Person(node)
    person.produce(1, f"{topic}-partition-1")
    node.world.settle()
    assert isinstance(person.told(1), str)


@BOTH
def test_clients_of_a_deleted_partitioned_topic_do_not_bring_its_partitions_back(topic: str) -> None:
    """They come back at once, and again and again: while it is being deleted, and when it is gone."""
    node = World("a")["a"]
    make(node, topic, 3)
    people = []
    for name in names(topic, 3):
        producer, consumer = Person(node), Person(node)
        producer.produce(1, name)
        consumer.subscribe(1, name, durable=topic == TOPIC)
        people += [(producer, producer.produce, name), (consumer, consumer.subscribe, name)]
    node.world.settle()
    assert all(person.told(1) for person, _, _ in people)
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.delete(topic, True, answers.append)
    for request in range(2, 30):
        for person, attempt, name in people:
            attempt(request, name)
            answer = person.told(request)
            # Whether it comes to be gone is not known before the store has said so.
            wanted = ErrorCode.TOPIC_NOT_FOUND if answers else ErrorCode.SERVICE_NOT_READY
            assert isinstance(answer, tuple) and answer[0] is wanted, answer
            assert partitions_asked(node, name, create=True) in (ErrorCode.METADATA, ErrorCode.TOPIC_NOT_FOUND)
        node.store.answer()
        node.log.cycle()
    assert answers == [None] and there(node) == []
    assert not [client for client in node.clients.values() if client.closed_consumers and client.received]
    node.hold_stores = False
    make(node, topic, 3)
    assert node.control.topics.partitions(topic) == 3


def test_a_topic_that_is_being_deleted_neither_grows_nor_is_deleted_again() -> None:
    node = World("a")["a"]
    make(node, TOPIC, 2)
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    for again in (
        lambda: node.control.topics.update_partitions(TOPIC, 3, answers.append),
        lambda: node.control.topics.delete(TOPIC, True, answers.append),
    ):
        with pytest.raises(InFlight):
            again()
    with pytest.raises(BrokerError, match="is being deleted; try again"):
        node.control.topics.create(TOPIC, 2, {}, answers.append)
    assert partitions_asked(node, TOPIC, create=True) is ErrorCode.METADATA
    assert answers == []
    node.hold_stores = False
    node.world.advance(100)
    assert answers == [None] and node.control.topics.partitions(TOPIC) is None


def test_a_deletion_that_fails_leaves_a_topic_that_is_used_as_before() -> None:
    node = World("a")["a"]
    make(node, TOPIC, 2)
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    while node.store.answer("full"):
        pass
    node.hold_stores = False
    node.world.advance(100)
    assert len(answers) == 1 and answers[0] is not None
    assert node.control.topics.partitions(TOPIC) == 2 and there(node) == names(TOPIC, 2)
    person = Person(node)
    person.produce(1, names(TOPIC, 2)[0])
    node.world.settle()
    assert isinstance(person.told(1), str)


def test_what_was_made_before_is_used_and_deleted_as_before() -> None:
    """Data folders of earlier versions have such topics. A topic that is made with so many partitions takes them in."""
    node = World("a")["a"]
    stray = names(TOPIC, 1)[0]
    node.create(stray)
    node.restart()
    person = Person(node)
    person.produce(1, stray)
    node.world.settle()
    assert isinstance(person.told(1), str) and partitions_asked(node, stray, create=False) == 0
    make(node, TOPIC, 2)
    assert there(node) == names(TOPIC, 2)


def test_a_link_brings_no_partition_of_what_its_source_has_not_partitioned() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    stray = names(TOPIC, 1)[0]
    a.create(stray)
    a.publish(b"x", topic=stray)
    world.settle()
    assert there(b) == []
    state = a.broker.links.sources["b"].topics[stray]
    assert state.blocked is not None and state.blocked.kind == "partitions"
    assert f"{TOPIC} is not partitioned at the source" in state.blocked.reason
    make(a, TOPIC, 2)
    world.advance(100)
    assert there(b) == names(TOPIC, 2) and state.blocked is None
    assert b.control.statistics.topic(stray)["msgInCounter"] == 1  # nothing is lost


def test_partitions_of_a_topic_that_is_just_being_made_are_worth_another_try() -> None:
    """The first client of a topic whose partitions come over a link at that moment."""
    node = World("a")["a"]
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.create(TOPIC, 2, {}, answers.append)
    assert partitions_asked(node, TOPIC, create=True) is ErrorCode.METADATA
    early = Person(node)
    early.produce(1, TOPIC)
    assert early.refused(1, ErrorCode.SERVICE_NOT_READY, "partition")
    node.hold_stores = False
    node.world.advance(100)
    assert answers == [None] and partitions_asked(node, TOPIC, create=True) == 2
    early.subscribe(2, TOPIC)  # it asked for partitions before there were any
    assert early.refused(2, ErrorCode.SERVICE_NOT_READY, "is partitioned since just now")
    node.world.advance(120_000)
    early.subscribe(3, TOPIC)
    assert early.refused(3, ErrorCode.NOT_ALLOWED, "is partitioned; use its partitions")
    assert there(node) == names(TOPIC, 2)


def test_no_schema_makes_a_partition() -> None:
    node = World("a")["a"]
    client = node.client()
    command = pb.CommandGetOrCreateSchema(
        request_id=9, topic=names(TOPIC, 1)[0], schema=pb.Schema(name="s", schema_data=b"", type=1)
    )
    client.send(pb.BaseCommand(type=39, getOrCreateSchema=command))
    assert client.answers[-1].getOrCreateSchemaResponse.error_code == ErrorCode.TOPIC_NOT_FOUND
    assert there(node) == []


def serve(node: Node, to: str) -> None:
    """A pipeline asks for news of a link."""
    request = pb.CommandGeoTopics(request_id=1, to=to, counter=0, wait_ms=0, pipeline="p", lease_ms=60_000)
    node.run(lambda: node.broker.links.source(to).poll(1, request, lambda _told: None))


def test_a_partitioned_topic_is_there_for_its_creator_when_the_clusters_have_it_that_a_pipeline_serves() -> None:
    world = World("abc")
    a = world["a"]
    serve(a, "b")
    answers: list[object] = []
    a.control.topics.create(TOPIC, 2, {}, answers.append)
    world.work()
    assert there(a) == names(TOPIC, 2) and not answers
    world.advance(1_000, links=False)
    assert not answers
    world.settle()
    assert answers == [None] and there(world["b"]) == names(TOPIC, 2)


@pytest.mark.parametrize("why", ["nobody serves", "paused", "slow"])
def test_nobody_waits_for_a_link_that_does_not_work(why: str) -> None:
    world = World("ab")
    a = world["a"]
    if why != "nobody serves":
        serve(a, "b")
    if why == "paused":
        assert a.control_call(lambda done: a.control.links.pause("b", None, done)) is None
    answers: list[object] = []
    a.control.topics.create(TOPIC, 2, {}, answers.append)
    world.work()
    assert answers == ([] if why == "slow" else [None])
    world.advance(3_000, links=False)
    assert answers == [None] and there(world["b"]) == []
