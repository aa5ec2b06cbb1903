"""The machines of replicated subscriptions, made as in production; exact mode's one also tells the world what it adopts.

A higher epoch that is adopted may keep bits of the lower one (E5): what the seeking cluster could not know of. Which these
are is decided by the log of the adopting cluster at that moment, so the world has to be there.
"""

from typing import TYPE_CHECKING, ClassVar

from magnetar.broker.machines import Machines
from magnetar.broker.replicated import ReplicatedTopic
from magnetar.broker.seats import ExactMachine, SnapshotMachine
from magnetar.geo.ackedsets import AckedSets
from magnetar.geo.ackedsets.state import Merged, SubscriptionState, Told

if TYPE_CHECKING:
    from magnetar.broker.replication import Replication
    from magnetar.sim.world import World


class SimSets(AckedSets):
    """The real machine, looked at from inside where the world's memory needs it."""

    world: ClassVar["World"]

    def _merged(self, state: SubscriptionState, told: Told, *, full: bool) -> Merged:
        before = state.epoch
        merged = super()._merged(state, told, full=full)
        if state.epoch != before:
            name = next(name for name, one in self.states.items() if one is state)
            self.world.acks.adopted(self.host.log.name, name, state, told)
        return merged


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
