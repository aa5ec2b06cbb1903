"""`magnetar up` with two brokers of one cluster on real bookies: one serves, one waits; who ends comes back; a clean end."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_up import Up
from tests.support.brokers import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def up(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    made = Up(tmp_path, cluster.hosts, f"/magnetar/{request.node.name}")
    yield made
    made.kill()


def test_two_brokers_of_one_cluster(up: Up) -> None:
    up.start()
    waits = up.line(r"broker one/([ab]) waits")[1]
    serves = "ab"["ba".index(waits)]
    up.line(r"ready \(.*\); Ctrl-C stops everything")
    assert sum(line.split()[:2] == ["one", waits] for line in up.lines) == 1, up.lines
    assert up.states() == {serves: "serves", waits: "waits"}
    paused = up.broker(serves)
    os.kill(paused, signal.SIGSTOP)
    up.line(f"broker one/{waits} serves")
    os.kill(paused, signal.SIGCONT)
    # It finds that it may no longer serve, ends, and is started again to wait.
    up.line(f"broker one/{serves} ended: exit code 1; restarting in .* s")
    up.line(f"broker one/{serves} waits")
    assert up.process is not None
    up.process.terminate()
    assert up.wait() == 0
    # The one that waited did not take over at the end.
    assert not [line for line in up.lines if line == f"broker one/{serves} serves"]
    assert not any("Traceback" in line for line in up.lines), up.lines


def test_what_is_missing_is_the_last_line(up: Up, cluster: BookKeeperCluster) -> None:
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    eventually(lambda: sum(map(cluster.registered, cluster.bookies)) == 2, within_s=60, what="two bookies are gone")
    up.start()
    assert up.wait() == 1
    assert re.fullmatch(
        rf"magnetar: broker one/[ab] did not start: zookeeper://{cluster.hosts}/ledgers: 2 bookies take entries, and cluster "
        r"one needs 3: start more, or write a smaller ensemble in \[clusters.one\]",
        up.lines[-1],
    ), up.lines
