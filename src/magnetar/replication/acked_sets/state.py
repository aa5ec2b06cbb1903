"""The state of one subscription, and how a marker's part is merged into it. No log, no clock, no I/O.

    consumed = base + acks        base: the messages that the epoch's starting point takes for consumed
                                  acks: the messages that were acknowledged since

    lower epoch      ignored
    same epoch       acks: union; bases: intersection, where both state something
    higher epoch     base, floor, acks are the marker's; old bits about which its base states nothing stay, as acks
    bits that were forgotten below a low-water mark do not come back, unless their messages are here

So the order, repetition and delay of markers do not matter. The reasons: docs/design/acknowledged-sets.md.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import Marks, MessageSet
from magnetar.wire.acksets import CLUSTERS_MAX, CREATION, ORIGINS_MAX, Epoch, FenceToken, Mark

Held = Callable[[MessageSet], MessageSet]
"""Those of some messages that are in this cluster's log (`log_index.LogIndex.held_of`)."""


def later(left: Marks, right: Marks) -> dict[str, tuple[int, int]]:
    """Per cluster the higher mark."""
    return {cluster: max(left.get(cluster, (0, 0)), right.get(cluster, (0, 0))) for cluster in {*left, *right}}


def marks_of(marks: Collection[Mark]) -> dict[str, tuple[int, int]]:
    """Marks of a marker, by cluster."""
    return {mark.cluster: (mark.incarnation, mark.index) for mark in marks}


def to_marks(marks: Marks) -> tuple[Mark, ...]:
    """The reverse of `marks_of`."""
    return tuple(Mark(cluster, *mark) for cluster, mark in sorted(marks.items()))


def unstated(messages: MessageSet, floor: Marks) -> MessageSet:
    """The messages about which a base with this floor states nothing."""
    result = messages.below(floor)
    for key, bitmap in messages.origins.items():
        if key.cluster not in floor:
            result.origins[key] = bitmap.copy()
    return result


def too_many(origins: Collection[OriginKey], known: Collection[OriginKey]) -> list[OriginKey]:
    """Those of some origins that a set has no room for in addition to the known ones: the oldest incarnations.

    A set is stored and written with at most `ORIGINS_MAX`, and read with that limit: with one more, none of it could be read.
    """
    strange = [key for key in origins if key not in known]
    over = len(known) + len(strange) - ORIGINS_MAX
    return sorted(strange, key=lambda key: (key.incarnation, key.cluster))[:over] if over > 0 else []


class Change(IntFlag):
    """The effect of a merge; the machine decides which clusters have to learn of it."""

    NONE = 0
    ACKS = 1
    """New bits."""
    BASE = 2
    """Base or floor changed: a full state has to be written."""
    ADOPTED = 4
    """A higher epoch: consumers are disconnected."""
    KEPT = 8
    """Bits of the lower epoch stayed: clusters that ignored them as such must get them again."""
    BACK = 16
    """Consumed messages came back: a seek for the consumers."""
    FENCE = 32
    """A later stage of a failover."""


@dataclass
class Reported:
    """The part of a marker that concerns one subscription."""

    epoch: Epoch
    acks: MessageSet
    base: MessageSet | None
    floor: dict[str, tuple[int, int]]
    fence: FenceToken | None = None


@dataclass
class Merged:
    """The result of a merge: the change, and the bits that are new here."""

    change: Change
    acks: MessageSet = field(default_factory=MessageSet)


@dataclass
class SubscriptionState:
    """One subscription in one cluster.

    Attributes:
        epoch: of its starting point.
        base: None: not known. A subscription known by a delta only is bound by nothing, and has consumed nothing by it.
        floor: per cluster, below which `base` states nothing; about clusters not named it states nothing at all.
        acks: acknowledged in this epoch, here or elsewhere.
        dirty: those of them that were not written yet.
        full: why the next marker must be a full state; "" when a delta will do.
        in_flight: markers of it that are written and not durable.
        opened: the epoch of the last full state written since the start; None: none was.
        deltas: written since the last full state.
        full_ms: when that was written.
        forgot: per cluster, below which bits were dropped because no cluster needs them.
        fence: the latest stage of a failover that is known.
        left_out: origins for which there was no room (`too_many`), not yet noted. Their acknowledged messages come again.
    """

    epoch: Epoch = CREATION
    base: MessageSet | None = None
    floor: dict[str, tuple[int, int]] = field(default_factory=dict)
    acks: MessageSet = field(default_factory=MessageSet)
    dirty: MessageSet = field(default_factory=MessageSet)
    full: str = ""
    in_flight: int = 0
    opened: Epoch | None = None
    deltas: int = 0
    full_ms: int = 0
    forgot: dict[str, tuple[int, int]] = field(default_factory=dict)
    fence: FenceToken | None = None
    left_out: int = field(default=0, compare=False)

    # --------------------------------------------------------------------------------------------------- questions

    def consumed(self) -> MessageSet:
        """Everything that no consumer needs to be given."""
        return self.acks | self.base if self.base is not None else self.acks.copy()

    def without_consumed(self, messages: MessageSet) -> MessageSet:
        """The messages that are not consumed."""
        left = messages - self.acks
        if self.base is not None and left:
            left -= self.base
        return left

    def consumed_of(self, messages: MessageSet) -> MessageSet:
        """The messages that are consumed."""
        found = messages & self.acks
        if self.base is not None:
            found |= messages & self.base
        return found

    @property
    def waiting(self) -> bool:
        """Whether something is known here that is in no durable marker yet."""
        return bool(self.full) or bool(self.dirty) or self.in_flight > 0

    def _leave_out(self, messages: MessageSet, known: MessageSet) -> None:
        """Remove the messages for which a set with the known ones has no room."""
        if len(messages.origins) + len(known.origins) > ORIGINS_MAX:
            over = too_many(messages.origins, known.origins)
            for key in over:
                del messages.origins[key]
            self.left_out += len(over)

    def bound_base(self) -> None:
        """Leave out of a base made from the log what no set has room for: it is written whole, and read with that limit."""
        if self.base is not None:
            self._leave_out(self.base, MessageSet())

    # ------------------------------------------------------------------------------------------------------ local

    def acknowledge(self, messages: MessageSet, *, write: bool) -> MessageSet:
        """A consumer here acknowledged; what of it is new. `write`: it has to be written."""
        new = self.without_consumed(messages)
        self._leave_out(new, self.acks)
        if new:
            self.acks |= new
            if write:
                self.dirty |= new
        return new

    def begin_again(self, full: str) -> None:
        """Collected changes that were never written are written now, with a full state
        (docs/design/acknowledged-sets.md#recovery).

        Args:
            full: why, "" when nothing is written here.
        """
        self.dirty, self.opened, self.full = MessageSet(), None, full

    def seek(self, epoch: Epoch, before: MessageSet, held: Held, floor: dict[str, tuple[int, int]]) -> None:
        """A seek here: messages that are not here stay consumed; of those here, the ones before the new position are consumed.

        See docs/design/acknowledged-sets.md#seek.

        Args:
            epoch: later than all before.
            before: what the cursor has acknowledged now, of the messages here.
            held: of the log.
            floor: per source of this cluster, below which it has forgotten what was consumed.
        """
        consumed = self.consumed()
        consumed -= held(consumed)
        self._leave_out(before, MessageSet())
        self._leave_out(consumed, before)
        consumed |= before
        self.epoch, self.base, self.floor = epoch, consumed, floor
        self.acks, self.dirty, self.opened, self.deltas = MessageSet(), MessageSet(), None, 0

    # ------------------------------------------------------------------------------------------------------ merge

    def merge(self, reported: Reported, held: Held) -> Merged:
        """Take in a marker's part. Relaying is the machine's matter: `dirty` and `full` are not touched by new bits."""
        change = Change.NONE
        if reported.fence is not None and (self.fence is None or reported.fence > self.fence):
            self.fence = reported.fence
            change |= Change.FENCE
        if reported.epoch < self.epoch:
            return Merged(change)
        before = None
        if reported.epoch > self.epoch or reported.base is not None:
            before = self.consumed()
        if reported.epoch > self.epoch:
            change |= Change.ADOPTED
            if self._adopt(reported, before or MessageSet()):
                change |= Change.KEPT
        acks = reported.acks - self._forgotten(reported.acks, held)
        new = acks - self.acks
        self._leave_out(new, self.acks)
        if new:
            self.acks |= new
            change |= Change.ACKS
        if reported.base is not None and self._merge_base(reported.base, reported.floor, held):
            change |= Change.BASE
        if before is not None and self.without_consumed(before):
            change |= Change.BACK
        return Merged(change, new)

    def _adopt(self, reported: Reported, before: MessageSet) -> bool:
        """A higher epoch begins; whether bits of the lower one stay."""
        kept = self._kept(reported, before)
        self._leave_out(kept, MessageSet())
        self.epoch, self.base, self.floor, self.acks = reported.epoch, None, {}, kept
        self.dirty = self.dirty & kept
        self.opened, self.deltas = None, 0
        return bool(kept)

    @staticmethod
    def _kept(reported: Reported, before: MessageSet) -> MessageSet:
        """Messages that the seeking cluster could not know (one-way links) stay consumed."""
        if not reported.epoch.kind or reported.base is None:
            return MessageSet()
        return unstated(before, reported.floor)

    def _merge_base(self, base: MessageSet, floor: Mapping[str, tuple[int, int]], held: Held) -> bool:
        """Take in a base of the same epoch; whether anything changed."""
        was, scope = self.base, set(self.floor)
        if self.base is None:
            merged, lower = base.copy(), dict(floor)
            self._leave_out(merged, MessageSet())
        else:
            merged, lower = merge_bases(self.base, self.floor, base, floor)
            self._leave_out(merged, merged & self.base)
            if len(lower) > CLUSTERS_MAX:
                known = [cluster for cluster in lower if cluster in self.floor]
                lower = {cluster: lower[cluster] for cluster in [*known, *(lower.keys() - set(known))][:CLUSTERS_MAX]}
        merged -= self._forgotten(merged, held)
        self.base = merged
        self.floor = self._raised(lower)
        return was != merged or scope != set(self.floor)

    def _raised(self, floor: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Messages that were forgotten here are no longer stated."""
        return {cluster: max(mark, self.forgot.get(cluster, (0, 0))) for cluster, mark in floor.items()}

    def _forgotten(self, messages: MessageSet, held: Held) -> MessageSet:
        if not self.forgot:
            return MessageSet()
        low = messages.below(self.forgot)
        if low:
            low -= held(low)
        return low

    # ----------------------------------------------------------------------------------------------------- forgetting

    def forget(self, floor: Marks, held: Held) -> bool:
        """Drop the bits that no cluster needs from now on; the caller makes sure that nothing waits to be written.

        See docs/design/acknowledged-sets.md#forgetting.

        Args:
            floor: per cluster, below which no source of this one holds anything or can still get it.
            held: of the log: what is here stays, however low it is.

        Returns:
            Whether anything changed.
        """
        assert not self.waiting, "bits are forgotten before they are written"
        dropped = False
        for bits in (self.acks,) if self.base is None else (self.acks, self.base):
            low = bits.below(floor)
            if low:
                low -= held(low)
                bits.difference_update(low)
                dropped = dropped or bool(low)
        reached = later(floor, self.forgot)
        changed = dropped or reached != self.forgot
        self.forgot = reached
        self.floor = self._raised(self.floor)
        return changed

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.acks.validate()
        self.dirty.validate()
        assert self.dirty <= self.acks, f"to be written and not acknowledged: {self.dirty - self.acks}"
        if self.base is not None:
            self.base.validate()
        else:
            assert not self.floor, "a floor without a base"
        assert self.in_flight >= 0
        for kept in (self.acks, self.base):
            assert kept is None or len(kept.origins) <= ORIGINS_MAX, "more origins than anybody reads"
        assert self.epoch.kind in (0, 1)


def merge_bases(
    left: MessageSet, left_floor: Marks, right: MessageSet, right_floor: Marks
) -> tuple[MessageSet, dict[str, tuple[int, int]]]:
    """Merge two bases of one epoch: consumed are the messages of both. Where one states nothing, the other counts; the floor of
    the result is the lower one (docs/design/acknowledged-sets.md#base-floor).
    """
    both = left & right
    both |= unstated(left, right_floor)
    both |= unstated(right, left_floor)
    floor = {
        cluster: min(marks[cluster] for marks in (left_floor, right_floor) if cluster in marks)
        for cluster in {*left_floor, *right_floor}
    }
    return both, floor
