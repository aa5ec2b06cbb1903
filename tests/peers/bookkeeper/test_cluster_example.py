"""`make cluster` with a small slice: real flights, kills of everything, a real verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)


def test_no_flight_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.cluster", "--fast", "--flights", "1000", "--json"]
    command += ["--folder", str(tmp_path / "w")]
    # The example itself gives up when nothing moves for a while; these limits are for one that hangs all the same.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=840)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["published"] == {"jfk": 1000, "lga": 1000}
    assert (result["ok"], result["lost"], result["faults"]) == (True, 0, [])
    assert [(link["link"], link["flights"], link["twice"]) for link in result["links"]] == [
        ("lga:jfk", 1000, 0),
        ("jfk:lga", 1000, 0),
    ]
    assert result["consumer"]["flights"] == 2000
    assert sum(result["consumer"]["delivered_twice_because"].values()) == result["consumer"]["delivered_twice"]
    assert sorted(result["pauses_s"]) == [
        "a bookie is killed",
        "the serving broker is killed",
        "the serving broker is stopped",
    ]
