"""The commands of one connection about non-persistent topics."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar.broker.client_bytes import Handles, Held, Opening
from magnetar.broker.nonpersistent.subscription import NonPersistentSubscription
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.publish.producers import AccessMode, Producer
from magnetar.broker.publish.publishing import refused_id, told_of
from magnetar.broker.publish.sequence_numbers import NOTHING
from magnetar.broker.publish.throttling import admitted
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import topic_name
from magnetar.broker.session.part import SessionPart
from magnetar.broker.statistics.subscription_stats import consumer_fields
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.subscription import policy_of
from magnetar.broker.topics.limits import check_type
from magnetar.broker.topics.topic import check_encrypted, check_encrypts, check_size
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid, ProtocolError
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note, Send
from magnetar.schemas.types import SchemaType
from magnetar.storage.entries import NewEntry
from magnetar.wire import commands, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session

Handler = Callable[[Any], None]

DOMAIN = "non-persistent://"


def _held(handle: tuple[Producer | Consumer, Any]) -> Held:
    return handle[0].held


class SessionNonPersistent(SessionPart):
    """Producers and consumers of non-persistent topics on one connection.

    Args:
        session: the connection.

    Attributes:
        producers, consumers: by the client's id, with where they are.
    """

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        sums, number = self._broker.client_bytes, session.number
        self.producers: Handles[tuple[Producer, NonPersistentTopic]] = Handles(sums, _held)
        self.consumers: Handles[tuple[Consumer, NonPersistentSubscription]] = Handles(sums, _held)
        # Attempts whose schema is on its way to the store. One that is no longer here was given up.
        self._opening_producers: Opening[pb.CommandProducer] = self._broker.opening(number, "producers of streams")
        self._opening_consumers: Opening[pb.CommandSubscribe] = self._broker.opening(number, "consumers of streams")
        self._closing: dict[int, list[int]] = {}
        """Producers that their clients closed while something of them waits for a rate, and the requests that wait for that."""

    def before(self, others: dict[int, Handler]) -> dict[int, Handler]:
        """Take from a session's handlers what concerns non-persistent topics; the rest goes where it went.

        Args:
            others: command type -> what answers it.
        """

        def producer(base: Any) -> None:
            command = base.producer
            mine = self._answers(command)
            if not mine and not self._session.producers.answers(command):
                mine = command.topic.startswith(DOMAIN)
            (self._producer if mine else others[5])(base)

        def subscribe(base: Any) -> None:
            command = base.subscribe
            mine = command.consumer_id in self.consumers or command.consumer_id in self._opening_consumers
            if not mine and not self._session.consumers.answers(command):
                mine = command.topic.startswith(DOMAIN)
            (self._subscribe if mine else others[4])(base)

        def by_consumer(name: str, mine: Handler, other: Handler) -> Handler:
            def handle(command: Any) -> None:
                (mine if getattr(command, name).consumer_id in self.consumers else other)(command)

            return handle

        def close_producer(command: Any) -> None:
            producer_id = command.close_producer.producer_id
            mine = producer_id in self.producers or producer_id in self._opening_producers
            (self._close_producer if mine else others[15])(command)

        def close_consumer(command: Any) -> None:
            consumer_id = command.close_consumer.consumer_id
            mine = consumer_id in self.consumers or consumer_id in self._opening_consumers
            (self._close_consumer if mine else others[16])(command)

        return others | {
            4: subscribe,
            5: producer,
            10: by_consumer("ack", self._ack, others[10]),
            11: by_consumer("flow", self._flow, others[11]),
            12: by_consumer("unsubscribe", self._unsubscribe, others[12]),
            15: close_producer,
            16: close_consumer,
            20: by_consumer("redeliverUnacknowledgedMessages", lambda _command: None, others[20]),
            25: by_consumer("consumerStats", self._consumer_stats, others[25]),
            28: by_consumer("seek", lambda c: self._stores_nothing(c.seek.request_id, "a seek"), others[28]),
            29: by_consumer(
                "getLastMessageId",
                lambda c: self._stores_nothing(c.getLastMessageId.request_id, "the last message id"),
                others[29],
            ),
        }

    def disconnected(self) -> None:
        """The socket is gone: so are its producers and consumers."""
        self._opening_producers.clear()
        self._opening_consumers.clear()
        for producer_id in list(self.producers):
            if producer_id in self.producers:  # one may have gone with another that it waited for
                self._drop_producer(producer_id)
        for consumer_id in list(self.consumers):
            self._drop_consumer(consumer_id)

    def permissions_changed(self) -> None:
        """Close what its client may no longer have."""
        access, identity = self._broker.access, self._session.identity
        for producer, topic in list(self.producers.values()):
            if not access.authorizer.allowed(identity, Operation.PRODUCE, topic.name):
                self.evict(producer)
        for consumer_id, (_, subscription) in list(self.consumers.items()):
            if not access.authorizer.allowed(identity, Operation.CONSUME, subscription.topic.name, subscription.name):
                self._drop_consumer(consumer_id)
                self._session.send(commands.close_consumer(consumer_id))
        for attempt in list(self._opening_producers.values()):
            try:
                self._session.check(Operation.PRODUCE, topic_name(attempt.topic))
            except BrokerError as error:
                del self._opening_producers[attempt.producer_id]
                self._session.refuse(attempt.request_id, error)
        for joining in list(self._opening_consumers.values()):
            try:
                self._session.check(Operation.CONSUME, topic_name(joining.topic), subscription=joining.subscription)
            except BrokerError as error:
                del self._opening_consumers[joining.consumer_id]
                self._session.refuse(joining.request_id, error)

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again: what comes meanwhile is dropped."""
        for consumer, _ in self.consumers.values():
            consumer.paused = not writable

    # ---------------------------------------------------------------------------------------------------- producers

    def _producer(self, base: pb.BaseCommand) -> None:
        command = base.producer
        existing = self.producers.get(command.producer_id)
        again = existing is not None and command.epoch <= existing[0].epoch
        if existing is not None and again and existing[0].answered:
            self._ready(existing[0], command.request_id)
            return
        if again or command.producer_id in self._opening_producers:
            self._refuse_opening(command.request_id, f"producer {command.producer_id}")
            return
        try:
            name = topic_name(command.topic)
            self._session.check(Operation.PRODUCE, name)
            mode = self._mode(command.producer_access_mode)
            if command.producer_name:
                names.check_producer(command.producer_name)
            self._session.check_room_for_producer(command.producer_id)
            self._broker.client_bytes.held(self._session.number, str(name), command)
            topic = self._broker.nonpersistent.open(name)
        except (BrokerError, NameNotValid) as error:
            self._refuse(command.request_id, error)
            return
        schema = command.schema if command.HasField("schema") else None
        self._opening_producers[command.producer_id] = command

        def checked(version: bytes, error: BrokerError | None) -> None:
            wanted = self._opening_producers.get(command.producer_id) is command
            if wanted:
                del self._opening_producers[command.producer_id]
            if not wanted or error is not None:
                self._broker.nonpersistent.left(topic)
                if wanted and error is not None:
                    self._session.refuse(command.request_id, error)
                return
            # Others may have come and gone meanwhile, and the topic with them.
            try:
                there = self._broker.nonpersistent.open(name)
            except BrokerError as refused:
                self._session.refuse(command.request_id, refused)
            else:
                self._attach(there, command, mode, version)

        self._broker.schemas.for_producer(topic, schema, checked)

    @staticmethod
    def _mode(value: int) -> AccessMode:
        try:
            return AccessMode(value)
        except ValueError as error:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"producer access mode {value} is not known") from error

    def _attach(
        self,
        topic: NonPersistentTopic,
        command: pb.CommandProducer,
        mode: AccessMode,
        version: bytes,
        *,
        probed: bool = False,
    ) -> None:
        producer = Producer(
            connection=self._session.number,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=command.producer_name or self._broker.producer_name(),
            mode=mode,
            epoch=command.epoch,
            user_named=bool(command.producer_name) and command.user_provided_producer_name,
            address=self._session.address,
            connected_ms=self._broker.outbox.now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
            schema_version=version,
            partial=self._session.partial_producers,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        )
        try:
            check_encrypts(command, self._broker.limits.of(topic.name), topic.text)
            producer.held = self._broker.client_bytes.held(self._session.number, topic.text, command)
            evicted = topic.producers.add(producer, probed=probed)
        except BrokerError as error:
            rival = topic.producers.rival(producer.name)
            if error.code is ErrorCode.PRODUCER_BUSY and rival is not None and not probed:
                self._opening_producers[command.producer_id] = command
                again = partial(self._attach, command=command, mode=mode, version=version, probed=True)
                self._probe(rival.connection, topic.name, self._opening_producers, command.producer_id, again)
                return
            self._broker.nonpersistent.left(topic)
            self._session.refuse(command.request_id, error)
            return
        self._session.producer_replaced(command.producer_id)
        for loser in evicted:
            self._broker.clients.close_producer(loser)
        self.producers[command.producer_id] = (producer, topic)
        self._ready(producer, producer.request_id)

    def _probe(
        self,
        holder: int,
        name: TopicName,
        opening: dict[int, Any],
        number: int,
        again: Callable[[NonPersistentTopic], None],
    ) -> None:
        """Try it again when it is known whether the client lives that has what this one wants.

        Args:
            holder: its connection.
            name: of the topic, which may end with it.
            opening: attempts of a kind; one that is no longer there was given up.
            number: which of them.
            again: does so.
        """
        command = opening[number]

        def known() -> None:
            if number not in opening or opening[number] is not command:
                return
            del opening[number]
            try:
                topic = self._broker.nonpersistent.open(name)
            except BrokerError as error:
                self._session.refuse(command.request_id, error)
            else:
                again(topic)

        self._broker.clients.probe(holder, self._session, known)

    def _ready(self, producer: Producer, request_id: int) -> None:
        producer.answered = producer.ready
        self._session.send(
            commands.producer_success(
                request_id,
                producer.name,
                last_sequence_id=NOTHING,
                schema_version=producer.schema_version,
                ready=producer.ready,
                topic_epoch=producer.topic_epoch if producer.exclusive and producer.ready else None,
            )
        )

    def producers_beside(self, producer_id: int) -> int:
        """How many others are open or being opened (`SessionProducers.beside`)."""
        return len(self.producers) - (producer_id in self.producers) + len(self._opening_producers)

    @property
    def consumer_count(self) -> int:
        """Those that are open or being opened."""
        return len(self.consumers) + len(self._opening_consumers)

    def _answers(self, command: pb.CommandProducer) -> bool:
        """Whether what there is answers a PRODUCER: one of its id is open, or being opened."""
        existing = self.producers.get(command.producer_id)
        return command.producer_id in self._opening_producers or (
            existing is not None and command.epoch <= existing[0].epoch
        )

    def replaced(self, producer_id: int) -> None:
        """Another of this id has its place, wherever (`SessionProducers.replaced`)."""
        found = self.producers.get(producer_id)
        if found is not None:
            self._drop_producer(producer_id)
            if not found[0].answered:
                self._session.refuse_closed(found[0].request_id, f"producer {producer_id}")

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""
        found = self.producers.get(producer.producer_id)
        if found is not None and found[0] is producer:
            self._ready(producer, producer.request_id)

    def publish(self, producer_id: int, frames: list[Frame]) -> None:
        """A run of SENDs for one producer."""
        producer, topic = self.producers[producer_id]
        if producer_id in self._closing:
            return
        if now := admitted(topic, producer, self, frames):
            self._publish(producer, topic, now)

    def publish_now(self, producer: Producer, frames: list[Frame]) -> None:
        """Publish what waited for a rate. Nobody is above to end the connection if it breaks the protocol."""
        try:
            self._publish(producer, self.producers[producer.producer_id][1], frames)
        except ProtocolError as error:
            self._broker.broke_protocol(self._session.number, error)

    def throttled(self, size: int) -> None:
        """So many bytes more (or fewer) wait for a publish rate, of whatever topics of this connection."""
        self._session.producers.throttled(size)

    def _publish(self, producer: Producer, topic: NonPersistentTopic, frames: list[Frame]) -> None:
        producer_id = producer.producer_id
        limits = self._broker.limits.of(topic.name)
        entries: list[NewEntry] = []
        receipts: list[tuple[int, int]] = []
        for frame in frames:
            send = frame.command.send
            try:
                if not producer.ready:
                    raise BrokerError(ErrorCode.PRODUCER_FENCED, "the producer still waits for exclusive access")
                seen = metadata.inspect(frame.payload, message_bytes_max=self._broker.config.message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker)
                check_size(seen, len(frame.payload), limits, topic.text)
                check_encrypted(seen, limits, topic.text)
            except BrokerError as error:
                text = f"refused a message of {self._session.address} on {topic.text}: {error.message}"
                self._broker.outbox.put(Note("warning", text))
                if entries:
                    # Their receipts first: clients look for the error at the oldest message that they have pending.
                    topic.publish(producer, entries, receipts)
                    entries, receipts = [], []
                told = told_of(error, self._session.client_version)
                self._session.send(commands.send_error(producer_id, refused_id(send), told.code, told.message))
                continue
            entries.append(NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time))
            receipts.append((send.sequence_id, send.highest_sequence_id))
        if entries:
            topic.publish(producer, entries, receipts)

    def evict(self, producer: Producer) -> None:
        """The broker closes a producer: the client looks the topic up again. One that was never open only has its answer."""
        found = self.producers.get(producer.producer_id)
        if found is not None and found[0] is producer:
            closing = producer.producer_id in self._closing
            self._drop_producer(producer.producer_id)
            if closing:
                return  # its client has the answer that it waited for
            if producer.answered:
                self._session.send(commands.close_producer(producer.producer_id))
            else:
                self._session.refuse(producer.request_id, producer.gone())

    def _drop_producer(self, producer_id: int) -> None:
        producer, topic = self.producers[producer_id]
        del self.producers[producer_id]
        if topic.publish_throttle is not None:
            topic.publish_throttle.forget(producer)
        self._session.producers.closed(producer_id)
        self._broker.follow_up(topic.producers.remove(producer))
        self._broker.nonpersistent.left(topic)
        for request_id in self._closing.pop(producer_id, ()):
            self._session.send(commands.success(request_id))

    def _closed_behind(self, producer: Producer) -> None:
        """All that waited of a producer is published; the last of it may have ended the connection."""
        found = self.producers.get(producer.producer_id)
        if found is not None and found[0] is producer:
            self._drop_producer(producer.producer_id)

    def _close_producer(self, base: pb.BaseCommand) -> None:
        producer_id = base.close_producer.producer_id
        attempt, found = self._opening_producers.pop(producer_id, None), self.producers.get(producer_id)
        if attempt is not None:
            self._session.refuse_closed(attempt.request_id, f"producer {producer_id}")
        if found is not None:
            producer, throttle = found[0], found[1].publish_throttle
            if throttle is not None and throttle.waits(producer):
                requests = self._closing.setdefault(producer_id, [])
                requests.append(base.close_producer.request_id)
                if len(requests) == 1:
                    throttle.when_published(producer, partial(self._closed_behind, producer))
                return
            self._drop_producer(producer_id)
            if not producer.answered:
                self._session.refuse_closed(producer.request_id, f"producer {producer_id}")
        self._session.send(commands.success(base.close_producer.request_id))

    # ---------------------------------------------------------------------------------------------------- consumers

    def _subscribe(self, base: pb.BaseCommand) -> None:
        command = base.subscribe
        if command.consumer_id in self.consumers:
            self._session.send(commands.success(command.request_id))
            return
        if command.consumer_id in self._opening_consumers:
            self._refuse_opening(command.request_id, f"consumer {command.consumer_id}")
            return
        try:
            name = topic_name(command.topic)
            self._session.check(Operation.CONSUME, name, subscription=command.subscription)
            try:
                names.check_subscription(command.subscription)
            except NameNotValid as error:
                raise BrokerError(ErrorCode.PRODUCER_BUSY, str(error)) from error
            if command.subType not in set(SubType):
                raise BrokerError(ErrorCode.NOT_ALLOWED, f"subscription type {command.subType} is not known")
            if command.read_compacted:
                raise BrokerError(
                    ErrorCode.NOT_ALLOWED, "reading compacted needs stored messages; a non-persistent topic stores none"
                )
            self._session.check_room_for_consumer()
            self._broker.client_bytes.held(self._session.number, str(name), command)
            topic = self._broker.nonpersistent.open(name, create=command.force_topic_creation)
        except (BrokerError, NameNotValid) as error:
            self._refuse(command.request_id, error)
            return
        self._opening_consumers[command.consumer_id] = command

        def checked(_version: bytes, error: BrokerError | None) -> None:
            wanted = self._opening_consumers.get(command.consumer_id) is command
            if wanted:
                del self._opening_consumers[command.consumer_id]
            if not wanted or error is not None:
                self._broker.nonpersistent.left(topic)
                if wanted and error is not None:
                    self._session.refuse(command.request_id, error)
                return
            try:
                there = self._broker.nonpersistent.open(name, create=command.force_topic_creation)
            except BrokerError as refused:
                self._session.refuse(command.request_id, refused)
            else:
                self._join(there, command)

        self._broker.schemas.for_consumer(topic, command, checked)

    def _join(self, topic: NonPersistentTopic, command: pb.CommandSubscribe, *, probed: bool = False) -> None:
        consumer = Consumer(
            connection=self._session.number,
            consumer_id=command.consumer_id,
            name=command.consumer_name or self._broker.consumer_name(),
            sub_type=SubType(command.subType),
            priority=command.priority_level,
            epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
            protocol_version=self._session.handshake.protocol_version,
            auto_schema=command.HasField("schema") and command.schema.type == SchemaType.AUTO_CONSUME,
            address=self._session.address,
            connected_ms=self._broker.outbox.now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
            paused=not self._session.writable,
        )
        subscription = topic.subscriptions.get(command.subscription)
        if subscription is None:
            subscription = NonPersistentSubscription(
                self._broker.outbox, topic, command.subscription, topic.name.partition
            )
        at = len(self._broker.outbox.effects)
        policy = policy_of(command.keySharedMeta if command.HasField("keySharedMeta") else None)
        try:
            limits = self._broker.limits.of(topic.name)
            check_type(consumer.sub_type, limits, topic.text)
            if topic.consumer_count() >= limits.consumers:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"topic {topic.text} has {topic.consumer_count()} consumers, the most allowed "
                    f"({limits.sources['max-consumers']})",
                )
            present = len(subscription.consumers)
            if consumer.sub_type is not SubType.EXCLUSIVE and present >= limits.consumers_per_subscription:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"subscription {subscription.name} of {topic.text} has {present} consumers, the most allowed "
                    f"({limits.sources['max-consumers-per-subscription']})",
                )
            consumer.held = self._broker.client_bytes.held(self._session.number, topic.text, command)
            subscription.add(consumer, policy)
        except BrokerError as error:
            busy = error.code in (ErrorCode.CONSUMER_BUSY, ErrorCode.CONSUMER_ASSIGN)
            holder = subscription.in_the_way(consumer, policy) if busy else None
            if holder is not None and not probed:
                self._opening_consumers[command.consumer_id] = command
                again = partial(self._join, command=command, probed=True)
                self._probe(holder.connection, topic.name, self._opening_consumers, command.consumer_id, again)
                return
            self._broker.nonpersistent.left(topic)
            self._session.refuse(command.request_id, error)
            return
        topic.subscriptions[command.subscription] = subscription
        self.consumers[command.consumer_id] = (consumer, subscription)
        # SUCCESS goes out before whatever taking the consumer caused (ACTIVE_CONSUMER_CHANGE).
        answer = Send(self._session.number, (commands.success(command.request_id),))
        self._broker.outbox.effects.insert(at, answer)

    def evict_consumer(self, consumer: Consumer) -> None:
        """The broker closes a consumer: the client looks the topic up again."""
        self._drop_consumer(consumer.consumer_id)
        self._session.send(commands.close_consumer(consumer.consumer_id))

    def _drop_consumer(self, consumer_id: int) -> None:
        consumer, subscription = self.consumers[consumer_id]
        del self.consumers[consumer_id]
        subscription.remove(consumer)
        topic = subscription.topic
        if not subscription.consumers and topic.subscriptions.get(subscription.name) is subscription:
            topic.drop_subscription(subscription.name)
            key = (topic.text, subscription.name)
            self._broker.series.subscriptions.gone(key, subscription.counters()[:2])
        self._broker.nonpersistent.left(topic)

    def _flow(self, base: pb.BaseCommand) -> None:
        self.consumers[base.flow.consumer_id][0].grant(base.flow.messagePermits, self._broker.outbox.now_ms)

    def _ack(self, base: pb.BaseCommand) -> None:
        command = base.ack
        consumer, subscription = self.consumers[command.consumer_id]
        subscription.ack(consumer, command.message_id, cumulative=command.ack_type == 1)
        if command.HasField("request_id"):
            self._session.send(commands.ack_response(command.consumer_id, command.request_id, None, ""))

    def _unsubscribe(self, base: pb.BaseCommand) -> None:
        command = base.unsubscribe
        _, subscription = self.consumers[command.consumer_id]
        if len(subscription.consumers) > 1 and not command.force:
            text = f"subscription {subscription.name} has other consumers"
            self._session.refuse(command.request_id, BrokerError(ErrorCode.METADATA, text))
            return
        self._drop_consumer(command.consumer_id)
        self._broker.nonpersistent.evict(subscription.consumers)
        self._session.send(commands.success(command.request_id))

    def _close_consumer(self, base: pb.BaseCommand) -> None:
        consumer_id = base.close_consumer.consumer_id
        attempt = self._opening_consumers.pop(consumer_id, None)
        if attempt is not None:
            self._session.refuse_closed(attempt.request_id, f"consumer {consumer_id}")
        if consumer_id in self.consumers:
            self._drop_consumer(consumer_id)
        self._session.send(commands.success(base.close_consumer.request_id))

    def _consumer_stats(self, base: pb.BaseCommand) -> None:
        command = base.consumerStats
        consumer, _ = self.consumers[command.consumer_id]
        stats = consumer_fields(consumer, backlog=0)
        self._session.send(commands.consumer_stats(command.request_id, stats))

    # ------------------------------------------------------------------------------------------------------ refusals

    def _stores_nothing(self, request_id: int, what: str) -> None:
        error = BrokerError(ErrorCode.NOT_ALLOWED, f"{what} needs stored messages; a non-persistent topic stores none")
        self._session.refuse(request_id, error)

    def _refuse_opening(self, request_id: int, what: str) -> None:
        self._session.refuse(request_id, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{what} is already being opened"))

    def _refuse(self, request_id: int, error: BrokerError | NameNotValid) -> None:
        if not isinstance(error, BrokerError):
            error = BrokerError(ErrorCode.PRODUCER_BUSY, str(error))
        self._session.refuse(request_id, error)
