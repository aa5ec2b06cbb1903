"""Compaction in all topics of a broker: started by an administrator, or by a topic's threshold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from magnetar.broker.context import BrokerContext
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.compaction import PREFIX, Compacted, Run
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Note, Store
from magnetar.metadata.errors import Conflict

RUNS_MAX: Final = 2
"""A ceiling on concurrent runs: each reads a whole topic while clients are served, and keeps its keys in memory. Others
wait.
"""


class State(StrEnum):
    """The states of Pulsar's compaction status."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class Status:
    """The last compaction of a topic since the broker's start.

    Attributes:
        state, error: of the one that is asked for, runs, or has ended.
        removed: messages that the last one that ended found superfluous.
        succeeded_ms, failed_ms: when one last ended well, and when one last did not; wall clock, 0 for never.
        took_ms: of the last one that ended, from its first read to its last word on disk.
        read_bytes: that the last one that ended has read.
        removed_total, successes, failures: of all.
    """

    state: State = State.NOT_RUN
    error: str = ""
    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    took_ms: int = 0
    read_bytes: int = 0
    removed_total: int = 0
    successes: int = 0
    failures: int = 0

    def ended(self, run: Run, error: str, now_ms: int) -> None:
        """One is over; `error` says why it failed, "" that it did not."""
        self.state, self.error = (State.ERROR, error) if error else (State.SUCCESS, "")
        if error:
            self.failed_ms = now_ms
            self.failures += 1
        else:
            self.succeeded_ms = now_ms
            self.successes += 1
        self.removed, self.took_ms, self.read_bytes = run.removed, now_ms - run.began_ms, run.read_bytes
        self.removed_total += run.removed

    def stats(self) -> dict[str, Any]:
        """Statistics with Pulsar's keys (CompactionStats)."""
        return {
            "lastCompactionRemovedEventCount": self.removed,
            "lastCompactionSucceedTimestamp": self.succeeded_ms,
            "lastCompactionFailedTimestamp": self.failed_ms,
            "lastCompactionDurationTimeInMills": self.took_ms,
        }


class Compactions(TopicPart):
    """Runs compactions, and knows what they found.

    Args:
        context: of the broker.
        topics: all stored topics, by name.
        stored: everything in the metadata store at start.
    """

    def __init__(self, context: BrokerContext, topics: Mapping[str, Topic], stored: Mapping[str, bytes]) -> None:
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._stored = {key: stored[key] for key in stored if key.startswith(PREFIX)}
        self._status: dict[str, Status] = {}
        self._running: set[str] = set()
        self._waiting: list[Topic] = []

    def topic_loaded(self, topic: Topic) -> None:
        """A topic exists: just created, or found at start."""
        data = self._stored.pop(PREFIX + topic.text, None) if self._stored else None
        if data is None:
            return
        try:
            topic.compacted.load(data)
        except ValueError as error:
            text = f"{error}; {topic.text} counts as not compacted until it is compacted again"
            self._outbox.put(Note("warning", text))

    def all_loaded(self) -> None:
        """All topics are loaded: remaining stored state belongs to no topic and is deleted."""
        if self._stored:
            self._outbox.put(Store({}, tuple(self._stored), lambda _error: None))
        self._stored = {}

    def deletion_keys(self, topic: Topic) -> list[str]:
        """The keys that the transaction that deletes a topic has to delete."""
        return [PREFIX + topic.text] if topic.horizon != NONE else []

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone."""
        self._status.pop(topic.text, None)
        self._waiting = [one for one in self._waiting if one is not topic]

    # ------------------------------------------------------------------------------------------------------- reading

    def check(self, subscription: Subscription, compacted: Compacted | None) -> None:
        """Check that a consumer of the compacted topic may join; None: a consumer of all messages.

        Removed messages count as acknowledged, so all consumers of a subscription have to read in the same way.

        Raises:
            BrokerError: CONSUMER_BUSY: the present consumers read in the other way.
        """
        if subscription.consumers and subscription.compacted is not compacted:
            how = "the whole topic" if compacted is not None else "the compacted topic"
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"subscription {subscription.name} of {subscription.topic} has consumers that read {how}: all or none read "
                "compacted",
            )

    # ------------------------------------------------------------------------------------------------------- running

    def status(self, topic: Topic) -> Status:
        """The status of the last compaction."""
        return self._status.get(topic.text) or Status()

    def trigger(self, topic: Topic) -> None:
        """Compact a topic, up to what it holds now.

        Raises:
            Conflict: it is just being compacted.
        """
        if topic.text in self._running or topic in self._waiting:
            raise Conflict(f"compaction of {topic.text} is running already")
        status = self._status.setdefault(topic.text, Status())
        status.state, status.error = State.RUNNING, ""
        self._waiting.append(topic)
        self._next()

    def _next(self) -> None:
        while self._waiting and len(self._running) < RUNS_MAX:
            topic = self._waiting.pop(0)
            self._running.add(topic.text)
            done = partial(self._ran, topic)
            retention_ms = self._retention_ms(topic)
            Run(self._outbox, topic.log, topic.compacted, topic.withdrawals, retention_ms, done).start()

    def _retention_ms(self, topic: Topic) -> int:
        """The time for which deletions are kept; -1: for ever."""
        retention_s = self._resources.compaction_delete_retention_s(topic.name)
        return -1 if retention_s < 0 else retention_s * 1000

    def _ran(self, topic: Topic, run: Run, error: str) -> None:
        if error or self._topics.get(topic.text) is not topic or topic.deleting:
            self._over(topic, run, error)
            return
        self._store(topic, lambda error: self._over(topic, run, error))

    def _over(self, topic: Topic, run: Run, error: str) -> None:
        self._running.discard(topic.text)
        status = self._status.get(topic.text)
        if status is not None and self._topics.get(topic.text) is topic:
            status.ended(run, error, self._outbox.now_ms)
        if error:
            self._outbox.put(Note("warning", f"{topic.text} was not compacted: {error}"))
        self._next()

    def _store(self, topic: Topic, then: Callable[[str], None]) -> None:
        self._outbox.put(Store({PREFIX + topic.text: topic.compacted.encode()}, (), then))

    # -------------------------------------------------------------------------------------------------------- upkeep

    def durable_low(self, topic: Topic) -> Position | None:
        """The position up to which retention may delete; None if compaction holds nothing back."""
        threshold = self._resources.compaction_threshold(topic.name)
        if topic.horizon == NONE:
            # If it is going to be compacted, every message may be the newest of its key.
            return NONE if threshold else None
        return topic.compacted.low()

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Now and then: forget what retention deleted, and deletions that were kept for long enough; compact what has grown by
        the threshold.
        """
        compacted = topic.compacted_if_any
        if compacted is not None and (compacted.horizon == NONE or compacted.gone):
            compacted.trim()
        if compacted is not None and compacted.deletions:
            compacted.expire(self._outbox.day_ms, self._retention_ms(topic))
        threshold = self._resources.compaction_threshold(topic.name)
        if not threshold or topic.deleting or self.status(topic).state is State.RUNNING:
            return
        log = topic.log
        if log.last != NONE and log.bytes_between(topic.horizon, log.last) > threshold:
            self.trigger(topic)
