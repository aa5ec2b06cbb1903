"""The metrics file: it never gets larger than it may, and keeps one former file."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.pipeline import metrics_file as metricsfile
from magnetar.pipeline.metrics_file import MetricsFile, former


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(metricsfile, "METRICS_BYTES_MAX", 100)
    return tmp_path / "pipeline.jsonl"


def unwanted(line: str) -> None:
    pytest.fail(line)


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_it_is_rotated_before_it_gets_too_large(path: Path) -> None:
    file = MetricsFile(path, unwanted)
    for number in range(10, 90):
        file.write({"n": number})
        assert path.stat().st_size <= 100
    assert numbers(former(path)) == list(range(70, 80)), "ten lines of 10 bytes"
    assert numbers(path) == list(range(80, 90))
    file.close()
    assert sorted(path.parent.iterdir()) == [path, former(path)]
    again = MetricsFile(path, unwanted)
    again.write({"n": 90})
    again.close()
    assert (numbers(former(path)), numbers(path)) == (list(range(80, 90)), [90])


def test_a_line_that_is_too_long_has_a_file_of_its_own(path: Path) -> None:
    file = MetricsFile(path, unwanted)
    for number in (1, 2):
        file.write({"n": number, "why": "x" * 200})
    file.close()
    assert (numbers(former(path)), numbers(path)) == ([1], [2])


def test_others_may_move_it_away(path: Path) -> None:
    file = MetricsFile(path, unwanted)
    for number in range(10, 20):
        file.write({"n": number})
    path.unlink()
    file.write({"n": 20})
    file.close()
    assert numbers(path) == [20]
    assert not former(path).exists()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process get no larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_of_once_and_leaves_no_half_lines(path: Path) -> None:
    lines: list[str] = []
    file = MetricsFile(path, lines.append)
    file.write({"n": 10})
    with room_for(15):
        for number in range(11, 15):
            file.write({"n": number})
    told = [f"metrics are not written, replication continues: {path}: No space left on device"]
    assert (numbers(path), lines) == ([10], told)
    file.write({"n": 15})
    file.close()
    assert (numbers(path), lines) == ([10, 15], told)


@pytest.mark.parametrize("why", ["No space left on device", "No such file or directory", "Is a directory"])
def test_replication_needs_no_metrics(path: Path, why: str) -> None:
    """Not at its begin either; they come as soon as they can."""
    place = path.parent / "folder" / path.name
    if why != "No such file or directory":
        place.parent.mkdir()
    if why == "Is a directory":
        place.mkdir()
    elif why == "No space left on device":
        place.symlink_to("/dev/full")
    lines: list[str] = []
    file = MetricsFile(place, lines.append)
    file.write({"n": 10})
    file.write({"n": 11})
    assert lines == [f"metrics are not written, replication continues: {place}: {why}"]
    if why == "Is a directory":
        place.rmdir()
    elif why == "No space left on device":
        place.unlink()
    place.parent.mkdir(exist_ok=True)
    file.write({"n": 12})
    assert numbers(place) == [12]
    file.close()
    file.close()
    assert len(lines) == 1
