r"""Writes markers for the other clusters of one topic: updates, announcements, seeks.

snapshot passed and news -> UPDATE being written (`writing`) -> durable: reported up to its local position
\-> failed: as before, it is tried again
"""

from collections.abc import Callable

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.marker_host import MarkerHost
from magnetar.replication.notices import Notices
from magnetar.replication.snapshots.cache import CachedSnapshot
from magnetar.replication.snapshots.marker_appender import MarkerAppender
from magnetar.replication.snapshots.message_runs import MessageRuns
from magnetar.replication.snapshots.routes import audience, partners
from magnetar.replication.snapshots.state import State, later
from magnetar.wire.acksets import Epoch, SoughtEpoch
from magnetar.wire.markers import RANGES_MAX, Claim, Update


class UpdateWriter:
    """Writes the markers of one topic.

    Args:
        host: the topic.
        appender: of its markers.
        notices: counters.

    Attributes:
        audience: clusters that get the markers written here.
    """

    def __init__(self, host: MarkerHost, appender: MarkerAppender, notices: Notices) -> None:
        self._host = host
        self._appender, self._notices = appender, notices
        self.audience = audience(host.routes, host.cluster)

    def routes_changed(self) -> frozenset[str]:
        """Links came or went; the clusters that are new in the audience."""
        before, self.audience = self.audience, audience(self._host.routes, self._host.cluster)
        return self.audience - before

    def write_update(self, subscription: str, state: State) -> None:
        """Write an update if a snapshot was passed and there is something to report."""
        if state.writing is not None or not state.cache.items:
            return
        cursor = self._host.cursor(subscription)
        taken = state.cache.passed(cursor.mark_delete) if cursor is not None else None
        if taken is None:
            return
        if not state.has_news and not state.repeat_for:
            state.cache.drop(taken.local)
            return
        to = self.audience if state.has_news else self.audience & state.repeat_for
        if not to:
            return
        to_all = to == self.audience
        # Repeated reports are for these only, even where no other clusters are left: a cluster that joins may have sought.
        names = () if state.has_news else to
        turn = state.turn

        def done(_: Position, error: str) -> None:
            if state.turn != turn:
                return
            state.writing = None
            if error:
                return
            if to_all:
                state.reported = max(state.reported, taken.local)
            state.repeat_for -= to
            state.cache.drop(taken.local)
            self._host.dirty(subscription)
            self._notices.count("updates_written")

        claim = Claim(self.claimable(state, taken).cut().origins, *self._base_and_seeks(subscription, state))
        if self._appender.write(Update(subscription, taken.clusters, claim), names, done):
            state.writing = taken

    @staticmethod
    def claimable(state: State, taken: CachedSnapshot) -> MessageRuns:
        """The acknowledged messages of a passed snapshot: without those that only the starting point or expiry passed."""
        return taken.held.minus(state.base, state.expired)

    def write_announcement(self, subscription: str, state: State) -> None:
        """Announce that the subscription exists, so that it is there before its first snapshot is passed."""
        if state.announcing or not self.audience:
            return

        def done(_: Position, error: str) -> None:
            state.announcing = False
            if not error:
                state.announce = False
                self._host.dirty(subscription)

        positions = dict.fromkeys(partners(self._host.routes, self._host.cluster), NONE)
        claim = Claim({}, *self._base_and_seeks(subscription, state), created=True)
        state.announcing = self._appender.write(Update(subscription, positions, claim), (), done)

    def _base_and_seeks(
        self, subscription: str, state: State
    ) -> tuple[dict[OriginKey, list[tuple[int, int]]] | None, tuple[Epoch, ...]]:
        """Base and seeks of a claim; also the seek that exact mode brought here, which had no marker of this mode."""
        known = state.based and state.base.count_runs() <= RANGES_MAX // 2
        seeks, epoch = dict(state.seeks), self._host.epoch(subscription)
        if epoch is not None and later(seeks.get(epoch.cluster), epoch):
            seeks[epoch.cluster] = epoch
        return state.base.origins if known else None, tuple(seeks.values())

    def write_seek(self, subscription: str, state: State, then: Callable[[str], None]) -> bool:
        """Write the newest seek here; until that is durable no cluster's updates are taken, so it is tried until it is."""
        seek = state.sought
        assert seek is not None, "only a seek that was made is unwritten"

        def done(_: Position, error: str) -> None:
            if state.sought == seek:
                state.writing_seek = False
                if not error:
                    state.seek_unwritten = False
                    self._host.dirty(subscription)
            then(error)

        marker = SoughtEpoch(self._host.cluster, subscription, seek)
        state.writing_seek = self._appender.write(marker, (), done)
        return state.writing_seek
