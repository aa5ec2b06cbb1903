"""The machines of replicated subscriptions, made as in production; exact mode's one also tells the world of epochs.

A seek begins one, with a starting point (docs/design/acknowledged-sets.md#seek). A higher epoch that is adopted may
keep bits of the lower one: what the seeking cluster could not know of. Which these are is decided by the log of the
adopting cluster at that moment, so the world has to be there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from magnetar.broker.replicated_subscriptions.machine_factory import Machines
from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, SnapshotMachine
from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.acked_sets.index_set import IndexSet
from magnetar.replication.acked_sets.state import Merged, SubscriptionState, Told
from magnetar.wire.acksets import CREATION

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.registry import Replication
    from magnetar_sim.world import World


class SimSets(AckedSets):
    """The real machine, looked at from inside where the world's memory needs it."""

    world: ClassVar["World"]

    def _merged(self, state: SubscriptionState, told: Told, *, full: bool) -> Merged:
        epoch, before = state.epoch, state.consumed() if told.epoch > state.epoch else None
        merged = super()._merged(state, told, full=full)
        if state.epoch != epoch and before is not None:
            name = next(name for name, one in self.states.items() if one is state)
            self.world.epochs.adopted((self.host.cluster, self.host.log.name, name), state, told, before)
        return merged

    def sought(self, subscription: str, then: Callable[[str], None]) -> None:
        """A new epoch begins here."""
        state = self.states.get(subscription)
        epoch, before = (state.epoch, state.consumed()) if state is not None else (CREATION, IndexSet())
        super().sought(subscription, then)
        if state is not None and state.epoch != epoch:
            self.world.epochs.begun((self.host.cluster, self.host.log.name, subscription), state.epoch, before)


class SimMachines(Machines):
    """Makes the machines of one broker.

    Args:
        kind: of exact mode's machine; planted bugs have their own.
    """

    def __init__(self, kind: type[SimSets]) -> None:
        super().__init__()
        self._kind = kind

    def __call__(self, around: "Replication", host: ReplicatedTopic) -> tuple[ExactMachine, SnapshotMachine]:
        """As production makes them, of the kind that is wanted."""
        exact, snapshot = super().__call__(around, host)
        if type(exact) is AckedSets:
            exact.__class__ = self._kind
        return exact, snapshot
