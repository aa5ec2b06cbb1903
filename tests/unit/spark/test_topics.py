"""Which topics a query reads, where brokers cannot be reached."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from magnetar.core import addresses as limits
from magnetar.spark import topics
from magnetar.spark.connection import Access, Down
from magnetar.spark.options import read_options
from tests.support.certificates import Authority


def test_a_broker_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup may lead to an address that Spark cannot reach; that is what the query has to end with."""

    class Unreachable:
        def __init__(self, *_arguments: object) -> None:
            raise Down("pulsar://broker.inside:6650: refused")

    monkeypatch.setattr(topics, "Reader", Unreachable)
    with pytest.raises(Down, match=r"broker\.inside"):
        topics.Ends(topics.Client(Access("pulsar://127.0.0.1:1"))).last(["persistent://public/default/t"])


class Told(BaseHTTPRequestHandler):
    """A broker that waits redirects; one that serves answers. Both note the tokens that they get."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Web)
        server.tokens.append(self.headers.get("Authorization", ""))
        threading.Event().wait(server.takes_s)
        self.send_response(307 if server.location else 200)
        if server.location:
            self.send_header("Location", server.location)
        self.end_headers()
        self.wfile.write(b"{}" if server.location else b'{"served": true}')

    def log_message(self, *_arguments: object) -> None:
        pass


class Web(HTTPServer):
    """A REST interface."""

    def __init__(self, location: str = "", takes_s: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Told)
        self.takes_s = takes_s
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.location, self.tokens = location, list[str]()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


def test_the_token_goes_only_to_addresses_of_admin_url() -> None:
    serving, elsewhere = Web(), Web()
    waiting = Web(f"http://127.0.0.1:{elsewhere.server_port}/")
    address = f"http://127.0.0.1:1,127.0.0.1:{waiting.server_port},127.0.0.1:{serving.server_port}"
    given = {
        "service.url": "pulsar://127.0.0.1:1", "topic": "t", "admin.url": address,
        "pulsar.client.authPluginClassName": "AuthenticationToken", "pulsar.client.authParams": "token:secret",
    }  # fmt: skip
    try:
        options = read_options(given, streaming=False)
        assert topics.admin_get(options, "persistent://public/default/t", "internalStats") == {"served": True}
        assert (serving.tokens, elsewhere.tokens) == (["Bearer secret"], [])
    finally:
        for one in (serving, elsewhere, waiting):
            one.shutdown()
            one.server_close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_may_take_longer_than_connecting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    monkeypatch.setattr(limits, "SILENT_S", 0.3)
    monkeypatch.setattr(limits, "SILENT_AGAIN_S", 0.3)
    authority, tls = Authority(tmp_path), None
    if scheme == "https":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*authority.sign("broker"))
    serving = Web(takes_s=0.45, tls=tls)
    waiting = Web(f"{scheme}://127.0.0.1:{serving.server_port}/", tls=tls)
    address = f"{scheme}://127.0.0.1:{serving.server_port},127.0.0.1:{waiting.server_port}"
    given = {
        "service.url": "pulsar://127.0.0.1:1", "topic": "t", "admin.url": address,
        "pulsar.client.tlsTrustCertsFilePath": str(authority.file),
    }  # fmt: skip
    try:
        options = read_options(given, streaming=False)
        assert topics.admin_get(options, "persistent://public/default/t", "internalStats") == {"served": True}
        assert (len(serving.tokens), len(waiting.tokens)) == (1, 0)
    finally:
        for one in (serving, waiting):
            one.shutdown()
            one.server_close()
