"""The one back-off."""

from magnetar.core.backoff import pause


def test_it_doubles_up_to_its_bound_and_stays_there() -> None:
    assert [pause(failures, 100, 1_000) for failures in (1, 2, 3, 4, 5, 6, 10**9)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
        1000,
    ]
    assert [pause(failures, 0.5, 30.0) for failures in (1, 2, 7, 10**9)] == [0.5, 1.0, 30.0, 30.0]


def test_no_failure_counts_as_the_first_one_and_integers_stay_integers() -> None:
    assert pause(0, 200, 1_000) == 200
    assert isinstance(pause(3, 200, 10_000), int)
