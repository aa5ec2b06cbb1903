"""Delayed delivery with the official client: never early, by time, through a SIGKILL, acknowledged, sought back.

Full size (a million): `python -m bench.load --only delayed`.
"""

import time
from datetime import timedelta

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, eventually

WAIT_MS = 60_000
SHARED_TYPES = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]


def now_ms() -> int:
    """Wall clock, which delivery times are in."""
    return int(time.time() * 1000)


def take(consumer: pulsar.Consumer, count: int) -> list[tuple[str, int]]:
    """So many messages, acknowledged, with when they came."""
    got = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        got.append((message.data().decode(), now_ms()))
        consumer.acknowledge(message)
    return got


def subscription(broker: BrokerProcess, topic: str, name: str = "s") -> dict[str, int]:
    """Its statistics."""
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    return dict(broker.rest("GET", path)["subscriptions"][name])


@pytest.mark.parametrize("kind", SHARED_TYPES, ids=["shared", "key-shared"])
def test_after_and_at_come_in_the_order_of_their_times(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False)
    start = now_ms()
    due = {"third": start + 1_500, "first": start + 700, "second": start + 1_100}
    for name, at_ms in due.items():
        producer.send(name.encode(), deliver_at=at_ms, partition_key=name)
    producer.send(b"fourth", deliver_after=timedelta(milliseconds=max(1, start + 1_900 - now_ms())), partition_key="x")
    producer.send(b"at once", partition_key="y")
    producer.send(b"long ago", deliver_at=1, partition_key="z")
    got = take(consumer, 6)
    assert {name for name, _ in got[:2]} == {"at once", "long ago"}
    assert [name for name, _ in got[2:]] == ["first", "second", "third", "fourth"]
    assert all(came >= due[name] for name, came in got if name in due), got


def test_a_kill_forgets_no_delayed_message_and_no_acknowledgement(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    due_ms = now_ms() + 9_000
    for number in range(500):
        late = number % 5 != 0
        producer.send_async(b"%d" % number, lambda _result, _id: None, deliver_at=due_ms + number if late else None)
    producer.flush()
    assert sorted(int(name) for name, _ in take(consumer, 100)) == list(range(0, 500, 5))
    eventually(lambda: subscription(own_broker, topic)["msgBacklog"] == 400)
    eventually(lambda: subscription(own_broker, topic)["msgDelayed"] == 400)
    own_broker.kill()
    own_broker.start()
    # Everything is read again. Acknowledgements of the last milliseconds may be forgotten, delayed messages may not.
    got: dict[int, int] = {}
    while len([number for number in got if number % 5]) < 400:
        message = consumer.receive(WAIT_MS)
        got.setdefault(int(message.data()), now_ms())
        consumer.acknowledge(message)
    assert all(came >= due_ms + number for number, came in got.items() if number % 5), "one came before its time"
    eventually(lambda: subscription(own_broker, topic)["msgBacklog"] == 0)
    client.close()


def test_a_seek_brings_the_delayed_ones_back_at_once_if_their_time_is_over(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    soon = now_ms() + 300
    producer.send(b"soon", deliver_at=soon)
    producer.send(b"next year", deliver_after=timedelta(days=365))
    assert [name for name, _ in take(consumer, 1)] == ["soon"]
    eventually(lambda: subscription(broker, topic)["msgBacklog"] == 1)
    consumer.seek(pulsar.MessageId.earliest)
    assert [name for name, _ in take(consumer, 1)] == ["soon"]
    eventually(lambda: subscription(broker, topic)["msgDelayed"] == 1)
    # Whoever gives up the backlog has nothing delayed either.
    broker.rest("POST", f"/admin/v2/{topic.replace('://', '/')}/subscription/s/skip_all")
    eventually(lambda: subscription(broker, topic)["msgDelayed"] == 0)
    assert subscription(broker, topic)["msgBacklog"] == 0


@pytest.mark.parametrize("kind", SHARED_TYPES, ids=["shared", "key-shared"])
def test_due_messages_come_from_all_over_a_log_that_is_on_disk_alone(
    own_broker: BrokerProcess, topic: str, kind: pulsar.ConsumerType
) -> None:
    client = connect(own_broker)
    client.subscribe(topic, "s", consumer_type=kind).close()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    total, due_ms = 3_000, now_ms() + 6_000
    late = {number: due_ms + number * 1_009 % total for number in range(total)}  # neighbours come due far apart
    for number, at_ms in late.items():
        producer.send_async(
            b"%d" % number, lambda _result, _id: None, deliver_at=at_ms, partition_key=f"k{number % 100}"
        )
    producer.flush()
    own_broker.kill()  # what is in memory is gone
    own_broker.start()
    consumer = client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=200)
    got: dict[int, int] = {}
    while len(got) < total:
        message = consumer.receive(WAIT_MS)
        assert message.redelivery_count() == 0
        number = int(message.data())
        assert number not in got, "once is enough"
        got[number] = now_ms()
        consumer.acknowledge(message)
    assert all(came >= late[number] for number, came in got.items()), "one came before its time"
    eventually(lambda: subscription(own_broker, topic)["msgBacklog"] == 0)
    client.close()
