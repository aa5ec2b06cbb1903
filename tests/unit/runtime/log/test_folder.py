"""A data folder: one broker, one version, one cluster; every refusal is one line."""

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.runtime.log import folder as module
from magnetar.runtime.log.files import SMALL_BYTES_MAX, OsFiles
from magnetar.runtime.log.folder import DataFolder


def refused(path: Path, match: str, cluster: str = "us-west") -> None:
    with pytest.raises(StorageError, match=match) as caught:
        DataFolder.open(path, cluster=cluster)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_uuid_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "a" / "us-west"
    first = DataFolder.open(path, cluster="us-west")
    first.close()
    second = DataFolder.open(path, cluster="us-west")
    assert second.uuid == first.uuid
    assert len(first.uuid) == 36
    second.close()
    other = DataFolder.open(tmp_path / "b", cluster="us-west")
    assert other.uuid != first.uuid
    other.close()


def test_two_brokers(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from magnetar.runtime.log.folder import DataFolder\n"
        "folder = DataFolder.open(Path(sys.argv[1]), cluster='us-west'); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    refused(tmp_path, rf"in use by another broker \(pid {child.pid}\)")
    child.kill()
    child.communicate()
    DataFolder.open(tmp_path, cluster="us-west").close()


@pytest.mark.parametrize("content", [b"2\n", b""])
def test_another_version(tmp_path: Path, content: bytes) -> None:
    DataFolder.open(tmp_path, cluster="us-west").close()
    (tmp_path / "VERSION").write_bytes(content)
    refused(tmp_path, "has format")


def test_another_cluster(tmp_path: Path) -> None:
    DataFolder.open(tmp_path, cluster="us-west").close()
    refused(tmp_path, "belongs to cluster us-west, not us-east", cluster="us-east")


def test_data_without_a_version(tmp_path: Path) -> None:
    (tmp_path / "meta.sqlite").write_bytes(b"x")
    refused(tmp_path, "no VERSION")


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    refused(tmp_path / "f", "cannot use the data folder")


@pytest.mark.parametrize("missing", ["uuid", "cluster"])
def test_a_part_is_missing(tmp_path: Path, missing: str) -> None:
    DataFolder.open(tmp_path, cluster="us-west").close()
    (tmp_path / missing).unlink()
    refused(tmp_path, "cannot use the data folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(tmp_path / "us-west", "Permission denied")


def test_a_folder_that_was_half_made_is_finished(tmp_path: Path) -> None:
    """Killed between the uuid and the version: nobody knew the uuid yet."""
    DataFolder.open(tmp_path, cluster="us-west").close()
    (tmp_path / "VERSION").unlink()
    again = DataFolder.open(tmp_path, cluster="us-west")
    assert (tmp_path / "VERSION").read_text().strip()
    again.close()


def test_a_full_disk_is_no_reason_not_to_open_it(tmp_path: Path) -> None:
    """What is in it may be what retention can give back."""
    DataFolder.open(tmp_path, cluster="us-west").close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file may become larger; SIGXFSZ is ignored by Python
    try:
        DataFolder.open(tmp_path, cluster="us-west").close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# ------------------------------------------------------------------------------------------------------- small files


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00 no text")


def _words(path: Path) -> None:
    path.write_text("something else\n")


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _large(path: Path) -> None:
    path.write_bytes(b"x" * (SMALL_BYTES_MAX + 1))


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("spoil", [_nothing, _garbage, _words, _folder, _pipe, _large, _link, _loop])
@pytest.mark.parametrize("name", ["VERSION", "cluster", "uuid"])
def test_small_files_that_are_not_what_they_were(tmp_path: Path, name: str, spoil: object) -> None:
    assert callable(spoil)
    DataFolder.open(tmp_path, cluster="us-west").close()
    (tmp_path / name).unlink()
    spoil(tmp_path / name)
    refused(tmp_path, name if name != "VERSION" else "VERSION|has format")


@pytest.mark.parametrize(
    "text", ["550e8400-e29b-41d4-a716-44665544000", "{550e8400-e29b-41d4-a716-446655440000}", "0" * 32]
)
def test_what_is_almost_a_uuid_is_none(tmp_path: Path, text: str) -> None:
    DataFolder.open(tmp_path, cluster="us-west").close()
    (tmp_path / "uuid").write_text(text)
    refused(tmp_path, "holds no uuid but .*magnetar recover us-west --uuid$")


@pytest.mark.parametrize("name", ["LOCK", "uuid.new", "cluster.new", "VERSION.new"])
def test_a_link_leads_no_write_elsewhere(tmp_path: Path, name: str) -> None:
    other = tmp_path / "somebody's"
    other.write_text("precious")
    path = tmp_path / "data"
    path.mkdir()
    (path / name).symlink_to(other)
    if name == "LOCK":
        refused(path, "LOCK: is a symbolic link")
    else:
        DataFolder.open(path, cluster="us-west").close()
    assert other.read_text() == "precious"


def test_a_second_name_of_a_file_is_not_overwritten(tmp_path: Path) -> None:
    other = tmp_path / "somebody's"
    other.write_text("precious")
    path = tmp_path / "data"
    path.mkdir()
    (path / "LOCK").hardlink_to(other)
    refused(path, "LOCK: is also the file of another name")
    assert other.read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"no pid\n", b"\xff" * 100])
def test_who_holds_the_lock_is_told_as_far_as_it_is_known(tmp_path: Path, content: bytes) -> None:
    holder = DataFolder.open(tmp_path, cluster="us-west")
    (tmp_path / "LOCK").write_bytes(content)
    refused(tmp_path, r"in use by another broker \(pid \?\)")
    holder.close()


# ---------------------------------------------------------------------------------------- a folder that changes hands


def test_a_lock_that_is_removed_keeps_others_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder itself is locked; the file is made again, for versions that look at it alone."""
    holder = DataFolder.open(tmp_path, cluster="us-west")
    (tmp_path / "LOCK").unlink()
    refused(tmp_path, "in use by another broker")
    assert holder.lock.lost() == ""
    assert "LOCK was removed" in caplog.text
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    with (tmp_path / "LOCK").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.close()
    DataFolder.open(tmp_path, cluster="us-west").close()


def test_a_lock_that_another_program_took(tmp_path: Path) -> None:
    holder = DataFolder.open(tmp_path, cluster="us-west")
    (tmp_path / "LOCK").unlink()
    with (tmp_path / "LOCK").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "in use by another broker" in holder.lock.lost()
    holder.close()


def test_without_locks_on_folders_a_lock_that_is_gone_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS."""
    flock = fcntl.flock

    def only_files(file: int, how: int) -> None:
        if Path(f"/proc/self/fd/{file}").is_dir():
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", only_files)
    holder = DataFolder.open(tmp_path, cluster="us-west")
    assert holder.lock.lost() == ""
    refused(tmp_path, "in use by another broker")
    (tmp_path / "LOCK").unlink()
    assert "LOCK was removed or replaced" in holder.lock.lost()
    (tmp_path / "LOCK").write_text("1\n")
    assert "LOCK was removed or replaced" in holder.lock.lost()
    holder.close()


@pytest.mark.parametrize("part", [".", "log"])
@pytest.mark.parametrize("instead", ["nothing", "a new one", "a copy"])
def test_a_folder_that_is_moved_away(tmp_path: Path, part: str, instead: str) -> None:
    """Its broker writes to what is no longer at the path: it is told before the next file is made."""
    path = tmp_path / "data"
    holder = DataFolder.open(path, cluster="us-west")
    files = OsFiles(holder.lock.lost)
    files.create(path / "log" / "first").close()
    (path / part).rename(tmp_path / "moved")
    if instead == "a new one":
        (path / part).mkdir()
    elif instead == "a copy":
        shutil.copytree(tmp_path / "moved", path / part)
    with pytest.raises(OSError, match="gone|another folder") as caught:
        files.create(path / "log" / "second")
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(OSError, match="gone|another folder"):
        files.free_bytes(path / "log")
    assert not (path / "log" / "second").exists()
    holder.close()


def test_a_log_that_two_data_folders_share(tmp_path: Path) -> None:
    holder = DataFolder.open(tmp_path / "a", cluster="us-west")
    DataFolder.open(tmp_path / "b", cluster="us-west").close()
    (tmp_path / "b" / "log").rmdir()
    (tmp_path / "b" / "log").symlink_to(tmp_path / "a" / "log")
    refused(tmp_path / "b", "in use by another broker")
    holder.close()
