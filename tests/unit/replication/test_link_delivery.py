"""How long a link needs for an entry, as its source measures it."""

from magnetar.core.ids import Position
from magnetar.replication.link_delivery import DISTANCE_MS, GIVEN_UP_MS, PAUSE_MS, DeliveryTime


def confirm(found: DeliveryTime, topic: str, c: Position, now_ms: int, *, long: bool) -> None:
    """The destination confirms everything up to a position."""
    found.confirmed(topic, c, c, now_ms, long=long)


def measured(*times_ms: int) -> DeliveryTime:
    """After entries that took these times."""
    found = DeliveryTime()
    for number, ms in enumerate(times_ms):
        at_ms = 1_000 + number * PAUSE_MS
        found.begin("t", Position(1, number), at_ms)
        confirm(found, "t", Position(1, number), at_ms + ms, long=False)
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
    confirm(found, "t", Position(1, 4), 1_035, long=False)
    confirm(found, "other", Position(9, 9), 1_036, long=False)
    assert found.follows
    confirm(found, "t", Position(1, 5), 1_040, long=False)
    assert not found.follows
    assert found.ms(1_041) == 40


def test_one_entry_in_a_tenth_of_a_second_is_followed_and_no_other() -> None:
    found = measured(8)
    found.begin("t", Position(1, 5), 1_000 + PAUSE_MS - 1)
    assert not found.follows
    found.begin("t", Position(1, 6), 1_000 + PAUSE_MS)
    assert found.follows
    confirm(found, "t", Position(1, 6), 1_000 + PAUSE_MS + 8, long=False)
    assert not found.follows
    found.begin("t", Position(1, 7), 0)  # the clock was set back
    assert found.follows


def test_the_first_answer_with_the_entry_is_marked_and_no_other() -> None:
    found = DeliveryTime()
    assert not found.mark("t", Position(9, 9))
    for first in (1, 11):
        found.begin("t", Position(1, first), 1_000 * first)
        assert not found.mark("t", Position(1, first - 1))
        assert not found.mark("other", Position(1, first))
        assert found.mark("t", Position(1, first + 1))
        assert not found.mark("t", Position(1, first + 1))
        assert not found.mark("t", Position(1, first + 2))
        confirm(found, "t", Position(1, first + 1), 1_000 * first + 8, long=True)
        assert not found.mark("t", Position(1, first + 3))


def test_an_entry_that_was_not_sent_says_nothing() -> None:
    """As one that came over another link: it is settled when all before it is, however far away the destination is."""
    found = over_long_batches(DeliveryTime(), 85, 85)
    found.begin("t", Position(2, 5), 5_000)
    found.confirmed("t", Position(2, 5), Position(2, 4), 5_003, long=True)
    assert not found.follows
    assert found.ms(5_004) == 85
    assert found.without_distance_ms(5_004) == 0


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
    confirm(found, "t", Position(2, 1), 6_009, long=False)
    assert found.ms(6_010) == 194


def test_a_late_confirmation_counts_as_a_second() -> None:
    assert measured(90_000).ms(0) == GIVEN_UP_MS


def over_long_batches(found: DeliveryTime, *times_ms: int, at_ms: int = 1_000) -> DeliveryTime:
    """After further entries that took these times in long batches."""
    for ms in times_ms:
        found.begin("t", Position(1, 1), at_ms)
        confirm(found, "t", Position(1, 1), at_ms + ms, long=True)
        at_ms += PAUSE_MS
    return found


def test_in_long_batches_the_shortest_time_is_the_distance() -> None:
    found = over_long_batches(DeliveryTime(), 85, 88, 85, 86)
    assert found.ms(2_000) > 80
    assert found.without_distance_ms(2_000) <= 2
    over_long_batches(found, *[205] * 12)
    assert found.without_distance_ms(2_000) > 110, "the link is busy"


def test_in_short_batches_all_of_the_time_counts() -> None:
    found = measured(160, 161, 160)
    assert found.without_distance_ms(0) == found.ms(0) > 155
    over_long_batches(found, *[85] * 12)
    assert found.without_distance_ms(2_000) < 10
    found.begin("t", Position(1, 1), 3_000)
    confirm(found, "t", Position(1, 1), 3_160, long=False)
    assert found.without_distance_ms(3_160) == found.ms(3_160)


def test_the_distance_follows_a_cluster_that_becomes_farther_away() -> None:
    found = over_long_batches(DeliveryTime(), *[10] * 8)
    for period in range(1, 3):
        over_long_batches(found, *[90] * 12, at_ms=1_000 + period * (DISTANCE_MS + 100))
    assert found.without_distance_ms(2 * DISTANCE_MS) < 5
    over_long_batches(found, 12, 12, at_ms=500_000)
    assert found.without_distance_ms(500_020) > 30, "old times are forgotten after a rest"
    over_long_batches(found, *[12] * 12, at_ms=500_020)
    assert found.without_distance_ms(500_040) < 5


def test_nothing_is_known_without_the_distance_either() -> None:
    assert DeliveryTime().without_distance_ms(0) == -1
