"""What `Acks` keeps of each subscription."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar.core.ids import NONE, Position
from magnetar.replication.snapshots.state import later
from magnetar.wire.acksets import AckedSet, Epoch
from magnetar.wire.markers import Update

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription

Name = tuple[str, str, str]
"""Cluster, topic, subscription."""


@dataclass(slots=True, frozen=True)
class Claimed:
    """What another cluster claims in snapshot mode, by an update or by the final state of a failover.

    Attributes:
        position: of the marker.
        writer: the cluster.
        acked: what is acknowledged.
        base: what the writer's starting point skipped.
        seeks: per cluster the latest seek that the writer knew; None: it counts whatever was sought (a final state).
    """

    position: Position
    writer: str
    acked: set[int]
    base: set[int]
    seeks: dict[str, Epoch] | None


@dataclass(slots=True)
class SnapshotTruth:
    """What snapshot mode's promises about one subscription in one cluster are judged by; see `updates`.

    Attributes:
        skipped: what its starting point skipped, or that of the cluster that brought it: updates claim it as that, not as
            acknowledged. Also what was acknowledged while no link concerned the topic: updates may claim that as either.
        base: the part of it that was not sought back: it counts there.
        scope: origins that its creation states something about: those that the policy there named; None: unknown.
        own: what consumers and operators acknowledged there.
        must: per writer what its updates that the broker has read claim: consumers there do not get it again.
        claims: all that other clusters claimed, as far as it is durable.
        unread: the part of it that the broker has not read yet.
        seek: the newest seek there; updates whose writer did not know it do not count.
        sure: the newest one that was answered: what `seek` is again when the broker dies.
        latest: the newest one that may have survived that.
        foreign: per other cluster its newest seek that a marker here names.
        news: something was acknowledged there since, or passed on: there is a reason to write an update.
        follows: the seek elsewhere that it followed, in worlds of changing modes.
        key: the epoch that `must` is of, in worlds of changing modes.
        former: what the subscription of that name before might count, in markers that are on their way still.
        former_until: the last of them.
    """

    skipped: set[int] = field(default_factory=set)
    base: set[int] = field(default_factory=set)
    scope: frozenset[str] | None = None
    own: set[int] = field(default_factory=set)
    must: dict[str, set[int]] = field(default_factory=dict)
    claims: list[Claimed] = field(default_factory=list)
    unread: list[Claimed] = field(default_factory=list)
    seek: Epoch | None = None
    sure: Epoch | None = None
    latest: Epoch | None = None
    foreign: dict[str, Epoch] = field(default_factory=dict)
    news: bool = False
    follows: Epoch | None = None
    key: Any = None
    former: set[int] = field(default_factory=set)
    former_until: Position = NONE


@dataclass(slots=True, frozen=True)
class Coming:
    """A marker of another cluster, in a world of changing modes.

    Attributes:
        position: where it is.
        writer: whose.
        content: an update, or what a marker of exact mode has of the subscription.
        may: what its writer might count when it wrote it.
    """

    position: Position
    writer: str
    content: Update | AckedSet
    may: set[int]


@dataclass(slots=True)
class Acked:
    """The truth of one subscription in one cluster.

    Attributes:
        may: messages that may count as acknowledged there (of a replicated one in exact mode: see `Shared.may`).
        machine: the broker's object, to notice a new one.
        lost: a start did not find it: the broker died before it was stored. What was read of it is on the disk.
        delivered: messages that were sent to a consumer there, since the calm.
        late: messages that were about to be deleted when the subscription was made or moved, also by a seek elsewhere.
        expired: messages that the operator's expiry passed.
        undone: messages that came back by a seek that was not answered yet, so that it may be lost.
        unexpired: the same of those that had expired.
        movers: who sought since, in that order, and has no answer yet.
        known: per epoch what the broker knows to be acknowledged: by its consumers, or by a marker that it has read.
        unsafe: acknowledgements of this life, with their epochs, that nothing durable has yet.
        unread: markers that are durable, and that the broker has not read yet.
        coming: the same in worlds of changing modes: what other clusters claim in either mode.
        snapshot: of snapshot mode.
    """

    may: set[int] = field(default_factory=set)
    machine: "Subscription | None" = None
    lost: bool = False
    delivered: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    unexpired: set[int] = field(default_factory=set)
    movers: list[Any] = field(default_factory=list)
    known: dict[Any, set[int]] = field(default_factory=dict)
    unsafe: list[tuple[Any, set[int]]] = field(default_factory=list)
    unread: list[tuple[Position, str, Any, set[int]]] = field(default_factory=list)
    coming: list["Coming"] = field(default_factory=list)
    snapshot: SnapshotTruth = field(default_factory=SnapshotTruth)


@dataclass(slots=True)
class Creation:
    """A subscription was made.

    Attributes:
        cluster, uuid, incarnation: where.
        base: messages held in front of its start.
        scope: origins that it states something about.
        durable: a marker with its base is on a disk.
    """

    cluster: str
    uuid: str
    incarnation: int
    base: set[int]
    scope: frozenset[str]
    durable: bool = False


@dataclass(slots=True)
class Shared:
    """The truth of one replicated subscription in all clusters.

    Attributes:
        may: per epoch what may be known.
        must: per epoch and cluster what must be known in the end.
        waits: per cluster whose log is gone, epoch and hearer: what others have from it and this hearer of its own link has not.
        created: all creations.
        acked: acknowledged by a consumer, anywhere, ever.
        deliveries: messages that consumers were given.
        again: of these, those that were acknowledged somewhere before.
        given_up: it was deleted in some cluster: what that one still hears is not promised.
        seeks: per epoch that a seek began what it left consumed.
        named: seeks that a marker on a disk names, or named.
        sought: a seek moved it back, or ahead.
        moved: a failover wrote its state as exact mode has it, in snapshot mode.
    """

    may: dict[Any, set[int]] = field(default_factory=dict)
    must: dict[Any, dict[str, set[int]]] = field(default_factory=dict)
    waits: dict[tuple[str, Any, str], set[int]] = field(default_factory=dict)
    created: list[Creation] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    deliveries: int = 0
    again: int = 0
    given_up: bool = False
    seeks: dict[Epoch, set[int]] = field(default_factory=dict)
    named: set[Epoch] = field(default_factory=set)
    sought: bool = False
    moved: bool = False


def knows(content: Update | AckedSet, seek: Epoch | None) -> bool:
    """Whether the writer of a marker knew of a seek; else it does not count behind it."""
    if seek is None:
        return True
    if isinstance(content, AckedSet):
        return content.epoch >= seek
    known = {one.cluster: one for one in content.claim.seeks} if content.claim is not None else {}
    return seek.cluster in known and not later(known[seek.cluster], seek)
