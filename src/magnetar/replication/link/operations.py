"""What operators do with an outgoing link: pause, resume, throttle, skip, give up an orphan, ask what is blocked."""

from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import LATEST, NONE, Position
from magnetar.effects.outbox import Outbox, Store
from magnetar.metadata.errors import Conflict
from magnetar.replication.link.cursor_store import Done, KeptLink
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.policy import local_messages, may_go
from magnetar.replication.link.records import LINK_PREFIX, LinkRecord, link_cursor_key
from magnetar.wire import pulsar_pb2 as pb

ORPHAN_MS: Final = 7 * 24 * 3_600_000
"""How long a cursor without link or policy goes on holding its data. See `BrokerConfig.orphan_cursor_ms`."""


class Skip(NamedTuple):
    """What a skip gives up in one topic.

    Attributes:
        topic: full name.
        through: the last position that is given up.
        messages: published here and not settled yet; an upper bound, as some may not be for this cluster.
        entries, bytes: of all that is stepped over.
    """

    topic: str
    through: Position
    messages: int
    entries: int
    bytes: int


class OperatedLink(KeptLink):
    """An outgoing link under an operator's hand.

    Args:
        outbox, to, boot: see `KeptLink`.
        orphan_ms: see `ORPHAN_MS`.
    """

    def __init__(self, outbox: Outbox, to: str, boot: int, orphan_ms: int = ORPHAN_MS) -> None:
        super().__init__(outbox, to, boot)
        self._orphan_ms = orphan_ms

    def _chosen(self, topic: str | None) -> list[LinkTopic]:
        if topic is None:
            return [state for state in self.topics.values() if state.wanted]
        state = self.topics.get(topic)
        if state is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic} is not on the link to {self.to}")
        return [state]

    def pause(self, topic: str | None, paused: bool, done: Done) -> None:
        """Stop or go on with the link, or with one topic; `done("")` when it is durable.

        Raises:
            BrokerError: the topic is not on this link.
        """
        states = self._chosen(topic)
        if not paused:
            for state in states:
                if state.unblock():
                    self._changed(state)
        if topic is None:
            self._store_link(LinkRecord(paused=paused, throttle_bytes_per_s=self.record.throttle_bytes_per_s), done)
            return
        state = states[0]
        state.paused = paused
        self._changed(state)
        self._store_now([state], done)

    def throttle(self, bytes_per_s: int | None, done: Done) -> None:
        """Limit the link's rate (None: no limit); `done("")` when it is durable."""
        self._store_link(LinkRecord(paused=self.record.paused, throttle_bytes_per_s=bytes_per_s or 0), done)

    def _store_link(self, record: LinkRecord, done: Done) -> None:
        before, self.record = self.record, record
        self.changes.bump()
        self.polls.news()

        def stored(error: str) -> None:
            if error and self.record is record:
                self.record = before
                self.changes.bump()
                self.polls.news()
            done(error)

        self.outbox.put(Store({LINK_PREFIX + self.to: record.encode()}, (), stored))

    def skip_preview(self, topic: str | None, through: Position | None) -> list[Skip]:
        """What `skip` with the same arguments gives up; topics that lose nothing are left out.

        Args:
            topic: None for every topic of the link.
            through: the last position; LATEST: all there is now; None: the entry that blocks the topic.

        Raises:
            BrokerError: the topic is not on this link. Conflict: there is no such position yet.
        """
        found = []
        for state in self._chosen(topic):
            if through is not None and through != LATEST and through > state.log.last:
                raise Conflict(
                    f"{through} is behind the last message of {state.name}, {state.log.last}; latest stands for the end"
                )
            end = self._skip_end(state, through)
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
        lost = 0
        chosen = self._chosen(topic)
        if any(state.rewinding is not None for state in chosen):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"the link to {self.to} is going back just now: try again")
        for state in chosen:
            end = self._skip_end(state, through)
            if end > state.cursor.c:
                lost += state.skip(end)
                state.unblock()
                skipped.append(state)
                self._changed(state)
                self.on_rebased(state.name)
        if not skipped:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"nothing to skip on the link to {self.to}")
        self._note("warning", f"{lost} messages of {len(skipped)} topics were skipped by command")
        self._store_now(skipped, done)
        return lost

    @staticmethod
    def _skip_end(state: LinkTopic, through: Position | None) -> Position:
        if through is None:
            if state.blocked is None:
                return state.cursor.c
            return state.blocked.position if state.blocked.position > state.cursor.c else _first_wanted(state)
        return min(through, state.log.last) if through != LATEST else state.log.last

    # ---------------------------------------------------------------------------------------------------------- orphans

    def tick(self, now_ms: int) -> None:
        """Now and then: delete cursors that were orphans for too long."""
        for state in list(self.topics.values()):
            if state.orphan_since_ms and now_ms - state.orphan_since_ms >= self._orphan_ms:
                self._delete_orphan(state, _ignore)

    def delete_orphan(self, topic: str, done: Done) -> None:
        """Give up the data that a cursor without link or policy holds; `done("")` when it is durable.

        Raises:
            BrokerError: no such cursor, or it is in use.
        """
        state = self._chosen(topic)[0]
        if state.wanted:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"the cursor of the link to {self.to} in {topic} is in use")
        self._delete_orphan(state, done)

    def _delete_orphan(self, state: LinkTopic, done: Done) -> None:
        self._deleting.add(state.name)

        def stored(error: str) -> None:
            self._deleting.discard(state.name)
            if not error and self.topics.get(state.name) is state and not state.wanted:
                self.removed(state.name)
                self._note("info", f"the orphaned cursor in {state.name} is deleted")
            done(error)

        self._dirty.discard(state.name)
        self.outbox.put(Store({}, (link_cursor_key(state.name, self.to),), stored))

    def removed(self, topic: str) -> None:
        """The topic is gone (durably), or its cursor is."""
        gone = self.topics.pop(topic, None)
        if gone is not None:
            self.lost_before = (self.lost_before[0] + gone.lost[0], self.lost_before[1] + gone.lost[1])
            gone.loaded = (gone.gap, gone.skipped)  # it may come back, and what it lost is counted
            self._dirty.discard(topic)
            self.changes.touch(topic)
            self.polls.news()

    # ----------------------------------------------------------------------------------------------------------- status

    def status(self, request_id: int = 0) -> pb.CommandGeoStatusResponse:
        """GEO_STATUS: what is blocked and why."""
        response = pb.CommandGeoStatusResponse(request_id=request_id, gap=sum(s.gap for s in self.topics.values()))
        for state in self.topics.values():
            if (stop := state.blocked) is not None:
                told = response.blocked.add(
                    topic=state.name, kind=stop.kind, reason=stop.reason, since_ms=stop.since_ms
                )
                told.to = self.to
                if stop.position != NONE:
                    told.position.ledger, told.position.entry = stop.position
                if stop.conflict is not None:
                    told.conflict.CopyFrom(stop.conflict)
        return response


def _first_wanted(state: LinkTopic) -> Position:
    """The first entry behind C that may go: the one that blocks, when nobody named it."""
    position = state.log.next_after(state.cursor.c)
    while position is not None and not may_go(state.log.flags_at(position)):
        position = state.log.next_after(position)
    return position or state.cursor.c


def _ignore(_error: str) -> None:
    """The next tick tries again."""
