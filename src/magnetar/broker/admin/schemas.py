"""Schemas for administration; the rules are those of `broker.admin.controller`.

The names of a partitioned topic and of its partitions mean the same schemas; so does the name of the non-persistent
topic.
"""

from collections.abc import Callable, Iterable
from typing import Any

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.topics.schemas import Schemas
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed, Unprocessable
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid, SchemasFull
from magnetar.schemas.keyvalue import from_text, to_text
from magnetar.schemas.registry import Record, schema_id
from magnetar.schemas.types import Definition, SchemaType, type_named

DoneVersion = Callable[[int | None, MagnetarError | None], None]
"""Called once with a version (None: nothing was deleted), or with why there is none."""


def definition_from(kind: str, text: str, properties: dict[str, str]) -> Definition:
    """A schema as REST gives it.

    Raises:
        Unprocessable: no such type, or an invalid key-value schema.
    """
    try:
        named = type_named(kind)
        data = from_text(text) if named is SchemaType.KEY_VALUE else text.encode()
    except (SchemaInvalid, UnicodeEncodeError) as error:
        raise Unprocessable(f"{error}") from None
    return Definition(named, data, properties, named.name)


def described(version: int, record: Record) -> dict[str, Any]:
    """A stored schema in the shape of Pulsar's GetSchemaResponse."""
    kind = SchemaType(record.type)
    definition = record.definition()
    data = to_text(definition) if kind is SchemaType.KEY_VALUE else record.data.decode("utf-8", "replace")
    return {
        "version": version,
        "type": kind.name,
        "timestamp": record.time_ms,
        "data": data,
        "properties": dict(record.properties),
    } | ({"foreign": True} if record.foreign else {})


def refused(id_: str, error: MagnetarError) -> MagnetarError:
    """An error of the registry in the words of HTTP."""
    if isinstance(error, SchemaInvalid):
        return Unprocessable(f"{id_}: {error}")
    if isinstance(error, SchemaIncompatible):
        return Conflict(f"{id_}: {error}")
    if isinstance(error, SchemasFull):
        return PreconditionFailed(str(error))
    return error


class SchemaControl:
    """Schemas of topics.

    Args:
        schemas: of the broker.
        events: how changes enter the broker.
    """

    def __init__(self, schemas: Schemas, events: AdminEvents) -> None:
        self._schemas = schemas
        self._registry = schemas.registry
        self._events = events

    def topics(self, namespace: str) -> list[dict[str, Any]]:
        """Topics of `tenant/namespace` that have schemas, by name: `topic`, `versions` (how many are in force), and `version`
        and `type` of the newest (None when all were deleted).
        """
        rows: list[dict[str, Any]] = []
        for id_ in self._schemas.topics(NamespaceName.parse(namespace)):
            newest = self._registry.latest(id_)
            rows.append(
                {
                    "topic": id_,
                    "versions": len(self._registry.live(id_)),
                    "version": newest[0] if newest else None,
                    "type": SchemaType(newest[1].type).name if newest else None,
                }
            )
        return rows

    def in_force(self, topic: str) -> Iterable[dict[str, Any]]:
        """The schemas of a topic that are in force, ascending (`described`), made as they are taken."""
        id_ = schema_id(TopicName.parse(topic))
        found = ((version, self._registry.at(id_, version)) for version, _ in list(self._registry.live(id_)))
        return (described(version, record) for version, record in found if record is not None)

    def history(self, topic: str) -> Iterable[dict[str, Any]]:
        """All schemas of a topic that can be read by number, ascending (`described`), with `state`: `in force`, `deleted` or
        `foreign`.
        """
        id_ = schema_id(TopicName.parse(topic))
        live = {version for version, _ in self._registry.live(id_)}

        def state(version: int, record: Record) -> str:
            return "in force" if version in live else "foreign" if record.foreign else "deleted"

        every = list(self._registry.every(id_))
        return (described(version, record) | {"state": state(version, record)} for version, record in every)

    def one(self, topic: str, version: int | None) -> dict[str, Any]:
        """One schema, the newest unless a version is named; by version also one that was deleted.

        Raises:
            NotFound.
        """
        id_ = schema_id(TopicName.parse(topic))
        if version is None:
            newest = self._registry.latest(id_)
            if newest is None:
                raise NotFound(f"topic {id_} has no schema")
            return described(*newest)
        record = self._registry.at(id_, version)
        if record is None:
            raise NotFound(f"topic {id_} has no schema version {version}")
        return described(version, record)

    def version(self, topic: str, definition: Definition) -> int:
        """The version of an equal schema in force; -1 when there is none.

        Raises:
            Unprocessable: it is not a schema.
        """
        id_ = schema_id(TopicName.parse(topic))
        try:
            found = self._registry.find(id_, definition)
        except SchemaInvalid as error:
            raise refused(id_, error) from None
        return -1 if found is None else found

    def check(self, topic: str, definition: Definition) -> dict[str, Any]:
        """Whether a schema could be registered: `compatibility`, `schemaCompatibilityStrategy`, and `reason` if not.

        Raises:
            Unprocessable: it is not a schema.
        """
        name = TopicName.parse(topic)
        id_, strategy = schema_id(name), self._schemas.rules(name).strategy
        reason = ""
        if self.version(topic, definition) < 0:
            try:
                self._registry.check(id_, definition, strategy)
            except SchemaInvalid as error:
                raise refused(id_, error) from None
            except (SchemaIncompatible, SchemasFull) as error:
                reason = str(error)
        answer = {"compatibility": not reason, "schemaCompatibilityStrategy": strategy.value}
        return answer | ({"reason": reason} if reason else {})

    def register(self, topic: str, definition: Definition, done: DoneVersion) -> None:
        """Register a schema; one that is there already keeps its version.

        Answers:
            Unprocessable: it is not a schema. Conflict: not compatible. PreconditionFailed: too many.
        """
        name = TopicName.parse(topic)

        def registered(version: int | None, error: MagnetarError | None) -> None:
            done(version, refused(schema_id(name), error) if error is not None else None)

        self._events.enter(lambda: self._schemas.register(name, definition, registered))

    def delete(self, topic: str, force: bool, done: DoneVersion) -> None:
        """Take a topic's schemas out of force; `force`: forget them, numbers begin again. The number of the deletion.

        Answers:
            NotFound: there is none.
        """
        name = TopicName.parse(topic)

        def deleted(version: int | None, error: MagnetarError | None) -> None:
            if error is None and version is None:
                error = NotFound(f"topic {schema_id(name)} has no schema")
            done(version, error)

        self._events.enter(lambda: self._schemas.delete(name, force=force, then=deleted))
