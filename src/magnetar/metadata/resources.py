"""Clusters, tenants, namespaces and partitioned topics of one cluster, in memory, over the metadata store's keys.

The order of a change, which makes it safe without a lock:

    change = resources.set_replication(namespace, [...])    validated against the state; nothing has happened
    resources.begin(change)                                 refused while anything that it touches is in flight
    ... stored durably ...
    resources.apply(change)    or    resources.abort(change)

`begin` is what makes validation hold until the store answered: between two changes of one key, or of a key and one that
its validation relied on, the second is refused (409) and can be repeated.

Policies never delete data: a cluster taken out of a namespace stops receiving, what it has stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from magnetar.core.config import CLUSTERS_MAX, Config
from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName, TopicName, check_cluster, check_tenant
from magnetar.metadata.bootstrap import bootstrap
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.idempotency import IdempotencyPolicy
from magnetar.metadata.keys import (
    CLUSTER_PREFIX,
    NAMESPACE_PREFIX,
    SYSTEM,
    TENANT_PREFIX,
    cluster_key,
    namespace_key,
    tenant_key,
)
from magnetar.metadata.partitions import Partitions
from magnetar.metadata.policies import (
    BacklogQuota,
    BacklogQuotaType,
    ClusterData,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaStrategy,
    SubscriptionMode,
    TenantInfo,
)
from magnetar.metadata.rules import check_clusters, check_retention
from magnetar.metadata.topicpolicies import TopicPolicies, TopicPolicyTable

TENANTS_MAX: Final = 10_000
"""A ceiling: all tenants are in memory and in one answer of `GET /tenants`."""

NAMESPACES_PER_TENANT_MAX: Final = 10_000
"""A ceiling: all namespaces of a tenant are in one answer."""

NO_RETENTION: Final = RetentionPolicies()

_T = TypeVar("_T", ClusterData, TenantInfo, Policies)


class Resources:
    """What administration manages in one cluster.

    Args:
        cluster: the name of this cluster; may be left to `first_start`.
    """

    def __init__(self, cluster: str = "") -> None:
        self.cluster = cluster
        self._clusters: dict[str, ClusterData] = {}
        self._tenants: dict[str, TenantInfo] = {}
        self._namespaces: dict[NamespaceName, Policies] = {}
        self._partitions = Partitions()
        self._topic_policies = TopicPolicyTable()
        self._in_flight: list[Change] = []

    # ------------------------------------------------------------------------------------------------ load and apply

    @classmethod
    def load(cls, entries: Mapping[str, bytes], cluster: str = "") -> "Resources":
        """What the store holds; keys of other parts are passed over.

        Raises:
            StorageError: a value is damaged; names its key.
        """
        resources = cls(cluster)
        for key, value in entries.items():
            resources._put(key, value)
        return resources

    def first_start(self, config: Config, cluster: str, uuid: str) -> Change:
        """What has to be stored and applied at each start before anybody is served; see `bootstrap`."""
        self.cluster = cluster
        return bootstrap(self, config, uuid)

    def begin(self, change: Change) -> None:
        """Announce a change that is now being stored; `apply` or `abort` must follow.

        Raises:
            Conflict: it touches something that another change in flight touches.
        """
        for other in self._in_flight:
            clash = (change.keys & (other.keys | other.depends)) | (change.depends & other.keys)
            if clash:
                raise Conflict(f"{min(clash)} is being changed by another request; try again")
        self._in_flight.append(change)

    def abort(self, change: Change) -> None:
        """The store refused a change: it never was."""
        self._in_flight = [other for other in self._in_flight if other is not change]

    def apply(self, change: Change) -> None:
        """A change is durable: from now on it is the state. `begin` may have been left out at start only."""
        self.abort(change)
        for key in change.deletes:
            self._delete(key)
        for key, value in change.puts.items():
            self._put(key, value)

    def _put(self, key: str, value: bytes) -> None:
        if key.startswith(CLUSTER_PREFIX):
            self._clusters[key.removeprefix(CLUSTER_PREFIX)] = _decode(key, value, ClusterData)
        elif key.startswith(TENANT_PREFIX):
            self._tenants[key.removeprefix(TENANT_PREFIX)] = _decode(key, value, TenantInfo)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            self._namespaces[NamespaceName(tenant, local)] = _decode(key, value, Policies)
        elif not self._topic_policies.put(key, value):
            self._partitions.put(key, value)

    def _delete(self, key: str) -> None:
        if key.startswith(CLUSTER_PREFIX):
            self._clusters.pop(key.removeprefix(CLUSTER_PREFIX), None)
        elif key.startswith(TENANT_PREFIX):
            self._tenants.pop(key.removeprefix(TENANT_PREFIX), None)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            self._namespaces.pop(NamespaceName(tenant, local), None)
        else:
            self._partitions.delete(key)
            self._topic_policies.delete(key)

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
            NameNotValid, Conflict, PreconditionFailed: too many, or unknown peers.
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
            NotFound, PreconditionFailed: unknown peers.
        """
        return self._cluster_change(name, replace(data, uuid=self.cluster_data(name).uuid))

    def set_peers(self, name: str, peers: Iterable[str]) -> Change:
        """Replace the names of the clusters that may not be mixed with this one.

        Raises:
            NotFound, PreconditionFailed: unknown peers, or the cluster itself.
        """
        return self._cluster_change(name, replace(self.cluster_data(name), peer_cluster_names=sorted(set(peers))))

    def _cluster_change(self, name: str, data: ClusterData) -> Change:
        for peer in data.peer_cluster_names:
            if peer == name:
                raise PreconditionFailed(f"cluster {name} cannot be its own peer")
            if peer not in self._clusters:
                raise PreconditionFailed(f"peer cluster {peer!a} does not exist")
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

    # ---------------------------------------------------------------------------------------------------- namespaces

    def has_namespace(self, namespace: NamespaceName) -> bool:
        """Whether it exists."""
        return namespace in self._namespaces

    def namespaces(self, tenant: str) -> list[str]:
        """`tenant/namespace` names of a tenant, sorted.

        Raises:
            NotFound: no such tenant.
        """
        self.tenant(tenant)
        return [str(namespace) for namespace in self._namespaces_of(tenant)]

    def all_namespaces(self) -> list[NamespaceName]:
        """Every namespace, sorted."""
        return sorted(self._namespaces)

    def _namespaces_of(self, tenant: str) -> list[NamespaceName]:
        return sorted(namespace for namespace in self._namespaces if namespace.tenant == tenant)

    def policies(self, namespace: NamespaceName) -> Policies:
        """The policies of a namespace as they are stored.

        Raises:
            NotFound: no such namespace.
        """
        try:
            return self._namespaces[namespace]
        except KeyError:
            raise NotFound(f"namespace {namespace} does not exist") from None

    def create_namespace(self, namespace: NamespaceName, policies: Policies) -> Change:
        """Create a namespace; without replication clusters it belongs to this cluster alone.

        Raises:
            NotFound: its tenant. Conflict: it exists. As `set_replication` for the clusters it names.
        """
        self.tenant(namespace.tenant)
        if namespace in self._namespaces:
            raise Conflict(f"namespace {namespace} exists already")
        if len(self._namespaces_of(namespace.tenant)) >= NAMESPACES_PER_TENANT_MAX:
            raise PreconditionFailed(
                f"tenant {namespace.tenant} has {NAMESPACES_PER_TENANT_MAX} namespaces, the most allowed"
            )
        chosen = policies.replication_clusters or policies.allowed_clusters or [self.cluster]
        return self._policy_change(namespace, replace(policies, replication_clusters=chosen, deleted=False))

    def delete_namespace(self, namespace: NamespaceName, topics: Sequence[str]) -> Change:
        """Delete a namespace without topics.

        Args:
            namespace: which.
            topics: what the broker says is in it.

        Raises:
            NotFound. Conflict: it has topics. PreconditionFailed: it is the broker's own.
        """
        self.policies(namespace)
        if namespace == SYSTEM:
            raise PreconditionFailed(f"namespace {namespace} belongs to the broker itself")
        left = [*topics, *self.partitioned_topics(namespace)]
        if left:
            raise Conflict(f"namespace {namespace} still has {len(left)} topics, such as {left[0]}; delete them first")
        return Change(
            deletes=(namespace_key(namespace),),
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
        """Say where topics of a namespace may exist (PIP-321).

        Raises:
            As `set_replication`; BadRequest when a replication cluster would not be allowed any more.
        """
        if not clusters:
            raise PreconditionFailed(f"namespace {namespace} needs at least one allowed cluster")
        policies = replace(self.policies(namespace), allowed_clusters=list(clusters))
        return self._policy_change(namespace, policies)

    def set_message_ttl(self, namespace: NamespaceName, seconds: int | None) -> Change:
        """Let messages expire after so many seconds; 0 or None: never. Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), message_ttl_in_seconds=seconds))

    def set_retention(self, namespace: NamespaceName, retention: RetentionPolicies | None) -> Change:
        """Keep acknowledged messages for a while; None: the broker's default.

        Raises:
            NotFound. PreconditionFailed: one half is 0, a number is below -1, or it is below the backlog quota.
        """
        return self._policy_change(namespace, replace(self.policies(namespace), retention_policies=retention))

    def set_backlog_quota(self, namespace: NamespaceName, kind: BacklogQuotaType, quota: BacklogQuota | None) -> Change:
        """Limit how far consumers may fall behind; None: no limit of this kind.

        Raises:
            NotFound. PreconditionFailed: as `set_retention`.
        """
        policies = self.policies(namespace)
        quotas = {other: kept for other, kept in policies.backlog_quota_map.items() if other != kind}
        if quota is not None:
            quotas[kind] = quota
        return self._policy_change(namespace, replace(policies, backlog_quota_map=quotas))

    def set_deduplication(self, namespace: NamespaceName, enabled: bool | None) -> Change:
        """Deduplicate what is published, or not; None: as the broker's default. Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), deduplication_enabled=enabled))

    def set_deduplication_interval(self, namespace: NamespaceName, seconds: int | None) -> Change:
        """Seconds between two snapshots of deduplication numbers; None: the broker's default. Raises NotFound."""
        policies = replace(self.policies(namespace), deduplication_snapshot_interval_seconds=seconds)
        return self._policy_change(namespace, policies)

    def set_idempotency(self, namespace: NamespaceName, policy: IdempotencyPolicy | None) -> Change:
        """Name the property that is the idempotency key; None: no keys. Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), idempotency=policy))

    def set_replication_start(self, namespace: NamespaceName, start: ReplicationStart) -> Change:
        """Say whether a new link begins with what is retained or with what comes. Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), replication_start=start))

    def set_replicate_subscription_state(self, namespace: NamespaceName, replicate: bool | None) -> Change:
        """Let every durable subscription be replicated, or as clients say (false, None). Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), replicate_subscription_state=replicate))

    def set_subscription_mode(self, namespace: NamespaceName, mode: SubscriptionMode | None) -> Change:
        """Say how replicated subscriptions follow; None: the broker's default. Raises NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), subscription_mode=mode))

    def set_schema_strategy(self, namespace: NamespaceName, strategy: SchemaStrategy) -> Change:
        """Say which schemas may stand beside which; UNDEFINED: the broker's default. Raises NotFound."""
        policies = replace(self.policies(namespace), schema_compatibility_strategy=strategy)
        return self._policy_change(namespace, policies)

    def set_schema_auto_update(self, namespace: NamespaceName, allowed: bool) -> Change:
        """Say whether producers may bring new schemas. Raises NotFound."""
        policies = replace(self.policies(namespace), is_allow_auto_update_schema=allowed)
        return self._policy_change(namespace, policies)

    def set_schema_validation(self, namespace: NamespaceName, enforced: bool) -> Change:
        """Refuse producers without a schema on topics that have one, or not. Raises NotFound."""
        policies = replace(self.policies(namespace), schema_validation_enforced=enforced)
        return self._policy_change(namespace, policies)

    def _policy_change(self, namespace: NamespaceName, policies: Policies) -> Change:
        policies = replace(
            policies,
            replication_clusters=sorted(set(policies.replication_clusters)),
            allowed_clusters=sorted(set(policies.allowed_clusters)),
        )
        check_clusters(namespace, policies, self.tenant(namespace.tenant), self._clusters)
        check_retention(policies)
        named = {*policies.replication_clusters, *policies.allowed_clusters}
        return Change(
            puts={namespace_key(namespace): msgspec.json.encode(policies)},
            depends=frozenset(cluster_key(name) for name in named) | {tenant_key(namespace.tenant)},
            namespaces=(str(namespace),),
        )

    # ---------------------------------------------------------------------------------- what the broker asks all day

    def replication_clusters(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Clusters that the namespace's messages go to, this one left out; empty when there is no such namespace."""
        policies = self._namespaces.get(namespace)
        names = policies.replication_clusters if policies else ()
        return tuple(name for name in names if name != self.cluster)

    def serves(self, namespace: NamespaceName) -> bool:
        """Whether topics of this namespace may exist here: a link's destination refuses others (`blocked: policy`)."""
        policies = self._namespaces.get(namespace)
        return policies is not None and self.cluster in (policies.allowed_clusters or policies.replication_clusters)

    def retention(self, namespace: NamespaceName) -> RetentionPolicies:
        """How long acknowledged messages stay; Pulsar's default, not at all, unless the namespace says otherwise."""
        policies = self._namespaces.get(namespace)
        return (policies.retention_policies if policies else None) or NO_RETENTION

    def message_ttl_s(self, namespace: NamespaceName) -> int:
        """After how many seconds messages expire; 0: never."""
        policies = self._namespaces.get(namespace)
        return (policies.message_ttl_in_seconds if policies else None) or 0

    def backlog_quotas(self, namespace: NamespaceName) -> Mapping[BacklogQuotaType, BacklogQuota]:
        """How far subscriptions may lag; empty: as far as they like."""
        policies = self._namespaces.get(namespace)
        return policies.backlog_quota_map if policies else {}

    def subscription_mode(self, namespace: NamespaceName) -> SubscriptionMode | None:
        """How replicated subscriptions follow; None: the broker's default."""
        policies = self._namespaces.get(namespace)
        return policies.subscription_mode if policies else None

    def replicate_subscription_state(self, topic: TopicName) -> bool | None:
        """Whether every durable subscription of a topic is replicated; None: nobody said so."""
        own = self._topic_policies.of(topic).replicate_subscription_state
        if own is not None:
            return own
        policies = self._namespaces.get(topic.namespace_name)
        return policies.replicate_subscription_state if policies else None

    def replication_start(self, namespace: NamespaceName) -> ReplicationStart:
        """Where a new link begins."""
        policies = self._namespaces.get(namespace)
        return policies.replication_start if policies else "earliest"

    def deduplication(self, topic: TopicName) -> tuple[bool | None, int | None]:
        """Whether to deduplicate what is published to a topic, and the seconds between snapshots; None: the broker's default."""
        of_topic, of_namespace = self._topic_policies.of(topic), self._namespaces.get(topic.namespace_name, Policies())
        enabled, every = of_topic.deduplication_enabled, of_topic.deduplication_snapshot_interval_seconds
        return (
            of_namespace.deduplication_enabled if enabled is None else enabled,
            of_namespace.deduplication_snapshot_interval_seconds if every is None else every,
        )

    def schema_rules(self, topic: TopicName) -> tuple[SchemaStrategy, bool, bool]:
        """The strategy of a topic's schemas (UNDEFINED: nobody said), whether producers may bring new ones, and must have one."""
        policies = self._namespaces.get(topic.namespace_name, Policies())
        allowed = policies.is_allow_auto_update_schema
        return (
            policies.schema_compatibility_strategy,
            True if allowed is None else allowed,
            policies.schema_validation_enforced,
        )

    def idempotency(self, topic: TopicName) -> IdempotencyPolicy | None:
        """The idempotency keys of a topic, its own before its namespace's; None: it has none."""
        policy = self._topic_policies.of(topic).idempotency
        if policy is None:
            policies = self._namespaces.get(topic.namespace_name)
            policy = policies.idempotency if policies else None
        return policy if policy is not None and policy.enabled else None

    # ------------------------------------------------------------------------------------------------ topic policies

    def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """What a topic (or the partitioned topic that it belongs to) has of its own."""
        return self._topic_policies.of(topic)

    def set_topic_policies(self, topic: TopicName, policies: TopicPolicies) -> Change:
        """Set what a topic has of its own. Raises NotFound: its namespace."""
        self.policies(topic.namespace_name)
        change = self._topic_policies.change(topic, policies)
        return change.merged(Change(depends=frozenset({namespace_key(topic.namespace_name)})))

    # -------------------------------------------------------------------------------------------- partitioned topics

    def partitions(self, topic: TopicName) -> int | None:
        """How many partitions a partitioned topic has; None for any other name."""
        return self._partitions.count(topic)

    def partitioned_topics(self, namespace: NamespaceName) -> list[str]:
        """Names of the partitioned topics of a namespace, sorted, both domains."""
        return self._partitions.of(namespace)

    def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        """Properties of a partitioned topic. Raises NotFound."""
        return self._partitions.properties(topic)

    def create_partitioned(self, topic: TopicName, partitions: int, properties: Mapping[str, str]) -> Change:
        """Metadata of a new partitioned topic; merge it with what creates its partitions.

        Raises:
            NotFound: its namespace. Conflict, NotAcceptable, PreconditionFailed: see `Partitions.create`.
        """
        self.policies(topic.namespace_name)
        change = self._partitions.create(topic, partitions, properties)
        return change.merged(Change(depends=frozenset({namespace_key(topic.namespace_name)})))

    def update_partitioned(self, topic: TopicName, partitions: int) -> Change:
        """More partitions. Raises NotFound, Unprocessable (not more), NotAcceptable (too many)."""
        return self._partitions.grow(topic, partitions)

    def delete_partitioned(self, topic: TopicName) -> Change:
        """The topic is no longer partitioned metadata; merge it with what deletes its partitions. Raises NotFound."""
        return self._partitions.remove(topic)


def _decode(key: str, value: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"the stored value of {key} is damaged: {error}") from error
