"""Clusters, tenants, namespaces and partitioned topics of one cluster, in memory, over the metadata store's keys.

The order of a change, which makes it safe without a lock:

    change = resources.set_replication(namespace, [...])    validated against the state; nothing has happened
    resources.begin(change)                                 refused while anything that it touches is in flight
    ... stored durably ...
    resources.apply(change)    or    resources.abort(change)

`begin` keeps the validation true until the store has answered: of two changes of one key, or of a key and one that its
validation relied on, the second is refused (409) and can be repeated.

Policies never delete data: a cluster that is removed from a namespace stops receiving, and its data stay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from magnetar.core.config import CLUSTERS_MAX, Config
from magnetar.core.names import NamespaceName, TopicName, check_cluster, check_tenant
from magnetar.metadata.bootstrap import bootstrap
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.in_flight import ChangesInFlight
from magnetar.metadata.keys import SYSTEM, cluster_key, namespace_key, tenant_key
from magnetar.metadata.permissions import PermissionTable
from magnetar.metadata.policies.defaults import filled
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import (
    BacklogQuota,
    BacklogQuotaType,
    ClusterData,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaReplication,
    SchemaStrategy,
    SubscriptionMode,
    TenantInfo,
)
from magnetar.metadata.policies.rules import check_clusters
from magnetar.metadata.policies.table import (
    BY_NAME,
    COMPACTION_DELETE_RETENTION_S,
    check_policies,
    check_topic_policies,
)
from magnetar.metadata.policies.topic import TopicPolicies, topic_policies_key
from magnetar.metadata.tables import ResourceTables

TENANTS_MAX: Final = 10_000
"""A ceiling: all tenants are in memory and in one answer of `GET /tenants`."""

NAMESPACES_PER_TENANT_MAX: Final = 10_000
"""A ceiling: all namespaces of a tenant are in one answer."""

NO_RETENTION: Final = RetentionPolicies()
NO_NAMESPACE: Final = Policies()


class Resources:
    """The resources of one cluster that administrators manage: reading them, validated changes, and effective policies.

    Args:
        cluster: the name of this cluster; `first_start` may set it later.
        defaults: the broker's policies (`[policies]`), for values that a namespace does not set.

    Attributes:
        permissions: the permissions of all roles.
    """

    def __init__(self, cluster: str = "", defaults: Policies = NO_NAMESPACE) -> None:
        self.cluster = cluster
        self.defaults = defaults
        self._tables = ResourceTables()
        self._in_flight = ChangesInFlight()
        self._filled: dict[NamespaceName, tuple[Policies, Policies]] = {}

    @classmethod
    def load(cls, entries: Mapping[str, bytes], cluster: str = "", defaults: Policies = NO_NAMESPACE) -> Self:
        """Load from the store; other keys are ignored.

        Raises:
            StorageError: a value is damaged; names its key.
        """
        resources = cls(cluster, defaults)
        for key, value in entries.items():
            resources._tables.put(key, value)
        return resources

    def first_start(self, config: Config, cluster: str, uuid: str) -> Change:
        """The change that each start has to store and apply before it serves clients; see `bootstrap`."""
        self.cluster = cluster
        return bootstrap(self._tables, cluster, config, uuid)

    @property
    def permissions(self) -> PermissionTable:
        """The permissions of all roles."""
        return self._tables.permissions

    # ------------------------------------------------------------------------------------------------------- changes

    def begin(self, change: Change) -> None:
        """Announce a change that is now being stored; `apply` or `abort` must follow.

        Raises:
            InFlight: it touches something that another change in flight touches; see `when_one_ended`.
        """
        self._in_flight.begin(change)

    def is_deleting(self, key: str) -> bool:
        """Whether a change in flight deletes what is stored there."""
        return self._in_flight.is_deleting(key)

    def when_one_ended(self, then: Callable[[], None]) -> None:
        """Call back once, as soon as any change in flight has ended: a change that was refused because of it may be
        tried again.
        """
        self._in_flight.when_one_ended(then)

    def abort(self, change: Change) -> None:
        """The store refused a change: it never was."""
        self._in_flight.end(change)

    def apply(self, change: Change) -> None:
        """A change is durable: from now on it is the state. `begin` may have been left out at start only."""
        for key in change.deletes:
            self._tables.delete(key)
        for key, value in change.puts.items():
            self._tables.put(key, value)
        self._in_flight.end(change)

    def document(self, key: str) -> bytes | None:
        """A value as it is stored: a cluster, tenant, namespace, partitioned topic, topic policies or permissions."""
        return self._tables.documents.get(key)

    def documents(self) -> Mapping[str, bytes]:
        """All of them, by key; the caller does not change it."""
        return self._tables.documents

    # ------------------------------------------------------------------------------------------------------ clusters

    def clusters(self) -> list[str]:
        """Names of all known clusters, sorted."""
        return sorted(self._tables.clusters)

    def cluster_data(self, name: str) -> ClusterData:
        """One cluster.

        Raises:
            NotFound: no such cluster.
        """
        try:
            return self._tables.clusters[name]
        except KeyError:
            raise NotFound(f"cluster {name!a} does not exist") from None

    def create_cluster(self, name: str, data: ClusterData) -> Change:
        """Make a cluster known, so that tenants and namespaces may name it. (A link needs clusters.toml as well.)

        Raises:
            NameNotValid, Conflict, PreconditionFailed: too many, or it is its own peer.
        """
        check_cluster(name)
        if name in self._tables.clusters:
            raise Conflict(f"cluster {name} exists already")
        if len(self._tables.clusters) >= CLUSTERS_MAX:
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
            if peer != name and peer not in self._tables.clusters:
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
        """Delete a cluster that nothing refers to.

        Raises:
            NotFound. PreconditionFailed: it is this one, or a tenant, namespace or cluster names it.
        """
        self.cluster_data(name)
        if name == self.cluster:
            raise PreconditionFailed(f"cluster {name} is this cluster and cannot be deleted from itself")
        for namespace, policies in sorted(self._tables.namespaces.items()):
            if name in policies.replication_clusters or name in policies.allowed_clusters:
                raise PreconditionFailed(f"cluster {name} is named by namespace {namespace}; take it out there first")
        for tenant, info in sorted(self._tables.tenants.items()):
            if name in info.allowed_clusters:
                raise PreconditionFailed(f"cluster {name} is allowed for tenant {tenant}; take it out there first")
        for other, data in sorted(self._tables.clusters.items()):
            if name in data.peer_cluster_names:
                raise PreconditionFailed(f"cluster {name} is a peer of cluster {other}; take it out there first")
        return Change(deletes=(cluster_key(name),), clusters=(name,))

    # ------------------------------------------------------------------------------------------------------- tenants

    def tenants(self) -> list[str]:
        """Names of all tenants, sorted."""
        return sorted(self._tables.tenants)

    def tenant(self, name: str) -> TenantInfo:
        """One tenant.

        Raises:
            NotFound: no such tenant.
        """
        try:
            return self._tables.tenants[name]
        except KeyError:
            raise NotFound(f"tenant {name!a} does not exist") from None

    def create_tenant(self, name: str, info: TenantInfo) -> Change:
        """Create a tenant.

        Raises:
            NameNotValid, Conflict. PreconditionFailed: no clusters, unknown ones, a bad role, too many tenants.
        """
        check_tenant(name)
        if name in self._tables.tenants:
            raise Conflict(f"tenant {name} exists already")
        if len(self._tables.tenants) >= TENANTS_MAX:
            raise PreconditionFailed(f"{TENANTS_MAX} tenants exist, the most allowed")
        return self._tenant_change(name, info)

    def update_tenant(self, name: str, info: TenantInfo) -> Change:
        """Replace a tenant's roles and clusters.

        Raises:
            NotFound. PreconditionFailed: as `create_tenant`, or a namespace still names a cluster taken out.
        """
        self.tenant(name)
        for namespace in self._namespaces_of(name):
            policies = self._tables.namespaces[namespace]
            for cluster in (*policies.replication_clusters, *policies.allowed_clusters):
                if cluster not in info.allowed_clusters:
                    raise PreconditionFailed(f"namespace {namespace} still names cluster {cluster}; take it out first")
        return self._tenant_change(name, info)

    def _tenant_change(self, name: str, info: TenantInfo) -> Change:
        if not info.allowed_clusters:
            raise PreconditionFailed(f"tenant {name} needs at least one allowed cluster")
        for cluster in info.allowed_clusters:
            if cluster not in self._tables.clusters:
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
        return sorted(self._tables.by_tenant.get(tenant, ()))

    def _namespace_count(self, tenant: str) -> int:
        return len(self._tables.by_tenant.get(tenant, ()))

    # ---------------------------------------------------------------------------------------------------- namespaces

    def has_namespace(self, namespace: NamespaceName) -> bool:
        """Whether it exists."""
        return namespace in self._tables.namespaces

    def namespaces(self, tenant: str) -> list[str]:
        """`tenant/namespace` names of a tenant, sorted.

        Raises:
            NotFound: no such tenant.
        """
        self.tenant(tenant)
        return [str(namespace) for namespace in self._namespaces_of(tenant)]

    def all_namespaces(self) -> list[NamespaceName]:
        """Every namespace, sorted."""
        return sorted(self._tables.namespaces)

    def policies(self, namespace: NamespaceName) -> Policies:
        """The policies of a namespace as they are stored.

        Raises:
            NotFound: no such namespace.
        """
        try:
            return self._tables.namespaces[namespace]
        except KeyError:
            raise NotFound(f"namespace {namespace} does not exist") from None

    def create_namespace(self, namespace: NamespaceName, policies: Policies) -> Change:
        """Create a namespace; without replication clusters it belongs to this cluster alone.

        Raises:
            NotFound: its tenant. Conflict: it exists. As `set_replication` for the clusters it names.
        """
        self.tenant(namespace.tenant)
        if namespace in self._tables.namespaces:
            raise Conflict(f"namespace {namespace} exists already")
        if self._namespace_count(namespace.tenant) >= NAMESPACES_PER_TENANT_MAX:
            raise PreconditionFailed(
                f"tenant {namespace.tenant} has {NAMESPACES_PER_TENANT_MAX} namespaces, the most allowed"
            )
        chosen = policies.replication_clusters or policies.allowed_clusters or [self.cluster]
        return self._policy_change(namespace, replace(policies, replication_clusters=chosen, deleted=False))

    def delete_namespace(self, namespace: NamespaceName, topics: Sequence[str]) -> Change:
        """Delete a namespace without topics.

        Args:
            namespace: its name.
            topics: its topics, according to the broker.

        Raises:
            NotFound. Conflict: it has topics. PreconditionFailed: it is the broker's own.
        """
        self.policies(namespace)
        if namespace == SYSTEM:
            raise PreconditionFailed(f"namespace {namespace} belongs to the broker itself")
        left = [*topics, *self._tables.partitions.of(namespace)]
        if left:
            raise Conflict(f"namespace {namespace} still has {len(left)} topics, such as {left[0]}; delete them first")
        return Change(
            deletes=(
                namespace_key(namespace),
                *self.permissions.keys_of(namespace),
                *self._tables.topic_policies.keys_of(namespace),
            ),
            depends=frozenset({tenant_key(namespace.tenant)}),
            namespaces=(str(namespace),),
        )

    def set_replication(self, namespace: NamespaceName, clusters: Sequence[str]) -> Change:
        """Say where a namespace's messages go.

        Raises:
            NotFound. PreconditionFailed: an empty list. Forbidden: a cluster does not exist or the tenant may not use
                it. BadRequest: it is not among the namespace's allowed clusters. Conflict: peers are mixed.
        """
        if not clusters:
            raise PreconditionFailed(
                f"namespace {namespace} needs a replication cluster; to stop replicating, name only {self.cluster}"
            )
        policies = replace(self.policies(namespace), replication_clusters=list(clusters))
        return self._policy_change(namespace, policies)

    def set_allowed(self, namespace: NamespaceName, clusters: Sequence[str]) -> Change:
        """Set the clusters in which topics of a namespace may exist (PIP-321).

        Raises:
            As `set_replication`; BadRequest if a replication cluster would no longer be allowed.
        """
        if not clusters:
            raise PreconditionFailed(f"namespace {namespace} needs at least one allowed cluster")
        policies = replace(self.policies(namespace), allowed_clusters=list(clusters))
        return self._policy_change(namespace, policies)

    def set_backlog_quota(self, namespace: NamespaceName, kind: BacklogQuotaType, quota: BacklogQuota | None) -> Change:
        """Limit the backlog of consumers; None: no limit of this kind.

        Raises:
            NotFound. PreconditionFailed: as `set_retention`.
        """
        policies = self.policies(namespace)
        quotas = {other: kept for other, kept in policies.backlog_quota_map.items() if other != kind}
        if quota is not None:
            quotas[kind] = quota
        return self._policy_change(namespace, replace(policies, backlog_quota_map=quotas))

    def change_policies(self, namespace: NamespaceName, **fields: object) -> Change:
        """Set fields of the policies, whichever; the rules between fields are checked. Raises as the rules; NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), **fields))

    def _policy_change(self, namespace: NamespaceName, policies: Policies) -> Change:
        policies = replace(
            policies,
            replication_clusters=sorted(set(policies.replication_clusters)),
            allowed_clusters=sorted(set(policies.allowed_clusters)),
        )
        check_clusters(namespace, policies, self.tenant(namespace.tenant), self._tables.clusters)
        check_policies(policies)
        named = {*policies.replication_clusters, *policies.allowed_clusters}
        return Change(
            puts={namespace_key(namespace): msgspec.json.encode(policies)},
            depends=frozenset(cluster_key(name) for name in named) | {tenant_key(namespace.tenant)},
            namespaces=(str(namespace),),
        )

    # ------------------------------------------------------------------------------------------------ topic policies

    def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """The own policies of a topic, or of the partitioned topic that it belongs to."""
        return self._tables.topic_policies.of(topic)

    def set_topic_policies(self, topic: TopicName, policies: TopicPolicies) -> Change:
        """Set what a topic has of its own.

        Raises:
            NotFound: its namespace. PreconditionFailed: a value is impossible. Of clusters as `set_replication`.
        """
        namespace = topic.namespace_name
        shared = self.policies(namespace)
        check_topic_policies(policies, shared)
        depends = {namespace_key(namespace)}
        if policies.replication_clusters is not None:
            clusters = sorted(set(policies.replication_clusters))
            policies = replace(policies, replication_clusters=clusters)
            check_clusters(
                namespace,
                replace(shared, replication_clusters=clusters),
                self.tenant(namespace.tenant),
                self._tables.clusters,
            )
            depends |= {tenant_key(namespace.tenant), *map(cluster_key, clusters)}
        return self._tables.topic_policies.change(topic, policies).merged(Change(depends=frozenset(depends)))

    def change_topic_policies(self, topic: TopicName, **fields: object) -> Change:
        """Set fields of what a topic has of its own, whichever; None takes one back. Raises as `set_topic_policies`."""
        return self.set_topic_policies(topic, replace(self.topic_policies(topic), **fields))

    def topic_deleted(self, topic: TopicName, shared: Callable[[str], bool]) -> Change:
        """The change that removes a deleted topic's own policies and permissions, as in Pulsar.

        Args:
            topic: the topic; for a partition the change is empty, because its policies belong to the partitioned topic.
            shared: whether other clusters have the document of a key too. Such documents stay, because a topic is
                deleted in this cluster only.
        """
        if topic.partition >= 0:
            return Change()
        policies = topic_policies_key(topic)
        known = (policies,) if self.document(policies) is not None else ()
        keys = tuple(key for key in (*known, *self.permissions.keys_of_topic(topic)) if not shared(key))
        return Change(deletes=keys, topics=(str(topic),) if keys else ())

    # -------------------------------------------------------------------------------------------- partitioned topics

    def partitions(self, topic: TopicName) -> int | None:
        """The number of partitions of a partitioned topic; None for any other name."""
        return self._tables.partitions.count(topic)

    def comes_when_opened(self, topic: TopicName, otherwise: bool) -> bool:
        """Whether a topic is created when a client opens it: a partition if its number is below that of its topic's
        partitions, any other name as `creates_topics` says.
        """
        if topic.partition >= 0:
            return topic.partition < (self.partitions(topic.base) or 0)
        return self.creates_topics(topic.namespace_name, otherwise)

    def partitioned_topics(self, namespace: NamespaceName) -> list[str]:
        """Names of the partitioned topics of a namespace, sorted, both domains."""
        return self._tables.partitions.of(namespace)

    def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        """Properties of a partitioned topic. Raises NotFound."""
        return self._tables.partitions.properties(topic)

    def create_partitioned(self, topic: TopicName, partitions: int, properties: Mapping[str, str]) -> Change:
        """Metadata of a new partitioned topic; merge it with what creates its partitions.

        Raises:
            NotFound: its namespace. Conflict, NotAcceptable, PreconditionFailed: see `Partitions.create`.
        """
        self.policies(topic.namespace_name)
        change = self._tables.partitions.create(topic, partitions, properties)
        return change.merged(Change(depends=frozenset({namespace_key(topic.namespace_name)})))

    def update_partitioned(self, topic: TopicName, partitions: int) -> Change:
        """More partitions. Raises as `Partitions.grow`."""
        return self._tables.partitions.grow(topic, partitions)

    def describe_partitioned(self, topic: TopicName, puts: Mapping[str, str], delete: str | None) -> Change:
        """Set some properties of a partitioned topic, and forget one. Raises NotFound, BadRequest."""
        return self._tables.partitions.describe(topic, puts, delete)

    def delete_partitioned(self, topic: TopicName) -> Change:
        """The topic is no longer partitioned metadata; merge it with what deletes its partitions. Raises NotFound."""
        return self._tables.partitions.remove(topic)

    # ------------------------------------------------------------------------------------- what holds for a topic

    def replication_clusters(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Clusters that the namespace's messages go to, this one left out; empty when there is no such namespace."""
        policies = self._tables.namespaces.get(namespace)
        names = policies.replication_clusters if policies else ()
        return tuple(name for name in names if name != self.cluster)

    def serves(self, namespace: NamespaceName) -> bool:
        """Whether topics of this namespace may exist here: neither clients nor links create others (PIP-321)."""
        policies = self._tables.namespaces.get(namespace)
        return policies is not None and self.cluster in (policies.allowed_clusters or policies.replication_clusters)

    def topic_replication_clusters(self, topic: TopicName) -> tuple[str, ...]:
        """Clusters that a topic's messages go to, this one left out: its own list before its namespace's."""
        own = self._tables.topic_policies.of(topic).replication_clusters
        if own is None:
            return self.replication_clusters(topic.namespace_name)
        return tuple(name for name in own if name != self.cluster)

    def creates_topics(self, namespace: NamespaceName, otherwise: bool) -> bool:
        """Whether topics are created when clients open them: as the namespace says, or else the broker's setting."""
        own = self._tables.namespaces.get(namespace, NO_NAMESPACE).auto_topic_creation
        return otherwise if own is None else own.allow

    def new_partitions(self, namespace: NamespaceName) -> int:
        """The number of partitions of a topic that is created when a client asks for it; 0: it is not partitioned."""
        own = self._tables.namespaces.get(namespace, NO_NAMESPACE).auto_topic_creation
        return (own.partitions or 0) if own is not None and own.allow and own.kind == "partitioned" else 0

    def own_policies(self, namespace: NamespaceName) -> Policies:
        """The policies that a namespace has itself; none if it does not exist."""
        return self._tables.namespaces.get(namespace, NO_NAMESPACE)

    def shared_policies(self, namespace: NamespaceName) -> Policies:
        """The effective policies of a namespace: its own, and the broker's defaults for the others.

        The same object is returned as long as its policies are unchanged. A namespace that does not exist has no
        policies.
        """
        own = self._tables.namespaces.get(namespace, NO_NAMESPACE)
        if self.defaults is NO_NAMESPACE or namespace == SYSTEM:
            return own
        known = self._filled.get(namespace)
        if known is None or known[0] is not own:
            if len(self._filled) > len(self._tables.namespaces):
                self._filled.clear()  # of namespaces that were deleted
            known = self._filled[namespace] = (own, filled(own, self.defaults))
        return known[1]

    def retention(self, topic: TopicName) -> RetentionPolicies:
        """The retention of acknowledged messages; Pulsar's default, none at all, if no policy is set."""
        own = self._tables.topic_policies.of(topic).retention_policies
        return own or self.shared_policies(topic.namespace_name).retention_policies or NO_RETENTION

    def message_ttl_s(self, topic: TopicName) -> int:
        """The time in seconds after which messages expire; 0: never."""
        own = self._tables.topic_policies.of(topic).message_ttl_in_seconds
        return (self.shared_policies(topic.namespace_name).message_ttl_in_seconds or 0) if own is None else own

    def compaction_threshold(self, topic: TopicName) -> int:
        """The number of new bytes after which a topic is compacted; 0: never automatically."""
        own = self._tables.topic_policies.of(topic).compaction_threshold
        return (self.shared_policies(topic.namespace_name).compaction_threshold or 0) if own is None else own

    def compaction_delete_retention_s(self, topic: TopicName) -> int:
        """The time in seconds for which deletions stay in the compacted topic; -1: for ever."""
        own = self._tables.topic_policies.of(topic).compaction_delete_retention_seconds
        if own is None:
            own = self.shared_policies(topic.namespace_name).compaction_delete_retention_seconds
        return COMPACTION_DELETE_RETENTION_S if own is None else own

    def policy_source(self, policy: str, topic: TopicName) -> str:
        """The name of a policy, and whether the topic, its namespace or the broker sets what holds for a topic: for refusals."""
        own = self._tables.topic_policies.of(topic)
        return BY_NAME[policy].source(own, self.own_policies(topic.namespace_name))

    def backlog_quotas(self, topic: TopicName) -> Mapping[BacklogQuotaType, BacklogQuota]:
        """The backlog quotas by kind: the topic's own before its namespace's; empty: no limit."""
        own = self._tables.topic_policies.of(topic).backlog_quota_map
        shared = self.shared_policies(topic.namespace_name).backlog_quota_map
        return shared | own if own else shared

    def subscription_mode(self, namespace: NamespaceName) -> SubscriptionMode | None:
        """The mode of replicated subscriptions; None: the broker's default."""
        policies = self._tables.namespaces.get(namespace)
        return policies.subscription_mode if policies else None

    def replicate_subscription_state(self, topic: TopicName) -> bool | None:
        """Whether every durable subscription of a topic is replicated; None: no policy is set."""
        own = self._tables.topic_policies.of(topic).replicate_subscription_state
        if own is not None:
            return own
        policies = self._tables.namespaces.get(topic.namespace_name)
        return policies.replicate_subscription_state if policies else None

    def replication_start(self, namespace: NamespaceName) -> ReplicationStart:
        """The start position of a new link."""
        policies = self._tables.namespaces.get(namespace)
        return policies.replication_start if policies else "earliest"

    def deduplication(self, topic: TopicName) -> tuple[bool | None, int | None]:
        """Whether to deduplicate what is published to a topic, and the seconds between snapshots; None: the broker's default."""
        of_topic, of_namespace = (
            self._tables.topic_policies.of(topic),
            self._tables.namespaces.get(topic.namespace_name, Policies()),
        )
        enabled, every = of_topic.deduplication_enabled, of_topic.deduplication_snapshot_interval_seconds
        return (
            of_namespace.deduplication_enabled if enabled is None else enabled,
            of_namespace.deduplication_snapshot_interval_seconds if every is None else every,
        )

    def schema_rules(self, topic: TopicName) -> tuple[SchemaStrategy, bool, bool]:
        """The strategy of a topic's schemas (UNDEFINED: none is set), whether producers may register new ones, and
        whether producers must have one.
        """
        own, policies = self._tables.topic_policies.of(topic), self.shared_policies(topic.namespace_name)
        allowed, enforced = policies.is_allow_auto_update_schema, own.schema_validation_enforced
        return (
            own.schema_compatibility_strategy or policies.schema_compatibility_strategy,
            True if allowed is None else allowed,
            policies.schema_validation_enforced if enforced is None else enforced,
        )

    def schema_update_over_links(self, topic: TopicName) -> bool:
        """Whether links may register new schemas of a topic: as its namespace says, else as producers may (PIP-433)."""
        policies = self.shared_policies(topic.namespace_name)
        over_links, by_producers = (
            policies.is_allow_auto_update_schema_with_replicator,
            policies.is_allow_auto_update_schema,
        )
        return over_links if over_links is not None else by_producers is not False

    def schema_replication(self, topic: TopicName) -> SchemaReplication:
        """The handling of schemas that arrive over links."""
        own = self._tables.topic_policies.of(topic).schema_replication
        return own or self.shared_policies(topic.namespace_name).schema_replication or "block"

    def idempotency(self, topic: TopicName) -> IdempotencyPolicy | None:
        """The idempotency keys of a topic, its own before its namespace's; None: it has none."""
        policy = self._tables.topic_policies.of(topic).idempotency
        if policy is None:
            policies = self._tables.namespaces.get(topic.namespace_name)
            policy = policies.idempotency if policies else None
        return policy if policy is not None and policy.enabled else None
