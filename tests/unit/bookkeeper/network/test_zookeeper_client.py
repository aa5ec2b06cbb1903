"""Clients of ZooKeeper by TLS: why a server does not answer is said of each; no secret is shown."""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import AuthFailedError, ConnectionLoss, NoAuthError
from kazoo.retry import ForceRetryError

from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity, explained, make_client, silence
from magnetar.core.tls import client_context
from tests.support.brokers import free_port
from tests.support.certificates import Authority

PATIENT_S = 60.0


@contextlib.contextmanager
def server(context: ssl.SSLContext | None, host: str = "127.0.0.1") -> Iterator[str]:
    """Accepts connections, by TLS if there is a context, and closes them without an answer; its address."""
    with socket.create_server((host, 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), connection:
                    if context is None:
                        connection.recv(100)
                    else:
                        with context.wrap_socket(connection, server_side=True) as secured:
                            secured.recv(100)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"{host}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENT_S)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serving(authority: Authority, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.file)
    return context


def trusting(authority: Authority) -> ZooKeeperSecurity:
    context = client_context(str(authority.file))
    return ZooKeeperSecurity(lambda: context)


def test_each_server_has_its_reason(authority: Authority) -> None:
    away = f"127.0.0.1:{free_port()}"
    with server(serving(authority)) as wants_tls, server(None) as plain:
        line = silence(f"{away},{wants_tls},{plain}", OPEN, PATIENT_S)
    assert line == (
        f"{away}: Connection refused, {wants_tls}: it wants TLS, "
        f"{plain}: accepts connections, but does not answer as a server of ZooKeeper that serves"
    )


def test_an_authority_that_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with server(serving(authority)) as address:
        line = silence(address, trusting(other), PATIENT_S)
    assert line.startswith(f"{address}: its certificate is not trusted: ")


def test_a_name_that_the_certificate_does_not_have(authority: Authority) -> None:
    with server(serving(authority), "127.0.0.2") as address:
        line = silence(address, trusting(authority), PATIENT_S)
    assert line.startswith(f"{address}: its certificate is not trusted: IP address mismatch")


def test_a_server_that_wants_a_certificate(authority: Authority) -> None:
    with server(serving(authority, mutual=True)) as address:
        line = silence(address, trusting(authority), PATIENT_S)
    assert line.startswith(f"{address}: it ends TLS (")
    assert "certificate required" in line


def test_a_server_without_tls(authority: Authority) -> None:
    with server(None) as address:
        line = silence(address, trusting(authority), PATIENT_S)
    assert line == f"{address}: it has no TLS on this port"


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(ZooKeeperSecurity(sasl=("user", "secret"), digest=("user", "secret")))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AuthFailedError(), "ZooKeeper refuses the user or the password"),
        (NoAuthError(), "the access list of a node does not allow it to this client"),
        (ConnectionLoss(), "ConnectionLoss"),
        (ConnectionLoss("No connection to server"), "No connection to server"),
    ],
)
def test_errors_of_kazoo_say_what_they_mean(error: Exception, words: str) -> None:
    assert explained(error) == words


def test_a_server_that_was_away_for_an_hour_is_tried_again_within_seconds() -> None:
    client = make_client("127.0.0.1:1", 4.0, logging.getLogger("test"), OPEN)
    pauses_s: list[float] = []
    retry = client._conn_retry  # kazoo has no public way to it
    retry.sleep_func, retry.interrupt = pauses_s.append, None

    def connect() -> None:
        if sum(pauses_s) < 3_600:
            raise ForceRetryError

    retry(connect)
    assert max(pauses_s) < 5
