"""The commands of one connection about producers: opening them, publishing, closing them.

    PRODUCER -> topic opened -> schema checked -> (name probed) -> admitted by the topic -> answered

An attempt that its client gave up in the meantime is no longer in `_opening` and gets no access. `PublishPort`
implements the differences between persistent and non-persistent topics.
"""

from functools import partial
from typing import NamedTuple

from magnetar.broker.client_bytes import Handles, Opening
from magnetar.broker.connection import Connection
from magnetar.broker.publish.opening import InOrder
from magnetar.broker.publish.producers import AccessMode, Producer
from magnetar.broker.publish.sequence_numbers import NOTHING
from magnetar.broker.publish.throttling import THROTTLED_BYTES_MAX, admitted
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import topic_name
from magnetar.broker.session.ports import PublishPort
from magnetar.broker.session.services import SessionServices
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid, ProtocolError
from magnetar.core.names import TopicName
from magnetar.storage.entries import Append
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame


class OpenProducer(NamedTuple):
    """An open producer and its topic."""

    producer: Producer
    port: PublishPort


class SessionProducers:
    """The producers of one connection.

    Args:
        connection: the connection.
        services: the services of sessions.

    Attributes:
        open: by the client's id.
        in_order: SENDs that wait until a batch is opened outside the event loop.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self.connection = connection
        self.open: Handles[OpenProducer] = Handles(services.client_bytes, lambda opened: opened.producer.held)
        self.in_order = InOrder(services.openings, connection.number)
        self._services = services
        self._clients = services.clients
        self._broker = services.broker
        self._opening: Opening[pb.CommandProducer] = services.broker.opening(connection.number, "producers")
        """Attempts that have no access to their topic yet. One that is no longer here was given up and gets none."""
        self._closing: dict[Producer, list[int]] = {}
        """Producers that their clients closed while receipts were on their way, and the requests that wait for these."""
        self._recently_closed: dict[int, None] = {}
        """Ids of closed producers whose late SENDs are ignored instead of ending the connection."""
        self._throttled_bytes = 0

    def disconnected(self) -> None:
        """The socket is gone: so are its producers."""
        self._opening.clear()
        for producer_id in list(self.open):
            self.drop(producer_id)

    # ------------------------------------------------------------------------------------------------------- opening

    def produce(self, command: pb.CommandProducer) -> None:
        """PRODUCER."""
        producer_id, request_id = command.producer_id, command.request_id
        found = self.open.get(producer_id)
        existing = found.producer if found is not None else None
        opening = producer_id in self._opening
        if existing is not None and command.epoch <= existing.epoch:
            if existing.answered and existing not in self._closing:
                self._ready(existing, request_id)
                return
            opening = True  # it waits for its turn, or something has to be durable before its client may know
        if opening:
            state = "closed" if existing in self._closing else "opened"
            error = BrokerError(ErrorCode.SERVICE_NOT_READY, f"producer {producer_id} is already being {state}")
            self.connection.refuse(request_id, error)
            return
        try:
            name = self._check_allowed(command)
            if command.initial_subscription_name:
                names.check_subscription(command.initial_subscription_name)
            mode = _access_mode(command.producer_access_mode)
            if command.producer_name:
                names.check_producer(command.producer_name)
            self._check_room(producer_id)
            self._services.client_bytes.held(self.connection.number, str(name), command)
        except (BrokerError, NameNotValid) as error:
            self.connection.refuse(request_id, _as_broker_error(error))
            return
        self._opening[producer_id] = command

        def opened(port: PublishPort | None, error: BrokerError | None) -> None:
            if port is None:
                self._give_up(command, error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"))
            elif self._wanted(command):
                self._check_schema(port, command, mode)
            else:
                port.left()

        self._services.domains[name.domain].open_for_producer(name, opened)

    def _check_allowed(self, command: pb.CommandProducer) -> TopicName:
        """The topic, where the client may produce."""
        name = topic_name(command.topic)
        self.connection.check(Operation.PRODUCE, name)
        if command.initial_subscription_name:
            self.connection.check(Operation.CONSUME, name, subscription=command.initial_subscription_name)
        return name

    def _check_room(self, producer_id: int) -> None:
        """Refuse one producer too many; those on their way count: their requests come hundreds at once.

        Raises:
            BrokerError: ProducerBusy.
        """
        present = len(self.open) - (producer_id in self.open) + len(self._opening)
        most = self._services.context.config.handles_per_connection_max
        if present >= most:
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY, f"{most} producers are the most on one connection (handles_per_connection_max)"
            )

    def _wanted(self, command: pb.CommandProducer) -> bool:
        """Whether an attempt was not given up meanwhile."""
        return self._opening.get(command.producer_id) is command

    def _give_up(self, command: pb.CommandProducer, error: BrokerError) -> None:
        """Refuse an attempt, unless that was done already."""
        if self._wanted(command):
            del self._opening[command.producer_id]
            self.connection.refuse(command.request_id, error)

    def _refused(self, port: PublishPort, command: pb.CommandProducer, error: BrokerError) -> None:
        port.left()
        self._give_up(command, error)

    def _check_schema(self, port: PublishPort, command: pb.CommandProducer, mode: AccessMode) -> None:
        def checked(version: bytes, error: BrokerError | None) -> None:
            if error is not None:
                self._refused(port, command, error)
            else:
                self._attach(port, command, mode, version, probed=False)

        try:
            port.check(command)
        except BrokerError as error:
            self._refused(port, command, error)
            return
        schema = command.schema if command.HasField("schema") else None
        self._services.schemas.for_producer(port.topic, schema, checked)

    def _attach(
        self, port: PublishPort, command: pb.CommandProducer, mode: AccessMode, version: bytes, *, probed: bool
    ) -> None:
        """Let the topic admit an attempt, now, or by another call when a condition for it has become true."""
        if not self._wanted(command):
            port.left()
            return
        try:
            port = port.renewed()
        except BrokerError as error:
            self._give_up(command, error)
            return
        connection, topic = self.connection, port.topic
        producer = Producer(
            connection=connection.number,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=command.producer_name or port.name_for(connection),
            mode=mode,
            epoch=command.epoch,
            user_named=bool(command.producer_name) and command.user_provided_producer_name,
            address=connection.address,
            connected_ms=connection.outbox.now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
            schema_version=version,
            partial=connection.partial_producers,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        )
        again = partial(self._attach, port, command, mode, version)
        rival = topic.producers.rival(producer.name)
        try:
            refused = partial(self._refused, port, command)
            if not port.admits(connection, producer, command, partial(again, probed=probed), refused):
                return
            producer.held = self._services.client_bytes.held(connection.number, topic.text, command)
            evicted = topic.producers.add(producer, probed=probed)
        except BrokerError as error:
            if error.code is ErrorCode.PRODUCER_BUSY and rival is not None and not probed:
                # Its client may be gone without a word, and this be its successor.
                self._clients.probe(rival.connection, connection.number, partial(again, probed=True))
                return
            self._refused(port, command, error)
            return
        del self._opening[command.producer_id]
        self._replaced(command.producer_id)
        for loser in evicted:
            self._clients.close_producer(loser)
        self.open[command.producer_id] = OpenProducer(producer, port)
        self._begin(producer, port)

    def _replaced(self, producer_id: int) -> None:
        """Another producer with this id has access, maybe to another topic. The client requested that: a CLOSE_PRODUCER
        would apply to the new one.
        """
        found = self.open.get(producer_id)
        if found is not None:
            self.drop(producer_id)
            if not found.producer.answered:
                self.connection.refuse_closed(found.producer.request_id, f"producer {producer_id}")

    def _begin(self, producer: Producer, port: PublishPort) -> None:
        """Answer a producer that has access, as soon as its client may be informed."""

        def begun(error: BrokerError | None) -> None:
            if error is None:
                self._ready(producer, producer.request_id)
            else:
                self.drop(producer.producer_id)
                self.connection.refuse(producer.request_id, error)

        port.begin(producer, begun)

    def _ready(self, producer: Producer, request_id: int) -> None:
        if producer.closed or self.connection.closed or producer.producer_id not in self.open:
            return
        producer.answered = producer.ready
        self.connection.send(
            commands.producer_success(
                request_id,
                producer.name,
                last_sequence_id=producer.numbers.last if producer.numbers is not None else NOTHING,
                schema_version=producer.schema_version,
                ready=producer.ready,
                topic_epoch=producer.topic_epoch if producer.exclusive and producer.ready else None,
            )
        )

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""
        found = self.open.get(producer.producer_id)
        if found is not None and found.producer is producer:
            self._begin(producer, found.port)

    def permissions_changed(self) -> None:
        """Close producers whose client may no longer produce; the client looks the topic up again, and is refused
        there.
        """
        for producer, port in list(self.open.values()):
            if not self.connection.allowed(Operation.PRODUCE, port.topic.name):
                self.evict(producer)
        for command in list(self._opening.values()):
            try:
                self._check_allowed(command)
            except BrokerError as error:
                self._give_up(command, error)

    # ---------------------------------------------------------------------------------------------------- publishing

    def publish(self, producer_id: int, frames: list[Frame]) -> None:
        """A run of SENDs for one producer.

        Raises:
            ProtocolError: it is not open, or not ready.
        """
        found = self.open.get(producer_id)
        if found is None:
            if producer_id in self._recently_closed:
                return
            raise ProtocolError(f"SEND for producer {producer_id}, which is not open on this connection")
        producer, port = found
        if not producer.ready:
            raise ProtocolError(f"SEND for producer {producer_id}, which still waits for exclusive access")
        if producer in self._closing:
            return
        if now := admitted(port.topic, producer, self, frames):
            port.publish(self, producer, now)

    def publish_now(self, producer: Producer, frames: list[Frame]) -> None:
        """Publish what waited for a rate. There is no caller to end the connection if it breaks the protocol."""
        found = self.open.get(producer.producer_id)
        if found is None or found.producer is not producer:
            return
        try:
            found.port.publish(self, producer, frames)
        except ProtocolError as error:
            self.broke_protocol(error)

    def publishing(self, append: Append, size: int) -> None:
        """This many published bytes are in flight to the disk."""
        self._broker.publishing(self.connection, append, size)

    def broke_protocol(self, error: ProtocolError) -> None:
        """End the connection: it sent what cannot be."""
        self._broker.broke_protocol(self.connection.number, error)

    def throttled(self, size: int) -> None:
        """Count this many more (or fewer) bytes of this connection that wait here, for a publish rate or until a batch
        is opened: too many stop reading the socket.
        """
        self._throttled_bytes += size
        if self._throttled_bytes > THROTTLED_BYTES_MAX:
            self.connection.hold(True, "rate")
        elif self._throttled_bytes <= THROTTLED_BYTES_MAX // 2:
            self.connection.hold(False, "rate")

    # -------------------------------------------------------------------------------------------------------- closing

    def drop(self, producer_id: int) -> None:
        """Forget a producer; the next that waits for its topic has its turn."""
        found = self.open.pop(producer_id, None)
        if found is None:
            return
        producer, port = found
        topic = port.topic
        if topic.publish_throttle is not None:
            topic.publish_throttle.forget(producer)
        self.in_order.forget(producer)
        port.leaving(producer)
        self._recently_closed.pop(producer_id, None)
        self._recently_closed[producer_id] = None
        if len(self._recently_closed) > self._services.context.config.handles_per_connection_max:
            del self._recently_closed[next(iter(self._recently_closed))]
        self._clients.follow_up(topic.producers.remove(producer))
        port.left()
        for request_id in self._closing.pop(producer, ()):
            self.connection.send(commands.success(request_id))

    def close(self, command: pb.CommandCloseProducer) -> None:
        """CLOSE_PRODUCER."""
        producer_id = command.producer_id
        # Clients close producers that they no longer wait for: such a producer must not be opened after this answer.
        attempt, found = self._opening.pop(producer_id, None), self.open.get(producer_id)
        if attempt is not None:
            self.connection.refuse_closed(attempt.request_id, f"producer {producer_id}")
        if found is not None and found.producer.answered:
            requests = self._closing.setdefault(found.producer, [])
            requests.append(command.request_id)
            if len(requests) == 1:
                self._close_behind(*found)
            return
        self.drop(producer_id)
        if found is not None:
            self.connection.refuse_closed(found.producer.request_id, f"producer {producer_id}")
        self.connection.send(commands.success(command.request_id))

    def _close_behind(self, producer: Producer, port: PublishPort) -> None:
        """Close a producer after the receipts of all its messages: when a client learns that its producer is closed, it
        takes messages without a receipt for not stored. Until then the producer keeps its name, so that no other one
        publishes before that.
        """

        def closed() -> None:
            found = self.open.get(producer.producer_id)
            if found is not None and found.producer is producer:
                self.drop(producer.producer_id)

        def published() -> None:
            self.in_order.when_published(producer, lambda: port.when_answered(closed))

        throttle = port.topic.publish_throttle
        if throttle is not None and throttle.waits(producer):
            throttle.when_published(producer, published)
        else:
            published()

    def evict(self, producer: Producer) -> None:
        """The broker closes a producer: the client looks the topic up again. One that was never open only has its answer."""
        found = self.open.get(producer.producer_id)
        if found is None or found.producer is not producer:
            return
        closing = producer in self._closing
        self.drop(producer.producer_id)
        if closing:
            return  # its client has the answer that it waited for
        if producer.answered:
            self.connection.send(commands.close_producer(producer.producer_id))
        else:
            self.connection.refuse(producer.request_id, producer.gone())


def _access_mode(value: int) -> AccessMode:
    try:
        return AccessMode(value)
    except ValueError as error:
        raise BrokerError(ErrorCode.NOT_ALLOWED, f"producer access mode {value} is not known") from error


def _as_broker_error(error: BrokerError | NameNotValid) -> BrokerError:
    return error if isinstance(error, BrokerError) else BrokerError(ErrorCode.PRODUCER_BUSY, str(error))
