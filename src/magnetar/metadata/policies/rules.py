"""The rules for a tenant and for a namespace's policies; Pulsar's rules and its status codes."""

from collections.abc import Mapping

from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import BadRequest, Conflict, Forbidden
from magnetar.metadata.policies.namespace import ClusterData, Policies, TenantInfo


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
