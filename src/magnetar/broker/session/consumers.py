"""The commands of one connection about consumers: subscribing, acknowledging, seeking, leaving.

`OpenConsumer` and its subscription implement the differences between persistent and non-persistent topics.
"""

from operator import attrgetter

from magnetar.broker.client_bytes import Handles, Opening
from magnetar.broker.connection import Connection
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import topic_name
from magnetar.broker.session.persistent import PersistentConsumer
from magnetar.broker.session.ports import Done, OpenConsumer
from magnetar.broker.session.services import SessionServices
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb


class SessionConsumers:
    """The consumers of one connection.

    Args:
        connection: the connection.
        services: the services of sessions.

    Attributes:
        open: by the client's id.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self.connection = connection
        self.open: Handles[OpenConsumer] = Handles(services.client_bytes, attrgetter("consumer.held"))
        self._services = services
        self._opening: Opening[pb.CommandSubscribe] = services.broker.opening(connection.number, "consumers")
        """Consumer id -> the SUBSCRIBE that is under way for it."""
        self._probed: set[int] = set()
        """Consumers being opened for which the broker already probed the present holder of their access."""

    def disconnected(self) -> None:
        """The socket is gone: so are its consumers."""
        self._opening.clear()
        for opened in list(self.open.values()):
            opened.leave()
        self.open.clear()

    def permissions_changed(self) -> None:
        """Close consumers whose client may no longer consume; the client looks the topic up again, and is refused
        there.
        """
        for opened in list(self.open.values()):
            if not self.connection.allowed(Operation.CONSUME, opened.topic_name, opened.subscription.name):
                self.evict(opened.consumer)
        for command in list(self._opening.values()):
            try:
                self._check_allowed(command)
            except BrokerError as error:
                self._done(command, error)

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again."""
        for subscription in {opened.subscription for opened in self.open.values()}:
            if writable:
                subscription.resume(self.connection.number)
            else:
                subscription.pause(self.connection.number)

    # ---------------------------------------------------------------------------------------------------- subscribing

    def subscribe(self, command: pb.CommandSubscribe) -> None:
        """SUBSCRIBE."""
        consumer_id, request_id = command.consumer_id, command.request_id
        if consumer_id in self.open:
            self.connection.send(commands.success(request_id))
            return
        if consumer_id in self._opening:
            error = BrokerError(ErrorCode.SERVICE_NOT_READY, f"consumer {consumer_id} is already being opened")
            self.connection.refuse(request_id, error)
            return
        try:
            name = self._check_allowed(command)
            try:
                names.check_subscription(command.subscription)
            except NameNotValid as error:
                # Pulsar answers a reserved or malformed subscription name with its naming error, which is this code.
                raise BrokerError(ErrorCode.PRODUCER_BUSY, str(error)) from error
            self._check_room()
            self._services.client_bytes.held(self.connection.number, str(name), command)
        except BrokerError as error:
            self.connection.refuse(request_id, error)
            return
        self._opening[consumer_id] = command

        def done(error: BrokerError | None) -> None:
            self._done(command, error)

        self._services.domains[name.domain].subscribe(self, name, command, done)

    def _check_allowed(self, command: pb.CommandSubscribe) -> TopicName:
        """The topic, where the client may consume through that subscription."""
        name = topic_name(command.topic)
        self.connection.check(Operation.CONSUME, name, subscription=command.subscription)
        return name

    def _check_room(self) -> None:
        """Refuse one consumer too many.

        Raises:
            BrokerError: ConsumerBusy.
        """
        most = self._services.context.config.handles_per_connection_max
        if len(self.open) + len(self._opening) >= most:
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY, f"{most} consumers are the most on one connection (handles_per_connection_max)"
            )

    def _done(self, command: pb.CommandSubscribe, error: BrokerError | None) -> None:
        """An attempt is over, unless it was given up already; refuse it on an error."""
        if self.awaited(command):
            del self._opening[command.consumer_id]
            self._probed.discard(command.consumer_id)
            if error is not None:
                self.connection.refuse(command.request_id, error)

    def awaited(self, command: pb.CommandSubscribe) -> bool:
        """Whether the client still wants the consumer that it asked for: it is there, and did not close it meanwhile.

        Clients close what they have waited for without success, to be sure that nothing is left of it.
        """
        return not self.connection.closed and self._opening.get(command.consumer_id) is command

    def first_probe(self, command: pb.CommandSubscribe) -> bool:
        """Whether the broker has not yet probed the present holder of this consumer's access."""
        probed = command.consumer_id in self._probed
        self._probed.add(command.consumer_id)
        return not probed

    def attached(self, consumer: Consumer, subscription: Subscription, request_id: int) -> None:
        """A subscription of a persistent topic takes the consumer (see `joined`)."""
        self.joined(PersistentConsumer(self._services.persistent, consumer, subscription), request_id)

    def joined(self, opened: OpenConsumer, request_id: int) -> None:
        """A subscription takes a consumer: its client is answered before it is sent anything else."""
        self.open[opened.consumer.consumer_id] = opened
        self.connection.send(commands.success(request_id))

    # -------------------------------------------------------------------------------------------------------- leaving

    def detached(self, consumer_id: int) -> None:
        """The subscription disconnected the consumer (seek, deletion): its id is free again."""
        self.open.pop(consumer_id, None)

    def evict(self, consumer: Consumer) -> None:
        """The broker closes a consumer: the client looks the topic up again."""
        opened = self.open.get(consumer.consumer_id)
        if opened is not None and opened.consumer is consumer:
            del self.open[consumer.consumer_id]
            opened.leave()
            self.connection.send(commands.close_consumer(consumer.consumer_id))

    def close(self, command: pb.CommandCloseConsumer) -> None:
        """CLOSE_CONSUMER."""
        consumer_id = command.consumer_id
        opened, opening = self.open.pop(consumer_id, None), self._opening.pop(consumer_id, None)
        self._probed.discard(consumer_id)
        if opening is not None:
            self.connection.refuse_closed(opening.request_id, f"consumer {consumer_id}")
        if opened is not None:
            opened.leave()
        self.connection.send(commands.success(command.request_id))

    def unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        """UNSUBSCRIBE."""
        opened = self._opened(command.consumer_id, command.request_id)
        if opened is not None:
            opened.unsubscribe(force=command.force, done=self._answer(command.request_id))

    # ------------------------------------------------------------------------------------------------------ consuming

    def flow(self, command: pb.CommandFlow) -> None:
        """FLOW."""
        opened = self.open.get(command.consumer_id)
        if opened is not None:
            opened.subscription.flow(opened.consumer, command.messagePermits)

    def ack(self, command: pb.CommandAck) -> None:
        """ACK. One that comes late, after a close, is ignored, as in Pulsar."""
        opened = self.open.get(command.consumer_id)
        if opened is None:
            return
        code: ErrorCode | None = None
        text = ""
        try:
            opened.subscription.ack(opened.consumer, command.message_id, cumulative=command.ack_type == 1)
        except BrokerError as error:
            code, text = error.code, error.message  # the error itself would be a circle with this frame
        if not command.HasField("request_id"):
            return
        consumer_id, request_id, connection = command.consumer_id, command.request_id, self.connection
        if code is not None:
            connection.send(commands.ack_response(consumer_id, request_id, code, text))
            return

        def durable(problem: str) -> None:
            failed = ErrorCode.METADATA if problem else None
            connection.send(commands.ack_response(consumer_id, request_id, failed, problem))

        opened.when_durable(durable)

    def redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        opened = self.open.get(command.consumer_id)
        if opened is None:
            return
        positions = [Position(item.ledgerId, item.entryId) for item in command.message_ids]
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        opened.subscription.redeliver(opened.consumer, positions or None, epoch)

    def seek(self, command: pb.CommandSeek) -> None:
        """SEEK."""
        opened = self._opened(command.consumer_id, command.request_id)
        if opened is not None:
            opened.seek(command, self._answer(command.request_id))

    def last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        """GET_LAST_MESSAGE_ID."""
        opened = self._opened(command.consumer_id, command.request_id)
        if opened is None:
            return
        try:
            self.connection.send(opened.last_message_id(command.request_id))
        except BrokerError as error:
            self.connection.refuse(command.request_id, error)

    def stats(self, command: pb.CommandConsumerStats) -> None:
        """CONSUMER_STATS."""
        request_id, opened = command.request_id, self.open.get(command.consumer_id)
        if opened is not None:
            self.connection.send(commands.consumer_stats(request_id, opened.stats()))
        else:
            reason = f"consumer {command.consumer_id} is not open"
            self.connection.send(commands.consumer_stats_failed(request_id, ErrorCode.CONSUMER_NOT_FOUND, reason))

    def _opened(self, consumer_id: int, request_id: int) -> OpenConsumer | None:
        opened = self.open.get(consumer_id)
        if opened is None:
            self.connection.refuse(request_id, BrokerError(ErrorCode.METADATA, f"consumer {consumer_id} is not open"))
        return opened

    def _answer(self, request_id: int) -> Done:
        """Answers a request with its outcome."""
        connection = self.connection

        def done(error: BrokerError | None) -> None:
            if error is None:
                connection.send(commands.success(request_id))
            else:
                connection.refuse(request_id, error)

        return done
