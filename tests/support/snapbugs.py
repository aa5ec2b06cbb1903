"""Planted bugs: the world of `snapworld` with one rule left out of the real code. Each must be found.

What is replaced stands in `magnetar_sim.planted.snapshot`, the table that whole brokers use as well.

docs/design/snapshots.md says of the first seven which rule they leave out.
"""

import random
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from magnetar.core.ids import EARLIEST, LATEST, NONE
from magnetar.wire import markers
from magnetar_sim.host.patches import Patches, patched
from magnetar_sim.planted.snapshot import MACHINES_ONLY, SNAPSHOT
from tests.support import snapworld
from tests.support.snapworld import Site, World

PATCHES = SNAPSHOT | MACHINES_ONLY


class Planted(World):
    """A world with a rule left out; `patches` says where."""

    patches: ClassVar[Patches] = {}
    steps: ClassVar[int] = 100
    reason: ClassVar[str] = ""
    """Part of the violation that the missing rule leads to; other ones do not count."""


class Plain(Planted):
    """Positions only, as PIP-33 has them, and three clusters."""

    reason = "was not acknowledged"
    plain = 1.0
    steps = 250
    clusters_least = 3
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"stall": 3, "consume": 2, "tick": 2, "crash": 0.3, "fail": 0}


class OneRound(Plain):
    """Three clusters, one round."""

    patches = PATCHES["one_round"]


class Untagged(Plain):
    """And handlers are only at-least-once: an answer is given twice, and the second one is slow."""

    patches = PATCHES["untagged"]
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

    patches = PATCHES["partial"]
    boost: ClassVar[dict[str, float]] = {"long": 10, "stall": 3}


class NoVector(Planted):
    """PIP-33 as written, tagged rounds, two of them: a wiped cluster, a late joiner."""

    plain = 0.0
    warm = 1.0
    reason = "was not acknowledged"

    def push(self, entry: Any, site: Site, to: Site) -> None:
        self.is_plain = True
        super().push(entry, site, to)
        self.is_plain = False

    def check_published(self) -> None:
        """Positions claim less."""

    def check_tail(self, home: Site) -> None:
        """Positions claim less."""

    def publish(self, site: Site | None = None, *, everywhere: bool = False) -> None:
        super().publish(site, everywhere=True)

    boost: ClassVar[dict[str, float]] = {"wipe": 3, "quota": 0, "expire": 0, "seek": 0}


class NoRestrictedCheck(Planted):
    """The vector is one number per origin, and replicate_to is not looked at."""

    reason = "was not acknowledged"
    plain = 0.0
    patches = PATCHES["no_restricted_check"]
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
    patches = PATCHES["no_epoch"]
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"seek": 5, "wipe": 0.2, "move": 10, "consume": 2}


class ReuseLedgers(Planted):
    """Ledger ids, and so incarnations, start again after a wipe."""

    reason = "was not acknowledged"
    plain = 0.0
    reuse_ledgers = True
    boost: ClassVar[dict[str, float]] = {"wipe": 3}


class BaseIsAck(Planted):
    """Creation at Latest counts as an acknowledgement of everything before."""

    reason = "still wants"
    plain = 0.0
    clusters_least = 3
    warm = 0.0
    patches = PATCHES["base_is_ack"]
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
    """Expiry is published like an acknowledgement (docs/design/acknowledged-sets.md#expiry-is-local)."""

    reason = "was not acknowledged"
    plain = 0.0
    patches = PATCHES["told_expiry"]
    boost: ClassVar[dict[str, float]] = {"expire": 5}


class VectorTooLate(Planted):
    """The vector is what the log holds when the snapshot is read, not at its local position."""

    reason = "was not acknowledged"
    plain = 0.0
    patches = PATCHES["vector_too_late"]


class NeverRests(Planted):
    """A cluster publishes what it knows by an update."""

    plain = 0.0
    patches = PATCHES["never_rests"]


class SeekForgetsNothing(Planted):
    """A cluster that gets another's seek goes on publishing what it knew before."""

    reason = "undoes the seek"
    plain = 0.0
    patches = PATCHES["seek_forgets_nothing"]
    boost: ClassVar[dict[str, float]] = {"seek": 3, "wipe": 0, "move": 10}


class RetellsToAll(Planted):
    """What a cluster that forgot needs again is published to all."""

    reason = "undoes the seek"
    plain = 0.0
    clusters_least = 3
    warm = 1.0
    patches = PATCHES["retells_to_all"]
    boost: ClassVar[dict[str, float]] = {"seek": 2, "wipe": 0, "move": 5, "stall": 0.3}

    def seek(self) -> None:
        """All clusters get it; then some link begins again."""
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
    """What others published as acknowledged is forgotten before the message comes."""

    reason = "published"
    plain = 0.0
    clusters_least = 3
    warm = 1.0
    patches = PATCHES["nothing_on_arrival"]
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


class NoTrailing(Planted):
    """Snapshots are only taken for new messages."""

    reason = "published"
    plain = 0.0
    warm = 1.0
    patches = PATCHES["no_trailing"]
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


class SnapshotMustComeFirst(Planted):
    """A snapshot that arrives after the acknowledgement is not looked at before the next one (Pulsar #16651)."""

    reason = "published"
    plain = 0.0
    patches = PATCHES["snapshot_must_come_first"]


class ToldTooEarly(Planted):
    """An update counts as published before it is durable."""

    reason = "published"
    plain = 0.0
    patches = PATCHES["told_too_early"]
    boost: ClassVar[dict[str, float]] = {"fail": 5}


class ForgetsDeletion(Planted):
    """The next update brings a deleted subscription back."""

    reason = "brings it back"
    plain = 0.0
    patches = PATCHES["forgets_deletion"]
    boost: ClassVar[dict[str, float]] = {"delete": 5}


class HeldForgetsTrimmed(Planted):
    """What retention deleted is no longer in the vector after a restart: the tail of a quiet origin is never published."""

    reason = "published"
    plain = 0.0
    patches = PATCHES["held_forgets_trimmed"]
    boost: ClassVar[dict[str, float]] = {"trim": 5, "crash": 5}


class StaleBase(Planted):
    """What was deleted before the subscription came counts as acknowledged."""

    reason = "was not acknowledged"
    plain = 0.0
    patches = PATCHES["stale_base"]
    warm = 0.0
    boost: ClassVar[dict[str, float]] = {"quota": 3, "subscribe": 2, "move": 5, "consume": 2}


class NoMerge(Planted):
    """Bases of creations are not merged."""

    reason = "still wants"
    plain = 0.0
    patches = PATCHES["no_merge"]
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


def planted(world: type[World]) -> AbstractContextManager[None]:
    """The world's patches, for as long as the block runs."""
    return patched(getattr(world, "patches", {}))


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
        found = f"seed {first[0]}, {len(first[2])} events: {first[1][:90]}" if first else "NOT FOUND"
        sys.stdout.write(f"{bug}: {found}\n")
        sys.stdout.flush()
