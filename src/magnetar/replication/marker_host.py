"""The interface between the machines of replicated subscriptions and their topic: requests one way, events the other.

    broker.replicated_subscriptions (the host)  --- events --->  acked_sets (exact mode), snapshots (PIP-33)
                                                  <-- requests ---

Each topic that has links has one machine of each mode. Both always read incoming markers; the namespace's mode decides which one
writes. Every call happens inside one event of the broker, and nothing is re-entered: a host must not report to a machine the
effects of that machine's own requests (`apply`, `rebuild`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.acksets import Epoch

Messages = Mapping[OriginKey, Sequence[tuple[int, int]]]
"""Messages by identity: per origin runs of indexes (first, end)."""


class Acked(NamedTuple):
    """The messages that one local acknowledgement (or skip, or clear-backlog) newly covers; expiry is never one.

    Attributes:
        after, up_to: everything with after < position <= up_to, markers and what was acknowledged before included
            (a cumulative acknowledgement, a skip). Both NONE when there is no range.
        entries: whole entries, acknowledged one by one.
        partial: position -> bit set of message numbers within that entry's batch that are acknowledged now.
    """

    after: Position = NONE
    up_to: Position = NONE
    entries: Sequence[Position] = ()
    partial: Mapping[Position, int] = {}

    def messages(self, log: TopicLog) -> int:
        """How many messages it covers; at most, as some may have been acknowledged before."""
        messages = sum(bits.bit_count() for bits in self.partial.values())
        if self.up_to != NONE:
            messages += log.messages_between(self.after, self.up_to)
        first = last = NONE
        for position in self.entries:
            if position[1] != last[1] + 1 or position[0] != last[0]:
                messages += log.messages_between(Position(first[0], first[1] - 1), last)
                first = position
            last = position
        return messages + log.messages_between(Position(first[0], first[1] - 1), last)


class MarkerHost(Protocol):
    """A topic here, as both machines see it. Read-only but for the requests."""

    cluster: str
    log: TopicLog

    @property
    def now_ms(self) -> int:
        """The clock of timers at this event (`Outbox.now_ms`), ms; it may go back between runs, never within one."""
        ...

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        """All links (source, destination) of this topic that this cluster knows of, its own and others', by
        configuration and policy. `Machine.routes_changed` reports a change.
        """
        ...

    @property
    def first_kept(self) -> int:
        """The first ledger that retention leaves. It deletes those below; they are in the log until that is durable."""
        ...

    def incarnation_of(self, cluster: str) -> int:
        """The incarnation of this topic in `cluster`, as the link from there to here has shown it since the start.

        0: that link was not seen since the start.
        """
        ...

    def latest_incarnation_of(self, cluster: str) -> int:
        """`incarnation_of`, or, if that link was not seen, what `cluster` has answered to the link from here to there.

        0: there was no such answer either.
        """
        ...

    def append_marker(
        self, data: bytes, replicate_to: Collection[str], then: Callable[[Position, str], None] | None = None
    ) -> bool:
        """Write a marker (`wire.markers`) into the topic.

        Args:
            data: the entry from the magic on; `replicate_to` in its metadata is what the argument says.
            replicate_to: clusters that links may carry it to; empty for all of them.
            then: called with its position and "" when it is durable, or with NONE and what went wrong.

        Returns:
            False when nothing can be written now (storage failed, topic being deleted): try again when `stored` or
            `healed` is called.
        """
        ...

    def cursor(self, subscription: str) -> Cursor | None:
        """The cursor of a subscription here; not to be changed. None when there is none."""
        ...

    def subscriptions(self) -> Sequence[str]:
        """The replicated ones, ascending."""
        ...

    def acknowledged(self, subscription: str) -> Iterable[tuple[OriginKey, int, int]]:
        """Messages that the other mode's machine knows to be acknowledged, in any cluster: runs (origin, first, end)."""
        ...

    def epoch(self, subscription: str) -> Epoch | None:
        """The latest seek that a subscription has taken in here, from any cluster, as exact mode knows it; None: none."""
        ...

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """Snapshot mode has applied an update: exact mode's set has to include its acknowledgements, too.

        Args:
            subscription: its name.
            at: position of the update.
            writer: the cluster that wrote it.
            acked: the messages that it reports as acknowledged.
            base: the messages that the writer's starting point skipped; None: not stated.
            made: whether the update made the subscription here.
        """
        ...

    def create(self, subscription: str) -> None:
        """Make a durable replicated subscription, at EARLIEST, because another cluster has it."""
        ...

    def apply(self, subscription: str, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        """Acknowledge on the local cursor what other clusters acknowledged, and what `load` found to be missing there.

        Args:
            entries: whole ones; may hold some that the cursor has already. Take them by `runs()`: a run may be long.
            partial: position -> bit set, 1 = acknowledged (as in `Acked.partial`; a cursor counts the other way).
        """
        ...

    def rebuild(self, subscription: str, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        """Consumed messages came back (an adopted seek, a smaller base): consumers are disconnected, acknowledgements of
        earlier deliveries are dropped, the cursor covers exactly this (and what has expired here).

        Args:
            acked: all whole entries of the log that are consumed; markers are not named.
            partial: as in `apply`.
        """
        ...

    def dirty(self, subscription: str) -> None:
        """The machine's state of a subscription changed: `Machine.encode` is stored soon, in one transaction with its cursor."""
        ...

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        """Call `then(now_ms)` once at or after a time, unless the topic is gone by then."""
        ...

    def note(self, level: str, text: str) -> None:
        """One line for the broker's log."""
        ...


class Machine(Protocol):
    """Events, in the order of their happening."""

    def load(self, subscription: str, state: bytes | None) -> Position:
        """A subscription found at start, with its persisted state (None: none was stored).

        Returns:
            Up to where the state covers the topic's markers; later ones are replayed by `stored` (markers only).
        """
        ...

    def started(self) -> None:
        """Loading and replay are over. From now on it may write."""
        ...

    def stored(self, entries: Sequence[StoredEntry]) -> None:
        """Entries are durable and readable, own and foreign, messages and markers; no consumer was offered them yet."""
        ...

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        """A consumer or an operator here acknowledged (the cursor has it already)."""
        ...

    def created(self, subscription: str) -> None:
        """A consumer or operator created a replicated subscription here, or switched one to replicated; the cursor says
        where it starts.
        """
        ...

    def sought(self, subscription: str, then: Callable[[str], None]) -> None:
        """The cursor was moved by a seek or reset (it has moved); `then("")` when the seek may be answered."""
        ...

    def unreplicated(self, subscription: str) -> None:
        """A subscription that stays here was switched to not replicated. Its state may be kept for the time when it is replicated
        again.
        """
        ...

    def deleted(self, subscription: str) -> None:
        """A subscription was deleted here.

        `encode` then gives a small record, which the host keeps without a cursor and gives to `load` at the next start (b"":
        nothing to keep): markers of other clusters do not bring the subscription back until `created` is called again.
        """
        ...

    def trimmed(self) -> None:
        """Retention deleted ledgers."""
        ...

    def rebased(self, cluster: str) -> None:
        """A link of this topic to or from a cluster began again: new, re-created or wiped peer, rewound cursor."""
        ...

    def routes_changed(self) -> None:
        """`MarkerHost.routes` changed: a link or a cluster came or went."""
        ...

    def healed(self) -> None:
        """The storage takes writes again: writes under way did not happen unless `then` said so."""
        ...

    def encode(self, subscription: str) -> bytes:
        """The state to be persisted; covers all markers up to `log.last`. Markers that no *durable* state of some
        subscription covers must not be deleted by retention (docs/design/acknowledged-sets.md#recovery).
        """
        ...

    def describe(self, subscription: str) -> dict[str, object]:
        """For `/geo/v1` and internalStats: plain values."""
        ...

    def validate(self) -> None:
        """Check what must hold after every step."""
        ...
