"""Statistics of several partitions as those of one topic."""

from collections.abc import Generator, Sequence
from typing import Any

NOT_SUMMED = frozenset({"averageMsgSize", "incarnation", "originIndexNext", "ownerBroker", "topicEpoch"})
"""Keys whose sum has no meaning."""

LONGEST = frozenset(
    {"lastCompactionDurationTimeInMills", "oldestBacklogMessageAgeSeconds", "replicationDelayInSeconds"}
)
"""Keys of which the longest value counts: partitions are compacted, read and replicated in parallel."""

ALIKE = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime"})
"""Policies of the topic: the value of each of its partitions, -1 for no limit."""

ALL_OF_THEM = frozenset({"connected"})
"""Flags that are true when they are for every part; others are when they are for any."""

FIRST_COUNTS = frozenset(
    {"earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs", "topicCreationTimeStamp"}
)
"""Times of which the oldest counts; 0 means none."""

OLDEST = "oldestBacklogMessageSubscriptionName"
"""The key that is taken from the partition with the oldest message."""

NEWEST = ("Timestamp", "TimeStamp", "Since")

SAYS_NOTHING = frozenset({"", "None"})
"""Texts that are replaced by another partition's. `None` is the type of a subscription before its first consumer."""


Summing = Generator[None, None, Any]
"""Sums in steps: one is the values of one key."""


def sum_stats(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`sum_in_steps`, at once."""
    steps = sum_in_steps(parts)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def sum_in_steps(parts: Sequence[dict[str, Any]]) -> Summing:
    """One topic's statistics, computed from its partitions'.

    Counters, sizes and rates are summed; of keys that end in `Timestamp` or `Since` the newest counts, of those in
    `FIRST_COUNTS` the oldest, of those in `LONGEST` the longest, of those in `ALIKE` any; a flag is true when it is for
    any part, one in `ALL_OF_THEM` when it is for all; lists are joined, objects merged by key; of texts, the first that
    is not empty counts.
    """
    total = yield from _merge(list(parts))
    if OLDEST in total:  # a text that belongs to a number
        total[OLDEST] = max(parts, key=lambda part: part["oldestBacklogMessageAgeSeconds"])[OLDEST]
    if any("averageMsgSize" in part for part in parts):
        rate = total["msgRateIn"]
        total["averageMsgSize"] = total["msgThroughputIn"] / rate if rate else 0.0
    return total


def _merge(parts: list[dict[str, Any]]) -> Summing:
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        if key not in NOT_SUMMED:
            merged[key] = yield from _combine(key, [part[key] for part in parts if part.get(key) is not None])
            yield
    return merged


def _combine(key: str, values: list[Any]) -> Summing:
    if values and isinstance(values[0], dict):
        return (yield from _merge(values))
    return _of(key, values)


def _of(key: str, values: list[Any]) -> Any:
    if not values:
        return None
    first = values[0]
    if isinstance(first, bool):
        return all(values) if key in ALL_OF_THEM else any(values)
    if isinstance(first, int | float):
        if key in FIRST_COUNTS:
            return min(filter(None, values), default=0)
        if key in ALIKE:
            return first
        return max(values) if key.endswith(NEWEST) or key in LONGEST else sum(values)
    if isinstance(first, list):
        return [item for value in values for item in value]
    if isinstance(first, str):
        return next((value for value in values if value not in SAYS_NOTHING), first)
    return next((value for value in values if value), first)
