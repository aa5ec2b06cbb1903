"""Namespaces of `Resources`: reading their policies, and validated changes of them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from magnetar.core.names import NamespaceName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.keys import SYSTEM, cluster_key, namespace_key, tenant_key
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import (
    BacklogQuota,
    BacklogQuotaType,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaStrategy,
    SubscriptionMode,
)
from magnetar.metadata.policies.rules import check_clusters
from magnetar.metadata.policies.table import check_policies
from magnetar.metadata.tenancy import Tenancy

NAMESPACES_PER_TENANT_MAX: Final = 10_000
"""A ceiling: all namespaces of a tenant are in one answer."""


class Namespaces(Tenancy):
    """Namespaces and their policies. A policy of its own needs no method here: `change_policies` sets any field."""

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
        if self._namespace_count(namespace.tenant) >= NAMESPACES_PER_TENANT_MAX:
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
        left = [*topics, *self._partitions.of(namespace)]
        if left:
            raise Conflict(f"namespace {namespace} still has {len(left)} topics, such as {left[0]}; delete them first")
        return Change(
            deletes=(
                namespace_key(namespace),
                *self.permissions.keys_of(namespace),
                *self._topic_policies.keys_of(namespace),
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

    def set_schema_auto_update(self, namespace: NamespaceName, allowed: bool, over_links: bool | None = None) -> Change:
        """Say whether producers may bring new schemas; `over_links`: and links (None: what was said of them stays).

        Raises:
            NotFound.
        """
        policies = replace(self.policies(namespace), is_allow_auto_update_schema=allowed)
        if over_links is not None:
            policies = replace(policies, is_allow_auto_update_schema_with_replicator=over_links)
        return self._policy_change(namespace, policies)

    def set_schema_validation(self, namespace: NamespaceName, enforced: bool) -> Change:
        """Refuse producers without a schema on topics that have one, or not. Raises NotFound."""
        policies = replace(self.policies(namespace), schema_validation_enforced=enforced)
        return self._policy_change(namespace, policies)

    def change_policies(self, namespace: NamespaceName, **fields: object) -> Change:
        """Set fields of the policies, whichever; the rules between fields are checked. Raises as the rules; NotFound."""
        return self._policy_change(namespace, replace(self.policies(namespace), **fields))

    def _policy_change(self, namespace: NamespaceName, policies: Policies) -> Change:
        policies = replace(
            policies,
            replication_clusters=sorted(set(policies.replication_clusters)),
            allowed_clusters=sorted(set(policies.allowed_clusters)),
        )
        check_clusters(namespace, policies, self.tenant(namespace.tenant), self._clusters)
        check_policies(policies)
        named = {*policies.replication_clusters, *policies.allowed_clusters}
        return Change(
            puts={namespace_key(namespace): msgspec.json.encode(policies)},
            depends=frozenset(cluster_key(name) for name in named) | {tenant_key(namespace.tenant)},
            namespaces=(str(namespace),),
        )
