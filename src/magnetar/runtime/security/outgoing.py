"""The security of connections that a broker makes to bookies and to ZooKeeper, from the tables of clusters.toml.

Files are read at the start, where a wrong one ends it with one line. Certificates, and the bookies' password, are read again when
they change: connections that begin later use the new ones.
"""

import logging
import ssl
import threading
from typing import Final

from magnetar.bookkeeper.network.connection import Security
from magnetar.bookkeeper.network.sasl import SaslLogin
from magnetar.bookkeeper.network.zookeeper_client import ZooKeeperSecurity
from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import file_state, read_file, read_password
from magnetar.core.security import BookieSecurity, ZooKeeperSecurityConfig
from magnetar.core.tls import client_context

logger = logging.getLogger("magnetar.broker")

_KEYS: Final = ("ca_file", "certificate_file", "key_file")


class ClientTls:
    """Contexts for connections by TLS. It may be used by several threads.

    Args:
        table: names the files.
        where: name of the table, for errors.

    Raises:
        ConfigError: a file is missing or wrong.
    """

    def __init__(self, table: BookieSecurity | ZooKeeperSecurityConfig, where: str) -> None:
        self._table = table
        self._where = where
        self._lock = threading.Lock()
        self._seen = self._look()
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        """The context of a connection that begins now."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._context = self._made()
                except ConfigError as error:
                    logger.error("the files have changed, but the former ones stay in force: %s", error)
            return self._context

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(file_state(path) for key in _KEYS if (path := getattr(self._table, key)))

    def _made(self) -> ssl.SSLContext:
        table = self._table
        try:
            if table.key_file:
                read_file(table.key_file, "private key", private=True, group=True)
            context = client_context(table.ca_file, table.certificate_file, table.key_file)
        except ConfigError as error:
            raise ConfigError(f"{self._where}: {error}") from None
        context.check_hostname = table.verify_hostname
        return context


def bookie_security(table: BookieSecurity, where: str) -> Security:
    """The security of connections to bookies.

    Args:
        table: `[clusters.NAME.bookies]`.
        where: its name, for errors.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    tls = ClientTls(table, where).context if table.tls else None
    if not table.user:
        return Security(tls)
    _password(table, where)
    return Security(tls, lambda: SaslLogin(table.user, _password(table, where)))


def zookeeper_security(table: ZooKeeperSecurityConfig, where: str) -> ZooKeeperSecurity:
    """The security of connections to ZooKeeper; as `bookie_security`."""
    tls = ClientTls(table, where).context if table.tls else None
    login = (table.user, _password(table, where)) if table.user else None
    sasl, digest = (login, None) if table.authentication == "sasl" else (None, login)
    return ZooKeeperSecurity(tls, sasl, digest, table.creator_only)


def _password(table: BookieSecurity | ZooKeeperSecurityConfig, where: str) -> str:
    try:
        return read_password(table.password_file)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
