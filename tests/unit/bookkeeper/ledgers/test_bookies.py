"""The choice of bookies."""

import pytest

from magnetar.bookkeeper.ledgers import bookies
from magnetar.bookkeeper.ledgers.bookies import Bookies, NotEnoughBookies
from magnetar.bookkeeper.ledgers.metadata import BookieId

A, B, C, D, E = (BookieId(name) for name in "abcde")


def known(*names: BookieId) -> Bookies:
    """Always draws the first one."""
    made = Bookies(lambda count: 0)
    made.registered(names)
    return made


def test_chance_comes_from_outside() -> None:
    drawn: list[int] = []

    def draw(count: int) -> int:
        drawn.append(count)
        return count - 1

    made = Bookies(draw)
    made.registered([A, B, C])
    assert made.ensemble(2, 0.0) == (C, B)
    assert drawn == [3, 2]


def test_read_only_bookies_are_not_chosen() -> None:
    made = known(A, B)
    made.registered([A, B, C], read_only=[A])
    assert made.ensemble(2, 0.0) == (B, C)
    assert not made.writable(A)
    with pytest.raises(NotEnoughBookies, match="2 bookies take entries: an ensemble of 3 needs as many"):
        made.ensemble(3, 0.0)


def test_a_bookie_that_failed_is_chosen_last_for_half_an_hour() -> None:
    made = known(A, B, C)
    made.failed(A, 100.0)
    assert made.quarantined(A, 1899.0)
    assert made.ensemble(2, 200.0) == (B, C)
    assert made.ensemble(3, 200.0) == (B, C, A)
    assert not made.quarantined(A, 1900.0)
    assert made.ensemble(2, 1900.0) == (A, B)


def test_the_oldest_failure_is_forgiven_first() -> None:
    made = known(A, B, C)
    for now, bookie in enumerate((B, A, C, B)):
        made.failed(bookie, float(now))
    assert made.choose(3, 10.0) == (A, C, B)


def test_no_bookie_of_the_ensemble_replaces_another() -> None:
    made = known(A, B, C, D, E)
    assert made.replacements((A, B, C), {2, 0}, 0.0) == {0: D, 2: E}
    made.registered([A, B, C, D])
    assert made.replacements((A, B, C), {2, 0}, 0.0) == {0: D}
    made.registered([A, B])
    assert made.replacements((A, B, C), {2}, 0.0) == {}


def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookies, "QUARANTINED_MAX", 2)
    made = known(A, B, C)
    for bookie in (A, B, A, C):
        made.failed(bookie, 0.0)
    assert [made.quarantined(bookie, 1.0) for bookie in (A, B, C)] == [True, False, True]
