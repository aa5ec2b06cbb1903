"""The replicated subscriptions of one topic: it hosts the two machines, passes events to them, and carries out their
requests (`replication.marker_host`).

    start     load each stored state -> read the markers after the checkpoint -> started
    later     confirmed entries -> stored -> dispatch; acknowledgements, seeks, creations, deletions as they happen
    stores    a subscription's state goes into the transaction of its cursor; the topic's checkpoint with the last dirty one

The *checkpoint* is a position: every state that is stored, or need not be stored, contains all markers at or below it.
Replay begins there, and retention keeps the markers after it. The checkpoint can move without a new version of a state
that has not changed.

A machine's request takes effect on the cursor at once. Nothing is sent to consumers before the end of the event, so
that a message that another cluster's consumer acknowledged is never sent in between.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from magnetar.broker.replicated_subscriptions.ack_collector import AckCollector
from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, ModalMachine, SnapshotMachine, figures
from magnetar.broker.replicated_subscriptions.progress import Lag, Progress, subscriptions_in
from magnetar.broker.replicated_subscriptions.replay import Replay
from magnetar.broker.replicated_subscriptions.state_store import StateStore, decode_state, encode_state
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, NameNotValid
from magnetar.core.ids import EARLIEST, NONE, Position
from magnetar.core.names import check_subscription
from magnetar.core.ready_gate import ReadyGate
from magnetar.effects.outbox import Note, Timer
from magnetar.replication.link.policy import index_after
from magnetar.replication.marker_host import Acked, Machine
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import Append, EntryFlags, NewEntry, StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.wire.acksets import Mark

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions

REFUSED_MAX: Final = 1_000
"""A ceiling on remembered names of subscriptions that cannot be created here; further ones are not remembered."""

BOTH_AGAIN_MS: Final = 3_600_000
"""Between two warnings about one subscription."""

_MARKER: Final = int(EntryFlags.MARKER)
_RESTRICTED: Final = int(EntryFlags.RESTRICTED)
_origin_of = attrgetter("origin")


class ReplicatedTopic:
    """Hosts the two machines of a topic; each sees it through its `MachineHost`.

    Args:
        registry: of the broker.
        topic: whose.
        checkpoint: as stored.

    Attributes:
        exact, snapshot: the machines.
        ready: loading and replay are over.
        closed: the topic is gone.
        states: stores what the machines know.
    """

    def __init__(self, registry: "ReplicatedSubscriptions", topic: Topic, checkpoint: Position = NONE) -> None:
        self._registry = registry
        self._topic = topic
        self.log = topic.log
        self.ready = False
        self.closed = False
        self.states = StateStore(topic, registry.flusher, self, checkpoint)
        self._acks = AckCollector(self._tell)
        self._outbox = registry.context.outbox
        self.cluster: str = registry.context.cluster
        self.markers_written = self.markers_failed = self.not_made = 0
        self.updated_ms: dict[str, int] = {}
        self._both_since: dict[str, tuple[int, int]] = {}
        """By subscription, while it is consumed both here and elsewhere: the beginning of this, and the time of the
        last warning (0: none yet).
        """
        self.progress = Progress(topic.log)
        self._names: tuple[str, ...] | None = None
        self._routes: frozenset[tuple[str, str]] | None = None
        self._touched: dict[str, None] = {}
        self._later: list[Callable[[], None]] = []
        self._gate = ReadyGate(lambda: self.ready or self.closed)
        self._refused: set[str] = set()
        self._replay: Replay | None = None
        self._made: tuple[ExactMachine, SnapshotMachine] | None = None
        self._counted: Counter[str] = Counter()
        self._marks: dict[str, Mark] = {}
        self.mode = registry.mode_of(topic)

    # -------------------------------------------------------------------------------------------------------- machines

    @property
    def exact(self) -> ExactMachine:
        """The machine of exact mode; made when it is asked for."""
        return self._both()[0]

    @property
    def snapshot(self) -> SnapshotMachine:
        """The machine of snapshot mode; made when it is asked for."""
        return self._both()[1]

    @property
    def _machines(self) -> tuple[ModalMachine, ...]:
        """The existing machines: none while no subscription is replicated, because most topics need none (11 KB
        each).
        """
        self.catch_up()
        return self._made or ()

    def _both(self) -> tuple[ExactMachine, SnapshotMachine]:
        """Events while there are no machines are not reported to them; new machines find them in the log."""
        self.catch_up()
        if self._made is None:
            self._made = self._registry.machines(self)
            if self._marks:
                self._made[0].learn_own(tuple(self._marks.values()))
            if self.ready:
                for machine in self._made:
                    machine.started()
        return self._made

    def retained(self) -> tuple[Mark, ...]:
        """Per origin the first of its own messages that it retains, as far as known here."""
        if self._made is not None:
            return self.exact.own_marks()
        own = Mark(self.cluster, self.log.incarnation, index_after(self.log, NONE))
        return (own, *(mark for cluster, mark in sorted(self._marks.items()) if cluster != self.cluster))

    def learn_retained(self, marks: tuple[Mark, ...]) -> None:
        """Learn the messages that a link's source reported as retained."""
        for mark in marks:
            if mark[1:] > self._marks.get(mark.cluster, (mark.cluster, 0, 0))[1:]:
                self._marks[mark.cluster] = mark
        if self._made is not None:
            self.exact.learn_own(marks)
            self._settle()

    def catch_up(self) -> None:
        """Pass all acknowledgements so far to the machines."""
        if self._acks:
            self._acks.flush()

    def encode_state(self, subscription: str) -> bytes:
        """Both machines' state of a subscription; b"" when there is nothing to keep."""
        return encode_state(self.exact.encode(subscription), self.snapshot.encode(subscription))

    def _decode(self, name: str, data: bytes | None) -> tuple[bytes | None, bytes | None]:
        if data is None:
            return None, None
        try:
            return decode_state(data)
        except msgspec.DecodeError as error:
            self.note("error", f"the stored state of subscription {name} of {self._topic.text} is damaged: {error}")
            return None, None

    # ------------------------------------------------------------------------------------------------------- beginning

    def load(self, states: Mapping[str, bytes]) -> None:
        """Take the stored states, read what they do not cover, and start; `ready` may be true only later.

        Args:
            states: by subscription, as `encode_state` gave them.
        """
        fresh = []
        after = self.states.checkpoint
        for name in sorted({*states, *self.subscriptions()}):
            exact, snapshot = self._decode(name, states.get(name))
            if name in states:
                self.states.known.add(name)
            else:
                fresh.append(name)
            self.exact.load(name, exact)
            reached = self.snapshot.load(name, snapshot)
            if self.mode == "snapshot":
                # Snapshots that it has yet to pass are known from the log alone.
                after = min(after, reached)

        def replayed() -> None:
            if not self.closed:
                self._replayed(fresh)

        for subscription in self._topic.subscriptions.values():
            self._connect(subscription)
        self._replay = Replay(self._outbox, self.log, after, self._give, replayed)
        self._replay.start()

    def _give(self, markers: list[StoredEntry]) -> None:
        if not self.closed:
            self._both()
            self._event(lambda machine: machine.stored(markers))

    def _replayed(self, fresh: list[str]) -> None:
        self.ready = True
        self._replay = None
        for machine in self._machines:
            machine.started()
        self._begun(fresh)
        self._settle()
        self.states.dirty_again(self.states.dirty_names)
        self._gate.release()

    def _begun(self, fresh: list[str]) -> None:
        """Begin subscriptions that are flagged but have no stored state: flagged by an earlier version, or before the
        topic had a link.

        Each begins at the position of its cursor, and this is reported to the others, whatever the machines have begun
        already.
        """
        for name in fresh:
            if name in self.subscriptions():
                self._created(name)

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when the replay is over, at once if it is."""
        self._gate.when_open(then)

    def close(self) -> None:
        """The topic is gone: waiting callers get an error."""
        self.closed = True
        self._gate.release()
        if self._made is not None:
            self.exact.closed(f"topic {self._topic.text} was deleted")

    # --------------------------------------------------------------------------------------------------------- events

    def _event(self, tell: Callable[[Machine], None]) -> None:
        for machine in self._machines:
            tell(machine)
        self._settle()

    def _settle(self) -> None:
        """At the end of an event: do deferred work, then dispatch to consumers."""
        while self._later:
            later, self._later = self._later, []
            for then in later:
                then()
        if self._touched:
            touched, self._touched = self._touched, {}
            for name in touched:
                subscription = self._topic.subscriptions.get(name)
                if subscription is not None:
                    subscription.available()

    def stored(self, entries: list[StoredEntry]) -> None:
        """Entries were confirmed, and no consumer was offered them yet."""
        if not self.ready:
            # Markers are reached by the replay, in their order; messages are there from now on, for older markers too.
            entries = [entry for entry in entries if not entry.flags & _MARKER]
        # A machine remembers of what could not be made here that it has missed something.
        idle = not self.states.known and not self._refused and self.ready
        if idle and not any(entry.flags & _MARKER for entry in entries):
            if self._made is not None:
                self._counted.update(figures(*self._made, levels=False))  # what was counted stays counted
                self._made = None
            return
        if not entries:
            return
        if self._made is None or self.mode != "exact" or any(map(_origin_of, entries)):
            # Markers that this cluster wrote change nothing in exact mode: acknowledgements may wait for its timer.
            self._both()
        for machine in self._made or ():
            machine.stored(entries)
        self._settle()

    def acknowledged(self, name: str, acked: Acked) -> None:
        """A consumer or an operator here acknowledged something (see `subscription.AckListener`)."""
        if not self.ready:
            if not self.closed:
                self._gate.when_open(lambda: self.acknowledged(name, acked))
        elif not self._acks.add(name, acked):
            if self.mode == "exact" and self._made is not None and self._made[0].collects(name):
                self.states.dirty(name)
                self._acks.begin(name, acked)
            else:
                self._tell(name, acked)

    def _tell(self, name: str, acked: Acked) -> None:
        if self.mode == "exact":
            if self.progress.collects(name) and self._made is not None and not self._made[0].owes(name):
                self.progress.drop(name)  # another cluster's seek took it back
            self.progress.acknowledged(name, acked, self.now_ms)
        for machine in self._made or ():
            machine.acknowledged(name, acked)
        if self._later or self._touched:
            self._settle()

    def expired(self, name: str, after: Position, up_to: Position) -> None:
        """Messages expired here (see `subscription.AckListener`)."""
        self.when_ready(lambda: self.snapshot.expired(name, after, up_to))

    def created(self, subscription: Subscription) -> None:
        """A consumer or operator made a replicated subscription here, or switched one to it (the property is set)."""
        if self.ready and self._made is None:
            self._names = ()  # new machines get it as a creation, which is reported at once
            self._both()
        self._names = None
        self._refused.discard(subscription.name)
        self._connect(subscription)
        if self.ready:
            self._created(subscription.name)
            self._settle()
        elif not self.closed:
            self._gate.when_open(lambda: self.created(subscription) if self._is(subscription) else None)

    def _created(self, name: str) -> None:
        for machine in self._both():
            machine.created(name)
        self.states.dirty(name)

    def _is(self, subscription: Subscription) -> bool:
        return self._topic.subscriptions.get(subscription.name) is subscription

    def _connect(self, subscription: Subscription) -> None:
        subscription.listen(self if subscription.durable and subscription.replicated else None)

    def sought(self, subscription: Subscription, then: Callable[[str], None]) -> None:
        """The cursor was moved by a seek; `then` when every machine says that it may be answered."""
        left, problem = len(self._both()), ""

        def one(error: str) -> None:
            nonlocal left, problem
            left -= 1
            problem = problem or error
            if not left:
                then(problem)

        def tell() -> None:
            self._event(lambda machine: machine.sought(subscription.name, one))
            self.states.dirty(subscription.name)

        self.when_ready(tell)

    def unreplicated(self, subscription: Subscription) -> None:
        """A subscription that is here is no longer replicated; its stored state stays until it is replicated again."""
        self._names = None
        self._connect(subscription)
        self.progress.forget(subscription.name)

        def tell() -> None:
            if self._is(subscription) and not subscription.replicated:
                self._event(lambda machine: machine.unreplicated(subscription.name))
                self.states.dirty(subscription.name)

        self.when_ready(tell)

    def reads_compacted(self, subscription: Subscription) -> None:
        """From now on a subscription's cursor differs from what was acknowledged: if it is replicated again, it begins
        again.
        """

        def tell() -> None:
            if self._made is not None and self._made[0].pauses(subscription.name):
                self.deleted(subscription)

        self.when_ready(tell)

    def deleted(self, subscription: Subscription) -> None:
        """A subscription was deleted here; `ReplicatedSubscriptions.companions` stores the rest of it."""
        self._names = None
        self._connect(subscription)
        self.progress.forget(subscription.name)
        self._both_since.pop(subscription.name, None)

        def tell() -> None:
            self._event(lambda machine: machine.deleted(subscription.name))
            self.states.dirty(subscription.name)

        if subscription.name in self.states.known or subscription.replicated:
            self.when_ready(tell)

    def trimmed(self) -> None:
        """Retention deleted ledgers."""
        self._event(lambda machine: machine.trimmed())

    def rebased(self, cluster: str) -> None:
        """A link of this topic to or from a cluster started again, or something was lost to it."""
        self.when_ready(lambda: self._event(lambda machine: machine.rebased(cluster)))

    def routes_changed(self) -> None:
        """Links or policies changed."""
        before, self._routes = self._routes, None
        if before is None or before != self.routes:
            self._event(lambda machine: machine.routes_changed())

    def follow(self, mode: str) -> None:
        """The namespace's mode says which machine writes."""
        if mode == "exact":
            # Acknowledgements that no update has reported go into exact mode's first marker.
            for name in self.subscriptions():
                if (untold := self.untold(name)).since_ms:
                    self.progress.collect(name, untold)
        self.mode = mode
        if self._made is not None:
            self.exact.set_writes(mode == "exact")
            self.snapshot.set_writes(mode == "snapshot")
        self._settle()

    def deletion_failed(self) -> None:
        """The topic's deletion failed: markers that were refused for its sake are written now, too."""
        self.states.dirty_again(self.states.known)
        self.healed()

    def healed(self) -> None:
        """The storage takes writes again."""
        self.progress.healed()
        self._event(lambda machine: machine.healed())

    # -------------------------------------------------------------------------------------------- what machines ask for

    @property
    def now_ms(self) -> int:
        """See `MarkerHost.now_ms`."""
        return self._outbox.now_ms

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        """All links of this topic."""
        if self._routes is None:
            self._routes = self._registry.routes_of(self._topic)
        return self._routes

    @property
    def first_kept(self) -> int:
        """See `MarkerHost.first_kept`."""
        return self._topic.record.first_ledger

    def incarnation_of(self, cluster: str) -> int:
        """See `MarkerHost.incarnation_of`."""
        return self._registry.links.destination.incarnations.of(self._topic.text, cluster)

    def latest_incarnation_of(self, cluster: str) -> int:
        """See `MarkerHost.latest_incarnation_of`."""
        return self._registry.links.latest_incarnation_of(self._topic.text, cluster)

    def interval_ms(self) -> int:
        """The time for which acknowledgements are collected now."""
        return self._registry.interval_ms(self._topic.text, self.progress)

    def append_marker(
        self, data: bytes, replicate_to: Collection[str], then: Callable[[Position, str], None] | None = None
    ) -> bool:
        """Write a marker into the topic."""
        flags = _MARKER | (_RESTRICTED if replicate_to else 0)
        goes = not replicate_to or set(replicate_to) != {self.cluster}
        carrier = self.progress.begin(subscriptions_in(data), self.now_ms) if goes else None

        def outcome(append: Append, error: str) -> None:
            if error:
                self.markers_failed += 1
                position = NONE
                if carrier is not None:
                    self.progress.failed(carrier)
            else:
                self.markers_written += 1
                position = append.entries[0].position
                if carrier is not None:
                    self.progress.written(carrier, position, self.now_ms)
                if goes:
                    self.progress.carried(self._registry.carried(self._topic.text))
            if then is not None and not self.closed:
                self.catch_up()
                before = {} if carrier is None or error else {name: self.untold(name) for name in carrier.counts}
                then(position, error)
                for name, untold in before.items():
                    if carrier is not None and (carried := untold.messages - self.untold(name).messages) > 0:
                        carrier.add(name, Lag(carried, untold.since_ms))
                self._settle()

        try:
            self._topic.append([NewEntry(data, flags, 0, self.now_ms)], outcome, durable=True, marker=True)
        except BrokerError:
            if carrier is not None:
                self.progress.failed(carrier)
            return False
        return True

    def cursor(self, subscription: str) -> Cursor | None:
        """The cursor of a durable subscription."""
        found = self._topic.subscriptions.get(subscription)
        return found.cursor if found is not None and found.durable else None

    def subscriptions(self) -> tuple[str, ...]:
        """The replicated ones, ascending."""
        if self._names is None:
            found = self._topic.subscriptions.values()
            self._names = tuple(sorted(one.name for one in found if one.durable and one.replicated))
        return self._names

    def create(self, subscription: str, asker: ModalMachine) -> None:
        """Create a durable replicated subscription because another cluster reported it."""
        present = self._topic.subscriptions.get(subscription)
        if present is not None:
            if present.durable and not present.replicated:
                present.set_replicated(True)
                self._later.append(lambda: self.created(present))
            return
        reason = self._cannot_create(subscription)
        if reason:
            self.not_made += 1
            if subscription not in self._refused and len(self._refused) < REFUSED_MAX:
                self._refused.add(subscription)
                self.note("warning", f"{self._topic.text}: {reason}")
            return
        self._refused.discard(subscription)
        cursor = Cursor.at(self.log, EARLIEST)
        made = self._registry.heard_of(self._topic, subscription, cursor)
        self._names = None
        self._connect(made)
        self.states.dirty(subscription)
        self._later.append(lambda: self._adopted(subscription, asker))
        self.note("info", f"{self._topic.text}: subscription {subscription} was created because another cluster has it")

    def _adopted(self, subscription: str, asker: ModalMachine) -> None:
        """The machine of the other mode hears of a subscription that this one made."""
        if asker is not self.exact:
            self.exact.adopted(subscription)
        if asker is not self.snapshot and not self.snapshot.describe(subscription):
            self.snapshot.load(subscription, None)

    def _cannot_create(self, subscription: str) -> str:
        try:
            check_subscription(subscription)
        except NameNotValid as error:
            return f"another cluster reports an impossible subscription: {error}"
        if self._topic.deleting:
            return f"subscription {subscription} is not made: the topic is being deleted"
        most = self._registry.context.config.subscriptions_per_topic_max
        if len(self._topic.subscriptions) >= most:
            return f"subscription {subscription} of another cluster is not made: {most} exist (subscriptions_per_topic_max)"
        return ""

    def apply(self, subscription: str, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        """Acknowledge on the local cursor."""
        found = self._topic.subscriptions.get(subscription)
        if found is not None and found.durable and found.acknowledged_elsewhere(entries, partial):
            self.updated_ms[subscription] = self.now_ms
            self._touched[subscription] = None

    def rebuild(
        self, subscription: str, acked: PositionSet, partial: Mapping[Position, int], asker: ModalMachine
    ) -> None:
        """Consumed messages came back."""
        found = self._topic.subscriptions.get(subscription)
        if found is not None and found.durable:
            found.rebuild(acked, partial)
            self.updated_ms[subscription] = self.now_ms
            self._touched[subscription] = None
            self.note("info", f"{self._topic.text}: subscription {subscription} goes back, as in another cluster")
            if asker is self.exact:
                self.snapshot.moved_back(subscription, self.exact.consumed_runs(subscription))
            else:
                self.exact.moved_back(subscription)

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        """Call `then(now_ms)` once at or after a time."""

        def due(now_ms: int) -> None:
            if not self.closed:
                self.catch_up()
                then(now_ms)
                self._settle()

        self._outbox.put(Timer(at_ms, due))

    def note(self, level: str, text: str) -> None:
        """One line for the broker's log."""
        self._outbox.put(Note(level, text))

    # --------------------------------------------------------------------------------------------------------- watching

    def tick(self, now_ms: int, since_ms: int) -> None:
        """Warn when consumers of a subscription work here and in another cluster at the same time: each cluster
        delivers messages that it does not know to be acknowledged, so most messages go to both.

        It is recognised by acknowledgements from elsewhere while consumers acknowledge here, in two rounds of
        maintenance: after a consumer has moved here, some of its acknowledgements arrive late.

        Args:
            now_ms: the time.
            since_ms: when the last round was.
        """
        if self._made is None or not self.ready:
            return
        for name in self.subscriptions():
            found = self._topic.subscriptions.get(name)
            here = found is not None and found.consumers and found.activity.acked_ms > since_ms
            if not here or not self._elsewhere(name, since_ms):
                _, warned_ms = self._both_since.pop(name, (0, 0))
                if warned_ms and now_ms - warned_ms < BOTH_AGAIN_MS:
                    self._both_since[name] = 0, warned_ms
                continue
            began_ms, warned_ms = self._both_since.get(name, (0, 0))
            if began_ms and now_ms - warned_ms >= BOTH_AGAIN_MS:
                warned_ms = now_ms
                self.note(
                    "warning",
                    f"subscription {name} of {self._topic.text} has consumers here and in another cluster at the same time: both "
                    "are sent most messages; let it be consumed in one cluster, or give each cluster a subscription of its own",
                )
            self._both_since[name] = began_ms or now_ms, warned_ms

    def _elsewhere(self, subscription: str, since_ms: int) -> bool:
        """Whether another cluster has reported its own acknowledgements since a time. A cluster that passes on
        acknowledgements made here, to clusters without a link from here, does not count.
        """
        routes = self.routes
        return any(
            name == subscription
            and received_ms > since_ms
            and not any(a == writer and b != self.cluster and (self.cluster, b) not in routes for a, b in routes)
            for machine in self._made or ()
            for (name, writer), received_ms in machine.received_ms.items()
        )

    def describe(self, subscription: str) -> dict[str, Any]:
        """Plain values: the mode's machine, and what is common to both."""
        machine = self.exact if self.mode == "exact" else self.snapshot
        described: dict[str, Any] = {"mode": self.mode, "ready": self.ready}
        described["lastUpdateAppliedMs"] = self.updated_ms.get(subscription, 0)
        if self.ready and subscription in self.subscriptions():
            described |= machine.describe(subscription)
        return described

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """The part of `describe` about reports that other clusters still have to get, for a replicated subscription."""
        machine = self.exact if self.mode == "exact" else self.snapshot
        return {"ready": self.ready} | (machine.to_tell(subscription) if self.ready else {})

    def untold(self, subscription: str) -> Lag:
        """Acknowledged here and in no update of snapshot mode yet; in exact mode `progress` knows what is in no marker."""
        if self._made is None or self.mode != "snapshot":
            return Lag()
        described: dict[str, Any] = self.snapshot.describe(subscription)
        return Lag(described.get("untold", 0), described.get("untoldSinceMs", 0))

    def metrics(self) -> dict[str, int]:
        """Counters since the start, and present levels (`LEVELS`)."""
        return self.counted() | (figures(*self._made, levels=True) if self._made is not None else {})

    def counted(self) -> dict[str, int]:
        """Counters since the start of both machines, including former ones, and of the host."""
        counters = Counter(self._counted)
        if self._made is not None:
            counters.update(figures(*self._made, levels=False))
        return counters | {
            "markers_written": self.markers_written,
            "markers_failed": self.markers_failed,
            "subscriptions_not_made": self.not_made,
        }

    def validate(self) -> None:
        """Check what must hold after every event."""
        if self._topic.deleting:
            return  # subscriptions that other clusters report now are no longer created here
        for machine in self._machines:
            machine.validate()
        assert not self._touched, "consumers were not woken"
        assert not self._later, "something put off was forgotten"
        self._gate.validate()
        for subscription in self._topic.subscriptions.values():
            wired = subscription.listener is not None
            assert wired == (subscription.durable and subscription.replicated), f"{subscription.name} is not connected"
