"""Replicated subscriptions in all topics of a broker: which topics have machines, which mode writes, and what is stored
together.

A topic has machines as soon as any link concerns it: by policy, by a stored state, or because something arrived over a
link. All others have none and cost nothing.

A subscription is replicated when a consumer requests it (Pulsar's flag), when an administrator sets it, or when a
policy of its topic or namespace sets it for all (PIP-422). Such a policy wins over the flag, because official clients
send "no" by default. Only an administrator can end it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from magnetar.broker.context import BrokerContext
from magnetar.broker.links.links import Links
from magnetar.broker.replicated_subscriptions.ack_interval import AckInterval
from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, SnapshotMachine
from magnetar.broker.replicated_subscriptions.progress import Progress
from magnetar.broker.replicated_subscriptions.state_store import Leftover, decode_checkpoint
from magnetar.broker.replicated_subscriptions.topic import ReplicatedTopic
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher, Share
from magnetar.broker.subscriptions.subscription import REPLICATED, Subscription
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import NONE, Position
from magnetar.core.names import RESERVED_SUBSCRIPTIONS, NamespaceName
from magnetar.core.settings import SubscriptionsConfig
from magnetar.effects.outbox import Note, Store
from magnetar.metadata.topic_records import (
    CURSOR_PREFIX,
    REPLICATED_PREFIX,
    replicated_key,
    split_cursor_key,
    split_replicated_key,
)
from magnetar.replication.failover import Fence, Phase
from magnetar.replication.snapshots.routes import refuses_snapshots
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import StoredEntry
from magnetar.wire.acksets import Mark

MakeMachines = Callable[["ReplicatedSubscriptions", ReplicatedTopic], tuple[ExactMachine, SnapshotMachine]]


MakeSubscription = Callable[[Topic, str, Cursor], Subscription]
"""Makes a durable subscription of a topic over a cursor."""


class SubscriptionFences(Protocol):
    """Planned moves of subscriptions (`failover.fencing.Fences`)."""

    def made(self, subscription: Subscription) -> None:
        """A subscription was made."""

    def fence(self, text: str, name: str) -> Fence:
        """The fence of a subscription of a topic."""


class ReplicatedSubscriptions(TopicPart):
    """All replicated subscriptions of one broker.

    Args:
        context: the broker's context.
        loaded: every persistent topic, by name.
        flusher: stores cursors.
        links: the broker's links.
        settings: the `[subscriptions]` table.
        routes: all configured links (source, target), also those between other clusters.
        stored: the metadata store's content at start.
        machines: creates the two of a topic: (exact mode, snapshot mode).
        make_subscription: creates one that another cluster has.
        fences: returns the planned failovers; they are created later than this.

    Attributes:
        topics: the topics with machines, by name.
    """

    def __init__(
        self,
        context: BrokerContext,
        loaded: Mapping[str, Topic],
        flusher: CursorFlusher,
        links: Links,
        settings: SubscriptionsConfig,
        routes: frozenset[tuple[str, str]],
        stored: Mapping[str, bytes],
        machines: MakeMachines,
        *,
        make_subscription: MakeSubscription,
        fences: Callable[[], SubscriptionFences],
    ) -> None:
        self.context = context
        self.flusher = flusher
        self.links = links
        self._loaded = loaded
        self._make_subscription = make_subscription
        self._fences = fences
        self.settings = settings
        self.topics: dict[str, ReplicatedTopic] = {}
        self._routes = routes
        self._make = machines
        self._heard: dict[str, set[str]] = {}
        self._ignored: set[str] = set()
        self._gone: Counter[str] = Counter()
        self._interval = AckInterval(context.outbox, links.sources, settings.ack_sync_interval_ms)
        self._stored: dict[str, dict[str, bytes]] = {}
        for key, data in stored.items():
            if key.startswith(REPLICATED_PREFIX):
                topic, subscription = split_replicated_key(key)
                self._stored.setdefault(topic, {})[subscription] = data

    def machines(self, host: ReplicatedTopic) -> tuple[ExactMachine, SnapshotMachine]:
        """The two machines of a topic."""
        return self._make(self, host)

    # ----------------------------------------------------------------------------------------------------- which topics

    def topic_loaded(self, topic: Topic) -> None:
        """A topic exists: just created, or found at start with its subscriptions."""
        states = self._stored.pop(topic.text, None)
        if states is not None or self.routes_of(topic) or topic.log.watermarks():
            self.attach(topic, states)

    def all_loaded(self) -> None:
        """Every stored topic was added: the stored state of others is left over."""
        stale = tuple(replicated_key(text, name) for text, states in self._stored.items() for name in states)
        self._stored.clear()
        if stale:
            self.context.outbox.put(Store({}, stale, None))

    def attach(self, topic: Topic, states: dict[str, bytes] | None = None) -> ReplicatedTopic:
        """Give a topic its machines."""
        states = dict(states or {})
        if topic.log.last != NONE:
            # If a link leads here although this cluster's policy does not name its source, the entries that it carried
            # show it.
            self._heard.setdefault(topic.text, set()).update(topic.log.watermarks())
        checkpoint = decode_checkpoint(states.pop("", b""))
        made = self.topics[topic.text] = ReplicatedTopic(self, topic, checkpoint)
        topic.switch_replicated_subscriptions(made)
        self.links.follow_durability(topic)  # docs/design/links.md#synced-only
        made.load(states)
        self._follow_policy(topic)
        return made

    def of(self, topic: Topic) -> ReplicatedTopic | None:
        """The machines of a topic; None: it has none, or is gone."""
        return self.topics.get(topic.text) if topic.replicated_subscriptions is not None else None

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone."""
        found = self.topics.pop(topic.text, None)
        self._heard.pop(topic.text, None)
        if found is not None:
            self._gone.update(found.counted())
            topic.switch_replicated_subscriptions(None)
            found.close()

    def deletion_keys(self, topic: Topic) -> list[str]:
        """Keys that the transaction that deletes a topic has to delete."""
        found = self.of(topic)
        if found is None:
            return []
        keys = [replicated_key(topic.text, name) for name in ["", *found.states.known]]
        for key in keys:
            self.flusher.forget(key)
        return keys

    def deletion_failed(self, topic: Topic) -> None:
        """The store refused the transaction of `deletion`."""
        if (found := self.of(topic)) is not None:
            found.deletion_failed()

    def routes_of(self, topic: Topic) -> frozenset[tuple[str, str]]:
        """All links of a topic, as far as this cluster knows: configured, and named by the policy or seen to be in use."""
        if not self._routes:
            return self._routes
        here = self.context.cluster
        others = set(self.context.resources.topic_replication_clusters(topic.name))
        sources = others | {here}
        heard = self._heard.get(topic.text, set())
        return frozenset(
            (source, target)
            for source, target in self._routes
            if (source in sources and target in others) or (target == here and (source in others or source in heard))
        )

    def routes_changed(self, topic: Topic) -> None:
        """A policy may have changed them."""
        if (found := self.of(topic)) is not None:
            found.routes_changed()
        elif self.routes_of(topic):
            self.attach(topic)

    def source_active(self, text: str, source: str, *, restarted: bool) -> None:
        """A link from a cluster shook hands for a topic, or sent entries.

        Args:
            text: the topic.
            source: the cluster.
            restarted: it is the first time, with another incarnation, or from another uuid.
        """
        topic = self._loaded.get(text)
        if topic is None:
            return
        self._hear(topic, source)
        if restarted:
            self.rebased(text, source)

    def retained(self, text: str) -> tuple[Mark, ...]:
        """The first of its own messages that each origin retains, which a link reports to its destination."""
        found = self.topics.get(text)
        return () if found is None else found.retained()

    def learn_retained(self, text: str, marks: tuple[Mark, ...]) -> None:
        """Learn these from a link's source."""
        found = self.topics.get(text)
        if found is not None:
            found.learn_retained(marks)

    def rebased(self, text: str, cluster: str) -> None:
        """A link of a topic to or from a cluster started again, or something was lost to it."""
        found = self.topics.get(text)
        if found is not None:
            found.rebased(cluster)

    # --------------------------------------------------------------------------------------------------------- policies

    def mode_of(self, topic: Topic) -> str:
        """`exact` or `snapshot`: which machine of a topic writes."""
        return self.context.resources.subscription_mode(topic.name.namespace_name) or self.settings.mode

    def all_of(self, topic: Topic) -> bool:
        """Whether a policy says that every durable subscription of a topic is replicated."""
        return bool(self.context.resources.replicate_subscription_state(topic.name))

    def wanted(self, topic: Topic, name: str, *, durable: bool, asked: bool, compacted: bool = False) -> bool:
        """Whether a subscription that a consumer opens is replicated; a flag without effect is logged once.

        Args:
            topic, name, durable: the subscription.
            asked: the client's flag.
            compacted: it reads the compacted topic. Removed messages are local to each cluster: no consumer
                acknowledged them, and in another cluster they may be the newest of their key.
        """
        fits = durable and not name.startswith(RESERVED_SUBSCRIPTIONS) and not compacted
        if asked and not fits:
            key = f"{topic.text}/{name}"
            if len(self._ignored) < 10_000 and key not in self._ignored:
                self._ignored.add(key)
                why = "is not durable" if not durable else "reads compacted" if compacted else "is the broker's own"
                text = f"subscription {name} of {topic.text} {why}: it is not replicated, the client's flag is ignored"
                self.context.outbox.put(Note("info", text))
        return fits and (asked or self.all_of(topic))

    def set_replicated(self, topic: Topic, subscription: Subscription, replicated: bool) -> None:
        """Switch one subscription; the change is stored soon with its cursor."""
        if subscription.replicated == replicated or not subscription.durable:
            return
        subscription.set_replicated(replicated)
        if (found := self.of(topic)) is not None:
            (found.created if replicated else found.unreplicated)(subscription)

    def reads_compacted(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription that is not replicated gives up removed messages: no consumer acknowledges them."""
        if (found := self.of(topic)) is not None and subscription.durable:
            found.reads_compacted(subscription)

    def policies_changed(self, topics: Sequence[Topic]) -> None:
        """A change of policies of these topics is in force."""
        modes: set[tuple[str, str]] = set()
        for topic in topics:
            # A source that the policy no longer names counts again when its link is heard again.
            others = set(self.context.resources.topic_replication_clusters(topic.name))
            heard = self._heard.setdefault(topic.text, set())
            for source in sorted(heard - others):
                heard.discard(source)
                self.links.destination.incarnations.forget(topic.text, source)
            self.routes_changed(topic)
            found = self.of(topic)
            before = found.mode if found is not None else ""
            self._follow_policy(topic)
            if found is not None and before != found.mode:
                modes.add((str(topic.name.namespace_name), found.mode))
        for namespace, mode in sorted(modes):
            text = f"replicated subscriptions of {namespace} are in {mode} mode now"
            self.context.outbox.put(Note("info", text))

    def _follow_policy(self, topic: Topic) -> None:
        found = self.of(topic)
        if found is not None:
            found.follow(self.mode_of(topic))
        if self.all_of(topic):
            for subscription in list(topic.durable_subscriptions()):
                if not subscription.name.startswith(RESERVED_SUBSCRIPTIONS) and subscription.compacted is None:
                    self.set_replicated(topic, subscription, True)

    # ----------------------------------------------------------------------------------------------------------- events

    def stored(self, topic: Topic, entries: list[StoredEntry]) -> None:
        """Entries of a topic were confirmed; no consumer was offered them yet."""
        found = self.of(topic)
        if found is None:
            if not entries[0].origin:
                return
            found = self.attach(topic)
        self.heard_in(topic, entries)
        found.stored(entries)

    def heard_in(self, topic: Topic, entries: list[StoredEntry]) -> None:
        """Count a link as heard if its entries were in flight to the log when a policy ceased to name their source.

        Their markers must be read: there may be no other way to get their content, if no link leads back for a request.
        """
        for entry in entries:
            if entry.origin:
                self._hear(topic, entry.origin)

    def _hear(self, topic: Topic, source: str) -> None:
        heard = self._heard.setdefault(topic.text, set())
        if source not in heard:
            heard.add(source)
            self.routes_changed(topic)

    def trimmed(self, topic: Topic) -> None:
        """Retention deleted ledgers of a topic."""
        if (found := self.of(topic)) is not None:
            found.trimmed()

    def healed(self, topic: Topic) -> None:
        """A topic takes writes again."""
        if (found := self.of(topic)) is not None:
            found.healed()

    def when_ready(self, topic: Topic, name: str, then: Callable[[], None], *, replicated: bool) -> None:
        """Call `then` when a subscription may be used: after the replay if it is, or will be, replicated."""
        found = self.of(topic)
        present = topic.subscriptions.get(name)
        if found is None or found.ready or not (replicated or (present is not None and present.replicated)):
            then()
        else:
            found.when_ready(then)

    def created(self, topic: Topic, subscription: Subscription) -> dict[str, bytes]:
        """A consumer or an operator creates a replicated subscription; returns the writes of its transaction in
        addition to the cursor.
        """
        found = self.of(topic)
        if found is None:
            return {}
        found.created(subscription)
        if not found.ready:
            return {}
        key, data = found.states.take(subscription.name)
        return {key: data} if data else {}

    def creation_failed(self, topic: Topic, subscription: Subscription) -> None:
        """The store refused it: the subscription never was."""
        if (found := self.of(topic)) is not None and subscription.replicated:
            found.deleted(subscription)

    def deleted(self, topic: Topic, subscription: Subscription) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """A subscription is deleted; returns the puts and deletes of its transaction in addition to the cursor's
        key.
        """
        found = self.of(topic)
        if found is None or not subscription.durable:
            return {}, ()
        found.deleted(subscription)
        if not found.ready or subscription.name not in found.states.known:
            return {}, ()
        key, data = found.states.take(subscription.name)
        self.flusher.forget(key)
        return ({key: data}, ()) if data else ({}, (key,))

    def sought(self, subscription: Subscription, then: Callable[[str], None]) -> None:
        """A subscription was moved; `then` when that may be answered as far as other clusters go."""
        topic = self._loaded.get(subscription.topic)
        found = self.of(topic) if topic is not None else None
        if found is None or not subscription.replicated or not subscription.durable:
            then("")
        else:
            found.sought(subscription, then)

    def heard_of(self, topic: Topic, name: str, cursor: Cursor) -> Subscription:
        """Make a subscription because another cluster has it; stored soon, and made again by the replay if that is too late."""
        cursor.properties[REPLICATED] = 1
        made = self._make_subscription(topic, name, cursor)
        topic.add_subscription(made)
        self._fences().made(made)
        return made

    # ---------------------------------------------------------------------------------------------------------- storing

    def companions(self, keys: Collection[str]) -> list[Share]:
        """The writes that belong into the same transactions as these cursors (`CursorFlusher`)."""
        concerned: dict[str, dict[str, str]] = {}
        shares: list[Share] = []
        for key in keys:
            if key.startswith(CURSOR_PREFIX):
                text, name = split_cursor_key(key)
            elif key.startswith(REPLICATED_PREFIX):
                text, name = split_replicated_key(key)
            else:
                continue
            found = self.topics.get(text)
            if found is not None and (not name or name in found.states.known):
                concerned.setdefault(text, {})[key] = name
            elif key.startswith(REPLICATED_PREFIX):
                shares.append(Leftover(key))
        shares += [self.topics[text].states.transaction(names) for text, names in concerned.items()]
        return shares

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Now and then."""
        if topic.replicated_subscriptions is not None:
            topic.replicated_subscriptions.tick(now_ms, now_ms - self.context.config.retention_interval_ms)

    def flush(self) -> None:
        """Before the end: store checkpoints, so that the next start has nothing to replay."""
        for found in self.topics.values():
            found.states.want_checkpoint()

    def durable_low(self, topic: Topic) -> Position | None:
        """Retention may delete up to here as far as markers go; None: everything."""
        found = self.of(topic)
        return found.states.durable_low() if found is not None else None

    # --------------------------------------------------------------------------------------------------------- watching

    def interval_ms(self, text: str, progress: Progress) -> int:
        """The time for which acknowledgements of a topic are collected now."""
        return self._interval.next_ms(text, progress)

    def carried(self, text: str) -> Position:
        """The position up to which every link has carried a topic's entries; its last position if there are no
        links.
        """
        states = [source.topics.get(text) for source in self.links.sources.values()]
        topic = self._loaded[text]
        return min((state.cursor.c for state in states if state is not None and state.wanted), default=topic.log.last)

    def states(self, topic: Topic) -> list[dict[str, Any]]:
        """Every replicated subscription of a topic, for `/geo/v1/subscriptions`: its state here, and the lag of other
        clusters.
        """
        host = self.of(topic)
        if host is None:
            return []
        found = []
        for name in host.subscriptions():
            subscription = topic.subscriptions[name]
            described = host.describe(name)
            owed = not host.ready or any(described.get(key) for key in ("unsent", "fullStateDue", "toTell"))
            found.append(
                {
                    "topic": topic.text,
                    "subscription": name,
                    "markDeletePosition": str(subscription.mark_delete),
                    "backlog": subscription.backlog_entries(),
                    "backlogMessages": subscription.cursor.backlog_messages(),
                    "consumers": len(subscription.consumers),
                    **described,
                    "stalled": self._stalled(topic, host, described),
                    "towards": self._towards(topic, host, name, owed=owed),
                }
            )
        return found

    def _stalled(self, topic: Topic, host: ReplicatedTopic, described: Mapping[str, Any]) -> str:
        """Why nothing is written here; "" when nothing is in the way."""
        if not host.ready:
            return "its markers are being read again after a start"
        if topic.write_failed:
            return "the log cannot be written"
        if self.mode_of(topic) == "snapshot":
            return refuses_snapshots(host.routes) or _unanswered(described)
        return ""

    def _towards(self, topic: Topic, host: ReplicatedTopic, name: str, *, owed: bool) -> dict[str, dict[str, Any]]:
        """By cluster linked from here: the acknowledgements that it lacks, and the reason."""
        now_ms = self.context.outbox.now_ms
        # A failover moves the whole state, including the part that updates of snapshot mode cannot report.
        moved = self._fences().fence(topic.text, name).phase is Phase.MOVED
        shown: dict[str, dict[str, Any]] = {}
        for target in sorted(target for source, target in host.routes if source == self.context.cluster):
            source = self.links.sources.get(target)
            state = source.topics.get(topic.text) if source is not None else None
            if source is None or state is None:
                shown[target] = {"lagMessages": 0, "lagMs": 0, "stalled": f"no link leads to {target}"}
                continue
            lag = host.progress.lag(name, state.cursor.c, owed=owed)
            if not moved:
                lag = lag.plus(host.untold(name))
            shown[target] = {
                "lagMessages": lag.messages,
                "lagMs": max(0, now_ms - lag.since_ms) if lag.since_ms else 0,
                "stalled": self.links.reports.why_not(source, state) if lag.since_ms else "",
            }
        return shown

    def metrics(self) -> dict[str, int]:
        """Counters of all topics together, also of those that are gone: a counter never falls. And what is there now."""
        total = Counter(self._gone)
        for found in self.topics.values():
            total.update(found.metrics())
        return dict(total)

    def refuses_mode(self, namespace: NamespaceName, mode: str) -> str:
        """Why a namespace cannot have a mode; "" when it can."""
        if mode != "snapshot":
            return ""
        here = self.context.cluster
        named = {here, *self.context.resources.replication_clusters(namespace)}
        return refuses_snapshots({(a, b) for a, b in self._routes if a in named and b in named})

    def describe(self, topic: Topic, subscription: Subscription) -> dict[str, Any]:
        """A replicated subscription's part of statistics; empty for others."""
        found = self.of(topic)
        if found is None or not subscription.replicated:
            return {}
        return found.describe(subscription.name)

    def validate(self) -> None:
        """Check what must hold after every event."""
        for text, found in self.topics.items():
            topic = self._loaded.get(text)
            assert topic is not None, f"machines of {text}, which is gone"
            assert topic.replicated_subscriptions is found, f"machines of {text} are not its own"
            found.validate()


def _unanswered(described: Mapping[str, Any]) -> str:
    """The clusters that prevent snapshots; "" if the last one was taken, or no answer is missing now."""
    missing: dict[str, int] = described.get("missing", {})
    if not described.get("droppedAt") or not missing:
        return ""
    who = [f"{cluster} has not answered a snapshot since {_moment(since_ms)}" for cluster, since_ms in missing.items()]
    dropped = described["dropped"]
    return f"{', '.join(who)}; {dropped} {'was' if dropped == 1 else 'were'} dropped"


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
