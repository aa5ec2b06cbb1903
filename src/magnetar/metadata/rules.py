"""What a tenant and a namespace's policies must fulfil; Pulsar's rules and its status codes."""

from collections.abc import Mapping

from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import BadRequest, Conflict, Forbidden, PreconditionFailed
from magnetar.metadata.policies import ClusterData, Policies, TenantInfo


def check_tenant_info(name: str, info: TenantInfo, clusters: Mapping[str, ClusterData]) -> TenantInfo:
    """Return a possible tenant, its lists sorted and without repetition.

    Raises:
        PreconditionFailed: no allowed cluster, an unknown one, or a role that is empty or has blanks around it.
    """
    if not info.allowed_clusters:
        raise PreconditionFailed(f"tenant {name} needs at least one allowed cluster")
    for cluster in info.allowed_clusters:
        if cluster not in clusters:
            raise PreconditionFailed(f"cluster {cluster!a} does not exist; known: {', '.join(sorted(clusters))}")
    for role in info.admin_roles:
        if not role or role != role.strip() or not role.isprintable():
            raise PreconditionFailed(f"admin role {role!a} is empty, has blanks around it or control characters")
    return TenantInfo(sorted(set(info.admin_roles)), sorted(set(info.allowed_clusters)))


def check_clusters(
    namespace: NamespaceName, policies: Policies, tenant: TenantInfo, clusters: Mapping[str, ClusterData]
) -> None:
    """Refuse clusters that a namespace may not name.

    Raises:
        Forbidden: a cluster does not exist, or the tenant may not use it.
        BadRequest: a replication cluster is not among the allowed ones.
        Conflict: two peers are mixed.
    """
    replication, allowed = policies.replication_clusters, policies.allowed_clusters
    for name in (*replication, *allowed):
        if name not in clusters:
            raise Forbidden(f"cluster {name!a} does not exist; known: {', '.join(sorted(clusters))}")
        if name not in tenant.allowed_clusters:
            raise Forbidden(f"cluster {name} is not allowed for tenant {namespace.tenant}")
    for name in replication:
        if allowed and name not in allowed:
            raise BadRequest(f"replication cluster {name} is not among the allowed clusters of namespace {namespace}")
        for peer in clusters[name].peer_cluster_names:
            if peer in replication:
                raise Conflict(f"clusters {name} and {peer} are peers and cannot both be in namespace {namespace}")


def check_retention(policies: Policies) -> None:
    """Refuse a retention that contradicts itself or that a backlog quota makes meaningless.

    Raises:
        PreconditionFailed: only one half is 0, a number is below -1, or a backlog quota reaches as far as it.
    """
    retention = policies.retention_policies
    if retention is None:
        return
    minutes, megabytes = retention.time_minutes, retention.size_mb
    if minutes < -1 or megabytes < -1:
        raise PreconditionFailed("retention time and size are -1 (no limit), 0 (both), or above")
    if (minutes == 0) != (megabytes == 0):
        raise PreconditionFailed("retention time and size are both 0 or both not: one 0 alone would keep nothing")
    if minutes == 0:
        return
    stored = policies.backlog_quota_map.get("destination_storage")
    if stored is not None and megabytes != -1 and stored.limit_size >= retention.size_bytes:
        raise PreconditionFailed(f"retention of {megabytes} MB must exceed the backlog quota {stored.limit_size} bytes")
    age = policies.backlog_quota_map.get("message_age")
    if age is not None and minutes != -1 and age.limit_time >= minutes * 60:
        raise PreconditionFailed(f"retention of {minutes} min must exceed the backlog quota, {age.limit_time} s")
