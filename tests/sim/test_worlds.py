"""Whole brokers in random worlds: every promise holds in every seed, and a seed is a world.

`make sim SEEDS=100000` runs more; a failure prints the command that replays it.
"""

import os
import subprocess
import sys

import pytest

from magnetar.sim.command import main
from magnetar.sim.runner import run_many, run_world

SEEDS = int(os.environ.get("MAGNETAR_SIM_SEEDS", "1200"))
"""Of all modes together: 60 s on two quiet cores (a world takes about 90 ms of one). `make sim` is for more."""
SHARE = {"exact": 0.5, "snapshot": 0.3, "mixed": 0.2}
CORES = min(4, os.cpu_count() or 1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", SHARE)
def test_promises_hold(mode: str) -> None:
    seeds = range(int(SEEDS * SHARE[mode]))
    broken = [outcome for outcome in run_many(seeds, mode, cores=CORES) if outcome.why]
    told = [f"python -m magnetar.sim --mode {mode} --seed {one.seed} --trace: {one.why}" for one in broken]
    assert not broken, "\n".join(told)


def test_a_world_replays_exactly() -> None:
    for seed in range(5):
        first, second = run_world(seed), run_world(seed)
        assert first == second


def test_a_world_is_the_same_in_another_process() -> None:
    """Order must not come from hashes, which every process salts in its own way."""
    script = (
        "from magnetar.sim.runner import run_world\n"
        "print([run_world(seed, mode).digest for seed in range(6) for mode in ('exact', 'snapshot')])"
    )
    told = set()
    for salt in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": salt}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    assert len(told) == 1, told


def test_tracing_changes_nothing() -> None:
    trace: list[str] = []
    assert run_world(3, trace=trace) == run_world(3)
    assert any("is sent" in line for line in trace)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--trace"]) == 0
    assert "every promise held" in capsys.readouterr().out
    assert main(["--seeds", "4", "--cores", "1"]) == 0
    assert "4 worlds (exact)" in capsys.readouterr().out
