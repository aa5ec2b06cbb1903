"""Random official clients, kills of the broker, and a ledger of every message that has to add up.

    publishing      every message has a number; its receipt makes it *confirmed*, an error or silence leaves it *unknown*
    consuming       subscriptions of all four types; messages are acknowledged, given back, or left when the consumer goes
    faults          SIGKILL and SIGTERM of the broker, at random moments
    then it heals   everything is consumed until the broker says that no backlog is left

For each subscription then

    confirmed <= delivered (once or more) <= confirmed + unknown        nothing is lost, nothing is made up
    delivered = acknowledged                                           and no backlog is left
    deliveries = delivered + redelivered (+ published again)           each redelivery has a cause of its own, while the
                                                                       message was not acknowledged; none after a kill at
                                                                       the end
    first deliveries                                                   in order, of the types that promise one

What a cause is (`_causes`): the message was given back, its consumer went, another consumer's turn came (Failover), or the broker
was down. Then the disk: what is acknowledged goes by itself, and the rest with its topics.
"""

import contextlib
import json
import random
import threading
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import pulsar
from bench.results import RESULTS, Figure, store

from magnetar.storage.rewriting import LIVE_FRACTION_MAX, REWRITE_BYTES_MIN
from tests.support.brokers import BrokerProcess, eventually
from tests.support.fuzzing import descriptors, resident_bytes

ACK_DURABLE_S = 5.0
"""From `acknowledge` in the client until a kill cannot undo it: the client groups for 100 ms, the broker stores within 50 ms;
the rest is a machine that does ten other things."""

GROUPED_S = 2.0
"""From `acknowledge` or `negative_acknowledge` until the broker has heard of it: the client groups the ones for 100 ms, the
others for 200 ms and a tick of 100; the rest is the machine. A consumer that closes tells its acknowledgements first."""

OVERTAKEN_S = 1.0
"""How long a better consumer of a Failover subscription waits for the last acknowledgements of the one before."""

RECONNECT_S = 15.0
"""From the broker's start until clients are back: what they acknowledge meanwhile goes nowhere, and they do not say so."""

KEYS = 17
"""Message n has key n % 17."""

SEGMENT_BYTES = 2_097_152
LEDGER_BYTES = 524_288
CONFIG = f"""
[broker]
message_bytes_max = 1_048_576
segment_bytes = {SEGMENT_BYTES}
ledger_bytes_max = {LEDGER_BYTES}
retention_interval_ms = 500
"""
"""Small segments and ledgers (a segment takes the largest message at least): retention has something to do in every round."""

KEPT_S = 1800.0
"""A run of at least this long is written down in `bench/results/`."""

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key-shared": pulsar.ConsumerType.KeyShared,
}


class Place(NamedTuple):
    """Where a message lies: its entry, and which of a batch it is (-1: the entry is no batch)."""

    ledger: int
    entry: int
    message: int


NOWHERE = Place(-1, -1, -1)


class Outage(NamedTuple):
    """The broker was not there."""

    start: float
    end: float


@dataclass(slots=True, eq=False)
class Life:
    """One consumer, from just before it asked to be let in until just before it said goodbye."""

    opened: float
    closed: float = inf


@dataclass(slots=True)
class Delivery:
    """A consumer got a message; `acked` and `returned` are when it said so, if it did."""

    number: int
    place: Place
    life: Life
    at: float
    acked: float = inf
    returned: float = inf


@dataclass
class Account:
    """Everything that happened on one subscription.

    Attributes:
        kind: a name of TYPES.
        lane: numbers of one lane are delivered for the first time in order; None: the message has no order.
    """

    kind: str
    lane: Callable[[int], int | None]
    lives: list[Life] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: set[int] = field(default_factory=set)
    _last: dict[int, int] = field(default_factory=dict)
    _last_place: Place = NOWHERE

    def came(self, life: Life) -> None:
        """One more consumer."""
        with self.lock:
            self.lives.append(life)

    def delivered(self, life: Life, number: int, place: Place, at: float | None = None) -> Delivery:
        """A consumer got a message, now if no time is given."""
        with self.lock:
            made = Delivery(number, place, life, time.monotonic() if at is None else at)
            self.deliveries.append(made)
            if number not in self._seen:
                self._seen.add(number)
                self._check_order(number, place)
        return made

    def _check_order(self, number: int, place: Place) -> None:
        """Of first deliveries. Whatever makes the broker begin again, a kill too, it begins at or before the first message that
        is not acknowledged: what came so far is always all there is up to some message (of the key), and the next is the next.
        """
        if self.kind in {"exclusive", "failover"}:
            if place < self._last_place:
                self.disorder.append(f"{self.kind}: message {number} at {place} came first after {self._last_place}")
            self._last_place = max(place, self._last_place)
        lane = self.lane(number)
        if lane is None:
            return
        last = self._last.get(lane, 0)
        if number < last:
            self.disorder.append(f"{self.kind}: message {number} came for the first time after message {last}")
        self._last[lane] = max(number, last)


class Ledger:
    """What is known of one topic's messages.

    Args:
        batched: in batches by key, so that the producer's order holds for each key only.
    """

    def __init__(self, *, batched: bool) -> None:
        self.sent: dict[int, float] = {}
        self.confirmed: dict[int, float] = {}
        self.delayed: set[int] = set()
        self.lock = threading.Lock()

        def key(number: int) -> int:
            return number % KEYS

        def key_unless_delayed(number: int) -> int | None:
            return None if number in self.delayed else number % KEYS

        def producer(number: int) -> int:
            return 0

        def nothing(number: int) -> None:
            return None

        whole = key if batched else producer  # Exclusive and Failover do not know of delays
        lanes = {"exclusive": whole, "failover": whole, "shared": nothing, "key-shared": key_unless_delayed}
        self.accounts = {kind: Account(kind, lane) for kind, lane in lanes.items()}

    def judge(self, outages: Sequence[Outage]) -> Counter[str]:
        """Whether it adds up; what was counted.

        Raises:
            AssertionError: it does not.
        """
        sizes: dict[tuple[int, int], int] = {}
        for account in self.accounts.values():
            for each in account.deliveries:
                size = max(each.place.message + 1, 1)
                sizes[each.place[:2]] = max(sizes.get(each.place[:2], 1), size)
        counted = Counter[str](published=len(self.confirmed), unknown=len(self.sent.keys() - self.confirmed.keys()))
        for account in self.accounts.values():
            counted += self._judge_account(account, sizes, outages)
        return counted

    def _judge_account(
        self, account: Account, sizes: dict[tuple[int, int], int], outages: Sequence[Outage]
    ) -> Counter[str]:
        name, deliveries = account.kind, account.deliveries
        seen = {each.number for each in deliveries}
        acked = {each.place for each in deliveries if each.acked < inf}
        places: dict[int, set[Place]] = {}
        for each in deliveries:
            places.setdefault(each.number, set()).add(each.place)
        lost = self.confirmed.keys() - seen
        assert not lost, f"{name} never got {len(lost)} confirmed messages, such as {min(lost)}"
        strange = seen - self.sent.keys()
        assert not strange, f"{name} got {len(strange)} messages that nobody sent"
        left = {each.place for each in deliveries} - acked
        assert not left, f"{name}: no backlog, but {len(left)} messages were never acknowledged, such as {min(left)}"
        assert not account.disorder, f"{account.disorder[0]} ({len(account.disorder)} in all)"
        again = 0
        for number, lying in places.items():
            # A producer that gets no receipt before its connection breaks sends once more what may be stored already.
            start, end = self.sent[number], self.confirmed.get(number, inf)
            broken = [each for each in outages if each.start <= end and each.end + RECONNECT_S >= start]
            assert len(lying) <= 1 + len(broken), f"{name}: message {number} is stored at {sorted(lying)}"
            again += len(lying) - 1
        causes = _Causes(account, self.sent, sizes, outages).count()
        delivered = len(seen)
        assert len(deliveries) == delivered + again + causes.total(), f"{name}: deliveries are miscounted"
        counted = Counter[str](
            delivered=delivered, acknowledged=len({one.number for one in deliveries if one.acked < inf})
        )
        counted += Counter({"published again": again, "redelivered": causes.total()})
        counted["returned"] = sum(one.returned < inf for one in deliveries)
        return counted + Counter({f"again: {why}": number for why, number in causes.items()})


class _Causes:
    """Finds a cause for each redelivery of a subscription.

        given back          Shared, Key_Shared: a message of the same entry was (entries come again whole)
                            Exclusive, Failover: its consumer gave anything back: all that is not acknowledged comes again
        its consumer went   one that had been sent it closed before it was acknowledged
        another's turn      Failover: a consumer came or went, so that another one begins behind mark-delete, what lies in
                            the queue of the one before notwithstanding
        outage              nothing is known of what was sent before

    Between two deliveries of a message there has to be a cause that the broker learned of

        after the message was first sent to a consumer: not before it was published, nor before either consumer came (it
            may have lain in the one's queue for long: when the client hands it out says nothing)
        before the second delivery
        before it knew the acknowledgement of the whole entry, if there was one that no outage undid: from then on it
            sends the entry to nobody

    and each cause but an outage makes a message come once more at most.
    """

    def __init__(
        self,
        account: Account,
        sent: dict[int, float],
        sizes: dict[tuple[int, int], int],
        outages: Sequence[Outage],
    ) -> None:
        self._kind = account.kind
        self._in_order = account.kind in {"exclusive", "failover"}
        self._sent = sent
        self._sizes = sizes
        self._outages = outages
        self._entries: dict[tuple[int, int], list[Delivery]] = {}
        self._returns_of: dict[int, list[float]] = {}
        for each in account.deliveries:
            self._entries.setdefault(each.place[:2], []).append(each)
            if each.returned < inf:
                self._returns_of.setdefault(id(each.life), []).append(each.returned)
        turns = [(life.opened, life) for life in account.lives] + [(life.closed, life) for life in account.lives]
        self._turns = sorted(((at, life) for at, life in turns if at < inf), key=lambda turn: turn[0])
        self._turn_times = [at for at, _ in self._turns]

    def count(self) -> Counter[str]:
        """Redeliveries by cause.

        Raises:
            AssertionError: one has none.
        """
        counted = Counter[str]()
        for entry, deliveries in self._entries.items():
            if len({each.place for each in deliveries}) == len(deliveries):
                continue  # nothing of it came again
            settled = self._settled(deliveries, self._sizes[entry])
            returns = sorted(each.returned for each in deliveries if each.returned < inf)
            of_place: dict[Place, list[Delivery]] = {}
            for each in deliveries:
                of_place.setdefault(each.place, []).append(each)
            for same in of_place.values():
                used: set[object] = set()
                for number in range(1, len(same)):
                    counted[self._cause(same[: number + 1], returns, settled, used)] += 1
        return counted

    def _settled(self, deliveries: list[Delivery], size: int) -> Delivery | None:
        """The earliest last acknowledgement that makes a consumer tell the broker that an entry is acknowledged.

        The client tells it when all messages of one copy of a batch are; copies count for themselves. A copy is handed out in
        order, so that a message at or before the one before belongs to the next copy.
        """
        copies: dict[int, list[Delivery]] = {}
        done: list[Delivery] = []
        for each in deliveries:
            copy = copies.setdefault(id(each.life), [])
            if copy and each.place.message <= copy[-1].place.message:
                copy.clear()
            copy.append(each)
            if len(copy) == size:
                last = max(copy, key=lambda one: one.acked)
                if last.acked < inf and not self._undone(last.acked):
                    done.append(last)
        return min(done, key=lambda one: one.acked, default=None)

    def _undone(self, acked: float) -> bool:
        return any(each.start - ACK_DURABLE_S < acked < each.end + RECONNECT_S for each in self._outages)

    def _cause(self, same: list[Delivery], returns: list[float], settled: Delivery | None, used: set[object]) -> str:
        """Why the last of these deliveries of one message followed the one before."""
        first, second = same[-2:]
        lower = max(self._sent[second.number], min(first.life.opened, second.life.opened))
        upper = min(second.at, settled.acked + GROUPED_S) if settled is not None else second.at
        # The consumers of a Failover subscription come back one by one, each time perhaps to another one's turn.
        back = RECONNECT_S if self._kind == "failover" else 0.0
        # Before the others: it explains as many as there are, and they may be what later deliveries need.
        if any(each.start <= upper and each.end + back >= lower for each in self._outages):
            return "outage"
        given, whose = (self._returns_of.get(id(second.life), []), id(second.life)) if self._in_order else (returns, 0)
        found: list[_Cause | None] = [_first_unused("given back", whose, given, lower - GROUPED_S, upper, used)]
        if self._kind == "failover":
            found += self._turn(first.life, second.life, lower, upper, settled, used)
        else:
            lives = {id(each.life): each.life for each in same[:-1]}
            gone: list[_Cause] = [
                (life.closed, "its consumer went", key)
                for key, life in lives.items()
                if self._ends(life, lower, upper, settled)
            ]
            found += [each for each in gone if each not in used]
        # The earliest, for the same reason.
        cause = min((each for each in found if each is not None), key=lambda each: each[0], default=None)
        if cause is not None:
            used.add(cause)
            return cause[1]
        acknowledged = f"acknowledged at {settled.acked:.2f}" if settled is not None else "not acknowledged"
        raise AssertionError(
            f"{self._kind}: message {second.number} at {tuple(second.place)} came at {first.at:.2f} and again at "
            f"{second.at:.2f} ({len(same)} times by then) without a cause from {lower:.2f} to {upper:.2f}; {acknowledged}; "
            f"its consumers {first.life} and {second.life}; outages {[tuple(each) for each in self._outages]}"
        )

    def _turn(
        self, one: Life, other: Life, lower: float, upper: float, settled: Delivery | None, used: set[object]
    ) -> list["_Cause"]:
        """The first coming of one of two consumers, or going of any, that was not yet a cause; none or one.

        Who comes takes over from who is there. Who goes may have taken over, and gives back to whoever had the message before.
        """
        # The later one. When both asked at about the same time, nobody knows who was let in first.
        pair, latest = (one, other), max(one.opened, other.opened)
        for number in range(bisect_left(self._turn_times, lower - OVERTAKEN_S - GROUPED_S), len(self._turns)):
            when, life = self._turns[number]
            if when > upper:
                break
            cause = when, "another's turn", number
            came = when == life.opened and one is not other and life in pair and when >= latest - GROUPED_S
            if cause not in used and (came or self._ends(life, lower, upper, settled)):
                return [cause]
        return []

    @staticmethod
    def _ends(life: Life, lower: float, upper: float, settled: Delivery | None) -> bool:
        """Whether a consumer's end can make the broker send again: not what it had acknowledged, which it tells first."""
        told = settled is not None and settled.life is life
        return lower <= life.closed <= upper and not told


_Cause = tuple[float, str, object]
"""When, what, and which one of its kind."""


def _first_unused(
    what: str, whose: int, times: list[float], lower: float, upper: float, used: set[object]
) -> _Cause | None:
    for number in range(bisect_left(times, lower), len(times)):
        cause = times[number], what, (whose, number)
        if times[number] > upper:
            return None
        if cause not in used:
            return cause
    return None


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
        self._outages: list[Outage] = []
        self._stop = threading.Event()
        self._errors: list[str] = []
        self.totals: Counter[str] = Counter()

    def disk_bytes(self) -> int:
        """Of the log's segments; the broker deletes some while they are counted."""
        total = 0
        for path in self._data.rglob("*.seg"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def round(
        self, seconds: float, *, kills: int, topics: int = 3, tell: Callable[[str], None] = lambda _line: None
    ) -> dict[str, int]:
        """Clients and faults for some time, then healing and the ledger; what was counted.

        Raises:
            AssertionError: it does not add up.
        """
        self._stop.clear()
        self._outages.clear()  # those of rounds before are of other topics
        ledgers = {f"soak-{uuid.uuid4().hex[:6]}-{each}": Ledger(batched=each > 0) for each in range(topics)}
        threads = []
        for number, (topic, ledger) in enumerate(ledgers.items()):
            self._make_subscriptions(topic)
            jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._publish, (topic, ledger, number))]
            jobs += [(self._consume, (topic, ledger, name, each)) for name in TYPES for each in range(_members(name))]
            for target, arguments in jobs:
                seed = self._chance.getrandbits(32)
                threads.append(threading.Thread(target=self._guarded, args=(target, *arguments, random.Random(seed))))
        for thread in threads:
            thread.start()
        try:
            most = self._faults(seconds, kills)
        finally:
            self._stop.set()  # else they would keep the program from ending
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
            try:
                counted += ledger.judge(self._outages)
            except AssertionError as error:
                raise AssertionError(f"{topic}: {error}") from error
        shrunk = self._disk_comes_back(list(ledgers), most)
        self.totals += counted
        memory, files = self.held()
        tell(f"{dict(counted)}; {memory >> 20} MiB, {files} descriptors; log {shrunk}")
        return dict(counted)

    def held(self) -> tuple[int, int]:
        """Memory and descriptors of the broker."""
        pid = self._pid()
        return resident_bytes(pid), descriptors(pid)

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

    def _make_subscriptions(self, topic: str) -> None:
        client = self._client()
        for name, kind in TYPES.items():
            client.subscribe(topic, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest).close()
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
            self._stop.wait(0.05)
        producer.flush()
        client.close()

    def _consume(self, topic: str, ledger: Ledger, name: str, number: int, chance: random.Random) -> None:
        client = self._client()
        account = ledger.accounts[name]
        while not self._stop.is_set():
            life = Life(time.monotonic())
            try:
                consumer = client.subscribe(
                    topic, name, consumer_type=TYPES[name], negative_ack_redelivery_delay_ms=200,
                    receiver_queue_size=chance.choice([1, 10, 1_000]),
                )  # fmt: skip
            except (pulsar.ConsumerBusy, pulsar.Timeout):  # the one before is not yet gone, or the broker is down
                self._stop.wait(0.2)
                continue
            account.came(life)
            until = time.monotonic() + chance.uniform(1, 6)
            while time.monotonic() < until and not self._stop.is_set():
                self._one(consumer, account, life, chance)
            life.closed = time.monotonic()
            with contextlib.suppress(pulsar.Timeout):  # the broker is down: it closes nothing
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
                self._outages.append(Outage(killed, inf))  # until it is known
                if self._chance.random() < 0.75:
                    self.broker.kill()
                else:
                    assert self.broker.stop() == 0, "SIGTERM did not end the broker cleanly"
                self.broker.start()
                self._outages[-1] = Outage(killed, time.monotonic())
            most = max(most, self.disk_bytes())
            self._stop.wait(0.1)
        return most

    # -------------------------------------------------------------------------------------------------------- the end

    def _heal(self, topic: str, ledger: Ledger) -> None:
        """Consume everything that is left, until the broker says that there is no backlog."""
        client = self._client()
        path = f"/admin/v2/persistent/public/default/{topic}/stats"
        for name, kind in TYPES.items():
            account, life = ledger.accounts[name], Life(time.monotonic())
            consumer = client.subscribe(topic, name, consumer_type=kind)
            account.came(life)
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                try:
                    message = consumer.receive(300)
                except pulsar.Timeout:
                    if self.broker.rest("GET", path)["subscriptions"][name]["msgBacklog"] == 0:
                        break
                    continue
                self._acknowledge(consumer, message, self._delivered(message, account, life))
            else:
                raise AssertionError(
                    f"{topic}: subscription {name} still has a backlog: {self.broker.rest('GET', path)}"
                )
            life.closed = time.monotonic()
            consumer.close()
        client.close()
        time.sleep(1.0)  # acknowledgements are answered to nobody here; they are durable after cursor_flush_ms (20)

    def _disk_comes_back(self, topics: list[str], most: int) -> str:
        """What nobody needs is deleted: first by being acknowledged, then with its topics. How much there was."""
        path = "/admin/v2/persistent/public/default/{}"
        held = 0
        for topic in topics:
            inside = path.format(topic) + "/internalStats"
            eventually(
                partial(self._has_one_ledger, inside),
                within_s=60,
                every_s=0.2,
                what=f"all ledgers of {topic} but the last are deleted, as everything is acknowledged",
            )
            held += self.broker.rest("GET", path.format(topic) + "/stats")["storageSize"]
        after = self._shrinks(limit_acknowledged(held, len(topics)), most)
        for topic in topics:
            self.broker.rest("DELETE", path.format(topic) + "?force=true")
        return f"{most >> 20} -> {after >> 20} -> {self._shrinks(limit_acknowledged(0, 0), most) >> 20} MiB"

    def _has_one_ledger(self, path: str) -> bool:
        return len(self.broker.rest("GET", path)["ledgers"]) <= 1

    def _shrinks(self, limit: int, most: int) -> int:
        """Wait until the log is no larger; what it has then."""
        deadline = time.monotonic() + 60
        while (size := self.disk_bytes()) > limit:
            assert time.monotonic() < deadline, (
                f"the log had {most >> 20} MiB and does not shrink to {limit >> 20}: it has {size >> 20} MiB"
            )
            time.sleep(0.1)
        return size


def limit_acknowledged(held: int, ledgers: int) -> int:
    """Bytes that the log may have on the disk when this much of it is needed, in so many ledgers.

    A closed segment is rewritten when less than LIVE_FRACTION_MAX of it is needed, unless it is smaller than
    REWRITE_BYTES_MIN: such ones come from restarts, and no more than one belongs to a ledger. Besides there is the segment that
    is written, and one that is full and just being looked at; each may be too large by what was written last.
    """
    return int(held / LIVE_FRACTION_MAX) + ledgers * REWRITE_BYTES_MIN + 2 * (SEGMENT_BYTES + REWRITE_BYTES_MIN)


def keep(suite: str, figures: list[Figure], command: list[str]) -> Path:
    """Write down what a long run did, as the benches do; where."""
    store(suite, figures, command)
    path = RESULTS / f"{suite}.json"
    # `store` thinks of benches, which are modules.
    content = json.loads(path.read_text()) | {"command": " ".join(["python", *command])}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path


def _members(name: str) -> int:
    return 1 if name == "exclusive" else 2
