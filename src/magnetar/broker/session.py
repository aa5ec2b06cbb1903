"""One client connection: its commands in, calls on topics out.

What a connection may do in which state is `wire.connection`'s matter; this file says what each command means. Every
command with a request id gets exactly one answer, however long that takes (a topic may have to be created first): the
answer travels as an effect from whichever event completes it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.consumer import Consumer
from magnetar.broker.deduplicating import Status
from magnetar.broker.deduplication import NOTHING
from magnetar.broker.effects import Close, FrameLimit, Hold, Send
from magnetar.broker.geo_session import GEO_COMMANDS, GeoSession
from magnetar.broker.producers import AccessMode, Producer
from magnetar.broker.publishing import Publishing
from magnetar.broker.schemas import schema_message
from magnetar.broker.topic import Topic
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.schemas.versions import encode_version
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import ServerHandshake, request_id_of
from magnetar.wire.frames import Frame

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

PROBE_MS: Final = 3000
"""How long the holder of a producer name has to show that it lives before a newcomer gets the name. Longer than a round
trip across the world and a garbage collection; shorter than a client's operation timeout (30 s)."""

RECENTLY_CLOSED_MAX: Final = 64
"""Ids of closed producers whose late SENDs are ignored instead of ending the connection."""

_SEND: Final = 6


class Session:
    """What the broker knows of one connection.

    Args:
        broker: the broker.
        number: the connection.
        address: of the peer, for logs and statistics.
    """

    def __init__(self, broker: "Broker", number: int, address: str) -> None:
        self.broker = broker
        self.outbox = broker.outbox
        self.number = number
        self.address = address
        self.client_version = ""
        self.handshake = ServerHandshake(broker.link_token)
        self.producers: dict[int, Producer] = {}
        self.producer_topics: dict[int, Topic] = {}
        self.consumers: dict[int, Consumer] = {}
        self.geo: GeoSession | None = None
        self.closed = False
        self.heard = 0
        self.writable = True
        self.pending_bytes = 0
        self.held = False
        self._opening_producers: set[int] = set()
        self._opening_consumers: set[int] = set()
        self._recently_closed: list[int] = []
        self._handlers: dict[int, Callable[[Any], None]] = {
            4: lambda c: self._subscribe(c.subscribe),
            5: lambda c: self._producer(c.producer),
            10: lambda c: self._ack(c.ack),
            11: lambda c: self._flow(c.flow),
            12: lambda c: self._unsubscribe(c.unsubscribe),
            15: lambda c: self._close_producer(c.close_producer),
            16: lambda c: self._close_consumer(c.close_consumer),
            18: lambda c: self.send(commands.pong()),
            19: lambda c: None,
            20: lambda c: self._redeliver(c.redeliverUnacknowledgedMessages),
            21: lambda c: self._partitions(c.partitionMetadata),
            23: lambda c: self._lookup(c.lookupTopic),
            25: lambda c: self._consumer_stats(c.consumerStats),
            28: lambda c: self._seek(c.seek),
            29: lambda c: self._last_message_id(c.getLastMessageId),
            32: lambda c: self._topics_of_namespace(c.getTopicsOfNamespace),
            34: lambda c: self._get_schema(c.getSchema),
            39: lambda c: self._get_or_create_schema(c.getOrCreateSchema),
        }

    # ------------------------------------------------------------------------------------------------------ incoming

    def send(self, *buffers: bytes) -> None:
        """Answer."""
        if not self.closed:
            self.outbox.put(Send(self.number, buffers))

    def close(self, reason: str) -> None:
        """End the connection; what it owns goes when the socket does."""
        self.outbox.put(Close(self.number, reason))

    def frames(self, frames: list[Frame]) -> None:
        """Handle what came, in order.

        Raises:
            ProtocolError: the peer broke the protocol; the caller closes the connection.
        """
        self.heard += len(frames)
        at = 0
        total = len(frames)
        while at < total and not self.closed:
            frame = frames[at]
            kind = frame.command.type
            if kind == _SEND and self.handshake.connected:
                run = at + 1
                producer_id = frame.command.send.producer_id
                while (
                    run < total
                    and frames[run].command.type == _SEND
                    and (frames[run].command.send.producer_id == producer_id)
                ):
                    run += 1
                self._publish(producer_id, frames[at:run])
                at = run
                continue
            at += 1
            if not self.handshake.connected:
                self._connect(frame)
                continue
            try:
                self.handshake.check(frame.command)
            except BrokerError as error:
                self._refuse(request_id_of(frame.command), error)
                continue
            if self.geo is not None and kind in GEO_COMMANDS:
                self.geo.handle(frame)
                continue
            handler = self._handlers.get(kind)
            if handler is None:
                raise ProtocolError(f"command type {kind} is not served by this broker")
            handler(frame.command)

    @property
    def remembers_migration(self) -> bool:
        """Whether the client can be sent TOPIC_MIGRATED, so that it remembers the other cluster's address.

        Clients over the C++ client 4.2 and older end their process when they log at debug level that it came, and the
        Python client does so with every logger of Python's. They are moved by CLOSE_CONSUMER alone unless the operator
        says otherwise (`topic_migrated_to_cpp`).
        """
        cpp = self.client_version.startswith("Pulsar-CPP")
        return self.broker.config.topic_migrated_to_cpp or not cpp

    def _connect(self, frame: Frame) -> None:
        self.client_version = frame.command.connect.client_version
        try:
            accepted = self.handshake.connect(frame.command)
        except BrokerError as error:
            self.send(commands.error(2**64 - 1, error.code, error.message))
            self.close(error.message)
            self.closed = True
            return
        hello = None
        if accepted.link:
            hello = pb.GeoHello(version=1, cluster=self.broker.cluster, uuid=self.broker.uuid)
            self.geo = GeoSession(self)
            self.outbox.put(FrameLimit(self.number, self.broker.link_frame_bytes_max))
        self.send(commands.connected(accepted.protocol_version, self.broker.config.message_bytes_max, hello))

    def disconnected(self) -> None:
        """The socket is gone: so are its producers and consumers."""
        self.closed = True
        if self.geo is not None:
            self.geo.disconnected()
        for producer_id in list(self.producers):
            self._drop_producer(producer_id)
        for consumer in list(self.consumers.values()):
            consumer.subscription.remove_consumer(consumer)
            self.broker.after_consumer_left(consumer.subscription)
        self.consumers.clear()

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again."""
        self.writable = writable
        for subscription in {consumer.subscription for consumer in self.consumers.values()}:
            if writable:
                subscription.resume(self.number)
            else:
                subscription.pause(self.number)

    def _refuse(self, request_id: int, error: BrokerError) -> None:
        self.send(commands.error(request_id, error.code, error.message))

    def _topic_name(self, text: str) -> TopicName:
        try:
            return TopicName.parse(text)
        except NameNotValid as error:
            raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error

    # ----------------------------------------------------------------------------------------------------- discovery

    def _partitions(self, command: pb.CommandPartitionedTopicMetadata) -> None:
        try:
            name = self._topic_name(command.topic)
            count = self.broker.catalog.partitions_for_client(name, command.metadata_auto_creation_enabled)
        except BrokerError as error:
            self.send(commands.partitions_failed(command.request_id, error.code, error.message))
            return
        self.send(commands.partitions_response(command.request_id, count))

    def _lookup(self, command: pb.CommandLookupTopic) -> None:
        try:
            self.broker.catalog.check_namespace(self._topic_name(command.topic))
        except BrokerError as error:
            self.send(commands.lookup_failed(command.request_id, error.code, error.message))
            return
        self.send(commands.lookup_response(command.request_id, self.broker.service_url))

    def _topics_of_namespace(self, command: pb.CommandGetTopicsOfNamespace) -> None:
        try:
            namespace = names.NamespaceName.parse(command.namespace)
        except NameNotValid as error:
            self._refuse(
                command.request_id,
                BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)),
            )
            return
        # Mode: 0 persistent, 1 non-persistent (of which there are none), 2 all.
        found = [] if command.mode == 1 else self.broker.catalog.topics_of(namespace)
        self.send(commands.topics_of_namespace(command.request_id, found))

    def _get_schema(self, command: pb.CommandGetSchema) -> None:
        request_id = command.request_id
        try:
            asked = command.schema_version if command.HasField("schema_version") else None
            version, record = self.broker.schemas.get(self._topic_name(command.topic), asked)
        except BrokerError as error:
            self.send(commands.get_schema_failed(request_id, error.code, error.message))
            return
        self.send(commands.get_schema(request_id, schema_message(record), encode_version(version)))

    def _get_or_create_schema(self, command: pb.CommandGetOrCreateSchema) -> None:
        request_id = command.request_id

        def answer(version: bytes, error: BrokerError | None) -> None:
            if error is None:
                self.send(commands.get_or_create_schema(request_id, version))
            else:
                self.send(commands.get_or_create_schema_failed(request_id, error.code, error.message))

        try:
            topic = self.broker.topics.get(str(self._topic_name(command.topic)))
            if topic is None:
                raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {command.topic} does not exist")
            topic.check_writable()
        except BrokerError as error:
            answer(b"", error)
            return
        self.broker.schemas.get_or_create(topic, command.schema, answer)

    # ----------------------------------------------------------------------------------------------------- producers

    def _producer(self, command: pb.CommandProducer) -> None:
        producer_id, request_id = command.producer_id, command.request_id
        existing = self.producers.get(producer_id)
        if existing is not None and command.epoch <= existing.epoch:
            self._producer_ready(existing)
            return
        if producer_id in self._opening_producers:
            self._refuse(
                request_id,
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"producer {producer_id} is already being opened",
                ),
            )
            return
        try:
            name = self._topic_name(command.topic)
            mode = self._access_mode(command.producer_access_mode)
            if command.producer_name:
                names.check_producer(command.producer_name)
            if len(self.producers) >= self.broker.config.handles_per_connection_max:
                raise BrokerError(
                    ErrorCode.PRODUCER_BUSY,
                    f"{len(self.producers)} producers are the most on one connection",
                )
        except (BrokerError, NameNotValid) as error:
            self._refuse(request_id, _as_broker_error(error))
            return
        self._opening_producers.add(producer_id)

        def checked(topic: Topic | None, version: bytes, error: BrokerError | None) -> None:
            self._opening_producers.discard(producer_id)
            if self.closed:
                return
            if topic is None or error is not None:
                self._refuse(
                    request_id,
                    error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"),
                )
                return
            self._attach_producer(topic, command, mode, version, probed=False)

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            if topic is None or self.closed:
                checked(None, b"", error)
                return
            try:
                topic.check_writable()
            except BrokerError as refused:
                checked(topic, b"", refused)
                return
            schema = command.schema if command.HasField("schema") else None
            self.broker.schemas.for_producer(topic, schema, lambda version, error: checked(topic, version, error))

        self.broker.catalog.open(name, create=True, then=opened)

    @staticmethod
    def _access_mode(value: int) -> AccessMode:
        try:
            return AccessMode(value)
        except ValueError as error:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"producer access mode {value} is not known") from error

    def _attach_producer(
        self,
        topic: Topic,
        command: pb.CommandProducer,
        mode: AccessMode,
        version: bytes,
        *,
        probed: bool,
    ) -> None:
        producer = Producer(
            connection=self.number,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=command.producer_name or self.broker.producer_name(),
            mode=mode,
            epoch=command.epoch,
            user_named=bool(command.producer_name) and command.user_provided_producer_name,
            address=self.address,
            connected_ms=self.outbox.now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
            schema_version=version,
        )
        deduplication = topic.deduplication
        if deduplication is not None and deduplication.status is Status.RECOVERING:
            # What was published before decides what is new: nobody publishes until that is known again.
            deduplication.when_ready(lambda: self._attach_recovered(topic, command, mode, version, probed=probed))
            return
        idempotency = topic.idempotency
        if idempotency is not None and idempotency.status is Status.RECOVERING:
            idempotency.when_ready(lambda: self._attach_recovered(topic, command, mode, version, probed=probed))
            return
        try:
            topic.check_writable()
            if deduplication is not None:
                deduplication.check()
            if idempotency is not None:
                idempotency.check()
            if topic.quota_stop is not None:
                raise BrokerError(topic.quota_stop, f"the backlog of {topic.text} is over its namespace's quota")
            evicted = topic.producers.add(producer)
        except BrokerError as error:
            rival = topic.producers.rival(producer.name)
            if error.code is ErrorCode.PRODUCER_BUSY and rival is not None and not probed:
                self._probe(
                    rival,
                    lambda: self._attach_producer(topic, command, mode, version, probed=True),
                )
                return
            self._refuse(command.request_id, error)
            return
        for loser in evicted:
            self.broker.close_producer(loser)
        if deduplication is not None:
            producer.numbers = deduplication.numbers.attach(producer.name, self.outbox.now_ms)
        self.producers[command.producer_id] = producer
        self.producer_topics[command.producer_id] = topic
        initial = command.initial_subscription_name
        if initial and initial not in topic.subscriptions:
            self.broker.catalog.create_subscription(
                topic,
                initial,
                Position(*NONE),
                lambda _error: self._producer_ready(producer),
            )
            return
        self._producer_ready(producer)

    def _attach_recovered(
        self, topic: Topic, command: pb.CommandProducer, mode: AccessMode, version: bytes, *, probed: bool
    ) -> None:
        if not self.closed and command.producer_id not in self.producers:
            self._attach_producer(topic, command, mode, version, probed=probed)

    def _probe(self, rival: Producer, then: Callable[[], None]) -> None:
        """Find out whether the holder of a name lives; if it does not answer a ping it loses the name."""
        holder = self.broker.sessions.get(rival.connection)
        if holder is None or holder is self:
            then()
            return
        heard = holder.heard  # counted, not timed: an answer within the same millisecond is one too
        holder.send(commands.ping())

        def judge(_now_ms: int) -> None:
            if holder.heard == heard and not holder.closed and not holder.held:
                holder.close("did not answer a ping while another client wants its producer's name")
                self.broker.disconnected(holder.number)
            if not self.closed:
                then()

        self.broker.timer(self.outbox.now_ms + PROBE_MS, judge)

    def _producer_ready(self, producer: Producer) -> None:
        topic = self.producer_topics.get(producer.producer_id)
        if producer.closed or self.closed or topic is None:
            return
        self.send(
            commands.producer_success(
                producer.request_id,
                producer.name,
                last_sequence_id=producer.numbers.persisted if producer.numbers is not None else NOTHING,
                schema_version=producer.schema_version,
                ready=producer.ready,
                topic_epoch=topic.producers.topic_epoch if producer.exclusive and producer.ready else None,
            )
        )

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""
        self._producer_ready(producer)

    def _publish(self, producer_id: int, frames: list[Frame]) -> None:
        producer = self.producers.get(producer_id)
        if producer is None:
            if producer_id in self._recently_closed:
                return
            raise ProtocolError(f"SEND for producer {producer_id}, which is not open on this connection")
        if not producer.ready:
            raise ProtocolError(f"SEND for producer {producer_id}, which still waits for exclusive access")
        publishing = Publishing(self, producer, self.producer_topics[producer_id], link=self.geo is not None)
        publishing.take(frames, self.broker.config.message_bytes_max)

    def hold(self, hold: bool) -> None:
        """Stop or go on reading from the socket: its bytes stay with the sender."""
        self.held = hold
        self.outbox.put(Hold(self.number, hold))

    def _drop_producer(self, producer_id: int) -> None:
        producer = self.producers.pop(producer_id, None)
        topic = self.producer_topics.pop(producer_id, None)
        if producer is None or topic is None:
            return
        self._recently_closed.append(producer_id)
        del self._recently_closed[:-RECENTLY_CLOSED_MAX]
        if topic.deduplication is not None and producer.numbers is not None:
            topic.deduplication.numbers.detach(producer.name, self.outbox.now_ms)
        successor = topic.producers.remove(producer)
        if successor is not None:
            self.broker.producer_succeeds(successor)

    def _close_producer(self, command: pb.CommandCloseProducer) -> None:
        self._drop_producer(command.producer_id)
        self.send(commands.success(command.request_id))

    def evict_producer(self, producer: Producer) -> None:
        """The broker closes a producer: the client looks the topic up again."""
        if self.producers.get(producer.producer_id) is producer:
            self._drop_producer(producer.producer_id)
            self.send(commands.close_producer(producer.producer_id))

    # ----------------------------------------------------------------------------------------------------- consumers

    def _subscribe(self, command: pb.CommandSubscribe) -> None:
        consumer_id, request_id = command.consumer_id, command.request_id
        if consumer_id in self.consumers:
            self.send(commands.success(request_id))
            return
        if consumer_id in self._opening_consumers:
            self._refuse(
                request_id,
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"consumer {consumer_id} is already being opened",
                ),
            )
            return
        try:
            name = self._topic_name(command.topic)
            try:
                names.check_subscription(command.subscription)
            except NameNotValid as error:
                # Pulsar answers a reserved or malformed subscription name with its naming error, which is this code.
                raise BrokerError(ErrorCode.PRODUCER_BUSY, str(error)) from error
            if len(self.consumers) >= self.broker.config.handles_per_connection_max:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"{len(self.consumers)} consumers are the most on one connection",
                )
        except BrokerError as error:
            self._refuse(request_id, error)
            return
        self._opening_consumers.add(consumer_id)

        def done(error: BrokerError | None) -> None:
            self._opening_consumers.discard(consumer_id)
            if self.closed:
                return
            if error is not None:
                self._refuse(request_id, error)

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            if topic is None or self.closed:
                done(error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"))
                return
            self.broker.catalog.attach_consumer(self, topic, command, done)

        self.broker.catalog.open(name, create=command.force_topic_creation, then=opened)

    def consumer_attached(self, consumer: Consumer, request_id: int, at: int) -> None:
        """The subscription took the consumer; the answer goes to place `at` among the effects."""
        self.consumers[consumer.consumer_id] = consumer
        self.outbox.effects.insert(at, Send(self.number, (commands.success(request_id),)))

    def consumer_detached(self, consumer_id: int) -> None:
        """The subscription let the consumer go by itself (seek, deletion): its id is free again."""
        self.consumers.pop(consumer_id, None)

    def _consumer(self, consumer_id: int, request_id: int) -> Consumer | None:
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            self._refuse(
                request_id,
                BrokerError(ErrorCode.METADATA, f"consumer {consumer_id} is not open"),
            )
        return consumer

    def _flow(self, command: pb.CommandFlow) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.subscription.flow(consumer, command.messagePermits)

    def _ack(self, command: pb.CommandAck) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            return  # late, after a close: as Pulsar, ignored
        subscription = consumer.subscription
        error: BrokerError | None = None
        try:
            subscription.ack(consumer, command.message_id, cumulative=command.ack_type == 1)
        except BrokerError as refused:
            error = refused
        if not command.HasField("request_id"):
            return
        consumer_id, request_id = command.consumer_id, command.request_id
        if error is not None:
            self.send(commands.ack_response(consumer_id, request_id, error.code, error.message))
            return

        def durable(problem: str) -> None:
            code = ErrorCode.METADATA if problem else None
            self.send(commands.ack_response(consumer_id, request_id, code, problem))

        if subscription.durable:
            self.broker.when_cursor_durable(subscription, durable)
        else:
            durable("")

    def _redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self.consumers.get(command.consumer_id)
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
                self.send(commands.success(request_id))
            else:
                self._refuse(request_id, error)

        self.broker.catalog.unsubscribe(consumer, force=command.force, done=done)

    def _close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        consumer = self.consumers.pop(command.consumer_id, None)
        if consumer is not None:
            consumer.subscription.remove_consumer(consumer)
            self.broker.after_consumer_left(consumer.subscription)
        self.send(commands.success(command.request_id))

    def _seek(self, command: pb.CommandSeek) -> None:
        consumer = self._consumer(command.consumer_id, command.request_id)
        if consumer is None:
            return
        request_id = command.request_id

        def done(error: BrokerError | None) -> None:
            if error is None:
                self.send(commands.success(request_id))
            else:
                self._refuse(request_id, error)

        if command.HasField("message_id"):
            self.broker.catalog.seek(consumer.subscription, command.message_id, None, done)
        elif command.HasField("message_publish_time"):
            self.broker.catalog.seek(consumer.subscription, None, command.message_publish_time, done)
        else:
            done(BrokerError(ErrorCode.METADATA, "SEEK names neither a message id nor a time"))

    def _last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        consumer = self._consumer(command.consumer_id, command.request_id)
        if consumer is None:
            return
        topic = self.broker.topics[consumer.subscription.topic]
        last = topic.last_message_position()
        batch_index = topic.log.batch_last_index(last) if last != NONE else -1
        self.send(
            commands.last_message_id(
                command.request_id,
                last,
                batch_index=batch_index,
                partition=topic.name.partition,
                mark_delete=consumer.subscription.mark_delete,
            )
        )

    def _consumer_stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            self.send(
                commands.consumer_stats_failed(
                    command.request_id,
                    ErrorCode.CONSUMER_NOT_FOUND,
                    f"consumer {command.consumer_id} is not open",
                )
            )
            return
        self.send(commands.consumer_stats(command.request_id, consumer.subscription.consumer_stats(consumer)))


def _as_broker_error(error: BrokerError | NameNotValid) -> BrokerError:
    return error if isinstance(error, BrokerError) else BrokerError(ErrorCode.PRODUCER_BUSY, str(error))
