"""Clusters and tenants of `Resources`: reading them, and validated changes of them."""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from magnetar.core.config import CLUSTERS_MAX
from magnetar.core.names import NamespaceName, check_cluster, check_tenant
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.keys import SYSTEM, cluster_key, namespace_key, tenant_key
from magnetar.metadata.policies.namespace import ClusterData, TenantInfo
from magnetar.metadata.tables import Tables

TENANTS_MAX: Final = 10_000
"""A ceiling: all tenants are in memory and in one answer of `GET /tenants`."""


class Tenancy(Tables):
    """Clusters and tenants."""

    # ------------------------------------------------------------------------------------------------------ clusters

    def clusters(self) -> list[str]:
        """Names of all known clusters, sorted."""
        return sorted(self._clusters)

    def cluster_data(self, name: str) -> ClusterData:
        """One cluster.

        Raises:
            NotFound: no such cluster.
        """
        try:
            return self._clusters[name]
        except KeyError:
            raise NotFound(f"cluster {name!a} does not exist") from None

    def create_cluster(self, name: str, data: ClusterData) -> Change:
        """Make a cluster known, so that tenants and namespaces may name it. (A link needs clusters.toml as well.)

        Raises:
            NameNotValid, Conflict, PreconditionFailed: too many, or it is its own peer.
        """
        check_cluster(name)
        if name in self._clusters:
            raise Conflict(f"cluster {name} exists already")
        if len(self._clusters) >= CLUSTERS_MAX:
            raise PreconditionFailed(f"{CLUSTERS_MAX} clusters exist, the most allowed")
        return self._cluster_change(name, data)

    def update_cluster(self, name: str, data: ClusterData) -> Change:
        """Replace a cluster's addresses and peers; its uuid stays.

        Raises:
            NotFound, PreconditionFailed: it is its own peer.
        """
        return self._cluster_change(name, replace(data, uuid=self.cluster_data(name).uuid))

    def set_peers(self, name: str, peers: Iterable[str]) -> Change:
        """Replace the names of the clusters that may not be mixed with this one.

        Raises:
            NotFound, PreconditionFailed: unknown peers, or the cluster itself.
        """
        data = self.cluster_data(name)
        named = sorted(set(peers) - {""})
        for peer in named:
            if peer != name and peer not in self._clusters:
                raise PreconditionFailed(f"Peer cluster {peer} does not exist")
        return self._cluster_change(name, replace(data, peer_cluster_names=named))

    def _cluster_change(self, name: str, data: ClusterData) -> Change:
        # Peers may be made known after it: Pulsar's tools say both at once, and an empty name for none.
        data = replace(data, peer_cluster_names=[peer for peer in data.peer_cluster_names if peer])
        if name in data.peer_cluster_names:
            raise PreconditionFailed(f"{name} itself can't be part of peer-list")
        return Change(
            puts={cluster_key(name): msgspec.json.encode(data)},
            depends=frozenset(cluster_key(peer) for peer in data.peer_cluster_names),
            clusters=(name,),
        )

    def delete_cluster(self, name: str) -> Change:
        """Forget a cluster that nothing names any more.

        Raises:
            NotFound. PreconditionFailed: it is this one, or a tenant, namespace or cluster names it.
        """
        self.cluster_data(name)
        if name == self.cluster:
            raise PreconditionFailed(f"cluster {name} is this cluster and cannot be deleted from itself")
        for namespace, policies in sorted(self._namespaces.items()):
            if name in policies.replication_clusters or name in policies.allowed_clusters:
                raise PreconditionFailed(f"cluster {name} is named by namespace {namespace}; take it out there first")
        for tenant, info in sorted(self._tenants.items()):
            if name in info.allowed_clusters:
                raise PreconditionFailed(f"cluster {name} is allowed for tenant {tenant}; take it out there first")
        for other, data in sorted(self._clusters.items()):
            if name in data.peer_cluster_names:
                raise PreconditionFailed(f"cluster {name} is a peer of cluster {other}; take it out there first")
        return Change(deletes=(cluster_key(name),), clusters=(name,))

    # ------------------------------------------------------------------------------------------------------- tenants

    def tenants(self) -> list[str]:
        """Names of all tenants, sorted."""
        return sorted(self._tenants)

    def tenant(self, name: str) -> TenantInfo:
        """One tenant.

        Raises:
            NotFound: no such tenant.
        """
        try:
            return self._tenants[name]
        except KeyError:
            raise NotFound(f"tenant {name!a} does not exist") from None

    def create_tenant(self, name: str, info: TenantInfo) -> Change:
        """Create a tenant.

        Raises:
            NameNotValid, Conflict. PreconditionFailed: no clusters, unknown ones, a bad role, too many tenants.
        """
        check_tenant(name)
        if name in self._tenants:
            raise Conflict(f"tenant {name} exists already")
        if len(self._tenants) >= TENANTS_MAX:
            raise PreconditionFailed(f"{TENANTS_MAX} tenants exist, the most allowed")
        return self._tenant_change(name, info)

    def update_tenant(self, name: str, info: TenantInfo) -> Change:
        """Replace a tenant's roles and clusters.

        Raises:
            NotFound. PreconditionFailed: as `create_tenant`, or a namespace still names a cluster taken out.
        """
        self.tenant(name)
        for namespace in self._namespaces_of(name):
            policies = self._namespaces[namespace]
            for cluster in (*policies.replication_clusters, *policies.allowed_clusters):
                if cluster not in info.allowed_clusters:
                    raise PreconditionFailed(f"namespace {namespace} still names cluster {cluster}; take it out first")
        return self._tenant_change(name, info)

    def _tenant_change(self, name: str, info: TenantInfo) -> Change:
        if not info.allowed_clusters:
            raise PreconditionFailed(f"tenant {name} needs at least one allowed cluster")
        for cluster in info.allowed_clusters:
            if cluster not in self._clusters:
                raise PreconditionFailed(f"cluster {cluster!a} does not exist")
        for role in info.admin_roles:
            if not role or role != role.strip() or not role.isprintable():
                raise PreconditionFailed(f"admin role {role!a} is empty, or has blanks around it or control characters")
        checked = TenantInfo(sorted(set(info.admin_roles)), sorted(set(info.allowed_clusters)))
        return Change(
            puts={tenant_key(name): msgspec.json.encode(checked)},
            depends=frozenset(cluster_key(cluster) for cluster in checked.allowed_clusters)
            | frozenset(namespace_key(namespace) for namespace in self._namespaces_of(name)),
        )

    def delete_tenant(self, name: str) -> Change:
        """Delete a tenant without namespaces.

        Raises:
            NotFound. Conflict: it has namespaces. PreconditionFailed: it is the broker's own.
        """
        self.tenant(name)
        if name == SYSTEM.tenant:
            raise PreconditionFailed(f"tenant {name} belongs to the broker itself")
        spaces = self._namespaces_of(name)
        if spaces:
            raise Conflict(f"tenant {name} still has {len(spaces)} namespaces, such as {spaces[0]}")
        return Change(deletes=(tenant_key(name),))

    def _namespaces_of(self, tenant: str) -> list[NamespaceName]:
        return sorted(self._by_tenant.get(tenant, ()))

    def _namespace_count(self, tenant: str) -> int:
        return len(self._by_tenant.get(tenant, ()))
