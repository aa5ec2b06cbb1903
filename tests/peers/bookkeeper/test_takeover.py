"""Brokers of one cluster whose log is on real bookies: one serves, another takes over. Official clients follow."""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.brokers import BrokerProcess, eventually, free_port

pytestmark = pytest.mark.timeout(300)

TOPIC = "persistent://public/default/moved"


def connect(url: str) -> pulsar.Client:
    """An official client."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(url, operation_timeout_seconds=30, logger=logger)


class Brokers:
    """The brokers of one cluster: one file, of which each has a copy, and a folder for each."""

    def __init__(self, folder: Path, cluster: BookKeeperCluster, store: str) -> None:
        ports = {name: (free_port(), free_port()) for name in "ab"}
        text = (
            f'[magnetar]\ndata_dir = "data"\n[clusters.one]\nstorage = "bookkeeper"\n'
            f'store = "zookeeper://{cluster.hosts}{store}"\n[deduplication]\nenabled = true\n'
            '[namespaces."public/default"]\nclusters = ["one"]\n'
        )
        for name, (pulsar_port, http_port) in ports.items():
            text += (
                f'[clusters.one.brokers.{name}]\npulsar = "127.0.0.1:{pulsar_port}"\nhttp = "127.0.0.1:{http_port}"\n'
            )
        self.brokers: dict[str, BrokerProcess] = {}
        for name, (pulsar_port, http_port) in ports.items():
            home = folder / name
            home.mkdir()
            (home / "clusters.toml").write_text(text)
            self.brokers[name] = BrokerProcess(home / "clusters.toml", f"one/{name}", pulsar_port, http_port)

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    @property
    def url(self) -> str:
        """All of them, as clients are told."""
        return "pulsar://" + ",".join(f"127.0.0.1:{one.pulsar_port}" for one in self.brokers.values())

    def wait_in_line(self, name: str) -> None:
        """A broker that starts while another one serves."""
        self[name].launch()
        eventually(lambda: "waits to take over" in self[name].log.read_text(), what=f"{name} waits")


@pytest.fixture
def brokers(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    made = Brokers(tmp_path, cluster, f"/magnetar/{request.node.name}")
    yield made
    for broker in made.brokers.values():
        if broker.process is not None:
            broker.process.send_signal(signal.SIGCONT)
        broker.kill()


def numbers(url: str) -> list[int]:
    """Everything that is stored."""
    client = connect(url)
    try:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(20_000).data()))
        return found
    finally:
        client.close()


class Publisher:
    """Sends numbers one after the other, until it is stopped; counts those that are confirmed."""

    def __init__(self, url: str) -> None:
        self.confirmed: list[int] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._client = connect(url)
        self._producer = self._client.create_producer(
            TOPIC, producer_name="p", batching_enabled=False, send_timeout_millis=0, block_if_queue_full=True
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.send(b"%d" % number)
            except pulsar.PulsarException as error:
                self.failed.append(str(error))
                return
            self.confirmed.append(number)
            number += 1

    def after(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        eventually(lambda: self.failed or len(self.confirmed) >= wanted, within_s=60, what=f"{count} more messages")
        assert not self.failed

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()


def test_a_folder_can_be_deleted_between_two_starts(brokers: Brokers) -> None:
    brokers["a"].start()
    client = connect(brokers["a"].url)
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(20_000))
    client.close()
    assert brokers["a"].stop() == 0
    shutil.rmtree(brokers["a"].config.parent / "data")
    brokers["a"].start()
    assert numbers(brokers["a"].url) == list(range(10))
    client = connect(brokers["a"].url)
    consumer = client.subscribe(TOPIC, "s")
    assert [int(consumer.receive(20_000).data()) for _ in range(6)] == list(range(4, 10))
    client.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_another_broker_takes_over_under_load(brokers: Brokers, how: str) -> None:
    """Every confirmed number is stored once, in order; a consumer goes on where it was."""
    brokers["a"].start()
    brokers.wait_in_line("b")
    publisher = Publisher(brokers.url)
    publisher.after(100)
    client = connect(brokers.url)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(50):
        message = consumer.receive(20_000)
        assert int(message.data()) == number
        consumer.acknowledge(message)

    def acknowledged() -> str:
        cursors = brokers["a"].rest("GET", "/admin/v2/persistent/public/default/moved/internalStats")["cursors"]
        return str(cursors["s"]["markDeletePosition"])

    eventually(lambda: acknowledged().endswith(":49"), what="fifty acknowledgements have come")
    if how == "killed":
        brokers["a"].kill()
    else:
        assert brokers["a"].stop() == 0
    publisher.after(100)
    brokers["b"].await_ready()
    publisher.close()
    stored = numbers(brokers["b"].url)
    assert stored == list(range(len(stored)))
    assert len(stored) >= len(publisher.confirmed)
    missing = set(range(50, len(stored)))
    while missing:
        # What was sent before and not acknowledged comes again.
        number = int(consumer.receive(20_000).data())
        missing.discard(number)
        # A broker that is killed may forget the acknowledgements of its last moment.
        assert number >= 50 or how == "killed"
    client.close()


def test_a_broker_that_was_paused_confirms_nothing_and_stops(brokers: Brokers) -> None:
    brokers["a"].start()
    brokers.wait_in_line("b")
    client = connect(brokers["a"].url)
    client.create_producer(TOPIC, batching_enabled=False).send(b"0")
    paused = brokers["a"].process
    assert paused is not None
    paused.send_signal(signal.SIGSTOP)
    brokers["b"].await_ready()
    latter = connect(brokers["b"].url)
    latter.create_producer(TOPIC, batching_enabled=False).send(b"1")
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(20) == 1
    assert "the broker stops" in brokers["a"].log.read_text()
    latter.close()
    assert numbers(brokers["b"].url) == [0, 1]
    client.close()


def test_a_broker_that_waits_can_be_stopped(brokers: Brokers) -> None:
    brokers["a"].start()
    brokers.wait_in_line("b")
    assert brokers["b"].stop() == 0
    assert "Traceback" not in brokers["b"].log.read_text()


def test_what_is_missing_is_one_line(brokers: Brokers, cluster: BookKeeperCluster) -> None:
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    eventually(lambda: sum(map(cluster.registered, cluster.bookies)) == 2, within_s=60, what="two bookies are gone")
    broker = brokers["a"]
    broker.launch()
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    lines = broker.log.read_text().splitlines()
    assert "2 bookies" in lines[-1], lines
    assert os.fspath(broker.config.parent) not in lines[-1]
