"""Files that go a piece at a time."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.runtime.log import discard as discarding
from magnetar.runtime.log.discard import Discarder


class Cuts(list[tuple[bool, int]]):
    """Each piece that is cut off: whether the file still has its name, and what is left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut(self, descriptor: int, size: int) -> None:
        self.append((self.path.exists(), size))
        os.truncate(descriptor, size)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(discarding, "PIECE_BYTES", 300)
    return path


@pytest.fixture
def cuts(path: Path, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    found = Cuts(path)
    monkeypatch.setattr(discarding.os, "ftruncate", found.cut)
    return found


@pytest.fixture
def discarder() -> Iterator[Discarder]:
    discarder = Discarder()
    yield discarder
    discarder.close()


def done(discarder: Discarder, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was named so far is deleted."""
    seen, delete = threading.Event(), discarder._delete

    def last(path: Path) -> None:
        if path.name == "last":
            seen.set()
        delete(path)

    monkeypatch.setattr(discarder, "_delete", last)
    discarder.discard(Path("last"))
    assert seen.wait(20)


def test_the_name_first_then_a_piece_at_a_time(
    path: Path, cuts: Cuts, discarder: Discarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with path.open("rb") as reader:
        discarder.discard(path)
        done(discarder, monkeypatch)
        assert cuts == [(False, 700), (False, 400), (False, 100)]
        assert os.fstat(reader.fileno()).st_size == 100


def test_a_hard_link_keeps_its_content(
    path: Path, cuts: Cuts, discarder: Discarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = path.with_name("backup")
    backup.hardlink_to(path)
    discarder.discard(path)
    done(discarder, monkeypatch)
    assert not path.exists()
    assert (backup.stat().st_size, cuts) == (1000, [])


def test_at_the_end_the_rest_goes_at_once_and_in_order(path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discarding, "PAUSE_S", 3600)
    other = path.with_name("other")
    other.write_bytes(bytes(1000))
    discarder = Discarder()
    discarder.discard(path)
    discarder.discard(other)
    discarder.close()
    assert list(path.parent.iterdir()) == []
    assert not cuts


def test_what_is_gone_already_and_what_cannot_be_deleted(
    path: Path, discarder: Discarder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = path.with_name("folder")
    folder.mkdir()
    with caplog.at_level(logging.ERROR, logger="magnetar.log"):  # the simulator silences it
        discarder.discard(path.with_name("missing"))
        discarder.discard(folder)
        discarder.discard(path)
        done(discarder, monkeypatch)
    assert [record.getMessage() for record in caplog.records] == [f"cannot delete {folder}: Is a directory"]
    assert not path.exists()


def test_nothing_to_delete_needs_no_thread() -> None:
    before = set(threading.enumerate())
    discarder = Discarder()
    assert set(threading.enumerate()) <= before
    discarder.close()
    assert set(threading.enumerate()) <= before
