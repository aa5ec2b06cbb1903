"""When a warm-up is over."""

import pytest
from bench.pairs import warmed


@pytest.mark.parametrize(
    ("costs", "runs", "steady"),
    [
        ([100, 60, 40, 30, 29, 31, 5], 6, True),  # 29 and 31 are no more than 5 % below 30
        ([50, 50, 50, 5], 3, True),
        ([100, 90, 80, 70, 60, 50, 40, 30, 20], 8, False),  # it falls with every run
        ([100, 101, 60, 61, 62], 5, True),  # one run without progress is not the end
    ],
)
def test_it_ends_after_two_runs_that_are_no_cheaper_than_the_best(costs: list[float], runs: int, steady: bool) -> None:
    done = warmed(lambda turn: costs[turn], 8)
    assert done == {"runs": costs[:runs], "steady": steady}
