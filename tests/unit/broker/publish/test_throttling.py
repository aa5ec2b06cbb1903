"""Token buckets against a dumb twin; what waits for a publish rate, and in which order it goes."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.publish.producers import AccessMode, Producer
from magnetar.broker.publish.throttling import PublishThrottle
from magnetar.core.rates import Rate, TokenBucket, rate_of
from magnetar.effects.outbox import Outbox
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar_sim.host.host import Host

steps = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1000), st.sampled_from([1000, 7000, 60_000]), steps)
def test_a_bucket_is_what_fractions_say(tokens: int, period_ms: int, story: list[tuple[int, int]]) -> None:
    bucket, now, level = TokenBucket(tokens, period_ms, 0), 0, Fraction(tokens)
    for pause, wanted in story:
        now += pause
        level = min(Fraction(tokens), level + Fraction(pause * tokens, period_ms))
        assert bucket.room(now) == level.__floor__()
        if level >= 1:
            bucket.take(wanted)
            level -= wanted
        wait = bucket.wait_ms(now)
        after = min(Fraction(tokens), level + Fraction(wait * tokens, period_ms))
        assert after >= 1 and (wait == 0 or level + Fraction((wait - 1) * tokens, period_ms) < 1)
        bucket.validate()


@given(st.integers(1, 50), st.lists(st.integers(1, 400), min_size=1, max_size=50))
def test_the_rate_holds_in_the_long_run_whatever_the_size_of_batches(tokens: int, batches: list[int]) -> None:
    bucket, now, taken = TokenBucket(tokens, 1000, 0), 0, 0
    for batch in batches:
        now += bucket.wait_ms(now)
        bucket.take(batch)
        taken += batch
        # At any time no more than the burst, the time's tokens, and what the last batch went over.
        assert taken - batch < tokens + Fraction(now * tokens, 1000) + 1


def test_both_kinds_count_and_an_unchanged_rate_keeps_its_debts() -> None:
    rate = Rate(10, 1000, 1000, 0)
    rate.take(1, 3000)
    assert rate.messages(0) == 0 and rate.wait_ms(0) == 2001
    assert rate.messages(2001) == 10
    assert rate_of(10, 1000, 1000, 5, rate) is rate
    assert rate_of(0, -1, 1000, 5, rate) is None
    changed = rate_of(20, 0, 1000, 5, rate)
    assert changed is not None and changed is not rate and changed.messages(5) == 20


class Recorder:
    """A connection that notes what is published and what waits."""

    def __init__(self, rate: Rate | None) -> None:
        self.rate = rate
        self.published: list[tuple[str, int]] = []
        self.waiting = 0

    def publish_now(self, producer: Producer, frames: list[Frame]) -> None:
        for frame in frames:
            self.published.append((producer.name, frame.command.send.sequence_id))
            if self.rate is not None:
                self.rate.take(frame.command.send.num_messages, len(frame.payload))

    def throttled(self, size: int) -> None:
        self.waiting += size
        assert self.waiting >= 0


def producer(name: str) -> Producer:
    return Producer(1, 1, 1, name, AccessMode.SHARED, 0, True)


def sends(first: int, count: int, size: int = 10) -> list[Frame]:
    return [
        Frame(
            pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1)), b"x" * size
        )
        for number in range(first, first + count)
    ]


def test_what_is_over_the_rate_goes_later_in_order_and_producers_take_turns() -> None:
    outbox = Outbox(now_ms=1000)
    host = Host(outbox, {})
    rate = Rate(10, 0, 1000, 1000)
    throttle, here = PublishThrottle(outbox, rate), Recorder(rate)
    a, b = producer("a"), producer("b")
    here.publish_now(a, throttle.admit(a, here, sends(0, 30)))
    assert len(here.published) == 10 and throttle.waiting_messages == 20 and here.waiting == 200
    here.publish_now(b, throttle.admit(b, here, sends(0, 20)))
    assert len(here.published) == 10, "b waits behind a, although it is new"
    host.advance(2000)
    assert len(here.published) == 20
    assert sorted(name for name, _ in here.published[10:]) == ["a"] * 5 + ["b"] * 5
    throttle.validate()
    host.advance(5000)
    assert len(here.published) == 50 and here.waiting == 0
    for name in "ab":
        numbers = [number for other, number in here.published if other == name]
        assert numbers == sorted(numbers)
    host.advance(60_000)
    assert throttle.admit(a, here, sends(30, 3)) and not outbox.effects and not host.timers.waiting


def test_a_lifted_rate_lets_everything_go_and_a_gone_producer_leaves_nothing() -> None:
    outbox = Outbox(now_ms=1)
    rate = Rate(1, 0, 1000, 1)
    throttle, here = PublishThrottle(outbox, rate), Recorder(None)
    a, b = producer("a"), producer("b")
    throttle.admit(a, here, sends(0, 5))
    throttle.admit(b, here, sends(0, 5))
    throttle.forget(b)
    assert here.waiting == sum(len(frame.payload) for frame in sends(0, 5)[:4]) + (10 if len(here.published) else 0)
    throttle.set_rate(None)
    assert [name for name, _ in here.published] == ["a"] * 4 and here.waiting == 0
    throttle.validate()
