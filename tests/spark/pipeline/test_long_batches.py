"""Long batches between real brokers, without Spark: what Spark does between the two halves of a batch is ours here.

A batch is a thread that feeds what the reader yields to the sink. It can be killed, run twice, and hold rows back as Java's
buffers do. Rows are the entries of the first link, if it has a filter; the sink reads the other links itself. All tests share the
brokers; each has topics of its own.
"""

import logging
import queue
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pulsar
import pyarrow as pa
import pytest

from magnetar.core.config import load
from magnetar.core.secret_file import read_link_token
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import ENTRY, FILLER
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.long import fetch_read
from magnetar.pipeline.long import fetch_write as fetch_write_module
from magnetar.pipeline.long.fetch_read import FetchReader
from magnetar.pipeline.long.fetch_write import fetch_write
from magnetar.pipeline.long.hand_over import ReadyPort
from magnetar.pipeline.planner import LONG
from magnetar.pipeline.shared_state import Pipeline
from magnetar.pipeline.tasks.direct import task_rows
from magnetar.pipeline.tasks.link_channel import LinkChannel
from tests.support.brokers import BrokerProcess, World, eventually

pytestmark = [pytest.mark.timeout(300)]

LINKS = '[[links]]\nfrom = "a"\nto = "b"\n[[links]]\nfrom = "b"\nto = "a"\n'


def quiet_client(broker: BrokerProcess) -> pulsar.Client:
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(broker.url, operation_timeout_seconds=30, logger=logger)


class Killed(Exception):
    """The test ended a batch."""


class Java:
    """What stands between the two halves of a batch: it passes on the rows, unless a test says otherwise.

    Attributes:
        open: cleared: rows stay in its buffers.
        fillers: whether filler rows arrive. Without one, the last row waits until there is another one or the stream ends.
        held: batches of rows that came while it was not open.
    """

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.fillers = True
        self.held = 0

    def carry(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as the writer gets them."""
        last: pa.RecordBatch | None = None
        for batch in batches:
            if not self.open.is_set():
                self.held += 1
                self.open.wait()
            if self.fillers:
                yield batch
                continue
            for row, kind in enumerate(batch["kind"].to_pylist()):
                if kind == FILLER:
                    continue
                if last is not None:
                    yield last
                last = batch.slice(row, 1)
        if last is not None:
            yield last


def everything(_row: dict[str, object]) -> bool:
    """A filter that drops nothing: all entries are rows."""
    return True


class Batch:
    """One long batch: the reader in a thread of its own, the sink in another.

    Attributes:
        readers: of the entries that are rows, and of those that the sink reads itself.
        killed: set by a test.
        report: when it has ended.
    """

    def __init__(
        self, task: m.Task, token: str, wanted: Callable[[dict[str, object]], bool] | None, java: Java
    ) -> None:
        self._rows: queue.Queue[pa.RecordBatch | None] = queue.Queue()
        self._task, self._token, self._wanted, self._java = task, token, wanted, java
        self._filtered = frozenset({0}) if wanted is not None else frozenset[int]()
        self.readers: list[FetchReader] = []
        self.killed = False
        self.report: m.TaskReport | None = None
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    def _fetch(self, task: m.Task) -> Iterator[pa.RecordBatch]:
        self.readers.append(FetchReader(task, self._token, single=True, connect=LinkChannel, ready=ReadyPort()))
        return self.readers[-1].batches()

    def _read(self) -> None:
        for whole in task_rows(self._task, (), self._filtered, self._fetch):
            batch = whole
            if self._wanted is not None:
                rows = batch.drop_columns(["data"]).to_pylist()
                batch = batch.filter(pa.array([row["kind"] != ENTRY or self._wanted(row) for row in rows]))
            self._rows.put(batch)
            if self.killed:
                for reader in self.readers:
                    reader.over = True
        self._rows.put(None)

    def _write(self) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            while (batch := self._rows.get()) is not None:
                if self.killed:
                    raise Killed
                yield batch

        _running.batch = self
        with suppress(Killed):
            self.report = fetch_write(self._java.carry(rows()), self._token, connect=LinkChannel)

    @property
    def over(self) -> bool:
        """Whether both halves have ended."""
        return not any(thread.is_alive() for thread in self._threads)


_running = threading.local()
"""The batch of a thread that writes."""


class DirectReader(FetchReader):
    """The sink's own reader, which the batch knows, and which is killed with it."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        batch: Batch = _running.batch
        batch.readers.append(self)
        for rows in super().batches():
            if batch.killed:
                raise Killed
            yield rows


@pytest.fixture(autouse=True)
def direct_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_write_module, "FetchReader", DirectReader)


class Runner:
    """A coordinator whose long batches run here."""

    def __init__(
        self, world: World, *, length_ms: int = 60_000, wanted: Callable[[dict[str, object]], bool] | None = None
    ) -> None:
        config = load(world.config)
        self.token = read_link_token(config.replication.token_file)
        links = tuple(Link(number, link.source, link.target, link.filter) for number, link in enumerate(config.links))
        addresses = {name: str(config.link_addresses(name)) for name in world.brokers}
        self.lines: list[str] = []
        self.wanted = wanted
        self.batches: list[Batch] = []
        self.java = Java()
        self.twice = False
        self._over = threading.Event()
        limits = config.replication.limits
        limits = type(limits)(long_batch_ms=length_ms, handshake_idle_ms=1_000)
        self.coordinator = PipelineCoordinator(
            Pipeline(links, addresses, self.token, 4, "tests", limits, long=True), self.lines.append
        ).start()
        self._lanes = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in LONG]
        for lane in self._lanes:
            lane.start()

    def _run(self, name: str) -> None:
        while not self._over.is_set():
            if not self.coordinator.wait(name, 200):
                continue
            for task in self.coordinator.plan(name):
                batches = [Batch(task, self.token, self.wanted, self.java) for _ in range(2 if self.twice else 1)]
                self.batches += batches
                for batch in batches:
                    while not batch.over and not batch.killed:
                        self._over.wait(0.02)
                self.coordinator.committed(name, [batch.report for batch in batches if batch.report is not None])

    def kill(self) -> None:
        """End what runs, wherever it is."""
        for batch in self.batches:
            batch.killed = True

    def stop(self) -> None:
        self.java.open.set()
        self.coordinator.drain(10_000)
        self._over.set()
        for lane in self._lanes:
            lane.join(10)
        self.coordinator.stop()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("long"), ["a", "b"], LINKS).start()
    yield made
    made.close()


@pytest.fixture
def world(brokers: World) -> Iterator[World]:
    """Both brokers run before each test and after it."""
    yield brokers
    for broker in brokers.brokers.values():
        if broker.process is None:
            broker.start()
        else:
            broker.process.send_signal(signal.SIGCONT)


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def runner(world: World) -> Iterator[Runner]:
    made = Runner(world)
    yield made
    made.stop()


@pytest.fixture
def filtering(world: World) -> Iterator[Runner]:
    """The entries of the first link are rows."""
    made = Runner(world, wanted=everything)
    yield made
    made.stop()


class Traffic:
    """Numbered messages in one cluster, and what comes of them in another."""

    def __init__(self, world: World, source: str, target: str, topic: str, subscription: str) -> None:
        self._clients = [quiet_client(world[source]), quiet_client(world[target])]
        self._topic = topic
        self._consumer = self._clients[1].subscribe(
            topic, subscription, initial_position=pulsar.InitialPosition.Earliest
        )
        self._producer = self._clients[0].create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        self.sent = 0
        self.received: list[int] = []
        self.ages: list[float] = []

    def publish(self, count: int, size: int = 10) -> None:
        for _ in range(count):
            self._producer.send_async(f"{self.sent} ".encode().ljust(size, b"x"), lambda _result, _id: None)
            self.sent += 1
        self._producer.flush()

    def take(self, timeout_ms: int = 20_000) -> None:
        """Receive until everything published is there."""
        while len(set(self.received)) < self.sent:
            message = self._consumer.receive(timeout_ms)
            self.ages.append(time.time() * 1000 - message.publish_timestamp())
            self.received.append(int(message.data().split()[0]))
            self._consumer.acknowledge(message)

    def all_once_in_order(self) -> None:
        """What the destination has stored: acknowledgements of a killed broker come again, messages must not."""
        self.take()
        reader = self._clients[1].create_reader(self._topic, pulsar.MessageId.earliest)
        stored = []
        while reader.has_message_available():
            stored.append(int(reader.read_next(20_000).data().split()[0]))
        assert stored == list(range(self.sent))

    def close(self) -> None:
        while self._clients:
            self._clients.pop().close()


@pytest.fixture
def traffic(world: World, topic: str) -> Iterator[Callable[..., Traffic]]:
    made: list[Traffic] = []

    def make(source: str = "a", target: str = "b", more: str = "", subscription: str = "s") -> Traffic:
        made.append(Traffic(world, source, target, topic + more, subscription))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_both_ways_once_and_in_order_over_many_turns(world: World, traffic: Callable[..., Traffic]) -> None:
    runner = Runner(world, length_ms=2_000)
    try:
        there, back = traffic("a", "b"), traffic("b", "a", "-back")
        while len(runner.batches) < 5:
            there.publish(20)
            back.publish(20, size=70_000)
            there.take()
            back.take()
        there.all_once_in_order()
        back.all_once_in_order()
        figures = runner.coordinator.status()["links"]
        assert not runner.coordinator.troubles()

        def counted() -> bool:
            return int(runner.coordinator.status()["links"]["a -> b"]["messages"]) >= there.sent

        eventually(counted, what=f"the messages are counted: {figures}")
    finally:
        runner.stop()


def test_entries_larger_than_an_answer(runner: Runner, traffic: Callable[..., Traffic]) -> None:
    one = traffic()
    one.publish(6, size=2_000_000)
    one.publish(100)
    one.all_once_in_order()


def test_a_filter_drops_entries_and_c_moves_over_them(world: World, traffic: Callable[..., Traffic]) -> None:
    runner = Runner(world, wanted=lambda row: int(str(row["entry"])) % 3 == 0 or int(str(row["first_index"])) < 0)
    try:
        one = traffic()
        one.publish(30)
        got = [int(one._consumer.receive(20_000).data().split()[0]) for _ in range(10)]
        assert got == list(range(0, 30, 3))

        def settled() -> bool:
            with runner.coordinator.reading() as state:
                return all(
                    topic.cursor.c >= topic.last for link in state.links.values() for topic in link.topics.values()
                )

        eventually(settled, what="C stands behind what was left out")
    finally:
        runner.stop()


@pytest.mark.parametrize("of", ["runner", "filtering"])
def test_a_killed_batch_is_sent_again_and_stored_once(
    request: pytest.FixtureRequest, traffic: Callable[..., Traffic], of: str
) -> None:
    runner: Runner = request.getfixturevalue(of)
    one = traffic()
    for _ in range(4):
        one.publish(50)
        runner.kill()
        one.publish(50)
        one.take()
    one.all_once_in_order()


def test_two_readers_of_one_batch(world: World, traffic: Callable[..., Traffic]) -> None:
    """Spark runs a task twice: the second one supersedes the first, and the messages come once."""
    runner = Runner(world, length_ms=2_000)
    runner.twice = True
    try:
        one = traffic()
        for _ in range(10):
            one.publish(30)
            one.take()
        one.all_once_in_order()
    finally:
        runner.stop()


def test_a_reader_that_stands_still_while_another_one_works(world: World, traffic: Callable[..., Traffic]) -> None:
    """Both believe that they run. Rows of the former one are in Java's buffers, and come when the other one has sent the same."""
    runner = Runner(world, wanted=everything)
    try:
        one = traffic()
        one.publish(50)
        one.take()
        (former,) = runner.batches
        runner.java.open.clear()
        one.publish(50)
        eventually(lambda: runner.java.held, what="rows are in Java's buffers")
        runner.java = Java()  # of the other one
        Batch(former._task, runner.token, everything, runner.java)
        one.publish(50)
        one.take()
        assert not former.over, "it does not know"
        former._java.open.set()
        eventually(lambda: former.over, what="the former one ends")
        one.publish(50)
        one.all_once_in_order()
    finally:
        runner.stop()


@pytest.mark.parametrize("lost", [False, True])
def test_a_grant_that_is_revoked_while_rows_of_it_are_on_their_way(
    world: World, filtering: Runner, traffic: Callable[..., Traffic], topic: str, lost: bool
) -> None:
    """The destination is started again, with its data or without. Rows that were in Java's buffers come after the comparison."""
    runner, one = filtering, traffic()
    one.publish(50)
    one.take()
    one.close()
    runner.java.open.clear()
    before = traffic("a", "b")
    before.sent = 50
    before.publish(50)
    before.close()
    eventually(lambda: runner.java.held, what="rows are in Java's buffers")

    def grant() -> int:
        with runner.coordinator.reading() as state:
            return state.grants[0]._granted.get(topic, 0)

    first = grant()
    world["b"].kill()
    if lost:
        shutil.rmtree(world.folder / "data" / "b")
    world["b"].start()
    eventually(lambda: grant() > first, within_s=60, what="another grant")
    runner.java.open.set()
    again = traffic("a", "b", subscription="again")
    again.sent = 100
    again.publish(50)
    again.all_once_in_order()


def test_a_filler_row_that_never_comes(world: World, traffic: Callable[..., Traffic]) -> None:
    """The last row waits in Java: until the next one comes, at the latest until the next batch supersedes this one."""
    runner = Runner(world, length_ms=2_000, wanted=everything)
    runner.java.fillers = False
    try:
        one = traffic()
        for _ in range(3):
            one.publish(1)
            one.take()
        one.publish(30)
        one.all_once_in_order()
    finally:
        runner.stop()


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_killed_broker(world: World, runner: Runner, traffic: Callable[..., Traffic], which: str) -> None:
    one = traffic()
    one.publish(50)
    one.take()
    if which == "b":
        world["b"].kill()
        one.publish(50)
    else:
        world["a"].kill()
    world[which].start()
    one.publish(50)
    one.all_once_in_order()


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_broker_that_stands_still(world: World, runner: Runner, traffic: Callable[..., Traffic], which: str) -> None:
    one = traffic()
    one.publish(50)
    one.take()
    process = world[which].process
    assert process is not None
    if which == "b":
        process.send_signal(signal.SIGSTOP)
        one.publish(50)
        eventually(lambda: any("down" in line for line in runner.lines), what="the destination is given up")
    else:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: any("down" in line for line in runner.lines), what="the source is given up")
    process.send_signal(signal.SIGCONT)
    one.publish(50)
    one.all_once_in_order()


def test_a_source_that_stands_still_for_longer_than_it_holds_a_question(
    world: World, traffic: Callable[..., Traffic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for 30 s, in less time: the reader gives the connection up, and the late answers to it reach nobody."""
    monkeypatch.setattr(fetch_read, "WAIT_MS", 500)
    monkeypatch.setattr(fetch_read, "GREETING_S", 0.5)
    runner = Runner(world)
    try:
        one = traffic()
        one.publish(50)
        one.take()
        process = world["a"].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        source = runner.batches[-1].readers[0]._sources[f"127.0.0.1:{world['a'].pulsar_port}"]
        eventually(lambda: source.failures >= 2, what="the reader gave its connections up")
        process.send_signal(signal.SIGCONT)
        one.publish(50)
        one.all_once_in_order()
    finally:
        runner.stop()


def test_a_destination_that_lost_its_disk(world: World, runner: Runner, traffic: Callable[..., Traffic]) -> None:
    one = traffic()
    one.publish(50)
    one.take()
    one.close()
    world["b"].kill()
    shutil.rmtree(world.folder / "data" / "b")
    world["b"].start()
    again = traffic("a", "b")
    again.sent = 50  # what it had is sent again
    again.publish(50)
    again.all_once_in_order()


def test_new_topics_and_topics_that_go(world: World, runner: Runner, traffic: Callable[..., Traffic]) -> None:
    for number in range(5):
        one = traffic("a", "b", f"-{number}")
        one.publish(20)
        one.all_once_in_order()
