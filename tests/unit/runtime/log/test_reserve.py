"""Room for what has to be written on a full disk."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from magnetar.runtime.log import reserve as module
from magnetar.runtime.log.reserve import FREE_BYTES_MIN, PART_BYTES, RESERVE_BYTES, Reserve


def free(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=room, f_frsize=1))


def test_it_is_there_and_given_away_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reserve"
    free(monkeypatch, FREE_BYTES_MIN)
    reserve = Reserve(path)
    assert path.stat().st_size == RESERVE_BYTES
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES, "a hole is no room"
    for part in range(1, RESERVE_BYTES // PART_BYTES + 1):
        assert reserve.give()
        assert path.stat().st_size == RESERVE_BYTES - part * PART_BYTES
    assert not reserve.give()


def test_it_comes_back_when_there_is_room_and_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reserve"
    free(monkeypatch, FREE_BYTES_MIN - 1)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    reserve = Reserve(path)
    assert not path.exists()
    assert not reserve.give()
    free(monkeypatch, FREE_BYTES_MIN)
    reserve.keep()
    assert path.stat().st_size == RESERVE_BYTES
    reserve.give()
    reserve.keep()
    assert path.stat().st_size == RESERVE_BYTES


def test_it_is_looked_after_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reserve"
    monkeypatch.setattr(module, "LOOK_S", 1e9)
    reserve = Reserve(path)
    reserve.give()
    reserve.keep()
    assert path.stat().st_size == RESERVE_BYTES - PART_BYTES, "every commit asks"


def test_where_none_can_be_made_there_is_none(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "nowhere" / "reserve")
    assert not reserve.give()
    assert not reserve.needed


@pytest.mark.parametrize(("room", "needed"), [(PART_BYTES - 1, True), (PART_BYTES, False)])
def test_it_is_needed_when_hardly_anything_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, needed: bool
) -> None:
    free(monkeypatch, room)
    assert Reserve(tmp_path / "reserve").needed is needed


@pytest.mark.parametrize("kind", ["link", "second name", "folder", "pipe"])
def test_what_belongs_to_somebody_else_is_left_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "somebody's"
    other.write_text("precious")
    path = tmp_path / "data" / "reserve"
    path.parent.mkdir()
    if kind == "link":
        path.symlink_to(other)
    elif kind == "second name":
        path.hardlink_to(other)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    free(monkeypatch, FREE_BYTES_MIN)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    reserve = Reserve(path)
    reserve.keep()
    assert not reserve.give()
    assert other.read_text() == "precious"
    assert caplog.text.count("there is no reserve for a full disk") == 1
