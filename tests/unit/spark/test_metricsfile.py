"""The metrics file: it never gets larger than it may, and keeps one former file."""

import json
from pathlib import Path

import pytest

from magnetar.spark import metricsfile
from magnetar.spark.metricsfile import MetricsFile, former


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(metricsfile, "METRICS_BYTES_MAX", 100)
    return tmp_path / "pipeline.jsonl"


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_it_is_rotated_before_it_gets_too_large(path: Path) -> None:
    file = MetricsFile(path)
    for number in range(10, 90):
        file.write({"n": number})
        assert path.stat().st_size <= 100
    assert numbers(former(path)) == list(range(70, 80)), "ten lines of 10 bytes"
    assert numbers(path) == list(range(80, 90))
    file.close()
    assert sorted(path.parent.iterdir()) == [path, former(path)]
    again = MetricsFile(path)
    again.write({"n": 90})
    again.close()
    assert (numbers(former(path)), numbers(path)) == (list(range(80, 90)), [90])


def test_a_line_that_is_too_long_has_a_file_of_its_own(path: Path) -> None:
    file = MetricsFile(path)
    for number in (1, 2):
        file.write({"n": number, "why": "x" * 200})
    file.close()
    assert (numbers(former(path)), numbers(path)) == ([1], [2])


def test_others_may_move_it_away(path: Path) -> None:
    file = MetricsFile(path)
    for number in range(10, 20):
        file.write({"n": number})
    path.unlink()
    file.write({"n": 20})
    file.close()
    assert numbers(path) == [20]
    assert not former(path).exists()
