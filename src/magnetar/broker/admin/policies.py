"""What administration asks of a broker about clusters, tenants, namespaces and policies; the rules are those of
`broker.admin.controller`.
"""

from typing import Any

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.admin.topics import TopicControl
from magnetar.broker.broker import Broker
from magnetar.broker.context import Done
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict
from magnetar.metadata.keys import NAMESPACE_PREFIX
from magnetar.metadata.policies.table import BY_NAME


class PolicyControl:
    """Changes of resources, and defaults of policies.

    Args:
        broker: the machine.
        topics: of the same broker.
        events: how changes enter the broker.
    """

    def __init__(self, broker: Broker, topics: TopicControl, events: AdminEvents) -> None:
        self._broker = broker
        self._topics = topics
        self._events = events

    def default(self, name: str) -> Any:
        """What holds where nobody set the policy of this name (`metadata.policies.table`); None: no limit."""
        if name == "deduplication":  # has a table of its own there
            return self._broker.deduplications.default
        if name == "deduplication-interval":
            return self._broker.deduplications.snapshot_s
        policy = BY_NAME[name]
        value = policy.of_namespace(self._broker.resources.defaults)
        return policy.default(self._broker.config) if value is None else value

    def apply(self, change: Change, done: Done) -> None:
        """Store a change of clusters, tenants, namespaces; then `Resources.apply` it and do what follows from it
        (cursors of new links in the same transaction, docs/design/links.md#cursor-creation), then `done`.

        Raises:
            Conflict: something it writes or relied on is just being changed.
        """
        self._events.enter(lambda: self._store_change(change, done))

    def _store_change(self, change: Change, done: Done) -> None:
        for key in change.deletes:
            if key.startswith(NAMESPACE_PREFIX) and self._topics.names(key.removeprefix(NAMESPACE_PREFIX)):
                raise Conflict(f"namespace {key.removeprefix(NAMESPACE_PREFIX)} is not empty")
        self._broker.changes.change(change, done)
