"""Small forms of the loads of `python -m bench.load`: others are served, nothing starves, memory is bounded; a short soak.

No figure is judged here but counts and memory: how fast it is depends on the machine, and is the benchmark's matter.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from bench.crowd import Crowd, in_turns, until

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World
from tests.support.fuzzing import descriptors, resident_bytes
from tests.support.soaking.rounds import CONFIG, Soak, limit_acknowledged

MIB = 1 << 20


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that lets a consumer hold 200 messages, with a small cache."""
    extra = "[broker]\nunacked_messages_per_consumer_max = 200\ncache_bytes_max = 8_388_608\n"
    world = World(tmp_path_factory.mktemp("loaded"), ["solo"], extra).start()
    yield world["solo"]
    world.close()


def pid(broker: BrokerProcess) -> int:
    """Of the running broker."""
    assert broker.process is not None
    return broker.process.pid


def test_who_holds_all_that_it_may_gets_again_what_it_gives_back(loaded: BrokerProcess) -> None:
    """200 messages may be unacknowledged: the others wait until half of them are, but not those that come back."""
    client = connect(loaded)
    kinds = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)
    for kind in kinds:
        topic = f"given-back-{kind.name}"
        consumer = client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=100)
        producer = client.create_producer(topic)
        for number in range(250):
            producer.send_async(str(number).encode(), None, partition_key=str(number % 7))
        producer.flush()
        held = [consumer.receive(10_000) for _ in range(200)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
        consumer.negative_acknowledge(held[5])
        assert consumer.receive(10_000).data() == held[5].data()
        for message in held[:150]:
            consumer.acknowledge(message)
        assert consumer.receive(10_000).data() == b"200"
    client.close()


def test_many_topics_and_connections_cost_little_and_are_there_after_a_kill(own_broker: BrokerProcess) -> None:
    async def run() -> None:
        before, files = resident_bytes(pid(own_broker)), descriptors(pid(own_broker))
        clients = [await Crowd.connect(own_broker.pulsar_port) for _ in range(40)]
        names = [(client, f"many-{number}-{each}", each) for number, client in enumerate(clients) for each in range(10)]
        await in_turns([lambda client=c, name=n, each=e: client.produce(name, each) for c, n, e in names])
        await in_turns([lambda client=c, name=n, each=e: client.consume(name, "s", each) for c, n, e in names[::2]])
        for client, _name, each in names:
            client.send(each, 0, b"one")
        await until(lambda: sum(client.confirmed for client in clients) == 400)
        await until(lambda: sum(sum(client.received.values()) for client in clients) == 200)
        assert resident_bytes(pid(own_broker)) - before < 400 * 40_000 + 16 * MIB, "over 40 KB a topic"
        for client in clients:
            client.close()
        await until(lambda: descriptors(pid(own_broker)) <= files)

    asyncio.run(run())
    own_broker.kill()
    own_broker.start()
    assert len(own_broker.rest("GET", "/admin/v2/persistent/public/default")) == 400
    client = connect(own_broker)
    reader = client.create_reader("many-39-9", pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"one"
    client.close()


def test_a_backlog_is_caught_up_while_others_are_served(loaded: BrokerProcess) -> None:
    official = connect(loaded)
    consumer = official.subscribe("others", "s")
    producer = official.create_producer("others")
    big = official.create_producer("behind", batching_enabled=False, block_if_queue_full=True)
    official.subscribe("behind", "late").close()
    total = 40_000
    for number in range(total):
        # Together 80 MB: more than the memory that is granted below, and each an entry of its own to read and send.
        big.send_async(b"%02000d" % number, lambda _result, _id: None)
    big.flush()
    before = resident_bytes(pid(loaded))
    caught_up = threading.Event()
    seen: list[int] = []
    late: list[Crowd] = []

    def others() -> None:
        """Round trips, one after the other; `seen` is how far the catch-up was at the end of each."""
        served = 0
        while not caught_up.is_set():
            producer.send(b"%d" % served)
            message = consumer.receive(60_000)
            assert message.data() == b"%d" % served
            consumer.acknowledge(message)
            served += 1
            seen.append(late[0].received.get(1, 0))

    async def run() -> None:
        late.append(await Crowd.connect(loaded.pulsar_port))
        beside = asyncio.create_task(asyncio.to_thread(others))
        try:
            # Round trips are on their way before the catch-up begins.
            await until(lambda: len(seen) > 3 or beside.done())
            await late[0].consume("behind", "late", 1, permits=5_000, kind=0)
            await until(lambda: late[0].received.get(1, 0) >= total or beside.done())
        finally:
            caught_up.set()
            await beside
        late[0].close()

    asyncio.run(run())
    assert late[0].received[1] == total
    # Counted by the progress of the catch-up, not by time: a slow machine slows down both. Had the others to wait for it,
    # one round trip at most would end in between.
    between = {progress for progress in seen if 0 < progress < total}
    assert len(between) >= 20, sorted(between)
    assert resident_bytes(pid(loaded)) - before < 48 * MIB, "the backlog was taken into memory"
    official.close()


def test_consumers_that_acknowledge_nothing_stop_at_their_limit_and_stop_nobody(loaded: BrokerProcess) -> None:
    async def run() -> None:
        fast = await Crowd.connect(loaded.pulsar_port)
        await fast.produce("slow", 1)
        await fast.consume("slow", "fast", 1)
        idle = []
        for number in range(8):
            client = await Crowd.connect(loaded.pulsar_port)
            client.acknowledges = False
            await client.consume("slow", f"idle-{number % 4}", 1, permits=(1 << 32) - 1)
            idle.append(client)
        for number in range(2_000):
            fast.send(1, number, bytes(500))
        await until(lambda: fast.received.get(1, 0) == 2_000)
        await until(lambda: all(client.received.get(1, 0) >= 200 for client in idle))
        stats = await asyncio.to_thread(loaded.rest, "GET", "/admin/v2/persistent/public/default/slow/stats")
        for number in range(4):
            each = stats["subscriptions"][f"idle-{number}"]
            assert [one["blockedConsumerOnUnackedMsgs"] for one in each["consumers"]] == [True, True]
            assert each["unackedMessages"] <= 2 * 220
            assert each["msgBacklog"] == 2_000
        assert all(client.received[1] <= 220 for client in idle)
        for client in (*idle, fast):
            client.close()

    asyncio.run(run())


def test_messages_of_1_mb_and_small_ones_side_by_side(loaded: BrokerProcess) -> None:
    client = connect(loaded)
    large, small = client.create_producer("large", batching_enabled=False), client.create_producer("small")
    consumer = client.subscribe("large", "s", receiver_queue_size=5, initial_position=pulsar.InitialPosition.Earliest)
    beside = client.subscribe("small", "s")
    before = resident_bytes(pid(loaded))
    done = threading.Event()

    def publish() -> None:
        for number in range(60):
            large.send(b"%d" % number + bytes(1_000_000))
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    got = 0
    while got < 60:
        small.send(b"x")
        beside.acknowledge(beside.receive(60_000))
        message = consumer.receive(60_000)
        assert message.data().startswith(b"%d" % got)
        consumer.acknowledge(message)
        got += 1
    thread.join()
    assert done.is_set()
    assert resident_bytes(pid(loaded)) - before < 64 * MIB
    client.close()


def test_the_ledger_of_a_short_soak_adds_up(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], CONFIG).start()
    try:
        soak = Soak(world["solo"], tmp_path / "data", seed=7, burst_max=15)
        counted = soak.round(3, kills=1, topics=1)
        assert counted["published"] > 0
        assert counted["delivered"] >= 4 * counted["published"]
        assert counted["acknowledged"] == counted["delivered"]
        assert counted["redelivered"] > 0
        assert soak.disk_bytes() <= limit_acknowledged(0, 0)
    finally:
        world.close()
