"""Reads secrets from files and the environment, and keeps them: no error, log line or process list shows one.

Files that hold a secret are refused when others can read them. A file is read again when it changes: keys and certificates are
replaced while brokers run.
"""

import asyncio
import base64
import binascii
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.broker.security.credentials import SECRET_BYTES_MIN, Keys, parse_passwords
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.core.secret_file import file_state, read_file, read_token
from magnetar.core.security import AuthenticationConfig
from magnetar.runtime.security.tls import Listening

if TYPE_CHECKING:
    from magnetar.broker.security.tokens import PublicKey

logger = logging.getLogger("magnetar.broker")

LOOK_S: Final = 1.0
"""How often files are checked for changes: a few `stat` calls per second cost nothing, and work on every file system."""

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")


def parse_secret(data: bytes, where: str) -> bytes:
    """A key of HMAC: base64 (with or without its padding) when it is nothing else, otherwise the bytes as they are.

    Raises:
        ConfigError: shorter than 32 bytes; does not show it.
    """
    text = data.strip()
    secret = data
    if _BASE64.fullmatch(text):
        try:
            secret = base64.urlsafe_b64decode(
                text.replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4)
            )
        except (binascii.Error, ValueError):
            secret = text
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{where} holds a key of {len(secret)} bytes: {SECRET_BYTES_MIN} are the least; "
            "make one: magnetar tokens create-secret-key"
        )
    return secret


def load_keys(config: AuthenticationConfig, environment: Mapping[str, str] | None = None) -> Keys:
    """All that `[authentication]` names.

    Raises:
        ConfigError: one line that names the file or variable and never its content.
    """
    environment = os.environ if environment is None else environment
    if not config.enabled:
        return Keys()
    secrets = [
        parse_secret(read_file(path, "secret key", private=True), f"secret key {path}")
        for path in config.secret_key_files
    ]
    if name := config.secret_key_env:
        if not environment.get(name):
            raise ConfigError(f"authentication.secret_key_env: the environment has no {name}")
        secrets.append(parse_secret(environment[name].encode(), f"${name}"))
    publics = [_public(path) for path in config.public_key_files]
    passwords: dict[str, bytes] = {}
    if config.basic_file:
        data = read_file(config.basic_file, "password file", private=True)
        passwords = parse_passwords(data.decode("utf-8", "replace"), config.basic_file)
    return Keys(tuple(secrets), tuple(publics), passwords, os.urandom(32))


def _public(path: str) -> "PublicKey":
    # cryptography takes 0.1 s to import: only for those who use it
    from magnetar.runtime.security.public_keys import parse_public

    return parse_public(read_file(path, "public key", private=False), f"public key {path}")


def key_files(config: AuthenticationConfig) -> list[str]:
    """The files that `load_keys` reads."""
    return [*config.secret_key_files, *config.public_key_files, *([config.basic_file] if config.basic_file else [])]


class Watch:
    """Calls `reload` when one of some files changes. A file that is wrong leaves what was in force, and says so once.

    Args:
        files: to look at.
        reload: reads them again; raises MagnetarError when they are wrong.
        what: they are, for the log.
    """

    def __init__(self, files: Iterable[str], reload: Callable[[], None], what: str) -> None:
        self._files = tuple(files)
        self._reload = reload
        self._what = what
        self._seen = self._look()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, in the running loop."""
        if self._files:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Look once."""
        now = self._look()
        if now == self._seen:
            return
        self._seen = now
        try:
            self._reload()
        except MagnetarError as error:
            logger.error("%s: changed, but the former one stays in force: %s", self._what, error)
        else:
            logger.info("%s: read again", self._what)

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(file_state(path) for path in self._files)


def watch_files(
    config: AuthenticationConfig,
    token_file: Path,
    tls: Listening | None,
    *,
    new_keys: Callable[[Keys], None],
    new_link_token: Callable[[bytes], None],
) -> list[Watch]:
    """Watches of the files that a broker reads again when they change; start them.

    Args:
        config: the `[authentication]` table.
        token_file: the links' secret, which counts only without authentication.
        tls: of the listeners; None: there is none.
        new_keys: gets the keys that check credentials.
        new_link_token: gets the links' secret. Links that are there stay.
    """
    watches = [Watch(key_files(config), lambda: new_keys(load_keys(config)), "keys of [authentication]")]
    if not config.enabled:
        watches.append(
            Watch(
                [str(token_file)],
                lambda: new_link_token(read_token(token_file, "link token").encode()),
                "the links' secret",
            )
        )
    if tls is not None:
        watches.append(Watch(tls.files, tls.reload, "certificates of [tls]"))
    return watches
