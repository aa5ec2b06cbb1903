"""What `magnetar restore A --from B` has to move, and what it cannot: two inventories compared.

Both come from `GET /geo/v1/held/A`: asked of B, what it holds of A's messages; asked of A, what is there already. A life is
one incarnation of a topic in A; A's present one needs no restoring. Origin indexes are dense, so that a hole in what B
holds of a life is a message that B does not have: restricted to others by its publisher, deleted by B's retention, or never
delivered. What A published behind the last that B has cannot be known to B.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.replication.holdings import Run, Runs, count, merged, without


@dataclass(slots=True)
class Life:
    """One earlier life of a topic.

    Attributes:
        incarnation: which.
        theirs: what the peer holds.
        ours: what came back already, deleted by retention or not.
    """

    incarnation: int
    theirs: Runs
    ours: Runs

    @property
    def missing(self) -> Runs:
        """Held there and not here."""
        return without(self.theirs, self.ours)

    @property
    def gaps(self) -> Runs:
        """Neither there nor here, below the highest known."""
        known = merged([*self.theirs, *self.ours])
        return without([(0, known[-1][1])], known) if known else []


@dataclass(slots=True)
class PlannedTopic:
    """One topic or partition.

    Attributes:
        topic: full name.
        partitions: of its partitioned topic at the peer; 0: not partitioned.
        lives: earlier ones, ascending.
        entries, bytes: that the peer holds of them.
    """

    topic: str
    partitions: int
    lives: list[Life] = field(default_factory=list)
    entries: int = 0
    bytes: int = 0

    @property
    def held(self) -> int:
        """Messages that the peer holds."""
        return sum(count(life.theirs) for life in self.lives)

    @property
    def missing(self) -> int:
        """Messages to be restored."""
        return sum(count(life.missing) for life in self.lives)

    @property
    def gaps(self) -> int:
        """Messages that nobody asked has."""
        return sum(count(life.gaps) for life in self.lives)

    def ours(self) -> list[tuple[int, int, int]]:
        """(incarnation, first, end) of what need not be sent."""
        return [(life.incarnation, first, end) for life in self.lives for first, end in life.ours]


def compare(
    theirs: Iterable[Mapping[str, Any]], ours: Iterable[Mapping[str, Any]], chosen: Callable[[str], bool]
) -> list[PlannedTopic]:
    """Make the plan.

    Args:
        theirs, ours: the inventories.
        chosen: which topics, by full name.
    """
    here = {one["topic"]: one for one in ours}
    plan = []
    for one in theirs:
        if not chosen(one["topic"]):
            continue
        mine = here.get(one["topic"])
        present = mine["incarnation"] if mine else 0
        planned = PlannedTopic(one["topic"], one["partitions"])
        for life in one["lives"]:
            if life["incarnation"] != present:
                planned.lives.append(Life(life["incarnation"], _runs(life["runs"]), _ours(mine, life["incarnation"])))
                planned.entries += life["entries"]
                planned.bytes += life["bytes"]
        if planned.lives:
            plan.append(planned)
    return plan


def _runs(pairs: Iterable[Sequence[int]]) -> Runs:
    return merged((first, end) for first, end in pairs)


def _ours(mine: Mapping[str, Any] | None, incarnation: int) -> Runs:
    if mine is None:
        return []
    runs: list[Run] = [(first, end) for life, first, end in mine["deleted"] if life == incarnation]
    for life in mine["lives"]:
        if life["incarnation"] == incarnation:
            runs += [(first, end) for first, end in life["runs"]]
    return merged(runs)


def chosen_by(names: Collection[str]) -> Callable[[str], bool]:
    """Topics by name, a partitioned one by its own or its partitions'; all when none is named."""
    if not names:
        return lambda _topic: True
    return lambda topic: topic in names or topic.rpartition("-partition-")[0] in names
