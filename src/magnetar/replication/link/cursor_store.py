"""Stores the cursors of one outgoing link in the metadata store.

Cursors that moved forward are stored together, a little later. After a crash the link then sends some entries again, which the
destination recognises as duplicates. A cursor that moves *back*, or gives up positions for good, is stored first and used when
that is durable; until the store has answered, nothing else of that topic is stored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from magnetar.core.ids import LinkCursor
from magnetar.effects.outbox import Outbox, Store, Timer
from magnetar.effects.store_batches import Piece, cut
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.link_topics import LinkTopics
from magnetar.replication.link.records import LinkTopicRecord, link_cursor_key, link_cursors

FLUSH_MS: Final = 100
"""Cursors that moved are stored together this often: after a crash, entries confirmed meanwhile are sent again, and the
destination recognises them as duplicates. Retention waits for the stored cursors."""

RETRY_MS: Final = 500
"""Pause after a store that failed."""

Done = Callable[[str], None]


class LinkCursorStore:
    """Keeps the cursors of one outgoing link durable.

    Args:
        outbox: the broker's.
        topics: of the link.
    """

    def __init__(self, outbox: Outbox, topics: LinkTopics) -> None:
        self._outbox = outbox
        self._topics = topics
        self._found: dict[str, LinkTopicRecord] = {}
        """Records that were stored before the topic exists here: at the start, or when it gets another name."""
        self._dirty: set[str] = set()
        self._deleting: set[str] = set()
        self._flushing = False

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start.

        Raises:
            StorageError: a record is damaged.
        """
        self._found = dict(link_cursors(stored, self._topics.to))

    def found(self, topic: str) -> LinkTopicRecord | None:
        """The stored record of a topic that exists from now on; None: there is none."""
        return self._found.pop(topic, None)

    def keep(self, topic: str, record: LinkTopicRecord) -> None:
        """A record is stored for a topic that will exist soon."""
        self._found[topic] = record

    def key(self, topic: str) -> str:
        """Where the cursor of a topic is stored."""
        return link_cursor_key(topic, self._topics.to)

    # -------------------------------------------------------------------------------------------------- it moves forward

    def moved(self, state: LinkTopic) -> None:
        """A cursor moved forward, or something that is stored with it changed: store it soon."""
        if state.name in self._deleting:
            return  # a put after the deletion would bring the cursor back
        self._dirty.add(state.name)
        self._schedule(FLUSH_MS)

    def flush_with(self, state: LinkTopic) -> None:
        """Store this cursor, and all that moved, now."""
        self._dirty.add(state.name)
        self.flush()

    def _schedule(self, delay_ms: int) -> None:
        if not self._flushing:
            self._flushing = True
            self._outbox.put(Timer(self._outbox.now_ms + delay_ms, self._flush_due))

    def _flush_due(self, _now_ms: int) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Store all cursors that moved (also at shut-down)."""
        # A rewind on its way is stored by itself; until the store has said yes or no, nothing else may be.
        states = [state for name in sorted(self._dirty) if (state := self._topics.by_name[name]).rewinding is None]
        self._dirty -= {state.name for state in states}
        if self._dirty:
            self._schedule(FLUSH_MS)

        def stored(count: int, error: str) -> None:
            if error:
                self._topics.note("error", f"cannot store {count} cursors: {error}; trying again")

        self._store(states, stored)

    def store_now(self, states: list[LinkTopic], done: Done) -> None:
        """Store these; `done` when all that takes is answered, with what went wrong last."""
        self._dirty -= {state.name for state in states}
        answered, problem = 0, ""

        def stored(_count: int, error: str) -> None:
            nonlocal answered, problem
            answered += 1
            problem = error or problem
            if answered == transactions:
                done(problem)

        transactions = self._store(states, stored)

    def _store(self, states: Iterable[LinkTopic], then: Callable[[int, str], None]) -> int:
        """Store cursors as they are, in as few transactions as every store takes; what fails is tried again.

        Args:
            states: whose.
            then: called for each transaction, with the number of its cursors.

        Returns:
            How many transactions.
        """
        records = {state.name: (state, state.record()) for state in states}

        def commit(batch: Piece) -> None:
            cursors = [records[name] for name in batch.names]

            def stored(error: str) -> None:
                if error:
                    self._again([state for state, _ in cursors])
                else:
                    for state, record in cursors:
                        state.stored(record.cursor)
                then(len(cursors), error)

            self._outbox.put(Store(dict(batch.puts), (), stored))

        batches = list(cut(Piece((name,), {self.key(name): r.encode()}) for name, (_, r) in records.items()))
        for batch in batches:
            commit(batch)
        return len(batches)

    def _again(self, states: Iterable[LinkTopic]) -> None:
        self._dirty.update(s.name for s in states if self._topics.present(s) and s.name not in self._deleting)
        self._schedule(RETRY_MS)

    # ------------------------------------------------------------------------------------------- it moves somewhere else

    def move(
        self, state: LinkTopic, target: LinkCursor, record: LinkTopicRecord, apply: Callable[[], None], stored: Done
    ) -> None:
        """Move the cursor to another position: durable first, then used.

        Args:
            state: of the topic.
            target: the new cursor.
            record: the record that has to be durable before.
            apply: uses it.
            stored: called after `apply`, with what went wrong.
        """
        state.rewinding = target

        def done(error: str) -> None:
            if self._topics.present(state):
                if not error:
                    apply()
                else:
                    if state.rewinding == target:
                        state.rewinding = None
                    self._topics.note("error", f"cannot store the new position of {state.name}: {error}")
                self._topics.changed(state)
            stored(error)

        self._outbox.put(Store({self.key(state.name): record.encode()}, (), done))

    def delete(self, state: LinkTopic, done: Done) -> None:
        """Delete the stored cursor of a topic."""
        self._deleting.add(state.name)

        def stored(error: str) -> None:
            self._deleting.discard(state.name)
            done(error)

        self._dirty.discard(state.name)
        self._outbox.put(Store({}, (self.key(state.name),), stored))

    def removed(self, topic: str) -> None:
        """The topic is gone (durably), or its cursor is."""
        self._dirty.discard(topic)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._dirty <= self._topics.by_name.keys(), "a topic that is gone would be stored"
