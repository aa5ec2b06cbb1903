"""An admin interface in this process, asked over a real socket on loopback; behind it is a real broker in memory."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestServer
from yarl import URL

from magnetar.admin.http.server import make_app
from magnetar.admin.metrics.runtime_settings import runtime_settings
from magnetar.broker.admin.info import BrokerInfo
from magnetar.broker.context import Done
from magnetar.core.config import Config, builtin
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.effects.outbox import Read
from magnetar.metadata.change import Change
from magnetar.metadata.policies.namespace import Policies
from magnetar.storage.entries import Append, EntryFlags, NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from magnetar_sim.host.host import Timers
from magnetar_sim.host.memory_files import MemoryFiles
from tests.support.geoworld import FOLDER, Client, Node

NOW_MS = 1_700_000_100_000

CONFIG = builtin(Path("data"))
CLUSTER = "us-west"
ROUTES = frozenset((a, b) for a in CONFIG.clusters for b in CONFIG.clusters if a != b)

INFO = BrokerInfo(
    cluster=CLUSTER,
    uuid=f"uuid-{CLUSTER}",
    version="0.1.0",
    service_url="pulsar://127.0.0.1:6650",
    web_url="http://127.0.0.1:8080",
    started_ms=NOW_MS - 90_000,
    settings=runtime_settings(CONFIG, CLUSTER, CONFIG.clusters[CLUSTER].broker(""), Policies()),
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


def described(number: int, payload: bytes, **metadata: Any) -> bytes:
    """A message's bytes as a topic stores them; keyword arguments are fields of its metadata."""
    properties = [pb.KeyValue(key=key, value=value) for key, value in metadata.pop("properties", {}).items()]
    fields = {"producer_name": "p", "publish_time": 1_700_000_000_000, "properties": properties} | metadata
    return build(pb.MessageMetadata(sequence_id=number, **fields), payload)


class Served(Node):
    """The broker of us-west. Its disk and its store answer on a later turn of the loop.

    Attributes:
        store_error: why the store refuses every change; "" when it does not.
        unread: topics of which the disk gives nothing back: reads of them are never answered.
    """

    def __init__(self, world: "World", saved: "Saved", limits: dict[str, Any]) -> None:
        self._saved = saved
        self.store_error = ""
        self.unread: set[str] = set()
        super().__init__(world, CLUSTER, ROUTES, limits)  # type: ignore[arg-type]  # it has what a node asks of its world

    def start(self) -> None:
        if not self.boots:
            self.meta.update(self._saved.meta)
            self.files = self._saved.files.crash()
        super().start()
        self.host.carry_out[Read] = lambda read: None if read.topic in self.unread else self.reads.append(read)

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        super().run(event, *arguments)
        self.world.wake()  # type: ignore[attr-defined]

    def check(self) -> None:
        """Once for a whole story (`World.within`): with a thousand topics it takes long."""

    def work(self) -> bool:
        refused = bool(self.store_error) and self.store.answer(self.store_error)
        return super().work() or refused


class Saved(NamedTuple):
    """What a broker left on its disk and in its store, for others to start from."""

    meta: Mapping[str, bytes]
    files: MemoryFiles

    def damage(self, needle: bytes) -> None:
        """One bit of what is on the disk."""
        contents = [self.files.content(FOLDER / name) for name in self.files.names(FOLDER)]
        (data,) = (content for content in contents if needle in content)
        data[data.index(needle)] ^= 1


FRESH = Saved({}, MemoryFiles(random.Random(0)))

LEDGER = NOW_MS
"""Of the first topic that is made in a fresh world, which has the clock's number; the following ones count on."""

WAITED_MS = 1_000
"""A timer of so long may be what a request waits for."""

UNWRITABLE = "the log cannot be written; publishing waits until it can"
"""What a broker says of itself whose log is broken."""


class World:
    """A broker's admin interface with a broker in memory behind it; made in the loop that serves it.

    The broker's clock stands still until a test lets time pass, or a timer is due that was set for `WAITED_MS` or less.

    Args:
        info: who the broker is.
        saved: what it starts from.
        settings: `clusters.toml`.
        limits: of its `[broker]`, where they are not the usual ones.
        options: of the application.

    Attributes:
        node, broker, control, resources: behind it.
        url: of the running server.
    """

    ahead_ms = 0
    cache_bytes = 1 << 22
    machines = None

    def __init__(
        self,
        info: BrokerInfo = INFO,
        *,
        saved: Saved = FRESH,
        settings: Config = CONFIG,
        limits: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.now_ms = NOW_MS
        self.config, self.settings = settings, settings.subscriptions
        self._loop = asyncio.get_running_loop()
        self._awake = False
        self.timers = Timers()
        self.node = Served(self, saved, limits or {})
        self.broker, self.control, self.resources = self.node.broker, self.node.control, self.node.broker.resources
        self.app = make_app(self.control, self.resources, info, now_ms=lambda: NOW_MS, **options)
        self.url = ""
        self._session: ClientSession | None = None

    # ------------------------------------------------------------------------------------------- what a node asks for

    def wake(self) -> None:
        """Disk and store have their turn, and the timers that a request may wait for."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = False
        if self.node.work():
            self.wake()
        at_ms = self.timers.next_by(self.now_ms + WAITED_MS)
        if at_ms is not None:
            self._loop.call_later((at_ms - self.now_ms) / 1000, self.advance_to, at_ms)

    def advance_to(self, end_ms: int) -> None:
        """Time passes, timer by timer."""
        while (at_ms := self.timers.next_by(end_ms)) is not None:
            self.now_ms = max(self.now_ms, at_ms)
            self.timers.pop()(self.now_ms)
            self.work()
        self.now_ms = max(self.now_ms, end_ms)

    def work(self) -> None:
        """Disk and store answer everything now."""
        while self.node.work():
            pass

    def settle(self) -> None:
        """Disk, store and the timers that a request may wait for have done all that they had to do."""
        self.work()
        while (at_ms := self.timers.next_by(self.now_ms + WAITED_MS)) is not None:
            self.advance_to(at_ms)

    # ----------------------------------------------------------------------------------------- what a test has to hand

    def save(self) -> Saved:
        """What is stored by now."""
        self.work()
        return Saved(dict(self.node.meta), self.node.files.crash())

    def topics(self) -> list[str]:
        """Names of all topics, partitions by themselves."""
        return [*self.broker.nonpersistent.topics, *sorted(self.broker.topics)]

    def watch(self, part: object, method: str) -> list[tuple[Any, ...]]:
        """What a method of administration is called with from now on, but for `done`; it does its work all the same."""
        real, calls = getattr(part, method), []

        def watched(*arguments: Any, **options: Any) -> Any:
            calls.append((*(one for one in arguments if not callable(one)), *options.values()))
            return real(*arguments, **options)

        setattr(part, method, watched)
        return calls

    def call(self, change: Callable[[Done], None]) -> None:
        """A change through administration that succeeds at once."""
        errors: list[MagnetarError | None] = []
        change(errors.append)
        self.work()
        assert errors == [None], errors

    def apply(self, change: Change) -> None:
        """A change of tenants, namespaces, policies."""
        self.call(lambda done: self.control.policies.apply(change, done))

    def create(
        self, topic: str, *messages: bytes, subscriptions: Iterable[str] = (), partitions: int | None = None
    ) -> None:
        """A topic with subscriptions and, behind them, messages."""
        self.call(lambda done: self.control.topics.create(topic, partitions, {}, done))
        for name in subscriptions:
            self.call(lambda done, name=name: self.control.subscriptions.create(topic, name, None, False, {}, done))  # type: ignore[misc]
        if messages:
            self.node.publish(*messages, topic=topic)

    def delete(self, topic: str) -> None:
        """A topic goes with all that is connected to it."""
        self.call(lambda done: self.control.topics.delete(topic, True, done))

    def store(self, topic: str, data: bytes, count: int = 1) -> Position:
        """Publish an entry as it is: metadata and payload; its position."""
        found: list[Position] = []
        entry = NewEntry(data, int(EntryFlags.BATCH) if count > 1 else 0, count, self.now_ms)

        def stored(append: Append, error: str) -> None:
            assert not error
            found.extend(entry.position for entry in append.entries)

        self.node.run(lambda: self.broker.topics[topic].append([entry], stored))
        self.work()
        return found[0]

    def consume(self, topic: str, subscription: str, kind: int = 0, count: int = 1, **more: Any) -> Client:
        """Consumers of a subscription, which comes with them if need be; they take nothing."""
        client = self.node.client()
        for _ in range(count):
            client.subscribe(subscription, kind, topic=topic, **{"replicated": False, **more})
        self.work()
        return client

    def produce(self, topic: str, count: int = 1) -> Client:
        """Producers of a topic."""
        client = self.node.client()
        for number in range(count):
            command = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
            client.send(pb.BaseCommand(type=5, producer=command))
        self.work()
        return client

    def report(self, target: str, reason: str = "", *, trouble: str = "", topic: str = "", blocked: str = "") -> None:
        """A pipeline serves a link, and says of it, or of a topic, what is in the way."""
        links = self.broker.links
        source = links.source(target)
        commit = pb.CommandGeoCommit(request_id=1, to=target, pipeline="p", trouble=trouble, reason=reason)
        if topic:
            state = source.topics[topic]
            one = commit.commits.add(topic=topic, incarnation=state.log.incarnation, blocked=blocked, reason=reason)
            one.cursor.c.ledger, one.cursor.c.entry = state.cursor.c
            one.cursor.s.ledger, one.cursor.s.entry = state.cursor.s
            one.cursor.gen = state.cursor.gen
        lease = pb.CommandGeoTopics(request_id=2, to=target, counter=0, pipeline="p", lease_ms=60_000)
        self.node.run(lambda: source.poll(1, lease, lambda _response: None))
        self.node.run(lambda: links.commit(commit, lambda _response: None))
        self.work()

    def break_log(self) -> None:
        """The disk is full, as the log finds out: it takes nothing more."""
        self.node.run(self.broker.append_failed, [], "no space left on the device")

    # ---------------------------------------------------------------------------------------------------------- asking

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
        self.broker.validate()


Story = Callable[[World], Coroutine[Any, Any, None]]
Tell = Callable[..., None]


def told(story: Story, **options: Any) -> None:
    """Run a story over a fresh world; keyword arguments are the world's."""

    async def main() -> None:
        await World(**options).within(story)

    asyncio.run(main())


@pytest.fixture
def tell() -> Tell:
    """`told`."""
    return told


def planted_bug(world: World) -> Any:
    """Meanwhile the broker has a bug: it cannot count partitions."""
    return patch.object(world.resources, "partitions", side_effect=ZeroDivisionError("planted\nbug"))


async def raw_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next answer of a connection on which a test writes HTTP itself: its status, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return head.split()[1], await reader.readexactly(length)
