"""Both file systems pass the same suite; the one in memory loses what was not synced."""

import random
from pathlib import Path

import pytest

from magnetar.runtime.files import OsFiles
from magnetar.storage.conformance import FilesConformance
from magnetar.storage.files import Files
from magnetar.storage.testing import MemoryFiles


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
