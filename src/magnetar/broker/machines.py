"""The two machines of a topic with replicated subscriptions, as production makes them."""

import importlib
import uuid
from typing import TYPE_CHECKING, Any

from magnetar.broker.replicated import ExactMachine, ReplicatedTopic, SnapshotMachine
from magnetar.core.ids import NONE, Position
from magnetar.geo.ackedsets.pacing import MarkerPacer

if TYPE_CHECKING:
    from magnetar.broker.replication import Replication

_NAMESPACE = uuid.UUID("6d61676e-6574-4172-8073-6e617073686f")


class _Absent:
    """Stands in while a machine is being written (never released)."""

    def load(self, *_: Any) -> Position:
        return NONE

    def sought(self, _subscription: str, then: Any) -> None:
        then("")

    def encode(self, _subscription: str) -> bytes:
        return b""

    def describe(self, _subscription: str) -> dict[str, object]:
        return {}

    def metrics(self) -> dict[str, int]:
        return {}

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


def _machine(module: str, name: str) -> Any:
    try:
        found = getattr(importlib.import_module(module), name)
        return found if hasattr(found, "started") else None
    except (ImportError, AttributeError):
        return None


class Machines:
    """Makes the machines of all topics of one broker; they share what must be shared."""

    def __init__(self) -> None:
        self.pacer = MarkerPacer()
        self._number = 0

    def __call__(self, around: "Replication", host: ReplicatedTopic) -> tuple[ExactMachine, SnapshotMachine]:
        """Exact mode's machine and snapshot mode's."""
        settings, broker = around.settings, around.broker

        def new_id() -> str:
            self._number += 1
            return str(uuid.uuid5(_NAMESPACE, f"{broker.uuid} {broker.boot} {self._number}"))

        acked, snapshots = (
            _machine("magnetar.geo.ackedsets", "AckedSets"),
            _machine("magnetar.geo.snapshots", "Snapshots"),
        )
        exact = acked(host, interval_ms=host.interval_ms, pacer=self.pacer) if acked else _Absent()
        snapshot = (
            snapshots(
                host,
                new_id=new_id,
                interval_ms=settings.snapshot_interval_ms,
                timeout_ms=settings.snapshot_timeout_s * 1000,
                cached_max=settings.max_cached_snapshots,
            )
            if snapshots
            else _Absent()
        )
        return exact, snapshot
