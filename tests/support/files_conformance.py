"""The contract of every `storage.files.Files`, as tests: `class TestMine(FilesConformance)` with fixtures `files`,
`folder`.

The real file system and the one in memory pass the same suite, so that what is tested against the one holds for the other.
"""

import threading
import time
from pathlib import Path

from magnetar.storage.files import Files
from tests.support.patience import PATIENCE


class FilesConformance:
    """The suite. A subclass gives pytest fixtures: `files`, and `folder`, an empty folder in it."""

    def test_written_bytes_are_read_back(self, files: Files, folder: Path) -> None:
        """Many buffers at once, more than the system takes in one call, in order."""
        buffers = [b"%04d" % number for number in range(3000)]
        file = files.create(folder / "a")
        assert file.writev([b""]) == 0
        assert file.writev(buffers) == 12_000
        file.writev([b"end"])
        file.sync()
        whole = b"".join(buffers) + b"end"
        assert file.pread(0, 20_000) == whole
        assert file.pread(4000, 8) == whole[4000:4008]
        assert file.pread(len(whole), 10) == b""
        assert files.size(folder / "a") == len(whole)
        file.close()

    def test_large_buffers(self, files: Files, folder: Path) -> None:
        """More than one call of the system writes at a time, and empty ones."""
        large = bytes(range(256)) * 40_000
        file = files.create(folder / "a")
        file.writev([b"x", large, b"", large, b"y"])
        assert files.size(folder / "a") == 2 * len(large) + 2
        assert file.pread(1, len(large)) == large
        file.close()

    def test_written_through(self, files: Files, folder: Path) -> None:
        """Few buffers, and more than the system takes in one call, are appended in order."""
        few, many = [b"a", b"", b"bc" * 300_000], [b"%04d" % number for number in range(3000)]
        file = files.create(folder / "a")
        file.writev([b"start"])
        assert file.write_through(few) == 600_001
        assert file.write_through(many) == 12_000
        assert file.write_through([b"end"]) == 3
        whole = b"start" + b"".join([*few, *many]) + b"end"
        assert file.pread(0, 1_000_000) == whole
        file.close()

    def test_what_becomes_durable_behind_a_write(self, files: Files, folder: Path) -> None:
        """Files that become durable without a sync say so, up to all that was written, and wake their writer."""
        file = files.create(folder / "a")
        woken = threading.Event()
        durable = file.behind(woken.set)
        for text in (b"one", b"two" * 500_000, b"three"):
            file.writev([text])
        end = 8 + 1_500_000
        if durable is None:
            file.sync()
        else:
            deadline = time.monotonic() + 20 * PATIENCE
            reached = 0
            while reached < end and time.monotonic() < deadline:
                assert woken.wait(20 * PATIENCE)
                woken.clear()
                before, reached = reached, durable()
                assert before <= reached <= end
            assert reached == end
        assert file.pread(0, 6) == b"onetwo"
        assert len(file.pread(0, end)) == end
        file.close()

    def test_what_is_in_memory_is_read_at_once(self, files: Files, folder: Path) -> None:
        """All of the bytes or nothing; a system that cannot say whether they are in memory reports that it would
        wait.
        """
        file = files.create(folder / "a")
        file.write_through([b"0123456789" * 1_000])
        try:
            assert file.pread_now(5, 6_000) == (b"0123456789" * 1_000)[5:6_005]
        except BlockingIOError:
            assert file.pread(5, 3) == b"567"
        assert _raises(BlockingIOError, lambda: file.pread_now(9_990, 11))
        file.close()

    def test_what_is_written_again_is_what_it_was(self, files: Files, folder: Path) -> None:
        """Recovery makes durable what a failed sync may have left in memory alone."""
        text = bytes(range(256)) * 10_000
        created = files.create(folder / "a")
        created.writev([text])
        created.close()
        file = files.open(folder / "a")
        for offset, end in ((0, len(text)), (len(text) - 3, len(text)), (1_000, 2_000_000), (5, 5)):
            file.renew(offset, end)
        file.sync()
        assert files.size(folder / "a") == len(text)
        assert file.pread(0, len(text)) == text
        file.close()

    def test_a_second_handle_reads_what_was_written(self, files: Files, folder: Path) -> None:
        """Readers open segments that are still written."""
        file = files.create(folder / "a")
        file.writev([b"one"])
        reader = files.open(folder / "a")
        file.writev([b"two"])
        assert reader.pread(0, 10) == b"onetwo"
        reader.close()
        file.close()

    def test_create_is_exclusive(self, files: Files, folder: Path) -> None:
        """A segment number is never used twice."""
        files.create(folder / "a").close()
        assert _raises(FileExistsError, lambda: files.create(folder / "a"))

    def test_open_of_what_is_not_there(self, files: Files, folder: Path) -> None:
        """It says so."""
        assert _raises(FileNotFoundError, lambda: files.open(folder / "a"))
        assert _raises(FileNotFoundError, lambda: files.size(folder / "a"))

    def test_truncate(self, files: Files, folder: Path) -> None:
        """The end is gone, the rest stays."""
        file = files.create(folder / "a")
        file.writev([b"0123456789"])
        file.close()
        again = files.open(folder / "a")
        again.truncate(4)
        assert again.pread(0, 100) == b"0123"
        assert files.size(folder / "a") == 4
        again.close()

    def test_names_and_unlink(self, files: Files, folder: Path) -> None:
        """A folder lists its files; deleting twice does no harm."""
        for name in ("b", "a"):
            files.create(folder / name).close()
        assert sorted(files.names(folder)) == ["a", "b"]
        files.unlink(folder / "a")
        files.unlink(folder / "a")
        assert files.names(folder) == ["b"]
        files.sync_folder(folder)

    def test_a_file_takes_the_name_of_another(self, files: Files, folder: Path) -> None:
        """Writing a file again leaves either the old or the new one after a crash, and writing to it continues."""
        files.create(folder / "a").writev([b"old"])
        file = files.create(folder / "a.new")
        file.writev([b"new"])
        files.replace(folder / "a.new", folder / "a")
        file.writev([b"er"])
        assert files.names(folder) == ["a"]
        assert files.open(folder / "a").pread(0, 10) == b"newer"
        file.close()

    def test_a_reader_keeps_what_is_deleted(self, files: Files, folder: Path) -> None:
        """A segment may be deleted while it is read."""
        file = files.create(folder / "a")
        file.writev([b"kept"])
        files.unlink(folder / "a")
        assert file.pread(0, 10) == b"kept"
        file.close()

    def test_closing_twice_does_no_harm(self, files: Files, folder: Path) -> None:
        """Closing twice does no harm, and does not close another file."""
        first = files.create(folder / "a")
        first.close()
        second = files.create(folder / "b")
        first.close()
        second.writev([b"fine"])
        second.close()

    def test_make_folder_and_free_bytes(self, files: Files, folder: Path) -> None:
        """A folder may be there already; there is some room."""
        files.make_folder(folder / "x" / "y")
        files.make_folder(folder / "x" / "y")
        files.create(folder / "x" / "y" / "a").close()
        assert files.names(folder / "x" / "y") == ["a"]
        assert files.free_bytes(folder) > 0


def _raises(kind: type[Exception], call: object) -> bool:
    assert callable(call)
    try:
        call()
    except kind:
        return True
    return False
