"""Exact mode of replicated subscriptions: the set of acknowledged messages, the same in every cluster.

    indexset     sets of messages, by origin, as compressed bitmaps
    translating  cursors, acknowledgements and positions of a topic's log <-> sets, by runs
    epochs       which starting point counts, and the clock that orders seeks
    state        the state of one subscription, and how two states merge
    routing      who hears whom, and below which marks nobody needs a bit
    storing      the state as bytes
    writing      what goes into a marker, split by size
    pacing       when it may be written
    machine      the events of one topic (`AckedSets`)

The rules, with the reason of each: docs/design/acknowledged-sets.md.
"""

from magnetar.replication.acked_sets.machine import AckedSets
from magnetar.replication.acked_sets.pacer import MarkerPacer

__all__ = ["AckedSets", "MarkerPacer"]
