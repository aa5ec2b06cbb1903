"""Planted bugs of synchronised metadata: each leaves out one rule of the real code; a world has to notice.

docs/design/metadata.md says of each rule which bug leaves it out. Two more rules of deletions cannot be broken visibly.
A listing counts only if it lists a deletion: an equal time of a living value is no confirmation (`gc_time_only`). A cluster that
buries a deletion without having announced it has to announce it again, because another cluster still waits for it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final
from unittest.mock import patch

from magnetar.core.hybrid_clock import HybridClock
from magnetar.metadata.sync import documents, events
from magnetar.metadata.sync.documents import parent_of
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.projection import Projector, there
from magnetar.metadata.sync.records import EMPTY, Cell, Record, merged, split
from magnetar.metadata.sync.stamps import US_PER_MS, Stamp, beats
from magnetar.metadata.sync.updates import Snapshot, Update
from magnetar_sim.host.patches import Patches, patched

S: Final = "magnetar.metadata.sync."
M: Final = S + "machine."

_local = Synchroniser.local
_commit = Synchroniser.commit
_merge = Synchroniser.merge
_one = Synchroniser._merge
_load = Synchroniser.load


class Here:
    """Which cluster a planted function runs in."""

    name = ""
    applied: ClassVar[dict[tuple[int, str], int]] = {}


def _merge_here(self: Synchroniser, batch: Any, now_ms: int) -> Update:
    Here.name = self.cluster
    return _merge(self, batch, now_ms)


def _beats_by_own_name(one: Stamp | None, other: Stamp | None) -> bool:
    if one is None or other is None:
        return one is not None
    return one.time_us > other.time_us or (one.time_us == other.time_us and one.cluster < (Here.name or other.cluster))


def _wins_by_own_name(one: Cell, other: Cell) -> bool:
    return one.stamp != other.stamp and _beats_by_own_name(one.stamp, other.stamp)


def _apply_time(self: Synchroniser, update: Update, path: str, record: Record, now_ms: int) -> None:
    """An event counts if it is younger than the last time that anything was applied here."""
    key = (id(self), path)
    latest = record.latest
    if latest is None or latest.time_us < Here.applied.get(key, 0):
        return
    _one(self, update, path, record, now_ms)
    if path in update.records:
        Here.applied[key] = now_ms * US_PER_MS


def _no_tombstones(self: Synchroniser, update: Update, now_ms: int) -> None:
    _commit(self, update, now_ms)
    for path in [path for path in self.deletions.dead if path not in self.projector.projected]:
        self._forget(path)


def _by_age(self: Synchroniser) -> Update:
    old = self.clock.latest - 50 * US_PER_MS
    gone = [
        path for path in self.deletions.dead if self._buried_time(path) < old and path not in self.projector.projected
    ]
    return Update(forgotten=gone)


def _drop_ahead(record: Record, limit_us: int) -> tuple[Record, Record]:
    return split(record, limit_us)[0], EMPTY


def _wall_clock(self: HybridClock, now: int) -> int:
    return max(2, now)


def _clock_not_recovered(self: Synchroniser, stored: Mapping[str, bytes]) -> None:
    _load(self, stored)
    self.clock.latest = 0


def _restamped(self: Synchroniser, now_ms: int, *, hello: bool = False) -> Snapshot:
    """A snapshot in the publisher's name."""
    true = self.records

    def mine(stamp: Stamp | None) -> Stamp | None:
        return None if stamp is None else Stamp(stamp.time_us, self.cluster)

    self.records = {
        path: Record(
            mine(record.created),
            mine(record.deleted),
            {name: Cell(Stamp(cell.stamp.time_us, self.cluster), cell.value) for name, cell in record.fields.items()},
        )
        for path, record in true.items()
    }
    try:
        return _snapshot(self, now_ms, hello=hello)._replace(records=true)
    finally:
        self.records = true


_snapshot = Synchroniser.snapshot


def _parent_check(self: Synchroniser, update: Update, path: str, record: Record, now_ms: int) -> None:
    parent = parent_of(path)
    if not parent or there(parent, update.records.get(parent, self.records.get(parent))):
        _one(self, update, path, record, now_ms)


def _whole(one: Record, other: Record) -> Record:
    """The newest document wins with all its fields."""
    return other if beats(other.latest, one.latest) else one


def _unset_forgotten(one: Record, other: Record) -> Record:
    both = merged(one, other)
    kept = {name: cell for name, cell in both.fields.items() if cell.value is not None}
    return both if len(kept) == len(both.fields) else both._replace(fields=kept)


def _told_again(self: Synchroniser, batch: Any, now_ms: int) -> Update:
    update = _merge(self, batch, now_ms)
    update.to_publish = list(update.records)
    return update


def _first_peer_is_enough(self: Synchroniser) -> Update:
    update = Update()
    others = self._context.members() - {self.cluster}
    for path in self.deletions.candidates():
        if path not in self.projector.projected and self.deletions.unconfirmed(path, others) != others:
            update.buried.append(path)
    if len(self.deletions.buried) + len(update.buried) > self.buried_max:
        update.forgotten = [*self.deletions.buried, *update.buried]
    return update


def _half_read(data: bytes, *known: events.Known) -> events.Event:
    """Values that cannot be are taken all the same."""
    with patch("magnetar.metadata.sync.events.check_fields", lambda *_: None):
        return _decode(data, *known)


_decode = events.decode


def _last_count(kind: Any, fields: Mapping[str, bytes]) -> dict[str, Any]:
    """The number of partitions is the smallest that anybody ever set."""
    document = _to_document(kind, fields)
    if "partitions" in document:
        document["partitions"] = min(int(name.partition("/")[2]) for name in fields if name.startswith("partitions/"))
    return document


_to_document = documents.to_document


def _no_local_part(self: Projector, path: str, kind: Any, record: Record) -> bytes | None:
    return kind.write(_last_count(kind, record.values()))  # type: ignore[no-any-return]


BUGS: Final[dict[str, Patches]] = {
    "tie_by_local_name": {
        M + "Synchroniser.merge": _merge_here,
        "magnetar.metadata.sync.records.beats": _beats_by_own_name,
        "magnetar.metadata.sync.records._wins": _wins_by_own_name,
    },
    "apply_time": {M + "Synchroniser._merge": _apply_time},
    "no_tombstones": {M + "Synchroniser.commit": _no_tombstones},
    "gc_by_age": {M + "Synchroniser.collect": _by_age},
    "drop_ahead": {M + "split": _drop_ahead},
    "wall_clock": {"magnetar.core.hybrid_clock.HybridClock.next": _wall_clock},
    "clock_not_recovered": {M + "Synchroniser.load": _clock_not_recovered},
    "snapshot_restamped": {M + "Synchroniser.snapshot": _restamped},
    "parent_check": {M + "Synchroniser._merge": _parent_check},
    "whole_value": {M + "merged": _whole},
    "unset_forgotten": {M + "merged": _unset_forgotten},
    "no_prune": {
        "magnetar.metadata.sync.records.pruned": lambda record: record,
        M + "pruned": lambda record: record,
    },
    "told_again": {M + "Synchroniser.merge": _told_again},
    "one_peer_confirms": {M + "Synchroniser.collect": _first_peer_is_enough},
    "no_value_check": {S + "events.decode": _half_read},
    "fewer_partitions": {S + "projection.Projector.document": _no_local_part},
    "nothing_kept": {S + "projection.Projector._kept": lambda self, path: False},
}
"""By name: what is replaced with what."""


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """A world in which a rule is left out, for as long as the block runs; "" for the honest one."""
    Here.name = ""
    Here.applied = {}
    with patched(BUGS[bug] if bug else {}):
        yield
