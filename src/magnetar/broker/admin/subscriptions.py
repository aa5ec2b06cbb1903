"""Subscriptions for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Mapping
from typing import Any

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.admin.messages import backlog_from, check_position, subscription_start
from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.context import Done
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.effects.outbox import Outbox
from magnetar.metadata.errors import Conflict, PreconditionFailed


class SubscriptionControl:
    """Subscriptions of a topic or partition: creation, deletion, moving, expiry, properties.

    Args:
        outbox: the broker's; it has the time.
        catalog: creates, deletes and moves subscriptions.
        nonpersistent: the non-persistent topics.
        events: the entry of changes into the broker.
    """

    def __init__(
        self, outbox: Outbox, catalog: Catalog, nonpersistent: NonPersistentTopics, events: AdminEvents
    ) -> None:
        self._outbox = outbox
        self._catalog = catalog
        self._nonpersistent = nonpersistent
        self._events = events

    def names(self, topic: str) -> list[str]:
        """Subscription names of one topic or partition, without links' and other internal cursors.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        nonpersistent = self._nonpersistent.topics.get(topic)
        return sorted(
            nonpersistent.subscriptions if nonpersistent is not None else self._events.topic(topic).subscriptions
        )

    def create(
        self,
        topic: str,
        subscription: str,
        position: Position | None,
        replicated: bool,
        properties: Mapping[str, str],
        done: Done,
        *,
        exclusive: bool = False,
        batch_index: int = -1,
    ) -> None:
        """Create a durable subscription of one topic or partition whose first message is the one at or after `position`
        (None and LATEST: only new messages; EARLIEST: all retained ones). `exclusive` and `batch_index`: see
        `reset_cursor`.

        Raises:
            NotFound: no such topic. Conflict: it exists. PreconditionFailed: the topic never had such a message.
        """
        found = self._events.topic(topic)
        if subscription in found.subscriptions:
            raise Conflict(f"subscription {subscription} of {topic} exists already")
        start = LATEST if position is None else position
        check_position(found.log, topic, start, batch_index, coming=True, refused=PreconditionFailed)
        first, left = subscription_start(
            found.log, start, batch_index, exclusive=exclusive and start not in {EARLIEST, LATEST}
        )

        def created(error: MagnetarError | None) -> None:
            if error is not None or not left:
                done(error)
                return
            try:  # a batch is begun by a second step: it is a seek for other clusters, too
                self.reset_cursor(topic, subscription, start, exclusive, done, batch_index=batch_index)
            except MagnetarError as refused:
                done(refused)

        self._events.enter(
            lambda: self._catalog.create_subscription(
                found, subscription, first, created, replicated=replicated, properties=properties
            )
        )

    def delete(self, topic: str, subscription: str, force: bool, done: Done) -> None:
        """Delete a subscription of one topic or partition.

        Raises:
            NotFound. PreconditionFailed: it has consumers, and not `force`.
        """
        nonpersistent = self._nonpersistent.topics.get(topic)
        if nonpersistent is not None:
            self._events.enter(
                lambda: self._nonpersistent.delete_subscription(nonpersistent, subscription, force=force)
            )
            done(None)
            return
        found_topic, found = self._events.subscription(topic, subscription)
        if found.consumers and not force:
            raise PreconditionFailed(f"subscription {subscription} of {topic} has consumers; close them or use force")
        self._events.enter_ready(found_topic, found, lambda: self._catalog.delete_subscription(found, done))

    def skip(self, topic: str, subscription: str, entries: int, done: Done) -> None:
        """Acknowledge the next `entries` unacknowledged entries (Pulsar counts a batch as one here, too)."""
        self._events.change(topic, subscription, lambda found: found.skip(entries), done)

    def skip_all(self, topic: str, subscription: str, done: Done) -> None:
        """Acknowledge everything there is now."""
        self._events.change(topic, subscription, lambda found: found.skip_all(), done)

    def reset_cursor(
        self,
        topic: str,
        subscription: str,
        target: Position | int,
        exclusive: bool,
        done: Done,
        *,
        batch_index: int = -1,
    ) -> None:
        """Move to a position, or to the first message published at or after a time (int, ms); drops its consumers,
        whose clients reconnect. `batch_index`: to that message of the batch there; -1: to the whole entry. `exclusive`:
        continue *after* it. Both are ignored for times.

        Raises:
            NotFound: no such topic or subscription. Conflict: the topic never had such a message.
        """
        found_topic, found = self._events.subscription(topic, subscription)
        if isinstance(target, Position):
            check_position(found_topic.log, topic, target, batch_index)

        def move() -> None:
            if leaving := found_topic.leaving:
                done(leaving)
                return
            if isinstance(target, Position):
                found.seek_to(*subscription_start(found_topic.log, target, batch_index, exclusive=exclusive))
            else:
                found.seek_time(target)
            if found.durable:
                self._catalog.when_moved(
                    found, lambda error: done(BrokerError(ErrorCode.METADATA, error) if error else None)
                )
            else:
                done(None)

        self._events.enter_ready(found_topic, found, move)

    def expire(self, topic: str, subscription: str, older_than_s: int, done: Done) -> None:
        """Acknowledge messages that were published more than this many seconds ago."""
        outbox = self._outbox
        self._events.change(topic, subscription, lambda found: found.expire(outbox.day_ms - older_than_s * 1000), done)

    def expire_to(self, topic: str, subscription: str, position: Position, exclusive: bool, done: Done) -> None:
        """Let everything up to `position`, the entry there included unless `exclusive`, expire in this cluster.

        Raises:
            Conflict: the position is after the last entry.
        """
        log = self._events.topic(topic).log
        if position > log.last and position != EARLIEST:
            raise Conflict(
                f"{position} is behind the last message of {topic}, {log.last}; skip_all takes everything there is"
            )
        # A position without an entry means all entries before it: it is in a ledger that is gone, or between two
        # ledgers.
        through = position if log.valid(position) and not exclusive else log.position_before(position)
        self._events.change(
            topic, subscription, lambda found: found.expire_to(through if log.valid(through) else NONE), done
        )

    def analyzed_backlog(self, topic: str, subscription: str, position: Position | None) -> dict[str, Any]:
        """The backlog of a subscription, or the part of it at or after `position`, with the keys of Pulsar's
        AnalyzeSubscriptionBacklogResult.
        """
        found_topic, found = self._events.subscription(topic, subscription)
        return backlog_from(found.cursor, found_topic.log, position)

    def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """The properties of a subscription."""
        return dict(self._events.subscription(topic, subscription)[1].cursor.labels)

    def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str], done: Done) -> None:
        """Replace what is kept with a subscription, in this cluster."""
        self._events.change(topic, subscription, lambda found: found.set_properties(properties), done)
