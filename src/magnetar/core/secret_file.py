"""Reading a file that holds a secret or belongs to one. No error shows what is in it."""

import os
from pathlib import Path
from typing import Final

from magnetar.core.errors import ConfigError

FILE_BYTES_MAX: Final = 1 << 20
"""A ceiling on a file of keys, certificates or passwords: a larger one is a wrong path."""


def file_state(path: str | Path) -> tuple[int, ...] | None:
    """The attributes of a file that differ after it has changed, permissions included; None: there is no such file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - follows links, as secret managers swap them
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def read_file(path: str | Path, what: str, *, private: bool, group: bool = False) -> bytes:
    """The bytes of a file of keys.

    Args:
        path: of the file.
        what: it is, for errors.
        private: it is a secret: refused when others can read it.
        group: its group may, as is usual for private keys of certificates.

    Raises:
        ConfigError: it cannot be read, is too large, or can be read by others.
    """
    try:
        with Path(path).open("rb") as file:
            # Ask the opened file, not the path: the file that is read is the one that was checked.
            mode = os.fstat(file.fileno()).st_mode
            if private and mode & (0o007 if group else 0o077):
                raise ConfigError(f"{what} {path} can be read by others: chmod 600 {path}")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{what} {path} is larger than {FILE_BYTES_MAX} bytes: a wrong file?")
    return data


def read_token(path: str | Path, what: str = "token file") -> str:
    """A token from its file, without blanks around it.

    Raises:
        ConfigError: as `read_file`; or it is empty, or no text.
    """
    try:
        token = read_file(path, what, private=True).decode("ascii").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not text: it should hold a token") from None
    if not token:
        raise ConfigError(f"{what} {path} is empty: it should hold a token")
    return token


def read_password(path: str | Path) -> str:
    """A password from its file, without the end of its line.

    Raises:
        ConfigError: as `read_file`; or it is empty, or more than one line of text.
    """
    try:
        password = read_file(path, "password file", private=True).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"password file {path} is not UTF-8: it should hold a password") from None
    if not password:
        raise ConfigError(f"password file {path} is empty: it should hold a password")
    if not password.isprintable():
        raise ConfigError(f"password file {path} holds more than one line of text: it should hold a password")
    return password


def read_link_token(path: Path) -> str:
    """The token of the links, or the secret that all clusters share.

    Raises:
        ConfigError: the file is missing, unreadable, empty, or can be read by others.
    """
    try:
        there = path.exists()
    except OSError:
        there = True  # as far as is known here: reading the file reports why it cannot be read
    if not there:
        raise ConfigError(
            f"link token {path} does not exist; a broker makes it at its first start: copy it from a machine that has it, "
            "or set token_file in [replication]"
        )
    return read_token(path, "link token")
