"""Synchronised metadata as metric families: with whom a cluster agrees, what waits, what was refused."""

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

EVENTS = ("applied", "told", "snapshots", "refused")


def families(state: dict[str, Any]) -> Iterable[Metric]:
    """Every family of `GET /geo/v1/metadata`; none while synchronisation is off."""
    if not state.get("enabled"):
        return
    for name, text, value in (
        ("documents", "Tenants, namespaces, policies and the like that exist.", state.get("documents", 0)),
        ("deletions", "Deletions that some cluster has not confirmed.", state.get("deletions", 0)),
        ("waiting", "Documents that are ahead of this cluster's clock.", len(state.get("waiting", ()))),
        ("kept", "Documents deleted elsewhere that topics here need.", len(state.get("kept", ()))),
    ):
        yield GaugeMetricFamily(f"magnetar_metadata_{name}", text, value)
    agrees = GaugeMetricFamily(
        "magnetar_metadata_agrees", "1 while a cluster's last digest is this one's.", labels=["cluster"]
    )
    for cluster, peer in state.get("clusters", {}).items():
        agrees.add_metric([cluster], 1 if peer.get("agrees") else 0)
    yield agrees
    events = CounterMetricFamily("magnetar_metadata_events", "Since the start; see docs/metadata.md.", labels=["event"])
    for name in EVENTS:
        events.add_metric([name], state.get("counters", {}).get(name, 0))
    yield events
