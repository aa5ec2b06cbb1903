"""Buckets of latencies and sizes, quantiles, and rows of counters."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.statistics.cardinality import Rows, Shown
from magnetar.broker.statistics.latency import LATENCY_BOUNDS_MS, RECENT, SIZE_BOUNDS, Buckets, PublishLatency, Writes
from magnetar.core.ids import NONE
from magnetar.storage.entries import StoredEntry


def entry(size: int) -> StoredEntry:
    return StoredEntry(1, 0, 0, 1, 0, 0, "", 0, 0, NONE, bytes(size))


def test_a_bound_belongs_to_its_bucket_and_what_is_above_all_overflows() -> None:
    buckets = Buckets(LATENCY_BOUNDS_MS)
    for took_ms, times in ((0.0, 1), (0.5, 2), (0.6, 3), (1000.0, 4), (1000.1, 5)):
        buckets.add(took_ms, times)
    assert buckets.last_interval.counts == (0,) * 10, "of an interval that has not ended"
    buckets.end(2.0)
    assert buckets.last_interval.counts == (3, 3, 0, 0, 0, 0, 0, 0, 4, 5)
    assert buckets.last_interval.per_s == 7.5
    buckets.end(2.0)
    assert buckets.last_interval.counts == (0,) * 10 and buckets.last_interval.total == buckets.last_interval.per_s == 0


def slowly(sizes: list[int]) -> Counter[int]:
    """Which bucket each is in, one by one."""
    return Counter(
        next((n for n, bound in enumerate(SIZE_BOUNDS) if size <= bound), len(SIZE_BOUNDS)) for size in sizes
    )


@given(st.lists(st.lists(st.sampled_from([0, 1, 127, 128, 129, 512, 4096, 5000, 1 << 20, (1 << 20) + 1]), min_size=1)))
def test_many_sizes_at_once_are_counted_as_one_by_one(appends: list[list[int]]) -> None:
    buckets = Buckets(SIZE_BOUNDS)
    for sizes in appends:
        assert buckets.add_all(sizes) == sum(sizes)
    buckets.end(1.0)
    every = [size for sizes in appends for size in sizes]
    assert Counter({n: count for n, count in enumerate(buckets.last_interval.counts) if count}) == slowly(every)
    assert buckets.last_interval.total == sum(every)


def test_an_interval_that_has_just_begun_goes_on() -> None:
    writes = Writes(1_000)
    assert writes.add([entry(10), entry(20)], 0.002) == 30
    writes.end(1_050)
    assert sum(writes.size.last_interval.counts) == 0
    writes.end(1_500)
    assert (sum(writes.size.last_interval.counts), writes.latency.last_interval.per_s) == (2, 4.0)


def test_nothing_is_kept_of_two_intervals_without_writes() -> None:
    writes = Writes(0)
    assert writes.end(1_000) is False
    writes.add([entry(100)], 0.001)
    assert writes.end(2_000) is True
    assert writes.size.last_interval.per_s == 1.0
    assert writes.end(3_000) is True, "the interval with the entry was the last one until now"
    assert writes.end(4_000) is False


def test_quantiles_are_those_of_the_newest() -> None:
    latency = PublishLatency()
    assert latency.quantiles() == {}
    latency.add(9.0, 1)
    for number in range(RECENT):
        latency.add((number + 1) / 1_000_000, 2)
    found = latency.quantiles()
    assert (found[0.0], found[1.0]) == (0.001, RECENT / 1_000)
    assert abs(found[0.5] - RECENT / 2_000) < 0.01
    assert latency.entries == 2 * RECENT + 1
    assert latency.counts[-1] == 1
    assert sum(latency.counts) == latency.entries


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come", "go"]), st.integers(0, 5)),
        st.tuples(st.just("count"), st.integers(0, 5)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=60,
)


def read_all(rows: Rows[int], there: dict[int, tuple[int, ...]], most: int) -> Shown[int]:
    """Read all rows at once."""
    rows.begin(most, there.__contains__)
    for key, counted in there.items():
        rows.read(key, counted)
    return rows.end()


PARTS = st.lists(
    st.tuples(st.sampled_from(["come", "go", "count", "read", "read", "read"]), st.integers(0, 5)), max_size=80
)


@given(PARTS, st.integers(0, 3))
def test_no_row_ever_falls_when_things_change_while_they_are_read(parts: list[tuple[str, int]], most: int) -> None:
    rows: Rows[int] = Rows(1)
    there: dict[int, tuple[int, ...]] = {}
    before: dict[int | str, int] = {}
    to_read: list[int] | None = None
    for what, key in parts:
        if what == "come":
            there.setdefault(key, (0,))
        elif what == "go" and key in there:
            rows.gone(key, there.pop(key))
            before.pop(key, None)  # a row of its own ends with it
            if to_read and key in to_read:
                to_read.remove(key)
        elif what == "count" and key in there:
            there[key] = (there[key][0] + 1,)
        elif what == "read":
            if to_read is None:
                to_read = list(there)
                rows.begin(most, there.__contains__)
            if to_read:
                number = to_read.pop(0)
                rows.read(number, there[number])
                continue
            shown, to_read = rows.end(), None
            now: dict[int | str, int] = {number: counted[0] for number, counted in shown.rows.items()}
            if shown.rest is not None:
                now["(other)"] = shown.rest[0]
            assert [name for name, value in before.items() if now.get(name, -1) < value] == []
            assert len(shown.rows) <= most
            before = now


@given(STEPS, st.integers(0, 3))
def test_no_row_ever_falls(steps: list[tuple[str, int]], most: int) -> None:
    rows: Rows[int] = Rows(1)
    there: dict[int, tuple[int, ...]] = {}
    before: dict[int | str, int] = {}
    for what, key in steps:
        if what == "come":
            there.setdefault(key, (0,))
        elif what == "go" and key in there:
            rows.gone(key, there.pop(key))
            before.pop(key, None)  # a row of its own ends with it
        elif what == "count" and key in there:
            there[key] = (there[key][0] + 1,)
        elif what == "look":
            shown = read_all(rows, there, most)
            now: dict[int | str, int] = {key: counted[0] for key, counted in shown.rows.items()}
            if shown.rest is not None:
                now["(other)"] = shown.rest[0]
            assert [name for name, value in before.items() if now.get(name, -1) < value] == []
            assert len(shown.rows) == min(most, len(there))
            assert shown.left_out == len(there) - len(shown.rows)
            assert sum(now.values()) >= sum(counted[0] for counted in there.values()), "sums are right"
            before = now
