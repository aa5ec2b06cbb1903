"""Namespaces and their policies."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from magnetar.admin.http.applied import APPLIED, NO_QUOTAS
from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.namespace_wide import BUNDLES, is_system
from magnetar.admin.routes.new_namespace import NewNamespace, policies_of, rates_by_cluster
from magnetar.admin.routes.policy_rows import add_policies
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import Forbidden, NotAllowed
from magnetar.metadata.permissions import OURS, Action, first_permissions, shown
from magnetar.metadata.policies.namespace import BacklogQuota, BacklogQuotaBody, BacklogQuotaType, Policies

namespaces = Routes("Namespaces", "/admin/v2/namespaces")

QUOTA_KINDS = get_args(BacklogQuotaType)


@namespaces.add(
    "GET", "/{tenant}", "Namespaces of a tenant.", errors=(404,), reply='["tenant/namespace", ...]', returns=list[str]
)
async def list_namespaces(call: Call) -> Any:
    """Sorted."""
    return call.resources.namespaces(call.name("tenant"))


@namespaces.add("GET", "/{tenant}/{namespace}", "Its policies.", errors=(404, 412), reply="Policies", returns=Policies)
async def get_policies(call: Call) -> Any:
    """The stored policies, with the granted permissions and the number of bundles, which is one."""
    namespace = call.namespace()
    policies = call.resources.policies(namespace)
    rates = rates_by_cluster(policies, call.info.cluster)
    return (
        ALWAYS_SHOWN
        | policies.public()
        | rates
        | {"bundles": BUNDLES, "auth_policies": _auth_policies(call, namespace)}
    )


ALWAYS_SHOWN: Final[dict[str, Any]] = {
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""The values of unset fields in Pulsar's Policies: some tools expect them without a check."""


def _auth_policies(call: Call, namespace: NamespaceName) -> dict[str, Any]:
    """Permissions with Pulsar's keys. Actions that Pulsar has not are left out, for its tools refuse words that they do not
    know; `permissions` has them.
    """
    table = call.resources.permissions
    return {
        "namespace_auth": shown(_known(table.of(namespace))),
        "destination_auth": {name: shown(_known(roles)) for name, roles in sorted(table.topics_of(namespace).items())},
        "subscription_auth_roles": table.subscriptions_of(namespace),
    }


def _known(roles: Mapping[str, frozenset[Action]]) -> dict[str, frozenset[Action]]:
    return {role: actions - OURS for role, actions in roles.items()}


@namespaces.add(
    "PUT",
    "/{tenant}/{namespace}",
    "Create a namespace; without clusters it belongs to this cluster only.",
    ok=204,
    errors=(403, 404, 409, 412),
    body=NewNamespace,
    body_needed=False,
)
async def create_namespace(call: Call) -> None:
    """The body may be left out. Settings in it that this broker cannot follow are refused."""
    namespace = call.namespace()
    body: NewNamespace = await call.body() or NewNamespace()
    policies = policies_of(body, call.info.cluster)
    auth = body.auth_policies
    roles = [auth.namespace_auth, *auth.destination_auth.values()]
    if any(Action.REPLICATE in actions for place in roles for actions in place.values()) and not call.by_superuser:
        raise Forbidden(f"only a superuser may give the permission {Action.REPLICATE}")
    first = first_permissions(namespace, auth.namespace_auth, auth.destination_auth, auth.subscription_auth_roles)
    await call.apply(lambda: call.resources.create_namespace(namespace, policies).merged(first))


@namespaces.add(
    "DELETE",
    "/{tenant}/{namespace}",
    "Delete a namespace without topics, in this cluster.",
    ok=204,
    errors=(404, 405, 409, 412),
    query={"force": "true is refused (405): topics are deleted by name."},
)
async def delete_namespace(call: Call) -> None:
    """Nothing is deleted as a side effect."""
    namespace = call.existing_namespace()
    if call.flag("force"):
        raise NotAllowed(f"namespace {namespace} cannot be deleted by force; delete its topics first")
    await call.apply(lambda: call.resources.delete_namespace(namespace, call.control.topics.names(str(namespace))))


@namespaces.add(
    "GET",
    "/{tenant}/{namespace}/topics",
    "Topics of a namespace, each partition separately.",
    errors=(400, 404, 412),
    query={
        "mode": "PERSISTENT (default), NON_PERSISTENT or ALL.",
        "includeSystemTopic": "true lists the broker's own.",
    },
    reply='["persistent://...", ...]',
    returns=list[str],
)
async def list_topics(call: Call) -> Any:
    """Persistent ones by default, as in Pulsar."""
    namespace = call.existing_namespace()
    mode = call.choice("mode", ("PERSISTENT", "NON_PERSISTENT", "ALL"), "PERSISTENT")
    domain = {"PERSISTENT": "persistent://", "NON_PERSISTENT": "non-persistent://", "ALL": ""}[mode]
    system = call.flag("includeSystemTopic")
    return await call.building.names(
        name
        for name in call.control.topics.iterate(str(namespace))
        if name.startswith(domain) and (system or not is_system(name))
    )


add_policies(namespaces, "replication-clusters", "allowed-clusters", root="/{tenant}/{namespace}/")


@namespaces.add(
    "GET",
    "/{tenant}/{namespace}/backlogQuotaMap",
    "Backlog quotas, by kind.",
    errors=(404, 412),
    query=APPLIED,
    reply='{"destination_storage": BacklogQuota}',
    returns=dict[BacklogQuotaType, BacklogQuota],
)
async def get_quotas(call: Call) -> Any:
    """Empty: the broker's default. `applied` has both kinds: -1 is no limit."""
    namespace = call.existing_namespace()
    if call.flag("applied"):
        return NO_QUOTAS | call.resources.shared_policies(namespace).backlog_quota_map
    return call.resources.policies(namespace).backlog_quota_map


QUOTA_QUERY = {"backlogQuotaType": "destination_storage (default) or message_age."}


@namespaces.add(
    "POST",
    "/{tenant}/{namespace}/backlogQuota",
    "Set a backlog quota.",
    ok=204,
    errors=(400, 404, 412),
    query=QUOTA_QUERY,
    body=BacklogQuotaBody,
)
async def set_quota(call: Call) -> None:
    """One kind at a time."""
    namespace = call.existing_namespace()
    kind: Any = call.choice("backlogQuotaType", QUOTA_KINDS, QUOTA_KINDS[0])
    body: BacklogQuotaBody = await call.body()
    await call.apply(lambda: call.resources.set_backlog_quota(namespace, kind, body.quota()))


@namespaces.add(
    "DELETE",
    "/{tenant}/{namespace}/backlogQuota",
    "Remove the quota of this kind.",
    ok=204,
    errors=(400, 404, 412),
    query=QUOTA_QUERY,
)
async def remove_quota(call: Call) -> None:
    """One kind at a time."""
    namespace = call.existing_namespace()
    kind: Any = call.choice("backlogQuotaType", QUOTA_KINDS, QUOTA_KINDS[0])
    await call.apply(lambda: call.resources.set_backlog_quota(namespace, kind, None))
