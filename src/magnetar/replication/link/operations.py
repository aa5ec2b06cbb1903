"""The operators' commands for an outgoing link: pause, resume, throttle, skip, give up an orphan."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import LATEST, Position
from magnetar.effects.outbox import Outbox, Store
from magnetar.metadata.errors import Conflict
from magnetar.replication.link.cursor_store import Done, LinkCursorStore
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.link_topics import LinkTopics
from magnetar.replication.link.policy import local_messages, may_go
from magnetar.replication.link.records import LINK_PREFIX, LinkRecord

ORPHAN_MS: Final = 7 * 24 * 3_600_000
"""How long a cursor without link or policy still holds its data. See `BrokerConfig.orphan_cursor_ms`."""


class Skip(NamedTuple):
    """The entries that a skip gives up in one topic.

    Attributes:
        topic: full name.
        through: the last position that is given up.
        messages: published here and not settled yet; an upper bound, as some may not be for this cluster.
        entries, bytes: of everything up to there, whether or not this link wants it.
    """

    topic: str
    through: Position
    messages: int
    entries: int
    bytes: int


class LinkOperations:
    """The commands of operators for one outgoing link.

    Args:
        outbox: the broker's.
        topics: of the link.
        cursors: where their cursors are stored.
        rebased: called with the name of a topic in which a skip gave up entries: the destination lacks them.
        orphan_ms: see `ORPHAN_MS`.

    Attributes:
        record: what an operator set for the whole link.
    """

    def __init__(
        self,
        outbox: Outbox,
        topics: LinkTopics,
        cursors: LinkCursorStore,
        rebased: Callable[[str], None],
        orphan_ms: int,
    ) -> None:
        self.record = LinkRecord()
        self._outbox = outbox
        self._topics = topics
        self._cursors = cursors
        self._rebased = rebased
        self._orphan_ms = orphan_ms

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start.

        Raises:
            StorageError: the record is damaged.
        """
        key = LINK_PREFIX + self._topics.to
        if key in stored:
            self.record = LinkRecord.decode(key, stored[key])

    def pause(self, topic: str | None, paused: bool, done: Done) -> None:
        """Pause or resume the link or one topic; `done("")` when it is durable.

        Raises:
            BrokerError: the topic is not on this link.
        """
        states = self._topics.chosen(topic)
        if not paused:
            for state in states:
                if state.unblock():
                    self._topics.changed(state)
        if topic is None:
            self._store_link(LinkRecord(paused=paused, throttle_bytes_per_s=self.record.throttle_bytes_per_s), done)
            return
        state = states[0]
        state.paused = paused
        self._topics.changed(state)
        self._cursors.store_now([state], done)

    def throttle(self, bytes_per_s: int | None, done: Done) -> None:
        """Limit the link's rate (None: no limit); `done("")` when it is durable."""
        self._store_link(LinkRecord(paused=self.record.paused, throttle_bytes_per_s=bytes_per_s or 0), done)

    def _store_link(self, record: LinkRecord, done: Done) -> None:
        before, self.record = self.record, record
        self._topics.link_changed()

        def stored(error: str) -> None:
            if error and self.record is record:
                self.record = before
                self._topics.link_changed()
            done(error)

        self._outbox.put(Store({LINK_PREFIX + self._topics.to: record.encode()}, (), stored))

    # ------------------------------------------------------------------------------------------------------------- skip

    def skip_preview(self, topic: str | None, through: Position | None) -> list[Skip]:
        """The entries that `skip` with the same arguments gives up; topics that lose nothing are left out.

        Args:
            topic: None for every topic of the link.
            through: the last position; LATEST: all there is now; None: the entry that blocks the topic.

        Raises:
            BrokerError: the topic is not on this link. Conflict: there is no such position yet.
        """
        found = []
        for state in self._topics.chosen(topic):
            if through is not None and through != LATEST and through > state.log.last:
                raise Conflict(
                    f"{through} is behind the last message of {state.name}, {state.log.last}; use latest for the end"
                )
            end = _skip_end(state, through)
            if end > state.cursor.c:
                log, c = state.log, state.cursor.c
                messages = local_messages(log, c, end)
                found.append(Skip(state.name, end, messages, log.entries_between(c, end), log.bytes_between(c, end)))
        return found

    def skip(self, topic: str | None, through: Position | None, done: Done) -> int:
        """Settle entries without sending them: C moves, S does not; `done("")` when it is durable.

        Returns:
            How many messages were given up.

        Raises:
            BrokerError: the topic is not on this link, nothing would be skipped, or a rewind is just being stored.
        """
        skipped: list[LinkTopic] = []
        lost, to = 0, self._topics.to
        chosen = self._topics.chosen(topic)
        if any(state.rewinding is not None for state in chosen):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"the link to {to} is going back just now: try again")
        for state in chosen:
            end = _skip_end(state, through)
            if end > state.cursor.c:
                lost += state.skip(end)
                state.unblock()
                skipped.append(state)
                self._topics.changed(state)
                self._rebased(state.name)
        if not skipped:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"nothing to skip on the link to {to}")
        self._topics.note("warning", f"{lost} messages of {len(skipped)} topics were skipped by command")
        self._cursors.store_now(skipped, done)
        return lost

    # ---------------------------------------------------------------------------------------------------------- orphans

    def tick(self, now_ms: int) -> None:
        """Now and then: delete cursors that were orphans for too long."""
        for state in list(self._topics.by_name.values()):
            if state.orphan_since_ms and now_ms - state.orphan_since_ms >= self._orphan_ms:
                self._delete_orphan(state, _ignore)

    def delete_orphan(self, topic: str, done: Done) -> None:
        """Give up the data that a cursor without link or policy holds; `done("")` when it is durable.

        Raises:
            BrokerError: no such cursor, or it is in use.
        """
        state = self._topics.chosen(topic)[0]
        if state.wanted:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"the cursor of the link to {self._topics.to} in {topic} is in use"
            )
        self._delete_orphan(state, done)

    def _delete_orphan(self, state: LinkTopic, done: Done) -> None:
        def stored(error: str) -> None:
            if not error and self._topics.present(state) and not state.wanted:
                self._topics.removed(state.name)
                self._cursors.removed(state.name)
                self._topics.note("info", f"the orphaned cursor in {state.name} is deleted")
            done(error)

        self._cursors.delete(state, stored)


def _skip_end(state: LinkTopic, through: Position | None) -> Position:
    if through is None:
        if state.blocked is None:
            return state.cursor.c
        return state.blocked.position if state.blocked.position > state.cursor.c else _first_wanted(state)
    return min(through, state.log.last) if through != LATEST else state.log.last


def _first_wanted(state: LinkTopic) -> Position:
    """The first entry after C that may be sent: the one that blocks, when its report named no position."""
    position = state.log.next_after(state.cursor.c)
    while position is not None and not may_go(state.log.flags_at(position)):
        position = state.log.next_after(position)
    return position or state.cursor.c


def _ignore(_error: str) -> None:
    """The next tick tries again."""
