"""Divides pending work into the tasks of one micro-batch: pure arithmetic.

- One topic's range belongs to one task, in order. Splitting it would be harmless (the chain rule) and useless.
- A batch of little work is one task: a batch takes 205 ms with one task, 491 ms with six (measured, 2 cores).
- Never more tasks than cores: a task that waits for a core waits for a whole task's time.
- The bytes of a batch are limited, and so is its duration; the rest comes with the next one.
- Topics with a large backlog go to a query of their own, so that catching up does not delay the tail.

The bytes are all that the source reports as pending, wanted by the link or not: reading and skipping costs too.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

TAIL: Final = "tail"
BULK: Final = "bulk"
LONG: Final = ("tail-a", "tail-b")
"""The queries of long batches, which take turns: the next batch begins before the last one ends."""

ONE_TASK_BYTES_MAX: Final = 4 << 20
"""Below this much pending, everything goes into one task."""

BULK_BYTES_MIN: Final = 64 << 20
"""A topic with a larger backlog belongs to the bulk query: it takes longer than a batch of the tail may."""

RANGES_MAX: Final = 4096
"""Ranges in one batch: each costs two control rows and one read (about 100 us); the longest waiting go first."""

RANGE_BYTES_MIN: Final = 256 << 10
"""A range gets at least this share of a batch, else reads would get so small that each costs more than it moves."""


class Work(NamedTuple):
    """One topic of one link that has entries to send.

    Attributes:
        link: number of the link.
        topic: full name.
        pending_bytes: after its cursor; an estimate of the source.
        waiting_since_ms: when it was planned last (0: never); the longest waiting go first.
    """

    link: int
    topic: str
    pending_bytes: int
    waiting_since_ms: int = 0


class Portion(NamedTuple):
    """The part of one topic that a batch may read."""

    link: int
    topic: str
    bytes_max: int


def query_of(pending_bytes: int) -> str:
    """The query that carries a topic with this backlog."""
    return BULK if pending_bytes > BULK_BYTES_MIN else TAIL


def share(wants: Sequence[int], budget: int, least: int = RANGE_BYTES_MIN) -> list[int]:
    """Divide a budget fairly: no share is larger than its demand, small demands are met whole, and the rest is shared evenly.

    Each share is at least `least` (or its demand, if less), even where the budget is too small: an entry is never divided, so
    progress needs some room.
    """
    shares = [0] * len(wants)
    left = budget
    order = sorted(range(len(wants)), key=wants.__getitem__)
    for done, index in enumerate(order):
        fair = left // (len(order) - done)
        shares[index] = min(wants[index], max(fair, least))
        left = max(0, left - shares[index])
    return shares


def pack(sizes: Sequence[int], bins: int) -> list[list[int]]:
    """Put the largest first into the emptiest of `bins`; returns the indexes in each, empty bins left out.

    Within a bin the order of `sizes` is kept.
    """
    loads = [0] * bins
    placed: list[list[int]] = [[] for _ in range(bins)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = min(range(bins), key=loads.__getitem__)
        loads[lightest] += sizes[index]
        placed[lightest].append(index)
    return [sorted(indexes) for indexes in placed if indexes]


def tasks_for(total_bytes: int, ranges: int, cores: int) -> int:
    """How many tasks a batch is worth."""
    if total_bytes <= ONE_TASK_BYTES_MAX:
        return min(ranges, 1)
    return max(1, min(cores, ranges))


def plan(
    works: Sequence[Work],
    *,
    cores: int,
    batch_bytes_max: int,
    link_bytes_max: dict[int, int] | None = None,
    ranges_max: int = RANGES_MAX,
) -> list[list[Portion]]:
    """Divide a batch among the pending topics.

    Args:
        works: the topics that may be sent now, all of one query.
        cores: tasks that can run at once (>= 1).
        batch_bytes_max: for the whole batch.
        link_bytes_max: what single links may send now (throttle, pace of the destination); absent: no bound.
        ranges_max: topics in one batch.

    Returns:
        The portions of each task; no task is empty.
    """
    chosen = sorted(works, key=lambda work: work.waiting_since_ms)[:ranges_max]
    bounds = link_bytes_max or {}
    wants = [work.pending_bytes for work in chosen]
    for link in sorted({work.link for work in chosen} & bounds.keys()):
        mine = [index for index, work in enumerate(chosen) if work.link == link]
        for index, bound in zip(mine, share([wants[i] for i in mine], bounds[link], least=1), strict=True):
            wants[index] = bound
    portions = [
        Portion(work.link, work.topic, max(1, size))
        for work, size in zip(chosen, share(wants, batch_bytes_max), strict=True)
    ]
    sizes = [portion.bytes_max for portion in portions]
    return [[portions[i] for i in indexes] for indexes in pack(sizes, tasks_for(sum(sizes), len(sizes), cores))]
