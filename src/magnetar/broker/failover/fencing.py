"""The fences of a broker's subscriptions: the broker's part of a planned failover (`replication.failover` has the
steps).

    fence       stored, then the subscription is held: consumers stay connected and get no more messages; those that they
                have may still be acknowledged. When all are, or after a time (`broker.failover.drain_window`), the final
                state is written.
    complete    stored, then the consumers get TOPIC_MIGRATED with the target's address, and CLOSE_CONSUMER, which
                makes the client connect there at once. A client that subscribes later gets success and then the same.
    activate    at the target, when it has merged the final state: stored, then it dispatches.

Consumers are held, not moved at once: the target has not merged the final state yet and would deliver messages again
that are acknowledged here, and a disconnected client loses the acknowledgements of messages in its queue.

A change of a subscription waits until the one before it is stored.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.failover.drain_window import GRACE_MS_MAX, worth_waiting
from magnetar.broker.failover.final_state import FinalStates, Run, acknowledged_of, unacknowledged
from magnetar.broker.failover.redirect import redirect
from magnetar.broker.failover.waiting import Waits
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.hints import command
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Note, Store
from magnetar.metadata.errors import BadRequest, Conflict, NotFound, PreconditionFailed
from magnetar.metadata.topic_records import quote, unquote
from magnetar.replication.failover import NO_TOKEN, Fence, Phase, Token
from magnetar.replication.link.source import LinkSource
from magnetar.wire import pulsar_pb2 as pb

FENCE_PREFIX: Final = "fences/"
RETRY_MS: Final = 500
"""The pause before a final state, or a fence, that could not be stored is tried again."""

CHANGES_MAX: Final = 100
"""A ceiling on changes of one fence that wait for the store: a failover makes five."""

Key = tuple[str, str]


class Fences(TopicPart):
    """The fences of all subscriptions, and their effects.

    Args:
        context: the broker's context.
        topics: all topics of the broker, by name.
        links: the links from here, by target.
        mode_of: "exact" or "snapshot": the mode of a topic's replicated subscriptions.
        stored: the metadata store's content at start.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        links: Mapping[str, LinkSource],
        mode_of: Callable[[Topic], str],
        stored: Mapping[str, bytes],
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._outbox = context.outbox
        self._topics = topics
        self._links = links
        self._fences: dict[Key, Fence] = {}
        self._changes: dict[Key, deque[Callable[[], None]]] = {}
        self._versions: dict[Key, int] = {}
        self._writing: set[Key] = set()
        self._waits = Waits(context.outbox)
        self._finals = FinalStates(context.cluster, mode_of)
        for key, data in stored.items():
            if key.startswith(FENCE_PREFIX):
                text, _, name = key.removeprefix(FENCE_PREFIX).rpartition("/")
                self._fences[text, unquote(name)] = Fence.decode(f"{unquote(name)} of {text}", data)

    def started(self) -> None:
        """Topics and subscriptions are loaded: fenced ones are still fenced, and an interrupted failover continues."""
        gone = [key for key in self._fences if self._found(*key) is None]
        for key in gone:
            del self._fences[key]
        if gone:
            self._outbox.put(Store({}, tuple(fence_key(*key) for key in gone), None))
        for (text, name), fence in self._fences.items():
            found = self._found(text, name)
            if found is not None and fence.held:
                found[1].hold(True)
                self._outbox.put(Note("warning", f"subscription {name} of {text} is {fence}"))
                self._context.timer(self._outbox.now_ms, lambda _now, key=(text, name): self._go_on(key))  # type: ignore[misc]

    # ------------------------------------------------------------------------------------------------------- looking

    def _found(self, text: str, name: str) -> tuple[Topic, Subscription] | None:
        topic = self._topics.get(text)
        subscription = topic.subscriptions.get(name) if topic is not None else None
        return (topic, subscription) if topic is not None and subscription is not None else None

    def _existing(self, text: str, name: str) -> tuple[Topic, Subscription]:
        found = self._found(text, name)
        if found is None:
            what = f"subscription {name} of {text}" if text in self._topics else f"topic {text}"
            raise NotFound(f"{what} does not exist in {self._cluster}")
        return found

    def fence(self, text: str, name: str) -> Fence:
        """The fence of a subscription; an active one if it never took part in a failover or does not exist."""
        return self._fences.get((text, name), Fence())

    def moving(self, text: str, name: str) -> str:
        """The failover in progress here, in words; "" if there is none. Its final state can be written only while the
        subscription is replicated.
        """
        fence = self.fence(text, name)
        return str(fence) if fence.phase in {Phase.FENCING, Phase.FENCED} else ""

    def latest_token(self, text: str, name: str) -> Token:
        """The latest token of all failovers of a subscription that this cluster took part in, gave up or knows of."""
        fence, topic = self.fence(text, name), self._topics.get(text)
        known = self._finals.latest(topic, name) if topic is not None else NO_TOKEN
        return max(fence.token, fence.given_up, known)

    def url_of(self, cluster: str) -> str:
        """The address of a cluster for clients.

        Raises:
            PreconditionFailed: it is not known.
        """
        url = self._url(cluster)
        if not url:
            raise PreconditionFailed(
                f"{self._cluster} does not know where clients reach cluster {cluster}; name it in clusters.toml"
            )
        return url

    def _url(self, cluster: str, *, tls: bool = False) -> str:
        resources = self._context.resources
        if cluster not in resources.clusters():
            return ""
        known = resources.cluster_data(cluster)
        return known.broker_service_url_tls if tls else known.broker_service_url

    def describe(self, text: str, name: str) -> dict[str, Any]:
        """The fence and the facts about the subscription that a failover needs, as plain values.

        Raises:
            NotFound: no such topic or subscription.
            PreconditionFailed: it was deleted here, so that no other cluster can create it.
        """
        there = self._topics.get(text)
        if there is not None and name not in there.subscriptions and self._finals.unsubscribed(there, name):
            again = self._context.command("subscriptions", "create", str(there.name.base), name, "--replicated")
            raise PreconditionFailed(
                f"subscription {name} of {text} was deleted in {self._cluster}, which ignores its state until "
                f"a consumer subscribes there again: {again}"
            )
        topic, subscription = self._existing(text, name)
        following = topic.log.next_after(subscription.cursor.mark_delete)
        fence = self.fence(text, name)
        return fence.plain() | {
            "next": str(fence.next_token(self._cluster, self._outbox.now_ms, self._finals.latest(topic, name))),
            "topic": text,
            "subscription": name,
            "cluster": self._cluster,
            "version": self._versions.get((text, name), 0),
            "replicated": subscription.replicated,
            "mode": self._finals.mode(topic),
            "refused": self._refusal(topic, subscription),
            "consumers": len(subscription.consumers),
            "cumulative": sum(consumer.cumulative for consumer in subscription.consumers),
            "first": str(topic.log.last if following is None else following),
            "last": str(topic.log.last),
            "in_flight": subscription.in_flight(),
            "backlog": subscription.cursor.backlog_messages(),
            "unsent": self._finals.unsent(topic, name),
            "links": {
                target: {
                    "lag_messages": state.lag_messages(),
                    "settled": str(state.cursor.c),
                    "unsettled": self._unsettled(topic, state.index),
                    "paused": state.paused or source.record.paused,
                    "blocked": state.blocked,
                    "lease": source.lease.live,
                    "trouble": source.trouble_reason if source.trouble else "",
                }
                for target, source in self._links.items()
                if (state := source.topics.get(text)) is not None and state.wanted
            },
        }

    def _unsettled(self, topic: Topic, index: int) -> Run | None:
        """The messages published here from an origin index on; None: none."""
        end = topic.log.next_index
        return (self._cluster, topic.log.incarnation, index, end - 1) if index < end else None

    def unacknowledged(self, text: str, name: str) -> list[Run]:
        """The unacknowledged messages of a subscription, by identity, as reported by `broker.failover.final_state`.

        Raises:
            NotFound.
        """
        return unacknowledged(*self._existing(text, name), self._cluster)

    def acknowledged_of(self, text: str, name: str, runs: Iterable[Run]) -> int:
        """The number of these messages that are here and acknowledged.

        Raises:
            NotFound.
        """
        return acknowledged_of(*self._existing(text, name), self._cluster, runs)

    def held(self) -> list[dict[str, Any]]:
        """All subscriptions that are fenced or moved away, for the status."""
        return [
            fence.plain() | {"topic": text, "subscription": name}
            for (text, name), fence in sorted(self._fences.items())
            if fence.held
        ]

    def _refusal(self, topic: Topic, subscription: Subscription) -> str:
        if not subscription.durable:
            return "it belongs to a reader and is not kept"
        if not subscription.replicated:
            return (
                "it is not replicated; subscribe with replicate_subscription_state_enabled, or set "
                "replicatedSubscriptionStatus of the topic"
            )
        return self._finals.refuses_state(topic)

    # ------------------------------------------------------------------------------------------------------- changing

    def _change(self, key: Key, step: Callable[[Fence], Fence], done: Done) -> None:
        """Take a step when those before it are stored; `done` when it is durable and in force."""

        def take() -> None:
            before = self._fences.get(key, Fence())
            try:
                topic, subscription = self._existing(*key)
                topic.check_stays()
                after = step(before)
            except MagnetarError as error:
                self._next(key)
                done(error)
                return
            if after == before:
                self._next(key)
                done(None)
                return

            def stored(problem: str) -> None:
                if problem:
                    self._next(key)
                    done(BrokerError(ErrorCode.METADATA, f"the metadata store refused: {problem}"))
                    return
                found = self._found(*key)
                if found is None or found[1] is not subscription:
                    self._next(key)
                    done(NotFound(f"subscription {key[1]} of {key[0]} was deleted meanwhile"))
                    return
                self._fences[key] = after
                self._entered(key, before, after)
                self._next(key)
                done(None)

            self._outbox.put(Store({fence_key(*key): after.encode()}, (), stored))

        queue = self._changes.setdefault(key, deque())
        if len(queue) >= CHANGES_MAX:
            done(
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY, f"{len(queue)} changes of this fence wait for the metadata store"
                )
            )
            return
        queue.append(take)
        if len(queue) == 1:
            take()

    def _next(self, key: Key) -> None:
        queue = self._changes[key]
        queue.popleft()
        if queue:
            queue[0]()
        else:
            del self._changes[key]

    def _entered(self, key: Key, before: Fence, after: Fence) -> None:
        text, name = key
        self._versions[key] = self._versions.get(key, 0) + 1
        found = self._found(text, name)
        assert found is not None, "checked by the caller"
        subscription = found[1]
        if before.phase is not after.phase:
            self._outbox.put(Note("info", f"failover: subscription {name} of {text} is {after}"))
        subscription.hold(after.held)
        if after.phase is Phase.MOVED:
            subscription.disconnect_all(
                migrated_to=self._url(after.target), migrated_to_tls=self._url(after.target, tls=True)
            )
        self._go_on(key)
        self._waits.wake(text)

    def _go_on(self, key: Key) -> None:
        """Do what the phase asks for next."""
        found, fence = self._found(*key), self._fences.get(key)
        if found is None or fence is None:
            return
        if fence.phase is Phase.FENCING and found[1].in_flight() == 0:
            self._drained(key, fence.token)
        elif fence.phase is Phase.FENCED and fence.final is None:
            self._write(key, fence)

    def _await_acknowledgements(self, key: Key, token: Token, window_ms: int, since_ms: int) -> None:
        """Wait for a window, and for another one while that helps; `_go_on` ends it when all are there."""
        found = self._found(*key)
        before = found[1].in_flight() if found is not None else 0

        def look(now_ms: int) -> None:
            found, fence = self._found(*key), self.fence(*key)
            if found is None or fence.phase is not Phase.FENCING or fence.token != token:
                return
            if worth_waiting(before, found[1].in_flight(), window_ms, now_ms - since_ms):
                self._await_acknowledgements(key, token, window_ms, since_ms)
            else:
                self._drained(key, token)

        self._context.timer(self._outbox.now_ms + window_ms, look)

    def _drained(self, key: Key, token: Token) -> None:
        found = self._found(*key)
        if found is not None:
            left = found[1].in_flight()
            self._change(
                key,
                lambda fence: fence.drained(token, left, self._outbox.now_ms),
                lambda error: self._again(key, error, lambda: self._drained(key, token)),
            )

    def _again(self, key: Key, error: MagnetarError | None, step: Callable[[], None]) -> None:
        """Try again what could not be stored, also while consumers hold messages."""
        if error is not None:
            self._outbox.put(Note("warning", f"failover of subscription {key[1]} of {key[0]}: {error}; trying again"))
            self._context.timer(self._outbox.now_ms + RETRY_MS, lambda _now: step())

    def _write(self, key: Key, fence: Fence) -> None:
        def done(error: MagnetarError | None) -> None:
            self._writing.discard(key)
            self._again(key, error, lambda: self._go_on(key))

        if key not in self._writing:
            self._writing.add(key)
            self._write_final(key, fence, done)

    def _write_final(self, key: Key, fence: Fence, done: Done) -> None:
        topic, subscription = self._existing(*key)
        left = subscription.in_flight()

        def written(position: Position, error: str) -> None:
            if error or position == NONE:
                done(BrokerError(ErrorCode.PERSISTENCE, error or "the final state was not written"))
            else:
                self._change(key, lambda now: now.written(fence.token, position, left), done)

        self._finals.write(topic, subscription, fence.token, fence.target, written)

    # ----------------------------------------------------------------------------------------------------- operations

    def begin(
        self, text: str, name: str, target: str, above: Token, grace_ms: int, done: Done, named: Token = NO_TOKEN
    ) -> None:
        """Fence a subscription, to move it to `target`.

        Args:
            text, name: topic or partition, and subscription.
            target: the target cluster.
            above: the token of the latest failover that the target knows of.
            grace_ms: time to wait for acknowledgements of sent messages (`broker.failover.drain_window`).
            done: called when it is durably fenced.
            named: the token of the failover, which is the next one in the answer of `describe`; NO_TOKEN: any. A caller
                that names it can call the failover off without an answer to this request.

        Raises:
            NotFound, BadRequest, PreconditionFailed: it cannot be moved there.
            BrokerError: the topic is being deleted.
        """
        topic, subscription = self._existing(text, name)
        topic.check_stays()
        if target == self._cluster:
            raise BadRequest(f"subscription {name} of {text} is in {target} already: name another cluster")
        if not 0 <= grace_ms <= GRACE_MS_MAX:
            raise BadRequest(f"the grace period is 0 to {GRACE_MS_MAX} ms, not {grace_ms}")
        if named != NO_TOKEN and named.cluster != self._cluster:
            raise BadRequest(f"failover {named} cannot begin in {self._cluster}: its token names another cluster")
        self.url_of(target)
        source = self._links.get(target)
        if source is None or not source.linked or not source.wants(text):
            raise PreconditionFailed(
                f"{text} has no link from {self._cluster} to {target}: there is no such link in clusters.toml, or "
                f"{self._context.resources.policy_source('replication-clusters', topic.name)} does not name {target}"
            )
        if refusal := self._refusal(topic, subscription):
            raise PreconditionFailed(f"subscription {name} of {text} cannot be moved: {refusal}")
        key = text, name

        base, here = str(topic.name.base), self._cluster
        unfence = command("subscriptions", "unfence", base, name, "--in", here)

        def step(fence: Fence) -> Fence:
            now_ms, known = self._outbox.now_ms, max(above, self._finals.latest(topic, name))
            if named == NO_TOKEN:
                return fence.fence(fence.next_token(self._cluster, now_ms, known), target, now_ms, unfence)
            if fence.phase is Phase.ACTIVE and named <= known:
                raise Conflict(f"failover {named} is not later than {known}")
            return fence.fence(named, target, now_ms, unfence)

        def begun(error: MagnetarError | None) -> None:
            fence = self.fence(*key)
            if error is None and fence.phase is Phase.FENCING:
                self._await_acknowledgements(key, fence.token, grace_ms, self._outbox.now_ms)
            if error is None and fence.phase is Phase.FENCED and fence.final is not None:
                # Resume an interrupted one: acknowledgements since its final state have to be included.
                self._write_final(key, fence, done)
            else:
                done(error)

        self._change(key, step, begun)

    def complete(self, text: str, name: str, token: Token, done: Done) -> None:
        """The target is active: send the consumers there.

        Raises:
            NotFound. (`done`: Conflict.)
        """
        self._existing(text, name)
        self.url_of(self.fence(text, name).target or self._cluster)
        self._change((text, name), lambda fence: fence.complete(token, self._outbox.now_ms), done)

    def put_back(self, text: str, name: str, token: Token, done: Done) -> None:
        """Call a failover off, at its source.

        Raises:
            NotFound. (`done`: Conflict.)
        """
        self._existing(text, name)
        self._change((text, name), lambda fence: fence.put_back(token, self._outbox.now_ms), done)

    def call_off(self, text: str, name: str, token: Token, done: Done) -> None:
        """Call a failover off whose beginning was not answered: if it is still on its way here, it is refused when it comes.

        Raises:
            NotFound.
        """
        self._existing(text, name)
        self._change((text, name), lambda fence: fence.call_off(token, self._outbox.now_ms), done)

    def unfence(self, text: str, name: str, done: Done) -> None:
        """End a fence by hand.

        Raises:
            NotFound.
        """
        self._existing(text, name)

        def step(fence: Fence) -> Fence:
            return fence.unfence(fence.next_token(self._cluster, self._outbox.now_ms), self._outbox.now_ms)

        self._change((text, name), step, done)

    def activate(self, text: str, name: str, token: Token, done: Done) -> None:
        """Continue a subscription here whose final state is merged (this is checked again: the disk may have been lost
        since it was reported).

        Raises:
            NotFound. (`done`: Conflict.)
        """

        def step(fence: Fence) -> Fence:
            if (after := fence.activate(token, self._outbox.now_ms)) != fence:
                self._finals.check_merged(self._existing(text, name)[0], name, token)
            return after

        self._finals.when_ready(self._existing(text, name)[0], lambda: self._change((text, name), step, done))

    def give_up(self, text: str, name: str, token: Token, done: Done) -> None:
        """Call a failover off, at its target: from then on it cannot activate anything here.

        Raises:
            NotFound. (`done`: Conflict.)
        """
        self._existing(text, name)
        self._change((text, name), lambda fence: fence.give_up(token), done)

    # ---------------------------------------------------------------------------------------------------- long polls

    def merged(self, text: str, name: str, source: str, position: Position) -> dict[str, Any]:
        """Whether everything of a source's topic up to one of its positions is stored and merged here."""
        topic = self._topics.get(text)
        watermark = topic.log.watermark(source) if topic is not None else NONE
        exists = topic is not None and name in topic.subscriptions
        ready = (
            topic is not None and topic.replicated_subscriptions is not None and topic.replicated_subscriptions.ready
        )
        all_of_it = exists and ready and watermark >= position
        return {"topic": text, "merged": all_of_it, "watermark": str(watermark), "exists": exists}

    def wait(self, text: str, wait_ms: int, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` when `ready`, asked now and after each event of the topic, or after `wait_ms`."""
        self._waits.wait(text, wait_ms, ready, then)

    def changed_since(self, text: str, name: str, version: int) -> bool:
        """Whether the fence changed since its `version` was reported."""
        return self._versions.get((text, name), 0) > version

    # -------------------------------------------------------------------------------------------- what the broker reports

    def confirmed(self, topic: Topic) -> None:
        """Entries of a topic became readable."""
        if self._waits:
            self._waits.wake(topic.text)

    def cursor_changed(self, subscription: Subscription) -> None:
        """Something was acknowledged, or a consumer left."""
        if self._waits:
            self._waits.wake(subscription.topic)
        if self._fences:
            fence = self._fences.get((subscription.topic, subscription.name))
            if fence is not None and fence.phase is Phase.FENCING:
                self._go_on((subscription.topic, subscription.name))

    def made(self, subscription: Subscription) -> None:
        """A subscription exists from now on."""
        if self._waits:
            self._waits.wake(subscription.topic)

    def deleted(self, text: str, name: str) -> None:
        """A subscription is gone, and with it what is known of its failovers."""
        key = text, name
        self._writing.discard(key)
        known = self._fences.pop(key, None) is not None
        if known or key in self._changes:  # a change may be on its way to the store, and is deleted after it
            self._outbox.put(Store({}, (fence_key(*key),), None))
            self._waits.wake(text)

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone; its keys went with it."""
        text = topic.text
        for key in [key for key in self._fences if key[0] == text]:
            del self._fences[key]
        self._writing = {key for key in self._writing if key[0] != text}
        self._waits.wake(text)

    def deletion_keys(self, topic: Topic) -> tuple[str, ...]:
        """Keys that the transaction that deletes a topic has to delete."""
        text = topic.text
        return tuple(fence_key(*key) for key in self._fences.keys() | self._changes.keys() if key[0] == text)

    def redirects(
        self,
        connection: Connection,
        subscription: Subscription,
        command: pb.CommandSubscribe,
        done: Callable[[BrokerError | None], None],
    ) -> bool:
        """Whether a subscription moved away: then its consumer-to-be is answered, and sent after it."""
        if not self._fences:
            return False
        fence = self._fences.get((subscription.topic, subscription.name))
        if fence is None or fence.phase is not Phase.MOVED:
            return False
        url, url_tls = self._url(fence.target), self._url(fence.target, tls=True)
        redirect(connection, subscription, command, done, target=fence.target, url=url, url_tls=url_tls)
        return True

    def validate(self) -> None:
        """Check what must hold after every event."""
        for key, fence in self._fences.items():
            found = self._found(*key)
            assert found is None or found[1].held == fence.held, f"{key}: {fence}, held {found[1].held}"
        self._waits.validate()


def fence_key(text: str, name: str) -> str:
    """The key of a subscription's fence."""
    return f"{FENCE_PREFIX}{text}/{quote(name)}"
