"""The fake broker's schemas, over the real registry, and their cases for the table of `test_rest`."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from magnetar.broker.admin.schemas import DoneVersion, SchemaControl, all_of, history_of, listed, one_of, refused
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import NotFound
from magnetar.schemas.compatibility import Strategy, check
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid
from magnetar.schemas.registry import Registry
from magnetar.schemas.types import Definition, SchemaType

if TYPE_CHECKING:
    from tests.web.fake_control import FakeControl

NOW_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/with-schema"
INT = b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


class FakeSchemas(SchemaControl):
    """`SchemaControl` in memory; one topic has a schema. Everything goes by the strategy FULL."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake
        self.registry = Registry(versions_max=1)
        self._register(TOPIC, Definition(SchemaType.AVRO, INT))

    def _register(self, topic: str, definition: Definition) -> int:
        made = self.registry.prepare(topic, definition, Strategy.FULL, now_ms=NOW_MS)
        if isinstance(made, int):
            return made
        self.registry.apply(made)
        return made.version

    def topics(self, namespace: str) -> list[dict[str, Any]]:
        prefix = f"persistent://{NamespaceName.parse(namespace)}/"
        return listed(self.registry, sorted(id_ for id_ in self.registry if id_.startswith(prefix)))

    def in_force(self, topic: str) -> Iterator[dict[str, Any]]:
        return all_of(self.registry, str(TopicName.parse(topic).base))

    def history(self, topic: str) -> Iterator[dict[str, Any]]:
        return history_of(self.registry, str(TopicName.parse(topic).base))

    def one(self, topic: str, version: int | None) -> dict[str, Any]:
        return one_of(self.registry, str(TopicName.parse(topic).base), version)

    def version(self, topic: str, definition: Definition) -> int:
        try:
            found = self.registry.find(topic, definition)
        except SchemaInvalid as error:
            raise refused(topic, error) from None
        return -1 if found is None else found

    def check(self, topic: str, definition: Definition) -> dict[str, Any]:
        answer = {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
        if self.version(topic, definition) < 0:
            try:
                check(definition, self.registry.live(topic), Strategy.FULL)
            except SchemaIncompatible as error:
                return answer | {"compatibility": False, "reason": str(error)}
        return answer

    def register(self, topic: str, definition: Definition, done: DoneVersion) -> None:
        try:
            version = self._register(topic, definition)
        except MagnetarError as error:
            reason = refused(topic, error)
            self._fake.soon(lambda problem: done(None, problem or reason))
            return
        self._fake.soon(lambda problem: done(None if problem else version, problem))

    def delete(self, topic: str, force: bool, done: DoneVersion) -> None:
        addition = self.registry.prepare_deletion(topic, now_ms=NOW_MS)
        if addition is None:
            self._fake.soon(lambda problem: done(None, problem or NotFound(f"topic {topic} has no schema")))
            return
        self.registry.forget(topic) if force else self.registry.apply(addition)
        self._fake.soon(lambda problem: done(None if problem else addition.version, problem))


A = "/admin/v2"
S = f"{A}/schemas/public/default"
MISSING = f"{A}/schemas/public/missing"
BAD = "a%20b"


def _body(*fields: dict[str, Any]) -> str:
    schema = json.dumps({"type": "record", "name": "R", "fields": list(fields)})
    return json.dumps({"type": "AVRO", "schema": schema, "properties": {"k": "v"}})


AVRO = _body()
SAME = _body({"name": "a", "type": "int"})
MORE = _body({"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0})
WRONG = _body({"name": "a", "type": "string"})
STRING = '{"type": "STRING"}'
PAIR = json.dumps(
    {
        "type": "KEY_VALUE",
        "schema": '{"key": "", "value": ""}',
        "properties": {"key.schema.type": "STRING", "value.schema.type": "INT32"},
    }
)

Case = tuple[str, str, str | None, int]

CASES: list[Case] = [
    ("GET", f"{S}/with-schema/schema", None, 200),
    ("GET", f"{S}/with-schema-partition-3/schema", None, 200),
    ("GET", f"{S}/t/schema", None, 404),
    ("GET", f"{MISSING}/t/schema", None, 404),
    ("GET", f"{S}/{BAD}%00/schema", None, 412),
    ("GET", f"{S}/with-schema/schema/0", None, 200),
    ("GET", f"{S}/with-schema/schema/1", None, 404),
    ("GET", f"{S}/with-schema/schema/newest", None, 400),
    ("GET", f"{S}/{BAD}%00/schema/0", None, 412),
    ("GET", f"{S}/with-schema/schemas", None, 200),
    ("GET", f"{S}/t/schemas", None, 200),
    ("GET", f"{MISSING}/t/schemas", None, 404),
    ("GET", f"{S}/{BAD}%00/schemas", None, 412),
    ("GET", f"{S}/with-schema/metadata", None, 200),
    ("GET", f"{S}/t/metadata", None, 404),
    ("GET", f"{S}/{BAD}%00/metadata", None, 412),
    ("POST", f"{S}/t/schema", AVRO, 200),
    ("POST", f"{S}/t/schema", STRING, 200),
    ("POST", f"{S}/t/schema", PAIR, 200),
    ("POST", f"{S}/with-schema/schema", SAME, 200),
    ("POST", f"{S}/t/schema", '{"schema": "{}"}', 400),
    ("POST", f"{MISSING}/t/schema", AVRO, 404),
    ("POST", f"{S}/with-schema/schema", WRONG, 409),
    ("POST", f"{S}/with-schema/schema", STRING, 409),
    ("POST", f"{S}/{BAD}%00/schema", AVRO, 412),
    ("POST", f"{S}/with-schema/schema", MORE, 412),  # the fake has room for one version
    ("POST", f"{S}/t/schema", '{"type": "AVRO", "schema": "{"}', 422),
    ("POST", f"{S}/t/schema", '{"type": "XML", "schema": "{}"}', 422),
    ("POST", f"{S}/t/schema", '{"type": "KEY_VALUE", "schema": "{}"}', 422),
    ("POST", f"{S}/t/schema", '{"type": "BYTES"}', 422),
    ("DELETE", f"{S}/with-schema/schema", None, 200),
    ("DELETE", f"{S}/with-schema/schema?force=true", None, 200),
    ("DELETE", f"{S}/with-schema/schema?force=perhaps", None, 400),
    ("DELETE", f"{S}/t/schema", None, 404),
    ("DELETE", f"{S}/{BAD}%00/schema", None, 412),
    ("POST", f"{S}/with-schema/compatibility", AVRO, 200),
    ("POST", f"{S}/with-schema/compatibility", SAME, 200),
    ("POST", f"{MISSING}/t/compatibility", AVRO, 404),
    ("POST", f"{S}/{BAD}%00/compatibility", AVRO, 412),
    ("POST", f"{S}/t/compatibility", '{"type": "AVRO", "schema": ""}', 422),
    ("POST", f"{S}/with-schema/version", SAME, 200),
    ("POST", f"{S}/t/version", SAME, 200),
    ("POST", f"{MISSING}/t/version", AVRO, 404),
    ("POST", f"{S}/{BAD}%00/version", AVRO, 412),
    ("POST", f"{S}/t/version", '{"type": "INT32", "schema": "{}"}', 422),
    ("GET", "/geo/v1/schemas/public/default", None, 200),
    ("GET", "/geo/v1/schemas/public/missing", None, 404),
    ("GET", f"/geo/v1/schemas/public/{BAD}", None, 412),
    ("GET", "/geo/v1/schemas/public/default/with-schema", None, 200),
    ("GET", "/geo/v1/schemas/public/missing/t", None, 404),
    ("GET", f"/geo/v1/schemas/public/default/{BAD}%00", None, 412),
]
for _policy, _method, _good, _wrong in (
    ("schemaCompatibilityStrategy", "PUT", '"BACKWARD"', '"SIDEWARD"'),
    ("schemaAutoUpdateCompatibilityStrategy", "PUT", '"AutoUpdateDisabled"', '"BACKWARD"'),
    ("isAllowAutoUpdateSchema", "POST", "false", '"no"'),
    ("schemaValidationEnforced", "POST", "true", "[1]"),
):
    CASES += [
        ("GET", f"{A}/namespaces/public/default/{_policy}", None, 200),
        ("GET", f"{A}/namespaces/public/missing/{_policy}", None, 404),
        ("GET", f"{A}/namespaces/public/{BAD}/{_policy}", None, 412),
        (_method, f"{A}/namespaces/public/default/{_policy}", _good, 204),
        (_method, f"{A}/namespaces/public/default/{_policy}", _wrong, 400),
        (_method, f"{A}/namespaces/public/missing/{_policy}", _good, 404),
        (_method, f"{A}/namespaces/public/{BAD}/{_policy}", _good, 412),
    ]
_UPDATE = f"{A}/namespaces/public/default/isAllowAutoUpdateSchema?allowAutoUpdateSchemaWithReplicator="
CASES += [("POST", f"{_UPDATE}true", "false", 204), ("POST", f"{_UPDATE}perhaps", "false", 400)]
