"""Key_Shared with official clients: sticky hash ranges, and the order of each key while consumers come and go."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field

import pulsar
import pytest

from magnetar.broker.subscriptions.dispatch.hashing import slot_of
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, eventually
from tests.support.receiving import WAIT_MS, drain, nothing_more

KEY_SHARED = pulsar.ConsumerType.KeyShared
KEYS = [f"key-{number}" for number in range(60)]


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    """A policy with these ranges."""
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))


def subscribe(client: pulsar.Client, topic: str, *ranges: tuple[int, int]) -> pulsar.Consumer:
    """A sticky consumer."""
    return client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=sticky(*ranges))


def publish(client: pulsar.Client, topic: str, rounds: int) -> None:
    """So many messages of every key, numbered."""
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(rounds):
        for key in KEYS:
            producer.send_async(b"%d" % number, lambda _result, _id: None, partition_key=key)
    producer.flush()
    producer.close()


def by_key(consumer: pulsar.Consumer, keys: list[str], rounds: int) -> dict[str, list[int]]:
    """What a consumer is sent, when it is due all messages of some keys; acknowledged."""
    got: dict[str, list[int]] = defaultdict(list)
    for message in drain(consumer, len(keys) * rounds):
        got[message.partition_key()].append(int(message.data()))
    return got


def within(*ranges: tuple[int, int]) -> list[str]:
    """The keys of some ranges, both ends included (`slot_of` is held to Murmur3's published values by its own tests)."""
    return [key for key in KEYS if any(first <= slot_of(key.encode()) <= last for first, last in ranges)]


def test_sticky_consumers_get_the_keys_of_their_ranges_and_no_others(client: pulsar.Client, topic: str) -> None:
    low, high = [(0, 9_999), (30_000, 39_999)], [(10_000, 29_999), (40_000, 65_535)]
    mine, others = within(*low), within(*high)
    assert len(mine) > 5
    assert len(others) > 5
    assert sorted([*mine, *others]) == sorted(KEYS)
    one, two = subscribe(client, topic, *low), subscribe(client, topic, *high)
    publish(client, topic, 5)
    assert by_key(one, mine, 5) == {key: [0, 1, 2, 3, 4] for key in mine}
    assert by_key(two, others, 5) == {key: [0, 1, 2, 3, 4] for key in others}
    assert nothing_more(one)
    assert nothing_more(two)


def test_both_ends_of_a_range_belong_to_it(client: pulsar.Client, topic: str) -> None:
    slots = sorted(slot_of(key.encode()) for key in KEYS)
    first, last = slots[20], slots[30]
    around = [(low, high) for low, high in ((0, first - 1), (last + 1, 65_535)) if low <= high]
    inner, outer = subscribe(client, topic, (first, last)), subscribe(client, topic, *around)
    publish(client, topic, 1)
    assert sorted(by_key(inner, KEYS[:11], 1)) == sorted(within((first, last)))
    assert sorted(by_key(outer, KEYS[11:], 1)) == sorted(within(*around))
    assert nothing_more(inner)
    assert nothing_more(outer)


def test_keys_that_nobody_named_wait_for_somebody_who_does(client: pulsar.Client, topic: str) -> None:
    lower, upper = within((0, 32_767)), within((32_768, 65_535))
    one = subscribe(client, topic, (0, 32_767))
    publish(client, topic, 3)
    # What waits does not hold up what comes after it and has an owner.
    assert by_key(one, lower, 3) == {key: [0, 1, 2] for key in lower}
    assert nothing_more(one)
    two = subscribe(client, topic, (32_768, 65_535))
    assert by_key(two, upper, 3) == {key: [0, 1, 2] for key in upper}
    assert nothing_more(one)
    assert nothing_more(two)


@pytest.mark.parametrize("taken", [(10_000, 20_000), (0, 10_000), (20_000, 65_535), (12_000, 13_000), (0, 65_535)])
def test_overlapping_ranges_are_refused_and_nobody_is_disturbed(
    client: pulsar.Client, broker: BrokerProcess, topic: str, taken: tuple[int, int]
) -> None:
    one = subscribe(client, topic, (10_000, 20_000))
    other = connect(broker)
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe(other, topic, taken)
    two = subscribe(other, topic, (0, 9_999), (20_001, 65_535))
    publish(client, topic, 1)
    mine = within((10_000, 20_000))
    assert sorted(by_key(one, mine, 1)) == sorted(mine)
    assert len(drain(two, len(KEYS) - len(mine))) == len(KEYS) - len(mine)
    other.close()


def test_one_taken_range_refuses_all_that_a_consumer_named(client: pulsar.Client, topic: str) -> None:
    subscribe(client, topic, (10_000, 20_000))
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe(client, topic, (50_000, 60_000), (15_000, 16_000))
    # None of them was kept for the consumer that was refused.
    two = subscribe(client, topic, (50_000, 60_000))
    publish(client, topic, 1)
    theirs = within((50_000, 60_000))
    assert theirs
    assert sorted(by_key(two, theirs, 1)) == sorted(theirs)
    assert nothing_more(two)


def test_a_range_is_free_again_when_its_consumer_is_gone(client: pulsar.Client, topic: str) -> None:
    one = subscribe(client, topic, (0, 65_535))
    publish(client, topic, 2)
    held = [one.receive(WAIT_MS) for _ in range(10)]
    one.close()
    two = subscribe(client, topic, (0, 65_535))
    got = by_key(two, KEYS, 2)
    assert got == {key: [0, 1] for key in KEYS}
    assert len(held) == 10
    assert nothing_more(two)


@pytest.mark.parametrize("sticky_first", [True, False])
def test_sticky_and_split_do_not_mix(client: pulsar.Client, topic: str, sticky_first: bool) -> None:
    policies = [sticky((0, 100)), pulsar.ConsumerKeySharedPolicy()]
    first, second = policies if sticky_first else reversed(policies)
    client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=first)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=second)


# ------------------------------------------------------------------------------------------------- coming and going


@dataclass
class Ledger:
    """What was seen, in one order for all consumers.

    Attributes:
        window: how many more messages may be published: those not acknowledged are this many at most.
        delivered: per key, each number and the consumer that received it last.
        first: per key, numbers in the order of their first delivery.
        acked: per key, numbers in the order of their first acknowledgement.
        closed: consumers that have begun to close, by name.
        done: what was acknowledged, by key and number.
        repeats: deliveries of a number that had been delivered before.
        wrong: repeats for which no closed consumer is the reason.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    window: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(400))
    delivered: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    first: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    closed: set[str] = field(default_factory=set)
    repeats: int = 0
    wrong: list[tuple[str, int, str, str]] = field(default_factory=list)
    done: set[tuple[str, int]] = field(default_factory=set)

    def deliver(self, key: str, number: int, name: str) -> None:
        """A consumer received a message."""
        with self.lock:
            before = self.delivered[key].get(number)
            if before is None:
                self.first[key].append(number)
            else:
                self.repeats += 1
                if before not in self.closed:
                    self.wrong.append((key, number, before, name))
            self.delivered[key][number] = name

    def ack(self, key: str, number: int) -> None:
        """A consumer is about to acknowledge a message: the next of its key may be sent to another from then on."""
        with self.lock:
            if (key, number) not in self.done:
                self.done.add((key, number))
                self.acked[key].append(number)
                self.window.release()


class Worker(threading.Thread):
    """One consumer: takes a handful of messages, then acknowledges them, so that it always has work on its hands.

    It leaves with a handful that it did not acknowledge.
    """

    def __init__(self, broker: BrokerProcess, topic: str, name: str, ledger: Ledger) -> None:
        super().__init__(name=name)
        self._client = connect(broker)
        self._consumer = self._client.subscribe(
            topic,
            "s",
            consumer_type=KEY_SHARED,
            consumer_name=name,
            receiver_queue_size=50,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self._ledger = ledger
        self.leaving = threading.Event()
        self.acked = 0
        self.problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Until it is told to leave."""
        try:
            while not self.leaving.is_set():
                for message in self._handful():
                    self._ledger.ack(message.partition_key(), int(message.data()))
                    self._consumer.acknowledge(message)
                    self.acked += 1
            self._handful()
            with self._ledger.lock:
                self._ledger.closed.add(self.name)
            self._consumer.close()
            self._client.close()
        except BaseException as error:
            self.problem = error
            raise

    def _handful(self) -> list[pulsar.Message]:
        messages: list[pulsar.Message] = []
        while len(messages) < 10:
            try:
                message = self._consumer.receive(50)
            except pulsar.Timeout:
                break
            self._ledger.deliver(message.partition_key(), int(message.data()), self.name)
            messages.append(message)
        return messages

    def leave(self) -> None:
        """And be gone."""
        self.leaving.set()
        self.join(30)
        assert not self.is_alive()
        assert self.problem is None


def test_order_of_each_key_is_kept_while_consumers_come_and_go(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    ledger, published = Ledger(), dict.fromkeys(KEYS, 0)
    over = threading.Event()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)

    def produce() -> None:
        # Never stops, but never gets far ahead either: then there is always something for a newcomer, and little to catch up.
        turn = 0
        while not over.is_set():
            if not ledger.window.acquire(timeout=1):
                continue
            # Three of a key, one after the other: those are what a broker could hand to two consumers at once.
            key = KEYS[turn // 3 % 20]
            turn += 1
            producer.send_async(b"%d" % published[key], lambda _result, _id: None, partition_key=key)
            published[key] += 1
        producer.flush()

    workers = [Worker(broker, topic, f"w{number}", ledger) for number in range(2)]
    publisher = threading.Thread(target=produce)
    publisher.start()
    try:
        for number in range(2, 12):
            newcomer = Worker(broker, topic, f"w{number}", ledger)
            workers.append(newcomer)
            # It has its share of the keys now, and those who were there go on with theirs.
            for each in workers:
                goal = each.acked + 40
                eventually(lambda each=each, goal=goal: each.problem or each.acked >= goal, what=each.name)
            if number % 2 or len(workers) > 4:
                workers.pop(number % len(workers)).leave()
        over.set()
        publisher.join(30)
        assert not publisher.is_alive()
        eventually(lambda: len(ledger.done) == sum(published.values()), what="all acknowledged")
    finally:
        over.set()
        publisher.join(30)
        for worker in workers:
            worker.leaving.set()
        for worker in workers:
            worker.leave()
    used = {key: count for key, count in published.items() if count}
    assert len(used) == 20
    # Every message of each key once at least, and for the first time in its order: nothing lost, nothing overtaken.
    assert ledger.first == {key: list(range(count)) for key, count in used.items()}
    # Nor was one worked on while one before it was still with another consumer.
    assert ledger.acked == {key: list(range(count)) for key, count in used.items()}
    assert ledger.wrong == []
    assert ledger.repeats > 0, "no consumer left anything behind: the redelivery was not tested"
