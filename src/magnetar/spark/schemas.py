"""The columns of a query: those of its topics' schema, or values as binary.

All topics of a query have the same columns. They are those of the newest schema; values of older versions are converted
to them as far as possible.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import StructType

from magnetar.core.errors import ConfigError
from magnetar.schemas.compatibility import identity
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.types import SCHEMALESS, Definition, type_of
from magnetar.spark import topics as t
from magnetar.spark.client import Client, take
from magnetar.spark.columns import Columns, arrow_of, columns_of, ddl, sql_of
from magnetar.spark.decoding import RAW, SCHEMA
from magnetar.spark.options import ReadOptions
from magnetar.spark.topics import retried

METADATA: Final = ", ".join(column for column in SCHEMA.split(", ") if column.startswith("__"))


def definition_of(client: Client, topic: str, version: bytes = b"") -> Definition | None:
    """A topic's schema by version, the newest without one; None: there is none.

    Raises:
        Down, Refused: the broker does not answer.
    """
    found = retried(client, lambda: client.schema(topic, version))
    if found is None:
        return None
    kind = type_of(found.type)
    properties = {pair.key: pair.value for pair in found.properties}
    return None if kind in SCHEMALESS else Definition(kind, found.schema_data, properties, found.name)


def common(options: ReadOptions) -> tuple[str, Definition | None]:
    """The schema that all topics of a query have, with the name of one of them; None: they have none.

    Raises:
        ConfigError: they have different ones.
    """
    client = take(options.access)
    names = t.found(client, options, patient=True)
    bases = list(dict.fromkeys(name.partition("-partition-")[0] for name in names))
    first: tuple[str, Definition | None] = ("", None)
    for number, topic in enumerate(bases):
        found = definition_of(client, topic)
        if not number:
            first = topic, found
        elif not _same(first[1], found):
            raise ConfigError(
                f"topics {first[0]} and {topic} have different schemas: read one of them, or set "
                "allowDifferentTopicSchemas=true to have their values as binary"
            )
    return first


def _same(one: Definition | None, other: Definition | None) -> bool:
    if one is None or other is None:
        return one is other
    try:
        return identity(one, stored=True) == identity(other, stored=True)
    except SchemaInvalid:
        return one == other


def schema_of(options: ReadOptions) -> str:
    """The columns of a query that names none, as DDL.

    Raises:
        ConfigError: its topics have different schemas, or one that Spark has no types for.
    """
    if options.raw:
        return SCHEMA
    topic, definition = common(options)
    columns = _columns(topic, definition)
    return SCHEMA if columns is None else f"{ddl(columns)}, {METADATA}"


def _columns(topic: str, definition: Definition | None) -> Columns | None:
    if definition is None:
        return None
    columns = columns_of(definition)
    for name in columns or ():
        if name in RAW and name != "value":
            raise ConfigError(
                f"field {name} of the schema of {topic} has the name of a column of this format: set "
                "allowDifferentTopicSchemas=true and decode the values yourself"
            )
    return columns


def chosen(schema: StructType, options: ReadOptions) -> tuple[Sequence[str], Columns | None]:
    """The columns that a query has, and those of them that are the schema's, with their types.

    Raises:
        ConfigError: one that there is not, or of another type.
    """
    names = [field.name for field in schema]
    types = {field.name: field.dataType for field in schema}
    strange = [name for name, kind in types.items() if RAW.get(name) != kind.simpleString()]
    if not strange and ("value" not in types or options.raw):
        return names, None
    wanted = {name: arrow_of(kind) for name, kind in types.items() if name not in RAW or name == "value"}
    for name in strange:
        if name in RAW and name != "value":
            raise ConfigError(f"column {name} is {types[name].simpleString()}: it is {RAW[name]}")
    if options.raw:
        return names, wanted
    topic, definition = common(options)
    known = _columns(topic, definition)
    if known is None or (not strange and "value" not in known):
        if strange:
            raise ConfigError(
                f"column {strange[0]} {types[strange[0]].simpleString()}: {topic or 'the topic'} has no schema with columns; "
                f"there are: {SCHEMA}"
            )
        return names, None
    if "value" not in known and types.get("value") is not None and "value" not in strange:
        del wanted["value"]  # the bytes themselves, in addition to the fields
    for name, kind in wanted.items():
        if name not in known:
            raise ConfigError(
                f"column {name} is not a field of the newest schema of {topic}, which has: "
                f"{', '.join(f'{field} {sql_of(of, quoted=False)}' for field, of in known.items())}"
            )
        if kind != known[name]:
            raise ConfigError(
                f"column {name} is {types[name].simpleString()}: the schema of {topic} says "
                f"{sql_of(known[name], quoted=False)}; read it so, and cast"
            )
    return names, wanted
