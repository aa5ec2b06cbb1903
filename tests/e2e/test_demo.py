"""The main job with a small slice: real flights, real kills, a real verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.timeout(960)
def test_no_flight_is_lost(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "demo",
        "--fast",
        "--flights",
        "1000",
        "--json",
        "--folder",
        tmp_path / "w",
    ]
    # The demo itself gives up when nothing moves for a while; these limits are for one that hangs all the same.
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["published"] == {"ewr": 1000, "jfk": 1000, "lga": 1000}
    assert (result["ok"], result["lost"], result["faults"]) == (True, 0, [])
    assert len(result["links"]) == 6
    assert all(link["flights"] == 1000 and link["twice"] == 0 for link in result["links"])
    subscription = result["subscription"]
    assert subscription["moved"]["skipped"] == 0
    assert subscription["staleness_p50_ms"] <= subscription["staleness_p99_ms"]
    assert result["consumer"]["flights"] == 3000
    assert result["consumer"]["delivered_twice"] == result["consumer"]["delivered_twice_explained"]
    assert sum(result["consumer"]["delivered_twice_because"].values()) == result["consumer"]["delivered_twice"]
    assert [row["observer"] for row in result["schemas"]] == ["ewr", "jfk", "lga", "consumer"]
    for row in result["schemas"][:3]:
        # The later flights of one airport have the new schema; every cluster has both and decoded all.
        assert (row["versions"], row["decoded"], row["with_new_field"]) == ([0, 1], {"0": 2300, "1": 700}, 700)
    assert all(row["not_decoded"] == 0 for row in result["schemas"])
    assert result["outbox"] == {"sent": 400, "held": {"ewr": 200, "jfk": 200, "lga": 200}}
    assert result["metadata"]["agree"]
    assert result["metadata"]["changed_while_one_was_down"] == {"ewr": 86_400, "jfk": 86_400, "lga": 86_400}
    assert {row["cluster"]: row["messages"] for row in result["verify"]["clusters"]} == dict.fromkeys(
        ("ewr", "jfk", "lga"), 3000
    )
