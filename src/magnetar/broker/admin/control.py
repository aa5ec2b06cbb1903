"""What administration asks of a broker: the seam between the admin REST interface and the broker's machines.

Rules of the seam:

- Reads answer at once, with plain dicts and lists that the caller may keep and change.
- Changes take a last argument `done`. It is called exactly once, on the broker's own thread: with None when the change
  is *durable*, with the error when it did not happen. What can be refused at once is raised instead; then `done` is not
  called.
- Names are full names, already checked by `core.names`. A partition is a topic of its own; a partitioned topic's name
  means all of its partitions where a method says so.
- Errors are `BrokerError` or one of `metadata.errors.Refused`; admin turns either into a status code.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from magnetar.broker.admin.failovers import FailoverControl
from magnetar.broker.admin.messages import MessageControl
from magnetar.broker.admin.metadata import MetadataControl
from magnetar.broker.admin.metrics import MetricControl
from magnetar.broker.admin.schemas import SchemaControl
from magnetar.broker.context import Done, DonePosition
from magnetar.broker.links.states import LinkState, SkipPreview
from magnetar.broker.statistics.stats import Steps
from magnetar.core.ids import Position
from magnetar.metadata.change import Change


class BrokerInfo(NamedTuple):
    """What a broker says about itself; fixed for the life of the process.

    Attributes:
        cluster: its own name.
        uuid: of the cluster's data folder.
        version: of Magnetar.
        service_url: `pulsar://host:port` that clients are told (lookup answers).
        web_url: `http://host:port` of this interface.
        started_ms: wall clock.
        service_url_tls, web_url_tls: the same by TLS, "" without.
        listeners: name -> `service_url` and `service_url_tls` of clients that ask for a listener by name.
        topic_auto_creation: whether topics come into being when clients open them, where a namespace does not say.
        settings: of the broker, by Pulsar's names.
    """

    cluster: str
    uuid: str
    version: str
    service_url: str
    web_url: str
    started_ms: int
    topic_auto_creation: bool = True
    service_url_tls: str = ""
    listeners: Mapping[str, tuple[str, str]] = MappingProxyType({})
    web_url_tls: str = ""
    settings: Mapping[str, str] = MappingProxyType({})


class BrokerControl(FailoverControl, SchemaControl, MetadataControl, MessageControl, MetricControl, Protocol):
    """The broker, as administration sees it."""

    # ------------------------------------------------------------------------------------------------------- reads

    def topics(self, namespace: str) -> list[str]:
        """Full names of all topics of `tenant/namespace`: each partition by itself, both domains, internal ones too.

        Empty for a namespace that does not exist.
        """
        ...

    def topic_names(self, namespace: str) -> Iterator[str]:
        """The same in any order, made as they are taken: for long lists."""
        ...

    def partitions(self, topic: str) -> int | None:
        """How many partitions: None if there is no such topic, 0 for one not partitioned (or that is a partition)."""
        ...

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's topic stats (docs/design/pulsar.md#admin on their keys) of one topic or partition.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def topic_stats_steps(self, topic: str, *, publishers: bool = True, consumers: bool = True) -> Steps:
        """The same in steps, each of some tenths of a millisecond; without producers, without consumers if they are not wanted.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def internal_stats_steps(self, topic: str) -> Steps:
        """The same of `internal_stats`."""
        ...

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's internal stats of one topic or partition.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def subscriptions(self, topic: str) -> list[str]:
        """Subscription names of one topic or partition, without links' and other internal cursors.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def last_message_id(self, topic: str) -> Position:
        """Position of the last message of one topic or partition; NONE when there never was one.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def last_batch_index(self, topic: str) -> int:
        """Where the last message is in the batch that its client made, from 0; -1 when it is in none, or there is no message."""
        ...

    def replicated_topics(self) -> list[str]:
        """Full names of the topics that have replicated subscriptions here, sorted."""
        ...

    def replicated_subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Every replicated subscription of one topic or partition, as plain values (`docs/replicated-subscriptions.md`).

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        ...

    def replication_metrics(self) -> dict[str, Any]:
        """`mode`: the broker's default; `counters`: of the machines of all topics together, since the start."""
        ...

    def refuses_mode(self, namespace: str, mode: str) -> str:
        """Why a namespace's replicated subscriptions cannot follow in a mode; "" when they can."""
        ...

    def set_replicated(self, topic: str, subscription: str, replicated: bool, done: Done) -> None:
        """Let a subscription of one topic or partition follow to other clusters, or no longer.

        Raises:
            NotFound. PreconditionFailed: a policy says that all are replicated, or it is not durable.
        """
        ...

    def broker_stats(self) -> dict[str, Any]:
        """Whole-broker figures: `connections`, `producers`, `consumers`, `topics`, `subscriptions` (counts),
        `msgInCounter`, `bytesInCounter`, `msgOutCounter`, `bytesOutCounter` (totals since the start),
        `pendingPublishBytes`, `cacheSize`, `storageSize` (bytes), `cacheEntries`, `cursorRangesLeftOut` (since the start),
        `unknownTopics` (in the log and not in the metadata store), `lostEntries` (stored once and not in the log),
        `ready` (bool), `state` (one line, such as that the disk is full; "" when all is well).
        """
        ...

    def links(self) -> list[LinkState]:
        """Every outgoing link, by target name; topics by name."""
        ...

    def geo_status(self) -> dict[str, Any]:
        """What `GET /geo/v1/status` adds to cluster, uuid and links: `incoming` (per source: uuid, since, last seen,
        blocked), `gaps`, `deleted` (topics with a deletion mark), `unlinked` (namespace -> clusters that its policy names
        without a link), as plain JSON values.
        """
        ...

    def held(self, origin: str) -> list[dict[str, Any]]:
        """Messages of a cluster that are held here, by topic: `topic`, `partitions` of its partitioned topic (0: none),
        `incarnation` here, `lives` (`incarnation` there, `runs` of origin indexes `[first, end)`, `messages`, `entries`,
        `bytes`), `deleted` (`[incarnation, first, end]` restored once and deleted by retention since). Of another cluster
        only topics that hold something; of this one all.
        """
        ...

    def drain(self) -> dict[str, Any]:
        """What keeps this cluster from being switched off (`broker.admin.draining.DrainState`)."""
        ...

    # ------------------------------------------------------------------------------------------------------- topics

    def create_topic(self, topic: str, partitions: int | None, properties: Mapping[str, str], done: Done) -> None:
        """Create a topic (None) or a partitioned one with all its partitions; also lifts a deletion mark.

        Raises:
            Conflict: it exists, in either form. NotFound: no such namespace.
        """
        ...

    def open_topic(self, topic: str, done: Done) -> None:
        """Get or create a topic, as a client's first use does; done when it exists.

        Answers:
            BrokerError: as clients are told.
        """
        ...

    def adopt_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Give a topic without partitions some; its messages and subscriptions are in the first. Its clients are closed.

        Raises:
            NotFound: no such topic. Conflict: it has partitions. NotAcceptable: the number. PreconditionFailed: something of it
                stands in the way.
        """
        ...

    def was_deleted(self, topic: str) -> bool:
        """Whether a topic was deleted here and nobody here has made it again since; links may have.

        `create_topic` does not refuse such a one that exists: what was there before the deletion may come from then on.
        """
        ...

    def update_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Grow a partitioned topic, or, with as many partitions as it has, bring back those that are missing.

        Raises:
            NotFound: no such partitioned topic. Unprocessable: it would become smaller.
        """
        ...

    def delete_topic(self, topic: str, force: bool, done: Done) -> None:
        """Delete a topic here, or a partitioned topic with all partitions; leaves a mark that refuses links.

        Raises:
            NotFound. PreconditionFailed: producers or consumers are connected; Unprocessable: links send it to other clusters;
                both without `force` only.
        """
        ...

    def unload(self, topic: str, done: Done) -> None:
        """Close producers and consumers (their clients reconnect) and reopen the topic from what is stored."""
        ...

    def truncate(self, topic: str, done: Done) -> None:
        """Acknowledge everything in every subscription and delete closed ledgers that nothing else needs."""
        ...

    def sequence_ids(self, topic: str) -> dict[str, int]:
        """Of each producer name of a topic (or one partition) the highest sequence id that is stored.

        Raises:
            NotFound: no such topic. PreconditionFailed: it has no deduplication.
        """
        ...

    def forget_producer(self, topic: str, producer: str, done: Done) -> None:
        """Forget a producer name's number, after closing its producers (their clients reconnect): it begins anew.

        Raises:
            NotFound: no such topic. PreconditionFailed: it has no deduplication.
        """
        ...

    def compact(self, topic: str) -> None:
        """Begin to compact a topic (or one partition).

        Raises:
            NotFound: no such topic. Conflict: it is being compacted.
        """
        ...

    def compaction_status(self, topic: str) -> dict[str, str]:
        """How the last compaction since the broker's start went: `status` (NOT_RUN, RUNNING, SUCCESS, ERROR), `lastError`.

        Raises:
            NotFound: no such topic.
        """
        ...

    def terminate(self, topic: str, done: DonePosition) -> None:
        """No more publishing; the position of the last message."""
        ...

    # ------------------------------------------------------------------------------------------------ subscriptions

    def create_subscription(
        self,
        topic: str,
        subscription: str,
        position: Position | None,
        replicated: bool,
        properties: Mapping[str, str],
        done: Done,
        *,
        exclusive: bool = False,
        batch_index: int = -1,
    ) -> None:
        """Create a durable subscription of one topic or partition whose first message is the one at or behind
        `position` (None and LATEST: only what comes from now on; EARLIEST: all that is retained). `exclusive` and `batch_index`:
        as of `reset_cursor`.

        Raises:
            NotFound: no such topic. Conflict: it exists. PreconditionFailed: the topic never had such a message.
        """
        ...

    def delete_subscription(self, topic: str, subscription: str, force: bool, done: Done) -> None:
        """Delete a subscription of one topic or partition.

        Raises:
            NotFound. PreconditionFailed: it has consumers, and not `force`.
        """
        ...

    def skip(self, topic: str, subscription: str, entries: int, done: Done) -> None:
        """Acknowledge the next `entries` unacknowledged entries (Pulsar counts a batch as one here, too)."""
        ...

    def skip_all(self, topic: str, subscription: str, done: Done) -> None:
        """Acknowledge everything there is now."""
        ...

    def reset_cursor(
        self,
        topic: str,
        subscription: str,
        target: Position | int,
        exclusive: bool,
        done: Done,
        *,
        batch_index: int = -1,
    ) -> None:
        """Move to a position, or to the first message published at or after a time (int, ms); drops its consumers,
        whose clients reconnect. `batch_index`: to that message of the batch there; -1: to the whole entry. `exclusive`: go
        on *behind* it. Both are ignored for times.

        Raises:
            NotFound: no such topic or subscription. Conflict: the topic never had such a message.
        """
        ...

    def expire(self, topic: str, subscription: str, older_than_s: int, done: Done) -> None:
        """Acknowledge what was published more than so many seconds ago."""
        ...

    # -------------------------------------------------------------------------------------------------------- links

    def link_pause(self, target: str, topic: str | None, done: Done) -> None:
        """Stop sending on a link, or in one of its topics; survives a restart.

        Raises:
            NotFound: no such link, or the topic is not on it. So do the other link methods.
        """
        ...

    def link_resume(self, target: str, topic: str | None, done: Done) -> None:
        """Take a pause back; a blocked topic is tried again at once."""
        ...

    def link_throttle(self, target: str, bytes_per_s: int | None, done: Done) -> None:
        """Limit a link's rate (None: no limit); survives a restart."""
        ...

    def link_skip_preview(self, target: str, topic: str | None, through: Position | None) -> list[SkipPreview]:
        """What `link_skip` with the same arguments would lose, per topic; topics losing nothing are left out."""
        ...

    def link_skip(self, target: str, topic: str | None, through: Position | None, done: Done) -> None:
        """Settle entries without sending them: C moves, S does not.

        Args:
            target: the link's target cluster.
            topic: one topic, or None for every topic of the link.
            through: the last position to skip; LATEST: everything there is now; None: the entry that blocks the topic
                (topics that are not blocked lose nothing). A position needs a topic.
            done: see the module.

        Raises:
            PreconditionFailed: nothing to skip.
        """
        ...

    def delete_orphan_cursor(self, target: str, topic: str, done: Done) -> None:
        """Give up the data that a cursor without link or policy still holds.

        Raises:
            PreconditionFailed: the cursor is in use.
        """
        ...

    # ---------------------------------------------------------------------------------------------------- resources

    def policy_default(self, name: str) -> Any:
        """What holds where nobody set the policy of this name (`metadata.policies.table`); None: no limit."""
        ...

    def apply(self, change: Change, done: Done) -> None:
        """Store a change of clusters, tenants, namespaces; then `Resources.apply` it and do what follows from it
        (cursors of new links in the same transaction, docs/design/links.md#cursor-creation), then `done`.

        Raises:
            Conflict: something it writes or relied on is just being changed.
        """
        ...
