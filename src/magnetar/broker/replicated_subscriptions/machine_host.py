"""The two machines of a topic, as the broker uses them, and the topic as each of them uses it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.topics.replicated_subscriptions import FinalStateMachine
from magnetar.core.ids import OriginKey, Position
from magnetar.replication.marker_host import Machine, MarkerHost, Messages
from magnetar.storage.positions import PositionSet
from magnetar.wire.acksets import Epoch, Mark

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic


class ModalMachine(Machine, Protocol):
    """A machine that writes only while its mode is the namespace's.

    Attributes:
        received_ms: when a cluster last reported a subscription: (subscription, cluster) -> time.
    """

    received_ms: dict[tuple[str, str], int]

    def set_writes(self, writes: bool) -> None:
        """Set whether it writes from now on; it handles received markers in either case."""
        ...

    def metrics(self) -> dict[str, int]:
        """Counters of the topic."""
        ...

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """The part of `describe` about reports that other clusters still have to get; fast for a set of any size."""
        ...


class ExactMachine(ModalMachine, FinalStateMachine, Protocol):
    """`replication.acked_sets.AckedSets`."""

    def collects(self, subscription: str) -> bool:
        """Whether acknowledgements may be collected until its pending timer fires."""
        ...

    def owes(self, subscription: str) -> bool:
        """Whether there is something to report about it."""
        ...

    def pauses(self, subscription: str) -> bool:
        """Whether it keeps the state of a subscription that is no longer replicated."""
        ...

    def own_marks(self) -> tuple[Mark, ...]:
        """The messages of their own that origins retain, for the links from here."""
        ...

    def learn_own(self, marks: tuple[Mark, ...]) -> None:
        """Learn these from a link's source."""
        ...

    def adopted(self, subscription: str) -> None:
        """Snapshot mode made a subscription here because another cluster has it."""
        ...

    def moved_back(self, subscription: str) -> None:
        """Snapshot mode took acknowledged messages back on the cursor."""
        ...

    def epoch(self, subscription: str) -> Epoch | None:
        """The latest seek of the subscription that has taken effect here."""
        ...

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """Snapshot mode did what an update says."""
        ...

    def closed(self, error: str) -> None:
        """The topic is gone: markers that are waited for get an error."""
        ...

    def consumed_runs(self, subscription: str) -> Iterable[tuple[OriginKey, int, int]]:
        """The messages that no consumer needs: runs (origin, first, end)."""
        ...

    def acknowledged_runs(self, subscription: str) -> Iterable[tuple[OriginKey, int, int]]:
        """The messages that it knows to be acknowledged: runs (origin, first, end)."""
        ...


class SnapshotMachine(ModalMachine, Protocol):
    """`replication.snapshots.Snapshots`."""

    def expired(self, subscription: str, after: Position, up_to: Position) -> None:
        """The cursor was moved over after < p <= up_to by expiry."""
        ...

    def moved_back(self, subscription: str, consumed: Iterable[tuple[OriginKey, int, int]]) -> None:
        """Exact mode took consumed messages back on the cursor."""
        ...


LEVELS: Final = frozenset({"exact_waiting", "exact_subscriptions"})
"""Figures of machines that say what is there now. All others count since the start, and never fall."""


def figures(exact: ExactMachine, snapshot: SnapshotMachine, *, levels: bool) -> dict[str, int]:
    """The numbers that the machines of a topic report: levels, or counters."""
    counted = {f"exact_{name}": value for name, value in exact.metrics().items()}
    counted |= {f"snapshot_{name}": value for name, value in snapshot.metrics().items()}
    return {name: value for name, value in counted.items() if (name in LEVELS) == levels}


class MachineHost:
    """A topic as one of its machines uses it (`replication.marker_host.MarkerHost`): it passes the machine's requests
    on in its name.

    Args:
        topic: the host.
        exact: whether it hosts exact mode's machine, or snapshot mode's.
    """

    def __init__(self, topic: "ReplicatedTopic", *, exact: bool) -> None:
        self._topic, self._exact = topic, exact
        self.cluster, self.log = topic.cluster, topic.log
        self.latest_incarnation_of = topic.latest_incarnation_of
        self.incarnation_of, self.append_marker, self.cursor = topic.incarnation_of, topic.append_marker, topic.cursor
        self.subscriptions, self.apply, self.dirty = topic.subscriptions, topic.apply, topic.states.dirty
        self.timer, self.note, self.interval_ms = topic.timer, topic.note, topic.interval_ms

    @property
    def now_ms(self) -> int:
        """See `MarkerHost`."""
        return self._topic.now_ms

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        """See `MarkerHost`."""
        return self._topic.routes

    @property
    def first_kept(self) -> int:
        """See `MarkerHost`."""
        return self._topic.first_kept

    @property
    def _machine(self) -> ModalMachine:
        return self._topic.exact if self._exact else self._topic.snapshot

    def acknowledged(self, subscription: str) -> Iterable[tuple[OriginKey, int, int]]:
        """See `MarkerHost`. Exact mode's machine has no use for what snapshot mode knows: it has it on the cursor."""
        return () if self._exact else self._topic.exact.acknowledged_runs(subscription)

    def epoch(self, subscription: str) -> Epoch | None:
        """See `MarkerHost`."""
        return self._topic.exact.epoch(subscription)

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """See `MarkerHost`."""
        self._topic.exact.learnt(subscription, at, writer, acked, base, made=made)

    def create(self, subscription: str) -> None:
        """See `MarkerHost`."""
        self._topic.create(subscription, self._machine)

    def rebuild(self, subscription: str, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        """See `MarkerHost`."""
        self._topic.rebuild(subscription, acked, partial, self._machine)


_HOST_CHECK: type[MarkerHost] = MachineHost
"""mypy checks here that a machine finds at its host what it asks for."""
