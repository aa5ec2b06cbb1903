"""What the kit of a real Apache BookKeeper says and writes, without one."""

import signal
from pathlib import Path

import pytest

from magnetar.core.errors import ConfigError
from tests.support import jvm
from tests.support.apache_bookkeeper import kit


def test_where_the_jars_would_be_kept_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOOKKEEPER_PEER_HOME", str(tmp_path))
    monkeypatch.setattr(jvm, "find_java", lambda: Path("/bin/java"))
    monkeypatch.setattr(jvm.shutil, "which", lambda _: None)
    assert kit.missing().startswith(
        f"no real Apache BookKeeper: Maven fetches it into {tmp_path} (BOOKKEEPER_PEER_HOME), and there is no `mvn`"
    )


def test_a_machine_without_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_java() -> Path:
        raise ConfigError("no Java in the PATH")

    monkeypatch.setattr(jvm, "find_java", find_java)
    assert kit.missing() == "no real Apache BookKeeper: no Java in the PATH"


def test_settings_of_a_bookie(tmp_path: Path) -> None:
    cluster = kit.BookKeeperCluster(tmp_path, 2, settings={"zkTimeout": "7"})
    bookie = cluster.add({"journalMaxGroupWaitMSec": "9"})
    lines = [line for line in bookie.configuration().splitlines() if line and not line.startswith("#")]
    found = dict(line.split("=", 1) for line in lines)  # the last line of a key counts
    assert found["journalSyncData"] == "true"
    assert found["zkTimeout"] == "7"
    assert found["journalMaxGroupWaitMSec"] == "9"
    assert found["bookiePort"] == str(bookie.port)
    assert found["metadataServiceUri"] == f"zk+hierarchical://127.0.0.1:{cluster.zookeeper.port}/ledgers"
    assert len({each.port for each in cluster.bookies} | {cluster.zookeeper.port}) == 4
    assert [each.folder.name for each in cluster.bookies] == ["bookie1", "bookie2", "bookie3"]
    assert cluster.bookie(f"127.0.0.1:{bookie.port}") is bookie


def test_sigterm_ends_what_was_started() -> None:
    former = signal.getsignal(signal.SIGTERM)
    ended = []

    def started() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended.append("all")

    with kit.ended_by_sigterm(), pytest.raises(SystemExit):
        started()
    assert ended == ["all"]
    assert signal.getsignal(signal.SIGTERM) is former
