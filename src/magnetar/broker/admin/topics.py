"""Topics for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.broker import Broker
from magnetar.broker.catalog.deletion_proofs import deletion_key
from magnetar.broker.context import Done, DonePosition
from magnetar.broker.publish.deduplication import TopicDeduplication
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import Position
from magnetar.core.names import PARTITIONS_MAX, NamespaceName, TopicName
from magnetar.core.times import iso_time
from magnetar.effects.outbox import Store
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed, Unprocessable
from magnetar.metadata.keys import partitioned_key
from magnetar.metadata.policies.namespace import changed_properties
from magnetar.metadata.topic_records import DELETED_PREFIX, TOPIC_PREFIX


class TopicControl:
    """Topics of both domains: names, creation, deletion, partitions, retention, compaction, properties.

    Args:
        broker: the machine; whole, because what is done with topics touches thirteen of its parts.
        events: how changes enter the broker.
    """

    def __init__(self, broker: Broker, events: AdminEvents) -> None:
        self._broker = broker
        self._events = events

    def names(self, namespace: str) -> list[str]:
        """Full names of all topics of `tenant/namespace`: each partition separately, both domains, internal ones too.

        Empty for a namespace that does not exist.
        """
        prefix = f"persistent://{namespace}/"
        stored = sorted(text for text in self._broker.topics if text.startswith(prefix))
        return self._broker.nonpersistent.of(NamespaceName.parse(namespace)) + stored

    def iterate(self, namespace: str) -> Iterator[str]:
        """The same in any order, made as they are taken: for long lists."""
        prefix = f"persistent://{namespace}/"
        nonpersistent = self._broker.nonpersistent.of(NamespaceName.parse(namespace))
        return chain(nonpersistent, (text for text in list(self._broker.topics) if text.startswith(prefix)))

    def partitions(self, topic: str) -> int | None:
        """The number of partitions: None if there is no such topic, 0 for one that is not partitioned (or is a
        partition).
        """
        count = self._broker.resources.partitions(TopicName.parse(topic))
        if count is not None:
            return count
        return 0 if topic in self._broker.topics or topic in self._broker.nonpersistent.topics else None

    def last_message_id(self, topic: str) -> Position:
        """Position of the last message of one topic or partition; NONE when there never was one.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        return self._events.topic(topic).last_message_position()

    def last_batch_index(self, topic: str) -> int:
        """The index of the last message in its client's batch, from 0; -1 if it is in none, or there is no message."""
        return self._events.topic(topic).withdrawals.last_message()[1]

    def create(
        self,
        topic: str,
        partitions: int | None,
        properties: Mapping[str, str],
        done: Done,
    ) -> None:
        """Create a topic (None) or a partitioned one with all its partitions; also lifts a deletion mark.

        Raises:
            Conflict: it exists, in either form. NotFound: no such namespace.
        """
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
                self._check_topics_max(len(broker.nonpersistent.topics) + 1)
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

        self._events.enter(create)

    def _create_again(self, name: TopicName, partitions: int, done: Done) -> None:
        """A link has created the topic again after its deletion here: from now on accept its messages from before the
        deletion.

        Raises:
            Conflict: it exists, and it has no deletion mark.
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

    def open(self, topic: str, done: Done) -> None:
        """Get or create a topic, as a client's first use does; done when it exists.

        Answers:
            BrokerError: as clients get it.
        """
        name = TopicName.parse(topic)
        self._events.enter(lambda: self._broker.catalog.open(name, create=True, then=lambda _topic, error: done(error)))

    def _check_room(self, name: TopicName, topics: int) -> None:
        try:
            self._broker.catalog.check_room(name.namespace_name, topics)
        except BrokerError as error:
            raise PreconditionFailed(error.message) from error
        if name.persistent:
            self._check_topics_max(topics)

    def _check_topics_max(self, more: int) -> None:
        most = self._broker.config.topics_max
        if len(self._broker.topics) + more > most:
            raise PreconditionFailed(f"more than {most} topics (topics_max)")

    def adopt_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Give a topic without partitions some; its messages and subscriptions are in the first. Its clients are closed.

        Raises:
            NotFound: no such topic. Conflict: it has partitions. NotAcceptable: the number. PreconditionFailed: a part
                of it prevents it.
        """
        self._events.enter(lambda: self._broker.adoption.adopt(TopicName.parse(topic), partitions, done))

    def was_deleted(self, topic: str) -> bool:
        """Whether a topic was deleted here and no client here has created it again since; links may have.

        `create_topic` does not refuse such a topic if it exists: from then on its messages from before the deletion are
        accepted.
        """
        return bool(self._broker.catalog.deleted.family(TopicName.parse(topic)))

    def update_partitions(self, topic: str, partitions: int, done: Done) -> None:
        """Grow a partitioned topic, or, with its present number of partitions, create the missing ones again.

        Raises:
            NotFound: no such partitioned topic. Unprocessable: it would become smaller.
        """
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

        self._events.enter(grow)

    def delete(self, topic: str, force: bool, done: Done) -> None:
        """Delete a topic here, or a partitioned topic with all partitions; leaves a mark that refuses links.

        Raises:
            NotFound. PreconditionFailed: producers or consumers are connected; Unprocessable: links send it to other clusters;
                both without `force` only.
        """
        name = TopicName.parse(topic)

        def delete() -> None:
            resources = self._broker.resources
            count = resources.partitions(name)
            leaving = Change(deletes=(partitioned_key(name),))
            if count is None:
                if self._broker.nonpersistent.delete([topic], force=force):
                    self._broker.changes.topic_deleted(name, lambda: done(None))
                    return
                found = [self._events.topic(topic)] if topic in self._broker.topics else []
                if not found:
                    raise NotFound(f"topic {topic} does not exist")
            else:
                texts = [str(name.with_partition(n)) for n in range(count)]
                found = [self._broker.topics[text] for text in texts if text in self._broker.topics]
            for one in found:
                self._check_deletable(one, force)
            if count is not None:
                # From now on no partition can be opened: clients reconnect at once, and deleted partitions would be
                # created again.
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

        self._events.enter(delete)

    def _delete_one(self, topic: Topic, then: Done) -> None:
        self._broker.catalog.delete(topic, force=True, done=then)

    def _check_deletable(self, topic: Topic, force: bool) -> None:
        """As in Pulsar: subscriptions are deleted with their topic without a check; connected clients, or another
        cluster's copy, prevent it.

        Raises:
            PreconditionFailed: clients are connected. Unprocessable: it is replicated.
        """
        if force:
            return
        if targets := sorted(self._broker.links.targets(topic.name)):
            raise Unprocessable(
                f"topic {topic.text} is replicated to {', '.join(targets)}, where it would stay, and unsent messages "
                "would be lost; remove them from its replication clusters, or use force"
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
        # Partitions that were left out at the start are not topics here; their records go with what made them.
        left_out = [text for text in self._broker.loaded.left_out if text.startswith(f"{name}-partition-")]
        gone = Change(
            puts={deletion_key(self._broker.loaded.left_out_incarnations[text]): text.encode() for text in left_out},
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
            self._broker.changes.change(change.merged(Change(puts=puts)), stored)
        except MagnetarError as refused:
            done(refused)

    def unload(self, topic: str, done: Done) -> None:
        """Close producers and consumers (their clients reconnect) and reopen the topic from what is stored."""
        nonpersistent = self._broker.nonpersistent.topics.get(topic)
        if nonpersistent is not None:
            self._events.enter(lambda: self._broker.nonpersistent.unload(nonpersistent))
            done(None)
            return
        found = self._events.topic(topic)

        def close() -> None:
            self._broker.clients.close_all(found)
            found.when_drained(lambda: done(None))

        self._events.enter(close)

    def truncate(self, topic: str, done: Done) -> None:
        """Acknowledge everything in every subscription and delete closed ledgers that nothing else needs."""
        found = self._events.topic(topic)

        def skip(subscription: Subscription, then: Done) -> None:
            def act() -> None:
                subscription.skip_all()
                self._events.when_durable(subscription, then)

            self._broker.replicated_subscriptions.when_ready(
                found, subscription.name, act, replicated=subscription.replicated
            )

        def clear() -> None:
            steps: list[Callable[[Done], None]] = [partial(skip, one) for one in found.durable_subscriptions()]

            def acknowledged(error: MagnetarError | None) -> None:
                if error is None:
                    self._broker.upkeep.trim(found, everything=True)
                done(error)

            found.log.roll(self._broker.outbox.now_ms)
            self._each(steps, acknowledged)

        self._events.enter(clear)

    def trim(self, topic: str, done: Done) -> None:
        """Let retention delete at once what it may; done when the broker will no longer deliver it."""
        found = self._events.topic(topic)

        def trimmed(error: str) -> None:
            done(BrokerError(ErrorCode.METADATA, error) if error else None)

        self._events.enter(lambda: self._broker.upkeep.trim(found, then=trimmed))

    def _deduplication(self, topic: Topic) -> TopicDeduplication:
        if topic.deduplication is None:
            raise PreconditionFailed(
                f"deduplication is not on in {topic.text}: nothing is kept of its producers' numbers"
            )
        return topic.deduplication

    def sequence_ids(self, topic: str) -> dict[str, int]:
        """The highest stored sequence id of each producer name of a topic (or one partition).

        Raises:
            NotFound: no such topic. PreconditionFailed: it has no deduplication.
        """
        return {name: numbers.last for name, numbers in self._deduplication(self._events.topic(topic)).numbers}

    def forget_producer(self, topic: str, producer: str, done: Done) -> None:
        """Forget a producer name's number, after closing its producers (their clients reconnect): it begins again.

        Raises:
            NotFound: no such topic. PreconditionFailed: it has no deduplication.
        """
        found = self._events.topic(topic)
        deduplication = self._deduplication(found)

        def stored(error: str) -> None:
            done(BrokerError(ErrorCode.METADATA, error) if error else None)

        def answered() -> None:
            if found.deduplication is deduplication:
                deduplication.forget(producer, stored)
            else:
                done(None)  # switched off meanwhile: nothing is kept

        def forget() -> None:
            for one in found.producers.everybody():
                if one.name == producer:
                    self._broker.clients.close_producer(one)
            deduplication.when_ready(lambda: found.when_answered(answered))

        self._events.enter(forget)

    def compact(self, topic: str) -> None:
        """Begin to compact a topic (or one partition).

        Raises:
            NotFound: no such topic. Conflict: it is being compacted.
        """
        found = self._events.topic(topic)
        self._events.enter(lambda: self._broker.compactions.trigger(found))

    def compaction_status(self, topic: str) -> dict[str, str]:
        """The result of the last compaction since the broker's start: `status` (NOT_RUN, RUNNING, SUCCESS, ERROR),
        `lastError`.

        Raises:
            NotFound: no such topic.
        """
        status = self._broker.compactions.status(self._events.topic(topic))
        return {"status": status.state, "lastError": status.error}

    def terminate(self, topic: str, done: DonePosition) -> None:
        """No more publishing; the position of the last message."""
        found = self._events.topic(topic)

        def end() -> None:
            found.begin_termination()

            def ended() -> None:
                found.end()
                # As in Pulsar. Clients that learn it from a refused message close their connection (C++), or leave the
                # caller that waits for that message without an answer (Go).
                for producer in found.producers.everybody():
                    self._broker.clients.close_producer(producer)
                for subscription in found.subscriptions.values():
                    subscription.end()
                done(found.last_message_position(), None)

            def stored(error: str) -> None:
                if error:
                    found.termination_failed()
                    done(None, BrokerError(ErrorCode.METADATA, error))
                else:
                    found.when_drained(ended)

            self._broker.outbox.put(Store({TOPIC_PREFIX + topic: found.record.encode()}, (), stored))

        self._events.enter(end)

    def ledger_info(self, topic: str) -> dict[str, Any]:
        """The stored ledgers and cursors of a topic, with the keys of Pulsar's ManagedLedgerInfo."""
        found = self._events.topic(topic)
        info = {
            "creationDate": iso_time(found.record.created_ms),
            "ledgers": [
                {
                    "ledgerId": ledger.ledger,
                    "entries": ledger.entries,
                    "size": ledger.bytes,
                    "timestamp": ledger.newest_ms if ledger.closed else 0,
                    "isOffloaded": False,
                }
                for ledger in found.log.ledger_infos()
            ],
            "cursors": {
                one.name: {"markDelete": _shown(one.durable_mark_delete), "properties": dict(one.cursor.properties)}
                for one in found.durable_subscriptions()
            },
            "properties": dict(found.record.properties),
        }
        return info | ({"terminatedPosition": _shown(found.log.last)} if found.terminated else {})

    def properties(self, topic: str) -> dict[str, str]:
        """The properties of a topic, set by an administrator."""
        return dict(self._events.topic(topic).record.properties)

    def change_properties(self, topic: str, puts: Mapping[str, str], delete: str | None, done: Done) -> None:
        """Set some properties, and forget one; the others stay.

        Raises:
            BadRequest: too many, or too long.
        """
        found = self._events.topic(topic)
        record = found.record

        def change() -> None:
            found.check_stays()
            before = record.properties
            record.properties = after = changed_properties(before, puts, delete)

            def stored(error: str) -> None:
                if error and record.properties is after:
                    record.properties = before
                done(BrokerError(ErrorCode.METADATA, error) if error else None)

            self._broker.outbox.put(Store({TOPIC_PREFIX + topic: record.encode()}, (), stored))

        self._events.enter(change)

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


def _shown(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger, "entryId": position.entry}
