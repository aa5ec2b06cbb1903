"""Schemas with the official client: round trips, evolution, refusals, and what a restart keeps."""

import json
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from itertools import count
from typing import Any

import _pulsar
import pulsar
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from magnetar.core.errors import ErrorCode
from magnetar.schemas.types import PRIMITIVES, SchemaType
from magnetar.wire import pulsar_pb2 as pb
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess
from tests.support.raw_client import Raw, raw

WAIT_MS = 60_000
EARLIEST = pulsar.InitialPosition.Earliest


class Flight(Record):
    carrier = String()
    number = Integer()


class Delayed(Record):
    carrier = String()
    number = Integer()
    delay = Integer(required_default=True)


class Other(Record):
    carrier = Integer(required=True)


class Inner(Record):
    x = Double()
    labels = Array(String())


class Rich(Record):
    id = Long(required=True)
    flag = Boolean()
    inner = Inner()
    counts = Map(Integer())


class Definition(pulsar.schema.Schema):  # type: ignore[misc]
    """A schema that is sent as it is; values are bytes."""

    def __init__(self, kind: Any, definition: str) -> None:
        self._record_cls = bytes
        self._schema_info = _pulsar.SchemaInfo(kind, "S", definition)

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def avro(definition: Any) -> Definition:
    return Definition(_pulsar.SchemaType.AVRO, definition if isinstance(definition, str) else json.dumps(definition))


def version_of(message: Any) -> int:
    return int(message._message.int_schema_version())


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (AvroSchema(Flight), Flight(carrier="UA", number=7)),
        (JsonSchema(Flight), Flight(carrier="UA", number=7)),
        (AvroSchema(Rich), Rich(id=1, flag=True, inner=Inner(x=0.5, labels=["a"]), counts={"k": 3})),
        (JsonSchema(Rich), Rich(id=1, flag=True, counts={"k": 3})),
        (StringSchema(), "hëllo"),
        (BytesSchema(), b"\x00\xff"),
    ],
)
def test_round_trip(client: pulsar.Client, topic: str, schema: Any, value: Any) -> None:
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(value)
    message = consumer.receive(WAIT_MS)
    assert message.value() == value
    registered = not isinstance(schema, BytesSchema)
    assert version_of(message) == (0 if registered else -1)
    if registered:
        info = client._client.get_schema_info(topic, 0)
        assert info.schema_type() == schema.schema_info().schema_type()
        assert json.loads(info.schema()) == json.loads(schema.schema_info().schema())


def test_versions_interleave_and_survive_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker)
    old = client.create_producer(topic, schema=AvroSchema(Flight))
    new = client.create_producer(topic, schema=AvroSchema(Delayed))
    again = client.create_producer(topic, schema=AvroSchema(Flight))
    old.send(Flight(carrier="A", number=1))
    new.send(Delayed(carrier="B", number=2, delay=3))
    again.send(Flight(carrier="C", number=4))
    client.close()
    own_broker.kill()
    own_broker.start()
    client = connect(own_broker)
    client.create_producer(topic, schema=AvroSchema(Delayed)).send(Delayed(carrier="D", number=5, delay=6))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Delayed), initial_position=EARLIEST)
    messages = [consumer.receive(WAIT_MS) for _ in range(4)]
    assert [version_of(message) for message in messages] == [0, 1, 0, 1]
    # Old messages are decoded with the schema they were written with: the new field has its default.
    assert [(one.value().carrier, one.value().number, one.value().delay) for one in messages] == [
        ("A", 1, None),
        ("B", 2, 3),
        ("C", 4, None),
        ("D", 5, 6),
    ]
    client.close()


def test_incompatible_producers_and_consumers_are_refused(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    for schema in (AvroSchema(Other), JsonSchema(Flight), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=schema)
    # Whoever has no schema is let in, and the topic goes on.
    reader = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(Flight(carrier="A", number=1))
    client.create_producer(topic).send(b"bytes")
    assert version_of(reader.receive(WAIT_MS)) == 0
    assert reader.receive(WAIT_MS).data() == b"bytes"


def test_a_topic_in_use_without_a_schema_takes_none_from_a_consumer(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"bytes")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(Flight))
    # From a producer it does.
    client.create_producer(topic, schema=AvroSchema(Flight))
    client.subscribe(topic, "s", schema=AvroSchema(Flight))


HOSTILE = [
    avro(""),
    avro("{"),
    avro("[" * 100_000),
    avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Missing"}]}),
    avro({"type": "string", "doc": "x" * 300_000}),
    avro({"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": "int"} for n in range(6000)]}),
]


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_definitions_that_are_none(client: pulsar.Client, topic: str, schema: Definition) -> None:
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic).send(b"alive")


def test_a_recursive_schema(client: pulsar.Client, topic: str) -> None:
    schema = avro({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"], "default": None}]})
    client.create_producer(topic, schema=schema).send(b"\x00")


def test_partitions_share_their_schemas(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = f"parts-{uuid.uuid4().hex[:12]}"
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 3)
    topic = f"persistent://public/default/{name}"
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Delayed))
    producer = client.create_producer(topic, schema=AvroSchema(Delayed))
    for number in range(6):
        producer.send(Delayed(carrier="A", number=number, delay=0))
    assert {version_of(consumer.receive(WAIT_MS)) for _ in range(6)} == {0}
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(f"{topic}-partition-1", schema=AvroSchema(Other))


def test_a_nonpersistent_topic_has_the_schemas_of_its_name(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = f"passing-{uuid.uuid4().hex[:12]}"
    path, passing = f"/admin/v2/schemas/public/default/{name}", f"non-persistent://public/default/{name}"
    client.create_producer(passing, schema=AvroSchema(Flight))
    assert json.loads(broker.rest("GET", f"{path}/schema")["data"]) == Flight.schema()
    broker.rest("POST", f"{path}/schema", {"type": "AVRO", "schema": json.dumps(Delayed.schema())})
    client.create_producer(passing, schema=AvroSchema(Delayed))
    assert broker.rest("GET", f"{path}/metadata") == {
        "info": {"ledgerId": -1, "entryId": -1, "version": 1},
        "index": [{"ledgerId": -1, "entryId": -1, "version": number} for number in (0, 1)],
    }
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(passing, schema=AvroSchema(Other))


def refusal(broker: BrokerProcess, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and reason of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        broker.rest(method, path, body)
    return refused.value.code, json.loads(refused.value.read())["reason"]


def test_administration(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = f"admin-{uuid.uuid4().hex[:12]}"
    path, topic = f"/admin/v2/schemas/public/default/{name}", f"persistent://public/default/{name}"
    first, second = (json.dumps(kind.schema()) for kind in (Flight, Delayed))
    properties = {"owner": "me"}
    body = {"type": "AVRO", "schema": first, "properties": properties}
    assert broker.rest("POST", f"{path}/schema", body) == {"version": 0}
    # What a client brings is the same schema, whatever its spacing.
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    producer.send(Flight(carrier="A", number=1))
    shown = broker.rest("GET", f"{path}/schema")
    assert shown | {"timestamp": 0} == {
        "version": 0,
        "type": "AVRO",
        "timestamp": 0,
        "data": first,
        "properties": properties,
    }
    assert broker.rest("POST", f"{path}/compatibility", {"type": "AVRO", "schema": second})["compatibility"]
    assert broker.rest("POST", f"{path}/version", {"type": "AVRO", "schema": second}) == {"version": -1}
    assert broker.rest("POST", f"{path}/schema", {"type": "AVRO", "schema": second}) == {"version": 1}
    other = {"type": "AVRO", "schema": json.dumps(Other.schema())}
    answer = broker.rest("POST", f"{path}/compatibility", other)
    assert not answer["compatibility"] and "version 1" in answer["reason"]
    assert refusal(broker, "POST", f"{path}/schema", other) == (409, f"{topic}: {answer['reason']}")
    assert refusal(broker, "POST", f"{path}/schema", {"type": "AVRO", "schema": "{"})[0] == 422
    # After a deletion anything may follow; what was written is still decoded.
    assert broker.rest("DELETE", f"{path}/schema") == {"version": 2}
    assert refusal(broker, "GET", f"{path}/schema") == (404, f"Schema not found: topic {topic} has no schema")
    assert broker.rest("POST", f"{path}/schema", other) == {"version": 3}
    client.create_producer(topic, schema=AvroSchema(Other)).send(Other(carrier=7))
    assert [one["version"] for one in broker.rest("GET", f"{path}/schemas")["getSchemaResponses"]] == [3]
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert [version_of(consumer.receive(WAIT_MS)) for _ in range(2)] == [0, 3]
    assert json.loads(client._client.get_schema_info(topic, 0).schema()) == Flight.schema()


def test_key_value_schemas(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = f"pairs-{uuid.uuid4().hex[:12]}"
    path, topic = f"/admin/v2/schemas/public/default/{name}", f"persistent://public/default/{name}"
    pair = {"key": "", "value": Flight.schema()}
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"}
    body = {"type": "KEY_VALUE", "schema": json.dumps(pair), "properties": properties}
    assert broker.rest("POST", f"{path}/schema", body) == {"version": 0}
    assert json.loads(broker.rest("GET", f"{path}/schema")["data"]) == pair
    newer = body | {"schema": json.dumps({"key": "", "value": Delayed.schema()})}
    assert broker.rest("POST", f"{path}/schema", newer) == {"version": 1}
    wrong = body | {"properties": properties | {"key.schema.type": "INT32"}}
    assert "key: the type is INT32, not STRING" in refusal(broker, "POST", f"{path}/schema", wrong)[1]
    info = client._client.get_schema_info(topic, 1)
    assert info.schema_type() == _pulsar.SchemaType.KEY_VALUE


def test_policies_of_a_namespace(broker: BrokerProcess, client: pulsar.Client) -> None:
    space = f"s-{uuid.uuid4().hex[:8]}"
    path = f"/admin/v2/namespaces/public/{space}"
    broker.rest("PUT", path)
    topic = f"persistent://public/{space}/t"
    client.create_producer(topic, schema=AvroSchema(Flight))
    broker.rest("PUT", f"{path}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    client.create_producer(topic, schema=StringSchema())
    broker.rest("PUT", f"{path}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    client.create_producer(topic, schema=AvroSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Delayed))
    broker.rest("POST", f"{path}/schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    broker.rest("PUT", f"{path}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    broker.rest("POST", f"{path}/isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Delayed))
    assert broker.rest("GET", f"{path}/isAllowAutoUpdateSchema") is False


class Colour(Enum):
    RED = 1
    GREEN = 2


class Part(Record):
    size = Integer(default=3)
    word = String(default="x")


class Whole(Record):
    """What the official client's own tests use: enums, maps and arrays of records, sorted fields, defaults."""

    _sorted_fields = True
    colour = CustomEnum(Colour, required=True, default=Colour.GREEN, required_default=True)
    maybe = CustomEnum(Colour)
    parts = Array(Part())
    by_name = Map(Part())
    part = Part(default=Part())
    numbers = Array(Integer())
    raw = Bytes()
    ratio = Float()


WHOLE = Whole(
    colour=Colour.RED,
    maybe=Colour.GREEN,
    parts=[Part(size=1, word="a")],
    by_name={"k": Part(size=2, word="b")},
    numbers=[1, 2],
    raw=b"\x00\xff",
    ratio=0.5,
)


def test_nested_records_enums_and_maps(client: pulsar.Client, topic: str) -> None:
    schema = AvroSchema(Whole)
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Whole))
    client.create_producer(topic, schema=schema).send(WHOLE)
    value = consumer.receive(WAIT_MS).value()
    assert (value.colour, value.maybe, value.numbers, value.raw) == (Colour.RED, Colour.GREEN, [1, 2], b"\x00\xff")
    assert value == WHOLE


def test_dictionaries_with_a_schema_of_ones_own(client: pulsar.Client, topic: str) -> None:
    definition = {
        "type": "record",
        "name": "Own",
        "namespace": "some.where",
        "fields": [
            {"name": "one", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}},
            {"name": "other", "type": ["null", "some.where.Inner"], "default": None},
        ],
    }
    consumer = client.subscribe(topic, "s", schema=AvroSchema(None, schema_definition=definition))
    producer = client.create_producer(topic, schema=AvroSchema(None, schema_definition=definition))
    producer.send({"one": {"x": 1}, "other": {"x": 2}})
    assert consumer.receive(WAIT_MS).value() == {"one": {"x": 1}, "other": {"x": 2}}


def message_class() -> Any:
    """A Protobuf message that is made here, as generated code would make it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"made_{uuid.uuid4().hex}.proto", package="made", syntax="proto3")
    file.message_type.add(name="Outer").field.add(name="id", number=1, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("made.Outer"))


def test_protobuf_native(client: pulsar.Client, topic: str) -> None:
    made = message_class()
    schema = ProtobufNativeSchema(made)
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(made(id=7))
    message = consumer.receive(WAIT_MS)
    assert (message.value().id, version_of(message)) == (7, 0)
    assert client._client.get_schema_info(topic, 0).schema_type() == _pulsar.SchemaType.PROTOBUF_NATIVE
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Flight))


def test_forward_lets_readers_stay_behind(broker: BrokerProcess, client: pulsar.Client) -> None:
    space = f"f-{uuid.uuid4().hex[:8]}"
    broker.rest("PUT", f"/admin/v2/namespaces/public/{space}")
    broker.rest("PUT", f"/admin/v2/namespaces/public/{space}/schemaCompatibilityStrategy", "FORWARD")
    topic = f"persistent://public/{space}/t"

    class Less(Record):
        carrier = String(required=True)
        number = Integer(required=True)

    old = client.create_producer(topic, schema=AvroSchema(Flight))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Flight))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Flight))
    # What is required cannot read what was optional; but those who read the old one can read this.
    new = client.create_producer(topic, schema=AvroSchema(Less))
    for number in range(3):
        old.send(Flight(carrier="o", number=number))
        new.send(Less(carrier="n", number=number))
    for source in (lambda: consumer.receive(WAIT_MS), lambda: reader.read_next(WAIT_MS)):
        values = [source().value() for _ in range(6)]
        assert [(one.carrier, one.number) for one in values] == [(who, n) for n in range(3) for who in "on"]


def test_a_topic_has_a_strategy_of_its_own(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = f"own-{uuid.uuid4().hex[:12]}"
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 2)
    path, topic = f"/admin/v2/persistent/public/default/{name}", f"persistent://public/default/{name}"
    client.create_producer(topic, schema=AvroSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Other))
    broker.rest("PUT", f"{path}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert broker.rest("GET", f"{path}/schemaCompatibilityStrategy") == "ALWAYS_COMPATIBLE"
    client.create_producer(topic, schema=AvroSchema(Other))
    schemas = f"/admin/v2/schemas/public/default/{name}"
    body = {"type": "STRING", "schema": ""}
    told = {"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"}
    assert broker.rest("POST", f"{schemas}/compatibility", body) == told
    broker.rest("DELETE", f"{path}/schemaCompatibilityStrategy")
    assert broker.rest("GET", f"{path}/schemaCompatibilityStrategy?applied=true") == "FULL"
    assert not broker.rest("POST", f"{schemas}/compatibility", body)["compatibility"]
    broker.rest("POST", f"{path}/schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    broker.rest("POST", f"{path}/schemaValidationEnforced", False)
    client.create_producer(topic)


def test_many_bring_the_same_at_once(broker: BrokerProcess, topic: str) -> None:
    """Six clients, two schemas: two versions, whoever comes first."""
    clients = [connect(broker) for _ in range(6)]
    with ThreadPoolExecutor(max_workers=len(clients)) as pool:
        producers = list(
            pool.map(
                lambda pair: pair[1].create_producer(
                    topic, schema=AvroSchema(Flight) if pair[0] % 2 else AvroSchema(Delayed)
                ),
                enumerate(clients),
            )
        )
    for number, producer in enumerate(producers):
        producer.send(Flight(carrier="A", number=1) if number % 2 else Delayed(carrier="A", number=1, delay=2))
    reader = clients[0].create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Delayed))
    messages = [reader.read_next(WAIT_MS) for _ in clients]
    versions = {message.value().delay: version_of(message) for message in messages}
    assert sorted(versions.values()) == [0, 1]
    assert {version_of(message) for message in messages if message.value().delay == 2} == {versions[2]}
    for one in clients:
        one.close()


class Asker:
    """What official clients of other languages send, and this one does not: announcing a schema for each message."""

    def __init__(self, wire: Raw) -> None:
        self.wire = wire
        self._ids = count(1)

    def get_or_create(self, topic: str, kind: int, data: bytes = b"") -> pb.CommandGetOrCreateSchemaResponse:
        brought = pb.Schema(name="S", schema_data=data, type=kind)  # type: ignore[arg-type]
        command = pb.CommandGetOrCreateSchema(request_id=next(self._ids), topic=topic, schema=brought)
        self.wire.send(pb.BaseCommand(type=39, getOrCreateSchema=command))
        while (answer := self.wire.answer()) is not None and answer.type != 40:
            pass  # what a consumer is told meanwhile
        assert answer is not None
        return answer.getOrCreateSchemaResponse

    def subscribe(self, topic: str, name: str, kind: int) -> int:
        number = next(self._ids)
        command = pb.CommandSubscribe(
            topic=topic, subscription=name, subType=0, consumer_id=number, request_id=number,
            schema=pb.Schema(name="", schema_data=b"", type=kind),  # type: ignore[arg-type]
        )  # fmt: skip
        self.wire.send(pb.BaseCommand(type=4, subscribe=command))
        answer = self.wire.answer()
        assert answer is not None
        return answer.type


@pytest.fixture
def asker(broker: BrokerProcess) -> Iterator[Asker]:
    with raw(broker) as wire:
        wire.handshake()
        yield Asker(wire)


PLAIN = [kind for kind in SchemaType if kind in PRIMITIVES or kind is SchemaType.STRING]


def test_every_plain_type(broker: BrokerProcess, asker: Asker, topic: str) -> None:
    for kind in PLAIN:
        name = f"{topic}-{kind.name}"
        broker.rest("PUT", f"/admin/v2/persistent/public/default/{name.rpartition('/')[2]}")
        assert asker.get_or_create(name, kind).schema_version == bytes(8), kind
        assert asker.get_or_create(name, kind).schema_version == bytes(8), "the same"
        other = SchemaType.AVRO if kind is SchemaType.STRING else SchemaType.STRING
        refused = asker.get_or_create(name, other, json.dumps(Flight.schema()).encode())
        assert refused.error_code == int(ErrorCode.INCOMPATIBLE_SCHEMA), kind


def test_who_takes_what_the_topic_has(client: pulsar.Client, asker: Asker, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(Flight)).send(Flight(carrier="A", number=1))
    # A consumer that takes what comes (AUTO_CONSUME) is let in, also on a topic with a schema.
    assert asker.subscribe(topic, "auto", SchemaType.AUTO_CONSUME) == 13
    # A producer that sends what it is given (AUTO_PRODUCE) has none, and gets or makes one for each message.
    later = json.dumps(Delayed.schema()).encode()
    assert asker.get_or_create(topic, 4, later).schema_version == bytes(7) + b"\1"
    refused = asker.get_or_create(topic, 1)
    assert refused.error_code == int(ErrorCode.INCOMPATIBLE_SCHEMA) and "\n" not in refused.error_message
    for kind, data, reason in (
        (77, b"", "schema type 77 is not known"),
        (4, b"{" * 70_000, "is not JSON that can be read"),
        (4, b"x" * 300_000, "at most 262144 are allowed"),
        (15, b"\0\0\0\7x", "gives its key 7 bytes"),
        (20, b"{}", "Protobuf-native"),
        (5, b"{}", "has no definition in addition to its type"),
    ):
        assert reason in asker.get_or_create(topic, kind, data).error_message
    assert asker.get_or_create(topic, 4, later).schema_version == bytes(7) + b"\1", "the connection goes on"


def test_figures_of_schemas(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker)
    client.create_producer(topic, schema=AvroSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Other))
    client.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{own_broker.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    told = {line.split("{")[0] + "".join(re.findall('reason="[a-z_]*"', line)): float(line.split()[-1]) for line in lines
            if line.startswith("magnetar_schema")}  # fmt: skip
    assert told["magnetar_schema_topics"] == told["magnetar_schema_versions"] == 1
    assert told["magnetar_schemas_registered_total"] == 1
    assert told['magnetar_schemas_refused_totalreason="incompatible"'] == 1
    assert told['magnetar_schemas_refused_totalreason="invalid"'] == 0
