"""Random official clients, kills of the broker, and a ledger of every message that has to add up.

    publishing      every message has a number; its receipt makes it *confirmed*, an error or silence leaves it *unknown*
    consuming       subscriptions of all four types; messages are acknowledged, given back, or left when the consumer goes
    faults          SIGKILL and SIGTERM of the broker, at random moments
    then it heals   everything is consumed until the broker says that no backlog is left

For each subscription then

    confirmed <= delivered (once or more) <= confirmed + unknown        nothing is lost, nothing is made up
    delivered = acknowledged                                           and no backlog is left
    deliveries = delivered + redelivered                               each redelivery has a cause: given back, its consumer
                                                                       went, or the broker was killed; never long after the
                                                                       acknowledgement, and none after a kill at the end
"""

import contextlib
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pulsar

from tests.support.brokers import BrokerProcess, eventually
from tests.support.fuzzing import descriptors, resident_bytes

ACK_DURABLE_S = 5.0
"""From `acknowledge` in the client until a kill cannot undo it: the client groups for 100 ms, the broker stores within 50 ms;
the rest is a machine that does ten other things."""

LATE_S = 30.0
"""A message that comes so long after its acknowledgement was not just under way, nor lying in a client's queue since before."""

RECONNECT_S = 15.0
"""From the broker's start until clients are back: what they acknowledge meanwhile goes nowhere, and they do not say so."""

CONFIG = """
[broker]
segment_bytes = 8_388_608
ledger_bytes_max = 2_097_152
retention_interval_ms = 500
"""
"""Small segments and ledgers: retention has something to do in every round."""

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key-shared": pulsar.ConsumerType.KeyShared,
}


@dataclass
class Seen:
    """One message on one subscription."""

    deliveries: int = 0
    acked_at: float = 0.0
    returned: int = 0


@dataclass
class Ledger:
    """What is known of one topic's messages."""

    confirmed: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    subscriptions: dict[str, dict[int, Seen]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def delivered(self, name: str, number: int, outages: list[tuple[float, float]]) -> None:
        """A consumer got a message."""
        now = time.monotonic()
        with self.lock:
            seen = self.subscriptions[name].setdefault(number, Seen())
            seen.deliveries += 1
            acked_at = seen.acked_at
        # An acknowledgement that no kill can have undone, and not just under way.
        excused = any(from_s - ACK_DURABLE_S < acked_at < to_s + RECONNECT_S for from_s, to_s in outages)
        if acked_at and now - acked_at > LATE_S and not excused:
            self.late.append(f"{name}: message {number} came again {now - acked_at:.1f} s after its acknowledgement")


class Soak:
    """One round after the other on one broker.

    Args:
        broker: running, with CONFIG.
        data: its folder of data.
        seed: decides what clients do and when the broker is killed; the rest is chance of the machine.
        burst_max: messages that a producer sends at a time, twenty times a second.
    """

    def __init__(self, broker: BrokerProcess, data: Path, seed: int, burst_max: int = 100) -> None:
        self.broker = broker
        self._burst_max = burst_max
        self._data = data
        self._chance = random.Random(seed)
        self._outages: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._errors: list[str] = []
        self.totals: Counter[str] = Counter()

    def disk_bytes(self) -> int:
        """Of the log's segments."""
        return sum(path.stat().st_size for path in self._data.rglob("*.seg"))

    def round(
        self, seconds: float, *, kills: int, topics: int = 3, tell: Callable[[str], None] = lambda _line: None
    ) -> dict[str, int]:
        """Clients and faults for some time, then healing and the ledger; what was counted.

        Raises:
            AssertionError: it does not add up.
        """
        self._stop.clear()
        ledgers = {f"soak-{uuid.uuid4().hex[:6]}-{number}": Ledger() for number in range(topics)}
        threads = []
        for number, (topic, ledger) in enumerate(ledgers.items()):
            self._make_subscriptions(topic, ledger)
            jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._publish, (topic, ledger, number))]
            jobs += [(self._consume, (topic, ledger, name, each)) for name in TYPES for each in range(_members(name))]
            for target, arguments in jobs:
                seed = self._chance.getrandbits(32)
                threads.append(threading.Thread(target=self._guarded, args=(target, *arguments, random.Random(seed))))
        for thread in threads:
            thread.start()
        most = self._faults(seconds, kills)
        self._stop.set()
        for thread in threads:
            thread.join(timeout=120)
        assert not any(thread.is_alive() for thread in threads), "a client hangs"
        assert not self._errors, self._errors[0]
        for topic, ledger in ledgers.items():
            self._heal(topic, ledger)
        if kills:  # what is acknowledged has to stay so, whatever comes
            self.broker.kill()
            self.broker.start()
            for topic in ledgers:
                path = f"/admin/v2/persistent/public/default/{topic}/stats"
                left = {
                    name: each["msgBacklog"] for name, each in self.broker.rest("GET", path)["subscriptions"].items()
                }
                assert left == dict.fromkeys(TYPES, 0), f"{topic}: after a last kill there is a backlog again: {left}"
        counted = Counter[str]()
        for topic, ledger in ledgers.items():
            counted += self._judge(topic, ledger)
        self._disk_comes_back(ledgers, most)
        self.totals += counted
        pid = self._pid()
        held = f"{resident_bytes(pid) >> 20} MiB, {descriptors(pid)} descriptors, {self.disk_bytes() >> 20} MiB of log"
        tell(f"{dict(counted)}; {held}")
        return dict(counted)

    def _pid(self) -> int:
        assert self.broker.process is not None
        return self.broker.process.pid

    # -------------------------------------------------------------------------------------------------------- clients

    def _client(self) -> pulsar.Client:
        # A logger of Python's would be called from threads of the client's that outlive it.
        return pulsar.Client(
            self.broker.url,
            operation_timeout_seconds=30,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(self._data / "clients.log")),
        )

    def _guarded(self, target: Callable[..., None], *arguments: object) -> None:
        try:
            target(*arguments)
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self._errors.append(f"{getattr(target, '__name__', target)}: {type(error).__name__}: {error}")
            self._stop.set()

    def _make_subscriptions(self, topic: str, ledger: Ledger) -> None:
        client = self._client()
        for name, kind in TYPES.items():
            client.subscribe(topic, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest).close()
            ledger.subscriptions[name] = {}
        client.close()

    def _publish(self, topic: str, ledger: Ledger, number: int, chance: random.Random) -> None:
        client = self._client()
        producer = client.create_producer(
            topic, batching_enabled=number != 0, block_if_queue_full=True, send_timeout_millis=60_000,
            batching_type=pulsar.BatchingType.KeyBased,
        )  # fmt: skip
        last = 0

        def told(sent: int) -> Callable[[pulsar.Result, object], None]:
            def receipt(result: pulsar.Result, _message_id: object) -> None:
                with ledger.lock:
                    if result == pulsar.Result.Ok:
                        ledger.unknown.discard(sent)
                        ledger.confirmed.add(sent)

            return receipt

        while not self._stop.is_set():
            for _ in range(chance.choice([1, self._burst_max // 5, self._burst_max])):
                last += 1
                with ledger.lock:
                    ledger.unknown.add(last)
                delay = (
                    timedelta(milliseconds=chance.randrange(1, 1_500))
                    if number == 0 and chance.random() < 0.1
                    else None
                )
                payload = b"%d %s" % (last, bytes(chance.choice([10, 100, 2_000])))
                producer.send_async(payload, told(last), partition_key=f"k{last % 17}", deliver_after=delay)
            self._stop.wait(0.05)
        producer.flush()
        client.close()

    def _consume(self, topic: str, ledger: Ledger, name: str, number: int, chance: random.Random) -> None:
        client = self._client()
        while not self._stop.is_set():
            try:
                consumer = client.subscribe(
                    topic, name, consumer_type=TYPES[name], negative_ack_redelivery_delay_ms=200,
                    receiver_queue_size=chance.choice([1, 10, 1_000]),
                )  # fmt: skip
            except (pulsar.ConsumerBusy, pulsar.Timeout):  # the one before is not yet gone, or the broker is down
                self._stop.wait(0.2)
                continue
            until = time.monotonic() + chance.uniform(1, 6)
            while time.monotonic() < until and not self._stop.is_set():
                self._one(consumer, ledger, name, chance)
            with contextlib.suppress(pulsar.Timeout):  # the broker is down: it closes nothing
                consumer.close()
        client.close()

    def _one(self, consumer: pulsar.Consumer, ledger: Ledger, name: str, chance: random.Random) -> None:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return
        sent = int(message.data().split(b" ", 1)[0])
        ledger.delivered(name, sent, self._outages)
        lot = chance.random()
        if lot < 0.03:
            with ledger.lock:
                ledger.subscriptions[name][sent].returned += 1
            consumer.negative_acknowledge(message)
        elif lot > 0.01:
            self._acknowledge(consumer, message, ledger.subscriptions[name][sent])

    @staticmethod
    def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message, seen: Seen) -> None:
        with contextlib.suppress(pulsar.PulsarException):  # the connection is gone: it comes again
            consumer.acknowledge(message)
            seen.acked_at = time.monotonic()

    # --------------------------------------------------------------------------------------------------------- faults

    def _faults(self, seconds: float, kills: int) -> int:
        """Kill and restart; the most bytes of log that were seen."""
        end = time.monotonic() + seconds
        moments = sorted(self._chance.uniform(0.2, 0.9) * seconds for _ in range(kills))
        start, most = time.monotonic(), 0
        while time.monotonic() < end and not self._stop.is_set():
            if moments and time.monotonic() - start >= moments[0]:
                moments.pop(0)
                killed = time.monotonic()
                self._outages.append((killed, killed + 60))  # until it is known
                if self._chance.random() < 0.75:
                    self.broker.kill()
                else:
                    assert self.broker.stop() == 0, "SIGTERM did not end the broker cleanly"
                self.broker.start()
                self._outages[-1] = (killed, time.monotonic())
            most = max(most, self.disk_bytes())
            self._stop.wait(0.1)
        return most

    # -------------------------------------------------------------------------------------------------------- the end

    def _heal(self, topic: str, ledger: Ledger) -> None:
        """Consume everything that is left, until the broker says that there is no backlog."""
        client = self._client()
        path = f"/admin/v2/persistent/public/default/{topic}/stats"
        for name, kind in TYPES.items():
            consumer = client.subscribe(topic, name, consumer_type=kind)
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                try:
                    message = consumer.receive(300)
                except pulsar.Timeout:
                    if self.broker.rest("GET", path)["subscriptions"][name]["msgBacklog"] == 0:
                        break
                    continue
                sent = int(message.data().split(b" ", 1)[0])
                ledger.delivered(name, sent, self._outages)
                self._acknowledge(consumer, message, ledger.subscriptions[name][sent])
            else:
                raise AssertionError(
                    f"{topic}: subscription {name} still has a backlog: {self.broker.rest('GET', path)}"
                )
            consumer.close()
        client.close()
        time.sleep(1.0)  # acknowledgements are answered to nobody here; they are durable after cursor_flush_ms (20)

    def _judge(self, topic: str, ledger: Ledger) -> Counter[str]:
        counted = Counter[str](published=len(ledger.confirmed), unknown=len(ledger.unknown))
        assert not ledger.late, f"{topic}: {ledger.late[0]} ({len(ledger.late)} in all); outages {self._outages}"
        for name, seen in ledger.subscriptions.items():
            lost = ledger.confirmed - seen.keys()
            assert not lost, f"{topic}: {name} never got {len(lost)} confirmed messages, such as {min(lost)}"
            strange = seen.keys() - ledger.confirmed - ledger.unknown
            assert not strange, f"{topic}: {name} got {len(strange)} messages that nobody sent"
            open_ones = [number for number, each in seen.items() if not each.acked_at]
            assert not open_ones, f"{topic}: {name}: no backlog, but {len(open_ones)} messages were never acknowledged"
            counted["delivered"] += len(seen)
            counted["acknowledged"] += sum(1 for each in seen.values() if each.acked_at)
            counted["redelivered"] += sum(each.deliveries - 1 for each in seen.values())
            counted["returned"] += sum(each.returned for each in seen.values())
        return counted

    def _disk_comes_back(self, ledgers: dict[str, Ledger], most: int) -> None:
        """What nobody needs is deleted, with its topics or without."""
        for topic in ledgers:
            self.broker.rest("DELETE", f"/admin/v2/persistent/public/default/{topic}?force=true")
        # The segment that is written stays, and one that is being closed.
        eventually(
            lambda: self.disk_bytes() <= 3 * 8_388_608,
            within_s=60,
            what=f"the log shrinks; it had {most >> 20} MiB and has {self.disk_bytes() >> 20} MiB",
        )


def _members(name: str) -> int:
    return 1 if name == "exclusive" else 2
