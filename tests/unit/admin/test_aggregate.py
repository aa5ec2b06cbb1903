"""Statistics of partitions as those of one topic."""

from typing import Any

from magnetar.admin.aggregate import sum_stats


def part(expired: int, rate: float, at_ms: int, took_ms: int, failed_ms: int) -> dict[str, Any]:
    return {
        "subscriptions": {"s": {"totalMsgExpired": expired, "msgRateExpired": rate, "lastExpireTimestamp": at_ms}},
        "compaction": {
            "lastCompactionRemovedEventCount": expired,
            "lastCompactionSucceedTimestamp": at_ms,
            "lastCompactionFailedTimestamp": failed_ms,
            "lastCompactionDurationTimeInMills": took_ms,
        },
    }


def test_counts_and_rates_are_summed_times_are_the_newest_and_a_duration_the_longest() -> None:
    assert sum_stats([part(3, 0.5, 900, 20, 0), part(4, 0.25, 700, 30, 5)]) == part(7, 0.75, 900, 30, 5)
