"""Many random worlds of one mode: every promise holds in every seed, and what has to happen happens often enough.

Each mode has a test file of its own, because a file is what `make test` gives to a process.
"""

import os
from collections import Counter

from magnetar_sim.runner import Outcome, run_many

SEEDS = int(os.environ.get("MAGNETAR_SIM_SEEDS", "1000"))
"""Of all modes together, the wide ones among them. `make sim` is for more."""
SHARE = {"exact": 0.5, "snapshot": 0.3, "mixed": 0.2}
CORES = min(4, os.cpu_count() or 1)

COVERED = {
    "broker died": 0.3, "broker died with something on its way to the disk": 0.08,
    "power cut within an operation of the disk": 0.08, "append failed": 0.06, "commit of the store failed": 0.04,
    "sites parted": 0.1, "link cut off": 0.06, "client cut off": 0.15, "pipeline stopped or started": 0.04,
    "range delayed": 0.2, "range sent twice": 0.2, "task died": 0.15, "commit late": 0.2, "handshake lost": 0.15,
    "filter changed": 0.04, "restricted entry stored": 0.1, "entry deleted by retention": 0.15,
    "clocks differ": 0.3, "clock set": 0.03, "disk lost": 0.04, "disk lost, and the clock is behind": 0.01,
    "topic deleted": 0.01, "topic created again": 0.008, "cluster left the policy": 0.02, "cluster joined the policy": 0.03,
    "entry over a one-way link": 0.1, "marker over a one-way link": 0.06,
    "acknowledged one by one": 0.2, "acknowledged through": 0.1, "part of a batch acknowledged": 0.1,
    "skip": 0.01, "expiry": 0.004, "subscription given up": 0.015,
    "batches: short": 0.4, "batches: long": 0.15, "batches: both": 0.15,
    "grant revoked": 0.15, "reader superseded": 0.3, "confirmation ignored": 0.1, "driver died": 0.1, "long batch stuck": 0.01,
    "backlog planned": 0.1,
    **{f"topology: {kind}": 0.03 for kind in ("mesh", "star", "chain", "chain2", "oneway", "export", "random")},
}  # fmt: skip
"""In how many of the worlds of each mode each thing has to happen, at the least: about half of what was seen. What a change of
the simulator makes impossible, or so rare that it proves nothing, is noticed here.
"""
MODAL = {
    "exact": {"seek": 0.01, "failover": 0.008, "failover given up": 0.01},
    "snapshot": {"seek": 0.008, "failover": 0.013},
    "mixed": {"mode set": 0.3, "failover": 0.004, "seek": 0.01, "known to be acknowledged, and stays so": 0.2},
}
"""The same for what is not as often in each mode, or not at all."""
WIDE = 240
"""Of all modes together, with the same shares."""
ORDINARY = max(SEEDS - WIDE, SEEDS // 2)
"""The others; of few seeds half, for then the wide ones are too many to count among them."""
WIDELY = {
    "two topics": 0.2, "message in chunks": 0.2, "delayed message": 0.2, "foreign id acknowledged": 0.05,
    "acknowledged unasked": 0.02, "seek into a batch": 0.01, "seek by time": 0.015, "cursor reset by an operator": 0.02,
    "properties set": 0.05, "topic unloaded": 0.05, "topic truncated": 0.01,
    "topic deleted everywhere": 0.04,
    "topic compacted": 0.05, "broker stopped": 0.08, "process killed": 0.1, "read failed, or will": 0.05, "broker died": 0.2,
}  # fmt: skip
"""As `COVERED`, of wide worlds."""
ENOUGH = 150
"""Of fewer worlds shares mean nothing."""


def promises_hold(mode: str) -> None:
    """Ordinary worlds.

    Raises:
        AssertionError: the commands that replay the worlds that broke a promise; or what happened in too few worlds.
    """
    outcomes = list(run_many(range(int(ORDINARY * SHARE[mode])), mode, cores=CORES))
    _none_broken(outcomes, f"--mode {mode}")
    if len(outcomes) >= ENOUGH:
        _enough(outcomes, COVERED | MODAL[mode])


def promises_hold_widely(mode: str) -> None:
    """Wide worlds: chunks, delays, foreign acknowledgements, operators, compaction, brokers that end or die, failed reads.

    Raises:
        AssertionError: as `promises_hold`.
    """
    outcomes = list(run_many(range(int(WIDE * SHARE[mode])), mode, cores=CORES, wide=True))
    _none_broken(outcomes, f"--mode {mode} --wide")
    _enough(outcomes, WIDELY)


def _none_broken(outcomes: list[Outcome], options: str) -> None:
    broken = [f"python -m magnetar_sim {options} --seed {one.seed} --trace: {one.why}" for one in outcomes if one.why]
    assert not broken, "\n".join(broken)


def _enough(outcomes: list[Outcome], shares: dict[str, float]) -> None:
    worlds = Counter(what for one in outcomes for what in one.happened)
    rare = {what: worlds[what] for what, share in shares.items() if worlds[what] < share * len(outcomes)}
    assert not rare, f"of {len(outcomes)} worlds too few have: {rare}"
