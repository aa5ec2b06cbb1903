"""Planted bugs of exact mode: each is a patch of the real code with one rule left out. Production code knows of none of them.

One table for all worlds: `EXACT` says by the name of the rule what is replaced by what. The simulator plants these in whole
brokers (`planted.bugs` has the seeds), tests/support/ackbugs.py in single machines. The rules, each with the reason:
docs/design/acknowledged-sets.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.ids import OriginKey, Position
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.acked_sets import marker_parts as writing
from magnetar.replication.acked_sets.log_index import LogIndex
from magnetar.replication.acked_sets.low_water import LowWaterMarks
from magnetar.replication.acked_sets.marker_reader import MarkerReader, Outcome
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.seek_clock import SeekClock
from magnetar.replication.acked_sets.state import SubscriptionState, marks_of
from magnetar.replication.acked_sets.topic_state import TopicState
from magnetar.replication.marker_host import Acked
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import INDEX_MAX, AckedSet, AckedSetsMarker, Epoch, LowWater, StateRequest
from magnetar_sim.host.patches import Patches

ZERO = (0, 0)
HERE = "magnetar.replication.acked_sets"
MACHINE, TOPIC = f"{HERE}.machine.AckedSets", f"{HERE}.topic_state.TopicState"
READER, WRITER = f"{HERE}.marker_reader.MarkerReader", f"{HERE}.marker_writer.MarkerWriter"
STATE, LOW_WATER = f"{HERE}.state", f"{HERE}.low_water.LowWaterMarks"

Marks = dict[str, tuple[int, int]]

_begin, _started, _stored, _merge = AckedSets._begin, AckedSets.started, AckedSets.stored, AckedSets._merge
_acknowledged, _of_acked = AckedSets.acknowledged, LogIndex.of_acked
_tidy, _floor = TopicState.tidy, TopicState.floor
_parse, _learn_marks, _merge_part = MarkerReader.parse, MarkerReader.learn_marks, MarkerReader.merge
_learn_low, _next_epoch = LowWaterMarks.learn_low, SeekClock.next_epoch
_seek, _begin_again = SubscriptionState.seek, SubscriptionState.begin_again


# ------------------------------------------------------------------------------------------------------- starting points


def _oldest_creation(self: AckedSets, subscription: str) -> None:
    """Each creation is an epoch, the older wins."""
    _begin(self, subscription)
    epoch = self.topic.clock.next_epoch(self.host.now_ms, self.host.cluster, self.host.log.incarnation)
    self.topic.states[subscription].epoch = epoch._replace(kind=0, time_ms=-epoch.time_ms)


def _any_epoch(message: pb.GeoEpoch) -> Epoch:
    return Epoch(message.kind, message.time_ms, message.cluster, message.incarnation)


def _begins_expired(self: AckedSets, subscription: str) -> None:
    """What expired before the creation is in its base."""
    _begin(self, subscription)
    cursor, state = self.host.cursor(subscription), self.topic.states[subscription]
    state.base = MessageSet() if cursor is None else self.topic.log_index.of_cursor(cursor)
    state.bound_base()


def _base_of_unheld(self: AckedSets, subscription: str) -> None:
    """A start at the latest takes all indexes below for consumed, held or not."""
    _begin(self, subscription)
    cursor, state = self.host.cursor(subscription), self.topic.states[subscription]
    if cursor is not None and state.base is not None and cursor.mark_delete >= self.host.log.last:
        self.topic.low_marks()
        for cluster, (incarnation, end) in self.topic.low_water.next.items():
            state.base.add_range(OriginKey(cluster, incarnation), 0, end)


def _latest_is_ack(self: AckedSets, subscription: str) -> None:
    """A start at the latest acknowledges what is before it."""
    _begin(self, subscription)
    state = self.topic.states[subscription]
    state.acks = (state.base or MessageSet()).copy()


def _stating_all(self: AckedSets, subscription: str) -> None:
    """A base states everything."""
    _begin(self, subscription)
    self.topic.states[subscription].floor = dict.fromkeys(self.topic.routing.clusters, ZERO)


def _seek_stating_all(self: AckedSets, _: SubscriptionState) -> Marks:
    return dict.fromkeys(self.topic.routing.clusters, ZERO)


def _takes_all(self: AckedSets, entries: Sequence[StoredEntry]) -> None:
    """A subscription that is known by a delta only takes everything for consumed."""
    _stored(self, entries)
    for subscription, state in self.topic.states.items():
        if state.base is None and not self.topic.loading:
            positions = [entry.position for entry in entries if not entry.flags & EntryFlags.MARKER]
            state.acks |= self.topic.log_index.of_entries(positions)
            self._apply(subscription, state.acks)


def _first_with_base(subscription: str, state: SubscriptionState, *, full: bool, bytes_max: int) -> list[AckedSet]:
    sets = writing.sets_of(subscription, state, full=full, bytes_max=bytes_max)
    return sets if state.opened != state.epoch else [one._replace(base=None, floor=()) for one in sets]


# ----------------------------------------------------------------------------------------------------------------- seeks


def _epoch_without_incarnation(self: SeekClock, now_ms: int, cluster: str, incarnation: int) -> Epoch:
    return _next_epoch(self, now_ms, cluster, incarnation)._replace(incarnation=0)


def _counted_epoch(self: SeekClock, _now_ms: int, cluster: str, _incarnation: int) -> Epoch:
    """Epochs are counted."""
    self.see(self.time_ms + 1)
    return Epoch(1, self.time_ms, cluster, 0)


def _seek_forgets_foreign(self: SubscriptionState, epoch: Epoch, before: MessageSet, _held: Any, floor: Marks) -> None:
    """A seek takes back what is not held here."""
    _seek(self, epoch, before, lambda messages: messages, floor)


# ------------------------------------------------------------------------------------------------------------- forgetting


def _floor_over(self: TopicState, clusters: Iterable[str]) -> Marks:
    """The floor is that of some clusters, whatever the origin retains."""
    here, into = self.low_marks(), self.routing.into
    return {
        origin: min(
            (self.low_water.mark(name, origin, self.routing, here) for name in clusters if origin in into[name]),
            default=ZERO,
        )
        for origin in self.routing.clusters
    }


def _floor_of_links(self: TopicState) -> Marks:
    """Of those with a direct link into this one; marks are not relayed."""
    return _floor_over(self, self.routing.into[self.host.cluster])


def _learns_directly(self: MarkerReader, marker: AckedSetsMarker) -> None:
    _learn_marks(self, marker._replace(low=tuple(low for low in marker.low if low.cluster == marker.writer)))


def _floor_by_origin(self: TopicState) -> Marks:
    """The floor is the origin's own mark."""
    here = self.low_marks()
    return {name: self.low_water.mark(name, name, self.routing, here) for name in self.routing.clusters}


def _floor_of_all(self: TopicState) -> Marks:
    """Those are waited for, too, that no links from this cluster lead to."""
    here = self.low_marks()
    return {
        origin: min(self.low_water.mark(name, origin, self.routing, here) for name in self.routing.clusters)
        for origin in self.routing.clusters
    }


def _floor_of_sources(self: TopicState) -> Marks:
    """So are all from which links lead to this cluster, by any way."""
    with patch.object(self.routing, "peers", self.routing.sources[self.host.cluster]):
        return _floor(self)


def _floor_by_markers(self: TopicState) -> Marks:
    """What an origin retains is what its markers say, and links say nothing."""
    self.low_water.own = _floor_by_origin(self)
    return self.low_water.floor(self.routing, self.low_marks())


def _learns_stale(self: LowWaterMarks, low: LowWater, _incarnation: int) -> bool:
    """Marks of a peer's former incarnation count."""
    return _learn_low(self, low, 0)


def _merges_marks(self: AckedSets, marker: AckedSetsMarker, position: Position) -> None:
    """Everything below an announced mark counts as acknowledged."""
    _merge(self, marker, position)
    low = next((marks_of(one.marks) for one in marker.low if one.cluster == marker.writer), {})
    for subscription, state in self.topic.states.items():
        if not self.topic.loading and any(one.subscription == subscription for one in marker.sets):
            state.acks |= self.topic.log_index.held().below(low)
            self._apply(subscription, state.acks)


def _drops_unheld(self: TopicState) -> None:
    """Bits of messages that are not here are dropped."""
    held = self.log_index.held()
    for state in self.states.values():
        state.acks -= state.consumed() - held
        state.dirty = state.dirty & state.acks
    _tidy(self)


class Dropping:
    """Bits of some messages that are not here are dropped; it remembers what was stored in which log.

    Args:
        drops: which: bits, what the log has held, and the topic -> those to be dropped.
    """

    def __init__(self, drops: Callable[[MessageSet, MessageSet, TopicState], MessageSet]) -> None:
        self._drops = drops
        self._ever: dict[tuple[str, str, int], MessageSet] = {}

    def _ever_held(self, topic: TopicState) -> MessageSet:
        log = topic.host.log
        return self._ever.setdefault((topic.host.cluster, log.name, log.incarnation), MessageSet())

    def patches(self) -> Patches:
        """Of the machine, which learns what is stored, and of what forgets."""

        def started(machine: AckedSets) -> None:
            _started(machine)
            ever = self._ever_held(machine.topic)
            ever |= machine.topic.log_index.held()

        def stored(machine: AckedSets, entries: Sequence[StoredEntry]) -> None:
            if entries:
                first = entries[0].position
                after = Position(first.ledger, first.entry - 1)
                found = machine.topic.log_index.held(after, entries[-1].position)
                ever = self._ever_held(machine.topic)
                ever |= found
            _stored(machine, entries)

        def tidy(topic: TopicState) -> None:
            held, ever = topic.log_index.held(), self._ever_held(topic)
            for state in topic.states.values():
                state.acks -= self._drops(state.acks - held, ever, topic)
                state.dirty = state.dirty & state.acks
            _tidy(topic)

        return {f"{MACHINE}.started": started, f"{MACHINE}.stored": stored, f"{TOPIC}.tidy": tidy}


def _never_to_come(bits: MessageSet, ever: MessageSet, topic: TopicState) -> MessageSet:
    """Those that were never here, although later ones of their cluster were: `replicate_to` keeps them away."""
    return (bits - ever).below(topic.low_water.next)


def _once_here(bits: MessageSet, ever: MessageSet, _: TopicState) -> MessageSet:
    """Those that retention took."""
    return bits & ever


# ------------------------------------------------------------------------------------------------- writing and reading


def _goes_on(self: SubscriptionState, full: str) -> None:
    """No full state after a restart."""
    _begin_again(self, full)
    if full == "restart":
        self.opened, self.full = self.epoch, ""


def _forgets_rebase(self: AckedSets, cluster: str) -> None:
    """No full state for a peer whose topic is new."""
    self.topic.low_water.forget_peer(cluster, self.host.latest_incarnation_of(cluster))


def _full_replaces(self: MarkerReader, marker: AckedSetsMarker, part: AckedSet) -> Outcome | None:
    """A full state of the same epoch replaces."""
    state = self._topic.states.get(part.subscription)
    if state is not None and part.full and part.epoch == state.epoch:
        state.acks, state.dirty = MessageSet(), MessageSet()
    return _merge_part(self, marker, part)


def _bits_by_index(self: LogIndex, acked: Acked) -> MessageSet:
    """A cumulative acknowledgement claims all lower indexes."""
    found = _of_acked(self, acked)
    if acked.up_to > acked.after:
        for bitmap in found.origins.values():
            bitmap.add_range(0, bitmap.max() + 1)
    return found


def _acknowledged_by_index(self: AckedSets, subscription: str, acked: Acked) -> None:
    _acknowledged(self, subscription, acked)
    self._apply(subscription, self.topic.states[subscription].acks)


def _reads_own(self: MarkerReader, entry: StoredEntry) -> AckedSetsMarker | StateRequest | None:
    """Recovery leaves markers of other clusters out."""
    return None if self._topic.loading and entry.origin else _parse(self, entry)


def _reads_others(self: MarkerReader, entry: StoredEntry) -> AckedSetsMarker | StateRequest | None:
    """Recovery leaves its own markers out."""
    return None if self._topic.loading and not entry.origin else _parse(self, entry)


def _in_order(_: MarkerReader, key: OriginKey, next_indexes: Mapping[OriginKey, int]) -> int:
    """Incarnations of a cluster ascend."""
    known = [one for one in next_indexes if one.cluster == key.cluster]
    return min(
        (0 if key.incarnation > one.incarnation else next_indexes.get(key, INDEX_MAX + 1) for one in known),
        default=INDEX_MAX + 1,
    )


# ------------------------------------------------------------------------------------------------------ of whole brokers


def _only_when_asked(_host: ReplicatedTopic) -> None:
    """Acknowledgements are noted, and nothing but their number makes anybody report them to the machines."""


def _expiry_is_ack(self: Any, publish_time_ms: int) -> None:
    before = self.cursor.mark_delete
    listener = self.listener
    self.listen(None)
    try:
        _expire(self, publish_time_ms)
    finally:
        self.listen(listener)
    if listener is not None and self.cursor.mark_delete > before:
        listener.acknowledged(self.name, Acked(before, self.cursor.mark_delete))


_expire = Subscription.expire


def _final_unwritten(_self: Any, topic: Any, _subscription: Any, _token: Any, _target: str, then: Any) -> None:
    """The final state is said to stand where the log ends already."""
    then(topic.log.last, "")


def _nothing(*_: Any, **__: Any) -> None:
    """Is done."""


EXACT: dict[str, Patches | Dropping] = {
    "creation_older_wins": {f"{MACHINE}._begin": _oldest_creation, "magnetar.wire.acksets._epoch": _any_epoch},
    "base_union": {f"{STATE}.merge_bases": lambda left, floor, right, _: (left | right, dict(floor))},
    "base_no_floor": {
        f"{MACHINE}._begin": _stating_all,
        f"{MACHINE}._seek_floor": _seek_stating_all,
        f"{STATE}.SubscriptionState._raised": lambda _, floor: dict(floor),
    },
    "unknown_base_is_all": {f"{MACHINE}.stored": _takes_all},
    "delta_without_base": {f"{HERE}.marker_writer.sets_of": _first_with_base},
    "begins_expired": {f"{MACHINE}._begin": _begins_expired},
    "latest_is_ack": {f"{MACHINE}._begin": _latest_is_ack},
    "epoch_no_incarnation": {f"{HERE}.seek_clock.SeekClock.next_epoch": _epoch_without_incarnation},
    "epoch_counter": {f"{HERE}.seek_clock.SeekClock.next_epoch": _counted_epoch},
    "seek_forgets_foreign": {f"{STATE}.SubscriptionState.seek": _seek_forgets_foreign},
    "seek_is_final": {f"{STATE}.SubscriptionState._kept": lambda *_: MessageSet()},
    "floor_own": {f"{TOPIC}.floor": lambda self: _floor_over(self, (self.host.cluster,))},
    "floor_direct": {f"{TOPIC}.floor": _floor_of_links, f"{READER}.learn_marks": _learns_directly},
    "floor_untold": {f"{STATE}.SubscriptionState.waiting": property(lambda _: False)},
    "origin_floor": {f"{TOPIC}.floor": _floor_by_origin},
    "stale_low": {
        f"{LOW_WATER}.learn_low": _learns_stale,
        f"{LOW_WATER}.begin_incarnation": _nothing,
        f"{MACHINE}.rebased": lambda self, cluster: self.writer.all_full(cluster),
    },
    "floor_is_ack": {f"{MACHINE}._merge": _merges_marks},
    "forgotten_for_good": {f"{TOPIC}.needed": lambda self, messages: self.log_index.held_of(messages)},
    "no_pending": {f"{TOPIC}.tidy": _drops_unheld},
    "drop_never": Dropping(_never_to_come),
    "local_floor": Dropping(_once_here),
    "no_relay": {f"{HERE}.low_water.Routing.must_relay": lambda *_: False},
    "delta_after_restart": {f"{STATE}.SubscriptionState.begin_again": _goes_on},
    "no_full_on_rebase": {f"{MACHINE}.rebased": _forgets_rebase},
    "full_replaces": {f"{READER}.merge": _full_replaces},
    "cumulative_by_index": {
        f"{HERE}.log_index.LogIndex.of_acked": _bits_by_index,
        f"{MACHINE}.acknowledged": _acknowledged_by_index,
    },
    "no_replay": {f"{READER}.parse": _reads_own},
    "epoch_volatile": {f"{READER}.parse": _reads_others},
    "incarnations_ascend": {f"{READER}._first_to_come": _in_order},
    "destination_silent": {"magnetar.broker.links.link_host.LinkHost.source_active": _nothing},
    "passed_over": {
        "magnetar.replication.link.incarnations.SourceIncarnations.forget": _nothing,
        "magnetar.broker.replicated_subscriptions.registry.ReplicatedSubscriptions.heard_in": _nothing,
        f"{WRITER}.request": _nothing,
    },
    "never_caught_up": {"magnetar.broker.replicated_subscriptions.topic.ReplicatedTopic.catch_up": _only_when_asked},
    "fence_dispatches": {"magnetar.broker.subscriptions.subscription.Subscription.hold": _nothing},
    "activates_unmerged": {
        "magnetar.broker.failover.fencing.Fences.merged": lambda *_: {"merged": True, "exists": True, "watermark": ""},
        "magnetar.broker.failover.final_state.FinalStates.check_merged": _nothing,
    },
    "activates_unasked": {"magnetar.broker.failover.final_state.FinalStates.check_merged": _nothing},
    "final_untold": {
        "magnetar.broker.failover.final_state.FinalStates.write": _final_unwritten,
        "magnetar.broker.failover.final_state.FinalStates.check_merged": _nothing,  # else the target notices
    },
    "expiry_is_ack": {"magnetar.broker.subscriptions.subscription.Subscription.expire": _expiry_is_ack},
}
"""By rule, in whole brokers and in single machines."""

MACHINES_ONLY: dict[str, Patches] = {
    "base_of_unheld": {f"{MACHINE}._begin": _base_of_unheld},
    "floor_all": {f"{TOPIC}.floor": _floor_of_all},
    "floor_sources": {f"{TOPIC}.floor": _floor_of_sources},
    "floor_by_markers": {f"{TOPIC}.floor": _floor_by_markers},
    "never_forget": {f"{STATE}.SubscriptionState.forget": lambda *_: False},
}
"""Those that only the worlds of single machines (tests/support/ackworld.py) show."""


def patches_of(rule: Patches | Dropping) -> Patches:
    """What is replaced; made afresh for each world where the bug has a memory."""
    return Dropping(rule._drops).patches() if isinstance(rule, Dropping) else rule
