"""The Avro schema of a flight, and what becomes of it on the way: one airport adds how many minutes a flight made up.

All readers use the new one from the beginning, as is usual before a schema evolves: a flight that was written with the old one
is read with the default of the new field. A flight was decoded correctly if encoding it again with the schema that it was
written with gives the same bytes.
"""

import io
import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import fastavro
import pyarrow as pa

from magnetar.core.errors import MagnetarError
from magnetar.schemas.types import Definition, SchemaType

if TYPE_CHECKING:
    import pulsar
    from pulsar.schema import AvroSchema

TEXTS: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")
"""Columns that are no numbers."""

NUMBERS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "flight",
    "air_time", "distance", "hour", "minute",
)  # fmt: skip

NEW_FIELD: Final = "made_up"
"""Minutes between the delays of departure and arrival."""

Age = Literal["old", "new"]

DECODED_AT_ONCE: Final = 16_384

EVOLVES: Final = "ewr"
"""The airport that changes its schema."""

EVOLVED_AT: Final = 0.3
"""How much of its flights it has published then: all have seen the new schema before the first broker is killed. A client whose
broker dies while it asks for a schema decodes with none at all and says so on stderr; and one whose subscription was moved asks
the cluster that it was moved away from."""


def definition(age: Age) -> dict[str, Any]:
    """The schema as it is written down."""
    fields: list[dict[str, Any]] = [{"name": "row", "type": "int"}]
    fields += [{"name": name, "type": ["null", "int"], "default": None} for name in NUMBERS]
    fields += [{"name": name, "type": ["null", "string"], "default": None} for name in TEXTS]
    if age == "new":
        fields.append({"name": NEW_FIELD, "type": ["null", "int"], "default": None})
    return {"type": "record", "name": "Flight", "fields": fields}


@lru_cache
def parsed(age: Age) -> Any:
    """The schema as the library wants it."""
    return fastavro.parse_schema(definition(age))


def encode(flight: dict[str, Any], age: Age) -> bytes:
    """A flight as it is published."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed(age), flight)
    return buffer.getvalue()


def age_of(flight: Any, payload: bytes) -> Age | None:
    """With which schema a flight was written, judged by what was decoded; None: these are not its bytes."""
    ages: tuple[Age, Age] = ("old", "new")
    for age in ages:
        try:
            if encode(flight, age) == payload:
                return age
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return None


def decodable(definition_text: str, payloads: list[bytes]) -> Age | None:
    """Which of the two schemas a registry's is, if it is one and every payload is a flight by it; else None."""
    from magnetar.spark.avro_columns import Bad, Decoder, Unfit
    from magnetar.spark.columns import columns_of

    known = json.loads(definition_text)
    ages: tuple[Age, Age] = ("old", "new")
    for age in ages:
        if known != definition(age):
            continue
        columns = columns_of(Definition(SchemaType.AVRO, definition_text.encode()))
        assert columns is not None
        try:
            for start in range(0, len(payloads), DECODED_AT_ONCE):
                Decoder(known, pa.struct(list(columns.items()))).array(payloads[start : start + DECODED_AT_ONCE])
        except (Bad, Unfit, pa.ArrowException):
            return None
        return age
    return None


def official(age: Age) -> "AvroSchema":
    """The schema for the official client.

    Raises:
        MagnetarError: the client library is not installed.
    """
    try:
        from pulsar.schema import AvroSchema
    except ModuleNotFoundError:
        raise MagnetarError('the demo needs the official Pulsar client: pip install "magnetar[demo]"') from None

    class Flights(AvroSchema):  # type: ignore[misc]
        """The client's own, which takes flights that are encoded already, and parses each schema once."""

        def encode(self, obj: bytes) -> bytes:
            return obj

        def _decode_bytes(self, data: bytes, writer_schema: dict[str, Any]) -> Any:
            if "__fastavro_parsed_schema" not in writer_schema:
                writer_schema |= fastavro.parse_schema(writer_schema)  # type: ignore[arg-type]
            return fastavro.schemaless_reader(io.BytesIO(data), writer_schema, parsed(age))

    made = Flights(None, schema_definition=definition(age))
    made._logger = logging.getLogger("magnetar.demo.client")
    return made


def version_of(message: "pulsar.Message") -> int:
    """The number of a message's schema in the cluster where it was received; -1: it has none."""
    version = message.schema_version()
    raw = version.encode("latin-1") if isinstance(version, str) else version
    return int.from_bytes(raw[:8], "big") if raw else -1
