"""A broker for the admin interface's tests: topics and subscriptions in memory, answers as `Controller` promises.

Changes are answered on a later turn of the loop, as the disk does it; `fail` makes the next change fail the way a disk
fails, `hang` makes it never answer.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.broker.admin.controller import Controller
from magnetar.broker.admin.links import LinkControl
from magnetar.broker.admin.policies import PolicyControl
from magnetar.broker.admin.replicated import ReplicatedControl
from magnetar.broker.admin.statistics import BrokerFigures, StatisticsControl, TopicFigures
from magnetar.broker.admin.subscriptions import SubscriptionControl
from magnetar.broker.admin.topics import TopicControl
from magnetar.broker.catalog.maintenance import Totals
from magnetar.broker.context import Done, DonePosition
from magnetar.broker.links.states import LinkState, SkipPreview
from magnetar.broker.statistics.cardinality import Series, Shown, SubscriptionKey, Traffic
from magnetar.broker.statistics.latency import Connections, PublishLatency
from magnetar.broker.statistics.topic_stats import Steps
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.core.settings import BrokerConfig
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, PreconditionFailed, Unprocessable
from magnetar.metadata.policies.namespace import check_properties
from magnetar.metadata.policies.table import BY_NAME
from magnetar.metadata.resources import Resources
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.web.fake_failovers import FakeFailovers
from tests.web.fake_messages import FakeMessages
from tests.web.fake_metadata import FakeMetadata
from tests.web.fake_schemas import FakeSchemas

NO_LEDGER = 99
"""A ledger that no topic ever had."""


@dataclass
class FakeTopic:
    """What the fake knows of one topic."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[bytes] = field(default_factory=list)
    producers: int = 0
    sent_elsewhere: bool = False
    terminated: bool = False
    compacting: bool = False
    numbers: dict[str, int] = field(default_factory=lambda: {"a/b": 7, "p": -1})


def entry(number: int, payload: bytes, **metadata: Any) -> StoredEntry:
    """A stored entry of one message."""
    described = pb.MessageMetadata(
        producer_name=metadata.pop("producer_name", "p"), sequence_id=number, publish_time=1_700_000_000_000
    )
    for key, value in metadata.pop("properties", {}).items():
        described.properties.add(key=key, value=value)
    for key, value in metadata.items():
        setattr(described, key, value)
    data = build(described, payload)
    return StoredEntry(7, number, 0, 1, described.publish_time, 0, "", 7, number, NONE, data)


class FakeTopics(TopicControl):
    """`TopicControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def names(self, namespace: str) -> list[str]:
        return [name for name in self._fake.existing if str(TopicName.parse(name).namespace_name) == namespace]

    def iterate(self, namespace: str) -> Iterator[str]:
        return iter(self.names(namespace))

    def partitions(self, topic: str) -> int | None:
        if self._fake.bug:
            raise ZeroDivisionError("planted\nbug")
        count = self._fake.resources.partitions(TopicName.parse(topic))
        return count if count is not None else 0 if topic in self._fake.existing else None

    def last_message_id(self, topic: str) -> Position:
        messages = self._fake.topic_of(topic).messages
        return Position(7, len(messages) - 1) if messages else NONE

    def last_batch_index(self, topic: str) -> int:
        return 2 if self._fake.topic_of(topic).messages[-1:] == [b"batch"] else -1

    def create(self, topic: str, partitions: int | None, properties: Mapping[str, str], done: Done) -> None:
        name = TopicName.parse(topic)
        self._fake.calls.append(("create_topic", topic, partitions, dict(properties)))
        if partitions is None:
            self._fake.soon(done, lambda: self._fake.existing.__setitem__(topic, FakeTopic(dict(properties))))
            return
        change = self._fake.resources.create_partitioned(name, partitions, properties)
        self._fake.resources.begin(change)

        def act() -> None:
            self._fake.resources.apply(change)
            for number in range(partitions):
                self._fake.existing.setdefault(str(name.with_partition(number)), FakeTopic())

        self._fake.soon(done, act)

    def open(self, topic: str, done: Done) -> None:
        self._fake.calls.append(("open_topic", topic))
        self._fake.soon(done, lambda: self._fake.existing.setdefault(topic, FakeTopic()))

    def adopt_partitions(self, topic: str, partitions: int, done: Done) -> None:
        name = TopicName.parse(topic)
        if self._fake.resources.partitions(name):
            raise Conflict(f"topic {topic} is partitioned already")
        found = self._fake.topic_of(topic)
        change = self._fake.resources.create_partitioned(name, partitions, {})
        self._fake.calls.append(("adopt_partitions", topic, partitions))

        def act() -> None:
            self._fake.resources.apply(change)
            del self._fake.existing[topic]
            for number in range(partitions):
                self._fake.existing[str(name.with_partition(number))] = found if not number else FakeTopic()

        self._fake.soon(done, act)

    def was_deleted(self, topic: str) -> bool:
        return False

    def update_partitions(self, topic: str, partitions: int, done: Done) -> None:
        name = TopicName.parse(topic)
        grows = partitions > (self._fake.resources.partitions(name) or 0)
        change = self._fake.resources.update_partitioned(name, partitions) if grows else Change()

        def act() -> None:
            self._fake.resources.apply(change)
            for number in range(partitions):
                self._fake.existing.setdefault(str(name.with_partition(number)), FakeTopic())

        self._fake.soon(done, act)

    def delete(self, topic: str, force: bool, done: Done) -> None:
        name = TopicName.parse(topic)
        count = self._fake.resources.partitions(name)
        gone = [str(name.with_partition(number)) for number in range(count)] if count else [topic]
        for one in gone:
            found = self._fake.topic_of(one)
            if not force and found.sent_elsewhere:
                raise Unprocessable(f"topic {one} is replicated")
            if not force and (found.producers or any(one["consumers"] for one in found.subscriptions.values())):
                raise PreconditionFailed(f"topic {one} has 0 producers and 1 consumers; close them or use force")

        def act() -> None:
            for one in gone:
                told = self._fake.statistics.topic(one)
                keys = ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter")
                self._fake.rows.topics.gone(one, tuple(told[key] for key in keys))
                for subscription in told["subscriptions"]:
                    self._fake.rows.subscriptions.gone((one, subscription), (1, 5))
                del self._fake.existing[one]
            if count:
                self._fake.resources.apply(self._fake.resources.delete_partitioned(name))

        self._fake.soon(done, act)

    def unload(self, topic: str, done: Done) -> None:
        self._fake.calls.append(("unload", topic))
        self._fake.soon(done)

    def truncate(self, topic: str, done: Done) -> None:
        self._fake.soon(done, self._fake.topic_of(topic).messages.clear)

    def trim(self, topic: str, done: Done) -> None:
        self._fake.topic_of(topic)
        self._fake.calls.append(("trim", topic))
        self._fake.soon(done)

    def sequence_ids(self, topic: str) -> dict[str, int]:
        if "numberless" in topic:
            raise PreconditionFailed("deduplication is not on")
        return self._fake.topic_of(topic).numbers

    def forget_producer(self, topic: str, producer: str, done: Done) -> None:
        numbers = self.sequence_ids(topic)
        self._fake.soon(done, lambda: numbers.pop(producer, None))

    def compact(self, topic: str) -> None:
        found = self._fake.topic_of(topic)
        if found.compacting:
            raise Conflict(f"compaction of {topic} is running already")
        found.compacting = True

    def compaction_status(self, topic: str) -> dict[str, str]:
        return {"status": "RUNNING" if self._fake.topic_of(topic).compacting else "NOT_RUN", "lastError": ""}

    def terminate(self, topic: str, done: DonePosition) -> None:
        self._fake.topic_of(topic).terminated = True
        asyncio.get_running_loop().call_soon(done, self.last_message_id(topic), None)

    def ledger_info(self, topic: str) -> dict[str, Any]:
        return {"ledgers": [{"ledgerId": 7, "entries": len(self._fake.topic_of(topic).messages)}], "cursors": {}}

    def properties(self, topic: str) -> dict[str, str]:
        return dict(self._fake.topic_of(topic).properties)

    def change_properties(self, topic: str, puts: Mapping[str, str], delete: str | None, done: Done) -> None:
        found = self._fake.topic_of(topic)
        kept = {key: value for key, value in found.properties.items() if key != delete}
        wanted = check_properties(kept | dict(puts))
        self._fake.soon(done, lambda: setattr(found, "properties", wanted))


class FakeSubscriptions(SubscriptionControl):
    """`SubscriptionControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def names(self, topic: str) -> list[str]:
        return sorted(self._fake.topic_of(topic).subscriptions)

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
        found = self._fake.topic_of(topic)
        if subscription in found.subscriptions:
            raise Conflict(f"subscription {subscription} exists")
        self._fake.calls.append(("create_subscription", topic, subscription, position, replicated, dict(properties)))
        if exclusive or batch_index > 0:
            self._fake.calls.append(("within", exclusive, batch_index))
        self._fake.soon(done, lambda: found.subscriptions.__setitem__(subscription, {"consumers": 0}))

    def delete(self, topic: str, subscription: str, force: bool, done: Done) -> None:
        if self._fake.subscription_of(topic, subscription)["consumers"] and not force:
            raise PreconditionFailed(f"subscription {subscription} of {topic} has consumers; close them or use force")
        self._fake.soon(done, lambda: self._fake.topic_of(topic).subscriptions.__delitem__(subscription))

    def skip(self, topic: str, subscription: str, entries: int, done: Done) -> None:
        self._fake.subscription_of(topic, subscription)
        self._fake.calls.append(("skip", topic, subscription, entries))
        self._fake.soon(done)

    def skip_all(self, topic: str, subscription: str, done: Done) -> None:
        self._fake.subscription_of(topic, subscription)
        self._fake.calls.append(("skip_all", topic, subscription))
        self._fake.soon(done)

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
        self._fake.subscription_of(topic, subscription)
        if isinstance(target, Position) and target.ledger == NO_LEDGER:
            raise Conflict(f"{topic} never had ledger {NO_LEDGER}")
        self._fake.calls.append(("reset_cursor", topic, subscription, target, exclusive, batch_index))
        self._fake.soon(done)

    def expire(self, topic: str, subscription: str, older_than_s: int, done: Done) -> None:
        self._fake.subscription_of(topic, subscription)
        self._fake.calls.append(("expire", topic, subscription, older_than_s))
        self._fake.soon(done)

    def expire_to(self, topic: str, subscription: str, position: Position, exclusive: bool, done: Done) -> None:
        self._fake.subscription_of(topic, subscription)
        if position > Position(7, len(self._fake.topic_of(topic).messages) - 1):
            raise Conflict("behind the last message")
        self._fake.calls.append(("expire_to", topic, subscription, position, exclusive))
        self._fake.soon(done)

    def analyzed_backlog(self, topic: str, subscription: str, position: Position | None) -> dict[str, Any]:
        self._fake.subscription_of(topic, subscription)
        self._fake.calls.append(("analyzed_backlog", topic, subscription, position))
        return {"entries": len(self._fake.topic_of(topic).messages), "aborted": False}

    def properties(self, topic: str, subscription: str) -> dict[str, str]:
        return dict(self._fake.subscription_of(topic, subscription).get("properties", {}))

    def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str], done: Done) -> None:
        found = self._fake.subscription_of(topic, subscription)
        self._fake.soon(done, lambda: found.__setitem__("properties", dict(properties)))


class FakeReplicated(ReplicatedControl):
    """`ReplicatedControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def topics(self) -> list[str]:
        return sorted(
            name
            for name, one in self._fake.existing.items()
            if any(s.get("replicated") for s in one.subscriptions.values())
        )

    def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic,
                "subscription": name,
                "mode": "exact",
                "markDeletePosition": "7:0",
                "backlog": 1,
                "backlogMessages": 1,
                "consumers": one["consumers"],
                "stalled": "",
                "setBytes": 20,
                "runs": 1,
                "pending": 0,
                "unsent": 2,
                "towards": {"us-east": {"lagMessages": 3, "lagMs": 1500, "stalled": ""}},
            }
            for name, one in sorted(self._fake.topic_of(topic).subscriptions.items())
            if one.get("replicated")
        ]

    def metrics(self) -> dict[str, Any]:
        return {"mode": "exact", "counters": {"markers_written": 4}}

    def refuses_mode(self, namespace: str, mode: str) -> str:
        return "snapshot mode needs links in both directions" if mode == "snapshot" and self._fake.one_way else ""

    def set_replicated(self, topic: str, subscription: str, replicated: bool, done: Done) -> None:
        found = self._fake.subscription_of(topic, subscription)
        if self._fake.resources.replicate_subscription_state(TopicName.parse(topic)) and not replicated:
            raise PreconditionFailed("all are replicated by policy")
        self._fake.soon(done, lambda: found.__setitem__("replicated", replicated))


class FakeLinks(LinkControl):
    """`LinkControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def states(self) -> list[LinkState]:
        return self._fake.link_states

    def status(self) -> dict[str, Any]:
        return {"incoming": {}, "gaps": {}, "deleted": [], "unlinked": {}}

    def held(self, origin: str) -> list[dict[str, Any]]:
        return []

    def drain(self) -> dict[str, Any]:
        return {"cluster": "us-west", "safe": True, "links": []}

    def pause(self, target: str, topic: str | None, done: Done) -> None:
        self._fake.calls.append(("link_pause", target, topic))
        self._fake.soon(done)

    def resume(self, target: str, topic: str | None, done: Done) -> None:
        self._fake.calls.append(("link_resume", target, topic))
        self._fake.soon(done)

    def throttle(self, target: str, bytes_per_s: int | None, done: Done) -> None:
        self._fake.calls.append(("link_throttle", target, bytes_per_s))
        self._fake.soon(done)

    def skip_preview(self, target: str, topic: str | None, through: Position | None) -> list[SkipPreview]:
        self._fake.calls.append(("link_skip_preview", target, topic, through))
        return [part for name, part in self._fake.blocked.items() if topic in {None, name}]

    def skip(self, target: str, topic: str | None, through: Position | None, done: Done) -> None:
        self._fake.calls.append(("link_skip", target, topic, through))
        self._fake.soon(done)

    def delete_orphan_cursor(self, target: str, topic: str, done: Done) -> None:
        if target == "us-east":
            raise PreconditionFailed("the cursor is in use")
        self._fake.calls.append(("delete_orphan_cursor", target, topic))
        self._fake.soon(done)


class FakeStatistics(StatisticsControl):
    """`StatisticsControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def topic(self, topic: str) -> dict[str, Any]:
        found = self._fake.topic_of(topic)
        size = sum(len(message) for message in found.messages)
        subscriptions = {
            name: {
                "msgBacklog": len(found.messages),
                "unackedMessages": 0,
                "type": "Exclusive",
                "msgOutCounter": 1,
                "bytesOutCounter": 5,
                "consumers": [{"consumerName": "c"}] * one["consumers"],
                "isDurable": True,
                "isReplicated": bool(one.get("replicated")),
                "lastAckedTimestamp": len(name),
            }
            for name, one in found.subscriptions.items()
        }
        return {
            "msgInCounter": len(found.messages),
            "bytesInCounter": size,
            "msgOutCounter": 1,
            "bytesOutCounter": 5,
            "storageSize": size,
            "msgRateIn": float(len(found.messages)),
            "msgThroughputIn": float(size),
            "averageMsgSize": 1.0,
            "publishers": [{"producerName": "p"}] * found.producers,
            "subscriptions": subscriptions,
            "replication": {},
            "ownerBroker": "127.0.0.1:6650",
        }

    def topic_steps(self, topic: str, *, publishers: bool = True, consumers: bool = True) -> Steps:
        stats = self.topic(topic)
        yield
        if not publishers:
            stats["publishers"] = []
        for subscription in stats["subscriptions"].values() if not consumers else ():
            subscription["consumers"] = []
        return stats

    def internal(self, topic: str) -> dict[str, Any]:
        found = self._fake.topic_of(topic)
        return {"numberOfEntries": len(found.messages), "totalSize": 100 * len(found.messages), "cursors": {}}

    def internal_steps(self, topic: str) -> Steps:
        yield
        return self.internal(topic)

    def broker(self) -> dict[str, Any]:
        total = {
            key: sum(self.topic(name)[key] for name in self._fake.existing)
            for key in ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize")
        }
        return total | {
            "connections": 1,
            "producers": 0,
            "consumers": 0,
            "topics": len(self._fake.existing),
            "subscriptions": 0,
            "pendingPublishBytes": 0,
            "cacheSize": 0,
            "cacheEntries": 0,
            "unknownTopics": 0,
            "lostEntries": 0,
            "ready": self._fake.ready,
            "state": "" if self._fake.ready else "the disk is full",
        }

    def broker_figures(self) -> BrokerFigures:
        return BrokerFigures(
            len(self._fake.existing),
            0,
            0,
            0,
            {"public/default": len(self._fake.existing)},
            Totals(),
            Connections(),
            self._fake.latency,
        )

    def topic_figures(self, topic: str) -> TopicFigures:
        return self._fake.figures.get(topic, TopicFigures())

    def series(self, topics_max: int, subscriptions_max: int) -> tuple[Shown[str], Shown[SubscriptionKey]]:
        stats = {name: self.topic(name) for name in self._fake.existing}
        traffic = {
            name: Traffic(one["msgInCounter"], one["bytesInCounter"], one["msgOutCounter"], one["bytesOutCounter"])
            for name, one in stats.items()
        }
        sent = {
            (name, subscription): (told["msgOutCounter"], told["bytesOutCounter"])
            for name, one in stats.items()
            for subscription, told in one["subscriptions"].items()
        }
        return self._fake.rows.show(traffic, sent, topics_max, subscriptions_max)


class FakePolicies(PolicyControl):
    """`PolicyControl` in memory."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def default(self, name: str) -> Any:
        elsewhere = {"deduplication": False, "deduplication-interval": 120}  # [deduplication] has these
        return elsewhere[name] if name in elsewhere else BY_NAME[name].default(BrokerConfig())

    def apply(self, change: Change, done: Done) -> None:
        self._fake.resources.begin(change)
        error = self._fake.fail

        def answered(outcome: MagnetarError | None) -> None:
            if outcome is not None:
                self._fake.resources.abort(change)
            done(outcome)

        self._fake.soon(answered, (lambda: None) if error else (lambda: self._fake.resources.apply(change)))


class FakeControl(Controller):
    """A `Controller` in memory.

    Args:
        resources: changed by `policies.apply`, as the broker does.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.existing: dict[str, FakeTopic] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.one_way = False
        self.fail: MagnetarError | None = None
        self.hang = False
        self.bug = False
        self.ready = True
        self.peeked = entry(0, b"hello")
        self.link_states = [link_state("us-west", "us-east")]
        self.rows = Series()
        self.figures: dict[str, TopicFigures] = {}
        self.latency = PublishLatency()
        self.blocked = {
            "persistent://public/default/t": SkipPreview(
                topic="persistent://public/default/t", through="7:3", messages=3, entries=1, bytes=900
            )
        }
        self.topics = FakeTopics(self)
        self.subscriptions = FakeSubscriptions(self)
        self.messages = FakeMessages(self)
        self.replicated = FakeReplicated(self)
        self.links = FakeLinks(self)
        self.failovers = FakeFailovers(self)
        self.metadata = FakeMetadata(self)
        self.schemas = FakeSchemas(self)
        self.statistics = FakeStatistics(self)
        self.policies = FakePolicies(self)

    def topic_of(self, topic: str) -> FakeTopic:
        if topic not in self.existing:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        return self.existing[topic]

    def subscription_of(self, topic: str, subscription: str) -> dict[str, Any]:
        found = self.topic_of(topic).subscriptions.get(subscription)
        if found is None:
            raise BrokerError(ErrorCode.SUBSCRIPTION_NOT_FOUND, f"subscription {subscription} does not exist")
        return found

    def soon(self, done: Done, act: Callable[[], object] = lambda: None) -> None:
        if self.hang:
            return
        error, self.fail = self.fail, None

        def answer() -> None:
            if error is None:
                act()
            done(error)
            done(error)  # `done` twice must do no harm to the caller

        asyncio.get_running_loop().call_soon(answer)


def link_state(source: str, target: str, **changed: Any) -> LinkState:
    """A link in good health, unless said otherwise."""
    state = LinkState(
        source=source,
        target=target,
        state="up",
        since_ms=1,
        detail="",
        paused=False,
        throttle_bytes_per_s=None,
        throttled=False,
        messages_sent=10,
        bytes_sent=1000,
        skipped_messages=0,
        gap_messages=0,
        skipped_messages_total=0,
        gap_messages_total=0,
        lag_messages=2,
        lag_bytes=200,
        lag_ms=1500,
        topics=[],
    )
    state.update(changed)  # type: ignore[typeddict-item]
    return state


__all__ = ["FakeControl", "FakeTopic", "entry", "link_state"]
