"""Subscriptions that were deleted, and created again, before the store said that they are gone: a broker may find them once more.

A broker deletes a subscription, a consumer creates it again, and the broker dies before the store has answered. Then the next
broker has the former subscription, the new one, or none: no client was promised anything. Its cursor shows which one it is.

    deleted                 what it may count is remembered
    the deletion is stored  it is forgotten: the answers of the store come in the order of the writes
    a broker begins         where the cursor has more than the present subscription may count, it is that of the newest former one
                            that may count it
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.core.ids import LATEST
from magnetar.metadata.topic_records import CURSOR_PREFIX, split_cursor_key
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.ackrecords import Acked, Name, SnapshotTruth

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar_sim.memory.acks import Acks


@dataclass(slots=True, frozen=True)
class _Counted:
    """What a subscription may count."""

    may: set[int]
    expired: set[int]
    snapshot: SnapshotTruth


class FormerSubscriptions:
    """See the module.

    Args:
        acks: what the present ones may count.
    """

    def __init__(self, acks: "Acks") -> None:
        self._acks = acks
        self._of: dict[Name, list[_Counted]] = {}

    def deleted(self, name: Name, truth: Acked) -> None:
        """A broker has deleted it; of seeks and of what expired any part may be stored."""
        counted = _Counted(truth.may | truth.undone, truth.expired | truth.unexpired, truth.snapshot)
        self._of.setdefault(name, []).append(counted)

    def stored(self, cluster: Cluster, keys: tuple[str, ...]) -> None:
        """The store has deleted these."""
        for key in keys:
            if key.startswith(CURSOR_PREFIX) and (waiting := self._of.get((cluster.name, *split_cursor_key(key)))):
                del waiting[0]

    def found(self, cluster: Cluster, topic: str, machine: "Subscription", truth: Acked) -> None:
        """A broker begins, and has it."""
        former = self._of.get((cluster.name, topic, machine.name))
        if not former:
            return
        covers = self._acks.now(cluster, topic, machine.cursor)
        if covers <= self._acks.allowed(cluster, topic, machine):
            # It may be a former one all the same: what that one counted of messages that are deleted, it claims.
            truth.snapshot.former_until = LATEST
            return
        for one in reversed(former):
            self._again(cluster.name, truth, one)
            if covers <= self._acks.allowed(cluster, topic, machine):
                self._acks.context.count("subscription is back that was deleted")
                return

    def _again(self, cluster: str, truth: Acked, former: _Counted) -> None:
        """What others have claimed since counts. What it will read of that once more cannot be known."""
        truth.may, truth.expired, truth.snapshot = former.may, former.expired, former.snapshot
        for claimed in truth.snapshot.claims:
            if self._acks.updates.counts(cluster, truth.snapshot.sure, claimed):
                truth.may |= claimed.acked
        truth.snapshot.unread = []
        truth.snapshot.must.clear()

    def begun(self, cluster: str) -> None:
        """A broker has begun: what it has not found is gone."""
        self._of = {name: former for name, former in self._of.items() if name[0] != cluster}

    def forgot(self, cluster: str, topic: str) -> None:
        """A topic's log is gone, with all that was stored of it."""
        self._of = {name: former for name, former in self._of.items() if name[:2] != (cluster, topic)}
