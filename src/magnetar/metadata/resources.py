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

from collections.abc import Mapping

from magnetar.core.config import Config
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.bootstrap import bootstrap
from magnetar.metadata.change import Change
from magnetar.metadata.keys import namespace_key
from magnetar.metadata.namespaces import NAMESPACES_PER_TENANT_MAX, Namespaces
from magnetar.metadata.questions import NO_RETENTION, Questions
from magnetar.metadata.tenancy import TENANTS_MAX
from magnetar.metadata.topicpolicies import TopicPolicies

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
