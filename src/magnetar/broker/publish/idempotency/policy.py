"""Idempotency keys in all topics of a broker: where they are on (topic before namespace), and since when."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from magnetar.broker.context import BrokerContext
from magnetar.broker.publish.idempotency.judging import Counters
from magnetar.broker.publish.idempotency.snapshot import BLOCK_PREFIX, PREFIX, Stored
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.publish.idempotency.withdrawals import PREFIX as WITHDRAWN
from magnetar.broker.publish.opening import Openings
from magnetar.broker.publish.producers import Producer
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Store
from magnetar.metadata.policies.idempotency import IdempotencyPolicy


class Idempotencies(TopicPart):
    """Switches idempotency keys on and off per topic.

    Args:
        context: of the broker.
        topics: all of the broker's.
        openings: opens large batches off the event loop.
        link_token: the secret of links, from which the secrets of fingerprints are made.
        close_producer: closes a producer from this side, so that its client comes back.
        stored: everything in the metadata store at start.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        openings: Openings,
        link_token: bytes,
        close_producer: Callable[[Producer], None],
        stored: Mapping[str, bytes],
    ) -> None:
        self._outbox = context.outbox
        self._resources = context.resources
        self._cluster = context.cluster
        self._topics = topics
        self._openings = openings
        self._link_token = link_token
        self._close_producer = close_producer
        self._stored = {key: stored[key] for key in stored if key.startswith((PREFIX, BLOCK_PREFIX, WITHDRAWN))}
        self.counters = Counters()

    def _wanted(self, topic: Topic) -> IdempotencyPolicy | None:
        if not topic.name.persistent or topic.name.local.startswith("__"):  # system topics are the broker's own matter
            return None
        return self._resources.idempotency(topic.name)

    def topic_loaded(self, topic: Topic) -> None:
        """A topic exists: just created, or found at start."""
        self._load_withdrawn(topic)
        self._follow(topic)

    def _load_withdrawn(self, topic: Topic) -> None:
        data = self._stored.pop(WITHDRAWN + topic.text, None) if self._stored else None
        if data is None:
            return
        try:
            topic.withdrawals.load(data)
        except ValueError as error:
            text = f"{error}; messages of {topic.text} that were withdrawn are delivered again"
            self._outbox.put(Note("warning", text))
        for subscription in topic.subscriptions.values():
            topic.withdrawals.acknowledge_in(subscription.cursor)

    def all_loaded(self) -> None:
        """All topics are loaded: the remaining stored keys belong to no topic and are deleted."""
        if self._stored:
            self._outbox.put(Store({}, tuple(self._stored), lambda _error: None))
        self._stored = {}

    def policies_changed(self, topics: Sequence[Topic]) -> None:
        """A change of policies of these topics is in force."""
        for topic in topics:
            self._follow(topic)

    def _follow(self, topic: Topic) -> None:
        policy = self._wanted(topic)
        now = topic.idempotency
        if (now.policy if now is not None else None) == policy:
            return
        if now is not None and policy is not None and now.policy.property == policy.property:
            now.adjust(policy)
            return
        if now is not None:
            topic.switch_idempotency(None)
            now.stop()
        if policy is not None:
            self._switch_on(topic, policy)

    def _switch_on(self, topic: Topic, policy: IdempotencyPolicy) -> None:
        idempotency = TopicIdempotency(
            self._outbox,
            topic.text,
            topic.log,
            policy=policy,
            counters=self.counters,
            when_drained=topic.when_drained,
            cluster=self._cluster,
            withdrawals=topic.withdrawals,
            withdraw=topic.withdraw,
            openings=self._openings,
            secret=self._secret(topic),
        )
        topic.switch_idempotency(idempotency)
        # No client publishes until the stored keys are known: there is no window in which a key is accepted twice.
        for producer in topic.producers.everybody():
            self._close_producer(producer)
        idempotency.start(self._claim(topic, idempotency))

    def _secret(self, topic: Topic) -> bytes:
        """The secret of a topic's fingerprints: made from the links' token, which no client has
        (docs/decisions/0018).
        """
        about = f"{topic.text} {topic.log.incarnation}".encode()
        return blake2b(about, key=self._link_token[:64], digest_size=32, person=b"idempotency keys").digest()

    def _claim(self, topic: Topic, idempotency: TopicIdempotency) -> Stored | None:
        """The stored keys of a topic that was there at start, if they are its."""
        try:
            stored = Stored(topic.text, self._stored)
        except ValueError:
            return None
        if not idempotency.fits(stored.record):
            return None
        for key in stored.keys:
            del self._stored[key]
        return stored

    def topic_removed(self, topic: Topic) -> None:
        """A topic is being deleted."""
        if topic.idempotency is not None:
            topic.idempotency.stop()
            topic.switch_idempotency(None)
        self._outbox.put(Store({}, (WITHDRAWN + topic.text,), lambda _error: None))

    def durable_low(self, topic: Topic) -> Position | None:
        """The position up to which retention may delete; None if idempotency keys hold nothing back."""
        return topic.idempotency.durable_low() if topic.idempotency is not None else None

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Now and then."""
        if topic.idempotency is not None:
            topic.idempotency.tick(now_ms)

    def stats(self, on: Sequence[TopicIdempotency]) -> dict[str, int]:
        """Figures of the whole broker; counters since its start. `on`: of all topics that have it."""
        counters = self.counters
        memory = [one.table.memory() for one in on]
        return {
            "topics": len(on),
            "keys": sum(len(one.table) for one in on),
            "keyBytes": sum(keys for keys, _ in memory),
            "indexBytes": sum(index for _, index in memory),
            "duplicates": counters.duplicates,
            "withdrawn": counters.withdrawn,
            "twice": counters.twice,
            "unreadable": counters.unreadable,
            "evicted": counters.evicted,
            "expired": counters.expired,
            "replayedEntries": counters.replayed,
        }
