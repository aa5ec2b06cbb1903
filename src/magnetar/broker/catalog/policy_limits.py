"""Limits of topics by policy: the effective value for each topic (topic > namespace > clusters.toml), applied to loaded
topics at once.

A change of policies is applied to every topic that it concerns in the event that makes it durable, before the
administrator gets the answer. Existing clients stay: a lower limit refuses new ones and closes none.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from magnetar.broker.context import BrokerContext
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.subscriptions.subscribe_rate import subscribing_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.limits import TopicLimits, limits_of
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.names import TopicName
from magnetar.core.rates import Rate, rate_of
from magnetar.effects.outbox import Timer
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.topic import TopicPolicies
from magnetar.metadata.policies.types import DispatchRate

UPKEEP_TOPICS: Final = 50
"""The topics checked in one event after a change of their policies: expiry and quotas must not delay a publish."""


class Limits(TopicPart):
    """The limits of all topics of a broker.

    Args:
        context: of the broker.
        topics: those that are loaded, by full name.
        paced: called with a topic of which the rate of its links may have changed.
        enforce: expiry and quotas of one topic as its policies are now; gets the time of day in ms.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        *,
        paced: Callable[[Topic], None],
        enforce: Callable[[Topic, int], None],
    ) -> None:
        self._outbox = context.outbox
        self._resources = context.resources
        self._config = context.config
        self._topics = topics
        self._paced = paced
        self._enforce = enforce
        self._known: dict[tuple[int, int], tuple[TopicPolicies, Policies, TopicLimits]] = {}
        config = context.config
        self._dispatch = rate_of(
            config.dispatch_messages_per_s, config.dispatch_bytes_per_s, 1000, context.outbox.now_ms, None
        )
        """The rate of all topics together."""
        self._concerned: dict[str, None] = {}

    def of(self, name: TopicName) -> TopicLimits:
        """The present limits of a topic."""
        resources = self._resources
        own, shared = resources.topic_policies(name), resources.shared_policies(name.namespace_name)
        # Policies are frozen, so the same objects have the same limits: thousands of topics share one computation.
        known = self._known.get((id(own), id(shared)))
        if known is not None and known[0] is own and known[1] is shared:
            return known[2]
        limits = limits_of(own, shared, self._config, resources.own_policies(name.namespace_name))
        if len(self._known) > 1000:
            self._known.clear()
        self._known[id(own), id(shared)] = (own, shared, limits)
        return limits

    # ------------------------------------------------------------------------------------------------------ following

    def topic_added(self, topic: Topic) -> None:
        """Apply its policies."""
        self._apply(topic, topic.limits)

    def made(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription was made."""
        self._follow_subscription(topic, subscription, self.of(topic.name))

    def nonpersistent_added(self, topic: NonPersistentTopic) -> None:
        """A topic that stores nothing exists."""
        self._follow_publishing(topic, self.of(topic.name))

    def follow(self, topics: Iterable[Topic], nonpersistent: Iterable[NonPersistentTopic]) -> None:
        """A change of policies of these topics is in force: limits follow at once, expiry and quotas a few topics at a time.

        It comes before `TopicPart.policies_changed`: a link that starts reads its rate from the limits of its topic.
        """
        for one in nonpersistent:
            self._follow_publishing(one, self.of(one.name))
        resources = self._resources
        for topic in topics:
            self._follow(topic)
            name = topic.name
            if not (resources.message_ttl_s(name) or resources.backlog_quotas(name) or topic.quota_stop):
                continue  # nothing to expire, no quota, and none to lift
            if not self._concerned:
                self._outbox.put(Timer(self._outbox.now_ms, self._look))
            self._concerned[topic.text] = None

    def _look(self, now_ms: int) -> None:
        """Expiry and quotas do not wait for their next round when the policy changed."""
        for text in list(self._concerned)[:UPKEEP_TOPICS]:
            del self._concerned[text]
            topic = self._topics.get(text)
            if topic is not None:
                self._enforce(topic, self._outbox.day_ms)
        if self._concerned:
            self._outbox.put(Timer(now_ms, self._look))

    def _follow(self, topic: Topic) -> None:
        limits = self.of(topic.name)
        if topic.limits is not limits:
            self._apply(topic, limits)

    def _apply(self, topic: Topic, limits: TopicLimits) -> None:
        now_ms = self._outbox.now_ms
        topic.set_limits(
            limits,
            dispatch_rate=_dispatch_rate(limits.dispatch, topic, now_ms, topic.dispatch_rate),
            subscribing=subscribing_of(limits.subscribe, topic.subscribing),
        )
        self._follow_publishing(topic, limits)
        self._paced(topic)
        for subscription in topic.subscriptions.values():
            self._follow_subscription(topic, subscription, limits)

    def _follow_publishing(self, topic: Topic | NonPersistentTopic, limits: TopicLimits) -> None:
        topic.producers.set_maximum(limits.producers, limits.sources["max-producers"])
        publish, before = limits.publish, topic.publish_throttle
        rate = rate_of(
            publish.messages,
            publish.bytes,
            1000,
            self._outbox.now_ms,
            before.rate if before is not None else None,
        )
        topic.set_publish_rate(rate)

    def _follow_subscription(self, topic: Topic, subscription: Subscription, limits: TopicLimits) -> None:
        own = limits.subscription_rates.get(subscription.name, limits.subscription_dispatch)
        subscription.follow(
            unacked_per_consumer_max=limits.unacked_per_consumer,
            unacked_per_subscription_max=limits.unacked_per_subscription,
            broker_rate=self._dispatch,
            topic_rate=topic.dispatch_rate,
            own_rate=_dispatch_rate(own, topic, self._outbox.now_ms, subscription.own_rate),
            delays=limits.delayed.active,
        )

    def link_rate(self, topic: Topic, before: Rate | None) -> Rate | None:
        """The machine of `replicator-dispatch-rate` for one more link of a topic; `before` where nothing changed."""
        return _dispatch_rate(topic.limits.replicator_dispatch, topic, self._outbox.now_ms, before)


def _dispatch_rate(policy: DispatchRate, topic: Topic, now_ms: int, before: Rate | None) -> Rate | None:
    published = topic.published if policy.relative else None
    return rate_of(policy.messages, policy.bytes, policy.period_s * 1000, now_ms, before, published)
