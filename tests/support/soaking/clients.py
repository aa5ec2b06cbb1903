"""Random official clients of some topics: one producer and consumers of all four subscription types on each."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import pulsar

from tests.support.soaking.ledger import KEYS, TYPES, Account, Delivery, Ledger, Life, Place

JOIN_S: Final = 120.0
"""How long a client may take to end."""

HEAL_S: Final = 120.0
"""How long a subscription may take to be without a backlog, once nothing is broken."""

TICK_S: Final = 0.05
"""Between two bursts of a producer."""

RETRIED: Final = (pulsar.ConsumerBusy, pulsar.Timeout)
"""The consumer before is not yet gone, or the broker is down."""


class Served(Protocol):
    """What clients have to know of a broker or a cluster of them."""

    @property
    def url(self) -> str:
        """For clients."""

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """One request of the admin interface; the decoded answer."""


def client_of(url: str, log: Path, timeout_s: int) -> pulsar.Client:
    """An official client whose lines go to a file: a logger of Python's would be called from its threads, which outlive it."""
    return pulsar.Client(
        url, operation_timeout_seconds=timeout_s, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(log))
    )


class Clients:
    """They run from `begin` to `end`; then `heal` gets what is left.

    Args:
        served: by whom.
        log: a file for the lines of the client library.
        chance: decides what they do.
        burst_max: messages that a producer sends at a time.
        tick_s: between two bursts.
        named: producers have names, so that a broker that deduplicates knows what comes again.
        retried: errors of `subscribe` after which a consumer tries again, and of `close`, which then closed nothing.
    """

    def __init__(
        self,
        served: Served,
        log: Path,
        chance: random.Random,
        *,
        burst_max: int = 100,
        tick_s: float = TICK_S,
        named: bool = False,
        retried: tuple[type[Exception], ...] = RETRIED,
    ) -> None:
        self._served, self._log, self._chance = served, log, chance
        self._burst_max, self._tick_s, self._named, self._retried = burst_max, tick_s, named, retried
        self._stop = threading.Event()
        self._errors: list[str] = []
        self._threads: list[threading.Thread] = []

    @property
    def failed(self) -> bool:
        """Whether one of them met something that must not be; `end` says what."""
        return bool(self._errors)

    def begin(self, ledgers: Mapping[str, Ledger]) -> None:
        """Make the subscriptions, and start.

        Args:
            ledgers: topic -> what happens there. The first topic gets messages that are not in batches, some of them delayed.
        """
        self._stop.clear()
        self._errors.clear()
        self._threads.clear()
        for number, (topic, ledger) in enumerate(ledgers.items()):
            self._make_subscriptions(topic)
            jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._publish, (topic, ledger, number))]
            jobs += [(self._consume, (topic, ledger, name)) for name in TYPES for _ in range(_members(name))]
            for target, arguments in jobs:
                given = (target, *arguments, random.Random(self._chance.getrandbits(32)))
                self._threads.append(threading.Thread(target=self._guarded, args=given))
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Let them run for so long, or until one fails; whether one did."""
        return self._stop.wait(seconds)

    def stop(self) -> None:
        """Ask them to end: else they would keep the program from ending."""
        self._stop.set()

    def end(self) -> None:
        """Stop them and wait for their end.

        Raises:
            AssertionError: one failed, or does not end.
        """
        self.stop()
        for thread in self._threads:
            thread.join(timeout=JOIN_S)
        assert not self._errors, self._errors[0]
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def heal(self, topic: str, ledger: Ledger) -> None:
        """Consume everything that is left, until the broker says that there is no backlog.

        Raises:
            AssertionError: it does not say so in time.
        """
        client = self._client()
        path = f"/admin/v2/persistent/public/default/{topic}/stats"
        for name, kind in TYPES.items():
            account, life = ledger.accounts[name], Life(time.monotonic())
            consumer = client.subscribe(topic, name, consumer_type=kind)
            account.came(life)
            deadline = time.monotonic() + HEAL_S
            while time.monotonic() < deadline:
                try:
                    message = consumer.receive(300)
                except pulsar.Timeout:
                    if self._served.rest("GET", path)["subscriptions"][name]["msgBacklog"] == 0:
                        break
                    continue
                self._acknowledge(consumer, message, self._delivered(message, account, life))
            else:
                raise AssertionError(
                    f"{topic}: subscription {name} still has a backlog: {self._served.rest('GET', path)}"
                )
            life.closed = time.monotonic()
            consumer.close()
        client.close()
        time.sleep(1.0)  # acknowledgements are answered to nobody here; they are durable after cursor_flush_ms (20)

    # ------------------------------------------------------------------------------------------------------------ each

    def _client(self) -> pulsar.Client:
        return client_of(self._served.url, self._log, 30)

    def _guarded(self, target: Callable[..., None], *arguments: object) -> None:
        try:
            target(*arguments)
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self._errors.append(f"{getattr(target, '__name__', target)}: {type(error).__name__}: {error}")
            self._stop.set()

    def _make_subscriptions(self, topic: str) -> None:
        client = self._client()
        for name, kind in TYPES.items():
            client.subscribe(topic, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest).close()
        client.close()

    def _publish(self, topic: str, ledger: Ledger, number: int, chance: random.Random) -> None:
        client = self._client()
        producer = client.create_producer(
            topic, producer_name=f"of-{topic}" if self._named else None, batching_enabled=number != 0,
            block_if_queue_full=True, send_timeout_millis=0 if self._named else 60_000,
            batching_type=pulsar.BatchingType.KeyBased,
        )  # fmt: skip
        last = 0

        def told(sent: int) -> Callable[[pulsar.Result, object], None]:
            def receipt(result: pulsar.Result, _message_id: object) -> None:
                with ledger.lock:
                    if result == pulsar.Result.Ok:
                        ledger.confirmed[sent] = time.monotonic()

            return receipt

        while not self._stop.is_set():
            for _ in range(chance.choice([1, self._burst_max // 5, self._burst_max])):
                last += 1
                delay = (
                    timedelta(milliseconds=chance.randrange(1, 1_500))
                    if number == 0 and chance.random() < 0.1
                    else None
                )
                with ledger.lock:
                    ledger.sent[last] = time.monotonic()
                    if delay is not None:
                        ledger.delayed.add(last)
                payload = b"%d %s" % (last, bytes(chance.choice([10, 100, 2_000, 10_000])))
                producer.send_async(payload, told(last), partition_key=f"k{last % KEYS}", deliver_after=delay)
            self._stop.wait(self._tick_s)
        producer.flush()
        client.close()

    def _consume(self, topic: str, ledger: Ledger, name: str, chance: random.Random) -> None:
        client = self._client()
        account = ledger.accounts[name]
        while not self._stop.is_set():
            life = Life(time.monotonic())
            try:
                consumer = client.subscribe(
                    topic, name, consumer_type=TYPES[name], negative_ack_redelivery_delay_ms=200,
                    receiver_queue_size=chance.choice([1, 10, 1_000]),
                )  # fmt: skip
            except self._retried:
                self._stop.wait(0.2)
                continue
            account.came(life)
            until = time.monotonic() + chance.uniform(1, 6)
            while time.monotonic() < until and not self._stop.is_set():
                self._one(consumer, account, life, chance)
            life.closed = time.monotonic()
            with contextlib.suppress(*self._retried):  # the broker is down: it closes nothing
                consumer.close()
        client.close()

    def _one(self, consumer: pulsar.Consumer, account: Account, life: Life, chance: random.Random) -> None:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return
        delivery = self._delivered(message, account, life)
        lot = chance.random()
        if lot < 0.03:
            delivery.returned = time.monotonic()
            consumer.negative_acknowledge(message)
        elif lot >= 0.04:
            self._acknowledge(consumer, message, delivery)
        # Else it is left until the consumer goes.

    @staticmethod
    def _delivered(message: pulsar.Message, account: Account, life: Life) -> Delivery:
        where = message.message_id()
        place = Place(where.ledger_id(), where.entry_id(), where.batch_index())
        return account.delivered(life, int(message.data().split(b" ", 1)[0]), place)

    @staticmethod
    def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message, delivery: Delivery) -> None:
        with contextlib.suppress(pulsar.PulsarException):  # the connection is gone: it comes again
            consumer.acknowledge(message)
            delivery.acked = time.monotonic()


def _members(name: str) -> int:
    return 1 if name == "exclusive" else 2
