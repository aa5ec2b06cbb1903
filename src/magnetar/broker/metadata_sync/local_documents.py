"""The documents of this cluster and facts about others, as the machine of synchronisation needs them."""

from collections.abc import Callable, Iterable, Mapping

from magnetar.broker.context import BrokerContext
from magnetar.broker.metadata_sync.ports import SyncCatalog
from magnetar.broker.topics.topic import Topic
from magnetar.core.names import TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX
from magnetar.metadata.policies.topic import TOPIC_POLICIES_PREFIX


class LocalDocuments:
    """One cluster's `SyncContext`.

    Args:
        context: the broker's context.
        topics: the loaded topics, by full name.
        name: the synchronisation topic.
        catalog: returns the creator of topics, which is made after this part.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        name: TopicName,
        catalog: Callable[[], SyncCatalog],
    ) -> None:
        self._cluster = context.cluster
        self._resources = context.resources
        self._topics = topics
        self._name = name
        self._catalog = catalog

    def members(self) -> frozenset[str]:
        """The clusters that the topic goes to, and this one."""
        return frozenset({self._cluster, *self._resources.replication_clusters(self._name.namespace_name)})

    def known(self, cluster: str) -> bool:
        """Whether tenants and namespaces may name it."""
        return cluster in self._resources.clusters() or cluster in self.members()

    def local(self, path: str) -> bytes | None:
        """The document as it is in force."""
        return self._resources.document(path)

    def keeps(self, path: str) -> str:
        """Topics of this cluster that need a document; one that is just being created would be there without it."""
        if path.startswith(CLUSTER_PREFIX):
            return "it is this cluster" if path == CLUSTER_PREFIX + self._cluster else ""
        if path.startswith(NAMESPACE_PREFIX):
            prefix = f"persistent://{path.removeprefix(NAMESPACE_PREFIX)}/"
        elif path.startswith(PARTITIONED_PREFIX):
            prefix = path.removeprefix(PARTITIONED_PREFIX) + "-partition-"
        else:
            return ""
        if path == f"{NAMESPACE_PREFIX}{self._name.namespace_name}":
            return "the topic of synchronisation"
        count = sum(1 for text in self._topics if text.startswith(prefix)) + len(self._catalog().coming(prefix))
        return f"{count} topic{'s' if count > 1 else ''}" if count else ""

    def refuses_document(self, path: str) -> bool:
        """A partitioned topic exists where its namespace is served, unless it was deleted here."""
        if not path.startswith(PARTITIONED_PREFIX):
            return False
        name = TopicName.parse(path.removeprefix(PARTITIONED_PREFIX))
        if self._resources.partitions(name) is not None:
            return False
        deleted = self._catalog().deleted
        return not self._resources.serves(name.namespace_name) or bool(deleted.of(name.with_partition(0)))


def change_of(puts: Mapping[str, bytes], deletes: Iterable[str]) -> Change:
    """A change of the store, with the names of what it concerns."""
    keys = [*puts, *deletes]
    named = (PARTITIONED_PREFIX, TOPIC_POLICIES_PREFIX)
    topics = [key.removeprefix(prefix) for prefix in named for key in keys if key.startswith(prefix)]
    return Change(
        puts=dict(puts),
        deletes=tuple(deletes),
        clusters=tuple(key.removeprefix(CLUSTER_PREFIX) for key in keys if key.startswith(CLUSTER_PREFIX)),
        namespaces=tuple(key.removeprefix(NAMESPACE_PREFIX) for key in keys if key.startswith(NAMESPACE_PREFIX)),
        topics=tuple(topics),
    )
