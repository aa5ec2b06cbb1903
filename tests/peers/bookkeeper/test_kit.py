"""The kit starts, disturbs and stops real bookies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import jvm
from tests.support.apache_bookkeeper import kit
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.brokers import eventually

pytestmark = pytest.mark.timeout(600)


def test_javas_ledgers_outlive_the_kill_of_all_bookies(cluster: BookKeeperCluster) -> None:
    (ledger,) = cluster.java_writes("CRC32C", (3, 3, 2), 5, 100)
    pids = [bookie.pid for bookie in cluster.bookies]
    for bookie in cluster.bookies:
        bookie.kill()
    assert not any(map(psutil.pid_exists, pids))
    cluster.heal()
    assert cluster.java_reads({ledger: "CRC32C"}) == {ledger: [kit.java_content(number, 100) for number in range(5)]}
    assert "CLOSED" in cluster.shell("ledgermetadata", "-ledgerid", str(ledger))


def test_a_bookie_that_is_read_only_takes_no_entries_and_writes_again(cluster: BookKeeperCluster) -> None:
    bookie = cluster.bookies[0]
    bookie.read_only()
    eventually(lambda: not cluster.registered(bookie))
    bookie.read_only(False)
    eventually(lambda: cluster.registered(bookie))


def test_a_healed_bookie_is_registered_by_a_session_of_its_own(cluster: BookKeeperCluster) -> None:
    """A bookie that hung for nearly as long as its session leaves a node that goes away soon: here, that of another session."""
    bookie = cluster.bookies[0]
    node = f"{kit.ROOT}/available/{bookie.id}"
    bookie.freeze(True)
    with cluster.client() as client:
        content, _ = client.get(node)
        client.delete(node)
        client.create(node, content, ephemeral=True)
        cluster.heal()
        assert client.get(node)[1].owner_session_id != client.client_id[0]


def test_a_wiped_bookie_starts_again_under_its_name(cluster: BookKeeperCluster) -> None:
    bookie = cluster.bookies[0]
    bookie.kill()
    cluster.wipe(bookie)
    assert not bookie.folder.exists()
    bookie.start()
    eventually(lambda: cluster.registered(bookie))


def test_a_wrong_setting_is_one_line(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    bookie = kit.BookieServer(99, tmp_path / "wrong", cluster.hosts, {"bookiePort": "nothing"})
    with pytest.raises(jvm.PeerError, match="bookie 99 ended while it started") as failure:
        bookie.start()
    assert "\n" not in str(failure.value)
    assert bookie.process is None


def test_a_command_that_fails_is_one_line(cluster: BookKeeperCluster) -> None:
    with pytest.raises(jvm.PeerError, match="exit code") as failure:
        cluster.java_reads({999_999: "CRC32C"})
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_program_that_started_them(number: signal.Signals, tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.apache_bookkeeper.kit", "--bookies", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert program.stdout is not None
    with program.stdout:
        pids = [int(program.stdout.readline().rsplit(" ", 1)[1]) for _ in range(2)]
        assert all(map(psutil.pid_exists, pids))
        program.send_signal(number)
        program.wait(60)
    eventually(lambda: not any(map(psutil.pid_exists, pids)))
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())
