"""What a broker does with its files before it is one."""

import os
import stat
from pathlib import Path

import pytest

from magnetar.app import read_link_token
from magnetar.core.errors import StorageError


def test_a_link_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "link.token"
    token = read_link_token(path)
    assert len(token) > 30 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_link_token(path) == token
    assert [one.name for one in path.parent.iterdir()] == ["link.token"]


def test_one_that_is_there_may_be_where_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a secret that is mounted."""

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "link.token"
    path.touch(0o600)
    path.write_text("secret\n")
    monkeypatch.setattr(os, "open", refused)
    assert read_link_token(path) == b"secret"


def test_what_another_life_left_is_not_in_the_way(tmp_path: Path) -> None:
    """It was killed while it made the token; in a container the next one has the same process id."""
    path = tmp_path / "link.token"
    (tmp_path / f".link.token.{os.getpid()}").touch()
    assert read_link_token(path)


def test_what_is_no_secret_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "link.token"
    path.touch(0o600)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="is no text"):
        read_link_token(path)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match="is empty"):
        read_link_token(path)
    path.chmod(0o644)
    with pytest.raises(StorageError, match="can be read by others"):
        read_link_token(path)
