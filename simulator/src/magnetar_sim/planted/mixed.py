"""Planted bugs of what the two modes are to each other: patches of the real machines, with one rule left out."""

from collections.abc import Iterable
from typing import Any

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.snapshots import Snapshots
from magnetar.replication.snapshots.state import State, later
from magnetar.replication.snapshots.update_reader import UpdateReader
from magnetar.wire.markers import Claim

HERE = "magnetar.replication"
_routes_changed, _exact_routes_changed = Snapshots.routes_changed, AckedSets.routes_changed


def _silent_change(self: AckedSets, writes: bool) -> None:
    if writes:
        self.writer.writes = True
    else:
        self.writer.stop()


def _own_seeks_only(self: UpdateReader, _name: str, claim: Claim, state: State) -> bool:
    known = {seek.cluster: seek for seek in claim.seeks}
    here = self._host.cluster
    return here in state.seeks and later(known.get(here), state.seeks[here])


def _seek_kept_quiet(self: Snapshots, subscription: str, _: Iterable[tuple[OriginKey, int, int]]) -> None:
    """The cursor went back, and what the updates and the starting point said stays."""
    self._host.dirty(subscription)


def _tells_no_more(self: Snapshots) -> None:
    for state in self.states.values():
        state.restart()
    _routes_changed(self)


def _gives_again(self: AckedSets) -> None:
    """What other clusters acknowledged goes with the first cluster that goes."""
    before = self.topic.routing.into[self.host.cluster]
    _exact_routes_changed(self)
    if not before <= self.topic.routing.into[self.host.cluster] and not self.topic.loading:
        for name, state in self.topic.states.items():
            state.acks.difference_update(state.acks & self.topic.log_index.held())
            self._rebuild(name, state)


MIXED: dict[str, dict[str, Any]] = {
    "change_untold": {f"{HERE}.acked_sets.machine.AckedSets.set_writes": _silent_change},
    "updates_unlearnt": {f"{HERE}.acked_sets.machine.AckedSets.learnt": lambda *_, **__: None},
    "own_seeks_only": {f"{HERE}.snapshots.update_reader.UpdateReader._written_before_our_seek": _own_seeks_only},
    "base_after_seek": {f"{HERE}.snapshots.update_reader.UpdateReader._began_by_seek": lambda *_: False},
    "goes_back_alone": {f"{HERE}.snapshots.machine.Snapshots.moved_back": _seek_kept_quiet},
}
"""These show while the mode changes."""

BOTH: dict[str, dict[str, Any]] = {
    "leaving_silences": {f"{HERE}.snapshots.machine.Snapshots.routes_changed": _tells_no_more},
    "leaving_forgets": {f"{HERE}.acked_sets.machine.AckedSets.routes_changed": _gives_again},
}
"""These in snapshot mode, when a cluster leaves the policy."""
