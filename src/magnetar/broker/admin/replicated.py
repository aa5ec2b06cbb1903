"""Replicated subscriptions for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Generator
from typing import Any, Final

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.context import Done
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions
from magnetar.broker.statistics.topic_stats import at_once
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.resources import Resources

TOPICS_A_STEP: Final = 500
"""Topics that are read before others get their turn: some 0.1 ms."""


class ReplicatedControl:
    """Administration of replicated subscriptions.

    Args:
        replicated_subscriptions: the broker's replicated subscriptions.
        resources: the policies.
        fences: the subscriptions that are being moved.
        events: the entry of changes into the broker.
    """

    def __init__(
        self,
        replicated_subscriptions: ReplicatedSubscriptions,
        resources: Resources,
        fences: Fences,
        events: AdminEvents,
    ) -> None:
        self._replicated_subscriptions = replicated_subscriptions
        self._resources = resources
        self._fences = fences
        self._events = events

    def topics(self) -> list[str]:
        """Full names of the topics that have replicated subscriptions here, sorted."""
        return sorted(at_once(self.topic_steps()))

    def topic_steps(self) -> Generator[None, None, list[str]]:
        """The same, not sorted, in steps of `TOPICS_A_STEP` topics."""
        found = []
        for number, (text, host) in enumerate(list(self._replicated_subscriptions.topics.items()), 1):
            if host.subscriptions():
                found.append(text)
            if number % TOPICS_A_STEP == 0:
                yield
        return found

    def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Every replicated subscription of one topic or partition, as plain values (`docs/replicated-subscriptions.md`).

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        return self._replicated_subscriptions.states(self._events.topic(topic))

    def metrics(self) -> dict[str, Any]:
        """`mode`: the broker's default; `counters`: of the machines of all topics together, since the start."""
        found = self._replicated_subscriptions
        return {"mode": found.settings.mode, "counters": found.metrics()}

    def refuses_mode(self, namespace: str, mode: str) -> str:
        """Why a namespace's replicated subscriptions cannot follow in a mode; "" when they can."""
        return self._replicated_subscriptions.refuses_mode(NamespaceName.parse(namespace), mode)

    def set_replicated(self, topic: str, subscription: str, replicated: bool, done: Done) -> None:
        """Let a subscription of one topic or partition follow to other clusters, or no longer.

        Raises:
            NotFound. PreconditionFailed: a policy says that all are replicated, or it is not durable.
        """
        found_topic, found = self._events.subscription(topic, subscription)
        replicated_subscriptions = self._replicated_subscriptions
        if not found.durable:
            raise PreconditionFailed(f"subscription {subscription} of {topic} is not durable: it cannot be replicated")
        if replicated and found.compacted is not None:
            raise PreconditionFailed(f"subscription {subscription} of {topic} reads compacted: it cannot be replicated")
        if not replicated and replicated_subscriptions.all_of(found_topic):
            source = self._resources.policy_source("replicate-subscriptions", found_topic.name)
            raise PreconditionFailed(f"all subscriptions of {topic} are replicated by {source}: take that back first")

        def switch() -> None:
            if leaving := found_topic.leaving:
                done(leaving)
                return
            if not replicated and (moving := self._fences.moving(topic, subscription)):
                done(PreconditionFailed(f"subscription {subscription} of {topic} is {moving}; end that first"))
                return
            replicated_subscriptions.set_replicated(found_topic, found, replicated)
            self._events.when_durable(found, done)

        self._events.enter_ready(found_topic, found, switch)
