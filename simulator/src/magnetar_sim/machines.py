"""The machines of replicated subscriptions, made as in production; the world observes the epochs of exact mode.

A seek begins one, with a starting point. A higher epoch that is adopted may keep bits of the lower one: what the seeking
cluster could not know of (docs/design/acknowledged-sets.md#seek). Which these are is decided by the log of the adopting
cluster at that moment, so the observer has to be there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.replicated_subscriptions.machine_factory import Machines
from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, SnapshotMachine
from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.acked_sets.marker_reader import Outcome
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.wire.acksets import AckedSet, AckedSetsMarker, Epoch
from magnetar_sim.memory.ackrecords import Name

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions


class EpochObserver(Protocol):
    """Sees the epochs of exact mode (`epochs.Epochs`)."""

    def begun(self, name: Name, epoch: Epoch, before: MessageSet) -> None:
        """A seek began an epoch."""

    def adopted(self, name: Name, state: SubscriptionState, part: AckedSet, before: MessageSet) -> None:
        """A cluster took a higher epoch."""


def observe(machine: AckedSets, observer: EpochObserver) -> None:
    """Report the beginning and the adoption of epochs, from around the two functions in which they happen."""
    host, topic = machine.host, machine.topic
    merge, sought = machine.reader.merge, machine.sought

    def observed_merge(marker: AckedSetsMarker, part: AckedSet) -> Outcome | None:
        state = topic.states.get(part.subscription)
        before = state.consumed() if state is not None and part.epoch > state.epoch else None
        outcome = merge(marker, part)
        if outcome is not None and before is not None:
            observer.adopted((host.cluster, host.log.name, part.subscription), outcome.state, part, before)
        return outcome

    def observed_sought(subscription: str, then: Callable[[str], None]) -> None:
        state = topic.states.get(subscription)
        if state is None:
            sought(subscription, then)
            return
        epoch, before = state.epoch, state.consumed()
        sought(subscription, then)
        if state.epoch != epoch:
            observer.begun((host.cluster, host.log.name, subscription), state.epoch, before)

    machine.reader.merge = observed_merge  # type: ignore[method-assign]
    machine.sought = observed_sought  # type: ignore[method-assign]


class SimMachines:
    """Makes the machines of one broker.

    Args:
        observer: of their epochs.
    """

    def __init__(self, observer: EpochObserver) -> None:
        self._make = Machines()
        self._observer = observer

    def __call__(
        self, registry: "ReplicatedSubscriptions", host: ReplicatedTopic
    ) -> tuple[ExactMachine, SnapshotMachine]:
        """As production makes them, and observed."""
        exact, snapshot = self._make(registry, host)
        assert isinstance(exact, AckedSets)
        observe(exact, self._observer)
        return exact, snapshot
