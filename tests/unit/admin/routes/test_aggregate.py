"""Statistics of partitions as those of one topic."""

from typing import Any

from magnetar.admin.routes.aggregate import sum_stats


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


def test_what_belongs_to_the_oldest_message_is_told_together() -> None:
    parts = [
        {"oldestBacklogMessageAgeSeconds": age, "oldestBacklogMessageSubscriptionName": name, "topicEpoch": 3}
        for age, name in ((-1, ""), (5, "slow"), (90, "slowest"), (7, "quick"))
    ]
    assert sum_stats(parts) == {
        "oldestBacklogMessageAgeSeconds": 90,
        "oldestBacklogMessageSubscriptionName": "slowest",
    }
    assert sum_stats(parts[:1])["oldestBacklogMessageAgeSeconds"] == -1


def test_limits_are_the_same_for_each_partition() -> None:
    parts = [{"backlogQuotaLimitSize": -1, "backlogQuotaLimitTime": 60}] * 3
    assert sum_stats(parts) == {"backlogQuotaLimitSize": -1, "backlogQuotaLimitTime": 60}


def test_a_link_is_connected_when_all_its_partitions_are_and_as_late_as_the_last() -> None:
    parts = [
        {"replication": {"b": {"connected": late < 9, "replicationDelayInSeconds": late, "msgRateOut": 1.5}}}
        for late in (3, 9)
    ]
    together = {"connected": False, "replicationDelayInSeconds": 9, "msgRateOut": 3.0}
    assert sum_stats(parts) == {"replication": {"b": together}}


def test_counts_and_rates_are_summed_times_are_the_newest_and_a_duration_the_longest() -> None:
    assert sum_stats([part(3, 0.5, 900, 20, 0), part(4, 0.25, 700, 30, 5)]) == part(7, 0.75, 900, 30, 5)


def test_the_average_size_is_that_of_all_messages_now_and_told_before_the_first_one() -> None:
    parts = [
        {"averageMsgSize": size / rate if rate else 0.0, "msgRateIn": rate, "msgThroughputIn": size, "msgInCounter": 7}
        for rate, size in ((0.0, 0.0), (1.0, 100.0), (9.0, 0.0))
    ]
    assert sum_stats(parts)["averageMsgSize"] == 10.0
    assert sum_stats(parts[:1])["averageMsgSize"] == 0.0


def test_the_type_is_that_of_the_partition_that_had_a_consumer() -> None:
    def typed(*types: str) -> Any:
        return sum_stats([{"subscriptions": {"s": {"type": one}}} for one in types])["subscriptions"]["s"]["type"]

    assert (typed("None", "Shared"), typed("None", "None"), typed("", "x")) == ("Shared", "None", "x")
