"""Regular work of a broker on its topics: retention, expiry, backlog quotas.

expiry      messages older than the namespace's TTL are acknowledged on every subscription (links never expire: the publish
            time is the producer's clock, and unsent messages of a link would be lost, docs/design/links.md#no-expiry)
quota       a subscription that lags more than the namespace allows stops the producers, or loses the oldest messages, as its
            policy says; links do not count, they hold data until an operator decides otherwise
unused      subscriptions that had no consumer for long are deleted if a policy says so
inactive    unused topics are deleted if a policy says so
retention   closed ledgers that are not needed are deleted; facts that only they have are made durable first
            (docs/design/links.md#durable-cursor)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.catalog.loaded_topics import LoadedTopics
from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext
from magnetar.broker.links.links import Links
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import QuotaStop, Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.meter import Meter
from magnetar.effects.outbox import Drop, Note, Store
from magnetar.metadata.policies.namespace import BacklogQuota
from magnetar.metadata.topic_records import TOPIC_PREFIX
from magnetar.storage.topiclog import EntryCache, Retention

_CODES = {
    "producer_request_hold": ErrorCode.BACKLOG_QUOTA_HOLD,
    "producer_exception": ErrorCode.BACKLOG_QUOTA_EXCEPTION,
}


RETRY_MS: Final = 500
"""Between two attempts to store that ledgers are to be deleted."""

STEP_MS: Final = 20
"""Between two parts of a round."""

STEP_TOPICS_MIN: Final = 10
"""Topics of one part; few enough that it takes some 0.4 ms."""


def update_rates(topic: Topic | NonPersistentTopic, now_ms: int) -> None:
    """End the interval of the rates of a topic, its producers, subscriptions and links, and begin another."""
    topic.update_rates(now_ms)
    for producer in topic.producers.live.values():
        producer.meter.update(now_ms, producer.counted)
    for subscription in topic.subscriptions.values():
        subscription.update_rates(now_ms)


class Totals(NamedTuple):
    """Sums over all topics, each as it was when the last round came to it."""

    messages_in_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    messages_out_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    entries_written_per_s: float = 0.0
    entries_read_per_s: float = 0.0
    backlog: int = 0

    def plus(self, topic: Topic | NonPersistentTopic) -> "Totals":
        """The totals with one more topic."""
        messages_in, bytes_in = topic.meter.per_s
        out = [one.meter.per_s for one in topic.subscriptions.values()]
        written, read, backlog = 0.0, 0.0, 0
        if isinstance(topic, Topic):
            read = topic.read_per_s
            written = topic.writes.latency.last_interval.per_s if topic.writes is not None else 0.0
            backlog = sum(one.backlog_entries() for one in topic.subscriptions.values())
        return Totals(
            self.messages_in_per_s + messages_in,
            self.bytes_in_per_s + bytes_in,
            self.messages_out_per_s + sum(each[0] for each in out),
            self.bytes_out_per_s + sum(each[1] for each in out),
            self.entries_written_per_s + written,
            self.entries_read_per_s + read,
            self.backlog + backlog,
        )


class CacheRates(NamedTuple):
    """Rates of the cache of recent entries, over the interval between the last two rounds.

    Attributes:
        hits_per_s, hit_bytes_per_s: entries that readers found there.
        misses_per_s, miss_bytes_per_s: entries that they had to read from the disk.
        evictions: how often entries were removed to make room.
    """

    hits_per_s: float = 0.0
    hit_bytes_per_s: float = 0.0
    misses_per_s: float = 0.0
    miss_bytes_per_s: float = 0.0
    evictions: int = 0


READER_BACK_MS: Final = 60_000
"""The time for which a disconnected reader (a seek, an unloaded topic) finds its position: it is the longest pause of
clients between two attempts. After that it does not reconnect: its next subscription usually has another name.
"""


CONSUMERS_BACK_MS: Final = 10 * 60_000
"""The time after a broker's start that consumers have to reconnect before their subscription counts as unused."""

REST_MS: Final = 60_000
"""After this time without clients and new messages, a topic takes less memory until it is used."""

USE_STEPS: Final = 10
"""The part of the expiration time by which the stored last use of a subscription may be too old after a crash."""


def _nobody(_error: str) -> None:
    """The answer is not needed."""


class Upkeep:
    """The regular work of one broker.

    Args:
        context: of the broker; the first round comes after `retention_interval_ms`.
        topics, nonpersistent: those that are loaded, and those that store nothing.
        loaded, catalog: end subscriptions and topics.
        cache: recent entries of all topics.
        clients: of the broker.
        healthy: whether the storage takes writes.
        links: which topics they concern.
        parts: all that keep something of topics, and hold back retention or have work now and then.

    Attributes:
        totals, cache: of the last round that ended.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        nonpersistent: NonPersistentTopics,
        loaded: LoadedTopics,
        catalog: Catalog,
        cache: EntryCache,
        clients: Clients,
        healthy: Callable[[], bool],
        *,
        links: Links,
        parts: tuple[TopicPart, ...],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._nonpersistent = nonpersistent
        self._loaded = loaded
        self._catalog = catalog
        self._entries = cache
        self._clients = clients
        self._healthy = healthy
        self._links = links
        self._parts = parts
        self._trimming: set[str] = set()
        self.totals = Totals()
        self.cache = CacheRates()
        self._cache_meter = Meter(4, context.outbox.now_ms)
        self._evictions = 0
        self._summed = Totals()
        self._left: list[Topic] = []
        self._at_a_time = 0
        self._next_ms = 0
        context.timer(context.outbox.now_ms + context.config.retention_interval_ms, self._round)

    def _round(self, now_ms: int) -> None:
        """Begin a round. Thousands of topics are spread over the interval: all in one event would delay all clients."""
        interval_ms = self._context.config.retention_interval_ms
        self._left = list(self._topics.values())
        self._at_a_time = max(STEP_TOPICS_MIN, -(-len(self._left) * STEP_MS // interval_ms))
        self._next_ms = now_ms + interval_ms
        self._step(now_ms)

    def _step(self, now_ms: int) -> None:
        """Some more topics of this round."""
        for topic in self._left[: self._at_a_time]:
            if self._topics.get(topic.text) is topic:
                self._look_after(topic, now_ms)
        del self._left[: self._at_a_time]
        if self._left:
            self._context.timer(now_ms + STEP_MS, self._step)
            return
        for unkept in self._nonpersistent.topics.values():
            update_rates(unkept, now_ms)
            self._summed = self._summed.plus(unkept)
        self.totals, self._summed = self._summed, Totals()
        self._look_at_cache(now_ms)
        self._links.look_after(self._outbox.day_ms)
        self._context.timer(max(self._next_ms, now_ms + 1), self._round)

    def _look_at_cache(self, now_ms: int) -> None:
        cache, meter = self._entries, self._cache_meter
        meter.update(now_ms, (cache.hits, cache.hit_bytes, cache.misses, cache.miss_bytes))
        hits, hit_bytes, misses, miss_bytes = meter.per_s
        self.cache = CacheRates(hits, hit_bytes, misses, miss_bytes, cache.evictions - self._evictions)
        self._evictions = cache.evictions

    def _look_after(self, topic: Topic, now_ms: int) -> None:
        day_ms = self._outbox.day_ms
        self.inactive(topic, day_ms)
        self.forget_readers(topic, now_ms)
        self.forget_unused(topic, day_ms)
        update_rates(topic, now_ms)
        self._summed = self._summed.plus(topic)
        if topic.log.last == NONE or topic.deleting:
            return
        self.enforce(topic, day_ms)
        for part in self._parts:
            part.tick(topic, now_ms)
        self.trim(topic)
        if topic.idle_ms(day_ms) >= REST_MS:
            topic.log.rest()

    def forget_readers(self, topic: Topic, now_ms: int) -> None:
        """Delete non-durable subscriptions whose consumer left, or was disconnected and did not reconnect."""
        for subscription in list(topic.subscriptions.values()):
            alone = not subscription.durable and not subscription.consumers
            if alone and now_ms - subscription.left_ms > READER_BACK_MS:
                self._loaded.forget_subscription(topic, subscription)

    def forget_unused(self, topic: Topic, day_ms: int) -> None:
        """Delete durable subscriptions that had no consumer for the time of the policy `subscription-expiration-time`.

        Replicated and fenced ones are not deleted: their consumers may be in another cluster.
        """
        limit_ms = topic.limits.expiration_ms
        if not limit_ms or topic.deleting:
            return
        for subscription in list(topic.durable_subscriptions()):
            if subscription.replicated or subscription.held:
                subscription.used_ms = (
                    day_ms  # there, perhaps, and should it end to be replicated, its time begins then
                )
                continue
            subscription.note_use(limit_ms // USE_STEPS)
            subscription.used_ms = min(subscription.used_ms, day_ms)  # otherwise the time came from a wrong clock
            back = self._outbox.now_ms - subscription.created_ms < min(limit_ms, CONSUMERS_BACK_MS)
            if not subscription.consumers and not back and day_ms - subscription.used_ms > limit_ms:
                self._forget(topic, subscription, limit_ms)

    def _forget(self, topic: Topic, subscription: Subscription, limit_ms: int) -> None:
        def ended(error: BrokerError | None) -> None:
            named = f"subscription {subscription.name} of {topic.text}, without consumers for {limit_ms // 60_000} min or more,"
            outcome = f"cannot be deleted: {error}" if error is not None else "is deleted"
            note = Note("info", f"{named} {outcome}, as policy subscription-expiration-time says")
            self._outbox.put(note)

        self._catalog.delete_subscription(subscription, ended)

    # ---------------------------------------------------------------------------------------------- expiry and quotas

    def enforce(self, topic: Topic, day_ms: int) -> None:
        """Expiry and quotas of one topic, as its policies are now, at a time of day (`Outbox.day_ms`)."""
        if topic.log.last != NONE and not topic.deleting:
            self.expire(topic, day_ms)
            self.check_quota(topic, day_ms)

    def expire(self, topic: Topic, day_ms: int) -> None:
        """Acknowledge what is older than the namespace's TTL."""
        ttl_s = self._resources.message_ttl_s(topic.name)
        if ttl_s:
            for subscription in topic.durable_subscriptions():
                subscription.expire(day_ms - ttl_s * 1000)

    def inactive(self, topic: Topic, day_ms: int) -> None:
        """Delete an unused topic, if a policy says so: never without one, never a topic of a link, and no single
        partition.
        """
        idle_ms = topic.idle_ms(day_ms)
        policy = topic.limits.inactive
        if policy is None or idle_ms < policy.duration_s * 1000 or topic.deleting:
            return
        name = topic.name
        kept = name.partition >= 0 and self._resources.partitions(name.base) is not None
        if (
            kept
            or name.local.startswith("__")
            or self._links.geo_replicated(name)
            or self._links.durable_low(topic) is not None
        ):
            return
        left = list(topic.durable_subscriptions())
        if policy.mode == "delete_when_no_subscriptions" and left:
            return
        if any(subscription.backlog_entries() for subscription in left):
            return

        def ended(error: BrokerError | None) -> None:
            outcome = (
                f"cannot be deleted: {error}" if error is not None else "is deleted, as policy inactive-topics says"
            )
            self._outbox.put(Note("info", f"topic {topic.text}, unused for {policy.duration_s} s or more, {outcome}"))

        self._catalog.delete(topic, force=False, done=ended)

    def stop_now(self, topic: Topic) -> QuotaStop | None:
        """The reason why a quota refuses a new producer; None: it is accepted.

        A stop ends when the slowest subscription has caught up, not in the next round: it is checked again when it
        would refuse a producer. So acknowledgements are independent of quotas.
        """
        if topic.quota_stop is not None:
            self.check_quota(topic, self._outbox.day_ms)
        return topic.quota_stop

    def check_quota(self, topic: Topic, day_ms: int) -> None:
        """Act on subscriptions that lag more than they may; lift the stop if none does."""
        quotas = self._resources.backlog_quotas(topic.name)
        stop = None
        for kind, quota in quotas.items():
            over = self._over(topic, kind, quota, day_ms)
            if over and quota.policy == "consumer_backlog_eviction":
                self._evict(topic, kind, quota, day_ms)
            elif over:
                stop = self._stop(topic, kind, quota)
        if stop is not None and topic.quota_stop is None:
            self._outbox.put(Note("warning", f"producers of {topic.text} are stopped: {stop.reason}"))
        elif stop is None and topic.quota_stop is not None:
            self._outbox.put(Note("info", f"producers of {topic.text} may come again: its backlog is within its quota"))
        topic.stop_for_quota(stop)
        if stop is not None:
            for producer in list(topic.producers.live.values()):
                self._clients.close_producer(producer)

    def _stop(self, topic: Topic, kind: str, quota: BacklogQuota) -> QuotaStop:
        if kind == "destination_storage":
            policy, most = "backlog-quota", f"{quota.limit_size} bytes"
        else:
            policy, most = "backlog-quota-age", f"{quota.limit_time} s"
        source = self._resources.policy_source(policy, topic.name)
        reason = f"the slowest subscription of {topic.text} is more than {most} behind ({source})"
        return QuotaStop(_CODES[quota.policy], reason)

    def _over(self, topic: Topic, kind: str, quota: BacklogQuota, day_ms: int) -> bool:
        log = topic.log
        slowest = min((one.mark_delete for one in topic.durable_subscriptions()), default=log.last)
        if kind == "destination_storage":
            return 0 <= quota.limit_size < log.bytes_between(slowest, log.last)
        oldest = log.next_after(slowest)
        return oldest is not None and 0 <= quota.limit_time * 1000 < day_ms - log.stored_by(oldest)

    def _evict(self, topic: Topic, kind: str, quota: BacklogQuota, day_ms: int) -> None:
        """Acknowledge the oldest messages of the subscriptions that lag too much, ledger by ledger or by time."""
        log = topic.log
        for subscription in topic.durable_subscriptions():
            before = subscription.backlog_entries()
            if kind == "message_age":
                subscription.expire(day_ms - quota.limit_time * 1000)
            else:
                for ledger in log.ledger_infos():
                    if log.bytes_between(subscription.mark_delete, log.last) <= quota.limit_size:
                        break
                    subscription.advance_to(Position(ledger.ledger, ledger.entries - 1))
            lost = before - subscription.backlog_entries()
            if lost:
                topic.quota_evicted(kind)
                text = f"{lost} entries of subscription {subscription.name} of {topic.text} were given up: over the backlog quota"
                self._outbox.put(Note("warning", text))

    # ------------------------------------------------------------------------------------------------------- retention

    def keep_from(self, topic: Topic) -> Position | None:
        """The lowest *durable* position after which everything is still needed; None: nothing is needed.

        A subscription that a seek moved back needs everything after its new position, also before the seek is stored
        and answered.
        """
        marks = [min(one.durable_mark_delete, one.mark_delete) for one in topic.durable_subscriptions()]
        lows = (part.durable_low(topic) for part in self._parts)
        return min([*marks, *(low for low in lows if low is not None)], default=None)

    def _retention(self, topic: Topic) -> Retention:
        policy = self._resources.retention(topic.name)
        if any(True for _ in topic.durable_subscriptions()):
            return Retention(policy.time_ms, policy.size_bytes)
        # There are no subscriptions yet: messages have to be there for the first one, within limits.
        config = self._context.config
        return Retention(
            _longer(policy.time_ms, config.retention_unsubscribed_ms),
            _longer(policy.size_bytes, config.retention_unsubscribed_bytes),
        )

    def trim(self, topic: Topic, *, everything: bool = False, then: Callable[[str], None] = _nobody) -> None:
        """Delete ledgers as retention allows.

        Args:
            topic: the topic.
            everything: an administrator requests to delete everything that is not needed.
            then: called once with "" when the ledgers are no longer readable, at once if there is nothing to delete or
                it is in progress already; or with the store's reason for a refusal: then it is tried again until it
                succeeds.
        """
        if topic.text in self._trimming or topic.deleting:
            then("")
            return
        retention = Retention(0, 0) if everything else self._retention(topic)
        # While nothing can be stored, all room that is given back counts: no new entry will close a topic's last ledger.
        trim = topic.log.trim(self.keep_from(topic), self._outbox.day_ms, retention, whole=not self._healthy())
        if trim is None:
            then("")
            return
        self._trimming.add(topic.text)
        record = topic.record
        record.first_ledger = max(record.first_ledger, trim.first_ledger)
        record.next_index = max(record.next_index, trim.next_index)
        if trim.watermarks:
            marks = {source: (position.ledger, position.entry) for source, position in trim.watermarks.items()}
            record.watermarks = {**record.watermarks, **marks}
        if trim.end != NONE:
            record.end = (trim.end.ledger, trim.end.entry)
        self._links.restores.trimming(topic, trim)

        def store(answer: Callable[[str], None]) -> None:
            self._outbox.put(Store({TOPIC_PREFIX + topic.text: record.encode()}, (), partial(stored, answer)))

        def again(_now_ms: int) -> None:
            if self._topics.get(topic.text) is not topic:
                self._trimming.discard(topic.text)
            elif topic.deleting:
                self._context.timer(self._outbox.now_ms + RETRY_MS, again)
            else:
                store(_nobody)

        def stored(answer: Callable[[str], None], error: str) -> None:
            if error and self._topics.get(topic.text) is topic:
                # Whatever stores the record next says that these are deleted, and who subscribes until then is given them.
                answer(error)
                self._context.timer(self._outbox.now_ms + RETRY_MS, again)
                return
            self._trimming.discard(topic.text)
            if error or self._topics.get(topic.text) is not topic:
                answer(error)
                return
            if topic.replicated_subscriptions is not None:
                topic.replicated_subscriptions.catch_up()  # what was acknowledged there is looked up in the log
            topic.log.forget(trim)
            topic.trimmed()
            for part in self._parts:
                part.trimmed(topic)
            self._outbox.put(Drop(tuple(trim.ledgers)))
            answer("")

        store(then)


def _longer(policy: int, default: int) -> int:
    """The longer of two limits; -1 is for ever."""
    return -1 if -1 in (policy, default) else max(policy, default)
