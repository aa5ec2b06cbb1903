"""Links over a long way: real brokers, a delaying proxy in front of one or both, the tasks of the pipeline without Spark.

What is checked is how much is under way, and in how many round trips a topic is carried. No test looks at how long it takes.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import msgspec
import pulsar
import pyarrow as pa
import pytest

from magnetar.core.config import load
from magnetar.core.secret_file import read_link_token
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.long import fetch_read, fetch_write
from magnetar.pipeline.planner import BULK, LONG, TAIL
from magnetar.pipeline.shared_state import Pipeline
from magnetar.pipeline.tasks import append_sender, task_read, task_write
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.pipeline.tasks.append_sender import AppendSender
from magnetar.pipeline.tasks.direct import task_rows
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.delaying_proxy import DelayingProxy

pytestmark = [pytest.mark.timeout(300)]

LINKS = '[[links]]\nfrom = "a"\nto = "b"\n'
ONE_WAY_S = 0.2
"""Long enough for a busy machine to fill the way, and no longer: nearly all of the time of these tests is round trips."""

SIZE = 20_000
COUNT = 1_000
KIB = 1 << 10
FORMER = 256 * KIB
"""What would be under way with windows that do not grow: one read, one append, or sixteen questions."""

LIMITS = ReplicationLimits(
    progress_ms=60_000, answer_ms=60_000, window_bytes=4 << 20, buffer_bytes_max=4 << 20, link_window_bytes_max=4 << 20
)
CEILING = LIMITS.window_bytes + (2 << 20)
"""With what is on the way in the other direction, and what the proxy counts in addition to the bytes."""


class Ways:
    """A delaying proxy in front of each of some ports, in a thread with a loop of its own."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports: dict[str, int] = {}
        self.most: dict[str, int] = dict.fromkeys(ports, 0)
        self._proxies: dict[str, DelayingProxy] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(ports), self._loop).result(30)

    async def _start(self, ports: dict[str, int]) -> None:
        for name, port in ports.items():
            proxy = self._proxies[name] = await DelayingProxy(("127.0.0.1", port), ONE_WAY_S).start()
            self.ports[name] = proxy.port
        self._watch()

    def _watch(self) -> None:
        """Note how much is under way, many times in each round trip."""
        for name, proxy in self._proxies.items():
            self.most[name] = max(self.most[name], proxy.held_bytes)
        self._loop.call_later(ONE_WAY_S / 20, self._watch)

    async def _stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)


class Asking(LinkChannel):
    """A connection that says when the first question is asked."""

    def __init__(self, address: str, token: str, asks: Callable[[], None]) -> None:
        super().__init__(address, token)
        self._asks = [asks]

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        if self._asks:
            self._asks.pop()()
        return super().request(command, buffers)


class Runner:
    """A coordinator whose planned and long batches run here.

    Args:
        far: clusters that are far from the pipeline.
        long: whether long batches carry topics at their end.
        limits: of the pipeline.

    Attributes:
        accepted: for each long batch that has begun to ask, whether its connection to b was open by then.
    """

    def __init__(self, world: World, far: str, *, long: bool, limits: ReplicationLimits = LIMITS) -> None:
        config = load(world.config)
        self._token = read_link_token(config.replication.token_file)
        self.ways = Ways({name: world[name].pulsar_port for name in far})
        addresses = {
            name: f"127.0.0.1:{self.ways.ports.get(name, broker.pulsar_port)}" for name, broker in world.brokers.items()
        }
        links = tuple(Link(number, link.source, link.target) for number, link in enumerate(config.links))
        pipeline = Pipeline(links, addresses, self._token, 4, "tests", limits, long=long)
        self.accepted: list[bool] = []
        self.coordinator = PipelineCoordinator(pipeline).start()
        self._over = threading.Event()
        queries = (*LONG, BULK) if long else (TAIL, BULK)
        self._lanes = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in queries]
        for lane in self._lanes:
            lane.start()

    def _run(self, query: str) -> None:
        while not self._over.is_set():
            if self.coordinator.wait(query, 200):
                tasks = self.coordinator.plan(query)
                reports = [self._long(task) if query in LONG else self._planned(task) for task in tasks]
                self.coordinator.committed(query, reports)

    def _planned(self, task: m.Task) -> m.TaskReport:
        return task_write.write_task(self._rows(task), self._token)

    @staticmethod
    def _rows(task: m.Task) -> Iterator[pa.RecordBatch]:
        """No link has a filter: the writer reads everything itself."""

        def read(_part: m.Task) -> Iterator[pa.RecordBatch]:
            raise AssertionError

        return task_rows(task, (), frozenset(), read)

    def _long(self, task: m.Task) -> m.TaskReport:
        connected: list[LinkChannel] = []
        """To the source, for the questions, then to the destinations, and at last to the source, for the commits."""

        def begins() -> None:
            self.accepted.append(any(channel.hello for channel in connected if channel.locator == target))

        def connect(address: str, token: str) -> LinkChannel:
            asks = address != target and all(channel.locator != address for channel in connected)
            connected.append(Asking(address, token, begins) if asks else LinkChannel(address, token))
            return connected[-1]

        target = task.routes[0].target_address
        return fetch_write.fetch_write(self._rows(task), self._token, connect=connect)

    def stop(self) -> None:
        self.coordinator.drain(20_000)
        self._over.set()
        for lane in self._lanes:
            lane.join(30)
        self.coordinator.stop()
        self.ways.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A link from a to b. Each test waits until all that it published has arrived."""
    made = World(tmp_path_factory.mktemp("two"), ["a", "b"], LINKS).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def world_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same with a link from a to c."""
    links = f'{LINKS}[[links]]\nfrom = "a"\nto = "c"\n'
    made = World(tmp_path_factory.mktemp("three"), ["a", "b", "c"], links).start()
    yield made
    made.close()


def publish(broker: BrokerProcess, count: int, topic: str) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=50)
    for number in range(count):
        producer.send_async(f"{number} ".encode().ljust(SIZE, b"x"), lambda _result, _id: None)
    producer.flush()
    client.close()


def numbers_there(broker: BrokerProcess, count: int, topic: str) -> list[int]:
    """The numbers of the messages at a destination."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(60_000).data().split()[0]) for _ in range(count)]
    client.close()
    return found


def lags(world: World) -> dict[str, int]:
    """By target, the messages that a has and the target does not."""
    return {link["target"]: int(link["lag_messages"]) for link in world["a"].rest("GET", "/geo/v1/links")}


def arrived(world: World) -> bool:
    return not any(lags(world).values())


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows begin small, so that it shows when they grow."""
    monkeypatch.setattr(task_read, "READ_BYTES_MAX", FORMER)
    monkeypatch.setattr(append_sender, "WINDOW_BYTES_MIN", FORMER)
    monkeypatch.setattr(fetch_read, "FETCH_BYTES_MAX", FORMER // fetch_read.FETCHES_AHEAD)


@pytest.fixture(params=["planned", "long"])
def runner(request: pytest.FixtureRequest, world: World, topic: str, windows: None) -> Iterator[Runner]:
    """A pipeline that is far from both clusters."""
    publish(world["a"], COUNT, topic)
    made = Runner(world, "ab", long=request.param == "long")
    yield made
    made.stop()


def test_one_topic_has_more_under_way_than_one_answer(world: World, topic: str, runner: Runner) -> None:
    eventually(lambda: arrived(world), within_s=200, what="everything is there")
    for name, most in runner.ways.most.items():
        assert 4 * FORMER < most < CEILING, f"{most // KIB} KiB on the way from or to {name}"
    assert numbers_there(world["b"], COUNT, topic) == list(range(COUNT))


def test_a_batch_takes_over_when_its_connection_to_a_far_destination_is_open(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each turn of the long batches holds messages back for two round trips."""
    monkeypatch.setattr(fetch_read, "READY_S", 60.0)  # the word decides, however busy the machine is
    runner = Runner(world, "b", long=True, limits=msgspec.structs.replace(LIMITS, long_batch_ms=4_000))
    try:
        for turn in range(1, 4):
            publish(world["a"], 1, topic)
            eventually(lambda turn=turn: len(runner.accepted) >= turn, within_s=100, what="the next batch asks")
        eventually(lambda: arrived(world), within_s=100, what="everything is there")
        assert all(runner.accepted), runner.accepted
    finally:
        runner.stop()
    assert numbers_there(world["b"], 3, topic) == [0, 0, 0]


class Counted(AppendSender):
    """A sender that notes how many bytes wait for each destination, or for its answers, at most."""

    most: ClassVar[dict[str, int]]

    def put(self, append: AppendRequest) -> None:
        super().put(append)
        for destination in self._destinations.values():
            held, target = destination.queued_bytes + destination.under_way_bytes, destination.route.target
            Counted.most[target] = max(Counted.most.get(target, 0), held)


@pytest.mark.parametrize("mode", ["planned", "long"])
def test_a_far_cluster_that_stands_still_costs_the_others_nothing_and_memory_is_bounded(
    world_of_three: World, topic: str, mode: str, windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline is at a third place, far from all three clusters. b stops in the middle of what it gets, and goes on later."""
    for module in (fetch_write, task_write):
        monkeypatch.setattr(module, "AppendSender", Counted)
    Counted.most = {}
    world = world_of_three
    # A planned batch ends when b is given up. A long one has b's share in memory for as long as b may be silent.
    limits = LIMITS if mode == "long" else msgspec.structs.replace(LIMITS, progress_ms=4_000)
    runner = Runner(world, "abc", long=mode == "long", limits=limits)
    stopped = world["b"].process
    assert stopped is not None
    try:
        publish(world["a"], 1, topic)
        eventually(lambda: arrived(world), within_s=100, what="a message to each")
        publish(world["a"], COUNT // 4, topic)
        stopped.send_signal(signal.SIGSTOP)
        publish(world["a"], COUNT, topic)
        eventually(lambda: lags(world)["c"] == 0, within_s=200, what="c has everything")
        assert lags(world)["b"] > COUNT // 2
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: arrived(world), within_s=200, what="b has everything too")
    finally:
        stopped.send_signal(signal.SIGCONT)
        runner.stop()
        for name in "bc":
            there = numbers_there(world[name], 1 + COUNT // 4 + COUNT, topic)
            assert there == [0, *range(COUNT // 4), *range(COUNT)]
    assert 4 * FORMER < runner.ways.most["c"] < CEILING, "its window grew as if it were alone"
    ceiling = LIMITS.link_window_bytes_max if mode == "long" else LIMITS.window_bytes + LIMITS.buffer_bytes_max
    assert Counted.most["b"] > FORMER
    assert all(most < ceiling + (1 << 20) for most in Counted.most.values()), Counted.most
