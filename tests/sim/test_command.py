"""`make sim` and the command that it calls: every mode is run, and the seeds are printed."""

import re
import subprocess
from pathlib import Path

import pytest

from magnetar_sim.command import MODES, main

ROOT = Path(__file__).parents[2]


def test_make_sim_runs_every_mode_from_the_wanted_seed() -> None:
    command = ["make", "-s", "-n", "sim", "SEEDS=30", "FROM=500", "PY=echo"]
    recipe = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # What it would run is shell: `echo` stands for Python.
    loops = recipe[recipe.index("for mode") :]
    done = subprocess.run(["sh", "-c", loops], check=True, capture_output=True, text=True).stdout
    runs = [line.split(maxsplit=2)[2] for line in done.splitlines()]
    plain = [f"--from 500 --seeds 30 --mode {mode}" for mode in MODES]
    more = [f"--from 500 --seeds 3 --mode {mode} {kind}" for kind in ("--wide", "--takeover") for mode in MODES[:3]]
    assert runs == plain + more


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_prints_its_seeds(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mode", mode, "--from", "40", "--seeds", "2", "--cores", "1"]) == 0
    printed = capsys.readouterr().out
    assert re.match(rf"2 worlds \({mode}\), seeds 40 to 41, .*0 broken promises", printed), printed
