"""TLS: contexts of listeners and of clients, and a socket for callers that poll sockets themselves.

A listener's certificate can change while it runs: each handshake takes the context that is current when it begins. Python
lets a server choose the context when the client's first message has come (`sni_callback`). OpenSSL calls that even when the
client names no server.
"""

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from magnetar.core.addresses import is_host, port_of
from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import read_file
from magnetar.core.security import TlsConfig
from magnetar.core.tls import client_context, load_certificate, load_trust

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

WRITE_BYTES: Final = 256 << 10
"""Bytes that one call encrypts: OpenSSL takes a buffer whole or not at all, and progress has to be seen."""


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a listener, from its files as they are now.

    Raises:
        ConfigError: a file is missing, wrong, or a private key that others can read; names the file.
    """
    read_file(config.key_file, "private key", private=True, group=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[config.minimum_version]
    # Clients resume nothing: a ticket of before would let in a client whose CA is trusted no more.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    load_certificate(context, config.certificate_file, config.key_file)
    if config.ca_file and config.client_certificates != "none":
        load_trust(context, config.ca_file)
        required = config.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


class Listening:
    """The TLS of a broker's listeners, which follows its files.

    Args:
        config: the `[tls]` table, with a certificate.

    Attributes:
        context: for listeners; hands each handshake the current one.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._current = server_context(config)
        self.context = server_context(config)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def reload(self) -> None:
        """Read the files again.

        Raises:
            ConfigError: they are wrong; the former context stays in use.
        """
        self._current = server_context(self._config)

    @property
    def files(self) -> list[str]:
        """The files of which it is made."""
        config = self._config
        return [path for path in (config.certificate_file, config.key_file, config.ca_file) if path]


def common_name(certificate: "Any") -> str:
    """The common name of a peer's certificate as `ssl` reports it, "" without one. Several names count as none: they are
    ambiguous.
    """
    if not certificate:
        return ""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""


class Target(NamedTuple):
    """Where a link connects to: host, port, and how; `context` None without TLS."""

    host: str
    port: int
    context: ssl.SSLContext | None = None


def target_of(address: str) -> Target:
    """Parse `host:port`, `pulsar://host:port` or `pulsar+ssl://host:port?ca=FILE&cert=FILE&key=FILE`.

    Raises:
        ConfigError: none of these, or a file that is wrong.
    """
    plain, _, query = address.partition("?")
    host, _, port = plain.rpartition("://")[2].rstrip("/").rpartition(":")
    host = host.strip("[]")
    scheme = plain.partition("://")[0] if "://" in plain else "pulsar"
    if scheme not in {"pulsar", "pulsar+ssl"} or not is_host(host) or not port_of(port):
        raise ConfigError(f"address {plain[:300]!r} is not valid: write host:port")
    context = None
    if scheme == "pulsar+ssl":
        found = {key: values[0] for key, values in parse_qs(query).items()}
        context = client_context(found.get("ca", ""), found.get("cert", ""), found.get("key", ""))
    return Target(host, port_of(port), context)


def shown(address: str) -> str:
    """An address without the parameters of the connection: for errors and tables."""
    return address.partition("?")[0].removeprefix("pulsar://")


class TlsSocket:
    """A non-blocking socket by TLS with the few methods that the link's connections use of a socket.

    `recv_into` fills as much as is there: OpenSSL gives at most one record of 16 KiB at a time and keeps further ones, which
    no poll of the socket would show. A caller that reads until a call does not fill the buffer has read everything.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = context.wrap_socket(
            connection, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self._shaken = False
        self._wants_write = True

    @property
    def waits_to_read(self) -> bool:
        """Whether it can do nothing, not even write, before the peer says something."""
        return not self._shaken and not self._wants_write

    def setblocking(self, flag: bool) -> None:
        """As of a socket."""
        self._socket.setblocking(flag)

    def fileno(self) -> int:
        """As of a socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """As of a socket."""
        self._socket.close()

    def getsockopt(self, level: int, option: int) -> int:
        """As of a socket."""
        return self._socket.getsockopt(level, option)

    def handshake(self) -> None:
        """Continue the handshake.

        Raises:
            BlockingIOError: it waits for the peer, to read if `waits_to_read`, else to write.
            OSError: it failed; one line.
        """
        if self._shaken:
            return
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._wants_write = False
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self._wants_write = True
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise _failed(error) from None
        self._shaken = True

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """As of a socket: how many bytes were taken.

        Raises:
            BlockingIOError: none now.
            OSError: the connection failed.
        """
        self.handshake()
        sent = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while len(view):
                try:
                    taken = self._socket.send(view[:WRITE_BYTES])
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    if sent:
                        return sent
                    raise BlockingIOError from None
                except ssl.SSLError as error:
                    raise _failed(error) from None
                sent += taken
                view = view[taken:]
        return sent

    def recv_into(self, room: Any) -> int:
        """As of a socket: bytes read, 0 at the end; fills the buffer if there is as much.

        Raises:
            BlockingIOError: nothing is there.
            OSError: the connection failed.
        """
        self.handshake()
        view = memoryview(room).cast("B")
        filled = 0
        while filled < len(view):
            try:
                count = self._socket.recv_into(view[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if filled:
                    return filled
                raise BlockingIOError from None
            except ssl.SSLError as error:
                if filled:
                    return filled  # what came before the trouble counts; the next call meets it again
                raise _failed(error) from None
            if count == 0:
                return filled
            filled += count
        return filled


def reason_of(error: ssl.SSLError) -> str:
    """Why a connection to a broker failed, in a few words."""
    verify = getattr(error, "verify_message", "")
    text = f"the broker's certificate is not trusted: {verify}" if verify else f"TLS: {error.reason or error}"
    return text.replace("_", " ")


def _failed(error: ssl.SSLError) -> OSError:
    """An OSError of one line."""
    return OSError(error.errno or 0, reason_of(error))


def connect(address: str, timeout_s: float) -> socket.socket | TlsSocket:
    """A connected socket to a broker, by TLS when the address says so; handshake still to come.

    Raises:
        ConfigError: the address is wrong.
        OSError: it cannot be reached.
    """
    target = target_of(address)
    connection = socket.create_connection((target.host, target.port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.context is None:
        return connection
    connection.setblocking(False)
    return TlsSocket(connection, target.context, target.host)
