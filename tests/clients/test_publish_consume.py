"""The official client publishes and consumes: producers, subscription types, acknowledgement, readers, seeks."""

import queue
import re
import time
from collections import defaultdict
from collections.abc import Callable

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, eventually
from tests.support.receiving import WAIT_MS, drain, nothing_more


def test_one_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = producer.send(b"hello", properties={"a": "1"}, partition_key="k", event_timestamp=1234)
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"hello"
    assert message.properties() == {"a": "1"}
    assert message.partition_key() == "k"
    assert message.event_timestamp() == 1234
    assert message.message_id() == sent
    assert message.topic_name() == topic
    consumer.acknowledge(message)
    assert nothing_more(consumer)


def test_short_topic_name_and_generated_producer_names(client: pulsar.Client) -> None:
    one = client.create_producer("short-name")
    two = client.create_producer("persistent://public/default/short-name")
    assert one.producer_name() != two.producer_name()
    assert one.topic() == two.topic() == "persistent://public/default/short-name"


def test_lookup_by_plain_http(broker: BrokerProcess, topic: str) -> None:
    # A service URL of `http://`: topics are looked up at the admin interface, messages go to the Pulsar port all the same.
    parts = f"{topic}-parts"
    broker.rest("PUT", f"/admin/v2/{parts.replace('://', '/')}/partitions", 3)
    client = pulsar.Client(broker.web, operation_timeout_seconds=20)
    try:
        for name in (topic, parts):
            consumer = client.subscribe(name, "s")
            producer = client.create_producer(name)
            for number in range(6):
                producer.send(b"%d" % number)
            assert sorted(message.data() for message in drain(consumer, 6)) == [b"%d" % number for number in range(6)]
        assert len(client.get_topic_partitions(parts)) == 3
        everything = client.subscribe(re.compile(f"{topic}.*"), "all", initial_position=pulsar.InitialPosition.Earliest)
        assert len(drain(everything, 12)) == 12
    finally:
        client.close()
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
)
@pytest.mark.parametrize("batching", [False, True])
def test_batches_and_compression(
    client: pulsar.Client,
    topic: str,
    compression: pulsar.CompressionType,
    batching: bool,
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_publish_delay_ms=5,
    )
    payloads = [bytes([n % 251]) * (n * 7 + 1) for n in range(200)]
    for payload in payloads:
        producer.send_async(payload, lambda _result, _id: None)
    producer.flush()
    assert [message.data() for message in drain(consumer, 200)] == payloads
    assert nothing_more(consumer)


def test_chunked_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = bytes(range(256)) * (12 * 4096)
    producer.send(payload)
    producer.send(b"small")
    message = consumer.receive(WAIT_MS)
    assert message.data() == payload
    consumer.acknowledge(message)
    assert consumer.receive(WAIT_MS).data() == b"small"


def test_message_too_big_is_refused_by_the_client(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    producer.send(b"x" * (5 * 1024 * 1024 - 1024))


def test_initial_position(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for n in range(5):
        producer.send(str(n).encode())
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=pulsar.InitialPosition.Earliest)
    assert [m.data() for m in drain(earliest, 5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert nothing_more(latest)
    producer.send(b"5")
    assert latest.receive(WAIT_MS).data() == b"5"


def test_exclusive_refuses_a_second_consumer(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)


def test_failover_goes_to_the_next_consumer(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name="a")
    second = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    for n in range(10):
        producer.send(str(n).encode())
    got = [m.data() for m in drain(first, 5)]
    assert nothing_more(second)
    first.close()
    got += [m.data() for m in drain(second, 5)]
    assert got == [str(n).encode() for n in range(10)]


def test_shared_spreads_and_redelivers_what_a_closed_consumer_held(client: pulsar.Client, topic: str) -> None:
    shared = pulsar.ConsumerType.Shared
    first = client.subscribe(topic, "s", consumer_type=shared, receiver_queue_size=10)
    second = client.subscribe(topic, "s", consumer_type=shared, receiver_queue_size=10)
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(20):
        producer.send(str(n).encode())
    held = [first.receive(WAIT_MS).data() for _ in range(5)]
    own = [m.data() for m in drain(second, 5)]
    assert not set(held) & set(own)
    first.close()
    rest = [m.data() for m in drain(second, 15)]
    assert sorted(own + rest, key=int) == [str(n).encode() for n in range(20)]


def test_key_shared_keeps_order_per_key(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe(topic, "s", consumer_type=kind) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(300):
        producer.send_async(str(n).encode(), lambda _r, _i: None, partition_key=f"key-{n % 20}")
    producer.flush()
    by_key: dict[str, list[int]] = defaultdict(list)
    owner: dict[str, set[int]] = defaultdict(set)
    total = 0
    deadline = time.monotonic() + 20
    while total < 300 and time.monotonic() < deadline:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            by_key[message.partition_key()].append(int(message.data()))
            owner[message.partition_key()].add(index)
            total += 1
    assert total == 300
    assert all(values == sorted(values) for values in by_key.values())
    assert all(len(owners) == 1 for owners in owner.values())
    assert len(set().union(*owner.values())) > 1, "one consumer got every key"


def test_cumulative_acknowledgement(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(str(n).encode())
    messages = [consumer.receive(WAIT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert [m.data() for m in drain(again, 3)] == [b"7", b"8", b"9"]
    assert nothing_more(again)


def test_individual_acknowledgement_leaves_holes(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(str(n).encode())
    for n, message in enumerate([consumer.receive(WAIT_MS) for _ in range(10)]):
        if n % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [m.data() for m in drain(again, 5)] == [b"0", b"2", b"4", b"6", b"8"]
    assert nothing_more(again)


def test_nothing_is_left_after_acknowledging_all(client: pulsar.Client, topic: str, broker: BrokerProcess) -> None:
    # Receipts of acknowledgements are in test_ack_receipts: this client cannot ask for them.
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"a")
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    assert broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 1
    consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.close()
    eventually(lambda: broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 0)


def test_part_of_a_batch_acknowledged(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for n in range(10):
        producer.send_async(str(n).encode(), lambda _r, _i: None)
    producer.flush()
    for n, message in enumerate([consumer.receive(WAIT_MS) for _ in range(10)]):
        if n < 6:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        batch_index_ack_enabled=True,
    )
    assert [m.data() for m in drain(again, 4)] == [b"6", b"7", b"8", b"9"]
    assert nothing_more(again)


def test_negative_acknowledgement_and_redelivery_count(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
    )
    client.create_producer(topic, batching_enabled=False).send(b"again")
    message = consumer.receive(WAIT_MS)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.redelivery_count()) == (b"again", 1)
    consumer.acknowledge(message)


def test_redeliver_unacknowledged(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(5):
        producer.send(str(n).encode())
    for _ in range(2):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    for _ in range(3):
        consumer.receive(WAIT_MS)
    consumer.redeliver_unacknowledged_messages()
    assert [m.data() for m in drain(consumer, 3)] == [b"2", b"3", b"4"]


def test_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, topic + "-dlq", "init")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=policy,
    )
    dead = client.subscribe(topic + "-dlq", "watch")
    client.create_producer(topic, batching_enabled=False).send(b"poison")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    assert dead.receive(WAIT_MS).data() == b"poison"


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize(("inclusive", "follows"), [(False, b"4"), (True, b"3")])
def test_seek_to_an_id_inclusive_or_not(
    client: pulsar.Client, topic: str, inclusive: bool, follows: bytes, batching: bool
) -> None:
    # SEEK itself says nothing of it. The broker goes to the entry of the id and sends it again, whole; a client that is not
    # inclusive passes over what is at the id (and, in a batch, before it). So the id's own entry has to come.
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=60_000)
    for n in range(10):
        producer.send_async(str(n).encode(), lambda _r, _i: None)
    producer.flush()
    rest = [str(n).encode() for n in range(int(follows), 10)]
    consumer = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, start_message_id_inclusive=inclusive
    )
    ids = [m.message_id() for m in drain(consumer, 10)]
    assert len({(i.ledger_id(), i.entry_id()) for i in ids}) == (1 if batching else 10)
    consumer.seek(ids[3])
    assert [m.data() for m in drain(consumer, len(rest))] == rest
    assert nothing_more(consumer)
    begun = client.create_reader(topic, ids[3], start_message_id_inclusive=inclusive)
    assert [begun.read_next(WAIT_MS).data() for _ in rest] == rest
    moved = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=inclusive)
    moved.seek(ids[3])
    assert [moved.read_next(WAIT_MS).data() for _ in rest] == rest
    assert not moved.has_message_available()


def test_seek_by_id_and_time(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(5)]
    time.sleep(0.02)  # publish times are milliseconds: the next message must have a later one
    middle_ms = int(time.time() * 1000)
    time.sleep(0.02)
    for n in range(5, 10):
        producer.send(str(n).encode())
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [m.data() for m in drain(consumer, 10)][-1] == b"9"
    consumer.seek(ids[3])
    assert consumer.receive(WAIT_MS).data() == b"4"  # the first after it: this consumer did not ask for inclusive
    consumer.seek(middle_ms)
    assert [m.data() for m in drain(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == b"0"
    consumer.seek(pulsar.MessageId.latest)
    assert nothing_more(consumer)


def test_reader(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(5)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = []
    while reader.has_message_available():
        seen.append(reader.read_next(WAIT_MS).data())
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    inside = client.create_reader(topic, ids[2])
    assert inside.read_next(WAIT_MS).data() == b"3"
    at = client.create_reader(topic, ids[2], start_message_id_inclusive=True)
    assert at.read_next(WAIT_MS).data() == b"2"
    at.seek(ids[0])
    assert at.read_next(WAIT_MS).data() == b"0"  # inclusive holds for seeks, too
    tail = client.create_reader(topic, pulsar.MessageId.latest)
    assert not tail.has_message_available()
    producer.send(b"5")
    assert tail.has_message_available()
    assert tail.read_next(WAIT_MS).data() == b"5"


def test_reader_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=300)
    for n in range(10):
        producer.send_async(str(n).encode(), lambda _r, _i: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [reader.read_next(WAIT_MS).message_id() for _ in range(10)]
    other = client.create_reader(topic, ids[4])
    assert other.read_next(WAIT_MS).data() == b"5"


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"a")
    last = producer.send(b"b")
    found = consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())


def test_unsubscribe_forgets_the_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"a")
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Latest)
    assert nothing_more(again)


def test_partitioned_topic(client: pulsar.Client, topic: str, broker: BrokerProcess) -> None:
    broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for n in range(30):
        producer.send(str(n).encode())
    messages = drain(consumer, 30)
    assert sorted(int(m.data()) for m in messages) == list(range(30))
    assert {m.message_id().partition() for m in messages} == {0, 1, 2}
    assert nothing_more(consumer)


def test_pattern_subscription(client: pulsar.Client, topic: str) -> None:
    import re

    names = [f"{topic}-p{n}" for n in range(3)]
    producers = [client.create_producer(name) for name in names]
    consumer = client.subscribe(re.compile(re.escape(topic) + "-p[01]"), "s")
    for producer in producers:
        producer.send(producer.topic().encode())
    assert {m.data().decode() for m in drain(consumer, 2)} == set(names[:2])
    assert nothing_more(consumer)


def test_several_topics_in_one_subscription(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    consumer = client.subscribe(names, "s")
    for name in names:
        client.create_producer(name).send(name.encode())
    assert {m.data().decode() for m in drain(consumer, 3)} == set(names)


def test_producer_name_is_used_once(client: pulsar.Client, topic: str, broker: BrokerProcess) -> None:
    holder = client.create_producer(topic, producer_name="me")
    other = connect(broker)
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer(topic, producer_name="me")
    other.close()
    holder.close()


def test_exclusive_producer_is_alone(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_zero_receiver_queue(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        receiver_queue_size=0,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(str(n).encode())
    for n in range(3):
        message = consumer.receive()
        assert message.data() == str(n).encode()
        consumer.acknowledge(message)


def test_wrong_names_are_refused_quickly(client: pulsar.Client) -> None:
    started = time.monotonic()
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://no-such-tenant/nothing/here")
    assert time.monotonic() - started < 15, "the client went on trying: the error was not final"


def test_delayed_delivery(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    started = time.monotonic()
    producer.send(b"later", deliver_after=__import__("datetime").timedelta(milliseconds=700))
    producer.send(b"now")
    assert consumer.receive(WAIT_MS).data() == b"now"
    assert consumer.receive(WAIT_MS).data() == b"later"
    assert time.monotonic() - started >= 0.65


def test_many_messages_through_a_small_window(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        receiver_queue_size=50,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(topic, block_if_queue_full=True)
    for n in range(20_000):
        producer.send_async(b"%d" % n, lambda _r, _i: None)
    producer.flush()
    assert [int(m.data()) for m in drain(consumer, 20_000)] == list(range(20_000))


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_large_messages_in_chunks_reach_one_of_several_consumers(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    """Chunks that are shared out between consumers are a message to none of them."""
    received: queue.Queue[tuple[int, bytes]] = queue.Queue()

    def listener(number: int) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
        def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            consumer.acknowledge(message)
            received.put((number, message.data()))

        return listen

    for number in range(3):
        client.subscribe(topic, "s", consumer_type=kind, message_listener=listener(number))
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    sent = [bytes([65 + number]) * 6_000_000 for number in range(6)]
    for payload in sent:
        producer.send(payload)
    got = [received.get(timeout=WAIT_MS / 1000) for _ in sent]
    assert sorted(payload for _, payload in got) == sent
    assert len({number for number, _ in got}) > 1, "messages are shared out all the same"


def test_messages_that_come_one_by_one_are_shared_out_evenly(client: pulsar.Client, topic: str) -> None:
    received: queue.Queue[int] = queue.Queue()
    for number in range(2):

        def listen(consumer: pulsar.Consumer, message: pulsar.Message, number: int = number) -> None:
            consumer.acknowledge(message)
            received.put(number)

        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, message_listener=listen)
    producer = client.create_producer(topic)
    for _ in range(20):
        producer.send(b"x")
    got = [received.get(timeout=WAIT_MS / 1000) for _ in range(20)]
    assert 5 <= got.count(0) <= 15
