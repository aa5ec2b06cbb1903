"""Planted bugs: the world of `snapworld` with one rule left out of the real code. Each must be found.

docs/design/snapshots.md says of the first seven which rule they leave out.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.replication.snapshots import Snapshots
from magnetar.replication.snapshots.cache import Taken
from magnetar.replication.snapshots.held import Held
from magnetar.replication.snapshots.pending import Pending, Step
from magnetar.replication.snapshots.receiving import Receiver
from magnetar.replication.snapshots.state import State
from magnetar.wire import markers
from magnetar.wire.acksets import SoughtEpoch
from tests.support import snapworld
from tests.support.snapworld import Site, World

SNAPSHOTS = "magnetar.replication.snapshots"


class Planted(World):
    """A world with a rule left out; `patches` says where."""

    patches: ClassVar[dict[str, Any]] = {}
    steps: ClassVar[int] = 100
    reason: ClassVar[str] = ""
    """Part of the violation that the missing rule leads to; other ones do not count."""


class Plain(Planted):
    """Positions only, as PIP-33 has them, and three clusters."""

    reason = "nobody acknowledged"
    plain = 1.0
    steps = 250
    clusters_least = 3
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"stall": 3, "consume": 2, "tick": 2, "crash": 0.3, "fail": 0}


class OneRound(Plain):
    """Three clusters, one round."""

    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.pending.Pending._round_over": lambda self: Step.COMPLETE}


def untagged(self: Pending, response: markers.SnapshotResponse) -> Step:
    """Rounds are told apart by nothing; a repeated first answer ends the second round."""
    bare = response._replace(snapshot_id=response.snapshot_id.split(":", maxsplit=1)[0])
    if bare.snapshot_id != self.snapshot_id:
        return Step.IGNORED
    return _answered(self, bare._replace(snapshot_id=self.round_id))


_answered = Pending.answered


class Untagged(Plain):
    """And handlers are only at-least-once: an answer is given twice, and the second one is slow."""

    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.pending.Pending.answered": untagged}
    boost: ClassVar[dict[str, float]] = {"stall": 2, "consume": 4, "tick": 2, "crash": 0.3, "fail": 0}

    def push(self, entry: Any, site: Site, to: Site) -> None:
        super().push(entry, site, to)
        if entry.flags & 4 and isinstance(marker := markers.parse_marker(entry.data), markers.SnapshotRequest):
            if self.rng.random() < 0.5:
                response = markers.SnapshotResponse(marker.snapshot_id, to.cluster, to.log.last)
                to.append_marker(markers.build_marker(response, self.now_ms, [site.cluster]), [site.cluster])

    def link(self, route: tuple[str, str] | None = None) -> bool:
        """What follows an answer on its link often waits."""
        slow = set()
        for source, target in sorted(self.routes - self.stalled):
            at = self.at.get((source, target), NONE)
            site = self.sites[source]
            if site.log.valid(at) and site.log.flags_at(at) & 4 and not self.settling and self.rng.random() < 0.9:
                if isinstance(markers.parse_marker(site.disk[at.ledger][at.entry].data), markers.SnapshotResponse):
                    slow.add((source, target))
        self.stalled |= slow
        try:
            return super().link(route)
        finally:
            self.stalled -= slow


class Partial(Plain):
    """A snapshot whose time is up is used with the answers that it has."""

    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.pending.Pending.usable": lambda self: dict(self.positions)}
    boost: ClassVar[dict[str, float]] = {"long": 10, "stall": 3}


class NoVector(Planted):
    """PIP-33 as written, tagged rounds, two of them: a wiped cluster, a late joiner."""

    plain = 0.0
    warm = 1.0
    reason = "nobody acknowledged"

    def push(self, entry: Any, site: Site, to: Site) -> None:
        self.is_plain = True
        super().push(entry, site, to)
        self.is_plain = False

    def check_told(self) -> None:
        """Positions tell less."""

    def check_tail(self, home: Site) -> None:
        """Positions tell less."""

    def publish(self, site: Site | None = None, *, everywhere: bool = False) -> None:
        super().publish(site, everywhere=True)

    boost: ClassVar[dict[str, float]] = {"wipe": 3, "quota": 0, "expire": 0, "seek": 0}


def claim_up_to_highest(held: Held) -> Held:
    return Held({key: [(0, runs[-1][1])] for key, runs in held.origins.items()})


_taken = Taken.__init__


def taken_highest(self: Taken, local: Position, clusters: dict[str, Position], held: Held) -> None:
    _taken(self, local, clusters, claim_up_to_highest(held))


class NoRestrictedCheck(Planted):
    """The vector is one number per origin, and replicate_to is not looked at."""

    reason = "nobody acknowledged"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.cache.Taken.__init__": taken_highest}
    boost: ClassVar[dict[str, float]] = {"quota": 0, "join": 0}


class HighestOnly(NoRestrictedCheck):
    """The same where nothing is restricted: gaps, filters and late joiners are enough."""

    boost: ClassVar[dict[str, float]] = {"quota": 3, "join": 5}

    def publish(self, site: Site | None = None, *, everywhere: bool = False) -> None:
        super().publish(site, everywhere=True)


class NoEpoch(Planted):
    """An update that was written before a seek undoes it."""

    reason = "undoes the seek"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.receiving.Receiver._written_before_our_seek": lambda *_: False}
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"seek": 5, "wipe": 0.2, "move": 10, "consume": 2}


class ReuseLedgers(Planted):
    """Ledger ids, and so incarnations, start again after a wipe."""

    reason = "nobody acknowledged"
    plain = 0.0
    reuse_ledgers = True
    boost: ClassVar[dict[str, float]] = {"wipe": 3}


class BaseIsAck(Planted):
    """Creation at Latest counts as an acknowledgement of everything before."""

    reason = "still wants"
    plain = 0.0
    clusters_least = 3
    warm = 0.0
    patches: ClassVar[dict[str, Any]] = {
        f"{SNAPSHOTS}.updates.Teller.claimable": staticmethod(lambda state, taken: taken.held.minus(state.expired))
    }
    boost: ClassVar[dict[str, float]] = {"wipe": 0, "delete": 0, "leave": 0, "seek": 0, "long": 20, "stall": 0}

    def __init__(self, rng: random.Random, trace: list[str] | None = None) -> None:
        """Two consumers subscribe before they hear of each other, and one link is slow for a long time."""
        super().__init__(rng, trace)
        for _ in range(4):
            self.publish()
            self.sync()
            self.link()
        here, there = rng.sample(sorted(self.members), 2)
        self.stalled = {(here, there)}
        for name, where in ((here, EARLIEST), (there, LATEST)):
            if not self.sites[name].refusing:
                self.bases.append(set(self.sites[name].ever) if where == LATEST else set())
                self.make(self.sites[name], where)
        self.home = there


class ExpiryIsAck(Planted):
    """Expiry is told like an acknowledgement (docs/design/acknowledged-sets.md#expiry-is-local)."""

    reason = "nobody acknowledged"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots.expired": lambda *_: None}
    boost: ClassVar[dict[str, float]] = {"expire": 5}


def own_with_present_vector(self: Any, entry: Any, marker: Any) -> None:
    if isinstance(marker, markers.Snapshot) and self._started:
        marker = marker._replace(held=self._held.copy().origins)
    _own(self, entry, marker)


_own = Snapshots._own


class VectorTooLate(Planted):
    """The vector is what the log holds when the snapshot is read, not at its local position."""

    reason = "nobody acknowledged"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._own": own_with_present_vector}


class NeverRests(Planted):
    """Who was told by an update tells it on."""

    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.state.State.has_news": property(lambda self: True)}


def hears_of_a_seek(self: Receiver, marker: SoughtEpoch, states: dict[str, State]) -> None:
    if marker.subscription in states:
        states[marker.subscription].heard(marker.epoch)


class SeekForgetsNothing(Planted):
    """A cluster that hears of a seek goes on telling what it knew before."""

    reason = "undoes the seek"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.receiving.Receiver.sought": hears_of_a_seek}
    boost: ClassVar[dict[str, float]] = {"seek": 3, "wipe": 0, "move": 10}


def retell_to_all(self: Snapshots, clusters: Any) -> None:
    for name, state in self._states.items():
        cursor = self._host.cursor(name)
        if cursor is not None:
            state.told, state.news = NONE, cursor.mark_delete
    _retell(self, clusters)


_retell = Snapshots._retell


class RetellsToAll(Planted):
    """Whoever forgot is told everything again, and so is everybody else."""

    reason = "undoes the seek"
    plain = 0.0
    clusters_least = 3
    warm = 1.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._retell": retell_to_all}
    boost: ClassVar[dict[str, float]] = {"seek": 2, "wipe": 0, "move": 5, "stall": 0.3}

    def seek(self) -> None:
        """It is heard of everywhere; then some link begins anew."""
        super().seek()
        for _ in range(40):
            self.link()
            self.sync()
        self.handshake()
        for _ in range(40):
            self.tick()
            self.link()
            self.sync()


class NothingOnArrival(Planted):
    """What others said is acknowledged is forgotten before the message comes."""

    reason = "told"
    plain = 0.0
    clusters_least = 3
    warm = 1.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._claimed": lambda *_: None}
    boost: ClassVar[dict[str, float]] = {"expire": 0, "quota": 0, "wipe": 0, "seek": 0, "move": 0}

    def stall(self) -> None:
        """Only between those that do not consume."""
        self.stalled = {self.rng.choice(sorted(route for route in self.routes if self.home not in route) or [("", "")])}

    def settle(self) -> None:
        """The consumer is through before that link goes on."""
        self.stall()
        for _ in range(3):
            self.publish()
        for round_ in range(150):
            self.heal()
            self.link()
            self.sync()
            if round_ % 10 == 0:
                self.tick()
                self.consume(self.sites[self.home], 99)
        super().settle()


def wanted_for_messages(self: Snapshots) -> bool:
    return self.writes and self._started and bool(self._states) and self._last_message > self._taker.newest


class NoTrailing(Planted):
    """Snapshots are only taken for new messages."""

    reason = "told"
    plain = 0.0
    warm = 1.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._wanted": wanted_for_messages}
    boost: ClassVar[dict[str, float]] = {"seek": 3, "expire": 0, "quota": 0}

    def seek(self) -> None:
        """Behind the newest snapshot, with something left to consume."""
        for _ in range(40):
            self.tick()
            self.link()
            self.sync()
        super().seek()
        for site in self.sites.values():
            self.consume(site, 99)


def work_without_telling(self: Snapshots) -> None:
    with patch.object(self, "_tell", lambda *_: None):
        _work(self)


_work = Snapshots._work


class SnapshotMustComeFirst(Planted):
    """A snapshot that arrives after the acknowledgement is not looked at before the next one (Pulsar #16651)."""

    reason = "told"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._work": work_without_telling}


def told_at_once(self: Snapshots, subscription: str, state: State) -> None:
    _tell(self, subscription, state)
    if state.writing is not None:
        state.told = state.writing.local


_tell = Snapshots._tell


class ToldTooEarly(Planted):
    """An update counts as told before it is durable."""

    reason = "told"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._tell": told_at_once}
    boost: ClassVar[dict[str, float]] = {"fail": 5}


class ForgetsDeletion(Planted):
    """The next update brings a deleted subscription back."""

    reason = "brings it back"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {
        f"{SNAPSHOTS}.machine.Snapshots.deleted": lambda self, subscription: self._states.pop(subscription, None)
    }
    boost: ClassVar[dict[str, float]] = {"delete": 5}


class HeldForgetsTrimmed(Planted):
    """What retention deleted is no longer in the vector after a restart: the tail of a quiet origin is never told."""

    reason = "told"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.state.flat": lambda held: []}
    boost: ClassVar[dict[str, float]] = {"trim": 5, "crash": 5}


class StaleBase(Planted):
    """What was deleted before the subscription came counts as acknowledged."""

    reason = "nobody acknowledged"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.machine.Snapshots._brought": lambda self: self._new_state()}
    warm = 0.0
    boost: ClassVar[dict[str, float]] = {"quota": 3, "subscribe": 2, "move": 5, "consume": 2}


class NoMerge(Planted):
    """Bases of creations are not merged."""

    reason = "still wants"
    plain = 0.0
    patches: ClassVar[dict[str, Any]] = {f"{SNAPSHOTS}.receiving.Receiver._merge_base": lambda *_: None}
    boost: ClassVar[dict[str, float]] = {"wipe": 0, "delete": 0, "leave": 0, "move": 10, "subscribe": 5, "stall": 5}


BUGS: dict[str, type[Planted]] = {
    "one_round": OneRound,
    "untagged": Untagged,
    "partial": Partial,
    "no_vector": NoVector,
    "no_restricted_check": NoRestrictedCheck,
    "no_epoch": NoEpoch,
    "reuse_ledgers": ReuseLedgers,
    "highest_only": HighestOnly,
    "base_is_ack": BaseIsAck,
    "expiry_is_ack": ExpiryIsAck,
    "vector_too_late": VectorTooLate,
    "never_rests": NeverRests,
    "seek_forgets_nothing": SeekForgetsNothing,
    "retells_to_all": RetellsToAll,
    "nothing_on_arrival": NothingOnArrival,
    "no_trailing": NoTrailing,
    "snapshot_must_come_first": SnapshotMustComeFirst,
    "told_too_early": ToldTooEarly,
    "forgets_deletion": ForgetsDeletion,
    "held_forgets_trimmed": HeldForgetsTrimmed,
    "stale_base": StaleBase,
    "no_merge": NoMerge,
}
"""The first seven, which docs/design/snapshots.md names."""

KNOWN: dict[str, int] = {
    "one_round": 154, "untagged": 982, "partial": 257, "no_vector": 34, "no_restricted_check": 0, "no_epoch": 91,
    "reuse_ledgers": 3, "highest_only": 34, "base_is_ack": 5, "expiry_is_ack": 2, "vector_too_late": 162,
    "never_rests": 0, "seek_forgets_nothing": 386, "retells_to_all": 65, "nothing_on_arrival": 0, "no_trailing": 29,
    "snapshot_must_come_first": 4, "told_too_early": 1598, "forgets_deletion": 2, "held_forgets_trimmed": 6,
    "stale_base": 142, "no_merge": 11,
}  # fmt: skip
"""A seed that finds each bug, from a search over 0, 1, 2, ... (`python -m tests.support.snapbugs`)."""


@contextmanager
def planted(world: type[World]) -> Iterator[None]:
    """The world's patches, for as long as the block runs."""
    patches: Mapping[str, Callable[..., Any]] = getattr(world, "patches", {})
    active = [patch(name, function) for name, function in patches.items()]
    for one in active:
        one.start()
    try:
        yield
    finally:
        for one in active:
            one.stop()


def find(name: str, seeds: Iterable[int]) -> tuple[int, str, list[str]] | None:
    """The first of some seeds that finds a planted bug: seed, violation, trace."""
    with planted(BUGS[name]):
        for seed in seeds:
            why, trace = snapworld.run_world(seed, BUGS[name], BUGS[name].steps)
            if BUGS[name].reason in why and why:
                return seed, why, trace
    return None


if __name__ == "__main__":
    import sys

    for bug in sys.argv[1:] or BUGS:
        first = find(bug, range(4000))
        told = f"seed {first[0]}, {len(first[2])} events: {first[1][:90]}" if first else "NOT FOUND"
        sys.stdout.write(f"{bug}: {told}\n")
        sys.stdout.flush()
