"""Schemas of topics, and the policies of namespaces about them."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.new_namespace import OLD_STRATEGIES, OldStrategy, strategy_of
from magnetar.admin.routes.policy_rows import add_policies
from magnetar.broker.admin.schemas import definition_from
from magnetar.metadata.errors import NotFound
from magnetar.schemas.types import Definition

schemas = Routes("Schemas", "/admin/v2/schemas")
schema_policies = Routes("Schemas of a namespace", "/admin/v2/namespaces")
own_schemas = Routes("Schemas of a cluster", "/geo/v1/schemas", own=True)

TOPIC = "/{tenant}/{namespace}/{topic}"
SCHEMA = '{"version": 0, "type": "AVRO", "timestamp": 0, "data": "{...}", "properties": {}}'


class PostSchema(Struct):
    """A schema in a request's body (Pulsar's PostSchemaPayload).

    Attributes:
        type: AVRO, JSON, PROTOBUF, PROTOBUF_NATIVE, KEY_VALUE, STRING, ...
        schema: the definition; for a key-value schema `{"key": ..., "value": ...}`.
        properties: kept with it.
    """

    type: Annotated[str, Meta(max_length=40)]
    schema: str = ""
    properties: dict[str, str] = {}


async def _definition(call: Call) -> Definition:
    body: PostSchema = await call.body()
    return definition_from(body.type, body.schema, body.properties)


@schemas.add("GET", f"{TOPIC}/schema", "The newest schema of a topic.", errors=(404, 412), reply=SCHEMA)
async def get_schema(call: Call) -> Any:
    """404 when there is none."""
    return call.control.schemas.one(str(call.topic()), None)


@schemas.add(
    "GET",
    f"{TOPIC}/schema/{{version}}",
    "A schema by its version, also one that was deleted.",
    errors=(400, 404, 412),
    reply=SCHEMA,
)
async def get_version(call: Call) -> Any:
    """Messages written with it are still there."""
    return call.control.schemas.one(str(call.topic()), call.path_number("version"))


@schemas.add(
    "GET",
    f"{TOPIC}/schemas",
    "All schemas of a topic that are in force, the oldest first.",
    errors=(404, 412),
    reply='{"getSchemaResponses": [' + SCHEMA + "]}",
)
async def get_schemas(call: Call) -> Any:
    """Empty when there is none."""
    return {"getSchemaResponses": await call.building.listed(call.control.schemas.in_force(str(call.topic())))}


@schemas.add(
    "POST",
    f"{TOPIC}/schema",
    "Register a schema, even if automatic updates are off; an equal one keeps its version.",
    errors=(404, 409, 412, 422),
    body=PostSchema,
    reply='{"version": 0}',
)
async def post_schema(call: Call) -> Any:
    """The topic need not exist yet."""
    topic, definition = str(call.topic()), await _definition(call)
    version: int | None = await call.value(lambda done: call.control.schemas.register(topic, definition, done))
    return {"version": version}


@schemas.add(
    "DELETE",
    f"{TOPIC}/schema",
    "Take all schemas of a topic out of force; by version they can still be read.",
    errors=(400, 404, 412),
    query={
        "force": (
            "true forgets them permanently: messages written with them cannot be decoded, and numbers begin again."
        )
    },
    reply='{"version": 1}',
)
async def delete_schema(call: Call) -> Any:
    """The deletion takes a number."""
    topic, force = str(call.topic()), call.flag("force")
    version: int | None = await call.value(lambda done: call.control.schemas.delete(topic, force, done))
    return {"version": version}


@schemas.add(
    "POST",
    f"{TOPIC}/compatibility",
    "Whether a schema can be registered; if not, `reason` (Magnetar's own) says why.",
    errors=(404, 412, 422),
    body=PostSchema,
    reply='{"compatibility": true, "schemaCompatibilityStrategy": "FULL"}',
)
async def post_compatibility(call: Call) -> Any:
    """Changes nothing."""
    topic = str(call.topic())
    return call.control.schemas.check(topic, await _definition(call))


@schemas.add(
    "POST",
    f"{TOPIC}/version",
    "The version of an equal schema; -1 if there is none.",
    errors=(404, 412, 422),
    body=PostSchema,
    reply='{"version": 0}',
)
async def post_version(call: Call) -> Any:
    """Changes nothing."""
    topic = str(call.topic())
    return {"version": call.control.schemas.version(topic, await _definition(call))}


@schemas.add(
    "GET",
    f"{TOPIC}/metadata",
    "The numbers of a topic's schemas, without deletions (PIP-360); their ledger is always -1.",
    errors=(404, 412),
    reply='{"info": {"ledgerId": -1, "entryId": -1, "version": 0}, "index": [...]}',
)
async def get_metadata(call: Call) -> Any:
    """`info` is the newest number."""
    index = []
    for one in call.control.schemas.history(str(call.topic())):
        index.append({"ledgerId": -1, "entryId": -1, "version": one["version"]})
        await call.building.others()
    if not index:
        raise NotFound(f"topic {call.topic()} has no schema")
    return {"info": index[-1], "index": index}


@own_schemas.add(
    "GET",
    "/{tenant}/{namespace}",
    "Topics of a namespace that have schemas.",
    errors=(404, 412),
    reply='[{"topic": "persistent://...", "versions": 2, "version": 1, "type": "AVRO"}]',
)
async def list_schemas(call: Call) -> Any:
    """The schemas by topic name."""
    return call.control.schemas.topics(str(call.existing_namespace()))


@own_schemas.add(
    "GET",
    "/{tenant}/{namespace}/{topic}",
    "All schemas of a topic that can be read by number: in force, deleted, or foreign (never in force).",
    errors=(404, 412),
    reply='[{"version": 0, "type": "AVRO", "timestamp": 0, "data": "{...}", "properties": {}, "state": "in force"}]',
)
async def list_history(call: Call) -> Any:
    """The oldest first."""
    return await call.building.listed(call.control.schemas.history(str(call.topic())))


NAMESPACE = "/{tenant}/{namespace}/"

add_policies(schema_policies, "schema-strategy", root=NAMESPACE)


@schema_policies.add(
    "GET",
    f"{NAMESPACE}schemaAutoUpdateCompatibilityStrategy",
    "The same strategy by its name before Pulsar 2.5.",
    errors=(404, 412),
    reply='"Full"',
)
async def get_old_strategy(call: Call) -> Any:
    """`Full` if none is set; `AutoUpdateDisabled` is ALWAYS_INCOMPATIBLE."""
    return OLD_STRATEGIES.get(call.resources.policies(call.namespace()).schema_compatibility_strategy, "Full")


@schema_policies.add(
    "PUT",
    f"{NAMESPACE}schemaAutoUpdateCompatibilityStrategy",
    "Set it by its name before Pulsar 2.5.",
    ok=204,
    errors=(400, 404, 412),
    body=OldStrategy,
)
async def set_old_strategy(call: Call) -> None:
    """There is one strategy: `schemaCompatibilityStrategy` reads it, too."""
    namespace = call.existing_namespace()
    old: OldStrategy = await call.body()
    await call.apply(lambda: call.resources.change_policies(namespace, schema_compatibility_strategy=strategy_of(old)))


add_policies(schema_policies, "schema-auto-update", "schema-validation", root=NAMESPACE)
