"""Brokers of one cluster whose log is on real bookies: one serves, another takes over. Official clients follow."""

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import time

import pytest

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Receiver, Stream, connect, numbers, stored
from tests.support.brokers import BrokerProcess, eventually
from tests.support.raw_client import metadata, open_producer, raw, send

OTHER = "persistent://public/default/other"

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


def test_a_broker_that_is_stopped_for_half_a_minute(brokers: Brokers) -> None:
    """At a random moment under load. When it continues it answers nothing that came meanwhile, and ends."""
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    brokers.start()
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(raw(brokers["a"]))
        open_producer(asked, OTHER, "p")
        answer = send(asked, 0, build(metadata(), b"before"))
        assert answer is not None
        assert answer.type == pb.SEND_RECEIPT
        former = Stream(brokers.url, "former")
        stack.callback(former.close)
        consumed = Receiver(brokers.url)
        stack.callback(consumed.close)
        former.after(random.Random(seed).randrange(1, 2_000))
        paused = brokers["a"].process
        assert paused is not None
        paused.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 30
        stack.callback(paused.send_signal, signal.SIGCONT)
        # It waits in the socket of the stopped broker.
        asked.send(
            pb.BaseCommand(type=pb.SEND, send={"producer_id": 1, "sequence_id": 1}), build(metadata(), b"meanwhile")
        )
        brokers["b"].await_ready()
        latter = Stream(brokers["b"].url, "latter", pause_s=0.005)  # half a minute is long: all of it is read again
        stack.callback(latter.close)
        latter.after(200)
        written = len(brokers["a"].log.read_text())
        time.sleep(max(0.0, until - time.monotonic()))
        paused.send_signal(signal.SIGCONT)
        assert asked.answer() is None, "a broker that was stopped answers"
        assert paused.wait(20) == 1
        last = brokers["a"].log.read_text()[written:]
        assert "Traceback" not in last
        (line,) = [line for line in last.splitlines() if " CRITICAL " in line]
        assert re.search(r"the broker stops: ZooKeeper has not confirmed for 2\.7 s that \S+ is its own$", line), line
        # Its clients continue with the other broker.
        former.after(200)
        sent = former.finish() + latter.finish()
        found = stored(brokers["b"].url, TOPIC)
        for one in (former, latter):
            assert [text for text in found if text.startswith(one.name)] == [
                one.text(number) for number in range(one.sent)
            ]
        assert len(found) == len(sent)
        eventually(
            lambda: consumed.failed or consumed.places.keys() >= set(sent), within_s=60, what="everything is consumed"
        )
        assert not consumed.failed
        assert consumed.places.keys() == set(sent)
        assert {text: len(places) for text, places in consumed.places.items() if len(places) > 1} == {}, "stored twice"
        assert stored(brokers["b"].url, OTHER) == ["before"]


def test_a_takeover_that_is_killed(brokers: Brokers) -> None:
    """Each broker dies once while it recovers the log of the other one; then one of them serves, and nothing is lost."""
    brokers.start()
    stream = Stream(brokers.url, "p")
    try:
        stream.after(1_000)
        brokers["a"].kill()
        for dies, waits in ("ba", "ab"):
            _kill_while_it_recovers(brokers[dies])
            brokers[waits].log.unlink()
            brokers[waits].launch()
        # Each waits until ZooKeeper has ended the session of the broker that died.
        brokers["b"].await_ready()
        stream.after(200)
        sent = stream.finish()
        assert stored(brokers["b"].url, TOPIC) == sent
        assert "Traceback" not in brokers["b"].log.read_text()
    finally:
        stream.close()


def _kill_while_it_recovers(broker: BrokerProcess) -> None:
    """SIGKILL when its log says that it takes over; it has not said that it is ready."""
    eventually(lambda: "takes over: it recovers the log" in broker.log.read_text(), within_s=60, every_s=0.001)
    process = broker.process
    assert process is not None
    assert process.stdout is not None
    process.kill()
    assert b" ready " not in process.stdout.read(), "it was ready already"
    broker.kill()


def test_a_broker_that_waits_can_be_stopped(brokers: Brokers) -> None:
    brokers.start()
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
