"""The plan of `magnetar restore A --from B`: a comparison of two inventories gives the messages to restore, and those
that cannot be restored.

Both inventories come from `GET /geo/v1/held/A`: B answers with A's messages that it holds, A with those that it has
already. The present incarnation of a topic in A needs no restoring. Origin indexes are dense: a missing index of an
earlier incarnation is a message that B does not have, because its publisher restricted it to other clusters, B's
retention deleted it, or it was never delivered. B cannot know what A published after the last message that B has.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.replication.holdings import Run, Runs, count, merged, without


@dataclass(slots=True)
class PastIncarnation:
    """An earlier incarnation of a topic.

    Attributes:
        incarnation: its number.
        theirs: the peer's messages of it.
        ours: messages that were restored already, also those that retention has deleted since.
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
        incarnations: its earlier ones in the cluster that is restored, ascending.
        entries, bytes: that the peer holds of them.
    """

    topic: str
    partitions: int
    incarnations: list[PastIncarnation] = field(default_factory=list)
    entries: int = 0
    bytes: int = 0

    @property
    def held(self) -> int:
        """Messages that the peer holds."""
        return sum(count(past.theirs) for past in self.incarnations)

    @property
    def missing(self) -> int:
        """Messages to be restored."""
        return sum(count(past.missing) for past in self.incarnations)

    @property
    def gaps(self) -> int:
        """Messages that neither cluster has."""
        return sum(count(past.gaps) for past in self.incarnations)

    def ours(self) -> list[tuple[int, int, int]]:
        """(incarnation, first, end) of what need not be sent."""
        return [(past.incarnation, first, end) for past in self.incarnations for first, end in past.ours]


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
        for past in one["lives"]:
            if past["incarnation"] != present:
                planned.incarnations.append(
                    PastIncarnation(past["incarnation"], _runs(past["runs"]), _ours(mine, past["incarnation"]))
                )
                planned.entries += past["entries"]
                planned.bytes += past["bytes"]
        if planned.incarnations:
            plan.append(planned)
    return plan


def _runs(pairs: Iterable[Sequence[int]]) -> Runs:
    return merged((first, end) for first, end in pairs)


def _ours(mine: Mapping[str, Any] | None, incarnation: int) -> Runs:
    if mine is None:
        return []
    runs: list[Run] = [(first, end) for past, first, end in mine["deleted"] if past == incarnation]
    for past in mine["lives"]:
        if past["incarnation"] == incarnation:
            runs += [(first, end) for first, end in past["runs"]]
    return merged(runs)


def chosen_by(names: Collection[str]) -> Callable[[str], bool]:
    """Topics by name, a partitioned one by its own or its partitions'; all when none is named."""
    if not names:
        return lambda _topic: True
    return lambda topic: topic in names or topic.rpartition("-partition-")[0] in names
