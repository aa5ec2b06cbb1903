"""A broker that has no replicated subscriptions, no schemas and no partitions, as the machines of links see it."""

from magnetar.wire.acksets import Mark


class PlainLinkHost:
    """What links report, and what they ask in addition to the topics: `SourceHost` and the reports of `DestinationHost`.

    Attributes:
        active: (source, restarted) of each report that a link is at work in a topic.
    """

    def __init__(self) -> None:
        self.active: list[tuple[str, bool]] = []

    def source_active(self, topic: str, source: str, *, restarted: bool) -> None:
        self.active.append((source, restarted))

    def learn_retained(self, topic: str, marks: tuple[Mark, ...]) -> None:
        pass

    def stored(self, topic: str, source: str, connection: int, messages: int, size: int) -> None:
        pass

    def partitions_of(self, topic: str) -> int:
        return 0

    def retained(self, topic: str) -> tuple[Mark, ...]:
        return ()

    def schema_numbering(self, topic: str) -> int:
        return 0

    def rebased(self, topic: str, target: str) -> None:
        pass
