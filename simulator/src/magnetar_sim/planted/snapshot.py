"""Planted bugs of snapshot mode (docs/design/snapshots.md): patches of the real machine. Production code knows of none of them.

One table for all worlds: the simulator plants `SNAPSHOT` in whole brokers, tests/support/snapbugs.py plants it in single
machines, and in addition `MACHINES_ONLY`.
"""

from collections.abc import Collection
from typing import Any
from unittest.mock import patch

from magnetar.core.ids import NONE, Position
from magnetar.replication.snapshots import Snapshots
from magnetar.replication.snapshots.cache import CachedSnapshot
from magnetar.replication.snapshots.message_runs import MessageRuns
from magnetar.replication.snapshots.pending_snapshot import PendingSnapshot, Step
from magnetar.replication.snapshots.state import State, later
from magnetar.replication.snapshots.update_reader import UpdateReader
from magnetar.wire import markers
from magnetar.wire.acksets import SoughtEpoch
from magnetar_sim.host.patches import Patches

HERE = "magnetar.replication.snapshots"
_made, _own, _work = CachedSnapshot.__init__, Snapshots._own, Snapshots._work
_update, _repeat_for, _write_update = UpdateReader.update, Snapshots._repeat_for, Snapshots._write_update
_answered = PendingSnapshot.answered


def _taken_highest(self: CachedSnapshot, local: Position, clusters: dict[str, Position], held: MessageRuns) -> None:
    _made(self, local, clusters, MessageRuns({key: [(0, runs[-1][1])] for key, runs in held.origins.items()}))


def _own_with_present_vector(self: Any, entry: Any, marker: Any) -> None:
    if isinstance(marker, markers.Snapshot) and self._started:
        marker = marker._replace(held=self._held.copy().origins)
    _own(self, entry, marker)


def _learns_of_a_seek(self: UpdateReader, marker: SoughtEpoch, states: dict[str, State]) -> None:
    if marker.subscription in states:
        states[marker.subscription].learn_seek(marker.epoch)


def _update_undoing(self: UpdateReader, *what: Any) -> None:
    with patch.object(self, "_drop_unreported", lambda _: None):
        _update(self, *what)


def _any_seek_here(self: UpdateReader, name: str, claim: markers.Claim, state: State) -> bool:
    """Also one of a former subscription, which others name."""
    known = {seek.cluster: seek for seek in claim.seeks}
    ours = (state.seeks.get(self._host.cluster), self._host.epoch(name))
    return any(seek is not None and later(known.get(seek.cluster), seek) for seek in ours)


def _repeats_for_all(self: Any, clusters: Collection[str]) -> None:
    for name, state in self.states.items():
        cursor = self._host.cursor(name)
        if cursor is not None:
            state.reported, state.news = NONE, cursor.mark_delete
    _repeat_for(self, clusters)


def _work_without_updates(self: Snapshots) -> None:
    with patch.object(self, "_write_update", lambda *_: None):
        _work(self)


def _untagged(self: PendingSnapshot, response: markers.SnapshotResponse) -> Step:
    """Nothing distinguishes rounds; a repeated first answer ends the second round."""
    bare = response._replace(snapshot_id=response.snapshot_id.split(":", maxsplit=1)[0])
    if bare.snapshot_id != self.snapshot_id:
        return Step.IGNORED
    return _answered(self, bare._replace(snapshot_id=self.round_id))


def _wanted_for_messages(self: Snapshots) -> bool:
    """Snapshots are only taken for new messages."""
    return self.writes and self._started and bool(self.states) and self._last_message > self._taker.newest


def _reported_at_once(self: Snapshots, subscription: str, state: State) -> None:
    """An update counts as reported before it is durable."""
    _write_update(self, subscription, state)
    if state.writing is not None:
        state.reported = state.writing.local


SNAPSHOT: dict[str, Patches] = {
    "no_restricted_check": {f"{HERE}.cache.CachedSnapshot.__init__": _taken_highest},
    "no_epoch": {f"{HERE}.update_reader.UpdateReader._written_before_our_seek": lambda *_: False},
    "former_seeks_count": {f"{HERE}.update_reader.UpdateReader._written_before_our_seek": _any_seek_here},
    "base_is_ack": {
        f"{HERE}.update_writer.UpdateWriter.claimable": staticmethod(
            lambda state, taken: taken.held.minus(state.expired)
        )
    },
    "told_expiry": {f"{HERE}.machine.Snapshots.expired": lambda *_: None},
    "going_is_acked": {f"{HERE}.state.State.leave_to_retention": lambda *_: None},
    "vector_too_late": {f"{HERE}.machine.Snapshots._own": _own_with_present_vector},
    "never_tells": {f"{HERE}.update_writer.UpdateWriter.write_update": lambda *_: None},
    "never_rests": {f"{HERE}.state.State.has_news": property(lambda self: True)},
    "heard_by_marker_only": {f"{HERE}.update_reader.UpdateReader.update": _update_undoing},
    "retells_to_all": {f"{HERE}.machine.Snapshots._repeat_for": _repeats_for_all},
    "snapshot_must_come_first": {f"{HERE}.machine.Snapshots._work": _work_without_updates},
    # What an update claimed is remembered twice: by this mode, and in the set of the other one.
    "nothing_on_arrival": {
        f"{HERE}.machine.Snapshots._acknowledge_claimed": lambda *_: None,
        "magnetar.replication.acked_sets.machine.AckedSets.learnt": lambda *_, **__: None,
    },
    "begins_untold": {"magnetar.broker.replicated_subscriptions.topic.ReplicatedTopic._begun": lambda *_: None},
    "seek_forgets_nothing": {f"{HERE}.update_reader.UpdateReader.sought": _learns_of_a_seek},
}
"""By rule, in whole brokers and in single machines."""

MACHINES_ONLY: dict[str, Patches] = {
    "one_round": {f"{HERE}.pending_snapshot.PendingSnapshot._round_over": lambda self: Step.COMPLETE},
    "untagged": {f"{HERE}.pending_snapshot.PendingSnapshot.answered": _untagged},
    "partial": {f"{HERE}.pending_snapshot.PendingSnapshot.usable": lambda self: dict(self.positions)},
    "no_trailing": {f"{HERE}.machine.Snapshots._wanted": _wanted_for_messages},
    "told_too_early": {f"{HERE}.machine.Snapshots._write_update": _reported_at_once},
    "forgets_deletion": {
        f"{HERE}.machine.Snapshots.deleted": lambda self, subscription: self.states.pop(subscription, None)
    },
    "held_forgets_trimmed": {f"{HERE}.state.flat": lambda held: []},
    "stale_base": {f"{HERE}.machine.Snapshots._brought": lambda self, _: self._new_state()},
    "no_merge": {f"{HERE}.update_reader.UpdateReader._merge_base": lambda *_: None},
}
"""Those that only the worlds of single machines (tests/support/snapworld.py) show."""
