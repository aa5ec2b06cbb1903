from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.hashing import SLOTS, Ring, StickyRanges, murmur3_32, slot_of, slot_of_any


def consumer(name: str) -> Consumer:
    return Consumer(1, 1, name, SubType.KEY_SHARED)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"aaaa", 0x7EEED987),
        (b"test", 0xBA6BD213),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_gives_the_published_values(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected


def test_a_slot_is_the_hash_without_its_sign_modulo_65536() -> None:
    assert slot_of(b"Hello, world!") == (0xC0363E43 & 0x7FFFFFFF) % 65_536
    assert slot_of(b"") == 0


def test_the_ring_shares_out_evenly_and_moves_little() -> None:
    everyone = [consumer(name) for name in "abcd"]
    ring = Ring()
    ring.rebuild(everyone)
    before = [ring.owner(slot) for slot in range(SLOTS)]
    for each in everyone:
        assert 0.17 * SLOTS < before.count(each) < 0.33 * SLOTS
    ring.rebuild(everyone[:3])
    after = [ring.owner(slot) for slot in range(SLOTS)]
    assert all(new is old for new, old in zip(after, before, strict=True) if old is not everyone[3])


def test_the_ring_does_not_depend_on_the_order_of_coming() -> None:
    a, b = consumer("a"), consumer("b")
    one, other = Ring(), Ring()
    one.rebuild([a, b])
    other.rebuild([b, a])
    assert all(one.owner(slot) is other.owner(slot) for slot in range(0, SLOTS, 97))


def test_ranges_are_the_slots_of_each_owner() -> None:
    ring = Ring()
    assert ring.ranges() == {}
    for everyone in ([consumer("a")], [consumer(name) for name in "abc"], [consumer("a"), consumer("a")]):
        ring.rebuild(everyone)
        owners: list[Consumer | None] = [None] * SLOTS
        for owner, ranges in ring.ranges().items():
            assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges)), "two that are one"
            for first, last in ranges:
                owners[first : last + 1] = [owner] * (last - first + 1)
        assert owners == [ring.owner(slot) for slot in range(SLOTS)]
    assert list(ring.ranges()) and ring.ranges() is ring.ranges()


def test_a_newcomer_costs_its_own_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two hundred there everybody waited 0.15 s for the next one, and with each that went."""
    hashed = 0

    def counted(data: bytes) -> int:
        nonlocal hashed
        hashed += 1
        return murmur3_32(data)

    ring = Ring()
    everyone = [consumer(str(number)) for number in range(250)]
    ring.rebuild(everyone)
    monkeypatch.setattr("magnetar.broker.subscriptions.dispatch.hashing.murmur3_32", counted)
    slot_of.cache_clear()
    ring.rebuild([*everyone, consumer("new")])
    assert hashed == 100
    ring.rebuild(everyone)
    assert hashed == 200


def test_long_keys_are_hashed_in_time_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may have megabytes: hashing each byte in Python took half a second, and 16,384 of them were kept."""
    lengths: list[int] = []

    def counted(data: bytes) -> int:
        lengths.append(len(data))
        return murmur3_32(data)

    monkeypatch.setattr("magnetar.broker.subscriptions.dispatch.hashing.murmur3_32", counted)
    before = slot_of.cache_info().currsize
    keys = [bytes([number]) * size for number in range(5) for size in (257, 4_096, 4_097, 1_000_000)]
    assert [slot_of_any(key) for key in keys] == [slot_of_any(bytes(key)) for key in keys]
    assert slot_of.cache_info().currsize == before
    assert max(lengths) == 4_096
    assert slot_of_any(keys[1]) == (murmur3_32(keys[1]) & 0x7FFFFFFF) % SLOTS


@given(st.lists(st.lists(st.sampled_from("aabbcd"), max_size=5), max_size=5), st.randoms(use_true_random=False))
def test_whoever_came_and_went_the_ring_is_that_of_who_is_there(crowds: list[list[str]], chance: Random) -> None:
    ring = Ring()
    there: list[Consumer] = []
    for crowd in crowds:
        there = [one for one in there if chance.random() < 0.6] + [consumer(name) for name in crowd]
        chance.shuffle(there)
        ring.rebuild(there)
        fresh = Ring()
        fresh.rebuild(there)
        slots = range(0, SLOTS, 131)
        assert [ring.owner(slot) for slot in slots] == [fresh.owner(slot) for slot in slots]
        assert ring.ranges() == fresh.ranges()


def test_consumers_of_one_name_share_too() -> None:
    a, twin = consumer("a"), consumer("a")
    ring = Ring()
    ring.rebuild([a, twin])
    owners = [ring.owner(slot) for slot in range(0, SLOTS, 7)]
    assert owners.count(a) > 0.3 * len(owners)
    assert owners.count(twin) > 0.3 * len(owners)


def test_an_empty_ring_has_no_owner() -> None:
    assert Ring().owner(5) is None


def test_sticky_ranges() -> None:
    ranges = StickyRanges()
    a, b = consumer("a"), consumer("b")
    assert ranges.owner(0) is None
    ranges.add(b, ((200, 300),))
    ranges.add(a, ((0, 99), (400, 65_535)))
    assert [ranges.owner(slot) for slot in (0, 99, 100, 199, 200, 300, 301, 400, 65_535)] == [
        a, a, None, None, b, b, None, a, a,
    ]  # fmt: skip
    ranges.remove(b)
    assert ranges.owner(250) is None


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ((), "no hash ranges"),
        (((5, 4),), "not within"),
        (((0, 65_536),), "not within"),
        (((-1, 3),), "not within"),
        (((50, 100),), "overlaps 100..200"),
        (((200, 250),), "overlaps 100..200"),
        (((0, 65_535),), "overlaps 100..200"),
        (((0, 5), (5, 6)), "overlaps 0..5"),
    ],
)
def test_sticky_ranges_that_do_not_fit(wanted: tuple[tuple[int, int], ...], problem: str) -> None:
    ranges = StickyRanges()
    ranges.add(consumer("a"), ((100, 200),))
    assert problem in ranges.overlap(wanted)


def test_sticky_ranges_that_fit() -> None:
    ranges = StickyRanges()
    ranges.add(consumer("a"), ((100, 200),))
    assert ranges.overlap(((0, 99), (201, 65_535))) == ""


def test_many_sticky_ranges_are_not_compared_all_with_all() -> None:
    """A consumer may name as many as there are slots; with everybody's waiting for that, it took a minute."""
    looks = 0

    class Slot(int):
        def __le__(self, other: int) -> bool:
            nonlocal looks
            looks += 1
            return int(self) <= int(other)

        def __lt__(self, other: int) -> bool:
            nonlocal looks
            looks += 1
            return int(self) < int(other)

    ranges = StickyRanges()
    ranges.add(consumer("a"), tuple((slot, slot) for slot in range(0, 4_000, 4)))
    wanted = tuple((Slot(slot), Slot(slot + 1)) for slot in range(1, 4_001, 4))
    assert ranges.overlap(wanted) == ""
    assert ranges.holder(wanted) is None
    assert looks < 100_000


@given(st.lists(st.lists(st.tuples(st.integers(-1, 30), st.integers(-1, 30)), max_size=4), max_size=4))
def test_sticky_ranges_overlap_as_sets_of_slots_do(wanted: list[list[tuple[int, int]]]) -> None:
    ranges = StickyRanges()
    owners: dict[int, Consumer] = {}
    for pairs in wanted:
        slots = [slot for first, last in pairs for slot in range(first, last + 1)]
        valid = bool(pairs) and all(0 <= first <= last for first, last in pairs) and len(set(slots)) == len(slots)
        taken = {owners[slot] for slot in slots if slot in owners}
        assert (ranges.overlap(tuple(pairs)) == "") is (valid and not taken)
        holder = ranges.holder(tuple(pairs))
        assert holder in taken if valid and taken else holder is None
        if valid and not taken:
            newcomer = consumer("x")
            ranges.add(newcomer, tuple(pairs))
            owners |= dict.fromkeys(slots, newcomer)
        assert [ranges.owner(slot) for slot in range(32)] == [owners.get(slot) for slot in range(32)]
