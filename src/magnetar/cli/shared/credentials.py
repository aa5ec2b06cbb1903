"""The credentials of commands: a token and the trusted CA, never as an argument.

All users of the machine see arguments in the list of processes. So a token is taken, in this order, from

    --token-file FILE       before the command's name
    MAGNETAR_TOKEN          the token itself; MAGNETAR_TOKEN_FILE: the file that holds it
    [client] token_file     of clusters.toml

and certificates from `[client]`, or from MAGNETAR_CA_FILE if there is no file.
"""

import os
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.admin.client import Presented, present
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError

if TYPE_CHECKING:
    import ssl

TOKEN_VARIABLE: Final = "MAGNETAR_TOKEN"  # noqa: S105 - its name
TOKEN_FILE_VARIABLE: Final = "MAGNETAR_TOKEN_FILE"  # noqa: S105
CA_VARIABLE: Final = "MAGNETAR_CA_FILE"


class Chosen:
    """The choices from options and the environment, which the configuration completes."""

    token_file: Path | None = None


def token_of(config: Config | None) -> str:
    """The token to present, "" for none.

    Raises:
        ConfigError: a file of it cannot be read, or can be read by others.
    """
    from magnetar.core.secret_file import read_token

    if Chosen.token_file is not None:
        return read_token(Chosen.token_file)
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        if not token.isascii() or not token.isprintable():
            raise ConfigError(f"{TOKEN_VARIABLE} holds no token: it is not plain text")
        return token
    if path := os.environ.get(TOKEN_FILE_VARIABLE):
        return read_token(path)
    if config is not None and config.security.client.token_file:
        return read_token(config.security.client.token_file)
    return ""


def _context(ca_file: str, certificate_file: str, key_file: str) -> "ssl.SSLContext":
    from magnetar.core.tls import client_context

    return client_context(ca_file, certificate_file, key_file)


def present_as(config: Config | None) -> None:
    """Present all requests of this process as the options, the environment and the configuration say.

    Files are read when the first request is made: a command that makes none needs no token.
    """
    client = config.security.client if config is not None else None
    trusted = (config.security.trusted_ca if config is not None else "") or os.environ.get(CA_VARIABLE, "")

    context = partial(
        _context,
        trusted,
        client.certificate_file if client is not None else "",
        client.key_file if client is not None else "",
    )
    present(Presented(cache(partial(token_of, config)), context))
