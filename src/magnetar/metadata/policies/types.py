"""The values of some policies, as Pulsar's JSON: rates, delayed delivery, inactive topics."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class PublishRate(
    Struct,
    frozen=True,
    rename={"messages": "publishThrottlingRateInMsg", "bytes": "publishThrottlingRateInByte"},
):
    """A limit on publishing to a topic per second (Pulsar's PublishRate); 0 or below: no limit of that kind."""

    messages: Int32 = -1
    bytes: Int64 = -1


_DISPATCH: Final = {
    "messages": "dispatchThrottlingRateInMsg",
    "bytes": "dispatchThrottlingRateInByte",
    "period_s": "ratePeriodInSecond",
    "relative": "relativeToPublishRate",
}


class DispatchRate(Struct, frozen=True, rename=_DISPATCH):
    """A limit on dispatching to consumers per period (Pulsar's DispatchRate); 0 or below: no limit of that kind.

    Attributes:
        messages, bytes: per period; an entry is sent whole, so a batch may exceed the limit, and later sends wait for
            it.
        period_s: 1 s to a day.
        relative: what was published in the last period is added to `messages` and `bytes` that are above 0. So
            consumers keep up with publishers, and the rate limits how fast they catch up.
    """

    messages: Int32 = -1
    bytes: Int64 = -1
    period_s: Int32 = 1
    relative: bool = False


class SubscribeRate(
    Struct,
    frozen=True,
    rename={"per_consumer": "subscribeThrottlingRatePerConsumer", "period_s": "ratePeriodInSecond"},
):
    """A limit on how often one consumer may subscribe to a topic per period (Pulsar's SubscribeRate); 0 or below: no
    limit.

    Attributes:
        per_consumer: SUBSCRIBE commands of one address, consumer name and consumer id.
        period_s: 1 s to a day.
    """

    per_consumer: Int32 = -1
    period_s: Int32 = 30


class SubscriptionPolicies(Struct, frozen=True, omit_defaults=True, rename={"dispatch_rate": "dispatchRate"}):
    """Policies of one subscription of a topic (Pulsar's SubscriptionPolicies); None: the topic's.

    Attributes:
        dispatch_rate: how much its consumers are sent, instead of `subscription-dispatch-rate`.
    """

    dispatch_rate: DispatchRate | None = None


class DelayedDelivery(
    Struct,
    frozen=True,
    rename={"active": "active", "tick_time": "tickTime", "delay_ms_max": "maxDeliveryDelayInMillis"},
):
    """Whether `deliver_at` is kept to (Pulsar's DelayedDeliveryPolicies).

    Attributes:
        active: false: messages are delivered at once.
        tick_time: accepted; this broker is exact to the millisecond.
        delay_ms_max: messages that want to wait for longer are refused; 0: any (PIP-315).
    """

    active: bool = True
    tick_time: Int64 = 1000
    delay_ms_max: Int64 = 0


SubscriptionTypeName = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]

TopicKind = Literal["non-partitioned", "partitioned", ""]
"""Go's tools send the empty one if no topics are created; it is kept as left out."""

_TOPICS: Final = {"allow": "allowAutoTopicCreation", "kind": "topicType", "partitions": "defaultNumPartitions"}


class AutoTopicCreation(Struct, frozen=True, rename=_TOPICS):
    """Whether topics are created when clients open them (Pulsar's AutoTopicCreationOverride).

    Attributes:
        allow: false: only administrators and links create them.
        kind: the kind of created topics: without partitions (also if this is left out), or partitioned.
        partitions: number of partitions; required for partitioned ones, unused for others.
    """

    allow: bool
    kind: TopicKind | None = None
    partitions: Int32 | None = None

    def __post_init__(self) -> None:
        if self.kind == "":
            force_setattr(self, "kind", None)


class AutoSubscriptionCreation(Struct, frozen=True, rename={"allow": "allowAutoSubscriptionCreation"}):
    """Whether durable subscriptions come into being when consumers ask for them (Pulsar's AutoSubscriptionCreationOverride).

    Attributes:
        allow: false: only administrators make them.
    """

    allow: bool


InactiveMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]

_INACTIVE: Final = {
    "mode": "inactiveTopicDeleteMode",
    "duration_s": "maxInactiveDurationSeconds",
    "delete": "deleteWhileInactive",
}


class InactiveTopics(Struct, frozen=True, rename=_INACTIVE):
    """Whether unused topics are deleted (Pulsar's InactiveTopicPolicies). Off by default.

    Attributes:
        mode: no subscriptions at all, or all have acknowledged everything.
        duration_s: time without a publish and without a connected client.
        delete: false: nothing is deleted.
    """

    mode: InactiveMode = "delete_when_no_subscriptions"
    duration_s: Int32 = 60
    delete: bool = True


_PERSISTENCE: Final = {
    "ensemble": "bookkeeperEnsemble",
    "write_quorum": "bookkeeperWriteQuorum",
    "ack_quorum": "bookkeeperAckQuorum",
    "mark_delete_rate": "managedLedgerMaxMarkDeleteRate",
}


class Persistence(Struct, frozen=True, rename=_PERSISTENCE):
    """The number of bookies that store a message (Pulsar's PersistencePolicies). Kept for tools; it has no effect.

    Attributes:
        ensemble, write_quorum, ack_quorum: 1 each is true here: a message is stored once, in the broker's own log.
        mark_delete_rate: most writes of a cursor per second; here cursors are stored with the log.
    """

    ensemble: Int32 = 1
    write_quorum: Int32 = 1
    ack_quorum: Int32 = 1
    mark_delete_rate: float = 0.0
