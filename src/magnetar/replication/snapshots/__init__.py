"""Snapshot mode of replicated subscriptions: PIP-33, made safe (see `machine`)."""

from magnetar.replication.snapshots.machine import Snapshots
from magnetar.replication.snapshots.routes import refuses

__all__ = ["Snapshots", "refuses"]
