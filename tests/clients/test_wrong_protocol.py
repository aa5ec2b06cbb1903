"""Somebody speaks another protocol than a port does: the connection ends, the log says in one line what came from where and
which address is the right one, and everybody else is undisturbed.
"""

import json
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.certificates import Authority

TLS = '\n[tls]\ncertificate_file = "server.cert.pem"\nkey_file = "server.key.pem"\n'


def client_hello() -> bytes:
    """What a client of TLS says first."""
    said = ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return said.read()


SAID = {
    "tls": client_hello(),
    "http": b"GET /admin/v2/clusters HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "pulsar": encode(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="x", protocol_version=21))),
    "text": b"HELO mail.example.org\r\nthis is another story\r\n",
    "random": b"\xff" + random.Random(7).randbytes(200),
}

CASES = [
    ("pulsar", "tls", "it speaks TLS to the port `pulsar`", "{pulsar}", "TLS: {pulsar_tls} and {https}"),
    ("pulsar", "http", "it speaks HTTP to the port `pulsar`", "{pulsar}", "HTTP: {http} and {https}"),
    ("pulsar", "text", "malformed frame", "`pulsar`", "{pulsar}"),
    ("pulsar", "random", "malformed frame", "`pulsar`", "{pulsar}"),
    ("pulsar_tls", "http", "it speaks HTTP without TLS", "{pulsar_tls}", "without TLS: {http}"),
    ("pulsar_tls", "pulsar", "it speaks no TLS", "{pulsar_tls}", "without TLS: {pulsar}"),
    ("pulsar_tls", "text", "it speaks no TLS", "{pulsar_tls}", "without TLS: {pulsar}"),
    ("pulsar_tls", "random", "it speaks no TLS", "{pulsar_tls}", "without TLS: {pulsar}"),
    ("pulsar_tls", "http by tls", "it speaks HTTP to the port `pulsar_tls`", "{pulsar_tls}", "{https}"),
    ("pulsar_tls", "text by tls", "malformed frame", "`pulsar_tls`", "{pulsar_tls}"),
    ("http", "tls", "it speaks TLS to the port `http`", "{http}", "TLS: {pulsar_tls} and {https}"),
    ("http", "pulsar", "it speaks Pulsar's protocol to the port `http`", "{http}", "{pulsar} and {pulsar_tls}"),
    ("http", "text", "malformed HTTP", "`http`", "{http}"),
    ("http", "random", "malformed HTTP", "`http`", "{http}"),
    ("https", "http", "it speaks HTTP without TLS", "{https}", "without TLS: {http}"),
    ("https", "pulsar", "it speaks no TLS", "{https}", "without TLS: {http}"),
    ("https", "text", "it speaks no TLS", "{https}", "without TLS: {http}"),
    ("https", "random", "it speaks no TLS", "{https}", "without TLS: {http}"),
    ("https", "pulsar by tls", "it speaks Pulsar's protocol to the port `https`", "{https}", "{pulsar_tls}"),
    ("https", "text by tls", "malformed HTTP", "`https`", "{https}"),
]
"""Port, what comes, and what the line says: what it is, and what would be right."""


@pytest.fixture(scope="module")
def four_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that listens with TLS and without."""
    folder = tmp_path_factory.mktemp("four-ports")
    Authority(folder).sign("server")
    world = World(folder, ["solo"], TLS, tls=True).start()
    yield world["solo"]
    world.close()


@pytest.fixture(scope="module")
def guard(four_ports: BrokerProcess) -> Iterator[pulsar.Producer]:
    """Somebody who was there before."""
    client = connect(four_ports)
    yield client.create_producer("beside-strangers")
    client.close()


def port_of(broker: BrokerProcess, key: str) -> int:
    """Of a listener."""
    return {
        "pulsar": broker.pulsar_port,
        "pulsar_tls": broker.pulsar_tls_port,
        "http": broker.http_port,
        "https": broker.https_port,
    }[key]


def urls(broker: BrokerProcess) -> dict[str, str]:
    """Of the listeners, as the configuration calls them. TLS names the advertised host."""
    return {"pulsar": broker.url, "pulsar_tls": broker.url_tls, "http": broker.web, "https": broker.web_tls}


def said_until_the_end(link: socket.socket) -> bytes:
    """What comes until the other side closes; a reset is an end too."""
    answer = b""
    try:
        while data := link.recv(65536):
            answer += data
    except (ConnectionResetError, ssl.SSLError):
        pass
    return answer


def strange(broker: BrokerProcess, key: str, data: bytes, *, tls: bool = False) -> tuple[str, bytes]:
    """Say something to a port: from which address, and what was answered before the end."""
    with socket.create_connection(("127.0.0.1", port_of(broker, key)), timeout=20) as plain:
        host, port = plain.getsockname()
        if not tls:
            plain.sendall(data)
            return f"{host}:{port}", said_until_the_end(plain)
        context = ssl.create_default_context(cafile=str(broker.config.parent / "ca.pem"))
        with context.wrap_socket(plain, server_hostname="localhost") as link:
            link.sendall(data)
            return f"{host}:{port}", said_until_the_end(link)


def reason_of(answer: bytes) -> str:
    """Of an answer of HTTP in the one shape of errors."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400" and b"application/json" in head, answer
    told = json.loads(body)
    assert list(told) == ["reason"] and told["reason"].isprintable(), answer
    return str(told["reason"])


@pytest.mark.parametrize(("key", "what", "said", "here", "right"), CASES, ids=[f"{c[1]} to {c[0]}" for c in CASES])
def test_the_connection_ends_with_one_line(
    four_ports: BrokerProcess, guard: pulsar.Producer, key: str, what: str, said: str, here: str, right: str
) -> None:
    before = len(four_ports.log.read_text())
    peer, answer = strange(four_ports, key, SAID[what.removesuffix(" by tls")], tls=what.endswith(" by tls"))
    if answer and key in {"http", "https"}:
        assert "not HTTP" in reason_of(answer)
    else:
        assert answer == b""
    eventually(lambda: peer in four_ports.log.read_text()[before:], what="a line about it")
    guard.send(b"undisturbed")
    lines = four_ports.log.read_text()[before:].splitlines()
    assert len(lines) == 1, lines
    for part in (f"closed the connection of {peer}: ", said, here, right):
        assert part.format(**urls(four_ports)) in lines[0], lines[0]


HTTP_FAULTS = {
    "a line without end": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "a version of nobody": b"GET / HTTP/9.9.9\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n: x\r\n\r\n",
    "a length that is none": b"POST /admin/v2/clusters/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: many\r\n\r\n",
    "two lengths": b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("what", HTTP_FAULTS)
def test_malformed_requests_are_answered_in_the_one_shape(
    four_ports: BrokerProcess, guard: pulsar.Producer, what: str
) -> None:
    before = len(four_ports.log.read_text())
    peer, answer = strange(four_ports, "http", HTTP_FAULTS[what])
    assert "not HTTP" in reason_of(answer)
    guard.send(b"undisturbed")
    lines = four_ports.log.read_text()[before:].splitlines()
    assert len(lines) == 1 and f"{peer}: malformed HTTP: " in lines[0], lines


PUT = b"PUT /admin/v2/tenants/strange HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY_FAULTS = {
    "a chunk of no size": PUT + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nxx\r\n0\r\n\r\n",
    "a chunk of no size, later": PUT + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nZZ\r\n",
    "no gzip": PUT + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    "no deflate": PUT + b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\n\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", BODY_FAULTS)
def test_bodies_that_cannot_be_read(four_ports: BrokerProcess, guard: pulsar.Producer, what: str) -> None:
    before = len(four_ports.log.read_text())
    _peer, answer = strange(four_ports, "http", BODY_FAULTS[what])
    assert reason_of(answer[answer.index(b"HTTP/") :])
    guard.send(b"undisturbed")
    assert len(four_ports.log.read_text()[before:].splitlines()) <= 1, four_ports.log.read_text()[before:]


def test_a_request_whose_sender_goes_leaves_no_story(four_ports: BrokerProcess, guard: pulsar.Producer) -> None:
    before = len(four_ports.log.read_text())
    for reset in (False, True):
        for data in (PUT + b"Content-Length: 1000\r\n\r\n{", PUT, b"GET", b""):
            with socket.create_connection(("127.0.0.1", four_ports.http_port), timeout=20) as link:
                link.sendall(data)
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Requests of one connection after them: what the others brought has been handled by then.
    four_ports.rest("GET", "/admin/v2/clusters")
    guard.send(b"undisturbed")
    four_ports.rest("GET", "/admin/v2/clusters")
    assert four_ports.log.read_text()[before:] == ""


@pytest.mark.parametrize("key", ["pulsar_tls", "https"])
def test_who_goes_before_or_in_a_handshake_leaves_no_line(
    four_ports: BrokerProcess, guard: pulsar.Producer, key: str
) -> None:
    before = len(four_ports.log.read_text())
    for data in (b"", client_hello(), client_hello()[:20]):
        with socket.create_connection(("127.0.0.1", port_of(four_ports, key)), timeout=20) as link:
            link.sendall(data)
    context = ssl.create_default_context(cafile=str(four_ports.config.parent / "ca.pem"))
    with socket.create_connection(("127.0.0.1", port_of(four_ports, key)), timeout=20) as plain:
        context.wrap_socket(plain, server_hostname="localhost").close()
    guard.send(b"undisturbed")
    assert four_ports.log.read_text()[before:] == ""


@pytest.mark.parametrize("key", ["pulsar_tls", "https"])
def test_a_client_that_trusts_another_authority_is_told(four_ports: BrokerProcess, key: str) -> None:
    before = len(four_ports.log.read_text())
    with (
        socket.create_connection(("127.0.0.1", port_of(four_ports, key)), timeout=20) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    line = eventually(lambda: four_ports.log.read_text()[before:], what="a line about it")
    assert f"the handshake of TLS at the port `{key}` failed: " in line and "unknown ca" in line, line


def test_a_flood_of_strangers_writes_few_lines(tmp_path: Path) -> None:
    Authority(tmp_path).sign("server")
    world = World(tmp_path, ["solo"], TLS, tls=True).start()
    try:
        broker = world["solo"]
        with closing(connect(broker)) as client:
            producer = client.create_producer("beside-a-flood")
            for number in range(80):
                for key in ("pulsar", "pulsar_tls", "http", "https"):
                    strange(broker, key, SAID["text"])
                if number % 20 == 0:
                    producer.send(b"meanwhile")
        lines = broker.log.read_text().splitlines()
        assert len(lines) <= 110, len(lines)  # 50 of a kind in 10 s, and a line for the rest
        assert "Traceback" not in broker.log.read_text()
    finally:
        world.close()
