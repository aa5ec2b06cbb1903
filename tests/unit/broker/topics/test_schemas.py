"""Schemas in a broker: one version for everybody who brings the same at once, nothing half done when the store fails."""

import json
from itertools import count
from typing import Any

import pytest

from magnetar.broker.topics import schemas
from magnetar.core.errors import ErrorCode, MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.namespace import Policies
from magnetar.schemas.registry import SCHEMA_PREFIX
from magnetar.schemas.types import Definition, SchemaType
from magnetar.storage.entries import NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

DEFAULT = NamespaceName("public", "default")
FIELDS = [{"name": "a", "type": "int"}]


def schema(*more: dict[str, Any], kind: int = 4) -> pb.Schema:
    data = json.dumps({"type": "record", "name": "R", "fields": FIELDS + list(more)}).encode()
    return pb.Schema(name="R", schema_data=data, type=kind)


OLD, NEW = schema(), schema({"name": "b", "type": "int", "default": 0})
WRONG = schema({"name": "b", "type": "int"})


class Person:
    """A client that opens producers and asks for schemas, and reads the answers."""

    def __init__(self, node: Node) -> None:
        self.client: Client = node.client()
        self._ids = count(1)

    def produce(self, brought: pb.Schema | None, topic: str = TOPIC) -> int:
        number = next(self._ids)
        command = pb.CommandProducer(topic=topic, producer_id=number, request_id=number, schema=brought)
        self.client.send(pb.BaseCommand(type=5, producer=command))
        return number

    def get(self, version: bytes | None = None, topic: str = TOPIC) -> pb.CommandGetSchemaResponse:
        number = next(self._ids)
        command = pb.CommandGetSchema(topic=topic, request_id=number, schema_version=version)
        self.client.send(pb.BaseCommand(type=34, getSchema=command))
        answer = self.client.answered(number)
        assert answer is not None
        return answer.getSchemaResponse

    def get_or_create(self, brought: pb.Schema, topic: str = TOPIC) -> int:
        number = next(self._ids)
        command = pb.CommandGetOrCreateSchema(topic=topic, request_id=number, schema=brought)
        self.client.send(pb.BaseCommand(type=39, getOrCreateSchema=command))
        return number

    def answer(self, request: int) -> bytes | ErrorCode | None:
        """The version that a request was answered with, or the error; None: no answer yet."""
        answer = self.client.answered(request)
        if answer is None:
            return None
        if answer.type == 14:
            assert "\n" not in answer.error.message
            return ErrorCode(answer.error.error)
        body = answer.producer_success if answer.type == 17 else answer.getOrCreateSchemaResponse
        if answer.type == 40 and body.HasField("error_code"):
            return ErrorCode(body.error_code)
        return bytes(body.schema_version)


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def world() -> World:
    made = World("a")
    made["a"].create()
    return made


def stored(node: Node) -> list[str]:
    return sorted(key for key in node.meta if key.startswith(SCHEMA_PREFIX))


def test_one_too_many_that_wait_for_the_store_tries_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not TooManyRequests: that is the end for a producer over the C++ client."""
    monkeypatch.setattr(schemas, "PENDING_MAX", 1)
    node = world["a"]
    people = [Person(node) for _ in range(3)]
    node.hold_stores = True
    requests = [person.produce(brought) for person, brought in zip(people, (OLD, NEW, OLD), strict=True)]
    assert people[2].answer(requests[2]) is ErrorCode.SERVICE_NOT_READY
    node.hold_stores = False
    world.work()
    assert [people[n].answer(requests[n]) for n in (0, 1)] == [version(0), version(1)]


def test_the_same_new_schema_at_once_is_one_version(world: World) -> None:
    node = world["a"]
    people = [Person(node) for _ in range(3)]
    node.hold_stores = True
    requests = [(person, person.produce(brought)) for person in people for brought in (OLD, NEW, OLD)]
    requests += [(person, person.get_or_create(NEW)) for person in people]
    assert all(person.answer(request) is None for person, request in requests), (
        "nothing is promised before it is durable"
    )
    assert len(node.stores) == 1, "one change of a topic at a time"
    node.hold_stores = False
    world.work()
    assert [person.answer(request) for person, request in requests] == [version(n) for n in (0, 1, 0) * 3 + (1, 1, 1)]
    assert len(stored(node)) == 2


def test_a_store_that_fails_leaves_nothing(world: World) -> None:
    node = world["a"]
    person = Person(node)
    node.hold_stores = True
    first, second = person.produce(OLD), person.produce(NEW)
    assert node.store.answer("the disk is full")
    assert person.answer(first) is ErrorCode.METADATA
    # The second was judged after the first had failed: it is the first schema of the topic now.
    node.hold_stores = False
    world.work()
    assert person.answer(second) == version(0)
    assert person.get().schema.schema_data == NEW.schema_data
    assert len(stored(node)) == 1
    node.restart()
    assert Person(node).get().schema_version == version(0)


def test_a_client_that_leaves_meanwhile(world: World) -> None:
    node = world["a"]
    person = Person(node)
    node.hold_stores = True
    person.produce(OLD)
    node.run(node.broker.disconnected, person.client.number)
    node.hold_stores = False
    world.work()
    assert not node.topic.producers.live and len(stored(node)) == 1


def test_reading_by_version(world: World) -> None:
    node = world["a"]
    person = Person(node)
    assert person.get().error_code == ErrorCode.TOPIC_NOT_FOUND
    for brought in (OLD, NEW):
        person.produce(brought)
        world.work()
    newest = person.get()
    assert (newest.schema_version, newest.schema.schema_data) == (version(1), NEW.schema_data)
    assert person.get(version(0)).schema.schema_data == OLD.schema_data
    assert person.get(version(0) + bytes(56)).schema.schema_data == OLD.schema_data  # Pulsar before 2.4
    for wrong in (version(2), version(2**63 - 1)):
        assert person.get(wrong).error_code == ErrorCode.TOPIC_NOT_FOUND
    for wrong in (b"\0", bytes(9), b"\xff" * 8):
        assert person.get(wrong).error_code == ErrorCode.INCOMPATIBLE_SCHEMA
    assert person.get(topic="no such://topic").error_code == ErrorCode.INVALID_TOPIC_NAME
    assert person.answer(person.get_or_create(OLD, topic=TOPIC + "-not")) is ErrorCode.TOPIC_NOT_FOUND


def test_producers_of_a_topic_that_stores_nothing_bring_more_schemas(world: World) -> None:
    """As with stored topics, a producer that sends several kinds asks for the version of each."""
    passing = "non-persistent://public/default/t"
    person = Person(world["a"])
    assert person.answer(person.get_or_create(OLD, passing)) is ErrorCode.TOPIC_NOT_FOUND
    opened = person.produce(OLD, passing)
    world.work()
    assert person.answer(person.get_or_create(WRONG, passing)) is ErrorCode.INCOMPATIBLE_SCHEMA
    more = person.get_or_create(NEW, passing)
    world.work()
    assert (person.answer(opened), person.answer(more)) == (version(0), version(1))
    assert person.get(version(1), passing).schema.schema_data == NEW.schema_data
    assert person.answer(person.get_or_create(OLD, passing)) == version(0)


def test_producers_are_judged(world: World) -> None:
    node = world["a"]
    person = Person(node)
    for brought in (OLD, None, pb.Schema(name="", schema_data=b"", type=0)):
        request = person.produce(brought)
        world.work()
        assert person.answer(request) == (version(0) if brought is OLD else b"")
    assert person.answer(person.produce(WRONG)) is ErrorCode.INCOMPATIBLE_SCHEMA
    assert person.answer(person.get_or_create(WRONG)) is ErrorCode.INCOMPATIBLE_SCHEMA
    for kind in (21, 23, -1, 2**31 - 1):
        assert person.answer(person.produce(pb.Schema(name="", schema_data=b"", type=kind))) is (
            ErrorCode.INCOMPATIBLE_SCHEMA
        )
    node.apply(node.broker.resources.change_policies(DEFAULT, is_allow_auto_update_schema=False))
    assert person.answer(person.produce(OLD)) == version(0)
    assert person.answer(person.produce(NEW)) is ErrorCode.INCOMPATIBLE_SCHEMA
    node.apply(node.broker.resources.change_policies(DEFAULT, schema_validation_enforced=True))
    assert person.answer(person.produce(None)) is ErrorCode.INCOMPATIBLE_SCHEMA
    node.create(TOPIC + "-bare")
    assert person.answer(person.produce(None, TOPIC + "-bare")) == b""
    node.apply(node.broker.resources.change_policies(DEFAULT, is_allow_auto_update_schema=True))
    node.apply(node.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="FORWARD"))
    request = person.produce(WRONG)
    world.work()
    assert person.answer(request) == version(1)


def subscribe(person: Person, brought: pb.Schema | None, name: str = "s", topic: str = TOPIC) -> str:
    consumer = person.client.subscribe(name, 1, topic=topic, schema=brought)
    person.client.node.world.work()
    answer = person.client.answered(1000 + consumer)
    assert answer is not None
    return "" if answer.type == 13 else ErrorCode(answer.error.error).name


def test_consumers_are_judged(world: World) -> None:
    node = world["a"]
    person = Person(node)
    everything = pb.Schema(name="", schema_data=b"", type=21)
    # Whoever reads everything does not make the topic one in use; the next one's schema is the topic's.
    assert subscribe(person, everything) == ""
    assert subscribe(person, OLD) == "" and len(stored(node)) == 1
    assert subscribe(person, NEW) == "" and len(stored(node)) == 1, "checked, not registered"
    assert subscribe(person, WRONG) == subscribe(person, schema(kind=2)) == "INCOMPATIBLE_SCHEMA"
    assert subscribe(person, None) == subscribe(person, everything) == ""
    node.apply(node.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    assert subscribe(person, WRONG) == ""


def test_a_consumer_makes_no_schema_of_a_topic_in_use(world: World) -> None:
    node = world["a"]
    node.publish(b"bytes")
    assert subscribe(Person(node), OLD) == "INCOMPATIBLE_SCHEMA" and not stored(node)


def asked(node: Node, call: Any) -> Any:
    """What an administrator's change of schemas was answered: a version or an error."""
    answers: list[Any] = []
    call(lambda version, error: answers.append(error if error is not None else version))
    node.world.work()
    assert len(answers) == 1
    return answers[0]


def test_deletion(world: World) -> None:
    node = world["a"]
    person = Person(node)
    number = Definition(SchemaType.INT32)
    assert isinstance(asked(node, lambda done: node.control.schemas.delete(TOPIC, False, done)), MagnetarError)
    person.produce(OLD)
    world.work()
    assert asked(node, lambda done: node.control.schemas.delete(TOPIC, False, done)) == 1
    assert person.get().error_code == person.get(version(1)).error_code == ErrorCode.TOPIC_NOT_FOUND
    assert person.get(version(0)).schema.schema_data == OLD.schema_data, "messages with it are still there"
    # Another type may follow now, and numbers go on, also over a restart.
    assert asked(node, lambda done: node.control.schemas.register(TOPIC, number, done)) == 2
    assert asked(node, lambda done: node.control.schemas.register(TOPIC, number, done)) == 2
    node.restart()
    person = Person(node)
    assert person.get().schema.type == SchemaType.INT32
    assert person.get(version(0)).schema.schema_data == OLD.schema_data
    assert asked(node, lambda done: node.control.schemas.delete(TOPIC, True, done)) == 2
    assert not stored(node)
    assert asked(node, lambda done: node.control.schemas.register(TOPIC, number, done)) == 0
    # What is not in force any more is forgotten, too.
    assert asked(node, lambda done: node.control.schemas.delete(TOPIC, False, done)) == 1
    assert asked(node, lambda done: node.control.schemas.delete(TOPIC, True, done)) == 1
    assert not stored(node)
    assert isinstance(asked(node, lambda done: node.control.schemas.delete(TOPIC, True, done)), MagnetarError)


def test_schemas_go_with_their_topic(world: World) -> None:
    node = world["a"]
    person = Person(node)
    person.produce(OLD)
    world.work()
    node.hold_stores = True
    answers: list[Any] = []
    node.control.topics.delete(TOPIC, True, answers.append)
    registered: list[Any] = []
    node.control.schemas.register(TOPIC, Definition(SchemaType.INT32), lambda _v, error: registered.append(error))
    assert registered and registered[0] is not None, "nothing is registered for a topic that is going"
    assert node.store.answer("the disk is full")
    assert person.get().schema_version == version(0), "the topic is still there, and so is its schema"
    node.hold_stores = False
    assert node.control_call(lambda done: node.control.topics.delete(TOPIC, True, done)) is None
    assert not stored(node)
    node.create()
    assert Person(node).get().error_code == ErrorCode.TOPIC_NOT_FOUND


def test_schemas_of_a_partitioned_topic(world: World) -> None:
    node = world["a"]
    base = "persistent://public/default/many"
    assert node.control_call(lambda done: node.control.topics.create(base, 3, {}, done)) is None
    person = Person(node)
    for part, brought, expected in ((0, OLD, 0), (1, NEW, 1), (2, OLD, 0)):
        request = person.produce(brought, f"{base}-partition-{part}")
        world.work()
        assert person.answer(request) == version(expected)
    assert person.get(topic=base).schema_version == person.get(topic=f"{base}-partition-2").schema_version == version(1)
    assert len(stored(node)) == 2
    assert node.control_call(lambda done: node.control.topics.delete(base, True, done)) is None
    assert not stored(node) and not list(node.broker.schemas.registry)


def test_schemas_of_a_namespace_that_goes(world: World) -> None:
    node = world["a"]
    space = NamespaceName("public", "short")
    node.apply(node.broker.resources.create_namespace(space, Policies()))
    early = "persistent://public/short/early"  # a schema may be there before its topic
    assert asked(node, lambda done: node.control.schemas.register(early, Definition(SchemaType.STRING), done)) == 0
    assert node.control.schemas.topics("public/short") == [
        {"topic": early, "versions": 1, "version": 0, "type": "STRING"}
    ]
    node.apply(node.broker.resources.delete_namespace(space, []))
    assert not stored(node)


def test_a_number_that_its_source_cannot_explain_is_left_out() -> None:
    world = World("ab")
    a, b = world["a"], world["b"]
    for node in (a, b):
        node.apply(node.broker.resources.set_replication(DEFAULT, ["a", "b"]))
    a.create()
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=7, schema_version=version(0))
    meta.properties.add(key="k", value="v")
    entry = NewEntry(metadata.build(meta, b"payload"), 0, 1, 7)
    a.run(lambda: a.topic.append([entry, NewEntry(metadata.build(meta, b"second"), 0, 1, 7)], lambda _a, _e: None))
    world.advance(1000)
    consumer = b.client()
    number = consumer.subscribe("s", replicated=False)
    consumer.flow(number)
    world.advance(1000)
    log = b.broker.log_of(TOPIC)
    assert log is not None
    found = log.cached(log.first, 10, 1 << 20)
    assert len(found) == 2
    for one, payload in zip(found, (b"payload", b"second"), strict=True):
        seen = metadata.inspect(one.data, message_bytes_max=1 << 20)
        assert not seen.metadata.HasField("schema_version") and seen.metadata.replicated_from == "a"
        assert [(pair.key, pair.value) for pair in seen.metadata.properties] == [("k", "v")]
        assert one.data[seen.metadata_end :] == payload
    # A consumer with a schema is let in where messages come over links: nobody here knows what they were written with.
    assert subscribe(Person(b), OLD, "other") == "" and not stored(b)
    # Where links read from, a topic without a schema is the same.
    assert subscribe(Person(a), OLD, "other") == "" and not stored(a)


def test_what_is_counted(world: World) -> None:
    node = world["a"]
    person = Person(node)
    machine = node.broker.schemas
    missing = schema({"name": "c", "type": "int"})
    for brought in (OLD, OLD, NEW, missing, pb.Schema(name="x", schema_data=b"{", type=4)):
        person.produce(brought)
        world.work()
    person.get_or_create(pb.Schema(name="x", type=99))
    world.work()
    node.run(lambda: machine.delete(node.topic.name, force=False, then=lambda _version, _error: None))
    world.work()
    stats = machine.stats()
    assert stats == {
        "topics": 1,
        "versions": 3,
        "bytes": len(OLD.schema_data) + len(NEW.schema_data),
        "registered": 2,
        "deleted": 1,
        "refused_incompatible": 1,
        "refused_invalid": 2,
        "refused_full": 0,
        "refused_without_schema": 0,
        "refused_by_store": 0,
    }


def test_a_topic_that_is_full(world: World) -> None:
    node = world["a"]
    node.broker.schemas.registry._versions_max = 2
    person = Person(node)
    for brought in (OLD, NEW):
        person.produce(brought)
        world.work()
    third = schema({"name": "c", "type": "int", "default": 0})
    refused = person.produce(third)
    again = person.produce(NEW)
    world.work()
    assert (person.answer(refused), person.answer(again)) == (ErrorCode.NOT_ALLOWED, version(1))
    assert node.broker.schemas.events["refused_full"] == 1


def test_the_schema_of_no_version_says_nothing(world: World) -> None:
    """Go's client has no schema for bytes but one of type NONE, and its consumers ask for the version it was given."""
    node = world["a"]
    person = Person(node)
    said = person.answer(person.get_or_create(pb.Schema(name="Bytes", schema_data=b"", type=0)))
    assert said == b""
    answer = person.get(said)
    assert (answer.HasField("error_code"), answer.schema.type, answer.schema.schema_data) == (False, 0, b"")
    assert not stored(node), "nothing is registered, so that any schema may be the first one"
    assert person.get().error_code == ErrorCode.TOPIC_NOT_FOUND, "the newest: there is none"


@pytest.mark.parametrize("kind", [2, 3, 4], ids=["JSON", "PROTOBUF", "AVRO"])
def test_what_java_cannot_read_is_registered_by_nobody(kind: int) -> None:
    """A Java consumer of such a topic would fail at its first message."""
    node = World("a")["a"]
    node.create()
    person = Person(node)
    bad = pb.Schema(name="R", type=kind, schema_data=b'{"type":"record","name":"1bad","fields":[]}')
    definition = Definition(SchemaType(kind), bad.schema_data)
    requests = [person.produce(bad), person.get_or_create(bad)]
    subscribing = person.client.subscribe("s", 1, replicated=False, schema=bad)
    node.world.settle()
    assert [person.answer(request) for request in requests] == [ErrorCode.INCOMPATIBLE_SCHEMA] * 2
    answer = person.client.answered(1000 + subscribing)
    assert answer is not None and "is called '1bad': a name begins with a letter or _" in answer.error.message
    outcomes: list[tuple[int | None, MagnetarError | None]] = []
    node.control.schemas.register(TOPIC, definition, lambda version, error: outcomes.append((version, error)))
    assert outcomes[0][0] is None and "1bad" in str(outcomes[0][1])
    with pytest.raises(MagnetarError, match="1bad"):
        node.control.schemas.check(TOPIC, definition)
    assert not [key for key in node.meta if key.startswith(SCHEMA_PREFIX)]
