"""The stage on which processes of a Spark query are killed (tests/support/killing.py), with plain processes as actors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.brokers import eventually
from tests.support.killing import Scene, Stage

ROOT = Path(__file__).parents[3]
ACTOR = (
    "import sys; from tests.support.killing import Stage; from pathlib import Path; Stage(Path({!r})).reach({!r}, {})"
)


def actor(stage: Stage, step: str, task: int) -> subprocess.Popen[bytes]:
    """A process that comes to a point."""
    return subprocess.Popen([sys.executable, "-c", ACTOR.format(str(stage.folder), step, task)], cwd=ROOT)


def test_all_at_their_points_die_together_and_who_died_before_is_replaced(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path / "scenes", [Scene(("read/0", "sent/1"), "worker")])
    early = actor(stage, "read", 0)
    eventually((stage.folder / "at-0-read-0").exists, within_s=60)
    os.kill(early.pid, signal.SIGKILL)  # by somebody else: its point is not taken any more
    early.wait()
    late = actor(stage, "sent", 1)
    eventually((stage.folder / "at-0-sent-1").exists, within_s=60)
    eventually(lambda: not (stage.folder / "at-0-read-0").exists(), within_s=60)
    assert (late.poll(), stage.played) == (None, 0)
    again = actor(stage, "read", 0)
    assert (again.wait(60), late.wait(60), stage.played) == (-9, -9, 1)
    assert actor(stage, "read", 0).wait(60) == 0  # all scenes are over: nobody waits for anything
