"""The REST client against a cluster of several brokers: it finds the one that serves, and its token stays in the cluster."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from magnetar.admin import client as requests
from magnetar.admin.client import AdminClient, AdminError, Presented
from magnetar.core import addresses as limits
from magnetar.core.errors import MagnetarError

GONE = "http://127.0.0.1:1"
"""A URL at which no broker listens."""


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Answer(NamedTuple):
    """What a broker answers: status, reason or value, and where it redirects to. No status: it closes the connection."""

    status: int
    value: object = None
    location: str = ""


class Broker:
    """An HTTP server that notes its requests, with their credentials."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.answers: Callable[[], Answer] = lambda: Answer(200, "served")
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.headers.get("Authorization", "")
                broker.requests.append((self.command, self.path, token))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = broker.answers()
                if not answer.status:
                    self.close_connection = True
                    return
                body = json.dumps({"reason": answer.value} if answer.status >= 400 else answer.value).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if answer.location:
                    self.send_header("Location", answer.location)
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_POST = do_GET  # noqa: N815 - the names that the base class looks for

            def log_message(self, *_arguments: object) -> None:
                pass

        self._handler = Handler
        self._servers: list[ThreadingHTTPServer] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = url_of(listener)
        self.listen(listener)

    def listen(self, listener: socket.socket) -> None:
        """Answer the requests that come there, too."""
        listener.listen(16)
        server = ThreadingHTTPServer(listener.getsockname(), self._handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def says(self, *answer: object) -> None:
        self.answers = lambda: Answer(*answer)  # type: ignore[arg-type]

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    found = [Broker() for _ in range(3)]
    yield found
    for broker in found:
        broker.close()


def client(*urls: str) -> AdminClient:
    return AdminClient(urls, timeout_s=10, presented=Presented(lambda: "secret"))


def test_a_broker_that_is_down_is_left_out_from_then_on(brokers):
    a = brokers[0]
    admin = client(GONE, a.url)
    assert [admin.get("/x"), admin.base_url, admin.post("/y")] == ["served", a.url, "served"]


def test_a_redirect_within_the_cluster_is_followed_with_the_token(brokers):
    a, b, c = brokers
    a.says(307, None, f"{c.url}/x?y=1")
    assert client(a.url, b.url, c.url).put("/x", {"k": 1}, {"y": 1}) == "served"
    assert c.requests == [("PUT", "/x?y=1", "Bearer secret")]
    assert not b.requests


@pytest.mark.parametrize("urls", [1, 2])
def test_a_redirect_to_elsewhere_is_not_followed(brokers, urls):
    a, b, elsewhere = brokers
    for one in (a, b):
        one.says(307, None, f"{elsewhere.url}/x")
    with pytest.raises(MagnetarError) as caught:
        client(*[a.url, b.url][:urls]).get("/x")
    assert f"{a.url} does not serve this cluster; '{elsewhere.url}/x' does, which was not named" in str(caught.value)
    assert not elsewhere.requests
    assert "\n" not in str(caught.value)


def test_a_redirect_that_is_no_url_is_no_address(brokers):
    brokers[0].says(307, None, "http://[/x")
    with pytest.raises(MagnetarError, match="does not serve this cluster"):
        client(brokers[0].url).get("/x")


def test_no_broker_serves_names_every_url(brokers):
    a = brokers[0]
    a.says(503, "no broker serves cluster us-west now")
    with pytest.raises(MagnetarError) as caught:
        client(a.url, GONE).get("/x")
    assert not isinstance(caught.value, AdminError)
    assert str(caught.value) == (
        f"{a.url}: no broker serves cluster us-west now; cannot reach {GONE}: connection refused"
    )


def test_the_owner_is_not_ready_itself(brokers):
    a, b = brokers[:2]
    a.says(503, "topic t is being deleted; try again")
    b.says(307, None, f"{a.url}/x")
    with pytest.raises(AdminError, match="being deleted") as caught:
        client(a.url, b.url).put("/x")
    assert (caught.value.status, len(a.requests)) == (503, 1)


def test_brokers_that_name_each_other_end_the_round(brokers):
    a, b = brokers[:2]
    a.says(307, None, f"{b.url}/x")
    b.says(307, None, f"{a.url}/x")
    with pytest.raises(MagnetarError, match="does not serve"):
        client(a.url, b.url).get("/x")
    assert (len(a.requests), len(b.requests)) == (1, 1)


def test_a_question_whose_answer_did_not_come_is_asked_elsewhere(brokers):
    a, b = brokers[:2]
    a.says(0)
    assert client(a.url, b.url).get("/x") == "served"


def test_a_change_whose_answer_did_not_come_is_not_made_twice(brokers):
    a, b = brokers[:2]
    a.says(0)
    with pytest.raises(MagnetarError, match="cannot reach"):
        client(a.url, b.url).post("/x")
    assert not b.requests


def test_a_refusal_is_the_answer(brokers):
    a, b = brokers[:2]
    a.says(404, "there is no topic t")
    with pytest.raises(AdminError, match="there is no topic t"):
        client(a.url, b.url).get("/x")
    assert not b.requests


@pytest.fixture
def soon(monkeypatch) -> None:
    monkeypatch.setattr(requests, "TAKEOVER_LOOK_S", 0.01)


def redirecting(broker: Broker, url: str, rounds: int) -> None:
    """A broker that waits sends clients to the one that died, and then serves."""
    left = iter(range(rounds))
    broker.answers = lambda: Answer(200, "served") if next(left, None) is None else Answer(307, None, f"{url}/x")


def refusing(broker: Broker, _url: str, rounds: int) -> None:
    """A broker that takes over recovers the log, and then serves."""
    left = iter(range(rounds))
    broker.answers = lambda: Answer(200, "served") if next(left, None) is None else Answer(503, "not yet")


@pytest.mark.parametrize("takes_over", [redirecting, refusing])
def test_a_request_waits_for_a_takeover_and_says_so_once(brokers, soon, takes_over):
    a, lines = brokers[0], []
    takes_over(a, GONE, 3)
    waiting = AdminClient([GONE, a.url], timeout_s=10, waits=lines.append)
    assert waiting.post("/x") == "served"
    assert len(a.requests) == 4
    (line,) = lines
    assert line.startswith(f"no broker serves: cannot reach {GONE}: connection refused; {a.url}")
    assert line.endswith("; waiting for one, 30 s at most")


def test_a_takeover_that_does_not_end_is_given_up(brokers, soon, monkeypatch):
    monkeypatch.setattr(requests, "TAKEOVER_S", 0.05)
    a, lines = brokers[0], []
    a.says(503, "not yet")
    with pytest.raises(MagnetarError, match=f"no broker served within 0.05 s: {a.url}: not yet; cannot reach"):
        AdminClient([a.url, GONE], waits=lines.append).get("/x")
    assert len(lines) == 1
    assert len(a.requests) > 1


def test_where_no_takeover_can_be_under_way_nothing_waits(brokers):
    a, b = brokers[:2]
    lines: list[str] = []
    a.says(307, None, "http://127.0.0.1:9/x")
    b.says(503, "no room")
    for urls, words in (
        ([GONE, "http://127.0.0.1:2"], "cannot reach"),
        ([a.url, GONE], "which was not named"),
        ([a.url, b.url], "which was not named"),
        ([b.url], "no room"),
    ):
        with pytest.raises(MagnetarError, match=words):
            AdminClient(urls, waits=lines.append).get("/x")
    a.says(0)
    b.says(503, "not yet")
    with pytest.raises(MagnetarError, match="cannot reach"):
        AdminClient([a.url, b.url], waits=lines.append).post("/x")  # it may have been made
    assert not lines


@pytest.fixture
def gone(monkeypatch) -> Iterator[socket.socket]:
    """The listener of a machine that is gone: the next connection gets no answer, because the queue is full."""
    monkeypatch.setattr(limits, "SILENT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener
        for filler in fillers:
            filler.close()


def test_a_machine_that_is_gone_costs_a_limit(brokers, gone):
    assert client(url_of(gone), brokers[0].url).post("/x") == "served"


def test_a_broker_that_was_too_slow_to_connect_is_tried_again_when_no_other_one_serves(gone, brokers):
    a, b = brokers[:2]
    a.says(307, None, f"{url_of(gone)}/x")

    def back() -> Answer:
        """The one that serves accepts connections again, while b refuses."""
        b.listen(gone)
        b.says(200, "served")
        return Answer(503, "no broker serves")

    b.answers = back
    admin = client(url_of(gone), a.url, b.url)
    assert (admin.post("/x"), admin.base_url) == ("served", url_of(gone))
    assert (len(a.requests), len(b.requests)) == (1, 2)
