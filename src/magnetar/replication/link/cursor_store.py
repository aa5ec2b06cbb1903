"""The cursors of one outgoing link and their way to the metadata store.

Cursors that moved forward are stored together, a little later: a crash then sends again what the destination knows already.
A cursor that moves *back*, or leaves positions behind for good, is stored first and used when that is durable; until the
store has answered, nothing else of that topic is stored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from magnetar.core.ids import LinkCursor
from magnetar.effects.outbox import Note, Outbox, Store, Timer
from magnetar.effects.store_batches import Piece, cut
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.polling import Changes, Lease, Polls
from magnetar.replication.link.records import LINK_PREFIX, LinkRecord, LinkTopicRecord, link_cursor_key, link_cursors

FLUSH_MS: Final = 100
"""Cursors that moved are stored together this often: a crash sends again at most what was confirmed meanwhile, and the
destination knows it. Retention waits for the stored ones."""

RETRY_MS: Final = 500
"""After a store that failed."""

Done = Callable[[str], None]


class KeptLink:
    """The state of one outgoing link, kept durable.

    Args:
        outbox: the broker's.
        to: the target cluster.
        boot: clock at this broker's start, ms; never the same twice.

    Attributes:
        topics: those that have a cursor for this link, orphans included.
        lost_before: gap and skipped messages since the start of topics that are gone.
        record: what an operator set on the whole link.
        changes, lease, polls: what the pipeline is told, see `replication.link.polling`.
        leases: of roles that may replicate some topics only.
        on_rebased: told of a topic in which the link began anew or passed over entries: its destination lacks some.
    """

    def __init__(self, outbox: Outbox, to: str, boot: int) -> None:
        self.outbox = outbox
        self.to = to
        self.topics: dict[str, LinkTopic] = {}
        self.lost_before = (0, 0)
        self.record = LinkRecord()
        self.changes = Changes(boot)
        self.lease = Lease(outbox)
        self.leases: dict[str, Lease] = {}
        self.polls = Polls(outbox, self.changes)
        self.on_rebased: Callable[[str], None] = _nobody
        self._stored: dict[str, LinkTopicRecord] = {}
        self._dirty: set[str] = set()
        self._deleting: set[str] = set()
        self._flushing = False

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take the metadata store's content at start; `added` follows for every topic there is.

        Raises:
            StorageError: a record is damaged.
        """
        key = LINK_PREFIX + self.to
        if key in stored:
            self.record = LinkRecord.decode(key, stored[key])
        self._stored = dict(link_cursors(stored, self.to))

    @property
    def lost(self) -> tuple[int, int]:
        """Gap and skipped messages since the broker's start; neither ever falls."""
        every = [self.lost_before, *(state.lost for state in self.topics.values())]
        return sum(gap for gap, _ in every), sum(skipped for _, skipped in every)

    def _touch_record(self, state: LinkTopic) -> None:
        if state.name in self._deleting:
            return  # a put behind the deletion would bring the cursor back
        self._dirty.add(state.name)
        self._schedule(FLUSH_MS)

    def _schedule(self, delay_ms: int) -> None:
        if not self._flushing:
            self._flushing = True
            self.outbox.put(Timer(self.outbox.now_ms + delay_ms, self._flush_due))

    def _flush_due(self, _now_ms: int) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Store all cursors that moved (also at shut-down)."""
        # A rewind on its way is stored by itself; until the store has said yes or no, nothing else may be.
        states = [state for name in sorted(self._dirty) if (state := self.topics[name]).rewinding is None]
        self._dirty -= {state.name for state in states}
        if self._dirty:
            self._schedule(FLUSH_MS)

        def stored(count: int, error: str) -> None:
            if error:
                self._note("error", f"cannot store {count} cursors: {error}; trying again")

        self._store(states, stored)

    def _store(self, states: Iterable[LinkTopic], told: Callable[[int, str], None]) -> int:
        """Store cursors as they are, in as few transactions as every store takes; what fails is tried again.

        Args:
            states: whose.
            told: called for each transaction, with the number of its cursors.

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
                told(len(cursors), error)

            self.outbox.put(Store(dict(batch.puts), (), stored))

        batches = list(
            cut(Piece((name,), {link_cursor_key(name, self.to): r.encode()}) for name, (_, r) in records.items())
        )
        for batch in batches:
            commit(batch)
        return len(batches)

    def _again(self, states: Iterable[LinkTopic]) -> None:
        self._dirty.update(s.name for s in states if self.topics.get(s.name) is s and s.name not in self._deleting)
        self._schedule(RETRY_MS)

    def _changed(self, state: LinkTopic) -> None:
        state.changed = self.changes.touch(state.name)
        self.polls.news()

    def _gap(self, state: LinkTopic, lost: int, how: str) -> None:
        self._note("error", f"{lost} messages of {state.name} {how}")
        self.on_rebased(state.name)

    def _note(self, level: str, text: str) -> None:
        self.outbox.put(Note(level, f"link to {self.to}: {text}"))

    def _store_now(self, states: list[LinkTopic], done: Done) -> None:
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

    def _move(
        self, state: LinkTopic, target: LinkCursor, record: LinkTopicRecord, apply: Callable[[], None], stored: Done
    ) -> None:
        """Put the cursor somewhere else: durable first, then used."""
        state.rewinding = target

        def done(error: str) -> None:
            if self.topics.get(state.name) is state:
                if not error:
                    apply()
                else:
                    if state.rewinding == target:
                        state.rewinding = None
                    self._note("error", f"cannot store the new place of {state.name}: {error}")
                self._changed(state)
            stored(error)

        self.outbox.put(Store({link_cursor_key(state.name, self.to): record.encode()}, (), done))

    def validate(self) -> None:
        """Check what must hold after every step."""
        for state in self.topics.values():
            state.validate()
        assert self._dirty <= self.topics.keys(), "a topic that is gone would be stored"


def _nobody(_topic: str) -> None:
    """Nobody asks."""
