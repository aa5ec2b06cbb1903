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

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from magnetar.core.config import Config
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.bootstrap import bootstrap
from magnetar.metadata.change import Change
from magnetar.metadata.keys import cluster_key, namespace_key, tenant_key
from magnetar.metadata.namespaces import NAMESPACES_PER_TENANT_MAX, Namespaces
from magnetar.metadata.policies.rules import check_clusters
from magnetar.metadata.policies.table import check_topic_policies
from magnetar.metadata.policies.topic import TopicPolicies, topic_policies_key
from magnetar.metadata.questions import NO_RETENTION, Questions
from magnetar.metadata.tenancy import TENANTS_MAX

__all__ = ["NAMESPACES_PER_TENANT_MAX", "NO_RETENTION", "TENANTS_MAX", "Resources"]


class Resources(Namespaces, Questions):
    """What administration manages in one cluster.

    Args:
        cluster: the name of this cluster; may be left to `first_start`.
    """

    def first_start(self, config: Config, cluster: str, uuid: str) -> Change:
        """What has to be stored and applied at each start before anybody is served; see `bootstrap`."""
        self.cluster = cluster
        return bootstrap(self, config, uuid)

    # ------------------------------------------------------------------------------------------------ topic policies

    def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """What a topic (or the partitioned topic that it belongs to) has of its own."""
        return self._topic_policies.of(topic)

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
                namespace, replace(shared, replication_clusters=clusters), self.tenant(namespace.tenant), self._clusters
            )
            depends |= {tenant_key(namespace.tenant), *map(cluster_key, clusters)}
        return self._topic_policies.change(topic, policies).merged(Change(depends=frozenset(depends)))

    def change_topic_policies(self, topic: TopicName, **fields: object) -> Change:
        """Set fields of what a topic has of its own, whichever; None takes one back. Raises as `set_topic_policies`."""
        return self.set_topic_policies(topic, replace(self.topic_policies(topic), **fields))

    def topic_deleted(self, topic: TopicName, shared: Callable[[str], bool]) -> Change:
        """What goes with a topic, as in Pulsar: the policies and permissions that it has of its own.

        Args:
            topic: which; of a partition nothing goes, for what it has is the partitioned topic's.
            shared: whether other clusters have the document of a key, too. Deleting a topic is this cluster's affair: that
                document stays.
        """
        if topic.partition >= 0:
            return Change()
        policies = topic_policies_key(topic)
        known = (policies,) if self.document(policies) is not None else ()
        keys = tuple(key for key in (*known, *self.permissions.keys_of_topic(topic)) if not shared(key))
        return Change(deletes=keys, topics=(str(topic),) if keys else ())

    # -------------------------------------------------------------------------------------------- partitioned topics

    def partitions(self, topic: TopicName) -> int | None:
        """How many partitions a partitioned topic has; None for any other name."""
        return self._partitions.count(topic)

    def comes_when_opened(self, topic: TopicName, otherwise: bool) -> bool:
        """Whether a topic comes into being when a client opens it: a partition if its topic has so many, any other name as
        `creates_topics` says.
        """
        if topic.partition >= 0:
            return topic.partition < (self.partitions(topic.base) or 0)
        return self.creates_topics(topic.namespace_name, otherwise)

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
        """More partitions. Raises as `Partitions.grow`."""
        return self._partitions.grow(topic, partitions)

    def describe_partitioned(self, topic: TopicName, puts: Mapping[str, str], delete: str | None) -> Change:
        """Set some properties of a partitioned topic, and forget one. Raises NotFound, BadRequest."""
        return self._partitions.describe(topic, puts, delete)

    def delete_partitioned(self, topic: TopicName) -> Change:
        """The topic is no longer partitioned metadata; merge it with what deletes its partitions. Raises NotFound."""
        return self._partitions.remove(topic)
