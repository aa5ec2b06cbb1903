"""What kind of world is wanted. The seed decides everything that is left open here."""

import random
from dataclasses import dataclass
from typing import Final

STEPS: Final = (12, 24, 48, 96)
"""How long worlds are; most faults need few steps, some need time."""

FOCUS_EVERY: Final = 10
"""Of so many worlds one is about lost disks above all, and one about another of `FOCI`."""

FOCI: Final = (
    ("recreate", "part"), ("die", "retention"), ("policy",), ("seek", "wipe"), ("failover", "die"), ("expire", "clock"),
    ("retention", "wipe"), ("skip", "unsubscribe", "subscribe"), ("disk_fails", "power_cut"), ("mode", "die"),
)  # fmt: skip
"""What else may happen far more often in a world: two rare things meet by chance too seldom."""

UNPLAIN: Final = (
    "seek", "skip", "expire", "unsubscribe", "wipe", "recreate", "policy", "clock", "store_fails", "failover", "mode"
)  # fmt: skip
"""What a plain world leaves out: it makes messages come again on purpose, or in one mode only."""


MESHED: Final = ("part", "failover", "policy", "wipe")
"""What a cluster without others leaves out. Its disk is not lost either: no other cluster has what it has."""

BATCHES: Final = ("short", "short", "long", "both")
"""What carries the links of a world, see `WorldOptions.batches`."""


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What does not come from the seed.

    Attributes:
        plain: only what makes duplicates: no seeks, no lost disks, no changes of policies; both modes can be compared.
        focus: actions that are done far more often than elsewhere, for planted bugs that only they show; None: by the seed.
        shape: the kind of topology, see `context.topology`; "": by the seed.
        replicated_share: how many worlds replicate their subscriptions.
        schemas: producers bring schemas. Not by the seed: that would change all other worlds.
        alone: there is one cluster.
        batches: what carries the links: "short" batches, "long" ones, or "both", long ones and planned ones for what is behind;
            "": by the seed, with a generator of its own. Plain worlds have short ones.
        wide: more is done, and more goes wrong (`magnetar_sim.actions.wide`). Not by the seed either.
        takeover: clusters have several brokers each and no disk, see `magnetar_sim.bookkeeper.takeover`. Not by the seed either.
    """

    plain: bool = False
    focus: tuple[str, ...] | None = None
    shape: str = ""
    replicated_share: float = 0.9
    schemas: bool = False
    wide: bool = False
    takeover: bool = False
    alone: bool = False
    batches: str = ""

    def focus_of(self, seed: int) -> tuple[str, ...]:
        """What the world of a seed does far more often than others; () for most."""
        if self.focus is not None:
            return self.focus
        return () if self.plain else focus_of(seed)

    def batches_of(self, seed: int) -> str:
        """What carries the links of the world of a seed."""
        if self.batches or self.plain:
            return self.batches or "short"
        return random.Random(f"batches-{seed}").choice(BATCHES)  # noqa: S311 - chance that replays


BY_SEED: Final = WorldOptions()
"""Everything comes from the seed."""


def focus_of(seed: int) -> tuple[str, ...]:
    """The focus of a seed where the options leave it open."""
    turn, place = divmod(seed, FOCUS_EVERY)
    return ("wipe",) if place == 3 else FOCI[turn % len(FOCI)] if place == 7 else ()
