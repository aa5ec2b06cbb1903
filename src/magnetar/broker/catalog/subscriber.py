"""The connection of a subscribing consumer, as the catalog uses it."""

from typing import Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.wire import pulsar_pb2 as pb


class Subscriber(Protocol):
    """The consumers of one connection (`session.consumers.SessionConsumers`)."""

    @property
    def connection(self) -> Connection:
        """The connection."""

    def awaited(self, command: pb.CommandSubscribe) -> bool:
        """Whether the client still wants the consumer that it asked for."""

    def first_probe(self, command: pb.CommandSubscribe) -> bool:
        """Whether the broker has not yet probed the present holder of this consumer's access."""

    def attached(self, consumer: Consumer, subscription: Subscription, request_id: int) -> None:
        """A subscription takes the consumer: its client is answered before it is sent anything else."""
