"""Partitioned topics that are created when a client asks for their number of partitions: policy `auto-topic-creation`.

A client asks for the number of partitions of a topic before it opens it. If the policy makes new topics partitioned,
the first request creates the topic, with all its partitions in one transaction, and is answered when it is stored.
"""

from collections.abc import Callable

from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.catalog.changes import Changes
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.names import TopicName
from magnetar.metadata.errors import InFlight
from magnetar.metadata.resources import Resources

SYSTEM_PREFIX = "__"
"""Local names of the broker's own topics begin so; they have no partitions."""

Counted = Callable[[int, BrokerError | None], None]
"""Called with the number of partitions, or the reason why it is not known."""


class AutoPartitions:
    """Makes partitioned topics that clients ask for.

    Args:
        resources: policies and partitioned topics.
        catalog: which topics exist.
        changes: stores what is new.
    """

    def __init__(self, resources: Resources, catalog: Catalog, changes: Changes) -> None:
        self._resources = resources
        self._catalog = catalog
        self._changes = changes

    def count_or_make(self, name: TopicName, create: bool, then: Counted) -> None:
        """The number of partitions of a topic; one that does not exist is created if `create`, settings and policies
        allow it.

        Args:
            name: the topic.
            create: whether the client allows creating it.
            then: called with the number, 0 for a topic without partitions (which is created when it is opened).
        """
        try:
            count = self._catalog.partitions_for_client(name, create)
            new = self._resources.new_partitions(name.namespace_name) if create and count == 0 else 0
            if not new or name.partition >= 0 or name.local.startswith(SYSTEM_PREFIX) or self._catalog.known(name):
                then(count, None)
                return
            self._catalog.check_room(name.namespace_name, new)
            change = self._resources.create_partitioned(name, new, {})
            self._changes.create_partitions(
                name, new, change, lambda error: then(new, None if error is None else _explained(error))
            )
        except MagnetarError as error:
            then(0, _explained(error))


def _explained(error: MagnetarError) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    again = isinstance(error, InFlight)
    return BrokerError(ErrorCode.SERVICE_NOT_READY if again else ErrorCode.NOT_ALLOWED, str(error))
