"""Sets of messages, the cache, and a snapshot in progress."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import EARLIEST, OriginKey, Position
from magnetar.replication.snapshots.cache import Cache, CachedSnapshot, reached
from magnetar.replication.snapshots.message_runs import MessageRuns, acked_above, entries_of, held_by
from magnetar.replication.snapshots.pending_snapshot import PendingSnapshot, Step
from magnetar.storage.cursor import Cursor
from magnetar.wire.markers import SnapshotResponse
from tests.unit.replication.snapshots.host import Host

KEY = OriginKey("a", 1)
INDEXES = st.sets(st.integers(0, 40))


def held(indexes: set[int]) -> MessageRuns:
    found = MessageRuns()
    for index in sorted(indexes):
        found.add(KEY, index, index + 1)
    return found


def members(found: MessageRuns) -> set[int]:
    found.validate()
    return {index for first, end in found.origins.get(KEY, []) for index in range(first, end)}


@given(INDEXES, INDEXES, INDEXES, st.permutations(range(12)))
def test_sets_of_messages_are_sets(a: set[int], b: set[int], c: set[int], order: list[int]) -> None:
    assert members(held(a).minus(held(b))) == a - b
    assert members(held(a).minus(held(b), held(c))) == a - b - c
    assert members(held(a).common(held(b))) == a & b
    union = held(a)
    union.update(held(b))
    assert members(union) == a | b
    mixed = MessageRuns()
    for index in order:
        mixed.add(KEY, index, index + 1)
    assert mixed.origins == {KEY: [(0, 12)]}


@given(INDEXES, st.integers(1, 5))
def test_too_many_runs(a: set[int], most: int) -> None:
    cut, wide = members(held(a).cut(most)), members(held(a).widen(most))
    assert cut <= a <= wide
    assert held(a).cut(most).count_runs() <= most
    assert held(a).widen(most).count_runs() <= most
    if a:
        assert max(cut) == max(wide) == max(a)


@given(
    st.lists(st.tuples(st.sampled_from("abbc"), st.integers(1, 4), st.booleans()), min_size=1, max_size=25),
    st.sets(st.integers(0, 60)),
    st.integers(0, 25),
    st.integers(0, 25),
)
def test_entries_of_messages_against_a_dumb_twin(
    entries: list[tuple[str, int, bool]], wanted: set[int], after: int, up_to: int
) -> None:
    host = Host("b", "c")
    nexts: dict[str, int] = {}
    said = {}
    for origin, count, hole in entries:
        if origin == "a":
            position, key = host.publish(count), OriginKey("a", 7)
            first = nexts.get("a", 0)
        else:
            first = nexts.get(origin, 0) + 2 * hole
            position, key = host.arrives(origin, first, count), OriginKey(origin, 1)
        nexts[origin] = first + count
        said[position] = key, range(first, first + count)
    low, high = Position(7, after - 1), Position(7, up_to)
    inside = {position: said[position] for position in said if low < position <= high}
    runs = MessageRuns()
    for key in {key for key, _ in said.values()}:
        for index in sorted(wanted):
            runs.add(key, index, index + 1)
    assert list(entries_of(host.log, "a", runs, low, high)) == [
        position for position, (_, indexes) in sorted(inside.items()) if wanted.issuperset(indexes)
    ]
    expected: dict[OriginKey, set[int]] = {}
    for key, indexes in inside.values():
        expected.setdefault(key, set()).update(indexes)
    found = held_by(host.log, "a", low, high)
    found.validate()
    assert {key: {i for f, e in runs for i in range(f, e)} for key, runs in found.origins.items()} == expected


@given(st.lists(st.tuples(st.sampled_from("abb"), st.integers(1, 4)), min_size=1, max_size=20), st.data())
def test_messages_that_a_cursor_has_above_mark_delete_against_a_dumb_twin(
    entries: list[tuple[str, int]], data: st.DataObject
) -> None:
    host, expected = Host("b"), set()
    cursor = Cursor.at(host.log, EARLIEST)
    nexts = {"a": 0, "b": 0}
    for origin, count in entries:
        key, index = OriginKey(origin, 7 if origin == "a" else 1), nexts[origin]
        position = host.publish(count) if origin == "a" else host.arrives(origin, index, count)
        nexts[origin] += count
        acked = data.draw(st.integers(0, (1 << count) - 1))
        cursor.ack_indexes(position, ((1 << count) - 1) & ~acked)
        if position > cursor.mark_delete:
            expected |= {(key, index + number) for number in range(count) if acked >> number & 1}
    found = acked_above(host.log, "a", cursor)
    found.validate()
    assert {(key, i) for key, runs in found.origins.items() for f, e in runs for i in range(f, e)} == expected


def test_the_cache_spans_the_range() -> None:
    host = Host("b")
    positions = [host.publish() for _ in range(200)]
    cache = Cache(host.log, 5)
    for position in positions[::10]:
        cache.add(CachedSnapshot(position, {}, MessageRuns()))
        cache.validate()
    found = [taken.local.entry for taken in cache.items]
    assert (found[0], found[-1], len(found)) == (0, 190, 5)
    assert max(b - a for a, b in pairwise(found)) <= 100
    cache.add(CachedSnapshot(positions[5], {}, MessageRuns()))
    assert len(cache) == 5, "older than the last: read a second time"
    assert cache.passed(Position(7, -1)) is None
    assert cache.passed(positions[0]) == cache.items[0]
    assert cache.passed(positions[-1]) == cache.items[-1]


def test_markers_between_are_as_good_as_acknowledged() -> None:
    host = Host("b")
    host.subscribe()
    first = host.publish()
    last = host.log.last
    assert last > first, "the request"
    assert reached(host.log, first, last)
    assert not reached(host.log, Position(first.ledger, first.entry - 1), last)


def pending(*peers: str) -> PendingSnapshot:
    return PendingSnapshot("x", frozenset(peers), frozenset(peers), 0, 30)


def response(cluster: str, round_: int = 1, name: str = "x") -> SnapshotResponse:
    return SnapshotResponse(name, cluster, Position(1, 1), round_)


def test_steps_of_a_snapshot() -> None:
    one = pending("b", "c")
    assert one.answered(response("b", name="y")) is Step.IGNORED
    assert one.answered(response("z")) is Step.IGNORED
    assert one.answered(response("b")) is Step.WAIT
    assert one.answered(response("b")) is Step.IGNORED
    assert one.answered(response("c")) is Step.COMPLETE


def test_a_single_peer_needs_no_second_round() -> None:
    assert pending("b").answered(response("b", 0)) is Step.COMPLETE


def test_one_peer_without_claims_makes_two_rounds() -> None:
    one = pending("b", "c")
    one.answered(response("b", 0))
    assert one.answered(response("c")) is Step.SECOND_ROUND
    assert one.answered(response("b", 0)) is Step.IGNORED
    assert one.answered(response("b", 0, "x:2")) is Step.WAIT
    assert one.timed_out(()) is Step.COMPLETE
    assert set(one.usable()) == {"c"}, "the position of a peer without claims needs all answers"


def test_peers_that_leave() -> None:
    one = pending("b", "c")
    one.answered(response("b"))
    assert one.without(frozenset({"b"})) is Step.COMPLETE
    assert pending("b").without(frozenset()) is Step.DROP


def test_silence() -> None:
    assert pending("b", "c").timed_out(()) is Step.DROP
    assert pending("b", "c").timed_out({"b"}) is Step.DROP
    assert pending("b", "c").timed_out({"b", "c"}) is Step.COMPLETE
