"""What is known of every message of a topic, and whether it adds up."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import pulsar

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
        deduplicated: what the producer sends again after an outage is not stored again.
    """

    def __init__(self, *, batched: bool, deduplicated: bool = False) -> None:
        self.deduplicated = deduplicated
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
            allowed = 1 if self.deduplicated else 1 + len(broken)
            assert len(lying) <= allowed, f"{name}: message {number} is stored at {sorted(lying)}"
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


def judge_all(ledgers: Mapping[str, Ledger], outages: Sequence[Outage]) -> Counter[str]:
    """Whether the ledger of each topic adds up; what was counted.

    Raises:
        AssertionError: one does not.
    """
    counted = Counter[str]()
    for topic, ledger in ledgers.items():
        try:
            counted += ledger.judge(outages)
        except AssertionError as error:
            raise AssertionError(f"{topic}: {error}") from error
    return counted


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
