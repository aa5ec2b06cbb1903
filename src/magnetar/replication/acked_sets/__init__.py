"""Exact mode of replicated subscriptions: the set of acknowledged messages, the same in every cluster.

    machine        the events of one topic (`AckedSets`), and what follows from each; the rules in order stand at its head
    marker_reader  checks a marker, and merges it into the states
    marker_writer  when markers are written, and what they hold
    topic_state    what is known of one topic: states, marks, clock, links
    state          the state of one subscription, and how two states merge
    message_set    sets of messages, by origin, as compressed bitmaps
    log_index      cursors, acknowledgements and positions of a topic's log <-> sets, by runs
    low_water      which clusters are linked, and below which marks no cluster needs a bit
    seek_clock     the clock that orders seeks
    marker_parts   what goes into a marker, split by size
    pacer          how many markers a broker writes
    codec          the state as bytes
    claims         what snapshot mode's updates claim, as sets

The rules, with the reason of each: docs/design/acknowledged-sets.md.
"""

from magnetar.replication.acked_sets.machine import AckedSets
from magnetar.replication.acked_sets.pacer import MarkerPacer

__all__ = ["AckedSets", "MarkerPacer"]
