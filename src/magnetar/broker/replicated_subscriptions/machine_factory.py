"""Creation of the two machines of a topic with replicated subscriptions, in production."""

import uuid
from typing import TYPE_CHECKING

from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, MachineHost, SnapshotMachine
from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
from magnetar.replication.acked_sets import AckedSets, MarkerPacer
from magnetar.replication.snapshots import Snapshots

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions

_NAMESPACE = uuid.UUID("6d61676e-6574-4172-8073-6e617073686f")


class Machines:
    """Makes the machines of all topics of one broker; they share what must be shared."""

    def __init__(self) -> None:
        self._pacer: MarkerPacer | None = None
        self._number = 0

    def __call__(
        self, registry: "ReplicatedSubscriptions", host: ReplicatedTopic
    ) -> tuple[ExactMachine, SnapshotMachine]:
        """The machines of exact mode and of snapshot mode; neither writes before `set_writes`."""
        settings, context = registry.settings, registry.context

        def new_id() -> str:
            # No chance left of `runtime`: the boot time and a count are as unique.
            self._number += 1
            return str(uuid.uuid5(_NAMESPACE, f"{context.uuid} {context.boot} {self._number}"))

        if self._pacer is None:
            # Here, because this is made before the settings are known.
            self._pacer = MarkerPacer(settings.markers_per_s_max)
        exact = AckedSets(
            MachineHost(host, exact=True),
            interval_ms=host.interval_ms,
            pacer=self._pacer,
            writes=host.mode == "exact",
            set_bytes_max=settings.set_bytes_max,
        )
        snapshot = Snapshots(
            MachineHost(host, exact=False),
            new_id=new_id,
            interval_ms=settings.snapshot_interval_ms,
            timeout_ms=settings.snapshot_timeout_s * 1000,
            cached_max=settings.max_cached_snapshots,
            writes=host.mode == "snapshot",
        )
        return exact, snapshot
