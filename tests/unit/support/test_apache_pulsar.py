"""What the kit of a real Apache Pulsar says and writes, without one."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from magnetar.core.errors import ConfigError
from tests.support import jvm
from tests.support.apache_pulsar import kit

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine with Maven or without it, with Java unless an error says why not, and without jars."""

    def made(*, maven: bool, java: str = "") -> None:
        def find_java() -> Path:
            if java:
                raise ConfigError(java)
            return Path("/bin/java")

        monkeypatch.setenv("PULSAR_PEER_HOME", str(tmp_path))
        monkeypatch.setattr(jvm, "find_java", find_java)
        monkeypatch.setattr(jvm.shutil, "which", lambda _: "/bin/mvn" if maven else None)

    return made


def test_a_machine_without_java_is_named(machine: Machine) -> None:
    machine(maven=True, java="no Java in the PATH")
    assert kit.missing() == "no real Apache Pulsar: no Java in the PATH"


def test_maven_is_needed_until_the_jars_are_there(machine: Machine) -> None:
    machine(maven=False)
    assert "there is no `mvn`" in kit.missing()
    jars = kit.home() / "lib"
    jars.mkdir()
    (jars / f"pulsar-broker-{kit.VERSION}.jar").touch()
    assert kit.missing()  # Maven was interrupted
    (jars / ".complete").touch()
    assert not kit.missing()


def settings(cluster: kit.PulsarCluster) -> dict[str, str]:
    """As Pulsar reads them: the last line of a key counts."""
    lines = [line for line in cluster.configuration().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_settings_of_a_comparison(tmp_path: Path) -> None:
    found = settings(kit.PulsarCluster(tmp_path, "c1", settings={"managedLedgerCacheSizeMB": "7"}))
    assert found["journalSyncData"] == "true"
    assert found["managedLedgerDefaultMarkDeleteRateLimit"] == "1.0"
    assert found["clusterName"] == "c1"
    assert found["advertisedAddress"] == "127.0.0.1"
    assert found["managedLedgerCacheSizeMB"] == "7"


def test_a_cluster_behind_a_proxy_has_two_listeners(tmp_path: Path) -> None:
    cluster = kit.PulsarCluster(tmp_path, "c1", advertised=7000)
    found = settings(cluster)
    assert found["advertisedListeners"] == f"inside:{cluster.url},outside:pulsar://127.0.0.1:7000"
    assert found["internalListenerName"] == "inside"
    assert "advertisedAddress" not in found


def test_a_full_disk_refuses_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "FREE_BYTES", 1 << 60)
    monkeypatch.setattr(kit, "fetch", lambda: tmp_path)
    with pytest.raises(jvm.PeerError, match="MB of room; a cluster is started with"):
        kit.PulsarCluster(tmp_path / "peer", "c1").start()


def test_maven_that_fails_is_one_line(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(maven=True)
    failed = subprocess.CompletedProcess([], 1, "[INFO] x\n[ERROR] Could not resolve\n", "")
    monkeypatch.setattr(jvm.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        jvm.PeerError, match=r"^mvn could not fetch Apache Pulsar [\d.]+ into .*: \[ERROR\] Could not resolve$"
    ):
        kit.fetch()
    assert not kit.fetched()


def test_maven_that_takes_too_long_is_one_line(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(maven=True)

    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("mvn", timeout)

    monkeypatch.setattr(jvm.subprocess, "run", hang)
    with pytest.raises(jvm.PeerError, match=r"^mvn could not fetch Apache Pulsar [\d.]+ into .* within 7 s$"):
        kit.fetch(within_s=7)
    assert not kit.fetched()


def test_two_processes_ask_maven_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(maven=True)
    asked = []

    def maven(*_: object, **__: object) -> "subprocess.CompletedProcess[str]":
        asked.append(1)
        (kit.home() / "lib" / f"pulsar-broker-{kit.VERSION}.jar").touch()
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(jvm.subprocess, "run", maven)
    with ThreadPoolExecutor(4) as threads:
        found = {one.result() for one in [threads.submit(kit.fetch) for _ in range(4)]}
    assert (len(found), len(asked)) == (1, 1)
