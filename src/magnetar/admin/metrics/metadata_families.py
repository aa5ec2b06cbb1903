"""Synchronised metadata as metric families: the clusters that agree, waiting changes, refused ones."""

from collections.abc import Iterable
from typing import Any

from magnetar.admin.metrics import families as table
from magnetar.admin.metrics.exposition import Row
from magnetar.admin.metrics.families import Family

EVENTS = ("applied", "told", "snapshots", "refused")


def families(state: dict[str, Any]) -> Iterable[tuple[Family, list[Row]]]:
    """Every family of `GET /geo/v1/metadata` with its rows (labels in addition to `cluster`); none while
    synchronisation is off.
    """
    if not state.get("enabled"):
        return
    for family in table.METADATA:
        value = state.get(family.key, 0)
        yield family, [((), value if isinstance(value, int) else len(value))]
    clusters = state.get("clusters", {})
    yield table.METADATA_AGREES, [((name,), bool(peer.get("agrees"))) for name, peer in clusters.items()]
    counters = state.get("counters", {})
    yield table.METADATA_EVENTS, [((name,), counters.get(name, 0)) for name in EVENTS]
