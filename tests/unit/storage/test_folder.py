"""A data folder: one broker, one version, one cluster; every refusal is one line."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.runtime.folder import DataFolder


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
        "import sys; from pathlib import Path; from magnetar.runtime.folder import DataFolder\n"
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


@pytest.mark.parametrize("content", [b"2\n", b"", b"\xff\xfe\x00"])
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
