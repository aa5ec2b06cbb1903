"""Dispatch of all four types against a model that knows only what clients see and do.

After every step the machine validates itself; at every message the model checks that it may be sent; at the end the world
heals, and everything that was published must be acknowledged.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar import FORM
from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch import multiple
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.runtime.interpreter.compiled import COMPILED
from magnetar.storage.cursor import bits_of
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.wire import pulsar_pb2 as pb
from tests.support.subscriptions import Limits, Received, World, entry


@pytest.fixture(autouse=True, scope="module")
def _few_due_at_a_time() -> Iterator[None]:
    """So that some stay behind. Compiled modules have these limits in their machine code: there the worlds are as they are."""
    if FORM.name == COMPILED:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiple, "DUE_WAITING_MAX", 4)
        patch.setattr(multiple, "DUE_TAKEN_MAX", 3)
        patch.setattr(multiple, "RETURNED_MAX", 2)
        yield


KEYS = ["red", "green", "blue", "cyan", "plum"]
NUMBER = st.integers(0, 1_000)


class Seen:
    """A consumer as the model sees it."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.permits = 0
        self.paused = False
        self.pending: dict[Position, int] = {}


class Dispatch(RuleBasedStateMachine):
    """The rules; the model's view of a message is in `sent` of the subclasses' types."""

    sub_types: tuple[SubType, ...] = ()

    @initialize(
        kind=NUMBER,
        cache=st.sampled_from([0, 2_000, 1 << 20]),
        ledger=st.sampled_from([3, 7, 1_000]),
        partition=st.sampled_from([-1, 1]),
        unacked=st.sampled_from([6, 1_000]),
        look_ahead=st.sampled_from([4, 1_000]),
        bytes_max=st.sampled_from([200, 1 << 20]),
        again=st.sampled_from([1, 2, 500]),
        out_of_order=st.sampled_from([False, False, False, True]),
    )
    def start(
        self,
        kind: int,
        cache: int,
        ledger: int,
        partition: int,
        unacked: int,
        look_ahead: int,
        bytes_max: int,
        again: int,
        out_of_order: bool,
    ) -> None:
        self.sub_type = self.sub_types[kind % len(self.sub_types)]
        self.out_of_order = out_of_order and self.sub_type is SubType.KEY_SHARED
        self.unacked_max = unacked
        limits = Limits(unacked_messages_per_consumer_max=unacked, unacked_messages_per_subscription_max=4 * unacked)
        self.world = World(cache_bytes=cache, ledger_entries_max=ledger, partition=partition, limits=limits)
        self.world.set_limits(
            look_ahead_entries_max=look_ahead,
            look_ahead_bytes_max=bytes_max,
            dispatch_bytes_max=bytes_max,
            read_bytes_max=bytes_max,
            read_entries_max=5,
            again_entries_max=again,
            delayed_entries_max=6,
        )
        self.world.on_message = self.sent
        self.world.on_command = self.told
        self.entries: dict[Position, int] = {}
        self.keys: dict[Position, str | None] = {}
        self.due: dict[Position, int] = {}
        self.left: dict[Position, int] = {}  # bits of messages not acknowledged; 0: all are, or it is a marker
        self.message: dict[Position, str] = {}  # of chunks
        self.messages = 0
        self.ever: set[Position] = set()
        self.seen: dict[int, Seen] = {}
        self.reached = EARLIEST
        self.sought_at = EARLIEST
        self.names = 0

    # ----------------------------------------------------------------------------------------------------- the model

    @property
    def multiple(self) -> bool:
        return self.sub_type in {SubType.SHARED, SubType.KEY_SHARED}

    def sent(self, connection: int, message: Received) -> None:
        position = message.position
        seen = self.seen[connection]
        assert self.left[position], f"{position} is acknowledged, or a marker"
        assert seen.permits > 0, "more than was asked for"
        assert not seen.paused, "its connection takes nothing"
        bits = self.left[position]
        full = (1 << self.entries[position]) - 1
        assert (bits_of(message.ack_set) or full) == bits
        seen.permits -= bits.bit_count()
        if self.multiple:
            self.sent_to_one_of_many(seen, position)
        else:
            self.sent_to_the_active(seen, position)

    def sent_to_one_of_many(self, seen: Seen, position: Position) -> None:
        assert self.due[position] <= self.world.outbox.now_ms, f"{position} comes before its time"
        assert all(position not in other.pending for other in self.seen.values()), f"{position} is pending already"
        assert sum(seen.pending.values()) < self.unacked_max, "it holds too much already"
        if self.sub_type is SubType.KEY_SHARED and not self.out_of_order and self.keys[position] is not None:
            for other in self.same_key(position):
                assert all(other not in each.pending for each in self.seen.values() if each is not seen), (
                    f"{position} and {other} have the same key and are at two consumers"
                )
                if other < position and self.left[other] and not self.due[other]:
                    assert other in seen.pending, f"{position} overtakes {other} of the same key"
        if position not in self.ever and not self.out_of_order:
            # What comes again may have lost its owner; what comes for the first time goes to who has the chunks before it.
            for other in self.seen.values():
                torn = any(self.message.get(each, "") == self.message.get(position) for each in other.pending)
                assert other is seen or not torn, f"{position} is a chunk of a message that another consumer has"
        self.ever.add(position)
        seen.pending[position] = self.left[position].bit_count()

    def same_key(self, position: Position) -> Iterator[Position]:
        return (each for each, key in self.keys.items() if key == self.keys[position] and each != position)

    def sent_to_the_active(self, seen: Seen, position: Position) -> None:
        assert self.world.subscription._dispatcher.active is seen.consumer
        assert position > self.reached, f"{position} comes after {self.reached}"
        for each, bits in self.left.items():
            assert not (self.reached < each < position and bits), f"{position} overtakes {each}"
        self.reached = position

    def one(self, number: int) -> Seen | None:
        everyone = list(self.seen.values())
        return everyone[number % len(everyone)] if everyone else None

    def told(self, connection: int, command: pb.BaseCommand) -> None:
        if command.active_consumer_change.is_active:
            assert self.world.subscription._dispatcher.active is self.seen[connection].consumer
            self.reached = EARLIEST  # whoever becomes active begins behind mark-delete

    def run(self) -> None:
        self.world.pump()
        active = self.world.subscription._dispatcher.active
        assert self.multiple or (active is not None) == bool(self.seen)

    # ----------------------------------------------------------------------------------------------------- the rules

    @rule(patient=st.booleans())
    def others_come_first(self, patient: bool) -> None:
        """What goes on in events of its own has to wait for them; or it has not, any more."""
        self.world.patient = patient
        self.world.pump()

    @rule(
        what=st.lists(
            st.tuples(
                st.sampled_from([0, 1, 1, 1, 1, 3]),
                st.sampled_from([*KEYS, *KEYS, None]),
                st.sampled_from([0, 0, 0, 0, 0, 5]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def publish(self, what: list[tuple[int, str | None, int]]) -> None:
        now_ms = self.world.outbox.now_ms

        def stored(entries: list[StoredEntry]) -> None:
            for (count, key, delay), each in zip(what, entries, strict=True):
                position = each.position
                self.entries[position] = count
                self.keys[position] = key if count else None
                self.due[position] = now_ms + delay if delay and count else 0
                self.left[position] = (1 << count) - 1

        self.world.on_stored = stored
        self.world.publish(
            *(
                entry(
                    marker=not count, count=count or 1, key=key, deliver_at=now_ms + delay if delay and count else None
                )
                for count, key, delay in what
            )
        )
        self.run()

    @rule(
        many=st.sampled_from([1, 2, 2]),
        chunks=st.integers(2, 4),
        key=st.sampled_from([*KEYS, None, None]),
        order=st.integers(0, 99),
    )
    def publish_in_chunks(self, many: int, chunks: int, key: str | None, order: int) -> None:
        """Messages of several producers at once: their chunks lie between each other's."""
        names = [f"u{self.messages + number}" for number in range(many)]
        self.messages += many
        left, parts = dict.fromkeys(names, 0), []
        while left:
            name = list(left)[order % len(left)]
            order = order * 7 + 3
            parts.append((name, left[name]))
            left[name] += 1
            if left[name] == chunks:
                del left[name]
        for name, number in parts:

            def stored(entries: list[StoredEntry], name: str = name) -> None:
                [position] = [each.position for each in entries]
                self.entries[position], self.left[position], self.due[position] = 1, 1, 0
                self.keys[position], self.message[position] = key, name

            self.world.on_stored = stored
            self.world.publish(entry(key=key, chunk=(name, number, chunks)))
            self.run()

    @rule(permits=st.sampled_from([0, 1, 3, 50]), priority=st.sampled_from([0, 0, 1]), twin=st.booleans())
    def come(self, permits: int, priority: int, twin: bool) -> None:
        if len(self.seen) >= (1 if self.sub_type is SubType.EXCLUSIVE else 4):
            return
        self.names += 1
        name = "twin" if twin else f"c{self.names * 7 % 5}{self.names}"
        # Known before it comes: coming is what makes the machine speak to it.
        consumer = self.world.new_consumer(name, self.sub_type, priority=priority)
        self.seen[consumer.connection] = Seen(consumer)
        if self.sub_type is SubType.EXCLUSIVE:
            self.reached = EARLIEST  # it is not told that it begins
        self.world.connect(consumer, out_of_order=self.out_of_order)
        self.flow_to(self.seen[consumer.connection], permits)

    @rule(number=NUMBER)
    def leave(self, number: int) -> None:
        seen = self.one(number)
        if seen is None:
            return
        del self.seen[seen.consumer.connection]
        self.world.leave(seen.consumer)
        self.run()

    @rule(number=NUMBER, permits=st.sampled_from([1, 2, 5, 30]))
    def flow(self, number: int, permits: int) -> None:
        seen = self.one(number)
        if seen is not None:
            self.flow_to(seen, permits)

    def flow_to(self, seen: Seen, permits: int) -> None:
        if permits:
            seen.permits += permits
            self.world.flow(seen.consumer, permits)

    @rule(number=NUMBER)
    def pause(self, number: int) -> None:
        seen = self.one(number)
        if seen is not None:
            seen.paused = True
            self.world.subscription.pause(seen.consumer.connection)

    @rule(number=NUMBER)
    def resume(self, number: int) -> None:
        seen = self.one(number)
        if seen is not None:
            seen.paused = False
            self.world.subscription.resume(seen.consumer.connection)
            self.run()

    @rule(number=NUMBER, which=st.lists(NUMBER, min_size=1, max_size=5), bits=st.sampled_from([None, None, None, 1, 6]))
    def ack(self, number: int, which: list[int], bits: int | None) -> None:
        seen = self.one(number)
        if seen is None or not self.left:
            return
        mine = (
            list(seen.pending) if self.multiple and number % 3 else [each for each in self.left if each <= self.read()]
        )
        if not mine:
            return
        positions = [mine[each % len(mine)] for each in which]
        for position in positions:
            assert not self.late(position)
            self.left[position] &= bits or 0
            self.forget(position)
        self.world.ack(seen.consumer, *positions, ack_set=[bits] if bits else ())

    def read(self) -> Position:
        return self.world.subscription._dispatcher.reading.after

    def forget(self, position: Position) -> None:
        for each in self.seen.values():
            if position in each.pending:
                each.pending[position] = self.left[position].bit_count()
                if not self.left[position]:
                    del each.pending[position]

    @precondition(lambda self: not self.multiple)
    @rule(number=NUMBER, which=NUMBER)
    def ack_cumulative(self, number: int, which: int) -> None:
        seen = self.one(number)
        if seen is None or not self.left:
            return
        position = list(self.left)[which % len(self.left)]
        late = self.late(position)
        if not late:
            self.acked_up_to(position)
        assert not (self.world.ack(seen.consumer, position, cumulative=True) and late)

    def late(self, position: Position) -> bool:
        """Whether it was sent before a seek and not again since; when all has been, nothing is late any more."""
        if self.read() >= self.sought_at:
            self.sought_at = EARLIEST
        return self.read() < position <= self.sought_at

    def acked_up_to(self, position: Position) -> None:
        for each in self.left:
            if each <= position:
                self.left[each] = 0
                self.forget(each)

    @rule(number=NUMBER, which=st.none() | st.lists(NUMBER, min_size=1, max_size=4))
    def redeliver(self, number: int, which: list[int] | None) -> None:
        seen = self.one(number)
        if seen is None:
            return
        if not self.multiple:
            if self.world.subscription._dispatcher.active is seen.consumer:
                self.reached = EARLIEST
            self.world.redeliver(seen.consumer)
            return
        known = list(self.left)
        again = [known[each % len(known)] for each in which or []] if known else []
        for position in again or list(seen.pending):
            seen.pending.pop(position, None)
        self.world.redeliver(seen.consumer, *again)

    @rule(ms=st.sampled_from([1, 3, 1_000, 2_500]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(count=st.integers(1, 4))
    def skip(self, count: int) -> None:
        unacked = [position for position, bits in self.left.items() if bits]
        if unacked:
            self.acked_up_to(unacked[min(count, len(unacked)) - 1])
        assert self.world.subscription.skip(count) == min(count, len(unacked))
        self.run()

    @rule(number=NUMBER, place=st.sampled_from(["earliest", "latest", "entry"]))
    def seek(self, number: int, place: str) -> None:
        known = list(self.left)
        target = {"earliest": EARLIEST, "latest": LATEST}.get(place, known[number % len(known)] if known else LATEST)
        self.seen.clear()
        self.sought_at = self.world.log.last
        for position, count in self.entries.items():
            self.left[position] = (1 << count) - 1 if position >= target else 0
        self.world.subscription.seek_to(target)
        self.run()

    @rule(which=st.lists(NUMBER, min_size=1, max_size=5), bits=st.sampled_from([0, 0, 1, 6]))
    def acknowledged_elsewhere(self, which: list[int], bits: int) -> None:
        """Another cluster's consumers acknowledge: whole entries, or all messages of batches but those of `bits`."""
        known = list(self.left)
        if not known:
            return
        whole, partial = PositionSet(), {}
        for position in {known[each % len(known)] for each in which}:
            if bits:
                partial[position] = ((1 << self.entries[position]) - 1) & ~bits
            else:
                whole.add(*position)
            self.left[position] &= bits
            self.forget(position)
        self.world.subscription.acknowledged_elsewhere(whole, partial)
        self.world.subscription.available()
        self.run()

    @rule(which=st.lists(NUMBER, max_size=5), bits=st.sampled_from([0, 0, 1, 6]))
    def rebuild(self, which: list[int], bits: int) -> None:
        """Another cluster's seek: exactly these are acknowledged."""
        known = list(self.left)
        chosen = {known[each % len(known)] for each in which} if known else set()
        whole, partial = PositionSet(), {}
        self.seen.clear()
        self.sought_at = self.world.log.last
        self.reached = EARLIEST
        for position, count in self.entries.items():
            full = (1 << count) - 1
            self.left[position] = full & bits if position in chosen else full
            if position in chosen and bits:
                partial[position] = full & ~bits
            elif position in chosen:
                whole.add(*position)
        self.world.subscription.rebuild(whole, partial)
        self.run()

    @rule(error=st.sampled_from(["", "", "disk on fire"]))
    def disk(self, error: str) -> None:
        self.world.disk_error = error

    @rule(auto=st.booleans())
    def disk_speed(self, auto: bool) -> None:
        self.world.auto_read = auto
        self.run()

    @rule()
    def disk_answers(self) -> None:
        if self.world.reads:
            self.world.answer_read()
            self.run()

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """At rest, dispatching once more finds nothing to do: no event was missed that should have led to it."""
        if not hasattr(self, "world") or self.world.reads or self.world.failing():
            return
        self.world.subscription._dispatcher.dispatch()
        assert not self.world.outbox.effects, f"it was not yet done: {self.world.outbox.effects}"

    # ------------------------------------------------------------------------------------------------------- the end

    def teardown(self) -> None:
        """The world heals: consumers ask and acknowledge; nothing may be left."""
        if not hasattr(self, "world"):
            return
        self.world.disk_error = ""
        self.world.auto_read = True
        self.world.patient = False
        self.world.pump()
        if not self.seen:
            self.come(0, 0, twin=False)
        for _ in range(200):
            self.world.advance(2_000)
            for seen in list(self.seen.values()):
                seen.paused = False
                self.world.subscription.resume(seen.consumer.connection)
                self.world.pump()
                self.flow_to(seen, 50)
                positions = (
                    list(seen.pending) if self.multiple else [each for each in self.left if each <= self.reached]
                )
                for position in positions:
                    self.left[position] = 0
                    self.forget(position)
                if positions:
                    self.world.ack(seen.consumer, *positions)
            if not any(self.left.values()):
                break
        assert not any(self.left.values()), f"never delivered: {[each for each, bits in self.left.items() if bits]}"
        subscription = self.world.subscription
        assert subscription.mark_delete == self.world.log.last or not self.entries
        assert subscription.backlog_entries() == 0
        assert subscription_stats.stats(subscription)["unackedMessages"] == 0


class ManyConsumers(Dispatch):
    sub_types = (SubType.SHARED, SubType.KEY_SHARED, SubType.KEY_SHARED)


class OneActive(Dispatch):
    sub_types = (SubType.EXCLUSIVE, SubType.FAILOVER)


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestManyConsumers = ManyConsumers.TestCase
TestManyConsumers.settings = SETTINGS
TestOneActive = OneActive.TestCase
TestOneActive.settings = SETTINGS

WALKS = int(os.environ.get("DISPATCH_WALKS", "400"))
"""Long random walks find what needs many steps to come about; a failing one is named by its seed."""


def walk(machine: Dispatch, seed: int) -> None:
    """A hundred weighted random steps, then the end."""
    chance = random.Random(seed)
    number = lambda: chance.randrange(1_000)  # noqa: E731
    machine.start(
        kind=number(),
        cache=chance.choice([0, 2_000, 1 << 20]),
        ledger=chance.choice([3, 7, 1_000]),
        partition=chance.choice([-1, 1]),
        unacked=chance.choice([6, 1_000]),
        look_ahead=chance.choice([4, 1_000]),
        bytes_max=chance.choice([200, 1 << 20]),
        again=chance.choice([1, 2, 500]),
        out_of_order=chance.random() < 0.1,
    )
    some = lambda most: [number() for _ in range(chance.randint(1, most))]  # noqa: E731
    message = lambda: (  # noqa: E731
        chance.choice([0, 1, 1, 1, 1, 3]),
        chance.choice([*KEYS, *KEYS, None]),
        chance.choice([0] * 9 + [2, 5]),
    )
    steps: list[tuple[int, Callable[[], None]]] = [
        (20, lambda: machine.publish([message() for _ in range(chance.randint(1, 6))])),
        (6, lambda: machine.come(chance.choice([0, 3, 50]), chance.choice([0, 0, 1]), chance.random() < 0.3)),
        (4, lambda: machine.leave(number())),
        (14, lambda: machine.flow(number(), chance.choice([1, 2, 5, 30]))),
        (2, lambda: machine.pause(number())),
        (5, lambda: machine.resume(number())),
        (20, lambda: machine.ack(number(), some(5), chance.choice([None, None, None, 1, 6]))),
        (4, lambda: None if machine.multiple else machine.ack_cumulative(number(), number())),
        (6, lambda: machine.redeliver(number(), chance.choice([None, some(4), some(4)]))),
        (8, lambda: machine.time_passes(chance.choice([1, 1, 3, 3, 1_000, 2_500]))),
        (1, lambda: machine.skip(chance.randint(1, 4))),
        (5, lambda: machine.acknowledged_elsewhere(some(5), chance.choice([0, 0, 1, 6]))),
        (1, lambda: machine.rebuild(some(5), chance.choice([0, 0, 1, 6]))),
        (1, lambda: machine.seek(number(), chance.choice(["earliest", "latest", "entry"]))),
        (2, lambda: machine.disk(chance.choice(["", "", "disk on fire"]))),
        (3, lambda: machine.disk_speed(chance.random() < 0.6)),
        (6, machine.disk_answers),
    ]
    weights = [weight for weight, _ in steps]
    for _ in range(100):
        [(_, step)] = chance.choices(steps, weights)
        step()
        machine.nothing_is_forgotten()
    machine.teardown()


@pytest.mark.parametrize("machine", [ManyConsumers, OneActive])
def test_long_walks(machine: type[Dispatch]) -> None:
    for seed in range(WALKS):
        try:
            walk(machine(), seed)
        except Exception as error:
            raise AssertionError(f"walk {seed} of {machine.__name__} failed") from error
