"""The archive of Spark's classes: used when it is there and fits, done without otherwise."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.spark_session import classes, session

VERSION = 'openjdk version "17.0.1"'


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without an archive."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_no_options_without_an_archive(prefix: Path) -> None:
    assert classes.options(VERSION) == ""
    assert not list(prefix.iterdir())


def test_the_archive_of_this_java_is_used_and_of_no_other(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = classes.archive_path(VERSION)
    assert found.is_relative_to(prefix)
    found.parent.mkdir(parents=True)
    found.touch()
    assert f"-XX:SharedArchiveFile={found}" in classes.options(VERSION)
    assert classes.options('openjdk version "21"') == ""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert classes.options(VERSION) == ""


def test_what_it_cannot_do_is_one_line(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (prefix / "share").touch()
    assert classes.main([]) == 1
    assert classes.main(["--anew"]) == 1
    first, *rest = [line for line in capsys.readouterr().err.splitlines() if "loading" not in line]
    assert "share" in first
    assert "Not a directory" in first
    assert "the only option is --missing" in rest[0]


def java(*options: str) -> subprocess.CompletedProcess[str]:
    """A Java that only tells its version."""
    command = [str(session.find_java()), *options, "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.spark
def test_java_runs_without_a_word_when_the_archive_is_spoiled(prefix: Path) -> None:
    version = session.java_says(session.find_java())
    found = classes.archive_path(version)
    found.parent.mkdir(parents=True)
    for content in (b"", os.urandom(100_000)):
        found.write_bytes(content)
        done = java(*classes.options(version).split())
        assert (done.returncode, done.stdout) == (0, "")
        assert session.java_version(done.stderr) == session.java_version(version)
        assert len(done.stderr.splitlines()) == len(version.splitlines())  # nothing but its version


@pytest.mark.spark
def test_the_session_uses_the_archive_that_setup_made(spark: Any) -> None:
    options = classes.options(session.java_says(session.find_java()))
    if not options:
        pytest.skip("no archive: make setup makes it")
    arguments = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert options.split()[0] in list(arguments)
    maps = Path(f"/proc/{spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
    assert str(classes.archive_path(session.java_says(session.find_java()))) in maps  # it fits: it is mapped
