"""`magnetar tokens` and how commands present themselves: files, modes, and each mistake in one line."""

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from magnetar.cli.commands.tokens import seconds_of
from magnetar.cli.shared.credentials import Chosen, token_of
from magnetar.core.config import parse
from magnetar.core.errors import ConfigError
from magnetar.runtime.security.secrets import parse_secret
from tests.unit.cli.conftest import Answer


def done(run: Callable[..., Answer], *arguments: Any) -> str:
    result = run("tokens", *map(str, arguments))
    assert result.code == 0, result.err
    return str(result.out)


def refused(run: Callable[..., Answer], *arguments: Any) -> str:
    result = run("tokens", *map(str, arguments))
    assert result.code in {1, 2} and "Traceback" not in result.err
    return str(result.err)


def test_a_secret_key_makes_tokens_that_it_validates(run: Callable[..., Answer], tmp_path: Path) -> None:
    key, token = tmp_path / "s.key", tmp_path / "t.jwt"
    done(run, "create-secret-key", "--output", key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "exists already" in refused(run, "create-secret-key", "--output", key)
    done(
        run,
        "create",
        "--secret-key",
        key,
        "--subject",
        "app",
        "--expiry",
        "1h",
        "--audience",
        "shop",
        "--output",
        token,
    )
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    shown = json.loads(done(run, "show", token))
    assert shown["header"]["alg"] == "HS256" and shown["claims"]["aud"] == "shop"
    assert shown["claims"]["exp"] - shown["claims"]["iat"] == 3600
    assert "valid: role app" in done(run, "validate", token, "--secret-key", key)
    path = tmp_path / "clusters.toml"
    path.write_text(
        '[clusters.a]\npulsar = "127.0.0.1:6650"\nhttp = "127.0.0.1:8080"\n'
        '[authentication]\nmethods = ["token"]\nsecret_key_files = ["s.key"]\naudience = "bank"\n'
    )
    assert "another audience" in refused(run, "validate", token, "-c", path)
    path.write_text(path.read_text().replace("bank", "shop"))
    assert json.loads(done(run, "validate", token, "-c", path, "--json"))["role"] == "app"
    longest = done(run, "create", "--secret-key", key, "--subject", "app", "--algorithm", "HS512").strip()
    assert longest.count(".") == 2


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_key_pairs(run: Callable[..., Answer], tmp_path: Path, algorithm: str) -> None:
    private, public, token = tmp_path / "a.pem", tmp_path / "b.pem", tmp_path / "t.jwt"
    done(run, "create-key-pair", "--private", private, "--public", public, "--algorithm", algorithm)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    done(run, "create", "--private-key", private, "--subject", "app", "--output", token)
    assert json.loads(done(run, "show", token))["header"]["alg"] == algorithm
    assert "valid for ever" in done(run, "validate", token, "--public-key", public)
    assert "exists already" in refused(run, "create-key-pair", "--private", private, "--public", tmp_path / "c.pem")


def test_mistakes(run: Callable[..., Answer], tmp_path: Path) -> None:
    key = tmp_path / "s.key"
    done(run, "create-secret-key", "--output", key)
    token = done(run, "create", "--secret-key", key, "--subject", "app").strip()
    assert "either --secret-key FILE or --private-key FILE" in refused(run, "create", "--subject", "app")
    assert "no control characters" in refused(run, "create", "--secret-key", key, "--subject", "a\nb")
    assert "is not a valid duration" in refused(
        run, "create", "--secret-key", key, "--subject", "a", "--expiry", "soon"
    )
    assert "--algorithm" in refused(run, "create", "--secret-key", key, "--subject", "a", "--algorithm", "none")
    assert "not an unencrypted key in PEM" in refused(run, "create", "--private-key", key, "--subject", "a")
    said = refused(run, "validate", token, "--secret-key", key)
    assert "name a file with the token" in said and token not in said
    assert "cannot be read" in refused(run, "show", tmp_path / "missing")
    key.chmod(0o644)
    assert "chmod 600" in refused(run, "create", "--secret-key", key, "--subject", "app")
    short = tmp_path / "short.key"
    short.write_bytes(b"too short")
    short.chmod(0o600)
    said = refused(run, "create", "--secret-key", short, "--subject", "app")
    assert "9 bytes: 32 are the least" in said and "too short" not in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("2w", 1_209_600), ("1y", 31_536_000)]
)
def test_times(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["0s", "5", "x", "-1d", "1.5h", "1000001s", "", "٣d", "9" * 5_000 + "d"])
def test_no_times(text: str) -> None:
    with pytest.raises(ConfigError):
        seconds_of(text)


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, then the environment, then the file."""
    for name in ("option", "variable", "client"):
        (tmp_path / name).write_text(f"of-{name}\n")
        (tmp_path / name).chmod(0o600)
    text = '[clusters.a]\npulsar = "127.0.0.1:6650"\nhttp = "127.0.0.1:8080"\n[client]\ntoken_file = "client"\n'
    config = parse(text, tmp_path / "clusters.toml")
    for name in ("MAGNETAR_TOKEN", "MAGNETAR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Chosen, "token_file", None)
    assert (token_of(None), token_of(config)) == ("", "of-client")
    monkeypatch.setenv("MAGNETAR_TOKEN_FILE", str(tmp_path / "variable"))
    assert token_of(config) == "of-variable"
    monkeypatch.setenv("MAGNETAR_TOKEN", " itself ")
    assert token_of(config) == "itself"
    monkeypatch.setattr(Chosen, "token_file", tmp_path / "option")
    assert token_of(config) == "of-option"
    (tmp_path / "option").chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        token_of(config)


def test_a_token_may_outlast_the_calendar(run: Callable[..., Answer], tmp_path: Path) -> None:
    """But not what brokers take for a possible time."""
    key, token = tmp_path / "s.key", tmp_path / "t.jwt"
    done(run, "create-secret-key", "--output", key)
    words = ("create", "--secret-key", key, "--subject", "app", "--expiry")
    assert "is too long: leave it out" in refused(run, *words, "1000000y", "--output", token) and not token.exists()
    assert "valid until 3" in done(run, *words, "1000y", "--output", token)
    token.write_text(jwt.encode({"sub": "app", "exp": 10**12}, parse_secret(key.read_bytes(), "key"), "HS512"))
    assert "valid until long after the year 9999" in done(run, "validate", token, "--secret-key", key)


def test_half_a_pair_of_keys_is_not_left_over(run: Callable[..., Answer], tmp_path: Path) -> None:
    private = tmp_path / "private.pem"
    assert "name two files" in refused(run, "create-key-pair", "--private", private, "--public", private)
    for public in (tmp_path / "nowhere" / "public.pem", tmp_path / ("x" * 1000)):
        assert "cannot be written" in refused(run, "create-key-pair", "--private", private, "--public", public)
    assert "File name too long" in refused(run, "create-key-pair", "--private", "x" * 1000, "--public", private)
    assert not list(tmp_path.iterdir())


def test_half_a_key_is_not_left_over(
    run: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, mode: str) -> Any:
        os.close(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    line = refused(run, "create-secret-key", "--output", "k")
    assert "k cannot be written: No space left on device" in line and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["show", "validate"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_comes_in_may_be_anything(
    run: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, errors: str
) -> None:
    key = tmp_path / "s.key"
    done(run, "create-secret-key", "--output", key)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8", errors))
    more = ("--secret-key", key) if command == "validate" else ()
    assert refused(run, command, "-", *more) == "magnetar: that is not a token (JWT)\n"
