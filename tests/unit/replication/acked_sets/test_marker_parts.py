"""Splitting: the parts are unions, and none is larger than asked."""

import random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.marker_parts import pack, sets_of, split
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.wire.acksets import set_message
from tests.unit.replication.acked_sets.strategies import ids, index_set, message_sets


@given(message_sets, st.integers(1, 400))
def test_parts_are_unions(chosen, bytes_max):
    parts = split(index_set(chosen), bytes_max)
    union = MessageSet()
    for part in parts:
        union |= part
        assert part.bytes() <= bytes_max or len(part) == 1
    assert ids(union) == chosen
    assert sum(map(len, parts)) == len(chosen)


def test_a_large_set_is_split_and_small_again():
    chance = random.Random(1)
    found = MessageSet()
    for cluster in "ab":
        for index in chance.sample(range(1_000_000), 200_000):
            found.add_range(OriginKey(cluster, 1), index, index + 1)
    parts = split(found, 20_000)
    assert all(part.bytes() <= 20_000 for part in parts)
    assert len(parts) < 3 * found.bytes() // 20_000, "halves that are still too large are halved again, no further"
    union = MessageSet()
    for part in parts:
        union |= part
    assert union == found


def test_a_full_state_has_its_base_in_the_first_part_only():
    state = SubscriptionState(
        acks=index_set({("a", 1, 5), ("b", 1, 7)}), base=index_set({("a", 1, 1)}), floor={"a": (0, 0)}, deltas=3
    )
    first, second = sets_of("s", state, full=True, bytes_max=1)
    assert (first.part, first.parts, second.part, second.parts) == (1, 2, 2, 2)
    assert first.base is not None
    assert second.base is None
    assert second.floor == ()
    (delta,) = sets_of(
        "s", SubscriptionState(acks=state.acks, dirty=index_set({("a", 1, 5)})), full=False, bytes_max=999
    )
    assert ids(MessageSet(delta.acks)) == {("a", 1, 5)}
    assert delta.base is None


def test_an_empty_full_state_is_one_part():
    (only,) = sets_of("s", SubscriptionState(), full=True, bytes_max=10)
    assert (only.part, only.parts, only.acks) == (1, 1, {})


def test_several_subscriptions_share_a_marker():
    sets = [sets_of(f"s{number}", SubscriptionState(), full=True, bytes_max=100)[0] for number in range(10)]
    size = set_message(sets[0]).ByteSize() + 8
    parts = pack(sets, 3 * size)
    assert [len(part.sets) for part in parts] == [3, 3, 3, 1]
    assert [one for part in parts for one in part.sets] == sets
    assert [len(part.sets) for part in pack(sets[:2], 1)] == [1, 1], "what is too large goes alone"


def test_a_million_messages_one_percent_unacknowledged_at_random():
    """The figure of the issue: state < 200 KB, a delta < 2 KB."""
    chance = random.Random(3)
    state = SubscriptionState()
    state.acks.add_range(OriginKey("a", 1), 0, 1_000_000)
    bitmap = state.acks.origins[OriginKey("a", 1)]
    for index in chance.sample(range(1_000_000), 10_000):
        bitmap.remove(index)
    (full,) = sets_of("s", state, full=True, bytes_max=1 << 20)
    assert set_message(full).ByteSize() < 60_000
    for index in chance.sample(range(990_000, 1_000_000), 100):
        state.dirty.add_range(OriginKey("a", 1), index, index + 1)
    (delta,) = sets_of("s", state, full=False, bytes_max=1 << 20)
    assert set_message(delta).ByteSize() < 400
