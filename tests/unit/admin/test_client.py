"""The command line's client against real sockets: the interface itself, and peers that are no broker."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from magnetar.admin.client import AdminClient, AdminError, segment, topic_path
from magnetar.core.errors import MagnetarError, NameNotValid
from tests.web.conftest import World, told


def against_a_broker(use: Callable[[AdminClient], None]) -> None:
    """Run a use of the client, in a thread as the command line would block, against a served world."""

    async def story(world: World) -> None:
        await asyncio.to_thread(use, AdminClient(world.url))

    told(story)


def test_it_speaks_to_the_interface() -> None:
    def use(client: AdminClient) -> None:
        assert client.get("/admin/v2/clusters") == ["eu-central", "us-east", "us-west"]
        assert client.put(topic_path("t t%"), None) is None
        assert client.get("/admin/v2/persistent/public/default") == ["persistent://public/default/t t%"]
        assert client.post("/admin/v2/namespaces/public/default/messageTTL", 60) is None
        assert client.get("/admin/v2/brokers/version") == "0.1.0"
        assert client.delete(topic_path("t t%"), {"force": True}) is None
        assert [link["target"] for link in client.get("/geo/v1/links")] == ["eu-central", "us-east"]

    against_a_broker(use)


def test_a_refusal_has_status_and_reason() -> None:
    def use(client: AdminClient) -> None:
        with pytest.raises(AdminError) as refused:
            client.put("/admin/v2/tenants/public", {"allowedClusters": ["us-west"]})
        assert (refused.value.status, refused.value.reason) == (409, "tenant public exists already")
        assert str(refused.value) == "tenant public exists already"

    against_a_broker(use)


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(MagnetarError) as error:
            AdminClient(url).get("/")
    assert str(error.value) == f"cannot reach {url}: connection refused"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://x",
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://h?x",
        "http://[::1",
        "http://a b",
        "http://a\x7fb",
        "http://a..b",
        f"http://{'a' * 64}.example",
        f"http://{'a.' * 5_000}example",
    ],
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(MagnetarError, match="is not a URL of an admin interface") as error:
        AdminClient(url)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "[fe80::1%eth0]", "b\u00fccher.example", "a_b"])
def test_a_host_of_any_kind(host: str) -> None:
    AdminClient(f"http://{host}:1")


def test_topic_path_refuses_names() -> None:
    with pytest.raises(NameNotValid):
        topic_path("persistent://a/b/..")


@pytest.fixture
def peer() -> Iterator[Callable[[bytes], str]]:
    """A peer that answers every connection with the same bytes: `peer(bytes) -> url`."""
    server = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                if answers[0] == b"silence":
                    connection.settimeout(5)
                    while connection.recv(4096):
                        pass
                else:
                    connection.recv(4096)
                    connection.sendall(answers[0])

    def start(answer: bytes) -> str:
        answers.append(answer)
        thread.start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    thread = threading.Thread(target=serve, daemon=True)
    yield start
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    if thread.ident is not None:
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "cannot reach .*connection failed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx", "broke off its answer 99 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\nx", "text/html, not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{", "cannot be read"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x\r\nContent-Length: 1\r\n\r\nx", "not JSON"),
        (b"HTTP/1.1 404 No\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<h1>", "hardly a Magnetar broker"),
        (
            b'HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{"reason":"a\\n b"}',
            "^a b$",
        ),
    ],
)
def test_a_peer_that_is_no_broker(peer: Callable[[bytes], str], answer: bytes, message: str) -> None:
    with pytest.raises(MagnetarError, match=message) as error:
        AdminClient(peer(answer)).get("/admin/v2/clusters")
    assert "\n" not in str(error.value)


def test_a_peer_that_is_silent(peer: Callable[[bytes], str]) -> None:
    with pytest.raises(MagnetarError, match="no answer within"):
        AdminClient(peer(b"silence"), timeout_s=0.05).get("/admin/v2/clusters")


def test_the_package_costs_the_command_line_no_web_server() -> None:
    import subprocess
    import sys

    code = "import sys, magnetar.admin.client; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_names_are_text() -> None:
    assert segment("a/ü%") == "a%2F%C3%BC%25"
    with pytest.raises(NameNotValid, match="is not UTF-8 text"):
        segment("\udcff")
