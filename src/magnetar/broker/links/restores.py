"""Restoring a wiped cluster, between a broker's topics and `replication.restore`: what is held here, what was and is deleted."""

from typing import TYPE_CHECKING, Any

from magnetar.broker.links.schemas import LinkSchemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.names import TopicName
from magnetar.replication.holdings import Runs, count, holdings, merged, of_ledgers
from magnetar.replication.link.host import DestinationTopic, TopicHost
from magnetar.replication.restore import Restorer
from magnetar.storage.topiclog import Trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.broker import Broker


class Restores:
    """The restoring side of one broker; the host of its `Restorer`.

    Args:
        broker: whose.
        host: what a link's destination asks of it.
    """

    def __init__(self, broker: "Broker", host: TopicHost) -> None:
        self._broker = broker
        self._host = host
        self.machine = Restorer(
            broker.outbox,
            cluster=broker.cluster,
            host=self,
            schemas=LinkSchemas(broker, back=True),
            message_bytes_max=broker.config.message_bytes_max,
            pending_bytes_max=broker.config.pending_publish_bytes_max,
        )

    # ------------------------------------------------------------------------------------ geo.restoring's host

    def find(self, topic: str) -> DestinationTopic | None:
        """A topic that exists here."""
        return self._host.find(topic)

    def refuses(self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0) -> str:
        """Why entries may not come into a topic; "" when they may."""
        return self._host.refuses(topic, source, incarnation, partitions)

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        """How a topic gets the same form in two clusters."""
        return self._host.reconcile(topic, source, partitions)

    def partitions(self, topic: TopicName) -> int | None:
        """Partitions of a topic: 0 if not partitioned, None if there is none."""
        return self._host.partitions(topic)

    def create(self, topic: TopicName, partitions: int, then: "Callable[[str], None]") -> None:
        """Make or grow a topic."""
        self._host.create(topic, partitions, then)

    def forgotten(self, topic: str) -> dict[int, Runs]:
        """By incarnation: what came back of an earlier life and was deleted by retention since."""
        found: dict[int, Runs] = {}
        for life, first, end in self._broker.topics[topic].record.restored:
            found.setdefault(life, []).append((first, end))
        return found

    # --------------------------------------------------------------------------------------------------------- the broker

    def trimming(self, topic: Topic, trim: Trim) -> None:
        """Ledgers will be deleted when the topic's record is stored: note there what of them had been restored."""
        going = [ledger for ledger in topic.log.ledger_infos() if ledger.ledger in trim.ledgers]
        record, here = topic.record, self._broker.cluster
        for one in of_ledgers(going, here, here, topic.log.incarnation):
            if one.incarnation != topic.log.incarnation:
                before = [(first, end) for life, first, end in record.restored if life == one.incarnation]
                others = [run for run in record.restored if run[0] != one.incarnation]
                runs = merged([*before, *one.runs])
                record.restored = sorted([*others, *((one.incarnation, first, end) for first, end in runs)])

    def held(self, origin: str) -> list[dict[str, Any]]:
        """Messages of a cluster that are held here, by topic; see `BrokerControl.held`."""
        here, found = self._broker.cluster, []
        for text, topic in sorted(self._broker.topics.items()):
            lives = holdings(topic.log, origin, here)
            if lives or origin == here:
                name = topic.name
                whole = self._broker.resources.partitions(name.base) if name.partition >= 0 else None
                found.append(
                    {
                        "topic": text,
                        "partitions": whole or 0,
                        "incarnation": topic.log.incarnation,
                        "lives": [one._asdict() | {"messages": count(one.runs)} for one in lives],
                        "deleted": topic.record.restored if origin == here else [],
                    }
                )
        return found

    def status(self) -> dict[str, int]:
        """What came back since this broker's start."""
        return {"messages": self.machine.messages, "bytes": self.machine.bytes}
