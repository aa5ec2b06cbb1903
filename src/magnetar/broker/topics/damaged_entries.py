"""Entries that cannot be read: the subscriptions that are stopped at one, and giving one up as an operator (decision
39).

A damaged entry is never skipped automatically: a message would be lost without a decision. If it is given up, its
messages are withdrawn from the topic (`broker.publish.idempotency.withdrawals`): they count as acknowledged in every
subscription, also in ones that are created later or moved back, and in readers. No other cluster is informed, and a
link that is blocked by the entry stays blocked: giving it up for a link is a separate decision (`magnetar links skip`),
because the other cluster may still get the messages in another way.
"""

from typing import Any

from magnetar.broker.context import Done
from magnetar.broker.publish.idempotency.withdrawals import PREFIX, Loser
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Outbox, Read, Store
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.storage.entries import StoredEntry


def stopped(topic: Topic) -> list[dict[str, Any]]:
    """The subscriptions and readers of a topic that are stopped at an entry that cannot be read."""
    found = [(one.name, one.stopped) for one in topic.subscriptions.values()]
    return [
        {"subscription": name, "position": str(where[0]), "reason": where[1]}
        for name, where in sorted(found)
        if where is not None
    ]


class Damage:
    """The entries of a broker's log that are given up.

    Args:
        outbox: the broker's.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.given_up = 0
        """Messages since the start, for metrics."""

    def give_up(self, topic: Topic, position: Position, done: Done) -> None:
        """Give up an entry, if it cannot be read.

        Raises or answers:
            NotFound: there is none. PreconditionFailed: it can be read; or too many messages of the topic are withdrawn.
        """
        if not topic.log.valid(position):
            raise NotFound(f"{topic.text} has no entry at {position}")

        def read(entries: list[StoredEntry], error: str) -> None:
            if entries:
                done(PreconditionFailed(f"the entry at {position} of {topic.text} can be read: nothing is given up"))
            elif not topic.log.valid(position):
                done(NotFound(f"{topic.text} no longer has an entry at {position}"))
            else:
                self._withdraw(topic, position, error or "the log gave nothing", done)

        self._outbox.put(Read(topic.text, position, 1, 1, read))

    def _withdraw(self, topic: Topic, position: Position, reason: str, done: Done) -> None:
        withdrawals, loser = topic.withdrawals, Loser(position, -1)
        known = withdrawals.has(loser)
        topic.withdraw([loser])
        if not withdrawals.has(loser):
            done(
                PreconditionFailed(
                    f"{withdrawals.messages} messages of {topic.text} are withdrawn, the most there may be"
                )
            )
            return
        messages = topic.log.count_at(position)
        version = withdrawals.version

        def stored(problem: str) -> None:
            if problem:
                done(BrokerError(ErrorCode.METADATA, f"the metadata store refused: {problem}"))
                return
            withdrawals.stored(version)
            if not known:
                self.given_up += messages
                text = f"gave up {messages} messages at {position} of {topic.text}, as an operator said: {reason}"
                self._outbox.put(Note("warning", text))
            done(None)

        self._outbox.put(Store({PREFIX + topic.text: withdrawals.encode()}, (), stored))
