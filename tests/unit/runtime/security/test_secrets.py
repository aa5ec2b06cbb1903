"""Files of secrets are read again when they change, also when only their permissions do."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.broker.security.credentials import Keys
from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import read_token
from magnetar.core.security import AuthenticationConfig, Security
from magnetar.runtime.security import secrets
from magnetar.runtime.security.secrets import Secrets, Watch, load_keys


def test_a_file_that_was_refused_is_read_when_it_is_private_again(tmp_path: Path) -> None:
    """What the refusal asks for, `chmod 600`, changes neither the file's bytes nor its time."""
    path, read = tmp_path / "token", list[str]()
    path.touch(0o600)
    path.write_text("one")

    def reload() -> None:
        read.append("")
        read[-1] = read_token(path)

    watch = Watch([str(path)], reload, "the token")
    watch.look()
    assert read == []
    path.chmod(0o644)
    watch.look()
    assert read == [""], ConfigError("it is refused")
    path.chmod(0o600)
    watch.look()
    watch.look()
    assert read == ["", "one"]


async def until(check: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not check():  # noqa: ASYNC110 - files have no events here
        await asyncio.sleep(0.005)


def test_changes_are_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks later gets what is in force now; a file that is wrong changes nothing."""
    monkeypatch.setattr(secrets, "LOOK_S", 0.01)
    key, token = tmp_path / "key", tmp_path / "link.token"
    for path in (key, token):
        path.touch(0o600)
    key.write_bytes(b"!" * 32)
    token.write_text("one")
    config = AuthenticationConfig(methods=["token"], secret_key_files=[str(key)])

    async def run() -> None:
        keys, tokens = list[Keys](), list[bytes]()
        secured, open_ = Secrets(Security(authentication=config), token), Secrets(Security(), token)
        assert (secured.link_token, open_.link_token) == (b"", b"one")
        for one in (secured, open_):
            one.follow(keys.append, tokens.append)
            one.start()
        key.write_bytes(b"?" * 33)
        token.write_text("another")
        await until(lambda: bool(keys and tokens))
        assert (secured.keys, open_.link_token) == (keys[0], b"another")
        assert (keys[0].secrets, tokens) == (load_keys(config).secrets, [b"another"])
        key.write_bytes(b"short")
        token.write_text("")
        await until(lambda: caplog.text.count("the former one stays in force") == 2)
        for one in (secured, open_):
            one.stop()
        assert (len(keys), len(tokens)) == (1, 1)
        assert (secured.keys, open_.link_token) == (keys[0], b"another")

    asyncio.run(asyncio.wait_for(run(), 20))
