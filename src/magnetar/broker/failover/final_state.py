"""The final state of a subscription in a planned failover: written at the source, checked at the target.

The state that moves is the acknowledged set of exact mode (`replication.acked_sets`): the union of what was
acknowledged, by identity, so that the target knows exactly what the source knew. It is used in snapshot mode too: the
updates of that mode have only the position up to which everything is acknowledged, so messages acknowledged out of
order would be delivered again. The sets are kept in both modes, and every cluster understands both. One exception
remains in snapshot mode: a seek made in the target is not reported to the source and overrides the source's state. The
command compares both clusters and reports the messages that are redelivered because of it.
"""

from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import OriginKey, Position
from magnetar.metadata.errors import Conflict
from magnetar.replication.acked_sets.log_index import LogIndex
from magnetar.replication.failover import NO_TOKEN, Token
from magnetar.wire.acksets import FenceToken

RUNS_MAX: Final = 10_000
"""Runs of unacknowledged messages that are reported for a comparison: about half a megabyte of JSON. A backlog in order is one
run for each cluster; only the lowest runs of a more scattered one are compared."""

ASKED_RUNS_MAX: Final = 2 * RUNS_MAX
"""A ceiling on runs that one request names: those that another cluster reported, and what is on its way there."""

STAGE: Final = "final"

Run = tuple[str, int, int, int]
"""(origin cluster, topic incarnation there, first origin index, last)."""


class FinalStates:
    """Writes final states into topics.

    Args:
        cluster: this one.
        mode_of: which mode a topic's namespace has; see `mode`.
    """

    def __init__(self, cluster: str, mode_of: Callable[[Topic], str]) -> None:
        self._cluster = cluster
        self._mode_of = mode_of

    def refuses_state(self, topic: Topic) -> str:
        """Why the state of a topic's subscriptions cannot be moved exactly; "" when it can."""
        if topic.replicated_subscriptions is None:
            return "no link concerns its topic"
        return ""

    @staticmethod
    def unsubscribed(topic: Topic, subscription: str) -> bool:
        """Whether a subscription was deleted here: until a client subscribes again nothing of it is taken in."""
        host = topic.replicated_subscriptions
        return host is not None and host.exact.unsubscribed(subscription)

    def mode(self, topic: Topic) -> str:
        """The mode of the topic's namespace: "exact" or "snapshot"."""
        return self._mode_of(topic)

    def unsent(self, topic: Topic, subscription: str) -> int:
        """Acknowledged messages that no marker has reported yet."""
        host = topic.replicated_subscriptions
        unsent = host.exact.describe(subscription).get("unsent", 0) if host is not None else 0
        return unsent if isinstance(unsent, int) else 0

    def write(
        self, topic: Topic, subscription: Subscription, token: Token, target: str, then: Callable[[Position, str], None]
    ) -> None:
        """Write it; `then` is called once with its position when it is durable, or with NONE and what went wrong."""
        host = topic.replicated_subscriptions
        assert host is not None, "refused at the fence"

        def write() -> None:
            host.exact.final(subscription.name, FenceToken(token.time_ms, token.cluster, target, STAGE), then)

        host.when_ready(write)

    def latest(self, topic: Topic, subscription: str) -> Token:
        """The token of the failover whose final state was merged or written here; the latest if there are several."""
        host = topic.replicated_subscriptions
        found = host.exact.fence(subscription) if host is not None else None
        return NO_TOKEN if found is None else Token(found.time_ms, found.cluster)

    def check_merged(self, topic: Topic, subscription: str, token: Token) -> None:
        """Check that the final state of exactly this failover is merged here.

        A later token proves nothing: a clock may have been set back since.

        Raises:
            Conflict: it is not, or no longer: this cluster reported that it was, and has lost its disk or its topic
                since.
        """
        if self.latest(topic, subscription) != token:
            raise Conflict(
                f"failover {token}: its final state is not in {self._cluster}: acknowledged messages would be delivered again"
            )

    @staticmethod
    def when_ready(topic: Topic, then: Callable[[], None]) -> None:
        """Call `then` when what is stored of a topic's subscriptions is loaded."""
        if topic.replicated_subscriptions is not None:
            topic.replicated_subscriptions.when_ready(then)
        else:
            then()


def unacknowledged(topic: Topic, subscription: Subscription, cluster: str) -> list[Run]:
    """The messages here that a subscription has not acknowledged, as runs by identity; at most RUNS_MAX, the lowest."""
    log_index, cursor = LogIndex(topic.log, cluster), subscription.cursor
    found = log_index.held(cursor.mark_delete)
    found -= log_index.of_cursor(cursor)
    runs: list[Run] = []
    for origin, first, end in found.runs():
        if len(runs) == RUNS_MAX:
            break
        runs.append((origin.cluster, origin.incarnation, first, end - 1))
    return runs


def acknowledged_of(topic: Topic, subscription: Subscription, cluster: str, runs: Iterable[Run]) -> int:
    """The number of these messages that are here and acknowledged.

    A request may name any range of numbers, so no set is made of it; the messages here are bounded by the log.
    """
    acknowledged = LogIndex(topic.log, cluster).of_cursor(subscription.cursor)
    count, counted = 0, (OriginKey("", 0), -1)
    for origin, incarnation, first, last in sorted(runs):
        key = OriginKey(origin, incarnation)
        # Messages that an earlier run named too count once.
        start = max(first, counted[1] + 1) if key == counted[0] else first
        count += acknowledged.count_in(key, start, last + 1)
        counted = (key, max(last, start - 1))
    return count
