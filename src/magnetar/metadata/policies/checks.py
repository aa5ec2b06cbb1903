"""Checks of the values of policies; each refusal is one line that says what would be right."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from magnetar.core.errors import NameNotValid
from magnetar.core.names import PARTITIONS_MAX, check_subscription
from magnetar.metadata.errors import BadRequest, PreconditionFailed
from magnetar.metadata.policies.namespace import BacklogQuota, BacklogQuotaType, RetentionPolicies
from magnetar.metadata.policies.types import (
    AutoTopicCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    SubscribeRate,
    SubscriptionPolicies,
)

PERIOD_S_MAX: Final = 24 * 3600
"""A ceiling: with a longer period, a burst of one period's messages would make the rate meaningless."""

SUBSCRIPTIONS_MAX: Final = 1_000
"""A ceiling on subscriptions of a topic that have policies of their own: they are kept in memory, as many as a topic may have."""

SECONDS_MAX: Final = 100 * 366 * 24 * 3600
"""A ceiling on how long something is kept: a hundred years."""

DELAY_MS_MAX: Final = 10 * 366 * 24 * 3_600_000
"""A ceiling: ten years."""


def anything(value: Any) -> None:
    """The type says it all, or it is checked where more is known."""


def count(name: str) -> Callable[[int], None]:
    """A check for a number from 0 on."""

    def check(value: int) -> None:
        if value < 0:
            raise PreconditionFailed(f"{name} is 0 (no limit) or more, not {value}")

    return check


def seconds_or_for_ever(name: str) -> Callable[[int], None]:
    """A check for a number of seconds from 0 on, or -1."""

    def check(value: int) -> None:
        if not -1 <= value <= SECONDS_MAX:
            raise PreconditionFailed(f"{name} is -1 (for ever) or 0 to {SECONDS_MAX} seconds, not {value}")

    return check


def clusters(names: Sequence[str]) -> None:
    """Check that there is at least one cluster."""
    if not names:
        raise PreconditionFailed("name at least one cluster; to stop replicating, only the cluster itself")


def publish_rate(rate: PublishRate) -> None:
    """Numbers from -1 on."""
    _rate("publishThrottlingRateInMsg", rate.messages)
    _rate("publishThrottlingRateInByte", rate.bytes)


def dispatch_rate(rate: DispatchRate) -> None:
    """Numbers from -1 on, a period of a second to a day."""
    _rate("dispatchThrottlingRateInMsg", rate.messages)
    _rate("dispatchThrottlingRateInByte", rate.bytes)
    _period(rate.period_s)


def subscribe_rate(rate: SubscribeRate) -> None:
    """A number from -1 on, a period of a second to a day."""
    _rate("subscribeThrottlingRatePerConsumer", rate.per_consumer)
    _period(rate.period_s)


def of_subscriptions(policies: Mapping[str, SubscriptionPolicies]) -> None:
    """Names that subscriptions can have, not too many, and rates that are possible."""
    if len(policies) > SUBSCRIPTIONS_MAX:
        raise PreconditionFailed(
            f"{len(policies)} subscriptions with policies of their own are too many: at most {SUBSCRIPTIONS_MAX}"
        )
    for name, each in policies.items():
        try:
            check_subscription(name)
        except NameNotValid as error:
            raise PreconditionFailed(str(error)) from None
        if each.dispatch_rate is not None:
            dispatch_rate(each.dispatch_rate)


def _period(period_s: int) -> None:
    if not 1 <= period_s <= PERIOD_S_MAX:
        raise PreconditionFailed(f"ratePeriodInSecond is 1 to {PERIOD_S_MAX}, not {period_s}")


def _rate(name: str, value: int) -> None:
    if value < -1:
        raise PreconditionFailed(f"{name} is -1 or 0 (no limit) or more, not {value}")


def delayed_delivery(policy: DelayedDelivery) -> None:
    """Times from 0 on."""
    if policy.tick_time < 0:
        raise PreconditionFailed(f"tickTime is 0 ms or more, not {policy.tick_time}")
    if not 0 <= policy.delay_ms_max <= DELAY_MS_MAX:
        raise PreconditionFailed(f"maxDeliveryDelayInMillis is 0 (any) to {DELAY_MS_MAX}, not {policy.delay_ms_max}")


_CREATION: Final = "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] "


def auto_topic_creation(policy: AutoTopicCreation) -> None:
    """A number of partitions for partitioned topics; the words are Pulsar's, which its tools look for."""
    if policy.allow and policy.kind == "partitioned":
        if policy.partitions is None:
            raise PreconditionFailed(_CREATION + "cannot be null when the type is partitioned.")
        if policy.partitions < 1:
            raise PreconditionFailed(_CREATION + "cannot be less than 1 for partition type.")
        if policy.partitions > PARTITIONS_MAX:
            raise PreconditionFailed(f"{_CREATION}cannot be more than {PARTITIONS_MAX} for partition type.")


def new_auto_topic_creation(policy: AutoTopicCreation) -> None:
    """No number without partitions; such policies were taken before, and stay."""
    if policy.allow and policy.kind == "non-partitioned" and policy.partitions is not None:
        raise PreconditionFailed(_CREATION + "is not allowed to be set when the type is non-partition.")


def inactive_topics(policy: InactiveTopics) -> None:
    """A time above 0."""
    if policy.duration_s < 1:
        raise PreconditionFailed(f"maxInactiveDurationSeconds is 1 or more, not {policy.duration_s}")


BOOKIES_MAX: Final = 5
"""A ceiling on bookies of a ledger: Pulsar's `managedLedgerMaxEnsembleSize`, for tools to see the refusals that they know."""


def persistence(policy: Persistence) -> None:
    """Check like Pulsar, with its words and status 400, because its tools look for them."""
    numbers = {"Ensemble": policy.ensemble, "WriteQuorum": policy.write_quorum, "AckQuorum": policy.ack_quorum}
    for name, value in numbers.items():
        if not 1 <= value <= BOOKIES_MAX:
            raise BadRequest(f"Bookkeeper-{name} must be <= {BOOKIES_MAX} and > 0.")
    if not policy.ensemble >= policy.write_quorum >= policy.ack_quorum:
        raise BadRequest("Bookkeeper " + " >= ".join(f"{name} ({value})" for name, value in numbers.items()))
    if not policy.mark_delete_rate >= 0:
        raise BadRequest(f"managedLedgerMaxMarkDeleteRate is 0 or more, not {policy.mark_delete_rate:g}")


def retention(policy: RetentionPolicies) -> None:
    """Both halves 0 or both not."""
    minutes, megabytes = policy.time_minutes, policy.size_mb
    if minutes < -1 or megabytes < -1:
        raise PreconditionFailed("retention time and size are -1 (no limit), 0 (both), or above")
    if (minutes == 0) != (megabytes == 0):
        raise PreconditionFailed("retention time and size are both 0 or both not: one 0 alone would keep nothing")


def quotas(by_kind: Mapping[BacklogQuotaType, BacklogQuota]) -> None:
    """Limits from -1 on."""
    for quota in by_kind.values():
        if quota.limit_size < -1 or quota.limit_time < -1:
            raise PreconditionFailed("limitSize and limitTime of a backlog quota are -1 (no limit), 0 or more")


def retention_beside_quotas(policy: RetentionPolicies | None, by_kind: Mapping[BacklogQuotaType, BacklogQuota]) -> None:
    """A retention that a backlog quota makes meaningless is refused, as by Pulsar."""
    if policy is None or policy.time_minutes == 0:
        return
    stored, age = by_kind.get("destination_storage"), by_kind.get("message_age")
    if stored is not None and policy.size_mb != -1 and stored.limit_size >= policy.size_bytes:
        raise PreconditionFailed(
            f"retention of {policy.size_mb} MB must exceed the backlog quota, {stored.limit_size} bytes"
        )
    if age is not None and policy.time_minutes != -1 and age.limit_time >= policy.time_minutes * 60:
        raise PreconditionFailed(
            f"retention of {policy.time_minutes} min must exceed the backlog quota, {age.limit_time} s"
        )
