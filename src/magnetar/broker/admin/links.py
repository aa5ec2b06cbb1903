"""Outgoing links for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Container, Generator
from typing import Any

from magnetar.broker.admin.draining import Drain, DrainState
from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.admin.topics import TopicControl
from magnetar.broker.catalog.deletion_marks import Deletions
from magnetar.broker.context import Done
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.links.states import LinkState, SkipPreview
from magnetar.broker.statistics.topic_stats import at_once
from magnetar.core.ids import Position


class LinkControl:
    """Links to other clusters, and the messages of other clusters that are here.

    Args:
        links: the broker's links.
        drain: finds the reasons why the cluster cannot be switched off.
        deleted: the deletion marks of topics.
        fences: planned failovers.
        topics: administration of topics.
        events: the entry of changes into the broker.
    """

    def __init__(
        self,
        links: Links,
        drain: Drain,
        deleted: Deletions,
        fences: Fences,
        topics: TopicControl,
        events: AdminEvents,
    ) -> None:
        self._links, self._drain, self._deleted, self._fences = links, drain, deleted, fences
        self._topics, self._events = topics, events

    def states(self) -> list[LinkState]:
        """Every outgoing link, by target name; topics by name."""
        return at_once(self._links.reports.states())

    def figures(self, shown: Container[str]) -> Generator[None, None, list[LinkState]]:
        """The same for `/metrics`, in steps; `topics` has only those of `shown`, and those that are blocked."""
        return self._links.reports.states(shown)

    def incoming(self) -> dict[str, Any]:
        """`incoming` of `status` alone, which does not walk over the topics."""
        return self._links.reports.incoming()

    def status(self) -> dict[str, Any]:
        """The additions of `GET /geo/v1/status` to cluster, uuid and links: `incoming` (per source: uuid, since, last
        seen, blocked), `gaps`, `deleted` (topics with a deletion mark), `unlinked` (namespace -> clusters that its
        policy names without a link), as plain JSON values.
        """
        return self._links.reports.status() | {
            "deleted": sorted(text for text in self._deleted if self._topics.partitions(text) is None),
            "failovers": self._fences.held(),
        }

    def held(self, origin: str) -> list[dict[str, Any]]:
        """Messages of a cluster that are held here, by topic: `topic`, `partitions` of its partitioned topic (0: none),
        `incarnation` here, `lives` (each incarnation at the origin: `incarnation`, `runs` of origin indexes `[first,
        end)`, `messages`, `entries`, `bytes`), `deleted` (`[incarnation, first, end]` restored once and deleted by
        retention since). For another cluster, only topics that have something; for this one, all.
        """
        return self._links.restores.held(origin)

    def drain(self) -> DrainState:
        """The reasons why this cluster cannot be switched off."""
        return self._drain.describe()

    def pause(self, target: str, topic: str | None, done: Done) -> None:
        """Stop sending on a link, or in one of its topics; survives a restart.

        Raises:
            NotFound: no such link, or the topic is not on it. So do the other link methods.
        """
        self._events.enter(lambda: self._links.pause(target, topic, True, done))

    def resume(self, target: str, topic: str | None, done: Done) -> None:
        """End a pause; a blocked topic is tried again at once."""
        self._events.enter(lambda: self._links.pause(target, topic, False, done))

    def throttle(self, target: str, bytes_per_s: int | None, done: Done) -> None:
        """Limit a link's rate (None: no limit); survives a restart."""
        self._events.enter(lambda: self._links.throttle(target, bytes_per_s, done))

    def skip_preview(self, target: str, topic: str | None, through: Position | None) -> list[SkipPreview]:
        """The messages that `skip` with the same arguments would lose, per topic; topics that lose nothing are left
        out.
        """
        return self._links.skip_preview(target, topic, through)

    def skip(self, target: str, topic: str | None, through: Position | None, done: Done) -> None:
        """Settle entries without sending them: C moves, S does not.

        Args:
            target: the link's target cluster.
            topic: one topic, or None for every topic of the link.
            through: the last position to skip; LATEST: everything there is now; None: the entry that blocks the topic
                (topics that are not blocked lose nothing). A position needs a topic.
            done: see `broker.admin.controller`.

        Raises:
            PreconditionFailed: nothing to skip.
        """
        self._events.enter(lambda: self._links.skip(target, topic, through, done))

    def delete_orphan_cursor(self, target: str, topic: str, done: Done) -> None:
        """Give up the data that a cursor without link or policy still holds.

        Raises:
            PreconditionFailed: the cursor is in use.
        """
        self._events.enter(lambda: self._links.delete_orphan(target, topic, done))
