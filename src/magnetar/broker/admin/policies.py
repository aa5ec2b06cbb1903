"""Clusters, tenants, namespaces and policies for administration; the rules are those of `broker.admin.controller`."""

from typing import Any

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.admin.topics import TopicControl
from magnetar.broker.catalog.changes import Changes
from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.publish.deduplication_policy import Deduplications
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict
from magnetar.metadata.keys import NAMESPACE_PREFIX
from magnetar.metadata.policies.table import BY_NAME


class PolicyControl:
    """Changes of resources, and defaults of policies.

    Args:
        context: of the broker.
        changes: stores changes of resources.
        deduplications: has the defaults of its policies.
        topics: their administration.
        events: how changes enter the broker.
    """

    def __init__(
        self,
        context: BrokerContext,
        changes: Changes,
        deduplications: Deduplications,
        topics: TopicControl,
        events: AdminEvents,
    ) -> None:
        self._context, self._changes, self._deduplications = context, changes, deduplications
        self._topics, self._events = topics, events

    def default(self, name: str) -> Any:
        """The default of the policy with this name (`metadata.policies.table`); None: no limit."""
        if name == "deduplication":  # has a table of its own there
            return self._deduplications.default
        if name == "deduplication-interval":
            return self._deduplications.snapshot_s
        policy = BY_NAME[name]
        value = policy.of_namespace(self._context.resources.defaults)
        return policy.default(self._context.config) if value is None else value

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
        self._changes.change(change, done)
