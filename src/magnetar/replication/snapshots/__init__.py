"""Snapshot mode of replicated subscriptions: PIP-33, made safe.

    machine           the events of one topic (`Snapshots`); the rules stand at its head
    snapshot_taker    when snapshots are taken, and answers to those of others
    pending_snapshot  a snapshot that is being taken
    cache             the snapshots that a subscription may still pass
    update_writer     updates, announcements and seeks for other clusters
    update_reader     what an update or a seek of another cluster does here
    unreported        what was acknowledged here and is in no update yet, counted
    marker_appender   markers on their way into the log
    state             what is kept of one subscription, and how it is stored
    message_runs      sets of messages, as runs
    routes            which clusters take part

The rules, with the reason of each: docs/design/snapshots.md.
"""

from magnetar.replication.snapshots.machine import Snapshots
from magnetar.replication.snapshots.routes import refuses_snapshots

__all__ = ["Snapshots", "refuses_snapshots"]
