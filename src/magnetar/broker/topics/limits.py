"""The limits of one topic, computed from its policies, its namespace's and the broker's defaults."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.rates import UNLIMITED
from magnetar.core.settings import BrokerConfig
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME, TABLE
from magnetar.metadata.policies.topic import NO_POLICIES, TopicPolicies
from magnetar.metadata.policies.types import (
    AutoSubscriptionCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    SubscribeRate,
)

NO_RATE: Final = PublishRate()
NO_DISPATCH_RATE: Final = DispatchRate()
NO_SUBSCRIBE_RATE: Final = SubscribeRate()


class TopicLimits(NamedTuple):
    """The limits of one topic. Numbers are never 0: no limit is `UNLIMITED`, or the broker's ceiling.

    `sources`: by the name of a policy, the level that set it, in words for a refusal.

    `expiration_ms` alone may be 0: subscriptions do not expire. `subscription_rates` are the rates of single
    subscriptions, which replace `subscription_dispatch`.
    """

    producers: int
    consumers: int
    consumers_per_subscription: int
    subscriptions: int
    message_bytes: int
    encrypted: bool
    new_subscriptions: bool
    types: frozenset[str]
    unacked_per_consumer: int
    unacked_per_subscription: int
    publish: PublishRate
    dispatch: DispatchRate
    subscription_dispatch: DispatchRate
    subscription_rates: Mapping[str, DispatchRate]
    replicator_dispatch: DispatchRate
    subscribe: SubscribeRate
    expiration_ms: int
    delayed: DelayedDelivery
    inactive: InactiveTopics | None
    sources: Mapping[str, str]


REFUSING: Final = tuple(policy for policy in TABLE if policy.named_in_refusals)
"""Policies that a refusal names."""


def limits_of(
    topic: TopicPolicies, namespace: Policies, config: BrokerConfig, own: Policies | None = None
) -> TopicLimits:
    """The limits of a topic.

    Args:
        topic: its own policies.
        namespace: its namespace's, filled up with the broker's defaults.
        config: the broker's configuration.
        own: the namespace's own policies; None: all of `namespace`.
    """
    sources = {policy.name: policy.source(topic, namespace if own is None else own) for policy in REFUSING}

    def number(name: str, ceiling: int = UNLIMITED, setting: str = "") -> int:
        most = BY_NAME[name].applied(topic, namespace, config) or UNLIMITED
        if setting and ceiling < most:
            sources[name] = f"setting {setting} of the broker"
        return min(most, ceiling)

    def value(name: str) -> object:
        return BY_NAME[name].applied(topic, namespace, config)

    dispatch, each = value("dispatch-rate"), value("subscription-dispatch-rate")
    publish, delayed, inactive = value("publish-rate"), value("delayed-delivery"), value("inactive-topics")
    comes, over_links = value("auto-subscription-creation"), value("replicator-dispatch-rate")
    subscribe, minutes = value("subscribe-rate"), value("subscription-expiration-time")
    return TopicLimits(
        producers=number("max-producers", config.producers_per_topic_max, "producers_per_topic_max"),
        consumers=number("max-consumers", config.consumers_per_topic_max, "consumers_per_topic_max"),
        consumers_per_subscription=number("max-consumers-per-subscription"),
        subscriptions=number("max-subscriptions", config.subscriptions_per_topic_max, "subscriptions_per_topic_max"),
        # Whatever is no policy is the frame decoder's and `metadata.inspect`'s matter, which know of chunks and padding.
        message_bytes=size if (size := number("max-message-size")) < config.message_bytes_max else UNLIMITED,
        encrypted=value("encryption-required") is True,
        types=frozenset(types) if isinstance(types := value("subscription-types"), list) else frozenset(),
        new_subscriptions=not isinstance(comes, AutoSubscriptionCreation) or comes.allow,
        unacked_per_consumer=number("max-unacked-per-consumer"),
        unacked_per_subscription=number("max-unacked-per-subscription"),
        publish=publish if isinstance(publish, PublishRate) else NO_RATE,
        dispatch=dispatch if isinstance(dispatch, DispatchRate) else NO_DISPATCH_RATE,
        subscription_dispatch=each if isinstance(each, DispatchRate) else NO_DISPATCH_RATE,
        subscription_rates={
            name: policies.dispatch_rate
            for name, policies in (topic.subscription_policies or {}).items()
            if policies.dispatch_rate is not None
        },
        replicator_dispatch=over_links if isinstance(over_links, DispatchRate) else NO_DISPATCH_RATE,
        subscribe=subscribe if isinstance(subscribe, SubscribeRate) else NO_SUBSCRIBE_RATE,
        expiration_ms=minutes * 60_000 if isinstance(minutes, int) else 0,
        delayed=delayed if isinstance(delayed, DelayedDelivery) else DelayedDelivery(),
        inactive=inactive if isinstance(inactive, InactiveTopics) and inactive.delete else None,
        sources=sources,
    )


def check_type(kind: SubType, limits: TopicLimits, topic: str) -> None:
    """Refuse a type of subscription that the topic's policies do not name.

    Raises:
        BrokerError: NOT_ALLOWED.
    """
    if limits.types and kind.shown not in limits.types:
        allowed = ", ".join(sorted(limits.types))
        raise BrokerError(
            ErrorCode.NOT_ALLOWED,
            f"{topic} has no subscriptions of type {kind.shown}: {limits.sources['subscription-types']} allows {allowed}",
        )


DEFAULT_LIMITS: Final = limits_of(NO_POLICIES, Policies(), BrokerConfig())
"""The limits of a topic without policies, in a broker without a configuration file."""
