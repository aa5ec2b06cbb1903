"""Schemas with the official client: round trips, evolution, refusals, and what a restart keeps."""

import json
import urllib.error
import uuid
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    BytesSchema,
    Double,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess

WAIT_MS = 20_000
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
    assert refusal(broker, "GET", f"{path}/schema") == (404, f"topic {topic} has no schema")
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
