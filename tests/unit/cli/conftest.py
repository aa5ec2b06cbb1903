"""A small HTTP server that answers as a broker's REST interface would, and the command line run in this process."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from magnetar import cli


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class FakeBroker:
    """Answers by `METHOD path?query`; remembers every request."""

    url: str
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def answer(self, request: str, value: Any = None, status: int = 200) -> None:
        """Plan an answer; a function is called for it when the request has come."""
        self.answers[request] = (status, value)

    @property
    def changes(self) -> list[tuple[str, Any]]:
        """What was asked to change."""
        return [(what, body) for what, body in self.requests if not what.startswith("GET")]


@pytest.fixture
def make_broker() -> Iterator[Callable[[], FakeBroker]]:
    servers: list[ThreadingHTTPServer] = []

    def make() -> FakeBroker:
        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = f"{self.command} {self.path}"
                broker.requests.append((what, json.loads(body) if body else None))
                status, value = broker.answers.get(what, (404, {"reason": f"no answer planned for {what}"}))
                value = value() if callable(value) else value
                data = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
                self.send_response(status if data or status != 200 else 204)
                kind = "application/octet-stream" if isinstance(value, bytes) else "application/json"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        broker = FakeBroker(f"http://127.0.0.1:{server.server_address[1]}")
        return broker

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def fake(make_broker: Callable[[], FakeBroker]) -> FakeBroker:
    """One broker."""
    return make_broker()


@pytest.fixture
def pair(make_broker: Callable[[], FakeBroker], tmp_path: Path) -> tuple[Path, FakeBroker, FakeBroker]:
    """Two brokers a and b, and their clusters.toml."""
    a, b = make_broker(), make_broker()
    path = tmp_path / "clusters.toml"
    path.write_text(
        "".join(
            f'[clusters.{name}]\npulsar = "127.0.0.1:{port}"\nhttp = "{broker.url.removeprefix("http://")}"\n'
            for name, port, broker in (("a", 1, a), ("b", 2, b))
        )
    )
    return path, a, b


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Answer]:
    """Run one command in an empty folder, nobody at the terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MAGNETAR_ADMIN_URL", raising=False)
    monkeypatch.delenv("MAGNETAR_DEBUG", raising=False)

    def command(*words: object) -> Answer:
        capfd.readouterr()
        code = cli.run([str(word) for word in words])
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

    return command
