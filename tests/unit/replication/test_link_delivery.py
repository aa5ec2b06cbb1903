"""How long a link needs for an entry, as its source measures it."""

from magnetar.core.ids import Position
from magnetar.replication.link_delivery import GIVEN_UP_MS, DeliveryTime


def measured(*times_ms: int) -> DeliveryTime:
    """After entries that took these times."""
    found = DeliveryTime()
    for number, ms in enumerate(times_ms):
        found.begin("t", Position(1, number), 1_000)
        found.confirmed("t", Position(1, number), 1_000 + ms)
    return found


def test_nothing_is_known_before_the_first_confirmation() -> None:
    found = DeliveryTime()
    assert found.ms(0) == -1
    found.begin("t", Position(1, 1), 1_000)
    assert found.ms(1_500) == -1


def test_the_time_of_an_entry_counts_from_its_beginning() -> None:
    found = DeliveryTime()
    found.begin("t", Position(1, 5), 1_000)
    found.begin("t", Position(1, 6), 1_030)  # one at a time
    found.confirmed("t", Position(1, 4), 1_035)
    found.confirmed("other", Position(9, 9), 1_036)
    assert found.follows
    found.confirmed("t", Position(1, 5), 1_040)
    assert not found.follows
    assert found.ms(1_041) == 40


def test_it_follows_a_change_and_not_a_single_outlier() -> None:
    assert measured(8, 8, 8, 200).ms(0) == 56
    assert measured(8, *[200] * 12).ms(0) > 190
    assert measured(200, *[8] * 12).ms(0) < 15


def test_an_entry_that_is_not_confirmed_counts_while_it_waits_and_another_one_is_followed_after_a_second() -> None:
    found = measured(8, 8)
    found.begin("stuck", Position(1, 1), 5_000)
    assert found.ms(5_300) == 300
    assert found.ms(5_000 + GIVEN_UP_MS) == 256
    assert not found.follows
    found.begin("t", Position(2, 1), 6_001)
    found.confirmed("t", Position(2, 1), 6_009)
    assert found.ms(6_010) == 194


def test_a_late_confirmation_counts_as_a_second() -> None:
    assert measured(90_000).ms(0) == GIVEN_UP_MS
