"""A broker that cannot run says why in one line and exits with 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers import World


def run(config: Path, cluster: str = "solo", *arguments: str) -> subprocess.CompletedProcess[str]:
    """Try to run a broker that cannot run."""
    return subprocess.run(
        [sys.executable, "-m", "magnetar", "broker", cluster, "-c", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr with these words, no traceback, exit code 1."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 1, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One cluster, not started."""
    return World(tmp_path, ["solo"])


def test_port_in_use(world: World, tmp_path: Path) -> None:
    broker = world["solo"].start()
    try:
        text = world.config.read_text().replace('data_dir = "data"', 'data_dir = "other"')
        other = tmp_path / "other.toml"
        other.write_text(text)
        assert_one_line(run(other), "cannot listen", str(broker.pulsar_port))
    finally:
        world.close()


def test_folder_in_use(world: World, tmp_path: Path) -> None:
    broker = world["solo"].start()
    try:
        twin = tmp_path / "twin.toml"
        twin.write_text(
            '[magnetar]\ndata_dir = "data"\n[clusters.solo]\npulsar = "127.0.0.1:7003"\nhttp = "127.0.0.1:7004"\n'
        )
        assert broker.process is not None
        done = run(twin)
        assert_one_line(done)
        assert "in use" in done.stderr or "port" in done.stderr
    finally:
        world.close()


def test_folder_of_another_version(world: World) -> None:
    folder = world.folder / "data" / "solo"
    folder.mkdir(parents=True)
    (folder / "VERSION").write_text("99\n")
    assert_one_line(run(world.config), "99", "version")


def test_folder_of_another_cluster(world: World) -> None:
    world.start()
    world.close()
    renamed = world.config.read_text().replace("clusters.solo", "clusters.other")
    world.config.write_text(renamed)
    (world.folder / "data" / "solo").rename(world.folder / "data" / "other")
    assert_one_line(run(world.config, "other"), "belongs to cluster solo")


def test_folder_that_is_a_file(world: World) -> None:
    (world.folder / "data").write_text("not a folder")
    assert_one_line(run(world.config), "data")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_not_writable(world: World) -> None:
    (world.folder / "data").mkdir(mode=0o500)
    assert_one_line(run(world.config), "data")


def test_token_that_others_can_read(world: World) -> None:
    (world.folder / "data").mkdir()
    token = world.folder / "data" / "link.token"
    token.write_text("secret\n")
    token.chmod(0o644)
    assert_one_line(run(world.config), "link.token", "chmod 600")


def test_listening_beyond_loopback_needs_a_word(world: World) -> None:
    text = world.config.read_text().replace("127.0.0.1", "0.0.0.0")
    world.config.write_text(text + 'advertised = "here.example:6650"\n')
    assert_one_line(run(world.config), "--insecure")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[clusters.solo]\npulsar = 7\n", "pulsar"),
        ("[clusters.solo]\npulsr = '127.0.0.1:1'\n", "pulsar"),
        ("[broker]\nfsync = 'sometimes'\n[clusters.solo]\npulsar='127.0.0.1:7001'\nhttp='127.0.0.1:7002'\n", "fsync"),
        ("this is not toml", "clusters.toml"),
    ],
)
def test_wrong_configuration(world: World, text: str, word: str) -> None:
    world.config.write_text(text)
    assert_one_line(run(world.config), word)


def test_too_few_descriptors_are_told_and_it_runs(world: World) -> None:
    """4,096 was the hard limit of many machines; the ceilings of connections allow three times as many."""
    limited = ["sh", "-c", 'ulimit -n 4096; exec "$@"', "sh", sys.executable, "-m", "magnetar", "broker", "solo"]
    with subprocess.Popen(
        [*limited, "-c", str(world.config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert "ready" in broker.stdout.readline()
        broker.terminate()
        _, told = broker.communicate(timeout=60)
    assert broker.returncode == 0
    assert "at most 4096 files may be open" in told
