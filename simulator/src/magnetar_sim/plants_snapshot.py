"""Planted bugs of snapshot mode (docs/design/snapshots.md): patches of the real machine."""

from collections.abc import Collection
from typing import Any
from unittest.mock import patch

from magnetar.core.ids import NONE, Position
from magnetar.replication.snapshots import Snapshots
from magnetar.replication.snapshots.cache import Taken
from magnetar.replication.snapshots.held import Held
from magnetar.replication.snapshots.receiving import Receiver
from magnetar.replication.snapshots.state import State
from magnetar.wire import markers
from magnetar.wire.acksets import SoughtEpoch

HERE = "magnetar.replication.snapshots"
_taken, _own, _work = Taken.__init__, Snapshots._own, Snapshots._work
_update, _retell = Receiver.update, Snapshots._retell


def _taken_highest(self: Taken, local: Position, clusters: dict[str, Position], held: Held) -> None:
    _taken(self, local, clusters, Held({key: [(0, runs[-1][1])] for key, runs in held.origins.items()}))


def _own_with_present_vector(self: Any, entry: Any, marker: Any) -> None:
    if isinstance(marker, markers.Snapshot) and self._started:
        marker = marker._replace(held=self._held.copy().origins)
    _own(self, entry, marker)


def _hears_of_a_seek(self: Receiver, marker: SoughtEpoch, states: dict[str, State]) -> None:
    if marker.subscription in states:
        states[marker.subscription].heard(marker.epoch)


def _update_undoing(self: Receiver, *what: Any) -> None:
    with patch.object(self, "_undo_nothing", lambda _: None):
        _update(self, *what)


def _retells_to_all(self: Any, clusters: Collection[str]) -> None:
    for name, state in self._states.items():
        cursor = self._host.cursor(name)
        if cursor is not None:
            state.told, state.news = NONE, cursor.mark_delete
    _retell(self, clusters)


def _work_without_telling(self: Snapshots) -> None:
    with patch.object(self, "_tell", lambda *_: None):
        _work(self)


SNAPSHOT: dict[str, dict[str, Any]] = {
    "no_restricted_check": {f"{HERE}.cache.Taken.__init__": _taken_highest},
    "no_epoch": {f"{HERE}.receiving.Receiver._written_before_our_seek": lambda *_: False},
    "base_is_ack": {
        f"{HERE}.updates.Teller.claimable": staticmethod(lambda state, taken: taken.held.minus(state.expired))
    },
    "told_expiry": {f"{HERE}.machine.Snapshots.expired": lambda *_: None},
    "vector_too_late": {f"{HERE}.machine.Snapshots._own": _own_with_present_vector},
    "never_tells": {f"{HERE}.updates.Teller.tell": lambda *_: None},
    "never_rests": {f"{HERE}.state.State.has_news": property(lambda self: True)},
    "heard_by_marker_only": {f"{HERE}.receiving.Receiver.update": _update_undoing},
    "retells_to_all": {f"{HERE}.machine.Snapshots._retell": _retells_to_all},
    "snapshot_must_come_first": {f"{HERE}.machine.Snapshots._work": _work_without_telling},
    # What an update said is remembered twice: by this mode, and in the set of the other one.
    "nothing_on_arrival": {
        f"{HERE}.machine.Snapshots._claimed": lambda *_: None,
        "magnetar.replication.acked_sets.machine.AckedSets.learnt": lambda *_: None,
    },
    "begins_untold": {"magnetar.broker.replicated_subscriptions.topic.ReplicatedTopic._begun": lambda *_: None},
    "seek_forgets_nothing": {f"{HERE}.receiving.Receiver.sought": _hears_of_a_seek},
}
