"""The links' token follows its file; a wrong file leaves what was in force and says so once."""

from pathlib import Path

import pytest

from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import read_link_token
from magnetar.pipeline.link_token import LinkToken


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """As secret managers do it: another file takes its place."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.chmod(mode)
    aside.replace(path)


def test_it_follows_its_file(tmp_path: Path) -> None:
    path, lines = tmp_path / "links.jwt", list[str]()
    write(path, "first-secret\n")
    token = LinkToken(path, read_link_token(path), lines.append)
    assert not token.changed() and lines == []
    write(path, "second-secret\n")
    assert token.changed() and token.value == "second-secret"
    assert not token.changed()
    write(path, "second-secret")
    assert not token.changed(), "the same one, written again"
    for text, mode, reason in (("", 0o600, "is empty"), ("third-secret", 0o644, "can be read by others")):
        write(path, text, mode)
        assert not token.changed() and token.value == "second-secret"
        assert "the former one stays in force" in lines[-1] and reason in lines[-1]
        told = len(lines)
        assert not token.changed() and len(lines) == told
    path.unlink()
    assert not token.changed() and "does not exist" in lines[-1]
    write(path, "fourth-secret")
    assert token.changed() and token.value == "fourth-secret"
    assert "secret" not in "".join(lines).replace(str(path), "")


def test_what_changed_between_reading_and_looking_is_met(tmp_path: Path) -> None:
    path = tmp_path / "links.jwt"
    write(path, "new")
    token = LinkToken(path, "old", lambda _line: None)
    assert token.changed() and token.value == "new"


def test_a_file_that_is_not_there_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a broker makes it at its first start"):
        read_link_token(tmp_path / "none")
