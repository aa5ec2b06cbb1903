"""Schemas of links, between `replication.link.schemas` and a broker's registry: schemas that arrive over links, and
schemas of this cluster that pipelines request.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.schemas import Schemas, definition_of, schema_message
from magnetar.core.errors import MagnetarError
from magnetar.core.hints import command
from magnetar.core.names import TopicName
from magnetar.replication.link.schemas import WANTED_MAX, Brought, Refusal
from magnetar.schemas.compatibility import identity
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid, SchemasFull
from magnetar.schemas.registry import schema_id
from magnetar.schemas.types import Definition, SchemaType
from magnetar.wire import pulsar_pb2 as pb

DIGEST_CHARACTERS: Final = 8
"""The length of a schema's SHA-256 in displays, enough to distinguish the few schemas of a topic."""

ANSWER_BYTES_MAX: Final = 1 << 20
"""Definitions in one GEO_SCHEMAS_RESPONSE: far below any frame limit, and soon registered; one is sent even if it is larger."""


def digest_of(definition: Definition) -> str:
    """The first characters of a schema's identity; "" for an invalid schema."""
    try:
        return identity(definition).digest.hex()[:DIGEST_CHARACTERS]
    except SchemaInvalid:
        return ""


class LinkSchemas:
    """The registry as links see it (`replication.link.schemas.SchemaHost`), and the source's answers.

    Args:
        context: the broker's context.
        schemas: the schemas of its topics.
        back: the schemas belong to messages that are restored to their own cluster. None is refused, because all were
            accepted here before. One that is no longer compatible with the others is stored for reading only.
    """

    def __init__(self, context: BrokerContext, schemas: Schemas, *, back: bool = False) -> None:
        self._context = context
        self._schemas = schemas
        self._back = back

    def numbering(self, topic: str) -> int:
        """The numbering that the versions of a topic's schemas belong to; 0: it has no schemas."""
        return self._schemas.registry.numbering(schema_id(TopicName.parse(topic)))

    def answer(self, request: pb.CommandGeoSchemas) -> pb.CommandGeoSchemasResponse:
        """GEO_SCHEMAS."""
        registry, id_ = self._schemas.registry, schema_id(TopicName.parse(request.topic))
        response = pb.CommandGeoSchemasResponse(request_id=request.request_id)
        current, room = request.schema_numbering == registry.numbering(id_), ANSWER_BYTES_MAX
        for version in sorted(set(request.versions))[:WANTED_MAX]:
            record = registry.at(id_, version) if current else None
            if record is None:
                response.missing.append(version)
                continue
            room -= len(record.data)
            if room < 0 and response.found:
                break
            response.found.add(version=version, schema=schema_message(record))
        return response

    # ----------------------------------------------------------------------------------------------------- `SchemaHost`

    def bring(self, topic: TopicName, source: str, schema: pb.GeoSchema, then: Callable[[Brought], None]) -> None:
        """Get or make a schema of a topic for a link."""
        try:
            definition = definition_of(schema.schema)
        except SchemaInvalid as error:
            there = pb.GeoSchemaSide(version=schema.version, type=str(schema.schema.type))
            then(Brought(refusal=self._refusal(topic, source, there, error)))
            return
        if definition is None:
            then(Brought())
            return
        made = definition

        def registered(version: int | None, error: MagnetarError | None) -> None:
            if version is not None:
                then(Brought(version))
            elif isinstance(error, SchemaInvalid | SchemaIncompatible | SchemasFull):
                there = pb.GeoSchemaSide(version=schema.version, type=made.type.name, digest=digest_of(made))
                then(Brought(refusal=self._refusal(topic, source, there, error)))
            else:
                then(Brought(trouble=f"schema version {schema.version} of {source} cannot be stored here: {error}"))

        self._schemas.bring(topic, definition, registered, back=self._back)

    def _refusal(self, topic: TopicName, source: str, there: pb.GeoSchemaSide, error: MagnetarError) -> Refusal:
        id_, here = schema_id(topic), pb.GeoSchemaSide()
        newest = self._schemas.registry.latest(id_)
        if newest is not None:
            version, record = newest
            here = pb.GeoSchemaSide(
                version=version, type=SchemaType(record.type).name, digest=digest_of(record.definition())
            )
        strategy = self._schemas.rules(topic).strategy
        conflict = pb.GeoSchemaConflict(source=there, target=here, strategy=strategy.value, cause=str(error))
        cluster, command_here = self._context.cluster, self._context.command
        namespaces = command_here(
            "namespaces", "set", str(topic.namespace_name), "schema-strategy", "ALWAYS_COMPATIBLE"
        )
        schemas = command_here("schemas", "delete", str(topic.base))
        foreign = command_here("topics", "set", str(topic.base), "schema-replication", "foreign")
        in_force = f"version {side_text(here)} is in force" if here.HasField("version") else "none is in force"
        reason = (
            f"has schema version {side_text(there)} of {source}, which {cluster} does not take, where {in_force}: {error}. "
            f"Make it compatible in {cluster} ({namespaces}, or {schemas}), or store it for reading alone ({foreign}), or give "
            f"messages up: {command('links', 'skip', f'{source}:{cluster}', '--topic', str(topic))}"
        )
        return Refusal(reason, conflict)


def described_conflict(conflict: pb.GeoSchemaConflict, source: str, target: str) -> dict[str, Any]:
    """Both sides as REST shows them."""

    def side(cluster: str, schema: pb.GeoSchemaSide) -> dict[str, Any]:
        version = schema.version if schema.HasField("version") else None
        return {"cluster": cluster, "version": version, "type": schema.type, "digest": schema.digest}

    return {
        "source": side(source, conflict.source),
        "target": side(target, conflict.target),
        "strategy": conflict.strategy,
        "cause": conflict.cause,
    }


def side_text(side: pb.GeoSchemaSide) -> str:
    """One side of a conflict for people: `3 (AVRO 1f00ba12)`."""
    return f"{side.version} ({' '.join(text for text in (side.type, side.digest) if text)})"
