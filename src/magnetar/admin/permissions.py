"""Permissions of namespaces and topics, by Pulsar's paths. `replicate` is an action of ours."""

from typing import Any, Final

from magnetar.admin.call import Call
from magnetar.admin.routing import Routes
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.permissions import Action, grant, revoke, shown

permissions = Routes("Permissions", "/admin/v2")

_SHOWN: Final = '{"app": ["consume", "produce"]}'


@permissions.add(
    "GET",
    "/namespaces/{tenant}/{namespace}/permissions",
    "Which roles may do what in a namespace.",
    errors=(404, 412),
    reply=_SHOWN,
)
async def of_namespace(call: Call) -> Any:
    """What was granted; superusers and the tenant's administrators need nothing."""
    return shown(call.resources.permissions.of(call.existing_namespace()))


@permissions.add(
    "POST",
    "/namespaces/{tenant}/{namespace}/permissions/{role}",
    "Say what a role may do in a namespace, instead of what it might before.",
    ok=204,
    errors=(404, 412),
    body=list[Action],
)
async def grant_in_namespace(call: Call) -> None:
    """In force at once, for everything that begins and for who is connected."""
    actions = await call.body()
    await call.apply(lambda: grant(call.resources, call.existing_namespace(), call.name("role"), actions))


@permissions.add(
    "DELETE",
    "/namespaces/{tenant}/{namespace}/permissions/{role}",
    "Take back what a role may do in a namespace.",
    ok=204,
    errors=(404, 412),
)
async def revoke_in_namespace(call: Call) -> None:
    """Its producers and consumers are closed, unless the topic's own permissions still allow them."""
    await call.apply(lambda: revoke(call.resources, call.existing_namespace(), call.name("role")))


for _domain in ("persistent", "non-persistent"):

    @permissions.add(
        "GET",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions",
        "Which roles may do what with a topic, by its namespace's permissions and its own together.",
        errors=(404, 412),
        reply=_SHOWN,
    )
    async def of_topic(call: Call) -> Any:
        """As they are checked."""
        table, topic = call.resources.permissions, call.topic()
        roles = {*table.of(topic), *table.of(topic.namespace_name)}
        return shown({role: table.actions(role, topic) for role in roles})

    @permissions.add(
        "POST",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions/{{role}}",
        "Say what a role may do with a topic, besides what its namespace allows.",
        ok=204,
        errors=(404, 412),
        body=list[Action],
    )
    async def grant_on_topic(call: Call) -> None:
        """The topic need not exist yet. For a partitioned topic and all its partitions."""
        actions = await call.body()
        await call.apply(lambda: grant(call.resources, call.topic(), call.name("role"), actions))

    @permissions.add(
        "DELETE",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions/{{role}}",
        "Take back what a role may do with a topic; what its namespace allows stays.",
        ok=204,
        errors=(404, 412),
    )
    async def revoke_on_topic(call: Call) -> None:
        """412, as Pulsar, when it has nothing of its own there."""
        topic, role = call.topic(), call.name("role")
        if role not in call.resources.permissions.of(topic):
            raise PreconditionFailed(f"role {role[:60]!a} has no permissions of its own on topic {topic}")
        await call.apply(lambda: revoke(call.resources, topic, role))
