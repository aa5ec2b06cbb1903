"""One broker's synchronisation of metadata as it stands: what it is made of, what it answers the machine, what people see."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.settings import MetadataConfig
from magnetar.effects.outbox import Note
from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.updates import Update

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker


class SyncView:
    """One broker's part; does nothing while no topic is configured.

    Args:
        broker: whose.
        config: the `[metadata]` table.
        stored: the metadata store's content at start.
        from_file: keys that were made from the configuration file at this start.

    Attributes:
        machine: the state; None when synchronisation is off.
    """

    def __init__(
        self, broker: "Broker", config: MetadataConfig, stored: Mapping[str, bytes], from_file: frozenset[str]
    ) -> None:
        self._broker = broker
        self._outbox = broker.outbox
        self.config = config
        self.machine: Synchroniser | None = None
        self.counters = {"applied": 0, "published": 0, "refused": 0, "snapshots": 0, "documents": 0, "told": 0}
        self.refused: list[str] = []
        self.stuck: dict[str, str] = {}
        self._pending: dict[int, Update] = {}
        self._untold: dict[str, None] = {}
        self._publishing = self._reading = self._applying = self._starting = self._gathering = False
        self._snapshot_due = self._hello = False
        self._snapshot_done: list[Callable[[MagnetarError | None], None]] = []
        self._snapshot_ms = self._said_ms = self._said_digest = self._told_ms = 0
        self._release_at: int | None = None
        self._making: set[str] = set()
        if not config.metadata_sync_topic:
            return
        self.name = TopicName.parse(config.metadata_sync_topic)
        self.text = str(self.name)
        self.machine = Synchroniser(
            broker.cluster, self, ahead_ms_max=config.metadata_clock_ahead_ms, exclude=config.metadata_sync_exclude
        )
        self.machine.load(stored)
        self._from_file = from_file

    # ------------------------------------------------------------------------------------- what the machine asks of us

    def members(self) -> frozenset[str]:
        """The clusters that the topic goes to, and this one."""
        return frozenset({self._broker.cluster, *self._broker.resources.replication_clusters(self.name.namespace_name)})

    def shares(self, namespace: NamespaceName, path: str) -> bool:
        """Whether a document of a namespace is in force in other clusters, too: it is synchronised, and they serve that."""
        if self.machine is None or self.machine.exclusions.path(path):
            return False
        policies = self._broker.resources.shared_policies(namespace)
        return bool({*policies.replication_clusters, *policies.allowed_clusters} - {self._broker.cluster})

    def known(self, cluster: str) -> bool:
        """Whether tenants and namespaces may name it."""
        return cluster in self._broker.resources.clusters() or cluster in self.members()

    def local(self, path: str) -> bytes | None:
        """The document as it is in force."""
        return self._broker.resources.document(path)

    def keeps(self, path: str) -> str:
        """Topics of this cluster that need a document; one that is just being created would be there without it."""
        if path.startswith(CLUSTER_PREFIX):
            return "it is this cluster" if path == CLUSTER_PREFIX + self._broker.cluster else ""
        if path.startswith(NAMESPACE_PREFIX):
            prefix = f"persistent://{path.removeprefix(NAMESPACE_PREFIX)}/"
        elif path.startswith(PARTITIONED_PREFIX):
            prefix = path.removeprefix(PARTITIONED_PREFIX) + "-partition-"
        else:
            return ""
        if path == f"{NAMESPACE_PREFIX}{self.name.namespace_name}":
            return "the topic of synchronisation"
        count = sum(1 for text in self._broker.topics if text.startswith(prefix)) + len(
            self._broker.catalog.coming(prefix)
        )
        return f"{count} topic{'s' if count > 1 else ''}" if count else ""

    def refuses(self, path: str) -> bool:
        """A partitioned topic exists where its namespace is served, unless somebody deleted it here."""
        if not path.startswith(PARTITIONED_PREFIX):
            return False
        name = TopicName.parse(path.removeprefix(PARTITIONED_PREFIX))
        if self._broker.resources.partitions(name) is not None:
            return False
        deleted = self._broker.catalog.deleted
        return not self._broker.resources.serves(name.namespace_name) or bool(deleted.of(name.with_partition(0)))

    # ---------------------------------------------------------------------------------------------------------- looking

    def _note(self, level: str, text: str) -> None:
        self._outbox.put(Note(level, text))

    def describe(self) -> dict[str, Any]:
        """What `GET /geo/v1/metadata` shows."""
        machine = self.machine
        if machine is None:
            return {"enabled": False}
        now_ms = self._outbox.now_ms
        others = sorted(self.members() - {self._broker.cluster})
        return {
            "enabled": True,
            "topic": self.text,
            "digest": f"{machine.digest:016x}",
            "documents": machine.count,
            "deletions": machine.dead,
            "exclude": list(machine.exclusions.patterns),
            "clusters": {name: self._peer(name, now_ms) for name in others},
            "waiting": {
                path: max(0, max(stamp.time_us for stamp in record.stamps()) // 1000 - now_ms)
                for path, record in sorted(machine.ahead.items())
            },
            "kept": machine.kept(),
            "hidden": machine.hidden(),
            "stuck": dict(self.stuck),
            "refused": list(self.refused),
            "counters": dict(self.counters),
        }

    def _peer(self, name: str, now_ms: int) -> dict[str, Any]:
        assert self.machine is not None
        peer = self.machine.peers.get(name)
        if peer is None:
            return {"heard_ms": None, "agrees": None}
        return {
            "heard_ms": peer.received_ms,
            "digest": f"{peer.header.digest:016x}",
            "documents": peer.header.documents,
            "agrees": peer.header.digest == self.machine.digest,
            "ahead": dict(peer.header.ahead),
            "exclude": list(peer.header.exclude),
        }
