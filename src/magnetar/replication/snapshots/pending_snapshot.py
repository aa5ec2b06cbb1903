"""A snapshot that is being taken: the clusters that were asked, those that answered, and the next step.

    state     | event                        | what follows
    asked     | answer, others are missing   | asked
    asked     | last answer of the round     | a second round when some peer knows no claims and there are others; else complete
    asked     | time is up                   | complete with those that answered and know claims; dropped when there are none
    asked     | answer of another round, of a cluster that answered before, of another snapshot: nothing

With claims (a snapshot names messages by identity) one round is enough and missing answers do no harm
(docs/design/snapshots.md#one-round). A peer that does not know claims relies on positions: it needs PIP-33's second round
and all answers, or messages that the others exchanged meanwhile are lost (docs/design/snapshots.md#rounds). The
positions are those of the *first* round; the second is a barrier. Each round has an id of its own, which even a peer
that does not know rounds repeats in its answer: a late answer to the first is never taken for one to the second.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from magnetar.core.ids import Position
from magnetar.wire.markers import SnapshotRequest, SnapshotResponse


class Step(Enum):
    """The result of an answer or of a timeout."""

    IGNORED = 0
    WAIT = 1
    SECOND_ROUND = 2
    COMPLETE = 3
    DROP = 4


@dataclass
class PendingSnapshot:
    """One snapshot in progress.

    Attributes:
        snapshot_id: as given.
        peers: all that could answer.
        expected: those that are waited for: not the ones that let the last snapshot time out.
        deadline_ms: when waiting ends.
        round: 1 or 2.
        waiting: who has not answered in this round.
        positions: of the first round.
        plain: who answered and knows no claims.
    """

    snapshot_id: str
    peers: frozenset[str]
    expected: frozenset[str]
    started_ms: int
    deadline_ms: int
    round: int = 1
    waiting: set[str] = field(default_factory=set)
    positions: dict[str, Position] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.waiting = set(self.expected)

    @property
    def round_id(self) -> str:
        """The id of requests and answers of this round."""
        return self.snapshot_id if self.round == 1 else f"{self.snapshot_id}:{self.round}"

    def request(self, here: str) -> SnapshotRequest:
        """The request of this round."""
        return SnapshotRequest(self.round_id, here, self.round)

    def answered(self, response: SnapshotResponse) -> Step:
        """A response came."""
        cluster = response.cluster
        if response.snapshot_id != self.round_id or cluster not in self.peers:
            return Step.IGNORED
        if cluster not in self.waiting and (cluster in self.positions or self.round > 1):
            return Step.IGNORED
        self.positions.setdefault(cluster, response.position)
        if not response.round:
            self.plain.add(cluster)
        self.waiting.discard(cluster)
        return self._round_over() if not self.waiting else Step.WAIT

    def _round_over(self) -> Step:
        if self.plain and self.round == 1 and len(self.positions) > 1:
            self.round = 2
            self.waiting = set(self.positions)
            return Step.SECOND_ROUND
        return Step.COMPLETE if self.usable() else Step.DROP

    def timed_out(self, knowing: Collection[str]) -> Step:
        """The time is up.

        Args:
            knowing: peers that are known to read claims.
        """
        return Step.COMPLETE if self.usable() or self.waiting <= set(knowing) else Step.DROP

    def usable(self) -> dict[str, Position]:
        """The positions that are safe to report: all of them when every peer answered, else those of peers that read claims."""
        if not self.waiting and set(self.positions) >= self.peers:
            return dict(self.positions)
        return {cluster: at for cluster, at in self.positions.items() if cluster not in self.plain}

    def without(self, peers: frozenset[str]) -> Step:
        """Only these peers are left."""
        self.peers &= peers
        self.expected &= peers
        self.waiting &= peers
        self.positions = {cluster: at for cluster, at in self.positions.items() if cluster in peers}
        self.plain &= peers
        if self.waiting or not self.peers:
            return Step.WAIT if self.waiting else Step.DROP
        return self._round_over()
