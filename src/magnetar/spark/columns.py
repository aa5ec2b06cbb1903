"""The columns of a topic by its schema, in Spark's types and in Arrow's.

    schema of the topic            columns
    AVRO, JSON: a record           one for each field
    AVRO, JSON: another type       value
    KEY_VALUE                      key and value: a struct, or a plain type
    STRING, numbers, times         value
    anything else, none            value binary

Every column may be null: a message of an older version lacks later fields, and a tombstone has none.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from magnetar.core.errors import ConfigError
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.keyvalue import take_apart
from magnetar.schemas.types import Definition, SchemaType

UTC_TIME: Final = pa.timestamp("us", tz="UTC")
LOCAL_TIME: Final = pa.timestamp("us")

PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
"""Avro's primitive types; `null` alone is a column of nothing, which Spark has no use for."""

PRIMITIVES: Final[Mapping[SchemaType, pa.DataType]] = {
    SchemaType.STRING: pa.string(),
    SchemaType.BOOLEAN: pa.bool_(),
    SchemaType.INT8: pa.int8(),
    SchemaType.INT16: pa.int16(),
    SchemaType.INT32: pa.int32(),
    SchemaType.INT64: pa.int64(),
    SchemaType.FLOAT: pa.float32(),
    SchemaType.DOUBLE: pa.float64(),
    SchemaType.DATE: UTC_TIME,
    SchemaType.TIME: UTC_TIME,
    SchemaType.TIMESTAMP: UTC_TIME,
    SchemaType.INSTANT: UTC_TIME,
    SchemaType.LOCAL_DATE: pa.date32(),
    SchemaType.LOCAL_TIME: pa.int64(),
    SchemaType.LOCAL_DATE_TIME: LOCAL_TIME,
}
"""DATE and TIME are points in time of Java, not days or hours. LOCAL_TIME is nanoseconds since midnight, for want of a type."""

LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): UTC_TIME,
    ("long", "timestamp-micros"): UTC_TIME,
    ("long", "local-timestamp-millis"): LOCAL_TIME,
    ("long", "local-timestamp-micros"): LOCAL_TIME,
}
"""Others stay what they are stored as (times of day as numbers, uuids as strings); decimals are apart."""

PRECISION_MAX: Final = 38
"""The highest precision of Spark's decimals."""

_SQL: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    UTC_TIME: "timestamp",
    LOCAL_TIME: "timestamp_ntz",
}

Columns = dict[str, pa.DataType]
"""Types of columns by name, in order."""


def columns_of(definition: Definition) -> Columns | None:
    """The columns that a topic with this schema has; None: its values are read as binary.

    Raises:
        ConfigError: its schema has something that Spark has no type for.
    """
    if definition.type in PRIMITIVES:
        return {"value": PRIMITIVES[definition.type]}
    if definition.type in (SchemaType.AVRO, SchemaType.JSON):
        made = _Types().of(_loaded(definition.data), "value", ())
        return {field.name: field.type for field in made} if pa.types.is_struct(made) else {"value": made}
    if definition.type is SchemaType.KEY_VALUE:
        try:
            both = take_apart(definition)
        except SchemaInvalid as error:
            raise ConfigError(f"the topic's key-value schema cannot be read: {error}") from None
        return {"key": _part(both.key), "value": _part(both.value)}
    return None


def _part(definition: Definition) -> pa.DataType:
    found = columns_of(definition)
    if found is None:
        return pa.binary()
    if definition.type in PRIMITIVES or not _is_record(_loaded(definition.data)):
        return found["value"]
    return pa.struct(list(found.items()))


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError("the topic's schema is not JSON that can be read; to have its values as binary set "
                          "allowDifferentTopicSchemas=true") from None  # fmt: skip


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record"


class _Types:
    """Arrow's types of an Avro schema."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def of(self, node: Any, where: str, inside: tuple[str, ...], space: str = "") -> pa.DataType:
        """The type of a part of the schema; `where` names the field, `inside` the records around it."""
        if isinstance(node, list):
            return self._union(node, where, inside, space)
        if isinstance(node, str):
            return self._reference(node, where, inside, space)
        kind = node.get("type")
        if isinstance(kind, list | dict):
            return self.of(kind, where, inside, space)
        if kind == "array":
            return pa.list_(self.of(node["items"], where, inside, space))
        if kind == "map":
            return pa.map_(pa.string(), self.of(node["values"], where, inside, space))
        if kind in ("record", "enum", "fixed"):
            return self._definition(node, where, inside, space)
        if node.get("logicalType") == "decimal":
            return _decimal(node, where)
        return LOGICAL.get((str(kind), str(node.get("logicalType"))), None) or self._reference(
            str(kind), where, inside, space
        )

    def _definition(self, node: Any, where: str, inside: tuple[str, ...], space: str) -> pa.DataType:
        space = node.get("namespace") or space
        name = node["name"] if "." in node["name"] or not space else f"{space}.{node['name']}"
        space = name.rpartition(".")[0]
        if node["type"] == "record":
            fields = [
                (field["name"], self.of(field["type"], field["name"], (*inside, name), space))
                for field in node["fields"]
            ]
            made = pa.struct(fields)
        elif node["type"] == "enum":
            made = pa.string()
        else:
            made = _decimal(node, where) if node.get("logicalType") == "decimal" else pa.binary()
        self._named[name] = made
        return made

    def _reference(self, name: str, where: str, inside: tuple[str, ...], space: str) -> pa.DataType:
        if name in PLAIN:
            return PLAIN[name]
        for full in (f"{space}.{name}" if space and "." not in name else name, name):
            if full in inside:
                raise _unfit(where, f"is of type {full}, which contains itself")
            if full in self._named:
                return self._named[full]
        raise _unfit(where, f"is of type {name[:80]!a}")

    def _union(self, branches: list[Any], where: str, inside: tuple[str, ...], space: str) -> pa.DataType:
        kinds = [self.of(branch, where, inside, space) for branch in branches if branch != "null"]
        kinds = list(dict.fromkeys(kinds))
        if len(kinds) == 1:
            return kinds[0]
        if kinds and set(kinds) <= {pa.int32(), pa.int64()}:
            return pa.int64()
        if kinds and set(kinds) <= {pa.int32(), pa.float32(), pa.float64()}:
            return pa.float64()
        raise _unfit(where, f"is one of {len(kinds)} types" if kinds else "is always null")


def _decimal(node: Any, where: str) -> pa.DataType:
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= PRECISION_MAX:
        raise _unfit(where, f"is a decimal of more than {PRECISION_MAX} digits")
    return pa.decimal128(precision, scale)


def _unfit(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"field {where[:80]!a} of the topic's schema {what}: Spark has no such type; to have the values as binary set "
        "allowDifferentTopicSchemas=true, or name the columns that you want with schema(...)"
    )


def sql_of(kind: pa.DataType, *, quoted: bool = True) -> str:
    """A type as Spark's DDL has it; not quoted: as its `simpleString`."""
    quote = "`" if quoted else ""
    if pa.types.is_struct(kind):
        inner = ",".join(f"{_name(field.name, quote)}:{sql_of(field.type, quoted=quoted)}" for field in kind)
        return f"struct<{inner}>"
    if pa.types.is_list(kind):
        return f"array<{sql_of(kind.value_type, quoted=quoted)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_of(kind.key_type, quoted=quoted)},{sql_of(kind.item_type, quoted=quoted)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SQL[kind]


def _name(name: str, quote: str) -> str:
    return f"{quote}{name.replace(quote, quote * 2)}{quote}" if quote else name


def ddl(columns: Columns) -> str:
    """Columns as Spark's DDL."""
    return ", ".join(f"{_name(name, '`')} {sql_of(kind)}" for name, kind in columns.items())


def arrow_of(kind: Any) -> pa.DataType:
    """A type of Spark's as Arrow has it.

    Raises:
        ConfigError: nothing that a schema can describe.
    """
    from pyspark.sql import types as sql

    if isinstance(kind, sql.StructType):
        return pa.struct([(field.name, arrow_of(field.dataType)) for field in kind])
    if isinstance(kind, sql.ArrayType):
        return pa.list_(arrow_of(kind.elementType))
    if isinstance(kind, sql.MapType):
        return pa.map_(arrow_of(kind.keyType), arrow_of(kind.valueType))
    if isinstance(kind, sql.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for made, name in _SQL.items():
        if kind.simpleString() == name:
            return made
    raise ConfigError(f"columns of type {kind.simpleString()} are in no schema of a topic")
