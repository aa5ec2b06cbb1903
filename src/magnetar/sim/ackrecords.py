"""What `Acks` keeps of each subscription."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar.core.ids import Position

if TYPE_CHECKING:
    from magnetar.broker.subscription import Subscription

Name = tuple[str, str, str]
"""Cluster, topic, subscription."""


@dataclass(slots=True)
class Acked:
    """The truth of one subscription in one cluster.

    Attributes:
        may: messages that may count as acknowledged there (of a replicated one in exact mode: see `Shared.may`).
        machine: the broker's object, to notice a new one.
        delivered: messages that were sent to a consumer there, since the calm.
        late: messages that were about to be deleted when the subscription was made or moved.
        expired: messages that the operator's expiry passed.
        undone: messages that came back by a seek that nobody was told is durable.
        told: per epoch what the broker knows to be acknowledged: by its consumers, or by a marker that it has read.
        unsafe: acknowledgements of this life, with their epochs, that nothing durable has yet.
        unread: markers that are durable, and that the broker has not been told of yet.
        coming: the same of updates in snapshot mode, with what they may tell.
    """

    may: set[int] = field(default_factory=set)
    machine: "Subscription | None" = None
    delivered: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    told: dict[Any, set[int]] = field(default_factory=dict)
    unsafe: list[tuple[Any, set[int]]] = field(default_factory=list)
    unread: list[tuple[Position, str, Any, set[int]]] = field(default_factory=list)
    coming: list[tuple[Position, set[int]]] = field(default_factory=list)


@dataclass(slots=True)
class Creation:
    """Somebody made the subscription.

    Attributes:
        cluster, uuid, incarnation: where.
        base: messages held in front of its start.
        scope: origins that it states something about.
        durable: a marker that tells of it is on a disk.
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
        created: all creations.
        acked: acknowledged by a consumer, anywhere, ever.
        deliveries: messages that consumers were given.
        again: of these, those that were acknowledged somewhere before.
        given_up: it was deleted in some cluster: what that one still hears is not promised.
        sought: it was moved back, or ahead, by somebody.
    """

    may: dict[Any, set[int]] = field(default_factory=dict)
    must: dict[Any, dict[str, set[int]]] = field(default_factory=dict)
    created: list[Creation] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    deliveries: int = 0
    again: int = 0
    given_up: bool = False
    sought: bool = False
