"""The commands of one connection about consumers: subscribing, acknowledging, seeking, leaving."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from magnetar.broker.client_bytes import Handles, Opening
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import topic_name
from magnetar.broker.session.part import SessionPart
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.topic import Topic
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Send
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session


class SessionConsumers(SessionPart):
    """The consumers of one connection.

    Args:
        session: the connection.

    Attributes:
        open: by the client's id.
    """

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.open: Handles[Consumer] = Handles(self._broker.client_bytes, attrgetter("held"))
        self._opening: Opening[pb.CommandSubscribe] = self._broker.opening(session.number, "consumers")
        """Consumer id -> the SUBSCRIBE that is under way for it."""
        self._probed: set[int] = set()
        """Consumers on their way for which it was asked whether the one that has their place lives."""

    def handlers(self) -> dict[int, Callable[[Any], None]]:
        """Command type -> what answers it."""
        return {
            4: lambda c: self._subscribe(c.subscribe),
            10: lambda c: self._ack(c.ack),
            11: lambda c: self._flow(c.flow),
            12: lambda c: self._unsubscribe(c.unsubscribe),
            16: lambda c: self._close_consumer(c.close_consumer),
            20: lambda c: self._redeliver(c.redeliverUnacknowledgedMessages),
            25: lambda c: self._consumer_stats(c.consumerStats),
            28: lambda c: self._seek(c.seek),
            29: lambda c: self._last_message_id(c.getLastMessageId),
        }

    def disconnected(self) -> None:
        """The socket is gone: so are its consumers."""
        self._opening.clear()
        for consumer in list(self.open.values()):
            consumer.subscription.remove_consumer(consumer)
            self._broker.loaded.after_consumer_left(consumer.subscription)
        self.open.clear()

    def permissions_changed(self) -> None:
        """Close consumers whose client may no longer consume; it looks the topic up again, and is refused there."""
        access, identity = self._broker.access, self._session.identity
        for consumer_id, consumer in list(self.open.items()):
            subscription = consumer.subscription
            topic = TopicName.parse(subscription.topic)
            if not access.authorizer.allowed(identity, Operation.CONSUME, topic, subscription.name):
                del self.open[consumer_id]
                consumer.subscription.remove_consumer(consumer)
                self._broker.loaded.after_consumer_left(consumer.subscription)
                self._session.send(commands.close_consumer(consumer_id))
        for command in list(self._opening.values()):
            try:
                self._check_allowed(command)
            except BrokerError as error:
                self._done(command, error)

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again."""
        for subscription in {consumer.subscription for consumer in self.open.values()}:
            if writable:
                subscription.resume(self._session.number)
            else:
                subscription.pause(self._session.number)

    def _subscribe(self, command: pb.CommandSubscribe) -> None:
        consumer_id, request_id = command.consumer_id, command.request_id
        if consumer_id in self.open:
            self._session.send(commands.success(request_id))
            return
        if consumer_id in self._opening:
            self._session.refuse(
                request_id,
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"consumer {consumer_id} is already being opened",
                ),
            )
            return
        try:
            name = self._check_allowed(command)
            try:
                names.check_subscription(command.subscription)
            except NameNotValid as error:
                # Pulsar answers a reserved or malformed subscription name with its naming error, which is this code.
                raise BrokerError(ErrorCode.PRODUCER_BUSY, str(error)) from error
            self._session.check_room_for_consumer()
            self._broker.client_bytes.held(self._session.number, str(name), command)
        except BrokerError as error:
            self._session.refuse(request_id, error)
            return
        self._opening[consumer_id] = command

        def done(error: BrokerError | None) -> None:
            self._done(command, error)

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            if topic is None or not self.awaited(command):
                done(error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"))
                return
            self._broker.catalog.attach_consumer(self._session, topic, command, done)

        self._broker.catalog.open(name, create=command.force_topic_creation, then=opened)

    def _done(self, command: pb.CommandSubscribe, error: BrokerError | None) -> None:
        """An attempt is over, unless it was given up already; refuse it on an error."""
        if self.awaited(command):
            del self._opening[command.consumer_id]
            self._probed.discard(command.consumer_id)
            if error is not None:
                self._session.refuse(command.request_id, error)

    def _check_allowed(self, command: pb.CommandSubscribe) -> TopicName:
        """The topic, where the client may consume through that subscription."""
        name = topic_name(command.topic)
        self._session.check(Operation.CONSUME, name, subscription=command.subscription)
        return name

    @property
    def count(self) -> int:
        """Those that are open or being opened."""
        return len(self.open) + len(self._opening)

    def answers(self, command: pb.CommandSubscribe) -> bool:
        """Whether what there is answers a SUBSCRIBE: one of its id is open, or being opened."""
        return command.consumer_id in self.open or command.consumer_id in self._opening

    def awaited(self, command: pb.CommandSubscribe) -> bool:
        """Whether the client still wants the consumer that it asked for: it is there, and did not close it meanwhile.

        Clients close what they have waited for in vain, to be sure that nothing is left of it.
        """
        return not self._session.closed and self._opening.get(command.consumer_id) is command

    def first_probe(self, command: pb.CommandSubscribe) -> bool:
        """Whether it was not asked before, on behalf of this consumer, who lives."""
        asked = command.consumer_id in self._probed
        self._probed.add(command.consumer_id)
        return not asked

    def attached(self, consumer: Consumer, request_id: int, at: int) -> None:
        """The subscription took the consumer; the answer goes to place `at` among the effects."""
        self.open[consumer.consumer_id] = consumer
        self._broker.outbox.effects.insert(at, Send(self._session.number, (commands.success(request_id),)))

    def detached(self, consumer_id: int) -> None:
        """The subscription let the consumer go by itself (seek, deletion): its id is free again."""
        self.open.pop(consumer_id, None)

    def _consumer(self, consumer_id: int, request_id: int) -> Consumer | None:
        consumer = self.open.get(consumer_id)
        if consumer is None:
            self._session.refuse(
                request_id,
                BrokerError(ErrorCode.METADATA, f"consumer {consumer_id} is not open"),
            )
        return consumer

    def _flow(self, command: pb.CommandFlow) -> None:
        consumer = self.open.get(command.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, command.messagePermits)

    def _ack(self, command: pb.CommandAck) -> None:
        consumer = self.open.get(command.consumer_id)
        if consumer is None:
            return  # late, after a close: as Pulsar, ignored
        subscription = consumer.subscription
        code: ErrorCode | None = None
        text = ""
        try:
            subscription.ack(consumer, command.message_id, cumulative=command.ack_type == 1)
        except BrokerError as error:
            code, text = error.code, error.message  # the error itself would be a circle with this frame
        if not command.HasField("request_id"):
            return
        consumer_id, request_id = command.consumer_id, command.request_id
        if code is not None:
            self._session.send(commands.ack_response(consumer_id, request_id, code, text))
            return

        def durable(problem: str) -> None:
            failed = ErrorCode.METADATA if problem else None
            self._session.send(commands.ack_response(consumer_id, request_id, failed, problem))

        if subscription.durable:
            self._broker.loaded.when_cursor_durable(subscription, durable)
        else:
            durable("")

    def _redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self.open.get(command.consumer_id)
        if consumer is None:
            return
        positions = [Position(item.ledgerId, item.entryId) for item in command.message_ids]
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        consumer.subscription.redeliver(consumer, positions or None, epoch)

    def _unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(command.consumer_id, command.request_id)
        if consumer is None:
            return
        request_id = command.request_id

        def done(error: BrokerError | None) -> None:
            if error is None:
                self._session.send(commands.success(request_id))
            else:
                self._session.refuse(request_id, error)

        self._broker.catalog.unsubscribe(consumer, force=command.force, done=done)

    def _close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        consumer_id = command.consumer_id
        consumer, opening = self.open.pop(consumer_id, None), self._opening.pop(consumer_id, None)
        self._probed.discard(consumer_id)
        if opening is not None:
            self._session.refuse_closed(opening.request_id, f"consumer {consumer_id}")
        if consumer is not None:
            consumer.subscription.remove_consumer(consumer)
            self._broker.loaded.after_consumer_left(consumer.subscription)
        self._session.send(commands.success(command.request_id))

    def _seek(self, command: pb.CommandSeek) -> None:
        consumer = self._consumer(command.consumer_id, command.request_id)
        if consumer is None:
            return
        request_id = command.request_id

        def done(error: BrokerError | None) -> None:
            if error is None:
                self._session.send(commands.success(request_id))
            else:
                self._session.refuse(request_id, error)

        if command.HasField("message_id"):
            self._broker.catalog.seek(consumer.subscription, command.message_id, None, done)
        elif command.HasField("message_publish_time"):
            self._broker.catalog.seek(consumer.subscription, None, command.message_publish_time, done)
        else:
            done(BrokerError(ErrorCode.METADATA, "SEEK names neither a message id nor a time"))

    def _last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        consumer = self._consumer(command.consumer_id, command.request_id)
        if consumer is None:
            return
        topic = self._broker.topics[consumer.subscription.topic]
        last, batch_index = topic.withdrawals.last_message(*consumer.subscription.left_out())
        self._session.send(
            commands.last_message_id(
                command.request_id,
                last,
                batch_index=batch_index,
                partition=topic.name.partition,
                mark_delete=consumer.subscription.mark_delete,
            )
        )

    def _consumer_stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self.open.get(command.consumer_id)
        if consumer is None:
            self._session.send(
                commands.consumer_stats_failed(
                    command.request_id,
                    ErrorCode.CONSUMER_NOT_FOUND,
                    f"consumer {command.consumer_id} is not open",
                )
            )
            return
        self._session.send(commands.consumer_stats(command.request_id, consumer.subscription.consumer_stats(consumer)))
