"""The broker as links use it: `SourceHost` and `DestinationHost` of `replication.link.ports`."""

from collections.abc import Callable, Mapping
from typing import Protocol

from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.topics import ways_out as waysout
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, MagnetarError
from magnetar.core.names import TopicName
from magnetar.metadata.change import Change
from magnetar.schemas.registry import schema_id
from magnetar.wire.acksets import Mark


class DeletionMark(Protocol):
    """The record of a deleted topic, so that links do not create it again."""

    @property
    def partitions(self) -> int:
        """Partitions that it had; 0: none."""
        ...


class DeletionMarks(Protocol):
    """The marks of deleted topics (`broker.catalog.deletion_marks.Deletions`)."""

    def mark_against(self, name: TopicName, source: str, incarnation: int | None) -> DeletionMark | None:
        """The mark that refuses a source's incarnation of a topic; None: it is accepted."""
        ...


CreateTopic = Callable[[TopicName, Callable[[Topic | None, BrokerError | None], None]], None]
"""Creates one topic (or one partition) for a link, durably; the marks of its deletion stay."""

CreatePartitions = Callable[[TopicName, int, Change, Done], None]
"""Creates what is missing of a partitioned topic for a link, with the change of its metadata, in one transaction."""

SourceActive = Callable[[str, str, bool], None]
"""Is called with (topic, source, restarted) as `DestinationHost.source_active` says."""


class LinkHost:
    """One broker, as its links see it.

    Args:
        context: the broker's context.
        topics: all topics of the broker, by name.
        schemas: the schemas of these topics.
        deleted: the topics that were deleted here.
        create_topic, create_partitions: create a topic that arrives over a link.
        source_active: called when the link of a source cluster is active in a topic.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        schemas: Schemas,
        *,
        deleted: DeletionMarks,
        create_topic: CreateTopic,
        create_partitions: CreatePartitions,
        source_active: SourceActive,
    ) -> None:
        self._context = context
        self._resources = context.resources
        self._topics = topics
        self._schemas = schemas
        self._deleted = deleted
        self._create_topic = create_topic
        self._create_partitions = create_partitions
        self._source_active = source_active

    # ------------------------------------------------------------------------------------------------------- `SourceHost`

    def partitions_of(self, topic: str) -> int:
        """Partitions of the partitioned topic that a topic belongs to; 0: it belongs to none."""
        name = TopicName.parse(topic)
        return (self._resources.partitions(name.base) or 0) if name.partition >= 0 else 0

    def retained(self, topic: str) -> tuple[Mark, ...]:
        """The messages of their own that a topic's origins retain."""
        found = self._topics.get(topic)
        return (
            () if found is None or found.replicated_subscriptions is None else found.replicated_subscriptions.retained()
        )

    def schema_numbering(self, topic: str) -> int:
        """The numbering that the schema versions in the topic's entries belong to."""
        return self._schemas.registry.numbering(schema_id(TopicName.parse(topic)))

    def rebased(self, topic: str, target: str) -> None:
        """The link to `target` started again in a topic, or skipped entries of it."""
        found = self._topics.get(topic)
        if found is not None and found.replicated_subscriptions is not None:
            found.replicated_subscriptions.rebased(target)

    # -------------------------------------------------------------------------------------------------- `DestinationHost`

    def source_active(self, topic: str, source: str, *, restarted: bool) -> None:
        """The link of a source cluster is at work in a topic here."""
        self._source_active(topic, source, restarted)

    def learn_retained(self, topic: str, marks: tuple[Mark, ...]) -> None:
        """Learn the messages of their own that a topic's origins retain, as reported by the source of a link."""
        found = self._topics.get(topic)
        if found is not None and found.replicated_subscriptions is not None:
            found.replicated_subscriptions.learn_retained(marks)

    def stored(self, topic: str, source: str, connection: int, messages: int, size: int) -> None:
        """The disk has messages that arrived over a link."""
        found = self._topics.get(topic)
        if found is not None:
            found.flow(source).came(messages, size, connection)

    # -------------------------------------------------------------------------------------------------------- `TopicHost`

    def find(self, topic: str) -> Topic | None:
        """A topic that exists here."""
        found = self._topics.get(topic)
        return found if found is not None and not found.deleting else None

    def refuses_entries(
        self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0
    ) -> str:
        """Why entries may not come into a topic; "" when they may."""
        namespace = topic.namespace_name
        here = self._context.cluster
        mark = self._deleted.mark_against(topic, source, incarnation)
        if mark is not None:
            return self._was_deleted(topic, source, max(partitions, mark.partitions))
        if not self._resources.has_namespace(namespace):
            again = waysout.create_namespace(self._context, namespace, (here, source))
            return f"namespace {namespace} does not exist in {here}; create it: {again}"
        if not self._resources.serves(namespace):
            allow = waysout.allow(self._context, namespace, (here, source))
            return f"namespace {namespace} does not allow cluster {here}; allow it: {allow}"
        return ""

    def _was_deleted(self, topic: TopicName, source: str, partitions: int) -> str:
        """Why a topic that was deleted here is kept out, and how to have it all the same."""
        here, name, count = self._context.cluster, topic, 0
        if topic.partition >= 0 and (partitions or self._resources.partitions(topic.base)):
            name = topic.base
            count = max(partitions, topic.partition + 1, self._resources.partitions(name) or 0)
        again = waysout.create_topic(self._context, name, count)
        return f"{name} of {source} was there before {name} was deleted in {here}; to have it again: {again}"

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        """Give a topic that is partitioned in one cluster and not in another the same form in both."""
        here = self._context.cluster
        plain, count = (here, partitions) if partitions else (source, self._resources.partitions(topic) or 0)
        adopt = waysout.adopt_partitions(self._context, topic, count, plain)
        return f"make it partitioned in {plain} too, where all its messages stay, in the first partition: {adopt}"

    def partitions(self, topic: TopicName) -> int | None:
        """Partitions of a topic: 0 if not partitioned, None if there is none."""
        count = self._resources.partitions(topic)
        if count is not None:
            return count
        return 0 if str(topic) in self._topics else None

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        """Make or grow a topic for a link."""
        resources = self._resources

        def done(error: MagnetarError | None) -> None:
            then("" if error is None else str(error))

        if not partitions:
            if str(topic) in self._topics:
                then("")
            else:
                self._create_topic(topic, lambda _topic, error: done(error))
            return
        present = resources.partitions(topic)
        try:
            if present is None:
                change = resources.create_partitioned(topic, partitions, {})
            elif present < partitions:
                change = resources.update_partitioned(topic, partitions)
            else:
                change = Change()
            self._create_partitions(topic, partitions, change, done)
        except MagnetarError as error:
            then(str(error))
