from collections import defaultdict

import pytest

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.hashing import slot_of
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from tests.support.subscriptions import World, entry

KEY_SHARED = SubType.KEY_SHARED
LOW, HIGH = ((0, 32_767),), ((32_768, 65_535),)
KEYS = [f"key-{number}" for number in range(40)]
LOW_KEY = next(key for key in KEYS if slot_of(key.encode()) < 32_768)
HIGH_KEY = next(key for key in KEYS if slot_of(key.encode()) >= 32_768)


def keys_got(world: World, consumer: Consumer) -> list[str]:
    return [each.payload.decode() for each in world.received[consumer.connection]]


def keyed(key: str, **more: int) -> object:
    return entry(key.encode(), key=key, **more)


def test_each_key_goes_to_one_consumer_in_order() -> None:
    world = World()
    consumers = [world.consumer(name, KEY_SHARED, permits=1_000) for name in "abc"]
    world.publish(*(keyed(key) for _ in range(5) for key in KEYS))
    owners = defaultdict(set)
    for consumer in consumers:
        got = world.got(consumer)
        assert got == sorted(got)
        assert got
        for key in keys_got(world, consumer):
            owners[key].add(consumer.name)
    assert set(owners) == set(KEYS)
    assert all(len(names) == 1 for names in owners.values())


def test_entries_without_a_key_spread() -> None:
    world = World()
    consumers = [world.consumer(name, KEY_SHARED, permits=1_000) for name in "ab"]
    world.publish_many(200)
    assert all(len(world.got(consumer)) > 40 for consumer in consumers)


def test_a_consumer_without_permits_does_not_stop_the_others() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000, ranges=LOW)
    b = world.consumer("b", KEY_SHARED, ranges=HIGH)
    positions = world.publish(*(keyed(key) for key in (HIGH_KEY, LOW_KEY) * 3))
    assert world.got(a) == positions[1::2]
    assert world.stats()["msgInReplay"] == 3
    world.flow(b, 2)
    assert world.got(b) == positions[0:4:2]
    world.flow(b, 2)
    assert world.got(b) == positions[0::2]


def test_look_ahead_is_bounded() -> None:
    world = World()
    world.set_limits(look_ahead_entries_max=5)
    a = world.consumer("a", KEY_SHARED, permits=1_000, ranges=LOW)
    b = world.consumer("b", KEY_SHARED, ranges=HIGH)
    positions = world.publish(*(keyed(key) for key in [HIGH_KEY] * 20 + [LOW_KEY]))
    assert world.stats()["msgInReplay"] == 5
    assert world.got(a) == []
    world.flow(b, 100)
    assert world.got(b) == positions[:20]
    assert world.got(a) == positions[20:]


@pytest.mark.parametrize("one_by_one", [0, 1_000])
def test_a_newcomer_gets_a_key_only_when_the_old_owner_is_done_with_it(
    one_by_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.subscriptions.dispatch.draining_hashes.ONE_BY_ONE_MAX", one_by_one)
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000)
    first = dict(zip(KEYS, world.publish(*(keyed(key) for key in KEYS)), strict=True))
    b = world.consumer("b", KEY_SHARED, permits=1_000)
    world.take(a)
    second = dict(zip(KEYS, world.publish(*(keyed(key) for key in KEYS)), strict=True))
    kept = set(keys_got(world, a))
    assert kept
    assert kept != set(KEYS)
    assert world.got(b) == []
    moved = [key for key in KEYS if key not in kept]
    stats = world.stats()
    assert (stats["drainingHashesCount"], stats["drainingHashesUnackedMessages"]) == (len(moved), len(moved))
    of_a, of_b = stats["consumers"]
    assert sorted(each["hash"] for each in of_a["drainingHashes"]) == sorted(slot_of(key.encode()) for key in moved)
    assert all((each["unackMsgs"], each["blockedAttempts"]) == (1, 1) for each in of_a["drainingHashes"])
    assert (of_b["drainingHashesCount"], of_b["drainingHashes"]) == (0, [])
    world.ack(a, first[moved[0]])
    assert world.got(b) == [second[moved[0]]]
    of_a = world.stats()["consumers"][0]
    assert (of_a["drainingHashesCount"], of_a["drainingHashesClearedTotal"]) == (len(moved) - 1, 1)
    world.ack(a, *(first[key] for key in KEYS))
    assert sorted(world.got(b)) == [second[key] for key in moved]
    stats = world.stats()
    assert (stats["drainingHashesCount"], stats["drainingHashesClearedTotal"]) == (0, len(moved))


@pytest.mark.parametrize("one_by_one", [0, 1_000])
def test_hashes_that_go_back_to_who_has_them_drain_no_more(one_by_one: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.subscriptions.dispatch.draining_hashes.ONE_BY_ONE_MAX", one_by_one)
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000)
    world.publish(*(keyed(key) for key in KEYS))
    b = world.consumer("b", KEY_SHARED, permits=1_000)
    assert world.stats()["drainingHashesCount"] > 0
    world.leave(b)
    assert world.stats()["drainingHashesCount"] == 0
    assert len(world.got(a)) == len(KEYS)


def test_a_consumer_that_holds_nothing_up_but_its_permits_drains_nothing() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1)
    world.publish(*(keyed("k") for _ in range(5)))
    assert len(world.got(a)) == 1
    assert world.stats()["drainingHashesCount"] == 0


def test_what_a_gone_consumer_held_comes_before_what_is_newer_of_the_same_key() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=3)
    positions = world.publish(*(keyed("k") for _ in range(5)))
    assert world.got(a) == positions[:3]
    b = world.consumer("b", KEY_SHARED, permits=1_000)
    world.leave(a)
    assert world.got(b) == positions


def test_a_negatively_acknowledged_entry_holds_back_its_key_only() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=2)
    [first, second] = world.publish(keyed("k"), keyed("k"))
    world.redeliver(a, first)
    [third, other] = world.publish(keyed("k"), keyed("other"))
    world.take(a)
    world.flow(a, 1)
    assert [(each.position, each.redelivery) for each in world.take(a)] == [(first, 1)]
    world.flow(a, 5)
    assert world.got(a) == [third, other]
    assert a.pending.keys() == {first, second, third, other}


def test_out_of_order_delivery_does_not_wait() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000, out_of_order=True)
    world.publish(*(keyed(key) for key in KEYS))
    b = world.consumer("b", KEY_SHARED, permits=1_000, out_of_order=True)
    world.publish(*(keyed(key) for key in KEYS))
    assert world.got(b)
    assert len(world.got(a)) + len(world.got(b)) == 2 * len(KEYS)


def test_sticky_slots_without_owner_wait() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000, ranges=LOW)
    positions = world.publish(keyed(HIGH_KEY), keyed(LOW_KEY))
    assert world.got(a) == positions[1:]
    b = world.consumer("b", KEY_SHARED, permits=1_000, ranges=HIGH)
    assert world.got(b) == positions[:1]


def test_sticky_ranges_must_be_free() -> None:
    world = World()
    world.consumer("a", KEY_SHARED, ranges=LOW)
    with pytest.raises(BrokerError) as refused:
        world.consumer("b", KEY_SHARED, ranges=((5, 40_000),))
    assert refused.value.code is ErrorCode.CONSUMER_ASSIGN
    assert "overlaps" in refused.value.message


def test_policies_cannot_be_mixed() -> None:
    world = World()
    world.consumer("a", KEY_SHARED, ranges=LOW)
    with pytest.raises(BrokerError) as refused:
        world.consumer("b", KEY_SHARED)
    assert refused.value.code is ErrorCode.CONSUMER_BUSY


def test_delayed_entries_go_to_their_keys_consumer() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000, ranges=LOW)
    b = world.consumer("b", KEY_SHARED, permits=1_000, ranges=HIGH)
    positions = world.publish(keyed(HIGH_KEY, deliver_at=100), keyed(LOW_KEY, deliver_at=200))
    world.advance(99)
    assert world.got(a) + world.got(b) == []
    world.advance(1)
    assert world.got(b) == positions[:1]
    world.advance(100)
    assert world.got(a) == positions[1:]


def test_skipping_forgets_waiting_and_delayed_entries() -> None:
    world = World()
    world.consumer("a", KEY_SHARED, permits=1, ranges=LOW)
    world.publish(keyed(HIGH_KEY), keyed(LOW_KEY, deliver_at=100), keyed(LOW_KEY), keyed(LOW_KEY))
    world.subscription.skip_all()
    world.pump()
    assert world.stats()["msgInReplay"] == 0
    assert not world.subscription._dispatcher._slots
    world.advance(100)
    assert world.subscription.backlog_entries() == 0


def test_waiting_entries_beyond_memory_are_read_again() -> None:
    world = World(cache_bytes=0)
    world.set_limits(look_ahead_bytes_max=100, read_entries_max=7)
    a = world.consumer("a", KEY_SHARED, permits=1_000, ranges=LOW)
    b = world.consumer("b", KEY_SHARED, ranges=HIGH)
    positions = world.publish(*(keyed(key) for key in (HIGH_KEY, LOW_KEY) * 30))
    assert world.got(a) == positions[1::2]
    world.flow(b, 1_000)
    assert world.got(b) == positions[0::2]


def test_a_slot_is_held_while_a_batch_is_partly_acknowledged() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000)
    [batch] = world.publish(entry(b"k", key="k", count=2))
    held = a.pending[batch]
    world.ack(a, batch, ack_set=[0b10])
    assert a.pending[batch] == held - 1
    world.ack(a, batch, ack_set=[0b01])
    assert not a.pending
    assert not world.subscription._dispatcher.holders


def test_positions_of_a_slot_wait_in_order_after_mixed_redelivery() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=4)
    positions = world.publish(*(keyed("k") for _ in range(4)))
    world.redeliver(a, positions[2])
    world.redeliver(a, positions[0])
    waiting: list[Position] = next(iter(world.subscription._dispatcher.waiting.values()))
    assert waiting == [positions[0], positions[2]]


def test_chunks_of_a_message_without_a_key_go_to_one_consumer() -> None:
    world = World()
    a = world.consumer("a", KEY_SHARED, permits=1_000)
    b = world.consumer("b", KEY_SHARED, permits=1_000)
    owners = set()
    for message in range(20):
        positions = [world.publish(entry(chunk=(f"u{message}", number, 4)))[0] for number in range(4)]
        assert [set(positions) <= set(world.got(each)) for each in (a, b)] in ([True, False], [False, True])
        owners.add(positions[0] in world.got(a))
    assert owners == {True, False}, "different messages are shared out"
