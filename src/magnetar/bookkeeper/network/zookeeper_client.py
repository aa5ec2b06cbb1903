"""Makes clients of ZooKeeper with TLS and authentication, and finds out why a server does not answer.

kazoo's own TLS trusts the system's authorities in addition to the given one, and reads nothing but paths of files. So the sockets
are made here, with a context of the caller. kazoo retries without an end and reports no reason; `silence` asks the servers once
more to find it.

Source: docs/design/bookkeeper.md#zookeeper-security.
"""

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    NoAuthError,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.security import CREATOR_ALL_ACL

from magnetar.bookkeeper.network.connection import tls_problem
from magnetar.bookkeeper.protocol.digest_md5 import credential

PROBE_S: Final = 1.0
"""How long each server is asked why it does not answer."""

RECONNECT: Final = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
"""How kazoo connects again: without an end, after pauses of 0.1 to 2 s. Its own pauses double up to an hour: a broker would come
back up to an hour after a ZooKeeper that was away for an hour."""

QUESTION: Final = b"ruok\n"
"""Four letters that every server answers or refuses at once. By the fifth byte a server that wants TLS sees that this is not
TLS."""


NO_TLS: Final = "it has no TLS on this port"


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How connections to ZooKeeper are secured.

    Attributes:
        tls: returns the context of one connection, so that certificates can be replaced; None: without TLS.
        sasl: user and password for SASL (DIGEST-MD5); None: without.
        digest: user and password for the scheme `digest`; None: without.
        creator_only: the nodes of this client are for its own user alone. Otherwise every client may use them.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    sasl: tuple[str, str] | None = field(default=None, repr=False)
    digest: tuple[str, str] | None = field(default=None, repr=False)
    creator_only: bool = False


OPEN: Final = ZooKeeperSecurity()
"""Without TLS and authentication."""


class SaslMissing(Exception):
    """SASL needs a library that is not installed. One line."""


def make_client(hosts: str, session_s: float, logger: logging.Logger, security: ZooKeeperSecurity) -> KazooClient:
    """A client that is not started.

    Args:
        hosts: `host:port`, several with commas between them.
        session_s: time-out of its session.
        logger: gets kazoo's lines.
        security: see `ZooKeeperSecurity`.

    Raises:
        SaslMissing: pure-sasl is not installed.
    """
    more: dict[str, Any] = {}
    if security.tls is not None:
        more["handler"] = _TlsHandler(security.tls)
    if security.sasl is not None:
        try:
            import puresasl.client  # noqa: F401 - kazoo uses it, and says "Missing SASL support" with each attempt
        except ImportError:
            raise SaslMissing('SASL with ZooKeeper needs pure-sasl: pip install "magnetar[zookeeper]"') from None
        user, password = security.sasl
        more["sasl_options"] = {
            "mechanism": "DIGEST-MD5",
            "username": credential(user),
            "password": credential(password),
        }
    if security.digest is not None:
        more["auth_data"] = [("digest", ":".join(security.digest))]
    if security.creator_only:
        more["default_acl"] = CREATOR_ALL_ACL
    client = KazooClient(hosts=hosts, timeout=session_s, logger=logger, connection_retry=RECONNECT, **more)
    if security.sasl is not None:
        _explain_logins(client)
    return client


def _explain_logins(client: KazooClient) -> None:
    """Make kazoo take a refusal for a refusal, and a lost connection for a lost connection.

    It knows one of the two errors by which servers refuse a user; the other one ends its thread with a traceback. And it takes a
    connection that is lost during the login, as when a server is stopped, for a refusal, after which it never connects again. A
    server that refuses says so before it closes.
    """
    connection = client._connection  # kazoo has no public way to its login
    login = connection._authenticate_with_sasl

    def authenticate(host: str, timeout_s: float) -> None:
        try:
            login(host, timeout_s)
        except AuthFailedError as error:
            if isinstance(error.__cause__, ConnectionDropped):
                raise error.__cause__ from None
            raise
        except ConnectionDropped:
            raise
        except KazooException as error:
            raise AuthFailedError(str(error) or type(error).__name__) from error

    connection._authenticate_with_sasl = authenticate


def explained(error: Exception) -> str:
    """An error of kazoo in a few words. Most of them have no text but their name."""
    if isinstance(error, AuthFailedError):
        return "ZooKeeper refuses the user or the password"
    if isinstance(error, SessionClosedRequireSaslError):
        return "ZooKeeper wants a user (SASL)"
    if isinstance(error, NoAuthError):
        return f"the access list of a node does not allow it to this client{f' ({error})' if str(error) else ''}"
    return str(error) or type(error).__name__


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with connections by TLS.

    Args:
        context: returns the context of one connection.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: object
    ) -> ssl.SSLSocket:
        """Connect. kazoo takes an `OSError` for a server to be tried again."""
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._context().wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise


def silence(hosts: str, security: ZooKeeperSecurity, probe_s: float = PROBE_S) -> str:
    """Why servers do not answer: for each one its address and the reason, in one line.

    Args:
        hosts: as those of a client.
        security: of the client.
        probe_s: how long each is asked.
    """
    return ", ".join(f"{host}:{port}: {_why(host, port, security, probe_s)}" for host, port in collect_hosts(hosts)[0])


def _why(host: str, port: int, security: ZooKeeperSecurity, probe_s: float) -> str:
    shaking = False
    try:
        with contextlib.ExitStack() as stack:
            connection: socket.socket = stack.enter_context(socket.create_connection((host, port), probe_s))
            if security.tls is None:
                connection.sendall(QUESTION)
            else:
                # In TLS 1.3 a server refuses a client's certificate after the handshake has ended for the client. A question
                # would be data that it has not read when it closes, so that its reason would be lost.
                shaking = True
                connection = stack.enter_context(security.tls().wrap_socket(connection, server_hostname=host))
                shaking = False
            connection.recv(1)
    except TimeoutError:
        pass
    except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
        if shaking:
            return NO_TLS
    except ssl.SSLError as error:
        return NO_TLS if error.reason == "WRONG_VERSION_NUMBER" else tls_problem(error)
    except (OSError, UnicodeError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    if security.tls is None and has_tls(host, port, probe_s):
        return "it wants TLS"
    other = ", or it has no SASL" if security.sasl is not None else ""
    return f"accepts connections, but does not answer as a server of ZooKeeper that serves{other}"


def has_tls(host: str, port: int, probe_s: float) -> bool:
    """Whether a server speaks TLS. Nothing is sent, so its certificate does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), probe_s) as connection, context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
