"""All topics of one outgoing link. Pipelines are notified here when one of them changes."""

from collections.abc import Iterable
from functools import partial

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.effects.outbox import Note, Outbox, Timer
from magnetar.replication.link.fetch_sessions import FetchSessions
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.polling import Changes, Polls


class LinkTopics:
    """The topics of one outgoing link.

    Args:
        outbox: the broker's.
        to: the target cluster.
        boot: clock at this broker's start, ms; never the same twice.
        by_name: filled here.
        sessions: hear of changes at once.

    Attributes:
        by_name: topics that have a cursor for this link, orphans included.
        changes, polls: see `replication.link.polling`.
    """

    def __init__(
        self, outbox: Outbox, to: str, boot: int, by_name: dict[str, LinkTopic], sessions: FetchSessions
    ) -> None:
        self.to = to
        self.by_name = by_name
        self._sessions = sessions
        self.changes = Changes(boot)
        self.polls = Polls(outbox, self.changes)
        self._outbox = outbox
        self._lost_before = (0, 0)
        """Gap and skipped messages, since the broker's start, of topics that are gone."""

    def present(self, state: LinkTopic) -> bool:
        """Whether this state is still the one of its topic: the topic may have been deleted and created again."""
        return self.by_name.get(state.name) is state

    def chosen(self, topic: str | None) -> list[LinkTopic]:
        """The topics that an operator's command is about: one, or (None) all whose entries go over the link.

        Raises:
            BrokerError: the topic is not on this link.
        """
        if topic is None:
            return [state for state in self.by_name.values() if state.wanted]
        state = self.by_name.get(topic)
        if state is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic} is not on the link to {self.to}")
        return [state]

    def changed(self, state: LinkTopic, *, urgent: bool = False) -> None:
        """A topic changed: pipelines have to learn of it; `urgent`: also one that has a session for it should know soon."""
        if state.rate is not None and not state.due_ms:
            wait_ms = state.let_go(self._outbox.now_ms)
            if wait_ms:
                state.due_ms = self._outbox.now_ms + wait_ms
                self._outbox.put(Timer(state.due_ms, partial(self._rate_due, state)))
        quiet = self._sessions.changed(state) and not urgent
        state.changed = self.changes.touch(state.name, quiet=quiet)
        self.polls.news(quiet=quiet)

    def _rate_due(self, state: LinkTopic, now_ms: int) -> None:
        if now_ms >= state.due_ms:  # else the timer is one of a rate that was changed since
            state.due_ms = 0
        if self.present(state):
            self.changed(state)

    def link_changed(self) -> None:
        """The whole link changed: pipelines have to learn of it."""
        self.changes.bump()
        self._sessions.link_changed()
        self.polls.news()

    def removed(self, topic: str) -> None:
        """A topic is gone (durably), or its cursor is."""
        gone = self.by_name.pop(topic, None)
        if gone is not None:
            self._lost_before = (self._lost_before[0] + gone.lost[0], self._lost_before[1] + gone.lost[1])
            gone.loaded = (gone.gap, gone.skipped)  # it may come back, and its lost messages are counted already
            self._sessions.removed(topic)
            self.changes.removed(topic, self.polls.oldest)
            self.polls.news()

    @property
    def lost(self) -> tuple[int, int]:
        """Gap and skipped messages since the broker's start; neither ever falls."""
        return self.lost_by(self.by_name.values())

    def lost_by(self, losers: Iterable[LinkTopic]) -> tuple[int, int]:
        """The same, if these are all topics that have lost something; some may be gone since."""
        every = [self._lost_before, *(state.lost for state in losers)]
        return sum(gap for gap, _ in every), sum(skipped for _, skipped in every)

    def note(self, level: str, text: str) -> None:
        """Write a line about this link to the broker's log."""
        self._outbox.put(Note(level, f"link to {self.to}: {text}"))

    def validate(self) -> None:
        """Check what must hold after every step."""
        for state in self.by_name.values():
            state.validate()
