"""Delayed messages, compaction, schemas and all subscription types over a takeover, with real bookies and official clients."""

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from tests.support.acknowledged import Place, durably_acknowledged, place
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, connect, numbers
from tests.support.brokers import eventually, path_of
from tests.support.compaction import compact, rows

HOW: Final = pytest.mark.parametrize("how", ["killed", "stopped"])
EARLIEST: Final = pulsar.InitialPosition.Earliest
WAIT_MS: Final = 60_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def client(serving: Brokers) -> Iterator[pulsar.Client]:
    """A client of both brokers."""
    made = connect(serving.url)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------------------------ delayed


DELAYED: Final = 200


@HOW
def test_delayed_messages(serving: Brokers, client: pulsar.Client, how: str) -> None:
    """Some come due before the takeover, some during it, some after it: each comes once, and none early."""
    last_s = {"killed": 16.0, "stopped": 8.0}[how]  # a takeover takes 5 s or 0.5 s, and more on a busy machine
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    due: list[float] = []
    failed: list[pulsar.Result] = []

    def confirmed(result: pulsar.Result, _id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in range(DELAYED):
        delay = timedelta(milliseconds=500 + number * last_s * 1000 // DELAYED)
        due.append(time.time() + delay.total_seconds())
        producer.send_async(b"%d" % number, confirmed, deliver_after=delay)
    producer.flush()
    assert not failed

    came: list[tuple[int, float]] = []

    def receive() -> None:
        message = consumer.receive(WAIT_MS)
        came.append((int(message.data()), time.time()))
        consumer.acknowledge(message)

    for _ in range(DELAYED // 10):
        receive()
    before = [number for number, _ in came]
    eventually(lambda: _acknowledged_entries(serving) == len(before), what="the acknowledgements have come")
    durably_acknowledged(serving["a"], TOPIC, "s")
    ended = time.time()
    serving.end("a", how)
    serving["b"].await_ready()
    ready = time.time()
    while {number for number, _ in came} != set(range(DELAYED)):
        receive()
    eventually(lambda: _subscription(serving)["msgBacklog"] == 0, what="everything is acknowledged")

    due_ms = [int(at * 1000) for at in due]
    assert not [number for number, at in came if int(at * 1000) < due_ms[number]], "one came early"
    assert [number for number, at in enumerate(due) if ended < at < ready], "none came due during the takeover"
    assert [number for number, at in enumerate(due) if at > ready], "none came due after the takeover"
    twice = {number for number, count in Counter(number for number, _ in came).items() if count > 1}
    # What the client had from the former broker, and what that one did not live to store, comes again.
    assert not twice & set(before)
    assert not [number for number in twice if due[number] > ended], (ended, due, came)


def _subscription(brokers: Brokers, name: str = "s") -> dict[str, Any]:
    """Its statistics, from the broker that serves after the takeover."""
    return dict(brokers["b"].rest("GET", f"{path_of(TOPIC)}/stats")["subscriptions"][name])


def _acknowledged_entries(brokers: Brokers) -> int:
    found = brokers["a"].rest("GET", f"{path_of(TOPIC)}/stats")["subscriptions"]["s"]
    return DELAYED - int(found["msgBacklog"])


# --------------------------------------------------------------------------------------------------------- compaction


@HOW
def test_compaction(serving: Brokers, client: pulsar.Client, how: str) -> None:
    """What was compacted stays so, with deletions; a durable consumer continues in it; the next compaction goes on from there."""
    producer = client.create_producer(TOPIC, producer_name="p", batching_enabled=False, send_timeout_millis=0)
    all_: list[tuple[str, bytes]] = []

    def send(key: str, content: bytes | None) -> None:
        producer.send(content, partition_key=key)
        all_.append((key, content or b""))

    def newest(sent: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        last = {key: at for at, (key, _) in enumerate(sent)}
        return [row for at, row in enumerate(sent) if last[row[0]] == at and row[1]]

    for number in range(100):
        send(f"k{number % 7}", b"%d" % number)
    send("k0", None)
    compact(serving["a"], TOPIC)
    compacted = newest(all_)
    assert rows(client, TOPIC) == compacted
    consumer = client.subscribe(TOPIC, "s", is_read_compacted=True, initial_position=EARLIEST)
    for _ in range(3):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge_cumulative(message)
    eventually(lambda: durably_acknowledged(serving["a"], TOPIC, "s")(place(message)), what="three are acknowledged")
    for number in range(100, 105):
        send(f"k{number % 7}", b"%d" % number)  # not compacted when the broker ends
    tail = all_[-5:]

    serving.end("a", how)
    send("after", b"105")
    serving["b"].await_ready()
    tail += all_[-1:]
    fresh = connect(serving.url)
    for one in (client, fresh):
        assert rows(one, TOPIC) == [*compacted, *tail]
        assert rows(one, TOPIC, compacted=False) == all_
    expected = [*compacted, *tail][3:]
    assert [(one.partition_key(), one.data()) for one in _received(consumer, len(expected))] == expected
    compact(serving["b"], TOPIC)
    assert rows(fresh, TOPIC) == newest(all_)
    send("k1", None)
    assert rows(fresh, TOPIC) == [*newest(all_[:-1]), ("k1", b"")]
    compact(serving["b"], TOPIC)
    assert rows(fresh, TOPIC) == newest(all_)
    assert rows(fresh, TOPIC, compacted=False) == all_
    fresh.close()


def _received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """The next ones; those of the connection before, which the client still has, are passed over."""
    found: dict[Place, pulsar.Message] = {}
    while len(found) < count:
        message = consumer.receive(WAIT_MS)
        found.setdefault(place(message), message)
    return [found[at] for at in sorted(found)]


# ------------------------------------------------------------------------------------------------------------ schemas


class Flight(Record):
    """The first version."""

    carrier = String()
    number = Integer()


class Late(Record):
    """The second one."""

    carrier = String()
    number = Integer()
    minutes = Integer(required_default=True)


class Other(Record):
    """No version of it."""

    carrier = Integer(required=True)


@HOW
def test_schemas(serving: Brokers, client: pulsar.Client, how: str) -> None:
    """Both versions of a schema can be written and read, by clients of before and new ones; what is refused stays so."""
    old, new = JsonSchema(Flight), JsonSchema(Late)
    sent: list[tuple[str, int, int]] = []

    def send(producers: tuple[pulsar.Producer, pulsar.Producer]) -> None:
        for minutes, producer in zip((0, 5), producers, strict=True):
            number = len(sent)
            more = {"minutes": minutes} if minutes else {}
            producer.send((Late if minutes else Flight)(carrier="UA", number=number, **more))
            sent.append(("UA", number, minutes))

    def check(consumer: pulsar.Consumer, expected: list[tuple[str, int, int]], *, late: bool) -> None:
        for carrier, number, minutes in expected:
            message = consumer.receive(WAIT_MS)
            consumer.acknowledge(message)
            value = message.value()
            assert (type(value), value.carrier, value.number) == (Late if late else Flight, carrier, number)
            assert not late or value.minutes == (minutes or None)
            assert message._message.int_schema_version() == int(minutes > 0)

    def refused(one: pulsar.Client) -> list[str]:
        """What a producer and a consumer with another schema are told."""
        told = []
        for attempt in (
            lambda: one.create_producer(TOPIC, schema=JsonSchema(Other)),
            lambda: one.subscribe(TOPIC, "new", schema=JsonSchema(Other)),
        ):
            with pytest.raises(pulsar.IncompatibleSchema) as caught:
                attempt()
            told.append(str(caught.value))
        return told

    def stored(broker: str) -> Any:
        return serving[broker].rest(
            "GET", f"/admin/v2/schemas{path_of(TOPIC).removeprefix('/admin/v2/persistent')}/schemas"
        )

    producers = tuple(
        client.create_producer(TOPIC, producer_name=name, schema=schema, batching_enabled=False, send_timeout_millis=0)
        for name, schema in (("old", old), ("new", new))
    )
    consumers = [
        client.subscribe(TOPIC, name, schema=schema, initial_position=EARLIEST)
        for name, schema in (("old", old), ("new", new))
    ]
    send(producers)
    for late, consumer in enumerate(consumers):
        check(consumer, sent, late=bool(late))
    refusals, versions = refused(client), stored("a")
    for name in ("old", "new"):
        eventually(
            lambda name=name: (
                serving["a"].rest("GET", f"{path_of(TOPIC)}/stats")["subscriptions"][name]["msgBacklog"] == 0
            )
        )
        durably_acknowledged(serving["a"], TOPIC, name)

    serving.end("a", how)
    send(producers)
    serving["b"].await_ready()
    assert stored("b") == versions
    fresh = connect(serving.url)
    send(tuple(fresh.create_producer(TOPIC, schema=schema, batching_enabled=False) for schema in (old, new)))
    for late, consumer in enumerate(consumers):
        check(consumer, sent[2:], late=bool(late))
    for name, schema in (("fresh old", old), ("fresh new", new)):
        check(fresh.subscribe(TOPIC, name, schema=schema, initial_position=EARLIEST), sent, late=schema is new)
    assert refused(client) == refused(fresh) == refusals
    assert stored("b") == versions
    fresh.close()


# -------------------------------------------------------------------------------------------------- subscription types


KEYS: Final = 7
TYPES: Final = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}


class Consumed:
    """The consumers of one subscription, one client and one thread each, and everything that they get, in its order.

    The exclusive consumer acknowledges every tenth message, with all before it. Those of the shared subscription acknowledge five
    messages in a random order, and give one of eleven back when it comes for the first time. The others acknowledge each one.
    """

    def __init__(self, url: str, name: str, chance: random.Random) -> None:
        self.name = name
        self.came: list[tuple[int, Place]] = []
        self.given_back: set[int] = set()
        self.failed: list[str] = []
        self._chance = chance
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._clients = [connect(url) for _ in range(1 if name == "exclusive" else 2)]
        self._threads = []
        for client in self._clients:
            consumer = client.subscribe(
                TOPIC, name, TYPES[name], initial_position=EARLIEST, negative_ack_redelivery_delay_ms=200,
                receiver_queue_size=100,
            )  # fmt: skip
            self._threads.append(threading.Thread(target=self._run, args=(consumer,)))
        for thread in self._threads:
            thread.start()

    @property
    def numbers(self) -> list[int]:
        """What came."""
        with self._lock:
            return [number for number, _ in self.came]

    def close(self) -> None:
        """End them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        for client in self._clients:
            client.close()
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, consumer: pulsar.Consumer) -> None:
        acknowledge = {"exclusive": self._cumulatively, "shared": self._out_of_order}.get(self.name, self._each)
        try:
            acknowledge(consumer)
        except Exception as error:  # noqa: BLE001 - the test says so
            self.failed.append(f"{self.name}: {type(error).__name__}: {error}")

    def _messages(self, consumer: pulsar.Consumer) -> Iterator[pulsar.Message | None]:
        """What comes; None: nothing does for a moment."""
        while not self._stop.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                yield None
                continue
            with self._lock:
                self.came.append((int(message.data()), place(message)))
            yield message

    def _each(self, consumer: pulsar.Consumer) -> None:
        for message in self._messages(consumer):
            if message is not None:
                consumer.acknowledge(message)

    def _cumulatively(self, consumer: pulsar.Consumer) -> None:
        last, count = None, 0
        for message in self._messages(consumer):
            last, count = message or last, count + 1
            if last is not None and (message is None or count % 10 == 0):
                consumer.acknowledge_cumulative(last)

    def _out_of_order(self, consumer: pulsar.Consumer) -> None:
        held: list[pulsar.Message] = []
        for message in self._messages(consumer):
            if message is not None:
                with self._lock:
                    number = int(message.data())
                    back = number % 11 == 0 and number not in self.given_back
                    if back:
                        self.given_back.add(number)
                if back:
                    consumer.negative_acknowledge(message)
                else:
                    held.append(message)
            if message is None or len(held) == 5:
                self._chance.shuffle(held)
                for one in held:
                    consumer.acknowledge(one)
                held.clear()


@HOW
def test_all_subscription_types(serving: Brokers, how: str) -> None:
    """Everything confirmed comes, nothing else does, and nothing again whose acknowledgement is stored; keys stay in order."""
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        all_ = [Consumed(serving.url, name, random.Random(chance.getrandbits(32))) for name in TYPES]
        for one in all_:
            stack.callback(one.close)
        publisher = Publisher(serving.url, keys=KEYS, pause_s=0.001)
        stack.callback(publisher.close)
        for one in all_:
            eventually(lambda one=one: len(set(one.numbers)) > 300, within_s=60, what=f"{one.name}: 300 messages")
        stored: dict[str, tuple[int, Callable[[Place], bool]]] = {}
        for one in all_:
            is_stored = durably_acknowledged(serving["a"], TOPIC, one.name)
            # What comes from here on must not be one of those.
            stored[one.name] = (len(one.numbers), is_stored)
        serving.end("a", how)
        publisher.after(200)
        serving["b"].await_ready()
        publisher.after(200)
        publisher.close()
        in_log = numbers(serving["b"].url)
        assert in_log == list(range(len(in_log)))
        assert len(in_log) >= len(publisher.confirmed)
        for one in all_:
            eventually(
                lambda one=one: one.failed or set(one.numbers) >= set(in_log),
                within_s=60,
                what=f"{one.name}: everything came",
            )
            eventually(
                lambda one=one: _subscription(serving, one.name)["msgBacklog"] == 0, what=f"{one.name}: no backlog"
            )
    for one in all_:
        assert not one.failed
        assert set(one.numbers) == set(in_log), f"{one.name} got what was not published"
        count, is_stored = stored[one.name]
        known = {number for number, at in one.came[:count] if is_stored(at)}
        assert len(known) > 100, f"{one.name}: too little was acknowledged when the broker ended"
        again = known & {number for number, _ in one.came[count:]}
        assert not again, f"{one.name}: acknowledged, and delivered again: {sorted(again)}"
    shared = next(one for one in all_ if one.name == "shared")
    assert len(shared.given_back) > 20
    by_key = next(one for one in all_ if one.name == "key_shared")
    for key in range(KEYS):
        _check_order([number for number in by_key.numbers if number % KEYS == key], key)


def _check_order(came: list[int], key: int) -> None:
    """The messages of a key come in order, without a gap, and go back at most once: where the takeover was."""
    back = [at for at, (one, next_) in enumerate(pairwise(came), 1) if next_ <= one]
    assert came[0] == key
    assert len(back) <= 1, f"key {key}: {came}"
    for run in (came[: back[0]], came[back[0] :]) if back else (came,):
        assert run == list(range(run[0], run[-1] + 1, KEYS)), f"key {key}: {run}"
