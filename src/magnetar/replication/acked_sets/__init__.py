"""Exact mode of replicated subscriptions: the set of acknowledged messages, the same in every cluster.

    machine        handles the events of one topic (`AckedSets`); its docstring lists the rules
    marker_reader  checks a marker, and merges it into the states
    marker_writer  decides when markers are written, and collects their content
    topic_state    the state of one topic: subscriptions, marks, clock, links
    state          the state of one subscription, and how two states merge
    message_set    sets of messages, by origin, as compressed bitmaps
    log_index      converts cursors, acknowledgements and positions of a topic's log to sets and back, by runs
    low_water      the linked clusters, and the marks below which no cluster needs a bit
    seek_clock     the clock that orders seeks
    marker_parts   the content of markers, split by size
    pacer          limits the markers that a broker writes per second
    codec          the state as bytes
    claims         converts the claims of snapshot mode's updates to sets

The rules, with the reason of each: docs/design/acknowledged-sets.md.
"""

from magnetar.replication.acked_sets.machine import AckedSets
from magnetar.replication.acked_sets.pacer import MarkerPacer

__all__ = ["AckedSets", "MarkerPacer"]
