"""Snapshot mode of replicated subscriptions: PIP-33, made safe.

    machine           handles the events of one topic (`Snapshots`); its docstring lists the rules
    snapshot_taker    takes snapshots, and answers those of others
    pending_snapshot  a snapshot that is being taken
    cache             the snapshots that a subscription may still pass
    update_writer     updates, announcements and seeks for other clusters
    update_reader     applies updates and seeks of other clusters
    unreported        counts acknowledgements made here that are in no update yet
    marker_appender   markers on their way into the log
    state             the state of one subscription, and how it is stored
    message_runs      sets of messages, as runs
    routes            the clusters that take part

The rules, with the reason of each: docs/design/snapshots.md.
"""

from magnetar.replication.snapshots.machine import Snapshots
from magnetar.replication.snapshots.routes import refuses_snapshots

__all__ = ["Snapshots", "refuses_snapshots"]
