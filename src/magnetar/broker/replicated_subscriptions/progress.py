"""The lag of other clusters for acknowledgements made here: counted for display only, no decision depends on it.

    acknowledged -> collected -> a marker that carries it is being written -> durable -> a link has carried it

This is for exact mode, in which a marker has everything that was collected for its subscriptions. In snapshot mode the
machine knows which acknowledgements an update reports (`ReplicatedTopic.untold`); after that, the update waits for
links in the same way.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import Acked
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.markers import MarkerType
from magnetar.wire.metadata import parse_metadata, split

MARKERS_MAX: Final = 1_000
"""The most markers remembered that some link has not carried; above it every two become one, which only makes times
less precise.
"""


def subscriptions_in(data: bytes) -> tuple[str, ...]:
    """Subscriptions whose acknowledgements a marker carries: none for questions, answers, seeks and announcements.

    Args:
        data: a marker that was made here, from the magic on.
    """
    kind = parse_metadata(data).marker_type
    if kind == MarkerType.ACKED_SETS:
        sets = pb.GeoAckedSets.FromString(data[split(data) :]).sets
        return tuple(one.subscription for one in sets if one.part == one.parts)
    if kind == MarkerType.UPDATE:
        update = pb.ReplicatedSubscriptionsUpdate.FromString(data[split(data) :])
        return () if update.claim.created else (update.subscription_name,)
    return ()


class Lag(NamedTuple):
    """The acknowledgements of one subscription that a cluster lacks.

    Attributes:
        messages: acknowledged here and not carried there; an upper bound, as a message acknowledged twice counts twice.
        since_ms: when the oldest of these was acknowledged; 0 when there is none.
    """

    messages: int = 0
    since_ms: int = 0

    def plus(self, other: "Lag") -> "Lag":
        """Both together."""
        since_ms = min((time_ms for time_ms in (self.since_ms, other.since_ms) if time_ms), default=0)
        return Lag(self.messages + other.messages, since_ms)


@dataclass(eq=False)
class Written:
    """A marker that carries acknowledgements, or some that follow each other.

    Attributes:
        counts: by subscription what it carries.
        position: of the last one; NONE until it is durable.
        at_ms: when the first one became durable.
    """

    counts: dict[str, Lag]
    position: Position = NONE
    at_ms: int = 0

    def add(self, subscription: str, more: Lag) -> None:
        """It carries more than was known when it was written."""
        self.counts[subscription] = self.counts.get(subscription, Lag()).plus(more)

    def join(self, later: "Written") -> None:
        """Take in the one that follows."""
        for subscription, more in later.counts.items():
            self.add(subscription, more)
        self.position = later.position


class Progress:
    """Acknowledgements of one topic on their way into markers and over links.

    Args:
        log: of the topic.
    """

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._collected: dict[str, Lag] = {}
        self._under_way: list[Written] = []
        self._written: list[Written] = []

    def acknowledged(self, subscription: str, acked: Acked, now_ms: int) -> None:
        """A consumer or operator here acknowledged something."""
        messages = acked.messages(self._log)
        if messages:
            self.collect(subscription, Lag(messages, now_ms))

    def collects(self, subscription: str) -> bool:
        """Whether something of a subscription waits for its next marker, as far as is known here."""
        return subscription in self._collected

    def collect(self, subscription: str, more: Lag) -> None:
        """The next marker that carries this subscription will report this."""
        self._collected[subscription] = self._collected.get(subscription, Lag()).plus(more)

    def begin(self, subscriptions: Collection[str], now_ms: int) -> Written | None:
        """A marker is handed to the log that carries what was collected of these; None when it carries nothing."""
        if not subscriptions:
            return None
        made = Written({name: self._collected.pop(name, Lag(0, now_ms)) for name in subscriptions})
        self._under_way.append(made)
        return made

    def failed(self, marker: Written) -> None:
        """It was not written: another one will have to carry that."""
        if marker in self._under_way:
            self._under_way.remove(marker)
            for subscription, lag in marker.counts.items():
                if lag.messages:
                    self.collect(subscription, lag)

    def healed(self) -> None:
        """The storage accepts writes again: markers that were not reported as durable never existed."""
        for marker in list(self._under_way):
            self.failed(marker)

    def written(self, marker: Written, position: Position, now_ms: int) -> None:
        """It is durable."""
        if marker not in self._under_way:
            return
        self._under_way.remove(marker)
        marker.position, marker.at_ms = position, now_ms
        self._written.append(marker)
        if len(self._written) > MARKERS_MAX:
            self._halve()

    def _halve(self) -> None:
        for first, later in zip(self._written[::2], self._written[1::2], strict=False):
            first.join(later)
        self._written = self._written[::2]

    def carried(self, up_to: Position) -> None:
        """Every link is done with everything at or below."""
        done = 0
        while done < len(self._written) and self._written[done].position <= up_to:
            done += 1
        if done:
            del self._written[:done]

    def waiting_since(self, carried: Position) -> int:
        """When the oldest marker was written that a link has not carried; 0 if it has carried all."""
        return next((one.at_ms for one in self._written if one.position > carried), 0)

    def lag(self, subscription: str, carried: Position, *, owed: bool = True) -> Lag:
        """The lag of a cluster whose link has carried everything at or below `carried`.

        Args:
            subscription, carried: the subscription, and the link's position.
            owed: whether anything is still to be reported; if not, the collected acknowledgements were removed since.
        """
        missing = [*self._under_way, *(marker for marker in self._written if marker.position > carried)]
        total = self._collected.get(subscription, Lag()) if owed else Lag()
        for marker in missing:
            total = total.plus(marker.counts.get(subscription, Lag()))
        return total

    def drop(self, subscription: str) -> None:
        """The collected acknowledgements need no report: a seek was made since, or the other clusters know them
        already.
        """
        self._collected.pop(subscription, None)

    def forget(self, subscription: str) -> None:
        """A subscription is gone."""
        self.drop(subscription)
        for marker in (*self._under_way, *self._written):
            marker.counts.pop(subscription, None)
