"""Planted bugs: one rule of the real code left out each, here and only here; the simulator has to notice.

docs/design says of each rule which of these bugs leaves it out. Each has
seeds that find it (`KNOWN`). What is not in the table cannot be seen from outside a whole broker, or not by these checkers;
tests/property finds it with worlds of its own:

    base_of_unheld, shrink_keeps_consumers, late_ack, floor_all, floor_sources, floor_by_markers, never_forget,
    same_incarnation                              need the world's hand inside the machine, or cost space only
    delta_opens_epoch                             is no fault: a full state follows; only what comes again meanwhile differs
    one_round, untagged, partial, no_vector       need peers without vectors (Apache Pulsar), which no broker here is
    no_trailing, ...                              slow convergence: snapshot mode promises no time
"""

from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from magnetar_sim.actions.stories import STORIES
from magnetar_sim.host.patches import Patches, patched
from magnetar_sim.options import BY_SEED, STEPS, WorldOptions
from magnetar_sim.planted.exact import EXACT, Dropping, patches_of
from magnetar_sim.planted.links import LINKS
from magnetar_sim.planted.long_batches import LONG_BATCHES
from magnetar_sim.planted.mixed import BOTH, MIXED
from magnetar_sim.planted.snapshot import SNAPSHOT
from magnetar_sim.world import Story


class PlantedBug(NamedTuple):
    """A planted bug.

    Attributes:
        mode: in which it shows.
        patches: by the dotted name of what is replaced.
        seeds: that find it.
        steps: of its worlds; 0: as long as the seed says.
        options: of its worlds.
        story: how its worlds begin.
    """

    mode: str
    patches: Patches | Dropping
    seeds: tuple[int, ...]
    steps: int
    options: WorldOptions
    story: Story | None


KNOWN: dict[str, tuple[int, ...]] = {
    "no_chain": (3, 4, 6, 8), "no_dedup": (4, 1, 3), "p_is_cursor": (2, 3, 4, 5), "read_unsynced": (1, 3, 6, 8),
    "no_handshake": (138, 150, 13), "w_from_log_only": (3, 71, 139), "any_incarnation": (133, 152, 141),
    "gap_of_nothing": (10, 8), "gap_not_recounted": (162, 111, 68, 25),
    "expiry_is_ack": (2, 8, 24), "latest_is_ack": (127, 189), "cumulative_by_index": (2, 62, 63, 196),
    "full_replaces": (14, 11, 13), "no_pending": (75, 118, 128, 130), "floor_is_ack": (44, 5),
    "activates_unasked": (0, 8, 17, 18), "never_caught_up": (11, 14, 17, 18),
    "passed_over": (2, 26, 56), "forgotten_for_good": (1, 2, 3, 4), "incarnations_ascend": (153, 53, 27, 13),
    "destination_silent": (100, 107, 190, 247), "unknown_base_is_all": (226, 160, 220),
    "fence_dispatches": (0, 4, 5, 8), "activates_unmerged": (26, 18), "final_untold": (96, 62),
    "no_restricted_check": (62, 36), "told_expiry": (8, 18, 25, 27),
    "p_is_previous_entry": (72, 17, 27), "reuse_ledgers": (4, 5, 6, 8), "idx_from_log": (104, 163, 282),
    "creation_older_wins": (2, 11, 17, 31), "base_union": (11, 77, 92), "no_relay": (1, 8, 26),
    "no_replay": (472, 191, 304, 249), "epoch_volatile": (1, 6, 9, 11, 13), "delta_after_restart": (28, 92, 99, 96),
    "no_full_on_rebase": (13, 24, 30, 35),
    "origin_floor": (35, 24, 27, 13), "floor_own": (27, 8, 11, 13), "floor_untold": (380, 396, 447, 561),
    "vector_too_late": (18, 92), "never_rests": (0, 5), "never_tells": (5, 20, 21, 24),
    "answer_pushed": (4, 8), "refuse_pushed": (72, 136, 36), "rewind_volatile": (44, 109, 146, 248),
    "no_cursor_gen": (159, 36, 137), "trim_volatile": (6, 9, 3),
    "epoch_no_incarnation": (0, 1, 2, 3), "stale_low": (80, 368, 353),
    "seek_forgets_foreign": (62, 109), "seek_is_final": (14, 1, 28), "base_no_floor": (14, 74, 113),
    "epoch_counter": (28, 12, 18), "delta_without_base": (265,), "floor_direct": (37, 1),
    "drop_never": (181, 202), "local_floor": (8, 13, 18, 25),
    "base_is_ack": (5, 8, 13, 25), "no_epoch": (181, 143), "seek_forgets_nothing": (115, 119, 126, 99),
    "heard_by_marker_only": (83, 119), "retells_to_all": (78, 92, 117), "nothing_on_arrival": (128, 92),
    "snapshot_must_come_first": (260, 18, 493, 56), "leaving_forgets": (13, 36, 45, 92),
    "leaving_silences": (44, 159, 128, 179), "begins_untold": (9, 24, 79, 81), "begins_expired": (1, 2, 4, 10),
    "base_after_seek": (19,), "going_is_acked": (0, 2, 7, 30), "former_seeks_count": (1, 4, 5, 8),
    "change_untold": (6, 4), "updates_unlearnt": (13, 24), "own_seeks_only": (24, 26), "goes_back_alone": (13, 24),
    "any_grant": (10, 17, 18), "no_revocation": (10, 15), "begins_behind_sent": (1, 4, 6), "begins_at_plan": (1, 6),
    "superseded_is_answered": (4, 13), "no_p": (0, 1, 2),
}  # fmt: skip
"""Seeds that find each, from a search over 0, 1, 2, ... (`python -m magnetar_sim --find BUG`); several, because whatever draws
chance differently, or takes another time, makes all worlds others than they were.
"""

LONG: Final = frozenset({
    "any_incarnation", "incarnations_ascend", "unknown_base_is_all", "gap_not_recounted", "activates_unmerged", "final_untold",
    "destination_silent", "no_restricted_check", "passed_over",
    "reuse_ledgers", "idx_from_log", "creation_older_wins", "base_union", "no_relay", "no_replay",
    "delta_after_restart", "no_full_on_rebase", "origin_floor", "floor_own", "floor_untold", "vector_too_late",
    "floor_direct", "leaving_forgets",
})  # fmt: skip
"""Rare ones: their worlds are all of the longest kind."""

SHORTER: Final = {
    **dict.fromkeys((*STORIES, "never_rests"), 4),
    **dict.fromkeys(("leaving_silences", "any_grant", "no_revocation", "begins_at_plan", "begins_behind_sent"), 1),
    **dict.fromkeys(("refuse_pushed", "rewind_volatile", "never_tells", "local_floor"), 24),
    **dict.fromkeys(
        ("no_cursor_gen", "seek_forgets_foreign", "seek_is_final", "base_no_floor", "epoch_counter", "delta_without_base",
         "drop_never"), 48
    ),
}  # fmt: skip
"""Those that need some time, and not that much; or little: behind a story of their own, or because they never come to an end."""

FOCUS: dict[str, tuple[str, ...]] = {
    "destination_silent": ("wipe",), "passed_over": ("policy",), "incarnations_ascend": ("wipe",),
    "activates_unmerged": ("failover",), "final_untold": ("failover",), "fence_dispatches": ("failover",),
    "w_from_log_only": ("retention", "die"), "unknown_base_is_all": ("wipe", "retention", "acknowledge"),
    "told_expiry": ("expire",),
    "expiry_is_ack": ("expire",), "gap_not_recounted": ("wipe",), "gap_of_nothing": ("wipe",),
    "no_handshake": ("wipe", "recreate"), "any_incarnation": ("recreate", "part"),
    "reuse_ledgers": ("wipe",), "idx_from_log": ("retention", "die", "acknowledge"),
    "creation_older_wins": ("subscribe", "part"), "base_union": ("subscribe", "part"), "no_relay": ("acknowledge",),
    "no_replay": ("die", "acknowledge"),
    "delta_after_restart": ("die", "acknowledge"), "no_full_on_rebase": ("wipe", "recreate", "acknowledge"),
    "origin_floor": ("retention", "acknowledge", "recreate"), "floor_own": ("retention", "acknowledge", "recreate"),
    "floor_untold": ("retention", "acknowledge"), "vector_too_late": ("acknowledge", "part"),
    "base_is_ack": ("subscribe", "acknowledge"), "no_epoch": ("seek", "acknowledge", "part"),
    "seek_forgets_nothing": ("seek", "acknowledge", "subscribe"),
    "heard_by_marker_only": ("seek", "acknowledge", "subscribe"), "retells_to_all": ("seek", "acknowledge", "recreate"),
    "nothing_on_arrival": ("subscribe", "acknowledge", "part"),
    "leaving_forgets": ("policy", "acknowledge"),
    "floor_direct": ("retention", "acknowledge"), "refuse_pushed": ("wipe",), "rewind_volatile": ("wipe", "die"),
    "no_cursor_gen": ("wipe", "retention"), "delta_without_base": ("policy", "seek"),
    "seek_forgets_foreign": ("seek", "retention"), "seek_is_final": ("seek", "retention"),
    "base_no_floor": ("seek", "retention"), "epoch_counter": ("seek", "wipe"), "never_tells": ("acknowledge",),
    "drop_never": ("acknowledge", "retention"), "local_floor": ("acknowledge", "retention"),
}  # fmt: skip
"""What the worlds of rare ones do more often."""

SHAPES = {
    "destination_silent": "export", "no_relay": "chain2", "floor_direct": "chain2", "epoch_no_incarnation": "mesh",
    "stale_low": "mesh", "never_tells": "mesh", "updates_unlearnt": "mesh", "own_seeks_only": "mesh", "goes_back_alone": "mesh",
    "leaving_silences": "mesh", "former_seeks_count": "mesh", "forgotten_for_good": "star", "begins_untold": "mesh",
}  # fmt: skip
"""The topology of those that only one kind shows, or that one kind shows best."""

UNREPLICATED = frozenset(
    {"w_from_log_only", "no_handshake", "idx_from_log", "trim_volatile", "no_revocation", "any_grant"}
)
"""Those that markers hide: a log that keeps them keeps the watermarks in them, and a link that has some to bring is not idle."""


def _plant(name: str, mode: str, patches: Patches | Dropping) -> PlantedBug:
    share = 0.0 if name in UNREPLICATED else 1.0 if name in STORIES else BY_SEED.replicated_share
    # Without a focus the world has none, not even that of its seed.
    batches = "long" if name in LONG_BATCHES else "short"
    options = WorldOptions(
        focus=FOCUS.get(name, ()), shape=SHAPES.get(name, ""), replicated_share=share, batches=batches
    )
    steps = max(STEPS) if name in LONG else SHORTER.get(name, 0)
    return PlantedBug(mode, patches, KNOWN.get(name, ()), steps, options, STORIES.get(name))


BUGS: dict[str, PlantedBug] = {
    name: _plant(name, mode, patches)
    for mode, table in (("exact", LINKS | EXACT | LONG_BATCHES), ("snapshot", SNAPSHOT | BOTH), ("mixed", MIXED))
    for name, patches in table.items()
}


def planted(bug: str) -> AbstractContextManager[None]:
    """For as long as the block runs a bug is planted; "" for none."""
    return patched(patches_of(BUGS[bug].patches) if bug else {})
