"""Permissions of namespaces, topics and subscriptions, on Pulsar's paths. `replicate` and `admin` are actions of
ours.
"""

from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.metadata.errors import Forbidden, PreconditionFailed
from magnetar.metadata.permissions import Action, Scope, SubscriptionScope, grant, reserve, revoke, shown

permissions = Routes("Permissions", "/admin/v2")

_SHOWN: Final = '{"app": ["consume", "produce"]}'


async def _grant(call: Call, scope: Scope) -> None:
    """Grant the actions in the body. Only a superuser may grant `replicate`, because links write under other clusters'
    names.

    Raises:
        Forbidden: `replicate` by another role.
    """
    actions, role = await call.body(), call.name("role")
    there = call.resources.permissions.of(scope).get(role, frozenset())
    if Action.REPLICATE in actions and Action.REPLICATE not in there and not call.by_superuser:
        raise Forbidden(f"only a superuser may give the permission {Action.REPLICATE}")
    await call.apply(lambda: grant(call.resources, scope, role, actions))


@permissions.add(
    "GET",
    "/namespaces/{tenant}/{namespace}/permissions",
    "Permissions of all roles in a namespace.",
    errors=(404, 412),
    reply=_SHOWN,
)
async def of_namespace(call: Call) -> Any:
    """The granted permissions; superusers and the tenant's administrators need none."""
    return shown(call.resources.permissions.of(call.existing_namespace()))


@permissions.add(
    "POST",
    "/namespaces/{tenant}/{namespace}/permissions/{role}",
    "Replace a role's permissions in a namespace.",
    ok=204,
    errors=(404, 412),
    body=list[Action],
)
async def grant_in_namespace(call: Call) -> None:
    """In force at once, also for connected clients."""
    await _grant(call, call.existing_namespace())


@permissions.add(
    "DELETE",
    "/namespaces/{tenant}/{namespace}/permissions/{role}",
    "Revoke a role's permissions in a namespace.",
    ok=204,
    errors=(404, 412),
)
async def revoke_in_namespace(call: Call) -> None:
    """Its producers and consumers are closed, unless the topic's own permissions still allow them."""
    await call.apply(lambda: revoke(call.resources, call.existing_namespace(), call.name("role")))


@permissions.add(
    "GET",
    "/namespaces/{tenant}/{namespace}/permissions/subscription",
    "Reserved subscriptions, with the roles that may use them.",
    errors=(404, 412),
    reply='{"billing": ["app"]}',
)
async def of_subscriptions(call: Call) -> Any:
    """Every role that may consume can use subscriptions that are not named."""
    return call.resources.permissions.subscriptions_of(call.existing_namespace())


def _reserved(call: Call) -> SubscriptionScope:
    return SubscriptionScope(call.existing_namespace(), call.subscription())


@permissions.add(
    "POST",
    "/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}",
    "Reserve a subscription for some roles in a namespace; an empty list: every role that may consume.",
    ok=204,
    errors=(404, 412),
    body=list[str],
)
async def reserve_subscription(call: Call) -> None:
    """They need `consume` all the same. Consumers of other roles are closed."""
    roles = await call.body()
    await call.apply(lambda: reserve(call.resources, _reserved(call), roles))


@permissions.add(
    "DELETE",
    "/namespaces/{tenant}/{namespace}/permissions/{subscription}/{role}",
    "Remove a role from a reserved subscription; after the last one, every role that may consume can use it.",
    ok=204,
    errors=(404, 412),
)
async def release_subscription(call: Call) -> None:
    """412, as Pulsar, if the role is not one of them."""
    scope, role = _reserved(call), call.name("role")
    if role not in call.resources.permissions.users_of(scope):
        raise PreconditionFailed(f"{scope} is not reserved for role {role[:60]!a}")
    await call.apply(lambda: revoke(call.resources, scope, role))


for _domain in ("persistent", "non-persistent"):

    @permissions.add(
        "GET",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions",
        "Permissions of all roles for a topic: its namespace's and its own.",
        errors=(404, 412),
        reply=_SHOWN,
    )
    async def of_topic(call: Call) -> Any:
        """The permissions that are in effect."""
        table, topic = call.resources.permissions, call.topic()
        roles = {*table.of(topic), *table.of(topic.namespace_name)}
        return shown({role: table.actions(role, topic) for role in roles})

    @permissions.add(
        "POST",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions/{{role}}",
        "Grant a role permissions for a topic, in addition to its namespace's.",
        ok=204,
        errors=(404, 412),
        body=list[Action],
    )
    async def grant_on_topic(call: Call) -> None:
        """The topic need not exist yet. For a partitioned topic and all its partitions."""
        await _grant(call, call.topic())

    @permissions.add(
        "DELETE",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions/{{role}}",
        "Revoke a role's permissions for a topic; its namespace's stay.",
        ok=204,
        errors=(404, 412),
    )
    async def revoke_on_topic(call: Call) -> None:
        """412, as Pulsar, when it has nothing of its own there."""
        topic, role = call.topic(), call.name("role")
        if role not in call.resources.permissions.of(topic):
            raise PreconditionFailed(f"role {role[:60]!a} has no permissions of its own on topic {topic}")
        await call.apply(lambda: revoke(call.resources, topic, role))
