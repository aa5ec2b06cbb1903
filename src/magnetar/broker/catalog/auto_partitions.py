"""Partitioned topics that come into being when a client asks for their partitions: policy `auto-topic-creation`.

A client asks how many partitions a topic has before it opens it. Where the policy says that new topics are partitioned, the first
one to ask has it made, with all its partitions and in one transaction, and is answered when it is stored.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.names import TopicName
from magnetar.metadata.errors import InFlight

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

SYSTEM_PREFIX = "__"
"""Local names of the broker's own topics begin so; they have no partitions."""

Counted = Callable[[int, BrokerError | None], None]
"""Told how many partitions there are, or why that cannot be said."""


def partitions_or_make(broker: "Broker", name: TopicName, create: bool, then: Counted) -> None:
    """How many partitions a topic has; one that does not exist is made if `create`, settings and policies say so.

    Args:
        broker, name: which topic.
        create: whether the client wants it to come into being.
        then: told how many, 0 for a topic without partitions (which comes when it is opened).
    """
    try:
        count = broker.catalog.partitions_for_client(name, create)
        new = broker.resources.new_partitions(name.namespace_name) if create and count == 0 else 0
        if not new or name.partition >= 0 or name.local.startswith(SYSTEM_PREFIX) or broker.catalog.known(name):
            then(count, None)
            return
        broker.catalog.check_room(name.namespace_name, new)
        change = broker.resources.create_partitioned(name, new, {})
        broker.create_partitions(name, new, change, lambda error: then(new, None if error is None else _told(error)))
    except MagnetarError as error:
        then(0, _told(error))


def _told(error: MagnetarError) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    again = isinstance(error, InFlight)
    return BrokerError(ErrorCode.SERVICE_NOT_READY if again else ErrorCode.NOT_ALLOWED, str(error))
