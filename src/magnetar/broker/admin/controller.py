"""Administration of a broker: the operations that the admin REST interface calls, one part for each subject.

Rules of all parts:

- Reads answer at once, with plain dicts and lists that the caller may keep and change.
- Changes take a last argument `done`. It is called exactly once, on the broker's own thread: with None when the change
  is *durable*, with the error when it did not happen. What can be refused at once is raised instead; then `done` is not
  called.
- Names are full names, already checked by `core.names`. A partition is a topic of its own; a partitioned topic's name
  means all of its partitions where a method says so.
- Errors are `BrokerError` or one of `metadata.errors.Refused`; admin turns either into a status code.
"""

from magnetar.broker.admin.draining import Drain
from magnetar.broker.admin.events import AdminEvents, Run
from magnetar.broker.admin.failovers import FailoverControl
from magnetar.broker.admin.links import LinkControl
from magnetar.broker.admin.messages import MessageControl
from magnetar.broker.admin.metadata import MetadataControl
from magnetar.broker.admin.policies import PolicyControl
from magnetar.broker.admin.replicated import ReplicatedControl
from magnetar.broker.admin.schemas import SchemaControl
from magnetar.broker.admin.statistics import StatisticsControl
from magnetar.broker.admin.subscriptions import SubscriptionControl
from magnetar.broker.admin.topics import TopicControl
from magnetar.broker.broker import Broker
from magnetar.broker.statistics.topic_stats import TopicStatistics


class Controller:
    """The operations of administration on a broker.

    Args:
        broker: the machine.
        run: handles an event of the broker, `Driver.run`.

    Attributes:
        topics, subscriptions, messages, replicated, links, failovers, metadata, schemas, statistics, policies: the parts.
    """

    def __init__(self, broker: Broker, run: Run) -> None:
        events = AdminEvents(broker.topics, broker.loaded, broker.replicated_subscriptions, run)
        self.topics = TopicControl(broker, events)
        self.subscriptions = SubscriptionControl(broker.outbox, broker.catalog, broker.nonpersistent, events)
        self.messages = MessageControl(broker.outbox, broker.damage, events)
        self.replicated = ReplicatedControl(broker.replicated_subscriptions, broker.resources, broker.fences, events)
        drain = Drain(broker.context, broker.topics, broker.links, broker.fences)
        self.links = LinkControl(broker.links, drain, broker.catalog.deleted, broker.fences, self.topics, events)
        self.failovers = FailoverControl(broker.fences, events)
        self.metadata = MetadataControl(broker.metasync, broker.resources, events)
        self.schemas = SchemaControl(broker.schemas, events)
        topics = TopicStatistics(
            broker.context,
            broker.clients,
            broker.access,
            broker.links.reports,
            broker.replicated_subscriptions,
            broker.compactions,
        )
        self.statistics = StatisticsControl(broker, topics, events)
        self.policies = PolicyControl(broker.context, broker.changes, broker.deduplications, self.topics, events)
