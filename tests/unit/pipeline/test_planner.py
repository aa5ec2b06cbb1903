"""A page of input and output of the planner, and its dumb twins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.planner import BULK, TAIL, Portion, Work, pack, plan, query_of, share, tasks_for

KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("wants", "budget", "least", "shares"),
    [
        ([], 100, 1, []),
        ([10], 100, 1, [10]),  # nobody gets more than wanted
        ([500], 100, 1, [100]),
        ([10, 10, 10], 100, 1, [10, 10, 10]),
        ([10, 500], 100, 1, [10, 90]),  # who wants little gets it all, the rest goes to the others
        ([500, 500], 100, 1, [50, 50]),
        ([5, 60, 500], 100, 1, [5, 47, 48]),
        ([500, 5, 60], 100, 1, [48, 5, 47]),  # the order of the wants does not matter
        ([500, 500, 500], 10, 30, [30, 30, 30]),  # at least so much, beyond the budget
        ([500, 5], 10, 30, [30, 5]),  # but not more than wanted
        ([7, 7], 0, 1, [1, 1]),
    ],
)
def test_share(wants: list[int], budget: int, least: int, shares: list[int]) -> None:
    assert share(wants, budget, least) == shares


@pytest.mark.parametrize(
    ("sizes", "bins", "packed"),
    [
        ([], 2, []),
        ([5], 2, [[0]]),  # no empty task
        ([5, 5], 2, [[0], [1]]),
        ([5, 5, 5], 2, [[0, 2], [1]]),
        ([1, 1, 8], 2, [[2], [0, 1]]),  # the largest first, into the emptiest
        ([8, 7, 6, 5, 4], 2, [[0, 3, 4], [1, 2]]),
        ([3, 3, 3], 1, [[0, 1, 2]]),
    ],
)
def test_pack(sizes: list[int], bins: int, packed: list[list[int]]) -> None:
    assert pack(sizes, bins) == packed


@pytest.mark.parametrize(
    ("total", "ranges", "cores", "tasks"),
    [
        (0, 0, 4, 0),
        (1, 1, 4, 1),
        (4 * MB, 50, 4, 1),  # little work: one task, whatever the number of topics
        (4 * MB + 1, 50, 4, 4),  # much: one a core
        (4 * MB + 1, 3, 4, 3),  # a topic is never divided
        (400 * MB, 1, 4, 1),
        (400 * MB, 50, 1, 1),
    ],
)
def test_tasks_for(total: int, ranges: int, cores: int, tasks: int) -> None:
    assert tasks_for(total, ranges, cores) == tasks


@pytest.mark.parametrize(("pending", "query"), [(0, TAIL), (64 * MB, TAIL), (64 * MB + 1, BULK), (10 << 30, BULK)])
def test_query_of(pending: int, query: str) -> None:
    assert query_of(pending) == query


def works(*sizes: int, link: int = 0) -> list[Work]:
    return [Work(link, f"t{number}", size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("given_works", "cores", "budget", "bounds", "tasks"),
    [
        ([], 2, 16 * MB, {}, []),
        (works(10), 2, 16 * MB, {}, [[Portion(0, "t0", 10)]]),
        (works(10, 20), 2, 16 * MB, {}, [[Portion(0, "t0", 10), Portion(0, "t1", 20)]]),
        (works(8 * MB, 2 * MB), 2, 16 * MB, {}, [[Portion(0, "t0", 8 * MB)], [Portion(0, "t1", 2 * MB)]]),
        (works(90 * MB), 2, 16 * MB, {}, [[Portion(0, "t0", 16 * MB)]]),
        (works(90 * MB, 1 * KB), 2, 16 * MB, {}, [[Portion(0, "t0", 16 * MB - KB)], [Portion(0, "t1", KB)]]),
        # A throttled link's allowance is shared by its topics; the other links do not notice.
        ([*works(9 * KB, 9 * KB), Work(1, "u", 50)], 2, 16 * MB, {0: 10},
         [[Portion(0, "t0", 5), Portion(0, "t1", 5), Portion(1, "u", 50)]]),
        (works(10), 2, 16 * MB, {0: 0}, [[Portion(0, "t0", 1)]]),  # in no case nothing: an entry is never divided
    ],
)  # fmt: skip
def test_plan(
    given_works: list[Work], cores: int, budget: int, bounds: dict[int, int], tasks: list[list[Portion]]
) -> None:
    assert plan(given_works, cores=cores, batch_bytes_max=budget, link_bytes_max=bounds) == tasks


def test_the_longest_waiting_topics_go_first() -> None:
    many = [Work(0, f"t{number}", 10, waiting_since_ms=100 - number) for number in range(10)]
    [task] = plan(many, cores=2, batch_bytes_max=MB, ranges_max=3)
    assert [portion.topic for portion in task] == ["t9", "t8", "t7"]


def dumb_share(wants: list[int], budget: int) -> list[int]:
    """Give one byte after the other, round and round."""
    shares = [0] * len(wants)
    while budget and any(got < want for got, want in zip(shares, wants, strict=True)):
        for index, want in enumerate(wants):
            if budget and shares[index] < want:
                shares[index] += 1
                budget -= 1
    return shares


@given(st.lists(st.integers(1, 60), max_size=8), st.integers(0, 200))
def test_share_is_fair_like_its_dumb_twin(wants: list[int], budget: int) -> None:
    got, expected = share(wants, budget, least=0), dumb_share(wants, budget)
    assert sum(got) == sum(expected) == min(budget, sum(wants))
    assert all(abs(a - b) <= 1 for a, b in zip(got, expected, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200 * MB)), max_size=40),
    st.integers(1, 8),
    st.integers(1, 64 * MB),
    st.dictionaries(st.integers(0, 3), st.integers(0, MB)),
)
def test_plan_keeps_its_promises(sizes: list[tuple[int, int]], cores: int, budget: int, bounds: dict[int, int]) -> None:
    given_works = [Work(link, f"t{number}", size) for number, (link, size) in enumerate(sizes)]
    tasks = plan(given_works, cores=cores, batch_bytes_max=budget, link_bytes_max=bounds)
    portions = [portion for task in tasks for portion in task]
    assert len(tasks) <= cores
    assert all(tasks)
    assert sorted(portion.topic for portion in portions) == sorted(
        work.topic for work in given_works
    )  # each in one task
    pending = {work.topic: work.pending_bytes for work in given_works}
    assert all(1 <= portion.bytes_max <= pending[portion.topic] for portion in portions)
    least = 256 * KB * len(portions)
    assert sum(portion.bytes_max for portion in portions) <= max(budget, least)
    for link, bound in bounds.items():
        mine = [portion.bytes_max for portion in portions if portion.link == link]
        assert sum(mine) <= max(bound, len(mine))
    if sum(portion.bytes_max for portion in portions) <= 4 * MB:
        assert len(tasks) <= 1
