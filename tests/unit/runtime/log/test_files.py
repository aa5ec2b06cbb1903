"""Both file systems pass the same suite; the one in memory loses what was not synced."""

import contextlib
import errno
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.runtime.log import thread as logthread
from magnetar.runtime.log.files import OsFiles
from magnetar.runtime.log.folder import DataFolder
from magnetar.storage.files import Files
from magnetar_sim.host.memory_files import MemoryFiles
from tests.support.files_conformance import FilesConformance
from tests.unit.storage.harness import Log, entry


class TestOsFiles(FilesConformance):
    @pytest.fixture
    def files(self) -> Files:
        return OsFiles()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path


class TestMemoryFiles(FilesConformance):
    @pytest.fixture
    def files(self) -> Files:
        return MemoryFiles(random.Random(1))

    @pytest.fixture
    def folder(self) -> Path:
        return Path("/folder")


def test_a_crash_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    lengths = set()
    for seed in range(200):
        files = MemoryFiles(random.Random(seed))
        file = files.create(Path("/f/a"))
        file.writev([b"kept"])
        file.sync()
        files.sync_folder(Path("/f"))
        file.writev([b"lost?"])
        after = files.crash()
        content = after.open(Path("/f/a")).pread(0, 100)
        assert content.startswith(b"kept")
        lengths.add(len(content))
    assert lengths == {4, 5, 6, 7, 8, 9}


def test_a_crash_may_undo_a_creation_and_a_deletion_that_were_not_synced() -> None:
    seen = set()
    for seed in range(100):
        files = MemoryFiles(random.Random(seed))
        files.create(Path("/f/old")).close()
        files.sync_folder(Path("/f"))
        files.create(Path("/f/new")).close()
        files.unlink(Path("/f/old"))
        seen.add(tuple(sorted(files.crash().names(Path("/f")))))
    assert seen == {(), ("new",), ("old",), ("new", "old")}


def test_a_file_is_not_synced_again_after_a_failed_sync() -> None:
    files = MemoryFiles(random.Random(1))
    file = files.create(Path("/f/a"))
    files.fail_next("sync", OSError("planted"))
    with pytest.raises(OSError, match="planted"):
        file.sync()
    with pytest.raises(AssertionError, match="synced again"):
        file.sync()


def refusing(says: int) -> Callable[..., int]:
    """A call of the system that fails."""

    def refuse(*_: object) -> int:
        raise OSError(says, os.strerror(says))

    return refuse


@pytest.mark.parametrize("says", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO])
def test_a_system_that_cannot_write_through_writes_and_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: int
) -> None:
    """A sandbox may have the call in its headers alone; a disk that fails is another matter."""

    synced: list[int] = []
    monkeypatch.setattr(os, "pwritev", refusing(says))
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = OsFiles().create(tmp_path / "a")
    if says == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            file.write_through([b"one", b"two"])
        assert file.pread(0, 10) == b""
    else:
        assert file.write_through([b"one", b"two"]) == 6
        assert file.pread(0, 10) == b"onetwo"
    assert len(synced) == (says != errno.EIO)
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it has in memory")
def test_what_was_just_written_or_read_is_in_memory(tmp_path: Path) -> None:
    file = OsFiles().create(tmp_path / "a")
    file.write_through([b"x" * 100_000])
    try:
        assert file.pread_now(0, 100_000) == b"x" * 100_000
    except BlockingIOError as error:
        pytest.skip(f"not of this file system: {error}")
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    # A file system in memory keeps it nevertheless, and then it is right to read it.
    with contextlib.suppress(BlockingIOError):
        assert file.pread_now(0, 100_000) == b"x" * 100_000
    assert file.pread(0, 100_000) == b"x" * 100_000
    assert file.pread_now(0, 100_000) == b"x" * 100_000, "what was read is in memory again"
    file.close()


@pytest.mark.parametrize("says", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO])
def test_a_system_that_does_not_tell_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: int
) -> None:
    """It would wait, for all that is known; a disk that fails is another matter."""

    monkeypatch.setattr(os, "preadv", refusing(says))
    file = OsFiles().create(tmp_path / "a")
    file.write_through([b"one"])
    with pytest.raises(OSError, match="Input/output" if says == errno.EIO else "does not report it") as told:
        file.pread_now(0, 3)
    assert isinstance(told.value, BlockingIOError) == (says != errno.EIO)
    monkeypatch.setattr("magnetar.runtime.log.files.READ_NOW", 0)
    with pytest.raises(BlockingIOError):
        file.pread_now(0, 3)
    file.close()


def test_the_way_to_a_folder_is_durable_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut right behind the first start would else take the folder, and with it all that was synced in it."""
    synced: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    OsFiles().make_folder(tmp_path / "a" / "b" / "log")
    assert synced == [each.stat().st_ino for each in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    OsFiles().make_folder(tmp_path / "a" / "b" / "log")
    assert len(synced) == 3
    DataFolder.open(tmp_path / "data" / "us-west", cluster="us-west").close()
    assert synced[3:5] == [each.stat().st_ino for each in (tmp_path, tmp_path / "data")]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_a_folder_that_may_not_be_synced_from_outside_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    OsFiles().make_folder(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_of_the_log_is_not_opened(tmp_path: Path, kind: str) -> None:
    other, path = tmp_path / "somebody's", tmp_path / "a"
    other.write_text("precious")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"symbolic link|regular file|Is a directory"):
        OsFiles().open(path)
    with pytest.raises(FileExistsError):
        OsFiles().create(path)
    assert other.read_text() == "precious"


def test_nothing_is_appended_to_a_folder_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logthread, "ROOM_S", 0.0)
    lost: list[str] = []
    log = Log(OsFiles(lambda: "".join(lost)), tmp_path / "log")
    topic = log.topic()
    log.append(topic, "kept")
    lost.append("another folder is at its place")
    log.thread.submit(topic.stage([entry("refused")], 1000))
    log.wait_for("failed")
    log.stop()
    assert [what[1] for kind, what in log.reports if kind == "failed"] == [
        "the log cannot be written: another folder is at its place"
    ]
