"""Cases of schemas, for the table of `test_rest`. One topic has a schema, and there is room for no second version."""

import json
from typing import Any

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
LIMITS = {"schema_versions_per_topic_max": 1}
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
    ("POST", f"{S}/with-schema/schema", MORE, 412),
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
_OLD, _DISABLED = "schemaAutoUpdateCompatibilityStrategy", '"AutoUpdateDisabled"'
CASES += [
    ("GET", f"{A}/namespaces/public/default/{_OLD}", None, 200),
    ("GET", f"{A}/namespaces/public/missing/{_OLD}", None, 404),
    ("GET", f"{A}/namespaces/public/{BAD}/{_OLD}", None, 412),
    ("PUT", f"{A}/namespaces/public/default/{_OLD}", _DISABLED, 204),
    ("PUT", f"{A}/namespaces/public/default/{_OLD}", '"BACKWARD"', 400),
    ("PUT", f"{A}/namespaces/public/missing/{_OLD}", _DISABLED, 404),
    ("PUT", f"{A}/namespaces/public/{BAD}/{_OLD}", _DISABLED, 412),
]
_UPDATE = f"{A}/namespaces/public/default/isAllowAutoUpdateSchema?allowAutoUpdateSchemaWithReplicator="
CASES += [("POST", f"{_UPDATE}true", "false", 204), ("POST", f"{_UPDATE}perhaps", "false", 400)]
