"""Compaction, by the official client: who reads compacted gets the newest message of each key, everybody else gets all."""

import time
import uuid
from pathlib import Path

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.compaction import compact, rows


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib])
def test_the_newest_of_each_key(
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    batching: bool,
    compression: pulsar.CompressionType,
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=20, compression_type=compression
    )
    sent = []
    for number in range(200):
        key = f"k{number * number % 17}"
        sent.append((key, b"%d" % number))
        producer.send_async(b"%d" % number, lambda _result, _id: None, partition_key=key)
        if number % 40 == 0:
            producer.send_async(b"free %d" % number, lambda _result, _id: None)
            sent.append(("", b"free %d" % number))
    producer.flush()
    assert rows(client, topic) == sent  # not compacted yet
    compact(broker, topic)
    newest = {key: (key, value) for key, value in sent if key}
    kept = [row for row in sent if not row[0] or newest[row[0]] == row]
    assert rows(client, topic) == kept
    assert rows(client, topic, compacted=False) == sent
    producer.send(b"later", partition_key="k0")
    assert rows(client, topic) == [*kept, ("k0", b"later")]
    compact(broker, topic)
    assert rows(client, topic) == [row for row in kept if row[0] != "k0"] + [("k0", b"later")]


def test_deletions_and_the_end(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"a", partition_key="stays")
    producer.send(b"b", partition_key="goes")
    producer.send(None, partition_key="goes")
    compact(broker, topic)
    # The last message of the log is one that nobody who reads compacted is given: such a reader is at the end before it.
    assert rows(client, topic) == [("stays", b"a")]
    producer.send(b"c", partition_key="goes")
    compact(broker, topic)
    assert rows(client, topic) == [("stays", b"a"), ("goes", b"c")]
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("stays", "goes")} == {"stays": b"a", "goes": b"c"}


def test_durable_subscriptions_seeks_and_types(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number, partition_key=f"k{number % 2}")
    compact(broker, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(60_000).data() for _ in range(2)] == [b"8", b"9"]
    consumer.seek(pulsar.MessageId.earliest)
    assert [consumer.receive(60_000).data() for _ in range(2)] == [b"8", b"9"]
    consumer.close()
    again = client.subscribe(topic, "s", is_read_compacted=True)
    messages = [again.receive(60_000) for _ in range(2)]
    assert [message.data() for message in messages] == [b"8", b"9"]
    again.acknowledge_cumulative(messages[-1])
    assert rows(client, topic, messages[0].message_id()) == [("k1", b"9")]


def test_after_a_restart_and_by_its_threshold(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nretention_interval_ms = 100\nledger_entries_max = 50\n").start()
    try:
        broker = world["solo"]
        topic = f"persistent://public/default/t-{uuid.uuid4().hex[:8]}"
        path = "/admin/v2/namespaces/public/default/compactionThreshold"
        broker.rest("PUT", path, 5_000)
        client = connect(broker)
        producer = client.create_producer(topic, batching_enabled=False)
        client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
        producer.send(b"old", partition_key="old")
        for number in range(300):
            producer.send(b"%d" % number, partition_key="hot")
        eventually(lambda: len(rows(client, topic)) < 100, within_s=20)
        broker.rest("PUT", path, 0)
        compact(broker, topic)
        expected = [("old", b"old"), ("hot", b"299")]
        assert rows(client, topic) == expected
        # Retention may delete everything that the subscription has acknowledged, but no row of the table.
        broker.rest("POST", f"/admin/v2/{topic.replace('://', '/')}/subscription/s/skip_all")
        stopped = time.monotonic()
        client.close()
        broker.kill()
        broker.start()
        client = connect(broker)
        assert rows(client, topic) == expected, f"after {time.monotonic() - stopped} s"
        client.close()
    finally:
        world.close()


def test_who_comes_back_is_told_of_deletions(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """A reader that is made at the last id it has, a durable subscription, and a reader whose topic is unloaded."""
    producer = client.create_producer(topic, batching_enabled=False)
    for key in "abcdef":
        producer.send(b"1", partition_key=key)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(6):
        last = reader.read_next(60_000)
        consumer.acknowledge_cumulative(consumer.receive(60_000))
    reader.close()
    consumer.close()
    producer.send(None, partition_key="b")
    producer.send(b"3", partition_key="a")
    compact(broker, topic)
    compact(broker, topic)
    told = [("b", b""), ("a", b"3")]
    assert rows(client, topic, last.message_id()) == told
    again = client.subscribe(topic, "s", is_read_compacted=True)
    messages = [again.receive(60_000) for _ in told]
    assert [(message.partition_key(), message.data()) for message in messages] == told
    expected = [(key, b"1") for key in "cdef"] + [("a", b"3")]
    assert rows(client, topic) == expected, "who begins is given no deletions"
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in "abcdef"} == {"b": None, **dict(expected)}
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(60_000).partition_key() == "c"
    producer.send(None, partition_key="c")
    compact(broker, topic)
    broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/unload")
    messages = [reader.read_next(60_000) for _ in range(5)]
    assert [(message.partition_key(), message.data()) for message in messages] == [*expected[1:], ("c", b"")]
