"""Statistics of several partitions as those of one topic."""

from collections.abc import Sequence
from typing import Any

NOT_SUMMED = frozenset({"averageMsgSize", "incarnation", "originIndexNext", "ownerBroker"})
"""What means nothing in sum."""

LONGEST = frozenset({"lastCompactionDurationTimeInMills"})
"""Of which the longest counts: partitions are compacted side by side."""

FIRST_COUNTS = frozenset(
    {"earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs", "topicCreationTimeStamp"}
)
"""Times of which the oldest counts; 0 stands for none."""

NEWEST = ("Timestamp", "TimeStamp", "Since")


def sum_stats(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One topic's statistics out of its partitions'.

    Counters, sizes and rates are summed; of keys that end in `Timestamp` or `Since` the newest counts, of those in
    `FIRST_COUNTS` the oldest, of those in `LONGEST` the longest; a flag is true when it is for any part; lists are joined,
    objects merged by key; of texts the first that is not empty counts.
    """
    total = _merge(list(parts))
    if total.get("msgInCounter"):
        total["averageMsgSize"] = total.get("bytesInCounter", 0) / total["msgInCounter"]
    return total


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {
        key: _combine(key, [part[key] for part in parts if part.get(key) is not None])
        for key in keys
        if key not in NOT_SUMMED
    }


def _combine(key: str, values: list[Any]) -> Any:
    if not values:
        return None
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int | float):
        if key in FIRST_COUNTS:
            return min(filter(None, values), default=0)
        return max(values) if key.endswith(NEWEST) or key in LONGEST else sum(values)
    if isinstance(first, dict):
        return _merge(values)
    if isinstance(first, list):
        return [item for value in values for item in value]
    return next((value for value in values if value), first)
