"""The entry of administration into a broker: its calls come from outside the driver's events."""

from collections.abc import Callable, Mapping

from magnetar.broker.catalog.loaded_topics import LoadedTopics
from magnetar.broker.context import Done
from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.metadata.errors import NotFound

Run = Callable[..., None]
"""`Driver.run`: handles one event with its arguments and carries out its effects."""


class AdminEvents:
    """Finds what a call of administration is about, and runs its changes as events of the broker.

    Args:
        topics: every persistent topic, by name.
        loaded: stores what is changed of them.
        replicated_subscriptions: of the broker.
        run: handles an event: sets the clock, and carries out the effects.
    """

    def __init__(
        self,
        topics: Mapping[str, Topic],
        loaded: LoadedTopics,
        replicated_subscriptions: ReplicatedSubscriptions,
        run: Run,
    ) -> None:
        self._topics, self._loaded, self._run = topics, loaded, run
        self._replicated_subscriptions = replicated_subscriptions

    def enter(self, event: Callable[[], None]) -> None:
        """Run an event. A refusal inside it is raised here; the driver does not see it."""
        refused: list[MagnetarError] = []

        def guarded() -> None:
            try:
                event()
            except MagnetarError as error:
                refused.append(error)

        self._run(guarded)
        if refused:
            raise refused[0]

    def enter_ready(self, topic: Topic, subscription: Subscription, act: Callable[[], None]) -> None:
        """Run an event on a subscription; on a replicated one not before its state is complete (after a start)."""

        def enter() -> None:
            self._replicated_subscriptions.when_ready(topic, subscription.name, act, replicated=subscription.replicated)

        self.enter(enter)

    def topic(self, text: str) -> Topic:
        """The persistent topic, or partition, of a full name.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        topic = self._topics.get(text)
        if topic is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {text} does not exist")
        return topic

    def subscription(self, text: str, name: str) -> tuple[Topic, Subscription]:
        """A subscription of a persistent topic, with the topic.

        Raises:
            BrokerError: TOPIC_NOT_FOUND. NotFound: the topic has no such subscription.
        """
        topic = self.topic(text)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise NotFound(f"subscription {name} of {text} does not exist")
        return topic, subscription

    def when_durable(self, subscription: Subscription, done: Done) -> None:
        """Call `done` when a subscription is stored as it is now; at once for one that is not durable."""

        def stored(error: str) -> None:
            done(BrokerError(ErrorCode.METADATA, error) if error else None)

        if subscription.durable:
            self._loaded.when_cursor_durable(subscription, stored)
        else:
            done(None)

    def change(self, topic: str, subscription: str, change: Callable[[Subscription], object], done: Done) -> None:
        """Change a subscription; `done` when that is durable.

        Raises:
            BrokerError: TOPIC_NOT_FOUND. NotFound: the topic has no such subscription.
        """
        found_topic, found = self.subscription(topic, subscription)

        def act() -> None:
            change(found)
            self.when_durable(found, done)

        self.enter_ready(found_topic, found, act)
