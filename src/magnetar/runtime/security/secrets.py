"""Reads secrets from files and the environment, and keeps them: no error, log line or process list shows one.

Files that hold a secret are refused when others can read them. A file is read again when it changes: keys and certificates are
replaced while brokers run.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.broker.security.credentials import SECRET_BYTES_MIN, Keys, parse_passwords
from magnetar.core.errors import ConfigError, MagnetarError, StorageError
from magnetar.core.secret_file import file_state, read_file, read_token
from magnetar.core.security import AuthenticationConfig, Security
from magnetar.runtime.log.files import read_small
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


class Secrets:
    """The secrets of a broker, as they are in force: they are read once, and again when their files change.

    Args:
        security: the configuration.
        token_file: the links' secret, which is made when it is missing. It counts only without authentication.

    Attributes:
        keys: keys for checking credentials.
        link_token: the links' secret; empty with authentication, because links have tokens of their own then.
        tls: of the listeners; None: they have no certificate.

    Raises:
        MagnetarError: a file is missing or wrong, in one line that shows no secret.
    """

    def __init__(self, security: Security, token_file: Path) -> None:
        config = security.authentication
        self.keys = load_keys(config)
        self.link_token = b"" if config.enabled else read_link_token(token_file)
        self.tls = Listening(security.tls) if security.tls.certificate_file else None
        self._followers: list[tuple[Callable[[Keys], None], Callable[[bytes], None]]] = []
        self._watches = [
            Watch(key_files(config), lambda: self._new_keys(load_keys(config)), "keys of [authentication]")
        ]
        if not config.enabled:
            self._watches.append(
                Watch(
                    [str(token_file)],
                    lambda: self._new_link_token(read_token(token_file, "link token").encode()),
                    "the links' secret",
                )
            )
        if self.tls is not None:
            self._watches.append(Watch(self.tls.files, self.tls.reload, "certificates of [tls]"))

    def start(self) -> None:
        """Look for changes from now on, in the running loop."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Look no more."""
        for watch in self._watches:
            watch.stop()

    def follow(self, new_keys: Callable[[Keys], None], new_link_token: Callable[[bytes], None]) -> None:
        """Report changes from now on.

        Args:
            new_keys: gets the keys that check credentials.
            new_link_token: gets the links' secret. Links that are there stay.
        """
        self._followers.append((new_keys, new_link_token))

    def _new_keys(self, keys: Keys) -> None:
        self.keys = keys
        for new_keys, _ in self._followers:
            new_keys(keys)

    def _new_link_token(self, token: bytes) -> None:
        self.link_token = token
        for _, new_link_token in self._followers:
            new_link_token(token)


def read_link_token(path: Path) -> bytes:
    """The links' shared secret; made (mode 0600) when the file is missing.

    Raises:
        StorageError: the file can be read by others, is empty, or cannot be made.
    """
    try:
        # An existing file may be in a folder without write permission (a secret that is mounted).
        if not path.exists():
            _make_link_token(path)
        if path.stat().st_mode & 0o077:
            raise StorageError(f"{path} can be read by others; it is the links' secret: chmod 600 {path}")
        token = read_small(path, follow=True).encode()  # secret managers use symbolic links
    except OSError as error:
        raise StorageError(f"cannot use the link token file {path}: {error.strerror}") from error
    if not token:
        raise StorageError(f"{path} is empty; delete it, and a new link token is created")
    return token


def _make_link_token(path: Path) -> None:
    """Create the links' secret, unless another process creates it at the same time.

    It is written to another file and then linked to its name, so that two brokers that start at once agree and no
    reader sees half of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In containers each run has the same process id: with the process id alone, the file of a run that was killed here
    # would be in the way for ever.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
