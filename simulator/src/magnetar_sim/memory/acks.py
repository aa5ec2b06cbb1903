"""What was acknowledged, by the frames that reached a broker: nothing else is true.

A subscription that is not replicated has one truth in each cluster: `Acked.may`, the messages that it may count.

    base       what the cursor covered when the subscription was made there (its starting point)
    acks       frames of consumers that the broker knew when they came; a cumulative one covers everything held below
    skips      an operator's
    seeks      take back what is at or behind their target
    expiry     local, always

A replicated one has a truth of all clusters together (`Shared`), by the rules of docs/design/acknowledged-sets.md: per epoch
what may be known, and what each cluster must know in the end. Who has to know what follows from what is durable: an
acknowledgement that was answered, or stands in a marker that is on a disk, or whose broker did not die since.

In snapshot mode each cluster has its own again, see `updates`. In worlds of changing modes there are both: a cluster may count
its own acknowledgements and, of each marker of either mode that came, what its writer might count, if that one knew of the
seeks that the reader stands behind; and the sets, which are kept in both modes, are judged by epochs as in exact mode.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.broker.session.persistent import PersistentConsumer
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.storage.cursor import EXPIRED_ENTRY, EXPIRED_LEDGER, Cursor, bits_of
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import AckedSet, AckedSetsMarker, SoughtEpoch
from magnetar.wire.frame import Frame
from magnetar.wire.markers import Update, parse_marker
from magnetar_sim.cluster import Cluster, Clusters
from magnetar_sim.connections.clients import Consumer
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.ackrecords import Acked, Coming, Creation, Name, Shared, knows
from magnetar_sim.memory.former import FormerSubscriptions
from magnetar_sim.memory.records import Copy
from magnetar_sim.memory.truth import Truth
from magnetar_sim.memory.updates import Updates
from magnetar_sim.observers import Observer

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription


class Mover(Protocol):
    """Who seeks: a consumer, or an operator.

    Attributes:
        cluster, topic, subscription: what is moved.
    """

    cluster: str
    topic: str
    subscription: str


CREATION = "creation"
"""All creations share one epoch."""


class Acks(Observer):
    """Everything that is known about acknowledgements.

    Args:
        context: of the world.
        clusters: by their names.
        truth: what was published and is stored.
    """

    def __init__(self, context: WorldContext, clusters: Clusters, truth: Truth) -> None:
        self.context, self._clusters, self._truth = context, clusters, truth
        self.of: dict[Name, Acked] = {}
        self.shared: dict[tuple[str, str], Shared] = {}
        self.updates = Updates(self, context, clusters, truth)
        self._former = FormerSubscriptions(self)
        self._by_update: set[Name] = set()
        self._seen: dict[str, dict[str, dict[str, Subscription]]] = {}
        self._behind: set[str] = set()
        self._written: dict[tuple[str, str, str, Position], set[int]] = {}
        self._seeking: tuple[Consumer, Subscription, set[int]] | None = None
        self._asked: dict[Consumer, dict[int, tuple[Any, set[int]]]] = {}

    # ------------------------------------------------------------------------------------------------------- questions

    def get(self, name: Name) -> Acked:
        """The truth of a subscription in a cluster."""
        return self.of.setdefault(name, Acked())

    def all(self, topic: str, subscription: str) -> Shared:
        """The truth of a replicated subscription."""
        return self.shared.setdefault((topic, subscription), Shared())

    def count(self, uid: int) -> int:
        """Messages in an entry."""
        return self._truth.published[uid].count

    def retained(self, cluster: Cluster, topic: str) -> set[int]:
        """All messages that a cluster has; the set is not to be changed."""
        copy = self._truth.copy(cluster, topic)
        if copy is None:
            return set()
        if copy.retained is None:
            copy.retained = {uid + number for uid in copy.at.values() for number in range(self.count(uid))}
        return copy.retained

    def being_deleted(self, cluster: Cluster, topic: str) -> set[int]:
        """Messages that retention may be deleting: it decided that before now. The set is not to be changed."""
        trimming = cluster.broker is not None and topic in cluster.broker.upkeep._trimming
        return self.retained(cluster, topic) if trimming else set()

    @staticmethod
    def scope(cluster: Cluster, topic: str) -> frozenset[str] | None:
        """Origins that a creation states something about: those that the policy there names; None: no link concerns the topic."""
        host = cluster.broker.topics[topic].replicated_subscriptions if cluster.broker is not None else None
        return None if host is None else frozenset(host.exact.topic.routing.sources[cluster.name])  # type: ignore[attr-defined]

    def now(self, cluster: Cluster, topic: str, cursor: Cursor) -> set[int]:
        """What a cursor counts as acknowledged, of what is retained."""
        copy = self._truth.copy(cluster, topic)
        found: set[int] = set()
        mark_delete, partial = cursor.mark_delete, cursor.partial
        for position, uid in copy.at.items() if copy is not None else ():
            if position <= mark_delete or cursor.is_acked(position):
                found.update(range(uid, uid + self.count(uid)))
            elif position in partial:
                bits = partial[position].bits
                found.update(uid + number for number in range(self.count(uid)) if not bits >> number & 1)
        return found

    def state(self, cluster: Cluster, topic: str, subscription: str, *, peek: bool = False) -> SubscriptionState | None:
        """What exact mode's machine has of a subscription; None also while it is loading.

        Args:
            cluster, topic, subscription: which.
            peek: without what the broker has noted and not passed to the machine yet, which asking would make it pass on.
        """
        host = cluster.broker.replicated_subscriptions.topics.get(topic) if cluster.broker is not None else None
        if host is None or not host.ready:
            return None
        if peek and host._made is not None:
            return host._made[0].topic.states.get(subscription)  # type: ignore[attr-defined,no-any-return]
        states: dict[str, SubscriptionState] = host.exact.topic.states  # type: ignore[attr-defined]
        return states.get(subscription)

    @staticmethod
    def kept(cluster: Cluster, topic: str, subscription: str) -> bool:
        """Whether a cluster keeps more of a subscription than its cursor.

        It does not while no link concerns the topic. When it begins to, the subscription starts where the cursor stands.
        """
        host = cluster.broker.replicated_subscriptions.topics.get(topic) if cluster.broker is not None else None
        return host is not None and (host.ready or subscription in host.states.known)

    @staticmethod
    def key(state: SubscriptionState) -> Any:
        """The epoch of a state, all creations being the same."""
        return state.epoch if state.epoch.kind else CREATION

    def uids(self, topic: str, bits: MessageSet) -> set[int]:
        """Messages by their identities."""
        known = self._truth.messages
        return {
            known[name]
            for key, bitmap in bits.origins.items()
            for index in bitmap
            if (name := (topic, key.cluster, key.incarnation, index)) in known
        }

    def exact(self, machine: "Subscription | None") -> bool:
        """Whether exact mode's promises hold for a subscription, and no other's."""
        return self.sets(machine) and self.context.mode == "exact"

    def sets(self, machine: "Subscription | None") -> bool:
        """Whether it is judged by the acknowledged set that is kept of it: in worlds of changing modes, too."""
        return machine is not None and machine.durable and machine.replicated and self.context.mode != "snapshot"

    def allowed(self, cluster: Cluster, topic: str, machine: "Subscription") -> set[int]:
        """Everything that a cluster may count as acknowledged now."""
        truth = self.get((cluster.name, topic, machine.name))
        if not self.exact(machine):
            if not machine.replicated:
                return truth.may | truth.expired
            if self.context.mode == "snapshot":
                return truth.may | truth.expired | truth.snapshot.base
            # A world of changing modes: what the first one's starting point skipped goes to those who make it because of that.
            made = self.all(topic, machine.name).created
            return (truth.may | truth.expired).union(*(one.base for one in made))
        shared = self.all(topic, machine.name)
        state = self.state(cluster, topic, machine.name)
        keys = list(shared.may) if state is None else [self.key(state)]
        found = truth.expired.union(*(shared.may.get(key, ()) for key in keys))
        if state is None:
            found |= truth.may  # while it loads, and where no link concerns the topic, the cursor is all there is
        if CREATION in keys or state is None:
            found = found.union(*(one.base for one in shared.created))
        return found

    # --------------------------------------------------------------------------------------------- what brokers receive

    def before(self, consumer: Consumer, frame: Frame) -> None:
        """A frame is about to reach its broker."""
        cluster = self._clusters[consumer.cluster]
        machine = self._open(cluster, consumer)
        if machine is None:
            return
        if frame.command.type == pb.ACK:
            self._acknowledge(cluster, consumer, machine, frame)
        elif frame.command.type == pb.SEEK:
            self._seeking = (consumer, machine, self.consumed(cluster, consumer.topic, machine.name))

    def consumed(self, cluster: Cluster, topic: str, subscription: str) -> set[int]:
        """What a cluster takes for consumed, held or not (exact mode): to be asked right before a seek."""
        state = self.state(cluster, topic, subscription)
        return self.uids(topic, state.consumed()) if state is not None else set()

    def _open(self, cluster: Cluster, client: Consumer) -> "Subscription | None":
        assert cluster.broker is not None
        assert client.connection is not None
        session = cluster.broker.sessions.get(client.connection.number)
        opened = session.consumers.open.get(1) if session is not None else None
        return opened.subscription if isinstance(opened, PersistentConsumer) else None

    def _acknowledge(self, cluster: Cluster, client: Consumer, machine: "Subscription", frame: Frame) -> None:
        copy = self._truth.copy(cluster, client.topic)
        if copy is None:
            return
        ack = frame.command.ack
        fresh: set[int] = set()
        for item in ack.message_id:
            position = Position(item.ledgerId, item.entryId)
            if ack.ack_type == 1:
                for held, uid in copy.at.items():
                    if held <= position:
                        fresh.update(range(uid, uid + self.count(uid)))
            elif position in copy.at:
                uid = copy.at[position]
                keep = bits_of(item.ack_set)
                fresh.update(uid + number for number in range(self.count(uid)) if not keep >> number & 1)
        key = self.add(cluster, client.topic, machine, fresh)
        if ack.HasField("request_id"):
            self._asked.setdefault(client, {})[ack.request_id] = (key, fresh)

    def add(self, cluster: Cluster, topic: str, machine: "Subscription", fresh: set[int]) -> Any:
        """These are acknowledged in a cluster from now on; in which epoch, None if no other cluster has to know."""
        truth = self.get((cluster.name, topic, machine.name))
        truth.may |= fresh
        if not machine.replicated:
            return None
        shared = self.all(topic, machine.name)
        shared.acked |= fresh
        if self.context.mode != "exact":
            truth.snapshot.news = True
            truth.snapshot.own |= fresh
            if self.context.mode == "snapshot":
                if not self.kept(cluster, topic, machine.name):
                    truth.snapshot.skipped |= fresh
                return None
        state = self.state(cluster, topic, machine.name, peek=True)
        key = self.key(state) if state is not None else CREATION
        shared.may.setdefault(key, set()).update(fresh)
        fresh -= truth.expired  # gone already, here: a cumulative acknowledgement behind it does not cover it
        if state is not None and state.base is not None:
            # What the starting point skipped anyway is no acknowledgement: another creation may want it.
            fresh -= self.uids(topic, state.base)
        if cluster.broker is not None and cluster.broker.topics[topic].replicated_subscriptions is None:
            # No link concerns the topic: no set is kept, and the first one begins where the cursor stands. What comes again when
            # another cluster starts earlier is one more price of that.
            return None
        truth.unsafe.append((key, fresh))
        truth.known.setdefault(key, set()).update(fresh)
        return key

    def expire(self, cluster: Cluster, topic: str, machine: "Subscription", fresh: set[int]) -> None:
        """An operator let these expire in a cluster: they count as gone there, and nowhere else; so does, should it come back by
        a seek elsewhere, what was acknowledged in front of them.
        """
        expired = self.get((cluster.name, topic, machine.name)).expired
        expired |= fresh
        copy = self._truth.copy(cluster, topic)
        if machine.replicated and copy is not None and EXPIRED_LEDGER in machine.cursor.properties:
            known = machine.cursor.properties
            end = Position(known[EXPIRED_LEDGER], known[EXPIRED_ENTRY])
            for position, uid in copy.at.items():
                if position <= end:
                    expired.update(range(uid, uid + self.count(uid)))

    def ack_answered(self, consumer: Consumer, response: pb.CommandAckResponse) -> None:
        """A consumer's acknowledgement is durable."""
        asked = self._asked.get(consumer, {}).pop(response.request_id, None)
        if asked is None or response.HasField("error"):
            return
        key, fresh = asked
        if key is not None:
            self.owe(consumer.cluster, consumer.topic, consumer.subscription, key, fresh)

    def owe(self, cluster: str, topic: str, subscription: str, key: Any, fresh: set[int]) -> None:
        """Something durable in a cluster knows these: so must every cluster that links from it lead to."""
        must = self.all(topic, subscription).must.setdefault(key, {})
        hearers = self.context.hearers(cluster)
        if self.context.mode == "mixed":
            # In snapshot mode bits are not written one by one. Those about messages of clusters that the policy there ceased to
            # name are forgotten, and those that only such clusters need. These messages may come again elsewhere.
            departed = self.context.departed[cluster]
            fresh = {uid for uid in fresh if self._truth.entry_of(uid).cluster not in departed}
            # Over links one way snapshot mode is refused: where it is set all the same, bits may be forgotten too early.
            hearers = [name for name in hearers if name in self.context.peers(cluster) - departed]
        for name in hearers:
            must.setdefault(name, set()).update(fresh)

    def behind(self, consumer: Consumer, frame: Frame) -> None:
        """The broker handled a frame."""
        if self._seeking is None:
            return
        who, machine, before = self._seeking
        self._seeking = None
        self.has_moved(who, machine, before)

    def has_moved(self, who: Mover, machine: "Subscription", before: set[int]) -> None:
        """A broker has carried out a seek, and not answered it yet; `before` it that was `consumed`."""
        cluster = self._clusters[who.cluster]
        if cluster.broker is not None:
            self.moved(cluster, who.topic, machine, before)
            truth = self.get((who.cluster, who.topic, who.subscription))
            truth.movers.append(who)
            self.updates.asked(who, truth)

    def moved(self, cluster: Cluster, topic: str, machine: "Subscription", before: set[int]) -> None:
        """A cursor was put somewhere else: what it no longer covers is to come again.

        Args:
            cluster, topic, machine: which.
            before: what was consumed, held or not (exact mode).
        """
        assert cluster.broker is not None
        truth = self.get((cluster.name, topic, machine.name))
        held, covers = self.retained(cluster, topic), self.now(cluster, topic, machine.cursor)
        if self.context.mode == "snapshot" and machine.replicated:
            self.updates.moved(cluster, topic, machine, truth, held, covers)
        else:
            truth.undone |= truth.may & held - covers
            truth.may = (truth.may - held) | covers
        truth.unexpired |= truth.expired & held - covers
        truth.expired -= held - covers
        truth.late |= self.being_deleted(cluster, topic)
        if not machine.replicated:
            return
        shared = self.all(topic, machine.name)
        shared.sought = True
        if self.context.mode == "mixed":
            self.updates.note_seek(cluster, topic, machine, truth)
            truth.may |= before - held
        state = self.state(cluster, topic, machine.name)
        if self.context.mode == "mixed":
            # Snapshot mode claims as acknowledged what a seek ahead passes over.
            shared.may.setdefault(CREATION, set()).update(covers)
        if self.context.mode != "snapshot" and state is not None:
            true = (before - held) | covers
            shared.may.setdefault(self.key(state), set()).update(true)
        elif self.context.mode != "snapshot" and cluster.broker.topics[topic].replicated_subscriptions is None:
            # No link concerns the topic: a set that begins one day begins where the cursor stands.
            shared.may.setdefault(CREATION, set()).update(covers)

    # ----------------------------------------------------------------------------------------------------- observation

    def noted(self, cluster: Cluster, note: Note) -> None:
        """A broker's log says that it made a subscription because another cluster has it."""
        if note.text.endswith("was created because another cluster has it"):
            topic, _, rest = note.text.partition(": subscription ")
            self._by_update.add((cluster.name, topic, rest.split()[0]))

    def after_event(self, cluster: Cluster) -> None:
        """Notice subscriptions that were made or deleted, and markers that were read."""
        self._observe(cluster, loaded=False)

    def started(self, cluster: Cluster) -> None:
        """The subscriptions that a broker had are none that were made now."""
        self._observe(cluster, loaded=True)
        self._former.begun(cluster.name)

    def deletion_stored(self, cluster: Cluster, keys: tuple[str, ...]) -> None:
        """The store has deleted these."""
        self._former.stored(cluster, keys)

    def _observe(self, cluster: Cluster, *, loaded: bool) -> None:
        broker = cluster.broker
        assert broker is not None
        seen = self._seen.get(cluster.name)
        for text, topic in broker.topics.items():
            if seen is None or seen.get(text) != topic.subscriptions:
                self._look(cluster, loaded=loaded)
                break
        if cluster.name in self._behind:
            self._read_on(cluster)

    def _look(self, cluster: Cluster, *, loaded: bool) -> None:
        broker = cluster.broker
        assert broker is not None
        self._behind.add(cluster.name)
        self._seen[cluster.name] = {text: dict(topic.subscriptions) for text, topic in broker.topics.items()}
        for text, topic in broker.topics.items():
            for name, machine in topic.subscriptions.items():
                truth = self.get((cluster.name, text, name))
                if truth.machine is not machine:
                    if truth.machine is not None and not loaded and topic.log is truth.machine.log:
                        self.all(text, name).given_up = True  # and made again, all in one event
                        self._former.deleted((cluster.name, text, name), truth)
                    self._made(cluster, text, machine, truth, loaded=loaded)
        for (at, text, name), truth in self.of.items():
            if at == cluster.name and truth.machine is not None:
                found = broker.topics.get(text)
                if found is not None and name not in found.subscriptions:
                    truth.machine, truth.lost = None, loaded
                    self._former.deleted((at, text, name), truth)
                    self.all(text, name).given_up = True
                    self.context.count("subscription given up")

    def _read_on(self, cluster: Cluster) -> None:
        broker = cluster.broker
        assert broker is not None
        behind = False
        if self.context.mode == "snapshot":
            for (at, text, name), truth in self.of.items():
                behind = (at == cluster.name and self.updates.read(cluster, text, name, truth)) or behind
        for text, topic in broker.topics.items():
            for name in topic.subscriptions:
                truth = self.get((cluster.name, text, name))
                host = topic.replicated_subscriptions
                ready = host is None or host.ready  # else it is replaying what the disk has
                while ready and truth.coming and truth.coming[0].position <= topic.log.last:
                    self._has_read(cluster, text, name, truth, truth.coming.pop(0))
                behind = behind or bool(truth.coming)
                if truth.unread and topic.replicated_subscriptions is not None:
                    linked = topic.replicated_subscriptions.exact.topic.routing.clusters  # type: ignore[attr-defined]
                    self._read(truth, topic.log.last, linked)
                behind = behind or bool(truth.unread)
        if not behind:
            self._behind.discard(cluster.name)

    def _made(self, cluster: Cluster, topic: str, machine: "Subscription", truth: Acked, *, loaded: bool) -> None:
        assert cluster.broker is not None
        truth.machine = machine
        name = (cluster.name, topic, machine.name)
        if loaded:
            self._former.found(cluster, topic, machine, truth)
            return
        shared = self.all(topic, machine.name)
        covers = self.now(cluster, topic, machine.cursor)
        truth.delivered, truth.expired = set(), set()
        truth.movers.clear()
        truth.late = set(self.being_deleted(cluster, topic))
        by_update = name in self._by_update
        if self.context.mode == "snapshot" and machine.replicated:
            self._by_update.discard(name)
            self.updates.made(cluster, topic, machine, truth, covers, by_update=by_update)
            return
        # A seek of a former subscription, here or elsewhere, hides no update (docs/design/snapshots.md#former-seeks).
        truth.snapshot = replace(truth.snapshot, seek=None, sure=None, latest=None, follows=None)
        again, truth.lost = truth.may if by_update and truth.lost else set(), False
        truth.may = again.union(shared.acked) if by_update or self.context.mode == "mixed" else set()
        # Updates that made it, or were on their way from the disk to the broker meanwhile.
        truth.may.update(*(one.may for one in truth.coming))
        if by_update:
            self._by_update.discard(name)
            return
        truth.may |= covers
        if machine.durable and machine.replicated:
            scope = self.scope(cluster, topic) or frozenset()
            log = cluster.broker.topics[topic].log
            incarnation = log.incarnation
            copy = self._truth.copy(cluster, topic)
            if self.context.mode == "mixed" and copy is not None and machine.cursor.mark_delete >= log.last:
                # A start at the latest skips everything so far, also what was here once.
                covers = covers.union(*(range(uid, uid + self.count(uid)) for uid in copy.deleted))
            shared.created.append(Creation(cluster.name, cluster.uuid, incarnation, covers, scope))

    @staticmethod
    def _read(truth: Acked, last: Position, linked: Collection[str]) -> None:
        while truth.unread and truth.unread[0][0] <= last:
            _, writer, key, fresh = truth.unread.pop(0)
            if writer not in linked:
                continue  # by policy there is no such cluster just now: its markers are passed over
            truth.known.setdefault(key, set()).update(fresh)

    def marker_stored(self, cluster: Cluster, topic: str, entry: StoredEntry) -> None:
        """A marker is on a disk."""
        marker = parse_marker(entry.data)
        if self.context.mode == "snapshot":
            self.updates.marker(cluster, topic, entry, marker)
            return
        if self.context.mode == "mixed":
            # A planned failover writes the whole set in either mode, and with it what a seek has passed over.
            sets = marker.sets if isinstance(marker, AckedSetsMarker) else ()
            for content in (marker,) if isinstance(marker, Update) else sets:
                self._update(cluster, topic, entry, content)
        if isinstance(marker, SoughtEpoch):
            self.all(topic, marker.subscription).named.add(marker.epoch)
        elif isinstance(marker, Update) and marker.claim is not None:
            self.all(topic, marker.subscription).named.update(marker.claim.seeks)
        if not isinstance(marker, AckedSetsMarker):
            return
        for one in marker.sets:
            self.all(topic, one.subscription).named.add(one.epoch)
            key = one.epoch if one.epoch.kind else CREATION
            fresh = self.uids(topic, MessageSet(one.acks))
            truth = self.get((cluster.name, topic, one.subscription))
            truth.unread.append((entry.position, marker.writer, key, fresh))
            self._behind.add(cluster.name)
            if entry.origin:
                continue
            base = self.uids(topic, MessageSet(one.base)) if one.base is not None and one.epoch.kind else set()
            shared = self.all(topic, one.subscription)
            begun = shared.seeks.get(one.epoch, set())
            if self.context.mode == "mixed" and one.epoch.cluster not in self.context.peers(cluster.name):
                begun = set()  # as above: the cluster that sought may have forgotten it before
            self.owe(cluster.name, topic, one.subscription, key, fresh | base | begun)
            for creation in shared.created:
                if (creation.cluster, creation.uuid) == (cluster.name, cluster.uuid) and one.base is not None:
                    creation.durable = True

    def _update(self, cluster: Cluster, topic: str, entry: StoredEntry, content: Update | AckedSet) -> None:
        """A marker of either mode moves cursors to where its writer's was: also over what was sought back, if the writer knew of
        the seek. (A seek in another cluster does not move a cursor back, in snapshot mode.)
        """
        truth = self.get((cluster.name, topic, content.subscription))
        if not entry.origin:
            self._written[cluster.name, topic, content.subscription, entry.position] = truth.may | truth.undone
            return
        may = self._written.get((entry.origin, topic, content.subscription, entry.source), set())
        here = truth.snapshot
        if knows(content, here.seek) and knows(content, here.follows):
            truth.may |= may
        elif here.seek != here.sure:
            truth.undone |= may
        truth.coming.append(Coming(entry.position, entry.origin, content, may))
        self._behind.add(cluster.name)

    def _has_read(self, cluster: Cluster, topic: str, name: str, truth: Acked, one: Coming) -> None:
        """What an update claims is not given to consumers again, and stays on the cursor, as long as the epoch is the same."""
        state, host = self.state(cluster, topic, name), self.updates.host(cluster, topic)
        if not isinstance(one.content, Update) or one.content.claim is None or state is None or host is None:
            return
        epoch = state.epoch if state.epoch.kind else None
        linked = host.exact.topic.routing.into[cluster.name]  # type: ignore[attr-defined]
        if one.writer not in linked or not (knows(one.content, epoch) and knows(one.content, truth.snapshot.latest)):
            return
        here, key = truth.snapshot, self.key(state)
        if here.key != key:
            here.must.clear()
            here.key = key
        here.must.setdefault(one.writer, set()).update(self.updates.uids(topic, one.content.claim.acked))

    def known(self, name: Name, truth: Acked, state: SubscriptionState) -> set[int]:
        """What a broker knows to be acknowledged, in the epoch that it is in, from its consumers and other clusters."""
        return truth.known.get(self.key(state), set()) | self.updates.stays(*name, truth)

    def behind_with(self, cluster: str) -> None:
        """There are markers that a broker has not read."""
        self._behind.add(cluster)

    def delivered(self, consumer: Consumer, uids: set[int]) -> None:
        """Messages reached a consumer."""
        self.get((consumer.cluster, consumer.topic, consumer.subscription)).delivered |= uids
        shared = self.shared.get((consumer.topic, consumer.subscription))
        if shared is not None:
            shared.deliveries += len(uids)
            shared.again += len(uids & shared.acked)

    # ---------------------------------------------------------------------------------------------------------- faults

    def stopped(self, cluster: Cluster) -> None:
        """A broker ended in good order: everything that it knew is durable."""
        for (at, topic, subscription), truth in self.of.items():
            if at == cluster.name:
                for key, fresh in truth.unsafe:
                    self.owe(at, topic, subscription, key, fresh)
                truth.unsafe.clear()

    def died(self, cluster: Cluster) -> None:
        """A broker forgot what nothing durable had."""
        for (at, _, _), truth in self.of.items():
            if at == cluster.name:
                for key, fresh in truth.unsafe:
                    truth.known.get(key, set()).difference_update(fresh)
                truth.unsafe.clear()
                truth.movers.clear()
                truth.may |= truth.undone
                truth.undone.clear()
                truth.expired |= truth.unexpired
                truth.unexpired.clear()
                self.updates.died(truth)

    def seek_answered(self, consumer: Consumer) -> None:
        """A consumer's seek is durable."""
        self.sought(consumer)

    def sought(self, who: Mover) -> None:
        """A seek was answered: it is durable."""
        self.context.count("seek")
        truth = self.get((who.cluster, who.topic, who.subscription))
        if who in truth.movers:
            # Those in front of it are durable with it; one behind it may be lost yet, and what came back by that with it.
            del truth.movers[: truth.movers.index(who) + 1]
        if not truth.movers:
            truth.undone.clear()
            truth.unexpired.clear()
        self.updates.answered(who, truth)

    def forgot(self, cluster: str, topic: str, copy: Copy) -> None:
        """A topic's log is gone: what only it knew may come again."""
        self._seen.pop(cluster, None)
        self._former.forgot(cluster, topic)
        for consumer, asked in self._asked.items():
            if (consumer.cluster, consumer.topic) == (cluster, topic):
                asked.clear()  # the answers are on their way: what was durable then is not any more
        for name in [name for name in self.of if name[:2] == (cluster, topic)]:
            del self.of[name]
        for (text, subscription), shared in self.shared.items():
            if text != topic:
                continue
            for key, owed in shared.must.items():
                known = {
                    name: self._known(name, topic, subscription, key) if name != cluster else set()
                    for name in self.context.names
                }
                for hearer in owed:
                    # What a cluster knows from its time in snapshot mode may never cross a one-way link
                    # (docs/replicated-subscriptions.md).
                    mixed = self.context.mode == "mixed"
                    sources = self.context.peers(hearer) if mixed else self.context.sources(hearer)
                    owed[hearer] &= set().union(*(known[source] for source in sources))
                    if (cluster, hearer) in self.context.routes:
                        shared.waits[cluster, key, hearer] = owed[hearer] - known[hearer]

    def waits(self, topic: str, subscription: str, key: Any, hearer: str) -> set[int]:
        """What a cluster need not know yet, because it is for the link from another to bring it.

        A cluster that is linked from the same clusters does not pass it on. That the other's log is gone is known when its link
        shakes hands for the topic again; while it has none, it does not, and it cannot be known.
        """
        gone = self.all(topic, subscription).waits
        return set().union(
            *(
                found
                for (cluster, epoch, name), found in gone.items()
                if (epoch, name) == (key, hearer) and (cluster, topic) not in self._truth.copies
            )
        )

    def _known(self, cluster: str, topic: str, subscription: str, key: Any) -> set[int]:
        state = self.state(self._clusters[cluster], topic, subscription)
        if state is None or self.key(state) != key:
            return set()
        return self.uids(topic, state.consumed() if state.epoch.kind else state.acks)

    def settle(self) -> None:
        """No broker dies any more: what brokers know, all must know."""
        for cluster in self._clusters.values():
            self.stopped(cluster)

    def copies(self, uids: Iterable[int]) -> list[int]:
        """For messages to people: the first few."""
        return sorted(uids)[:10]
