"""Administration of a broker: `BrokerControl` over the machines.

Admin's calls come from outside the driver's events, so every change enters through `run` (the driver's), which sets the
clock and carries out the effects. What is refused at once is raised through it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Protocol

from magnetar.broker.admin.draining import describe
from magnetar.broker.admin.failovers import FailoverController
from magnetar.broker.admin.messages import MessageController, check_place, place_of
from magnetar.broker.admin.metadata import MetadataController
from magnetar.broker.admin.metrics import MetricController
from magnetar.broker.admin.schemas import SchemaController
from magnetar.broker.broker import Broker
from magnetar.broker.catalog.deletion_proofs import deletion_key
from magnetar.broker.context import Done, DonePosition
from magnetar.broker.links.states import LinkState, SkipPreview
from magnetar.broker.publish.deduplication import TopicDeduplication
from magnetar.broker.statistics.stats import (
    Steps,
    at_once,
    broker_stats,
    internal_stats,
    passing_stats,
    topic_stats,
    unopened_stats,
)
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import PARTITIONS_MAX, NamespaceName, TopicName
from magnetar.effects.outbox import Store
from magnetar.metadata.change import Change
from magnetar.metadata.errors import (
    Conflict,
    NotFound,
    PreconditionFailed,
    Unprocessable,
)
from magnetar.metadata.keys import NAMESPACE_PREFIX, partitioned_key
from magnetar.metadata.policies.table import BY_NAME
from magnetar.metadata.topic_records import DELETED_PREFIX, TOPIC_PREFIX


class Run(Protocol):
    """`Driver.run`."""

    def __call__(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out its effects."""


def _known(stats: dict[str, Any]) -> Steps:
    """Statistics that are there already, in no steps."""
    yield from ()
    return stats


class Controller(FailoverController, SchemaController, MetadataController, MessageController, MetricController):
    """What admin may ask of a broker.

    Args:
        broker: the machine.
        run: enters it.
    """

    def __init__(self, broker: Broker, run: Run) -> None:
        self._broker = broker
        self._run = run

    def _enter(self, event: Callable[[], None]) -> None:
        """Run an event; a refusal inside it is the caller's, not the driver's."""
        refused: list[MagnetarError] = []

        def guarded() -> None:
            try:
                event()
            except MagnetarError as error:
                refused.append(error)

        self._run(guarded)
        if refused:
            raise refused[0]

    def _topic(self, text: str) -> Topic:
        topic = self._broker.topics.get(text)
        if topic is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {text} does not exist")
        return topic

    def _subscription(self, text: str, name: str) -> tuple[Topic, Subscription]:
        topic = self._topic(text)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise NotFound(f"subscription {name} of {text} does not exist")
        return topic, subscription

    # ------------------------------------------------------------------------------------------------------- reads

    def topics(self, namespace: str) -> list[str]:
        """Full names of all topics of `tenant/namespace`."""
        prefix = f"persistent://{namespace}/"
        stored = sorted(text for text in self._broker.topics if text.startswith(prefix))
        return self._broker.nonpersistent.of(NamespaceName.parse(namespace)) + stored

    def partitions(self, topic: str) -> int | None:
        """How many partitions: None if there is no such topic, 0 if it is not partitioned."""
        count = self._broker.resources.partitions(TopicName.parse(topic))
        if count is not None:
            return count
        return 0 if topic in self._broker.topics or topic in self._broker.nonpersistent.topics else None

    def topic_names(self, namespace: str) -> Iterator[str]:
        """The same as `topics`, in any order, made as they are taken."""
        prefix = f"persistent://{namespace}/"
        passing = self._broker.nonpersistent.of(NamespaceName.parse(namespace))
        return chain(passing, (text for text in list(self._broker.topics) if text.startswith(prefix)))

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's topic stats."""
        return at_once(self.topic_stats_steps(topic))

    def topic_stats_steps(self, topic: str, *, publishers: bool = True, consumers: bool = True) -> Steps:
        """The same, in steps."""
        passing = self._broker.nonpersistent.topics.get(topic)
        if passing is not None:
            return passing_stats(self._broker, passing, publishers=publishers, consumers=consumers)
        name = TopicName.parse(topic)
        if not name.persistent and 0 <= name.partition < (self._broker.resources.partitions(name.base) or 0):
            return _known(unopened_stats(self._broker, name))
        return topic_stats(self._broker, self._topic(topic), publishers=publishers, consumers=consumers)

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's internal stats."""
        return at_once(self.internal_stats_steps(topic))

    def internal_stats_steps(self, topic: str) -> Steps:
        """The same, in steps."""
        return internal_stats(self._broker, self._topic(topic))

    def subscriptions(self, topic: str) -> list[str]:
        """Subscription names."""
        passing = self._broker.nonpersistent.topics.get(topic)
        return sorted(passing.subscriptions if passing is not None else self._topic(topic).subscriptions)

    def last_message_id(self, topic: str) -> Position:
        """Position of the last message, or NONE."""
        return self._topic(topic).last_message_position()

    def last_batch_index(self, topic: str) -> int:
        """Where the last message is in its batch, or -1."""
        return self._topic(topic).withdrawals.last_message()[1]

    def replicated_topics(self) -> list[str]:
        """Topics that have replicated subscriptions."""
        found = self._broker.replication.topics
        return sorted(text for text, host in found.items() if host.subscriptions())

    def replicated_subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """The replicated subscriptions of a topic."""
        return self._broker.replication.states(self._topic(topic))

    def replication_metrics(self) -> dict[str, Any]:
        """The default mode, and counters."""
        replication = self._broker.replication
        return {"mode": replication.settings.mode, "counters": replication.metrics()}

    def refuses_mode(self, namespace: str, mode: str) -> str:
        """Why a mode is not possible."""
        return self._broker.replication.refuses_mode(NamespaceName.parse(namespace), mode)

    def set_replicated(self, topic: str, subscription: str, replicated: bool, done: Done) -> None:
        """Let a subscription follow, or no longer."""
        found_topic, found = self._subscription(topic, subscription)
        replication = self._broker.replication
        if not found.durable:
            raise PreconditionFailed(f"subscription {subscription} of {topic} is not durable: it cannot be replicated")
        if replicated and found.compacted is not None:
            raise PreconditionFailed(f"subscription {subscription} of {topic} reads compacted: it cannot be replicated")
        if not replicated and replication.all_of(found_topic):
            source = self._broker.resources.policy_source("replicate-subscriptions", found_topic.name)
            raise PreconditionFailed(f"all subscriptions of {topic} are replicated by {source}: take that back first")

        def switch() -> None:
            if leaving := found_topic.leaving:
                done(leaving)
                return
            if not replicated and (moving := self._broker.fences.moving(topic, subscription)):
                done(PreconditionFailed(f"subscription {subscription} of {topic} is {moving}; end that first"))
                return
            replication.set_replicated(found_topic, found, replicated)
            self._when_durable(found, done)

        self._enter_ready(found_topic, found, switch)

    def broker_stats(self) -> dict[str, Any]:
        """Whole-broker figures."""
        return broker_stats(self._broker)

    def links(self) -> list[LinkState]:
        """Every outgoing link."""
        return self._broker.links.reports.states()

    def geo_status(self) -> dict[str, Any]:
        """What the destination side and the gaps look like."""
        return self._broker.links.reports.status() | {
            "deleted": sorted(text for text in self._broker.catalog.deleted if self.partitions(text) is None),
            "failovers": self.failovers(),
        }

    def held(self, origin: str) -> list[dict[str, Any]]:
        """Which messages of a cluster are held here."""
        return self._broker.links.restores.held(origin)

    def drain(self) -> dict[str, Any]:
        """What keeps this cluster from being switched off."""
        return dict(describe(self._broker))

    # ------------------------------------------------------------------------------------------------------- topics

    def create_topic(
        self,
        topic: str,
        partitions: int | None,
        properties: Mapping[str, str],
        done: Done,
    ) -> None:
        """Create a topic, or a partitioned one with all its partitions."""
        name = TopicName.parse(topic)

        def create() -> None:
            broker = self._broker
            if not broker.resources.has_namespace(name.namespace_name):
                raise NotFound(f"namespace {name.namespace_name} does not exist")
            broker.catalog.check_namespace(name)
            if broker.catalog.known(name):
                self._create_again(name, partitions or 0, done)
                return
            self._check_room(name, partitions or 1)
            if partitions is None and not name.persistent:
                broker.nonpersistent.keep(name)
                done(None)
                return
            if partitions is None:
                broker.catalog.create(
                    name,
                    properties=dict(properties),
                    then=lambda _topic, error: done(error),
                )
                return
            change = broker.resources.create_partitioned(name, partitions, dict(properties))

            def created(error: MagnetarError | None) -> None:
                if error is None:
                    broker.links.when_known(name, lambda: done(None))
                else:
                    done(error)

            broker.changes.create_partitions(name, partitions, change, created)

        self._enter(create)

    def _create_again(self, name: TopicName, partitions: int, done: Done) -> None:
        """Of a topic that a link has made after its deletion here, what was there before the deletion may come from now on.

        Raises:
            Conflict: it exists, and no mark of a deletion is left of it.
        """
        catalog, present = self._broker.catalog, self.partitions(str(name))
        if present is None or not catalog.deleted.family(name) or bool(present) != bool(partitions):
            raise Conflict(f"topic {name} exists already")

        def unmarked(error: MagnetarError | None) -> None:
            if error is None and partitions > present:
                self.update_partitions(str(name), partitions, done)
            else:
                done(error)

        catalog.unmark(name, unmarked)

    def was_deleted(self, topic: str) -> bool:
        """Whether a mark of its deletion is left of a topic, though links may have made it again since."""
        return bool(self._broker.catalog.deleted.family(TopicName.parse(topic)))

    def open_topic(self, topic: str, done: Done) -> None:
        """Have a topic, as a client's first use would."""
        name = TopicName.parse(topic)
        self._enter(lambda: self._broker.catalog.open(name, create=True, then=lambda _topic, error: done(error)))

    def _check_room(self, name: TopicName, topics: int) -> None:
        try:
            self._broker.catalog.check_room(name.namespace_name, topics)
        except BrokerError as error:
            raise PreconditionFailed(error.message) from error

    def update_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Grow a partitioned topic; as many partitions as it has bring back those that are missing."""
        name = TopicName.parse(topic)

        def grow() -> None:
            present = self._broker.resources.partitions(name)
            if present is None:
                raise NotFound(f"topic {topic} does not exist or is not partitioned")
            if not present <= partitions <= PARTITIONS_MAX:
                raise Unprocessable(f"topic {topic} has {present} partitions; ask for more, at most {PARTITIONS_MAX}")
            self._check_room(name, partitions - present)
            grows = partitions > present
            change = self._broker.resources.update_partitioned(name, partitions) if grows else Change()
            self._broker.changes.create_partitions(name, partitions, change, done)

        self._enter(grow)

    def adopt_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Give a topic without partitions some: its messages and subscriptions are in the first."""
        self._enter(lambda: self._broker.adoption.adopt(TopicName.parse(topic), partitions, done))

    def delete_topic(self, topic: str, force: bool, done: Done) -> None:
        """Delete a topic, or a partitioned topic with all partitions."""
        name = TopicName.parse(topic)

        def delete() -> None:
            resources = self._broker.resources
            count = resources.partitions(name)
            leaving = Change(deletes=(partitioned_key(name),))
            if count is None:
                if self._broker.nonpersistent.delete([topic], force=force):
                    self._broker.changes.topic_deleted(name, lambda: done(None))
                    return
                found = [self._topic(topic)] if topic in self._broker.topics else []
                if not found:
                    raise NotFound(f"topic {topic} does not exist")
            else:
                texts = [str(name.with_partition(n)) for n in range(count)]
                found = [self._broker.topics[text] for text in texts if text in self._broker.topics]
            for one in found:
                self._check_deletable(one, force)
            if count is not None:
                # From now on nobody opens a partition: clients come back at once, and those that are gone would be made again.
                resources.begin(leaving)
                try:
                    self._broker.nonpersistent.delete(texts, force=force)
                except MagnetarError:
                    resources.abort(leaving)
                    raise

            def deleted(error: MagnetarError | None) -> None:
                if count is None:
                    done(error)
                else:
                    resources.abort(leaving)  # what follows begins it again, with all that goes with it
                    self._drop_partitioned(name, error, done)

            self._each([partial(self._delete_one, one) for one in found], deleted)

        self._enter(delete)

    def _delete_one(self, topic: Topic, then: Done) -> None:
        self._broker.catalog.delete(topic, force=True, done=then)

    def _check_deletable(self, topic: Topic, force: bool) -> None:
        """As in Pulsar: subscriptions go with their topic without a word; who is connected, or another cluster's copy, does not.

        Raises:
            PreconditionFailed: somebody is connected. Unprocessable: it is replicated.
        """
        if force:
            return
        if targets := sorted(self._broker.links.targets(topic.name)):
            raise Unprocessable(
                f"topic {topic.text} is replicated to {', '.join(targets)}, which would not be deleted, and what was not sent "
                "would be lost; take them out of its replication clusters, or use force"
            )
        producers = len(topic.producers.everybody())
        consumers = sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
        if producers or consumers:
            raise PreconditionFailed(
                f"topic {topic.text} has {producers} producers and {consumers} consumers; close them or use force"
            )

    def _drop_partitioned(self, name: TopicName, error: MagnetarError | None, done: Done) -> None:
        if error is not None:
            done(error)
            return
        # Partitions that were left out at the start are no topics here; their records go with what made them.
        left_out = [text for text in self._broker.loaded.left_out if text.startswith(f"{name}-partition-")]
        gone = Change(
            puts={deletion_key(self._broker.loaded.left_out_lives[text]): text.encode() for text in left_out},
            deletes=tuple(TOPIC_PREFIX + text for text in left_out),
        )
        resources, catalog = self._broker.resources, self._broker.catalog
        mark = catalog.mark(name, resources.partitions(name) or 0)
        puts = {} if mark is None else {DELETED_PREFIX + str(name): mark.encode()}
        change = resources.delete_partitioned(name).merged(self._broker.changes.following(name)).merged(gone)

        def stored(error: MagnetarError | None) -> None:
            if error is None and mark is not None:
                catalog.deleted.put(name, mark)
            done(error)

        try:
            self._store_change(change.merged(Change(puts=puts)), stored)
        except MagnetarError as refused:
            done(refused)

    @staticmethod
    def _each(steps: list[Callable[[Done], None]], done: Done) -> None:
        """Run steps at once; `done` when all are, with the first error."""
        if not steps:
            done(None)
            return
        left = len(steps)
        first: list[MagnetarError] = []

        def one(error: MagnetarError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                first.append(error)
            if left == 0:
                done(first[0] if first else None)

        for step in steps:
            step(one)

    def unload(self, topic: str, done: Done) -> None:
        """Close the clients of a topic; they come back and find it as it is stored."""
        passing = self._broker.nonpersistent.topics.get(topic)
        if passing is not None:
            self._enter(lambda: self._broker.nonpersistent.unload(passing))
            done(None)
            return
        found = self._topic(topic)

        def close() -> None:
            self._broker.clients.close_all(found)
            found.when_drained(lambda: done(None))

        self._enter(close)

    def truncate(self, topic: str, done: Done) -> None:
        """Acknowledge everything everywhere and let retention take what nothing else needs."""
        found = self._topic(topic)

        def skip(subscription: Subscription, then: Done) -> None:
            def act() -> None:
                subscription.skip_all()
                self._when_durable(subscription, then)

            self._broker.replication.when_ready(found, subscription.name, act, replicated=subscription.replicated)

        def clear() -> None:
            steps: list[Callable[[Done], None]] = [partial(skip, one) for one in found.durable_subscriptions()]

            def acknowledged(error: MagnetarError | None) -> None:
                if error is None:
                    self._broker.upkeep.trim(found, everything=True)
                done(error)

            found.log.roll(self._broker.outbox.now_ms)
            self._each(steps, acknowledged)

        self._enter(clear)

    def _deduplication(self, topic: Topic) -> TopicDeduplication:
        if topic.deduplication is None:
            raise PreconditionFailed(
                f"deduplication is not on in {topic.text}: nothing is kept of its producers' numbers"
            )
        return topic.deduplication

    def sequence_ids(self, topic: str) -> dict[str, int]:
        """What deduplication knows of each producer name."""
        return {name: numbers.persisted for name, numbers in self._deduplication(self._topic(topic)).numbers}

    def forget_producer(self, topic: str, producer: str, done: Done) -> None:
        """Let a name begin anew."""
        found = self._topic(topic)
        deduplication = self._deduplication(found)

        def stored(error: str) -> None:
            done(BrokerError(ErrorCode.METADATA, error) if error else None)

        def answered() -> None:
            if found.deduplication is deduplication:
                deduplication.forget(producer, stored)
            else:
                done(None)  # switched off meanwhile: nothing is kept any more

        def forget() -> None:
            for one in found.producers.everybody():
                if one.name == producer:
                    self._broker.clients.close_producer(one)
            deduplication.when_ready(lambda: found.when_answered(answered))

        self._enter(forget)

    def compact(self, topic: str) -> None:
        """Begin to compact a topic."""
        found = self._topic(topic)
        self._enter(lambda: self._broker.compactions.trigger(found))

    def compaction_status(self, topic: str) -> dict[str, str]:
        """How the last compaction went."""
        status = self._broker.compactions.status(self._topic(topic))
        return {"status": status.state, "lastError": status.error}

    def terminate(self, topic: str, done: DonePosition) -> None:
        """No more publishing."""
        found = self._topic(topic)

        def end() -> None:
            found.check_stays()
            found.record.terminated = True

            def ended() -> None:
                found.ended = True
                # As in Pulsar. Clients that learn it by a refused message close their connection (C++), or leave whoever
                # waits for that message without an answer (Go).
                for producer in found.producers.everybody():
                    self._broker.clients.close_producer(producer)
                for subscription in found.subscriptions.values():
                    subscription.end()
                done(found.last_message_position(), None)

            def stored(error: str) -> None:
                if error:
                    found.record.terminated = False
                    done(None, BrokerError(ErrorCode.METADATA, error))
                else:
                    found.when_drained(ended)

            self._broker.outbox.put(Store({TOPIC_PREFIX + topic: found.record.encode()}, (), stored))

        self._enter(end)

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
        """Create a durable subscription."""
        found = self._topic(topic)
        if subscription in found.subscriptions:
            raise Conflict(f"subscription {subscription} of {topic} exists already")
        start = LATEST if position is None else position
        check_place(found.log, topic, start, batch_index, coming=True, refused=PreconditionFailed)
        first, left = place_of(found.log, start, batch_index, exclusive=exclusive and start not in {EARLIEST, LATEST})

        def created(error: MagnetarError | None) -> None:
            if error is not None or not left:
                done(error)
                return
            try:  # a batch is begun by a second step: it is a seek for other clusters, too
                self.reset_cursor(topic, subscription, start, exclusive, done, batch_index=batch_index)
            except MagnetarError as refused:
                done(refused)

        self._enter(
            lambda: self._broker.catalog.create_subscription(
                found, subscription, first, created, replicated=replicated, properties=properties
            )
        )

    def delete_subscription(self, topic: str, subscription: str, force: bool, done: Done) -> None:
        """Delete a subscription; a replicated one not during the replay, or others would bring it back after a crash."""
        passing = self._broker.nonpersistent.topics.get(topic)
        if passing is not None:
            self._enter(lambda: self._broker.nonpersistent.delete_subscription(passing, subscription, force=force))
            done(None)
            return
        found_topic, found = self._subscription(topic, subscription)
        if found.consumers and not force:
            raise PreconditionFailed(f"subscription {subscription} of {topic} has consumers; close them or use force")
        self._enter_ready(found_topic, found, lambda: self._broker.catalog.delete_subscription(found, done))

    def _when_durable(self, subscription: Subscription, done: Done) -> None:
        def stored(error: str) -> None:
            done(BrokerError(ErrorCode.METADATA, error) if error else None)

        if subscription.durable:
            self._broker.loaded.when_cursor_durable(subscription, stored)
        else:
            done(None)

    def _change(
        self,
        topic: str,
        subscription: str,
        change: Callable[[Subscription], object],
        done: Done,
    ) -> None:
        found_topic, found = self._subscription(topic, subscription)

        def act() -> None:
            change(found)
            self._when_durable(found, done)

        self._enter_ready(found_topic, found, act)

    def _enter_ready(self, topic: Topic, subscription: Subscription, act: Callable[[], None]) -> None:
        """Run an event on a subscription; on a replicated one not before its state is complete (after a start)."""

        def enter() -> None:
            self._broker.replication.when_ready(topic, subscription.name, act, replicated=subscription.replicated)

        self._enter(enter)

    def skip(self, topic: str, subscription: str, entries: int, done: Done) -> None:
        """Acknowledge the next entries."""
        self._change(topic, subscription, lambda found: found.skip(entries), done)

    def skip_all(self, topic: str, subscription: str, done: Done) -> None:
        """Acknowledge everything there is now."""
        self._change(topic, subscription, lambda found: found.skip_all(), done)

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
        """Move a subscription."""
        found_topic, found = self._subscription(topic, subscription)
        if isinstance(target, Position):
            check_place(found_topic.log, topic, target, batch_index)

        def move() -> None:
            if leaving := found_topic.leaving:
                done(leaving)
                return
            if isinstance(target, Position):
                found.seek_to(*place_of(found_topic.log, target, batch_index, exclusive=exclusive))
            else:
                found.seek_time(target)
            if found.durable:
                self._broker.catalog.when_moved(
                    found, lambda error: done(BrokerError(ErrorCode.METADATA, error) if error else None)
                )
            else:
                done(None)

        self._enter_ready(found_topic, found, move)

    def expire(self, topic: str, subscription: str, older_than_s: int, done: Done) -> None:
        """Acknowledge what is old."""
        outbox = self._broker.outbox
        self._change(topic, subscription, lambda found: found.expire(outbox.day_ms - older_than_s * 1000), done)

    # -------------------------------------------------------------------------------------------------------- links

    def link_pause(self, target: str, topic: str | None, done: Done) -> None:
        """Stop sending."""
        self._enter(lambda: self._broker.links.pause(target, topic, True, done))

    def link_resume(self, target: str, topic: str | None, done: Done) -> None:
        """Send again."""
        self._enter(lambda: self._broker.links.pause(target, topic, False, done))

    def link_throttle(self, target: str, bytes_per_s: int | None, done: Done) -> None:
        """Limit a link's rate."""
        self._enter(lambda: self._broker.links.throttle(target, bytes_per_s, done))

    def link_skip_preview(self, target: str, topic: str | None, through: Position | None) -> list[SkipPreview]:
        """What a skip would lose."""
        return self._broker.links.skip_preview(target, topic, through)

    def link_skip(self, target: str, topic: str | None, through: Position | None, done: Done) -> None:
        """Settle entries without sending them."""
        self._enter(lambda: self._broker.links.skip(target, topic, through, done))

    def delete_orphan_cursor(self, target: str, topic: str, done: Done) -> None:
        """Give up what an orphan cursor holds."""
        self._enter(lambda: self._broker.links.delete_orphan(target, topic, done))

    # ---------------------------------------------------------------------------------------------------- resources

    def policy_default(self, name: str) -> Any:
        """What holds where nobody set a policy: `[policies]` of clusters.toml, else what is built in."""
        if name == "deduplication":  # has a table of its own there
            return self._broker.deduplications.default
        if name == "deduplication-interval":
            return self._broker.deduplications.snapshot_s
        policy = BY_NAME[name]
        value = policy.of_namespace(self._broker.resources.defaults)
        return policy.default(self._broker.config) if value is None else value

    def apply(self, change: Change, done: Done) -> None:
        """Store a change of resources with what follows from it, then apply it."""
        self._enter(lambda: self._store_change(change, done))

    def _store_change(self, change: Change, done: Done) -> None:
        for key in change.deletes:
            if key.startswith(NAMESPACE_PREFIX) and self.topics(key.removeprefix(NAMESPACE_PREFIX)):
                raise Conflict(f"namespace {key.removeprefix(NAMESPACE_PREFIX)} is not empty")
        self._broker.changes.change(change, done)
