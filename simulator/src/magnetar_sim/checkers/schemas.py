"""Schemas: what is stored in a cluster is read there with what it was written with, or no cluster could know that."""

from magnetar.core.names import TopicName
from magnetar.schemas.registry import schema_id
from magnetar.storage.entries import StoredEntry
from magnetar.wire.metadata import parse_metadata
from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Copy, Published, Violation


class ReadAsWritten(Checker):
    """See the module."""

    def stored(self, cluster: Cluster, topic: str, copy: Copy, entry: StoredEntry, published: Published) -> None:
        """The number is one of this cluster's, and names the same schema."""
        if not published.schema or cluster.broker is None or topic not in cluster.broker.topics:
            return
        metadata = parse_metadata(entry.data)
        if not metadata.HasField("schema_version"):
            self._lost(published)
            return
        number = int.from_bytes(metadata.schema_version, "big")
        record = cluster.broker.schemas.registry.at(schema_id(TopicName.parse(topic)), number)
        if record is None or record.data != published.schema:
            here = record.data if record is not None else None
            raise Violation(
                f"{published.uid} was written with {published.schema!r}; in {cluster.name} version {number} is {here!r}"
            )
        self.context.count("read as written" if not entry.origin else "read elsewhere as written")

    def _lost(self, published: Published) -> None:
        """Allowed where its own cluster cannot know: its topic was deleted there, or its disk lost, meanwhile."""
        if not any(
            self.context.happened[what] for what in ("topic deleted", "disk lost", "disk lost, and the clock is behind")
        ):
            raise Violation(f"{published.uid} lost its schema version on its way")
        self.context.count("version left out")
