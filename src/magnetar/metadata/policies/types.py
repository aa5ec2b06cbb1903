"""What some policies hold, as Pulsar's JSON: rates, delayed delivery, inactive topics."""

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
    """How much may be published to a topic per second (Pulsar's PublishRate); 0 or below: no limit of that kind."""

    messages: Int32 = -1
    bytes: Int64 = -1


_DISPATCH: Final = {
    "messages": "dispatchThrottlingRateInMsg",
    "bytes": "dispatchThrottlingRateInByte",
    "period_s": "ratePeriodInSecond",
    "relative": "relativeToPublishRate",
}


class DispatchRate(Struct, frozen=True, rename=_DISPATCH):
    """How much consumers are sent per period (Pulsar's DispatchRate); 0 or below: no limit of that kind.

    Attributes:
        messages, bytes: per period; an entry goes out whole, so a batch may go over and is made up for.
        period_s: 1 s to a day.
        relative: what was published in the last period is added to `messages` and `bytes`, where these are above 0: so
            consumers keep up with publishers, and the rate says how fast they may catch up.
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
    """How often one consumer may subscribe to a topic per period (Pulsar's SubscribeRate); 0 or below: no limit.

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
"""Go's tools send the empty one where nothing is to come into being; it is kept as left out."""

_TOPICS: Final = {"allow": "allowAutoTopicCreation", "kind": "topicType", "partitions": "defaultNumPartitions"}


class AutoTopicCreation(Struct, frozen=True, rename=_TOPICS):
    """Whether topics come into being when clients open them (Pulsar's AutoTopicCreationOverride).

    Attributes:
        allow: false: only administrators and links make them.
        kind: what comes into being: a topic without partitions, also where this is left out, or a partitioned one.
        partitions: of a partitioned one, which needs it; without meaning for others.
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
    """Whether topics that nobody uses are deleted (Pulsar's InactiveTopicPolicies). Off unless somebody asks for it.

    Attributes:
        mode: no subscriptions at all, or all have acknowledged everything.
        duration_s: how long nobody published and nobody was connected.
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
    """On how many bookies a message is stored (Pulsar's PersistencePolicies). Kept for tools; nothing acts on it.

    Attributes:
        ensemble, write_quorum, ack_quorum: 1 each is what is true here: a message is stored once, in the broker's own log.
        mark_delete_rate: how often per second a cursor is stored at most; cursors are stored with the log here.
    """

    ensemble: Int32 = 1
    write_quorum: Int32 = 1
    ack_quorum: Int32 = 1
    mark_delete_rate: float = 0.0
