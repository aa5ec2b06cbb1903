"""Planted bugs of exact mode (docs/design/acknowledged-sets.md): one rule of the real machine left out in each."""

from collections.abc import Iterable
from typing import Any

from magnetar.broker.replicated_subscriptions.state_store import StoredStates
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.ids import OriginKey, Position
from magnetar.replication.acked_sets import AckedSets
from magnetar.replication.acked_sets import marker_parts as writing
from magnetar.replication.acked_sets.index_set import IndexSet
from magnetar.replication.acked_sets.state import Merged, SubscriptionState, Told, marks_of
from magnetar.replication.host import Acked
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import INDEX_MAX, AckedSet, AckedSetsMarker, Epoch, LowWater
from magnetar_sim.machines import SimSets

ZERO = (0, 0)
STATE = "magnetar.replication.acked_sets.state"
Marks = dict[str, tuple[int, int]]
_read = AckedSets._read


class OldestCreation(SimSets):
    """Each creation is an epoch, the older wins."""

    def _creation_epoch(self) -> Epoch:
        return Epoch(0, -self.clock.next(self.host.now_ms), self.host.cluster, self.host.log.incarnation)


def _any_epoch(message: pb.GeoEpoch) -> Epoch:
    return Epoch(message.kind, message.time_ms, message.cluster, message.incarnation)


def _lives_ascend(_: AckedSets, key: OriginKey, lives: dict[OriginKey, int]) -> int:
    known = [life for life in lives if life.cluster == key.cluster]
    return min(
        (0 if key.incarnation > life.incarnation else lives.get(key, INDEX_MAX + 1) for life in known),
        default=INDEX_MAX + 1,
    )


def _only_when_asked(host: StoredStates) -> None:
    """Acknowledgements are noted, and nothing but their number makes anybody tell the machines."""


class NoFloor(SimSets):
    """A base states everything."""

    def _creation_floor(self) -> Marks:
        return dict.fromkeys(self.world.names, ZERO)

    def _seek_floor(self, state: SubscriptionState) -> Marks:
        return dict.fromkeys(self.world.names, ZERO)


class TakesAll(SimSets):
    """Who knows a subscription by a delta only takes everything for consumed."""

    def stored(self, entries: Any) -> None:
        super().stored(entries)
        for subscription, state in self.states.items():
            if state.base is None and not self._loading:
                positions = [entry.position for entry in entries if not entry.flags & EntryFlags.MARKER]
                state.acks |= self.translator.of_entries(positions)
                self._apply(subscription, state.acks)


def _first_with_base(subscription: str, state: SubscriptionState, *, full: bool, bytes_max: int) -> list[AckedSet]:
    sets = writing.sets_of(subscription, state, full=full, bytes_max=bytes_max)
    return sets if state.opened != state.epoch else [one._replace(base=None, floor=()) for one in sets]


class EpochWithoutIncarnation(SimSets):
    """A seek's epoch lacks the incarnation."""

    def _seek_epoch(self, state: SubscriptionState) -> Epoch:
        return super()._seek_epoch(state)._replace(incarnation=0)


class CountingEpochs(SimSets):
    """Epochs are counted."""

    def _seek_epoch(self, state: SubscriptionState) -> Epoch:
        return Epoch(1, state.epoch.time_ms + 1, self.host.cluster, 0)


class SeeksAll(SimSets):
    """A seek takes back what is not held here."""

    def _held_at_seek(self, messages: IndexSet) -> IndexSet:
        return messages


class FloorOver(SimSets):
    """The floor is that of some clusters."""

    def clusters(self) -> Iterable[str]:
        """Which."""
        return (self.host.cluster,)

    def _floor(self) -> Marks:
        here, into = self._here(), self.routing.into
        return {
            origin: min(
                (
                    self.waters.mark(name, origin, self.routing, here)
                    for name in self.clusters()
                    if origin in into[name]
                ),
                default=ZERO,
            )
            for origin in self.routing.clusters
        }


class Directly(FloorOver):
    """Of those with a direct link into this one; marks are not relayed."""

    def clusters(self) -> Iterable[str]:
        return self.routing.into[self.host.cluster]

    def _learn_low(self, low: LowWater, writer: str) -> None:
        if low.cluster == writer:
            super()._learn_low(low, writer)


class ByOrigin(SimSets):
    """The floor is the origin's own mark."""

    def _floor(self) -> Marks:
        here = self._here()
        return {name: self.waters.mark(name, name, self.routing, here) for name in self.routing.clusters}


class Stale(SimSets):
    """Marks of a peer's former life count."""

    def _learn_low(self, low: LowWater, writer: str) -> None:
        if low.cluster != self.host.cluster:
            self.waters.learn_low(low, 0)

    def _notice_lives(self) -> None:
        pass

    def rebased(self, cluster: str) -> None:
        self._all_full(cluster)


class Acknowledging(SimSets):
    """Everything below an announced mark counts as acknowledged."""

    def _merge(self, marker: AckedSetsMarker, position: Position) -> None:
        super()._merge(marker, position)
        low = next((marks_of(one.marks) for one in marker.low if one.cluster == marker.writer), {})
        for subscription, state in self.states.items():
            if not self._loading and any(one.subscription == subscription for one in marker.sets):
                state.acks |= self.translator.held().below(low)
                self._apply(subscription, state.acks)


class DropsUnheld(SimSets):
    """Bits of messages that are not here are dropped."""

    def _tidy(self) -> None:
        held = self.translator.held()
        for state in self.states.values():
            state.acks -= state.consumed() - held
            state.dirty = state.dirty & state.acks
        super()._tidy()


class Dropping(SimSets):
    """Bits of some messages that are not here are dropped."""

    def drops(self, *, was_here: bool, may_come: bool) -> bool:
        """Which."""
        raise NotImplementedError

    def _tidy(self) -> None:
        truth, topic = self.world.truth, self.host.log.name
        copy, held = truth.copies.get((self.host.cluster, topic)), self.translator.held()
        ever = copy.ever if copy is not None else set[int]()
        for state in self.states.values():
            gone = IndexSet()
            for key, bitmap in (state.acks - held).origins.items():
                for index in bitmap:
                    uid = truth.messages.get((topic, key.cluster, key.incarnation, index))
                    was_here = uid is not None and truth.entry_of(uid).uid in ever
                    may_come = (key.incarnation, index) >= self.waters.next.get(key.cluster, ZERO)
                    if self.drops(was_here=was_here, may_come=may_come):
                        gone.add_range(key, index, index + 1)
            state.acks -= gone
            state.dirty = state.dirty & state.acks
        super()._tidy()


class DropsNever(Dropping):
    """Those that `replicate_to` keeps away."""

    def drops(self, *, was_here: bool, may_come: bool) -> bool:
        return not was_here and not may_come


class DropsTrimmed(Dropping):
    """Those that retention took."""

    def drops(self, *, was_here: bool, may_come: bool) -> bool:
        return was_here


class NotRelaying(SimSets):
    """Nothing is written again for those that the writer has no link to."""

    def _relays(self, writer: str) -> bool:
        return False


class GoesOn(SimSets):
    """No full state after a restart."""

    def _restarted(self, state: SubscriptionState) -> None:
        state.dirty, state.opened, state.full = IndexSet(), state.epoch, ""


class ForgetsRebase(SimSets):
    """No full state for a peer whose topic is new."""

    def rebased(self, cluster: str) -> None:
        self.waters.forget_peer(cluster, self.host.latest_life_of(cluster))


class Replacing(SimSets):
    """A full state of the same epoch replaces."""

    def _merged(self, state: SubscriptionState, told: Told, *, full: bool) -> Merged:
        if full and told.epoch == state.epoch:
            state.acks, state.dirty = IndexSet(), IndexSet()
        return super()._merged(state, told, full=full)


class ByIndex(SimSets):
    """A cumulative acknowledgement claims all lower indexes."""

    def _bits_of(self, acked: Acked) -> IndexSet:
        found = super()._bits_of(acked)
        if acked.up_to > acked.after:
            for bitmap in found.origins.values():
                bitmap.add_range(0, bitmap.max() + 1)
        return found

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        super().acknowledged(subscription, acked)
        self._apply(subscription, self.states[subscription].acks)


class AcknowledgesBacklog(SimSets):
    """A start at the latest acknowledges what is before it."""

    def _begin(self, subscription: str) -> None:
        super()._begin(subscription)
        state = self.states[subscription]
        state.acks = (state.base or IndexSet()).copy()


class OwnReplayed(SimSets):
    """Recovery leaves markers of other clusters out."""

    def _read(self, entry: Any) -> bool:
        return False if self._loading and entry.origin else _read(self, entry)


class OthersReplayed(SimSets):
    """Recovery leaves its own markers out."""

    def _read(self, entry: Any) -> bool:
        return False if self._loading and not entry.origin else _read(self, entry)


def _told_expiry(self: Any, publish_time_ms: int) -> None:
    before = self.cursor.mark_delete
    hook, self.on_expired = self.on_expired, None
    try:
        _expire(self, publish_time_ms)
    finally:
        self.on_expired = hook
    if self.on_acked is not None and self.cursor.mark_delete > before:
        self.on_acked(self.name, Acked(before, self.cursor.mark_delete))


_expire = Subscription.expire


def _expired_base(self: Any, subscription: str) -> IndexSet:
    cursor = self.host.cursor(subscription)
    return IndexSet() if cursor is None else self.translator.of_cursor(cursor)


def _final_untold(_self: Any, topic: Any, _subscription: Any, _token: Any, _target: str, then: Any) -> None:
    """The final state is said to stand where the log ends already."""
    then(topic.log.last, "")


KINDS: dict[str, type[SimSets]] = {
    "creation_older_wins": OldestCreation,
    "base_no_floor": NoFloor,
    "unknown_base_is_all": TakesAll,
    "epoch_no_incarnation": EpochWithoutIncarnation,
    "epoch_counter": CountingEpochs,
    "seek_forgets_foreign": SeeksAll,
    "floor_own": FloorOver,
    "floor_direct": Directly,
    "origin_floor": ByOrigin,
    "stale_low": Stale,
    "floor_is_ack": Acknowledging,
    "no_pending": DropsUnheld,
    "drop_never": DropsNever,
    "local_floor": DropsTrimmed,
    "no_relay": NotRelaying,
    "delta_after_restart": GoesOn,
    "no_full_on_rebase": ForgetsRebase,
    "full_replaces": Replacing,
    "cumulative_by_index": ByIndex,
    "latest_is_ack": AcknowledgesBacklog,
    "no_replay": OwnReplayed,
    "epoch_volatile": OthersReplayed,
}

EXACT: dict[str, dict[str, Any]] = {
    "creation_older_wins": {"magnetar.wire.acksets._epoch": _any_epoch},
    "base_union": {f"{STATE}.merge_bases": lambda left, floor, right, _: (left | right, dict(floor))},
    "base_no_floor": {f"{STATE}.SubscriptionState._raised": lambda _, floor: dict(floor)},
    "delta_without_base": {"magnetar.replication.acked_sets.marker_writer.sets_of": _first_with_base},
    "seek_is_final": {f"{STATE}.SubscriptionState._kept": lambda *_: IndexSet()},
    "floor_untold": {f"{STATE}.SubscriptionState.waiting": property(lambda _: False)},
    "destination_silent": {"magnetar.broker.links.links.Links.source_active": lambda *_, **__: None},
    "passed_over": {
        "magnetar.replication.link.incarnations.SourceIncarnations.forget": lambda *_: None,
        "magnetar.broker.replicated_subscriptions.registry.Replication.heard_in": lambda *_: None,
        "magnetar.replication.acked_sets.marker_writer.TellingTopic._request": lambda *_: None,
    },
    "forgotten_for_good": {
        "magnetar.replication.acked_sets.marker_reader.HearingTopic._needed": lambda self, messages: (
            self.translator.held_of(messages)
        )
    },
    "lives_ascend": {"magnetar.replication.acked_sets.marker_reader.HearingTopic._first_to_come": _lives_ascend},
    "never_caught_up": {"magnetar.broker.replicated_subscriptions.state_store.StoredStates.catch_up": _only_when_asked},
    "fence_dispatches": {"magnetar.broker.subscriptions.subscription.Subscription.hold": lambda *_: None},
    "activates_unmerged": {
        "magnetar.broker.failover.fencing.Fences.merged": lambda *_: {"merged": True, "exists": True, "watermark": ""},
        "magnetar.broker.failover.final_state.FinalStates.check_merged": lambda *_: None,
    },
    "activates_unasked": {"magnetar.broker.failover.final_state.FinalStates.check_merged": lambda *_: None},
    "final_untold": {
        "magnetar.broker.failover.final_state.FinalStates.write": _final_untold,
        "magnetar.broker.failover.final_state.FinalStates.check_merged": lambda *_: None,  # else the target notices
    },
    "begins_expired": {"magnetar.replication.acked_sets.machine.AckedSets._creation_base": _expired_base},
    "expiry_is_ack": {"magnetar.broker.subscriptions.subscription.Subscription.expire": _told_expiry},
}


__all__ = ["EXACT", "KINDS"]
