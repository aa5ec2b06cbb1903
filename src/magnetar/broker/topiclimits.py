"""The limits of one topic, put together of its policies, its namespace's and the broker's defaults."""

from typing import Final, NamedTuple

from magnetar.broker.consumer import SubType
from magnetar.broker.rates import UNLIMITED
from magnetar.core.config import BrokerConfig
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.metadata.policies import Policies
from magnetar.metadata.policytable import BY_NAME
from magnetar.metadata.policytypes import (
    AutoSubscriptionCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
)
from magnetar.metadata.topicpolicies import NO_POLICIES, TopicPolicies

NO_RATE: Final = PublishRate()
NO_DISPATCH_RATE: Final = DispatchRate()


class TopicLimits(NamedTuple):
    """What holds for one topic. Numbers are never 0: no limit is `UNLIMITED`, or the broker's ceiling."""

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
    delayed: DelayedDelivery
    inactive: InactiveTopics | None


def limits_of(topic: TopicPolicies, namespace: Policies, config: BrokerConfig) -> TopicLimits:
    """What holds for a topic with these policies."""

    def number(name: str, ceiling: int = UNLIMITED) -> int:
        return min(BY_NAME[name].applied(topic, namespace, config) or UNLIMITED, ceiling)

    def value(name: str) -> object:
        return BY_NAME[name].applied(topic, namespace, config)

    dispatch, each = value("dispatch-rate"), value("subscription-dispatch-rate")
    publish, delayed, inactive = value("publish-rate"), value("delayed-delivery"), value("inactive-topics")
    comes = value("auto-subscription-creation")
    return TopicLimits(
        producers=number("max-producers", config.producers_per_topic_max),
        consumers=number("max-consumers", config.consumers_per_topic_max),
        consumers_per_subscription=number("max-consumers-per-subscription"),
        subscriptions=number("max-subscriptions", config.subscriptions_per_topic_max),
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
        delayed=delayed if isinstance(delayed, DelayedDelivery) else DelayedDelivery(),
        inactive=inactive if isinstance(inactive, InactiveTopics) and inactive.delete else None,
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
            f"{topic} has no subscriptions of type {kind.shown}: policy subscription-types allows {allowed}",
        )


DEFAULT_LIMITS: Final = limits_of(NO_POLICIES, Policies(), BrokerConfig())
"""Of a topic that no policy concerns, in a broker with nothing in its file."""
