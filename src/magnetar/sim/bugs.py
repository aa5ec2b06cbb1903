"""Planted bugs: one rule of the real code left out each, here and only here; the simulator has to notice.

The names are those of ../shared/model (chain.py, exact.py, snapshot.py), so that its findings can be looked up. What is not
in the table cannot be seen from outside a whole broker, or not by these checkers; tests/property finds it with worlds of its own:

    answer_pushed, refuse_pushed, no_cursor_gen   need a failed write, a rewind and a deletion within one append's flight
    base_of_unheld, shrink_keeps_consumers, late_ack, floor_all, floor_sources, floor_by_markers, never_forget, drop_never,
    local_floor, same_incarnation                 need the world's hand inside the machine, or cost space only
    stale_low                                     cannot be shown any more: what an origin retains of its own is told by its links
                                                  and markers, and bounds the floor wherever a mark of a peer's former life
                                                  would be too high (tests/unit/geo/ackedsets/test_machine.py)
    epoch_no_incarnation                          needs a wiped cluster with a lost clock to repeat a time to the millisecond,
                                                  before it hears of its own earlier seek (the same unit tests)
    delta_opens_epoch                             is no fault: a full state follows; only what comes again meanwhile differs
                                                  (../shared/model/FINDINGS.md B7: no violation after settling)
    one_round, untagged, partial, no_vector       need peers without vectors (Apache Pulsar), which no broker here is
    no_trailing, nothing_on_arrival, ...          slow convergence: snapshot mode promises no time
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from magnetar.sim.plants_exact import EXACT, KINDS
from magnetar.sim.plants_links import LINKS
from magnetar.sim.plants_snapshot import SNAPSHOT
from magnetar.sim.world import STEPS, World


class Plant(NamedTuple):
    """A planted bug.

    Attributes:
        mode: in which it shows.
        patches: by the dotted name of what is replaced.
        kind: of exact mode's machine, if it is another.
        seeds: that find it.
        steps: of its worlds; 0: as long as the seed says.
        focus, shape, replicated_share: of its worlds, see `World`.
    """

    mode: str
    patches: dict[str, Any]
    kind: Any
    seeds: tuple[int, ...]
    steps: int = 0
    focus: tuple[str, ...] = ()
    shape: str = ""
    replicated_share: float = World.replicated_share


KNOWN: dict[str, tuple[int, ...]] = {
    "no_chain": (3, 4, 6, 8), "no_dedup": (1, 2, 3, 4), "p_is_cursor": (2, 3, 4, 5), "read_unsynced": (1, 3, 6, 8),
    "no_handshake": (13, 75, 138, 150), "w_from_log_only": (96,), "any_life": (96, 133, 141, 152),
    "gap_of_nothing": (3, 8, 9, 10), "gap_not_recounted": (119, 159, 162, 163),
    "expiry_is_ack": (2, 8, 12, 24), "latest_is_ack": (19, 27, 127, 189), "cumulative_by_index": (2, 62, 63, 196),
    "full_replaces": (11, 13, 14, 19), "no_pending": (75, 118, 128, 130), "floor_is_ack": (5, 6, 27, 44),
    "activates_unasked": (521_553,), "never_caught_up": (11, 14, 17, 18),
    "passed_over": (2, 26, 37, 56), "lives_ascend": (52, 276),
    "destination_silent": (68, 126, 229, 232), "unknown_base_is_all": (25, 30, 85, 147),
    "fence_dispatches": (0, 4, 5, 8), "activates_unmerged": (18, 26, 31, 35), "final_untold": (62, 96, 99, 154),
    "no_restricted_check": (2, 36, 45, 62), "told_expiry": (8, 18, 25, 27),
}  # fmt: skip
"""Seeds that find each, from a search over 0, 1, 2, ... (`python -m magnetar.sim --find BUG`); several, because whatever draws
chance differently, or takes another time, makes all worlds others than they were.
"""

LONG: Final = frozenset({
    "any_life", "lives_ascend", "unknown_base_is_all", "gap_not_recounted", "activates_unmerged", "final_untold",
    "activates_unasked", "destination_silent", "no_restricted_check", "passed_over",
})  # fmt: skip
"""Rare ones: their worlds are all of the longest kind."""

FOCUS: dict[str, tuple[str, ...]] = {
    "destination_silent": ("wipe",), "passed_over": ("policy",), "lives_ascend": ("wipe",),
    "activates_unasked": ("wipe",),
    "activates_unmerged": ("failover",), "final_untold": ("failover",), "fence_dispatches": ("failover",),
    "w_from_log_only": ("retention", "die"), "unknown_base_is_all": ("wipe", "retention", "acknowledge"),
    "told_expiry": ("expire",),
    "expiry_is_ack": ("expire",), "gap_not_recounted": ("wipe",), "gap_of_nothing": ("wipe",),
    "no_handshake": ("wipe", "recreate"), "any_life": ("recreate", "part"),
    "no_full_on_rebase": ("wipe", "recreate"), "delta_after_restart": ("die",),
    "epoch_no_incarnation": ("seek", "wipe"), "epoch_counter": ("seek",),
    "seek_is_final": ("seek",), "seek_forgets_foreign": ("seek",), "stale_low": ("recreate", "retention"),
    "no_epoch": ("seek",), "seek_forgets_nothing": ("seek",), "no_replay": ("die",), "epoch_volatile": ("die", "seek"),
}  # fmt: skip
"""What the worlds of rare ones do more often."""

SHAPES = {"destination_silent": "export"}
"""The topology of those that only one kind shows."""

UNREPLICATED = frozenset({"w_from_log_only", "no_handshake"})
"""Those that markers hide: a log that keeps them keeps the watermarks in them, and a link that has some to bring is not idle."""

BUGS: dict[str, Plant] = {
    **{name: Plant("exact", patches, None, KNOWN.get(name, ())) for name, patches in LINKS.items()},
    **{
        name: Plant("exact", EXACT.get(name, {}), KINDS.get(name), KNOWN.get(name, ()))
        for name in (*KINDS, *(one for one in EXACT if one not in KINDS))
    },
    **{name: Plant("snapshot", patches, None, KNOWN.get(name, ())) for name, patches in SNAPSHOT.items()},
}
BUGS = {
    name: plant._replace(
        steps=max(STEPS) if name in LONG else 0, focus=FOCUS.get(name, ()), shape=SHAPES.get(name, ""),
        replicated_share=0.0 if name in UNREPLICATED else World.replicated_share,
    )
    for name, plant in BUGS.items()
}  # fmt: skip


@contextmanager
def planted(bug: str) -> Iterator[type[World]]:
    """The kind of world in which a bug is planted, for as long as the block runs; "" for the honest one."""
    if not bug:
        yield World
        return
    plant = BUGS[bug]
    with ExitStack() as stack:
        for name, replacement in plant.patches.items():
            stack.enter_context(patch(name, replacement))
        yield World if plant.kind is None else type("Planted", (World,), {"sets_class": plant.kind})


def focused(kind: type[World], bug: str) -> type[World]:
    """The worlds of a planted bug, with or without it: none of their own choice of what they are about."""
    if not bug:
        return kind
    plant = BUGS[bug]
    kept = {"focus": plant.focus, "shape": plant.shape, "replicated_share": plant.replicated_share}
    return type("Focused", (kind,), kept)
