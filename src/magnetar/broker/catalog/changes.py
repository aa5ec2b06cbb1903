"""Storing a change of resources with all its consequences, in one transaction if the store accepts it, and applying
it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.links.links import Links
from magnetar.broker.metadata_sync.sync import MetadataSync
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note
from magnetar.effects.store_batches import Piece, store_in_turn, whole_or_cut
from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
from magnetar.metadata.keys import NAMESPACE_PREFIX
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import TABLE
from magnetar.metadata.resources import Resources

LIMITS: Final = frozenset(policy.namespace for policy in TABLE if policy.limits_only) - {""}
"""Fields of a namespace's policies whose change only limits, expiry, quotas and access follow (`Policy.limits_only`)."""

_Named = TypeVar("_Named", Topic, NonPersistentTopic)


def concerned(change: Change, topics: Mapping[str, _Named]) -> list[_Named]:
    """Topics of the namespaces, and partitions of the topics, whose policies a change touches."""
    namespaces, bases = set(change.namespaces), tuple(change.topics)
    if not namespaces and not bases:
        return []
    found: list[_Named] = []
    for text, topic in topics.items():
        name = topic.name
        # Most names that no policy of a topic concerns are recognised by their beginning, without parsing the
        # partition.
        if f"{name.tenant}/{name.namespace}" in namespaces or (
            bases and text.startswith(bases) and str(name.base) in bases
        ):
            found.append(topic)
    return found


def concerns_limits_alone(resources: Resources, change: Change) -> bool:
    """Whether a change of namespaces changes only policies of `LIMITS`: then links and other parts need not check
    topics.

    The former policies are still there: no other change may touch a namespace that is being changed
    (`Resources.begin`).
    """
    if change.topics or not change.namespaces:
        return False
    for text in change.namespaces:
        data, before = change.puts.get(NAMESPACE_PREFIX + text), resources.document(NAMESPACE_PREFIX + text)
        if data is None or before is None:
            return False
        old, new = (msgspec.json.decode(each, type=Policies) for each in (before, data))
        if replace(old, **{field: getattr(new, field) for field in LIMITS}) != new:
            return False
    return True


class Changes:
    """The changes of one broker's resources.

    Args:
        context: the broker's context.
        topics: the loaded topics, by full name.
        catalog: creates topics and subscriptions.
        links, schemas, metasync: their state of a namespace or a topic changes in the same transaction.
        in_force: called when a change takes effect; the second argument says that it concerns only policies of
            `LIMITS`.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        catalog: Catalog,
        links: Links,
        schemas: Schemas,
        metasync: MetadataSync,
        in_force: Callable[[Change, bool], None],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._catalog = catalog
        self._links = links
        self._schemas = schemas
        self._metasync = metasync
        self._in_force = in_force

    def change(self, change: Change, done: Done) -> None:
        """Store a change that was requested here: it gets its stamp, and is published to other clusters.

        Raises:
            Refused: as `store`; or this cluster's clock is wrong; or a namespace is not empty as expected.
        """
        self._catalog.check_empty(change)
        stamped = self._metasync.stamped(change)
        try:
            self.store(stamped, done)
        except MagnetarError:
            self._metasync.aborted(stamped)
            raise

    def following(self, topic: TopicName) -> Change:
        """The part of this cluster's resources that is deleted with a topic."""
        return self._resources.topic_deleted(topic, partial(self._metasync.shares, topic.namespace_name))

    def topic_deleted(self, topic: TopicName, done: Callable[[], None]) -> None:
        """A topic is no more: so are its policies and permissions; `done` is called when they are, or cannot be, which is a
        warning.

        After the topic, not before: one that kept its messages and lost their retention would be worse than the other way round.
        """
        change = self.following(topic)
        if not change.deletes:
            done()
            return

        def stored(error: MagnetarError | None) -> None:
            if error is not None:
                kept = f"topic {topic} is deleted, but its policies and permissions are left: {error}"
                self._outbox.put(Note("warning", kept))
            done()

        try:
            self.change(change, stored)
        except InFlight:

            def again(_now_ms: int) -> None:
                if str(topic) in self._topics or self._resources.partitions(topic) is not None:
                    done()  # another request has created it again in the meantime, with its own settings
                else:
                    self.topic_deleted(topic, done)

            self._resources.when_one_ended(lambda: self._context.timer(self._outbox.now_ms, again))
        except MagnetarError as error:
            stored(error)

    def store(self, change: Change, done: Done) -> None:
        """Store a change that was validated, or made by synchronisation; `done` is called when it has taken effect or
        was refused.

        Raises:
            Conflict: another change of the same objects is in flight; nothing has happened.
        """
        resources = self._resources
        resources.begin(change)
        narrow = concerns_limits_alone(self._resources, change)
        links = {} if narrow else self._links.policy_puts(change)
        last = Piece((), change.puts, (*change.deletes, *self._schemas.following(change)))
        # The links of thousands of topics are too much for one transaction: they are stored first. Without the policies
        # stored after them, they are links that no policy needs.
        batches = whole_or_cut([Piece((), {key: value}) for key, value in links.items()], last)

        def stored(error: str, _before: Sequence[Piece]) -> None:
            self._schemas.followed(change, failed=bool(error))
            if error:
                resources.abort(change)
                self._links.policies_refused(change)
                self._metasync.aborted(change)
                done(BrokerError(ErrorCode.METADATA, f"the metadata store refused: {error}"))
                return
            resources.apply(change)
            self._in_force(change, narrow)
            self._metasync.committed(change)
            done(None)

        store_in_turn(self._outbox, batches, stored)

    def create_partitions(
        self, name: TopicName, partitions: int, change: Change, done: Done, *, found: bool | None = False
    ) -> None:
        """Create the missing partitions of a partitioned topic, with its metadata, in one transaction.

        A later partition begins with the subscriptions of the first one: messages published to it before their
        consumers know it wait for them.

        Args:
            name, partitions: the topic, and its number of partitions.
            change: the change of its metadata.
            done: called when it has taken effect or was refused.
            found: it arrived over a link, and no administrator decided it here; None: synchronisation does it, and the
                stamps are in `change`.

        Raises:
            Refused: another change of the metadata is in flight, or this cluster's clock is wrong.
        """
        if found is not None:
            change = self._metasync.stamped(change, found=found)
        coming = [topic for topic in map(name.with_partition, range(partitions)) if str(topic) not in self._topics]

        def stored(error: BrokerError | None) -> None:
            if error is None:
                self._resources.apply(change)
                self._metasync.committed(change, found=bool(found))
                self._catalog.partitioned(name)
                self._links.partitions_changed(name)
                self.subscribe_as_the_first(name, coming, done)
            else:
                self._resources.abort(change)
                self._metasync.aborted(change)
                done(error)

        try:
            self._resources.begin(change)
            self._catalog.create_many(name, partitions, dict(change.puts), stored, by_link=found is not False)
        except MagnetarError:
            self._resources.abort(change)
            self._metasync.aborted(change)
            raise

    def subscribe_as_the_first(self, name: TopicName, coming: list[TopicName], done: Done) -> None:
        """Give partitions that have just come the durable subscriptions of the first one, from their beginning on.

        One that is refused, as by a limit, is a warning: the partitions are there.
        """
        first = self._topics.get(str(name.with_partition(0)))
        wanted = list(first.durable_subscriptions()) if first is not None and first.name not in coming else []
        topics = [self._topics[str(topic)] for topic in coming if str(topic) in self._topics]
        left = len(wanted) * len(topics)
        if not left:
            done(None)

        def made(topic: Topic, subscription: Subscription, error: MagnetarError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                text = f"topic {topic.text} begins without subscription {subscription.name}: {error}"
                self._outbox.put(Note("warning", text))
            if not left:
                done(None)

        for topic in topics:
            for subscription in wanted:
                self._catalog.create_subscription(
                    topic,
                    subscription.name,
                    EARLIEST,
                    partial(made, topic, subscription),
                    replicated=subscription.replicated,
                    properties=subscription.cursor.labels,
                    compacted=subscription.compacted is not None,
                )
