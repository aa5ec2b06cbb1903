"""Brokers of one cluster whose log is on real bookies: one serves, another takes over. Official clients follow."""

import os
import shutil
import signal

import pytest

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, connect, numbers
from tests.support.brokers import eventually

pytestmark = pytest.mark.timeout(300)


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
