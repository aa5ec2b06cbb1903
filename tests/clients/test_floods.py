"""Clients that take too much: they read nothing, ask without end, come and go by thousands, break every rule of the protocol.

Everybody else is served as before, and afterwards the broker holds what it held.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest

from magnetar.broker.session.session import ANSWERS_BYTES_MAX
from magnetar.runtime.network.server import RUN_FRAMES_MAX
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.fuzzing import HERE, clean, descriptors, fuzz, resident_bytes, secured
from tests.support.raw_client import metadata, open_producer, raw, send

MIB = 1 << 20


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that looks after its connections every second."""
    world = World(tmp_path_factory.mktemp("impatient"), ["solo"], "[broker]\nkeep_alive_ms = 1000\n").start()
    yield world["solo"]
    world.close()


def pid(broker: BrokerProcess) -> int:
    """Of the running broker."""
    assert broker.process is not None
    return broker.process.pid


def send_until_dropped(link: socket.socket, data: bytes, bytes_max: int) -> int:
    """Send whenever there is room, until the connection is gone, or too much was taken; the bytes sent."""
    link.settimeout(60)  # a deadline: whoever is not read is dropped after some seconds
    sent = 0
    with suppress(ConnectionError):
        while sent < bytes_max:
            sent += link.send(data)
    return sent


def test_who_reads_nothing_is_heard_no_more_and_dropped(impatient: BrokerProcess) -> None:
    guard = connect(impatient)
    producer = guard.create_producer("beside-the-deaf")
    producer.send(b"before")
    files, memory = descriptors(pid(impatient)), resident_bytes(pid(impatient))
    lookup = pb.CommandLookupTopic(topic="persistent://public/default/" + "x" * 500, request_id=1)
    requests = encode(pb.BaseCommand(type=23, lookupTopic=lookup)) * 100
    with raw(impatient) as deaf:
        # The buffer stays as it is: Linux (6.17 on) drops what overruns a tiny one, confirmations of what was sent with it.
        assert deaf.handshake() is not None
        # It asks on and on: one that stopped asking as well would be dropped for its silence instead.
        with ThreadPoolExecutor() as beside:
            asking = beside.submit(send_until_dropped, deaf.socket, requests, 400 * MIB)
            while not asking.done():
                producer.send(b"meanwhile")
                assert resident_bytes(pid(impatient)) - memory < 64 * MIB
        assert asking.result() < 400 * MIB, "its requests were read on and on"
        eventually(lambda: descriptors(pid(impatient)) <= files, what="the one that reads nothing is dropped")
    assert "it takes nothing of" in impatient.log.read_text()
    producer.send(b"after")
    guard.close()


def test_a_consumer_that_reads_nothing_holds_up_nobody(impatient: BrokerProcess, topic: str) -> None:
    guard = connect(impatient)
    consumer = guard.subscribe(topic, "beside", initial_position=pulsar.InitialPosition.Earliest)
    producer = guard.create_producer(topic)
    with raw(impatient) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        assert deaf.handshake() is not None
        subscribe = pb.CommandSubscribe(topic=topic, subscription="deaf", subType=1, consumer_id=1, request_id=1)
        deaf.send(pb.BaseCommand(type=4, subscribe=subscribe))
        assert deaf.answer() is not None
        for _ in range(3):  # more than permits can be
            deaf.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=(1 << 32) - 1)))
        memory = resident_bytes(pid(impatient))
        for number in range(40):
            producer.send(b"%d" % number + b"x" * MIB)
            message = consumer.receive(60_000)
            assert message.data().startswith(b"%d" % number)
            consumer.acknowledge(message)
        # One write buffer of 4 MiB, and the cache of recent entries, which is there for everybody.
        assert resident_bytes(pid(impatient)) - memory < 150 * MIB
        stats = impatient.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
        assert stats["subscriptions"]["deaf"]["msgBacklog"] == 40
        eventually(
            lambda: (
                not impatient.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]["deaf"][
                    "consumers"
                ]
            )
        )
    guard.close()


def test_requests_with_endless_answers_wait_for_the_reader_or_end_the_connection(own_broker: BrokerProcess) -> None:
    ask = pb.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default", mode=0)
    asked = encode(pb.BaseCommand(type=32, getTopicsOfNamespace=ask))
    topics = ANSWERS_BYTES_MAX // RUN_FRAMES_MAX // 400  # what one event asks for is over the limit

    def open_topics(first: int, end: int) -> None:
        for number in range(first, end):
            name = f"persistent://public/default/{'n' * 400}{number}"
            client.send(
                pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=name, producer_id=number, request_id=1))
            )
            assert client.answer() is not None

    with raw(own_broker) as client:
        assert client.handshake() is not None
        open_topics(0, 200)
        memory = resident_bytes(pid(own_broker))
        client.socket.sendall(asked * 2_000)
        for _ in range(2_000):
            assert client.answer() is not None
        assert resident_bytes(pid(own_broker)) - memory < 100 * MIB, "what is not yet read is not yet answered"
        open_topics(200, topics)
        client.socket.sendall(asked * 2_000)
        while client.answer() is not None:
            pass
    assert "at once, over" in own_broker.log.read_text()
    assert resident_bytes(pid(own_broker)) - memory < 150 * MIB


def come_and_go(broker: BrokerProcess, producer: pulsar.Producer, count: int) -> None:
    """Connections that say nonsense, CONNECT, or nothing, and are dropped."""
    for number in range(count):
        with socket.create_connection(("127.0.0.1", broker.pulsar_port), timeout=20) as link:
            if number % 3 == 0:
                link.sendall(b"\xff" * 20)
            elif number % 3 == 1:
                link.sendall(encode(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="x"))))
        if number % 300 == 0:
            producer.send(b"meanwhile")


def test_thousands_of_connections_that_open_and_drop_leave_nothing(own_broker: BrokerProcess) -> None:
    client = connect(own_broker)
    producer = client.create_producer("beside-the-crowd")
    producer.send(b"before")
    files = descriptors(pid(own_broker))
    memory = []
    for _ in range(3):
        come_and_go(own_broker, producer, 1_500)
        eventually(lambda: descriptors(pid(own_broker)) <= files + 2, what="their sockets are closed")
        producer.send(b"after")
        memory.append(resident_bytes(pid(own_broker)))
    # The first round is for what is made once. A connection's buffer alone has 16 KiB, and its session about as much.
    assert memory[-1] - memory[0] < 2 * 1_500 * 4 * 1024, [used >> 10 for used in memory]
    client.close()


def test_a_flood_of_bad_messages_writes_few_lines(broker: BrokerProcess, topic: str) -> None:
    bad = b"\x0e\x01\x00\x00\x00\x00" + metadata().SerializeToString()
    before = broker.log.read_text().count("\n")
    with raw(broker) as client:
        open_producer(client, topic)
        for sequence in range(300):
            answer = send(client, sequence, bad)
            assert answer is not None
            assert answer.type == 8
    assert broker.log.read_text().count("\n") - before <= 110  # 50 per kind and 10 s, and a line for the rest


def test_every_command_spoiled_in_every_state(own_broker: BrokerProcess) -> None:
    fuzz(own_broker, 1, lambda number: number < 40)
    clean(own_broker)
    files, memory = descriptors(pid(own_broker)), resident_bytes(pid(own_broker))
    fuzz(own_broker, 1_000, lambda number: number < 260)
    clean(own_broker)
    eventually(lambda: descriptors(pid(own_broker)) <= files + 3, what="descriptors are closed")
    assert resident_bytes(pid(own_broker)) - memory < 64 * MIB
    for name in ("magnetar_topic_watchers", "magnetar_topic_patterns"):
        eventually(lambda name=name: own_broker.figure(name) == 0, what=f"nothing is left of {name}")


def test_requests_of_http_spoiled_in_every_way(own_broker: BrokerProcess) -> None:
    fuzz(own_broker, 1, lambda number: number < 60, http=True)
    files, memory = descriptors(pid(own_broker)), resident_bytes(pid(own_broker))
    fuzz(own_broker, 9_000, lambda number: number < 200, http=True)
    eventually(lambda: descriptors(pid(own_broker)) <= files + 3, what="descriptors are closed")
    assert resident_bytes(pid(own_broker)) - memory < 64 * MIB


def test_every_command_of_links_and_logins_spoiled_in_every_state(tmp_path: Path) -> None:
    world, login = secured(tmp_path)
    try:
        broker = world[HERE]
        fuzz(broker, 5_000, lambda number: number < 40, login=login)
        clean(broker)
        files, memory = descriptors(pid(broker)), resident_bytes(pid(broker))
        fuzz(broker, 6_000, lambda number: number < 260, login=login)
        clean(broker)
        eventually(lambda: descriptors(pid(broker)) <= files + 3, what="descriptors are closed")
        assert resident_bytes(pid(broker)) - memory < 64 * MIB
    finally:
        world.close()
