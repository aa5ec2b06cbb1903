"""Snapshot mode of replicated subscriptions: PIP-33, made safe (see `machine`)."""

from magnetar.geo.snapshots.machine import Snapshots
from magnetar.geo.snapshots.routes import refuses

__all__ = ["Snapshots", "refuses"]
