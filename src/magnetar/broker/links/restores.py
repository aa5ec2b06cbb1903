"""Restoring a cluster that lost its disk, between a broker's topics and `replication.restore`: the messages that are
here, and those that were here and are deleted.
"""

from collections.abc import Callable, Mapping
from typing import Any

from magnetar.broker.context import BrokerContext
from magnetar.broker.links.schemas import LinkSchemas
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.names import TopicName
from magnetar.replication.holdings import Runs, count, holdings, merged, of_ledgers
from magnetar.replication.link.ports import DestinationTopic, TopicHost
from magnetar.replication.restore import Restorer
from magnetar.storage.topiclog import Trim


class Restores:
    """The restoring side of one broker; the host of its `Restorer`.

    Args:
        context: of the broker.
        topics: all of the broker's, by name.
        schemas: of these topics.
        host: creates topics, and says which may not come.
    """

    def __init__(self, context: BrokerContext, topics: Mapping[str, Topic], schemas: Schemas, host: TopicHost) -> None:
        self._context = context
        self._topics = topics
        self._host = host
        self.machine = Restorer(
            context.outbox,
            cluster=context.cluster,
            host=self,
            schemas=LinkSchemas(context, schemas, back=True),
            message_bytes_max=context.config.message_bytes_max,
            pending_bytes_max=context.config.pending_publish_bytes_max,
        )

    # ------------------------------------------------------------------------------------------------------ `RestoreHost`

    def find(self, topic: str) -> DestinationTopic | None:
        """A topic that exists here."""
        return self._host.find(topic)

    def refuses_entries(
        self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0
    ) -> str:
        """Why entries may not come into a topic; "" when they may."""
        return self._host.refuses_entries(topic, source, incarnation, partitions)

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        """Give a topic the same form in two clusters."""
        return self._host.reconcile(topic, source, partitions)

    def partitions(self, topic: TopicName) -> int | None:
        """Partitions of a topic: 0 if not partitioned, None if there is none."""
        return self._host.partitions(topic)

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        """Make or grow a topic."""
        self._host.create(topic, partitions, then)

    def forgotten(self, topic: str) -> dict[int, Runs]:
        """By incarnation: restored messages of an earlier incarnation that retention has deleted since."""
        found: dict[int, Runs] = {}
        for incarnation, first, end in self._topics[topic].record.restored:
            found.setdefault(incarnation, []).append((first, end))
        return found

    # --------------------------------------------------------------------------------------------------------- the broker

    def trimming(self, topic: Topic, trim: Trim) -> None:
        """Ledgers will be deleted when the topic's record is stored: note there what of them had been restored."""
        going = [ledger for ledger in topic.log.ledger_infos() if ledger.ledger in trim.ledgers]
        record, here = topic.record, self._context.cluster
        for one in of_ledgers(going, here, here, topic.log.incarnation):
            if one.incarnation != topic.log.incarnation:
                before = [(first, end) for number, first, end in record.restored if number == one.incarnation]
                others = [run for run in record.restored if run[0] != one.incarnation]
                runs = merged([*before, *one.runs])
                record.restored = tuple(sorted([*others, *((one.incarnation, first, end) for first, end in runs)]))

    def held(self, origin: str) -> list[dict[str, Any]]:
        """Messages of a cluster that are held here, by topic; see `broker.admin.links.LinkControl.held`."""
        here, found = self._context.cluster, []
        for text, topic in sorted(self._topics.items()):
            held = holdings(topic.log, origin, here)
            if held or origin == here:
                name = topic.name
                whole = self._context.resources.partitions(name.base) if name.partition >= 0 else None
                found.append(
                    {
                        "topic": text,
                        "partitions": whole or 0,
                        "incarnation": topic.log.incarnation,
                        "lives": [one._asdict() | {"messages": count(one.runs)} for one in held],
                        "deleted": topic.record.restored if origin == here else [],
                    }
                )
        return found

    def status(self) -> dict[str, int]:
        """The numbers of restored messages since this broker's start."""
        return {"messages": self.machine.messages, "bytes": self.machine.bytes}
