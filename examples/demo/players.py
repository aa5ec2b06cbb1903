"""Publishers, readers and the consumer of the demo: threads over the official Pulsar client.

Nothing here knows Magnetar: these threads get the addresses and the topic, and nothing else.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from examples.demo import schema
from examples.demo.flights import Departures, age_at
from examples.demo.reasons import Again, Delivery, Flight
from examples.demo.tally import Board, Tally
from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    import pulsar

PENDING_MAX: Final = 2_000
"""Messages sent and not confirmed per publisher: enough to keep the line full, few enough to be flushed at once."""

TICK_S: Final = 0.01
"""A publisher sends what is due in bursts this far apart."""

LISTEN_MS: Final = 200
"""How long a receive waits before it looks whether the demo is over."""

OFFICIAL_EVERY: Final = 100
"""Of the messages of each schema version that an observer gets, the first and so on are decoded at once, by the client."""

PROBE_MS: Final = 300
"""How often the consumer's client checks whether its cluster answers."""

STAY: Final = 1_000_000
"""Successful probes before the client would go back by itself: never; an operator moves the subscription back."""

SEND_TIMEOUT_MS: Final = 60_000
"""A broker that is killed and started again must not fail what is on its way to it."""


def client(url: str, *others: str) -> "pulsar.Client":
    """An official client that keeps its log lines to itself.

    Args:
        url: of its cluster.
        others: where it goes by itself when that cluster dies (Pulsar's AutoClusterFailover).

    Raises:
        MagnetarError: the client library is not installed.
    """
    try:
        import pulsar
    except ModuleNotFoundError:
        raise MagnetarError('the demo needs the official Pulsar client: pip install "magnetar[demo]"') from None
    quiet = logging.getLogger("magnetar.demo.client")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    where: Any = url
    if others:
        where = pulsar.AutoClusterFailover(
            pulsar.ServiceInfo(url),
            [pulsar.ServiceInfo(other) for other in others],
            check_interval_ms=PROBE_MS,
            switch_back_threshold=STAY,
        )
    return pulsar.Client(where, operation_timeout_seconds=60, logger=quiet)


class Player(threading.Thread):
    """A thread with a client of its own; what goes wrong in it ends the demo with one line.

    Args:
        name: for lines about it.
        url: of the cluster.
        topic: full name.
        board: for progress and failures.
        others: clusters that its client goes to when that one dies.
    """

    def __init__(self, name: str, url: str, topic: str, board: Board, *others: str) -> None:
        super().__init__(name=name, daemon=True)
        self.url, self.topic, self.board, self.others = url, topic, board, others
        self.over = threading.Event()

    def run(self) -> None:
        """Play until over."""
        try:
            with self._connected() as connected:
                self.play(connected)
        except MagnetarError as error:
            self.board.fail(f"{self.name}: {error}")
        except Exception as error:  # noqa: BLE001 - of the client library, which raises bare ones
            if not self.over.is_set():
                self.board.fail(f"{self.name}: {type(error).__name__}: {error}")

    def play(self, connected: "pulsar.Client") -> None:
        """What this player does."""
        raise NotImplementedError

    @contextmanager
    def _connected(self) -> "Iterator[pulsar.Client]":
        made = client(self.url, *self.others)
        try:
            yield made
        finally:
            made.close()


class Publisher(Player):
    """Publishes one airport's departures in order, as far as it is allowed to.

    Args:
        departures: what to publish.
        per_second: how fast at most.
    """

    def __init__(self, departures: Departures, per_second: int, url: str, topic: str, board: Board) -> None:
        super().__init__(f"publisher in {departures.airport}", url, topic, board)
        self.departures, self.per_second = departures, per_second
        self.opened = threading.Event()
        self.sent = 0
        self.confirmed = 0
        self.pause_s = 0.0
        """The longest time between two confirmations since `watch`."""
        self._confirmed_s = 0.0
        self._allowed = 0
        self._gate = threading.Condition()

    def allow(self, share: float) -> None:
        """Publish up to this share of the flights, then wait for more."""
        with self._gate:
            self._allowed = round(share * len(self.departures))
            self._gate.notify_all()

    def watch(self) -> None:
        """Measure pauses from now on."""
        self._confirmed_s, self.pause_s = time.monotonic(), 0.0

    @property
    def done(self) -> bool:
        """Whether everything allowed so far is confirmed by the broker."""
        return self.confirmed >= self._allowed

    def play(self, connected: "pulsar.Client") -> None:
        """Publish what is due, tick by tick."""
        producer = self._producer(connected)
        self.opened.set()
        self.board.moved()
        burst = max(1, round(self.per_second * TICK_S))
        evolves_at = self.departures.evolves_at
        while self.sent < len(self.departures) and not self.over.is_set():
            with self._gate:
                self._gate.wait_for(lambda: self.sent < self._allowed or self.over.is_set(), timeout=LISTEN_MS / 1000)
                upto = min(self._allowed, self.sent + burst)
            if evolves_at is not None and self.sent < evolves_at:
                upto = min(upto, evolves_at)
            for number in range(self.sent, upto):
                producer.send_async(
                    self.departures.payloads[number], self._confirm, partition_key=self.departures.keys[number]
                )
            self.sent = max(self.sent, upto)
            if self.sent == self._allowed:
                producer.flush()
            if self.sent == evolves_at:
                producer.flush()
                producer.close()
                producer, evolves_at = self._producer(connected), None
            # The pace, not a way to wait for anything: real departures do not come all at once either.
            self.over.wait(TICK_S)
        producer.close()

    def _producer(self, connected: "pulsar.Client") -> "pulsar.Producer":
        """A producer with the schema of what is published next."""
        return connected.create_producer(
            self.topic,
            schema=schema.official(age_at(self.sent, self.departures.evolves_at)),
            producer_name=f"departures-{self.departures.airport}",
            batching_enabled=True,
            batching_max_publish_delay_ms=5,
            batching_max_messages=500,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            send_timeout_millis=SEND_TIMEOUT_MS,
        )

    def _confirm(self, result: object, _message_id: object) -> None:
        """Called by the client for each message, in order."""
        if getattr(result, "name", str(result)) != "Ok":
            self.board.fail(f"{self.name}: a flight was not stored: {result}")
            return
        self.confirmed += 1
        before, self._confirmed_s = self._confirmed_s, time.monotonic()
        self.pause_s = max(self.pause_s, self._confirmed_s - before)
        self.board.moved()


def look_inside(message: "pulsar.Message", tally: Tally) -> None:
    """Note with which schema a flight came, and now and then decode one as the official client does.

    Its decoder takes 40 us for a message with this many fields. Decoding every message for four observers in one process would
    delay the consumer and distort what is measured. All flights are decoded at the end (`Story.decode`).
    """
    version, payload = schema.version_of(message), message.data()
    if tally.came(version, payload) % OFFICIAL_EVERY:
        return
    try:
        flight = message.value()
    except Exception:  # noqa: BLE001 - the client passes on whatever its library for Avro raises
        flight = None
    if schema.age_of(flight, payload) is None:
        tally.undecoded += 1


class Watcher(Player):
    """Reads everything in one cluster, from the beginning."""

    def __init__(self, tally: Tally, url: str, topic: str, board: Board) -> None:
        super().__init__(f"reader in {tally.name}", url, topic, board)
        self.tally = tally

    def play(self, connected: "pulsar.Client") -> None:
        """Read until over."""
        import pulsar

        reader = connected.create_reader(
            self.topic, pulsar.MessageId.earliest, schema=schema.official("new"), receiver_queue_size=2_000
        )
        while not self.over.is_set():
            try:
                message = reader.read_next(LISTEN_MS)
            except pulsar.Timeout:
                continue
            self.tally.arrive(message.data(), message.publish_timestamp())
            look_inside(message, self.tally)
        reader.close()


class Consumer(Player):
    """The consumer of a replicated subscription; it acknowledges every flight and goes where its subscription goes.

    It gets no instructions: when its cluster dies, its client finds the other one by itself; when the subscription is moved,
    the broker redirects it.

    Args:
        subscription: its name.
        others: clusters that its client may go to.
    """

    def __init__(self, subscription: str, tally: Tally, url: str, topic: str, board: Board, *others: str) -> None:
        super().__init__("consumer", url, topic, board, *others)
        self.subscription, self.tally = subscription, tally
        self.subscribed = threading.Event()
        self.acknowledged: dict[Flight, Delivery] = {}
        """Flight -> its last delivery."""
        self.again: list[Again] = []
        """Deliveries of flights that were acknowledged before."""

    def play(self, connected: "pulsar.Client") -> None:
        """Receive and acknowledge until over."""
        import pulsar

        consumer = connected.subscribe(
            self.topic,
            self.subscription,
            schema=schema.official("new"),
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1_000,
            replicate_subscription_state_enabled=True,
        )
        self.subscribed.set()
        while not self.over.is_set():
            try:
                message = consumer.receive(LISTEN_MS)
            except pulsar.Timeout:
                continue
            payload = message.data()
            self.tally.arrive(payload, message.publish_timestamp())
            look_inside(message, self.tally)
            consumer.acknowledge(message)
            self.note(payload, message.message_id().ledger_id())
        consumer.close()

    def note(self, payload: bytes, ledger: int) -> None:
        """Remember that a flight was acknowledged, and whether it had been before."""
        flight = self.tally.number_of.get(payload)
        if flight is None:
            return
        before = self.acknowledged.get(flight)
        if before is not None:
            self.again.append(Again(before, ledger))
        self.acknowledged[flight] = Delivery(len(self.acknowledged), ledger)
