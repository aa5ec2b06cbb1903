"""The interface of a topic's replicated subscriptions for other parts of the broker.

`broker.replicated_subscriptions.topic.ReplicatedTopic` implements it. That room is below topics in the import
order, so a topic refers to it by this protocol.
"""

from collections.abc import Callable
from typing import Any, Protocol

from magnetar.core.ids import Position
from magnetar.wire.acksets import FenceToken, Mark


class FinalStateMachine(Protocol):
    """The part of the machine of exact mode (`replication.acked_sets.machine.AckedSets`) that a planned failover
    needs.
    """

    def final(self, subscription: str, token: FenceToken, then: Callable[[Position, str], None]) -> None:
        """Write the full state with the failover's token; `then` with its last position when it is durable."""
        ...

    def fence(self, subscription: str) -> FenceToken | None:
        """The token of the latest final state that was merged or written; None: there is none."""
        ...

    def unsubscribed(self, subscription: str) -> bool:
        """Whether the subscription was deleted here, so that states of other clusters are ignored."""
        ...

    def describe(self, subscription: str) -> dict[str, Any]:
        """The state for administration; empty: the subscription is not known."""
        ...


class TopicReplicatedSubscriptions(Protocol):
    """The replicated subscriptions of one topic."""

    @property
    def ready(self) -> bool:
        """Whether the replay of the log is over."""
        ...

    @property
    def exact(self) -> FinalStateMachine:
        """The machine of exact mode."""
        ...

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when the replay is over, at once if it is."""
        ...

    def subscriptions(self) -> tuple[str, ...]:
        """The replicated ones, ascending."""
        ...

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """Whether other clusters have yet to get something of a replicated subscription."""
        ...

    def retained(self) -> tuple[Mark, ...]:
        """Per origin the first of its own messages that it retains, as far as known here."""
        ...

    def learn_retained(self, marks: tuple[Mark, ...]) -> None:
        """Learn what the source of a link reported of the messages that its clusters retain."""
        ...

    def rebased(self, cluster: str) -> None:
        """A link of the topic to or from a cluster started over, or something was lost to it."""
        ...

    def tick(self, now_ms: int, since_ms: int) -> None:
        """Now and then: warn when consumers of a subscription work in two clusters at once."""
        ...

    def catch_up(self) -> None:
        """Take in what was acknowledged here so far."""
        ...
