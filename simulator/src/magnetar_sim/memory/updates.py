"""Snapshot mode's truth: which cluster may count what, and claim what.

    may        acknowledged in that cluster by a consumer or operator, or claimed there by an update that counts
    an update  is on the disk of its writer: it claims only what the writer may count, and not what its starting point skipped
    it counts  where it is on the disk, unless a seek there came that its writer did not know
    no link    nothing is kept: when the first one comes, what the cursor stands behind is the starting point, and claimed as that
    a seek     leaves what the cursor covers then, and what is not here (any more, or yet), as in exact mode
    a foreign seek that a marker here names: no update that names it is written before something more is acknowledged
    must       what counts there and was read does not come to consumers again

A message that was sought back may well be claimed again by an update whose writer knows of the seek: its own cursor did not
move back, and an update claims all that its writer has consumed. That is by design (docs/design/snapshots.md#seeks);
what is checked is that there was a reason, and that the writer may count it.

A planned failover writes a state of exact mode: what its writer may count is acknowledged, and what its starting point skipped is
skipped here. The reader follows a seek in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from magnetar.core.ids import OriginKey, Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.snapshots.state import later
from magnetar.storage.entries import StoredEntry
from magnetar.wire.acksets import AckedSetsMarker, Epoch, SoughtEpoch
from magnetar.wire.markers import Claim, Marker, Snapshot, Update
from magnetar.wire.metadata import parse_metadata
from magnetar_sim.cluster import Cluster, Clusters
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.ackrecords import Acked, Claimed, SnapshotTruth
from magnetar_sim.memory.records import Violation
from magnetar_sim.memory.truth import Truth

if TYPE_CHECKING:
    from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar_sim.memory.acks import Acks, Mover


class Updates:
    """What worlds of snapshot mode are judged by.

    Args:
        acks: everything else about acknowledgements.
        context, clusters, truth: as `Acks`.
    """

    def __init__(self, acks: "Acks", context: WorldContext, clusters: Clusters, truth: Truth) -> None:
        self._acks, self.context, self._clusters, self._truth = acks, context, clusters, truth
        self._final: dict[tuple[str, str, str, Position], set[int]] = {}
        self._asked: dict[Mover, Epoch | None] = {}
        self.newest: dict[tuple[str, str], tuple[int, Position]] = {}
        """Per cluster and topic the newest snapshot that is complete: in which life of the broker, and its local position."""

    # ------------------------------------------------------------------------------------------------------- questions

    def uids(self, topic: str, held: Mapping[OriginKey, Sequence[tuple[int, int]]]) -> set[int]:
        """Messages by their identities."""
        known = self._truth.messages
        return {
            known[name]
            for key, runs in held.items()
            for first, end in runs
            for index in range(first, end)
            if (name := (topic, key.cluster, key.incarnation, index)) in known
        }

    @staticmethod
    def host(cluster: Cluster, topic: str) -> "ReplicatedTopic | None":
        """Where the machines of a topic are, once they have read everything."""
        host = cluster.broker.replicated_subscriptions.topics.get(topic) if cluster.broker is not None else None
        return host if host is not None and host.ready else None

    @staticmethod
    def counts(cluster: str, seek: Epoch | None, claimed: Claimed) -> bool:
        """Whether what is claimed counts behind this seek here."""
        if seek is None or claimed.seeks is None:
            return True
        known = claimed.seeks.get(cluster)
        return known is not None and not later(known, seek)

    @staticmethod
    def _follows(epoch: Epoch, claimed: Claimed) -> bool:
        """Whether the writer of a claim knew of the seek that the reader stands behind."""
        known = claimed.seeks.get(epoch.cluster) if claimed.seeks is not None else None
        return not epoch.kind or (known is not None and not later(known, epoch))

    def stays(self, cluster: str, topic: str, subscription: str, truth: Acked) -> set[int]:
        """What a cluster has read of others, and may not give to consumers again: not of those whom its policy ceased to name."""
        departed = self.context.departed[cluster]
        state = self._acks.state(self._clusters[cluster], topic, subscription)
        if state is None or self._acks.key(state) != truth.snapshot.key:
            return set()
        return set().union(*(acked for writer, acked in truth.snapshot.must.items() if writer not in departed))

    # ---------------------------------------------------------------------------------------------------------- markers

    def marker(self, cluster: Cluster, topic: str, entry: StoredEntry, marker: Marker | None) -> None:
        """A marker is on a disk."""
        if isinstance(marker, Update):
            truth = self._acks.get((cluster.name, topic, marker.subscription))
            claim = marker.claim
            assert claim is not None, "no broker here writes positions only"
            if not entry.origin:
                self._written(cluster, topic, entry, marker.subscription, truth, claim)
                return
            seeks = {seek.cluster: seek for seek in claim.seeks}
            acked, base = self.uids(topic, claim.acked), self.uids(topic, claim.base or {})
            self._claimed(cluster, truth, Claimed(entry.position, entry.origin, acked, base, seeks))
            for seek in claim.seeks:
                self._note_foreign(cluster, truth.snapshot, seek)
            if self._passes_on(cluster.name, entry.origin):
                truth.snapshot.news = True
        elif isinstance(marker, SoughtEpoch):
            if entry.origin:
                self._note_foreign(
                    cluster, self._acks.get((cluster.name, topic, marker.subscription)).snapshot, marker.epoch
                )
        elif isinstance(marker, Snapshot):
            self.newest[cluster.name, topic] = cluster.life, marker.local
        elif isinstance(marker, AckedSetsMarker):
            # A planned failover writes the whole set in either mode, and with it what a seek has passed over: from then on the
            # subscription is a state of both modes at once, of which less is promised.
            for one in marker.sets:
                self._acks.all(topic, one.subscription).moved = True
                truth = self._acks.get((cluster.name, topic, one.subscription))
                if not entry.origin:
                    name = (cluster.name, topic, one.subscription, entry.position)
                    self._final[name] = truth.may | truth.undone
                else:
                    base = self._acks.uids(topic, MessageSet(one.base)) if one.base is not None else set()
                    acked = self._final.get((entry.origin, topic, one.subscription, entry.source), set())
                    acked = acked | self._acks.uids(topic, MessageSet(one.acks))
                    if one.epoch.kind:
                        acked |= base  # what a seek passed over counts as acknowledged
                    else:
                        truth.snapshot.base |= base
                        truth.snapshot.skipped |= base
                    self._claimed(cluster, truth, Claimed(entry.position, entry.origin, acked, base, None))

    def _written(self, cluster: Cluster, topic: str, entry: StoredEntry, name: str, truth: Acked, claim: Claim) -> None:
        """An update of this cluster.

        It lies in front of the marker of any seek here that it does not know, and a seek is answered behind that: so what it
        claims counts here still, or is `undone`.
        """
        here = truth.snapshot
        former = here.former if entry.position <= here.former_until else set()
        acked = self.uids(topic, claim.acked)
        if wrong := acked - truth.may - truth.undone - former:
            raise Violation(
                f"{cluster.name} claims that {self._acks.copies(wrong)} of {name} are acknowledged, which it cannot know"
            )
        if wrong := self.uids(topic, claim.base or {}) - here.skipped - former:
            raise Violation(
                f"{cluster.name} claims that the starting point of {name} skipped {self._acks.copies(wrong)}: it did not"
            )
        if not acked or here.news:
            return
        to = parse_metadata(entry.data).replicate_to
        for seek in claim.seeks:
            there = self._truth.copies.get((seek.cluster, topic))
            # In another life no consumer wants what was sought back.
            lives = there is not None and there.incarnation == seek.incarnation
            if lives and here.foreign.get(seek.cluster) == seek and (not to or seek.cluster in to):
                raise Violation(
                    f"{cluster.name} has read of the seek of {name} in {seek.cluster}, and undoes it: it claims "
                    f"{self._acks.copies(acked)}, and nothing was acknowledged there since"
                )

    def _claimed(self, cluster: Cluster, truth: Acked, claimed: Claimed) -> None:
        here = truth.snapshot
        self._take_unstated(here, claimed)
        here.claims.append(claimed)
        here.unread.append(claimed)
        self._acks.behind_with(cluster.name)
        if self.counts(cluster.name, here.seek, claimed):
            truth.may |= claimed.acked
        elif here.seek != here.sure:
            truth.undone |= claimed.acked

    def _take_unstated(self, here: SnapshotTruth, claimed: Claimed) -> None:
        """What a creation states nothing about, is taken from another one (docs/design/acknowledged-sets.md#base-floor)."""
        if here.scope is not None:
            unstated = {uid for uid in claimed.base if self._truth.entry_of(uid).cluster not in here.scope}
            here.base |= unstated
            here.skipped |= unstated

    @staticmethod
    def _note_foreign(cluster: Cluster, here: SnapshotTruth, seek: Epoch) -> None:
        if seek.cluster != cluster.name and later(here.foreign.get(seek.cluster), seek):
            here.foreign[seek.cluster] = seek
            here.news = False

    def _passes_on(self, here: str, writer: str) -> bool:
        """Whether an update may be passed on from here, to those whom its writer does not reach."""
        return bool(self.context.departed[here]) or any(
            (here, other) in self.context.routes and (writer, other) not in self.context.routes
            for other in self.context.names
            if other not in (here, writer)
        )

    # ----------------------------------------------------------------------------------------------------- observation

    def made(
        self, cluster: Cluster, topic: str, machine: "Subscription", truth: Acked, covers: set[int], *, by_update: bool
    ) -> None:
        """A subscription is new here.

        Args:
            cluster, topic, machine, truth: which.
            covers: what its cursor covers.
            by_update: an update made it.
        """
        before, claims = truth.snapshot, truth.snapshot.claims
        here = truth.snapshot = SnapshotTruth(
            claims=claims, unread=before.unread, foreign=before.foreign, news=before.news
        )
        here.former = truth.may | truth.undone | before.skipped
        assert cluster.broker is not None
        here.former_until = cluster.broker.topics[topic].log.staged_last
        ready = self.host(cluster, topic) is not None
        truth.may, truth.undone = set(), set()
        if not by_update:
            here.base = set(covers)
            copy = self._truth.copy(cluster, topic)
            if copy is not None:
                # A start at the latest skips everything so far, also what was here once.
                here.base |= self._messages(copy.deleted)
            if ready:
                claims = here.unread
            here.scope = self._acks.scope(cluster, topic)
        if not ready:
            here.unread = []  # which of them are passed over cannot be known
        for one in claims:
            truth.may |= one.acked
            if by_update:
                here.base |= one.base
        here.skipped = set(here.base)
        for one in claims:
            self._take_unstated(here, one)

    def _messages(self, uids: Iterable[int]) -> set[int]:
        return {uid + number for uid in uids for number in range(self._acks.count(uid))}

    def read(self, cluster: Cluster, topic: str, name: str, truth: Acked) -> bool:
        """The broker handled an event; whether there are markers that it has not read."""
        here = truth.snapshot
        host = self.host(cluster, topic)
        if not here.unread or host is None:
            return bool(here.unread)
        last = host.log.last
        while here.unread and here.unread[0].position <= last:
            claimed = here.unread.pop(0)
            state = self._acks.state(cluster, topic, name)
            if claimed.seeks is None or state is None or name not in host.subscriptions():
                continue
            if here.key != (key := self._acks.key(state)):
                here.must.clear()  # a seek here, or elsewhere, which a failover brought
                here.key = key
            if self.counts(cluster.name, here.latest, claimed) and self._follows(state.epoch, claimed):
                here.must.setdefault(claimed.writer, set()).update(claimed.acked)
        return bool(here.unread)

    def moved(
        self, cluster: Cluster, topic: str, machine: "Subscription", truth: Acked, held: set[int], covers: set[int]
    ) -> None:
        """A seek put the cursor somewhere else."""
        here = truth.snapshot
        truth.undone |= (truth.may | here.base & held) - covers
        truth.may = covers | truth.may - held
        here.base -= held - covers
        if not self._acks.kept(cluster, topic, machine.name):
            here.skipped |= covers
        here.must.clear()
        here.news = True
        self.note_seek(cluster, topic, machine, truth)

    def note_seek(self, cluster: Cluster, topic: str, machine: "Subscription", truth: Acked) -> None:
        """Under which name a seek here is known; None while no state is kept."""
        host = self.host(cluster, topic)
        if host is not None:
            state = host.snapshot.states.get(machine.name)  # type: ignore[attr-defined]
            truth.snapshot.seek = state.seeks.get(cluster.name) if state is not None else None
            truth.snapshot.latest = truth.snapshot.seek

    def asked(self, who: "Mover", truth: Acked) -> None:
        """A seek was handled, and is not answered yet."""
        self._asked[who] = truth.snapshot.seek

    def answered(self, who: "Mover", truth: Acked) -> None:
        """It is durable."""
        seek = self._asked.pop(who, None)
        here = truth.snapshot
        if seek is not None and seek.cluster == who.cluster and later(here.sure, seek):
            here.sure = seek

    def died(self, truth: Acked) -> None:
        """A broker forgot what nothing durable had."""
        here = truth.snapshot
        here.seek = here.sure
