"""An admin interface in this process, asked over a real socket on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestServer
from yarl import URL

from magnetar.admin.http.server import make_app
from magnetar.admin.metrics.runtime_settings import runtime_settings
from magnetar.broker.admin.info import BrokerInfo
from magnetar.core.config import builtin
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.resources import Resources
from tests.web.fake_control import FakeControl

NOW_MS = 1_700_000_100_000

CONFIG = builtin(Path("data"))

INFO = BrokerInfo(
    cluster="us-west",
    uuid="0000-west",
    version="0.1.0",
    service_url="pulsar://127.0.0.1:6650",
    web_url="http://127.0.0.1:8080",
    started_ms=NOW_MS - 90_000,
    settings=runtime_settings(CONFIG, CONFIG.clusters["us-west"], Policies()),
)


class Answer:
    """One answer.

    Attributes:
        status, headers: of HTTP.
        data: the body's bytes.
    """

    def __init__(self, status: int, headers: Any, data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def json(self) -> Any:
        """The body, decoded."""
        import json

        assert self.headers["Content-Type"].startswith("application/json"), self.headers["Content-Type"]
        return json.loads(self.data)

    @property
    def reason(self) -> str:
        """Of a refusal, whose shape is checked."""
        answer = self.json
        assert list(answer) == ["reason"] and isinstance(answer["reason"], str), answer
        assert answer["reason"] and answer["reason"].isprintable(), answer
        return str(answer["reason"])


class World:
    """A broker's admin interface with a fake broker behind it.

    Attributes:
        control, resources: behind it.
        url: of the running server.
    """

    def __init__(self, info: BrokerInfo = INFO, **options: Any) -> None:
        self.resources = Resources.load({})
        self.resources.apply(self.resources.first_start(builtin(Path("data")), "us-west", "0000-west"))
        self.control = FakeControl(self.resources)
        self.app = make_app(self.control, self.resources, info, now_ms=lambda: NOW_MS, **options)
        self.url = ""
        self._session: ClientSession | None = None

    async def ask(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request; `path` goes out as it is."""
        assert self._session is not None
        data = body.encode() if isinstance(body, str) else body
        url = URL(self.url + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
            return Answer(response.status, response.headers, await response.read())

    async def have(self, *requests: tuple[str, str, str | None]) -> None:
        """Requests that must succeed."""
        for method, path, body in requests:
            answer = await self.ask(method, path, body)
            assert answer.status < 300, (method, path, answer.status, answer.data)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Meanwhile it can be asked."""
        server = TestServer(self.app, host="127.0.0.1")
        await server.start_server(auto_decompress=False)
        self.url = f"http://127.0.0.1:{server.port}"
        try:
            async with ClientSession(connector=TCPConnector(limit=0)) as session:
                self._session = session
                yield
        finally:
            await server.close()

    async def within(self, story: Callable[["World"], Awaitable[None]]) -> None:
        """Serve while a story is told."""
        async with self.serving():
            await story(self)


Tell = Callable[..., None]


@pytest.fixture
def tell() -> Tell:
    """Run a coroutine function over a fresh world: `tell(story)`; keyword arguments are the world's."""

    def run(story: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def main() -> None:
            await World(**options).within(story)

        asyncio.run(main())

    return run


async def raw_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next answer of a connection on which a test writes HTTP itself: its status, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return head.split()[1], await reader.readexactly(length)
