"""Single messages and positions of a log for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.context import Done
from magnetar.broker.topics.damaged_entries import Damage, stopped
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.effects.outbox import Outbox, Read
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed, Refused
from magnetar.storage.cursor import Cursor, words_of
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog

PEEK_MAX: Final = 10_000
"""A ceiling on how deep `peek` and `examine` look: they walk."""


DonePeek = Callable[[StoredEntry | None, MagnetarError | None], None]
"""Called once with the entry, or with why there is none."""


def nth_message(log: TopicLog, number: int, *, newest: bool) -> Position | None:
    """The `number`-th entry (from 1) that is not a marker, from the newest or from the oldest; None when there are
    fewer.
    """
    return next(islice(_messages(log, newest), number - 1, None), None)


def _messages(log: TopicLog, newest: bool) -> Iterable[Position]:
    at: Position | None = log.last if newest else log.next_after(NONE)
    while at is not None and log.valid(at):
        if not log.flags_at(at) & EntryFlags.MARKER:
            yield at
        at = log.position_before(at) if newest else log.next_after(at)


def subscription_start(
    log: TopicLog, position: Position, batch_index: int, *, exclusive: bool
) -> tuple[Position, list[int]]:
    """The start of a subscription that is moved to a message: the entry, and the remaining messages of it as a client's
    ack_set; an empty one: all.

    Args:
        log: the topic's log.
        position: position of the entry.
        batch_index: index of the message in it; -1: the entry as a whole.
        exclusive: the message itself is not included.
    """
    size = log.count_at(position) if batch_index >= 0 and log.valid(position) else 1
    first = (batch_index if batch_index >= 0 and size > 1 else 0) + exclusive
    if first >= size:
        return log.next_after(position) or LATEST, []
    return position, words_of((1 << size) - (1 << first)) if first else []


def check_position(
    log: TopicLog,
    topic: str,
    position: Position,
    batch_index: int = -1,
    *,
    coming: bool = False,
    refused: type[Refused] = Conflict,
) -> None:
    """Refuse the id of a message that a topic never had: the caller means another message, or another topic. One that
    retention may have deleted is allowed, as are EARLIEST, LATEST, and entry -1 of a ledger, which is before its first
    entry.

    Args:
        log, topic: the topic's log, and its name.
        position: position of the entry.
        batch_index: index of the message in it; below 0: the entry as a whole.
        coming: the position of the next message is allowed too.
        refused: the error that is raised.

    Raises:
        Conflict: or another class, see `refused`.
    """
    if position in {EARLIEST, LATEST}:
        return
    last, ledger = log.last, position.ledger
    if coming and (position == Position(last.ledger, last.entry + 1)) and last != NONE:
        return
    if position > last:
        there_is = f"the last message of {topic}, {last}" if last != NONE else f"all of {topic}, which has no message"
        raise refused(f"{position} is behind {there_is}; use latest for the end")
    sizes = {one.ledger: one.entries for one in log.ledger_infos()}
    size = sizes.get(ledger)
    deleted = log.incarnation <= ledger < min(sizes, default=last.ledger + 1)
    if size is None and not deleted:
        raise refused(f"{topic} never had ledger {ledger}: {position} is not a message of it")
    if position.entry < -1 or (size is not None and position.entry >= size):
        raise refused(f"ledger {ledger} of {topic} has entries 0 to {(size or 1) - 1}: there never was {position}")
    count = log.count_at(position) if batch_index > 0 and log.valid(position) else 0
    if 0 < count <= batch_index:
        raise refused(
            f"the entry {position} of {topic} has {count} messages: batch index {batch_index} is none of them"
        )


def backlog_from(cursor: Cursor, log: TopicLog, position: Position | None) -> dict[str, Any]:
    """A cursor's backlog, or the part of it at or after `position`. Nothing is filtered here, so all of it is
    accepted.
    """
    if position is not None:
        cursor = copied(cursor, log)
        cursor.ack_up_to(log.position_before(position))
    entries, messages = cursor.backlog_entries(), cursor.backlog_messages()
    markers = log.markers_between(cursor.mark_delete, log.last) if log.last > cursor.mark_delete else 0
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": markers,
        "filterAcceptedEntries": entries,
        "filterAcceptedMessages": messages,
        "filterRejectedEntries": 0,
        "filterRejectedMessages": 0,
        "filterRescheduledEntries": 0,
        "filterRescheduledMessages": 0,
        "aborted": False,
    }


def copied(cursor: Cursor, log: TopicLog) -> Cursor:
    """Another cursor that has acknowledged the same."""
    copy = Cursor(log, cursor.mark_delete)
    copy.ack_set(cursor.acked)
    for position, partial in cursor.partial.items():
        copy.ack_indexes(position, partial.bits)
    return copy


class MessageControl:
    """Single messages of a topic or partition, and positions of its log.

    Args:
        outbox: the broker's.
        damage: gives up entries that cannot be read.
        events: the entry of changes into the broker.
    """

    def __init__(self, outbox: Outbox, damage: Damage, events: AdminEvents) -> None:
        self._outbox = outbox
        self._damage = damage
        self._events = events

    def peek(self, topic: str, subscription: str, number: int, done: DonePeek) -> None:
        """The `number`-th unacknowledged entry (from 1), without any effect on the subscription.

        Raises or answers:
            NotFound: no such topic or subscription, or it has fewer entries.
        """
        found_topic, found = self._events.subscription(topic, subscription)
        _check_depth(number)
        position = found.nth_unacknowledged(number)
        if position is None:
            raise NotFound(f"subscription {subscription} of {topic} has fewer than {number} unacknowledged messages")
        self._read(found_topic, position, done)

    def examine(self, topic: str, number: int, newest: bool, done: DonePeek) -> None:
        """The `number`-th entry (from 1) that is stored, from the newest or from the oldest; markers do not count.

        Raises or answers:
            NotFound: there are fewer. PreconditionFailed: over `PEEK_MAX`.
        """
        found = self._events.topic(topic)
        _check_depth(number)
        position = nth_message(found.log, number, newest=newest)
        if position is None:
            raise NotFound(f"topic {topic} has fewer than {number} messages")
        self._read(found, position, done)

    def at(self, topic: str, position: Position, done: DonePeek) -> None:
        """The entry at a position, whatever it is.

        Raises or answers:
            NotFound: there is none.
        """
        found = self._events.topic(topic)
        if not found.log.valid(position):
            raise NotFound(f"topic {topic} has no message {position}: it was deleted, or never was")
        self._read(found, position, done)

    def _read(self, topic: Topic, position: Position, done: DonePeek) -> None:
        def read(entries: list[StoredEntry], error: str) -> None:
            if entries:
                done(entries[0], None)
            else:
                done(None, BrokerError(ErrorCode.PERSISTENCE, error or "the message was deleted"))

        self._events.enter(lambda: self._outbox.put(Read(topic.text, position, 1, 1, read)))

    def stopped(self, topic: str) -> list[dict[str, Any]]:
        """`subscription`, `position` and `reason` of each subscription that is stopped at an entry that cannot be
        read.
        """
        return stopped(self._events.topic(topic))

    def give_up(self, topic: str, position: Position, done: Done) -> None:
        """Withdraw the messages of an entry that cannot be read.

        Raises or answers:
            NotFound: there is none. PreconditionFailed: it can be read.
        """
        found = self._events.topic(topic)
        if not found.log.valid(position):
            raise NotFound(f"{topic} has no entry at {position}")
        self._events.enter(lambda: self._damage.give_up(found, position, done))

    def position_since(self, topic: str, time_ms: int) -> Position:
        """The position of the first message published at this time or later; if there is none, the lowest possible
        position of the next message.
        """
        log = self._events.topic(topic).log
        position = log.seek_time(time_ms)
        if position != LATEST:
            return position
        return Position(log.last.ledger, log.last.entry + 1) if log.last != NONE else EARLIEST

    def bytes_from(self, topic: str, position: Position) -> int:
        """Bytes stored from a position, the entry there included, to the end; EARLIEST and LATEST are allowed."""
        log = self._events.topic(topic).log
        return log.bytes_between(log.position_before(position), log.last)


def _check_depth(number: int) -> None:
    if not 1 <= number <= PEEK_MAX:
        raise PreconditionFailed(f"message 1 to {PEEK_MAX} can be looked at, not {number}")
