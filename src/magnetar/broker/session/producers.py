"""The commands of one connection about producers: opening them, publishing, closing them."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from magnetar.broker.client_bytes import Handles, Opening
from magnetar.broker.publish.deduplication import Status
from magnetar.broker.publish.opening import Elsewhere, InOrder
from magnetar.broker.publish.producers import AccessMode, Producer, same_place
from magnetar.broker.publish.publishing import Publishing
from magnetar.broker.publish.sequence_numbers import NOTHING
from magnetar.broker.publish.throttling import THROTTLED_BYTES_MAX, admitted
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import topic_name
from magnetar.broker.session.part import SessionPart
from magnetar.broker.topics.topic import Topic, check_encrypts
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame
from magnetar.wire.idempotency_keys import Found

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session


class SessionProducers(SessionPart):
    """The producers of one connection.

    Args:
        session: the connection.

    Attributes:
        open: by the client's id.
        topics: of each open producer.
    """

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.open: Handles[Producer] = Handles(self._broker.client_bytes, attrgetter("held"))
        self.topics: dict[int, Topic] = {}
        self._opening: Opening[pb.CommandProducer] = self._broker.opening(session.number, "producers")
        """Attempts that have no place in their topic yet. One that is no longer here was given up, and gets none."""
        self._closing: dict[Producer, list[int]] = {}
        """Whom their clients closed while receipts were on their way, and the requests that wait for these."""
        self._recently_closed: dict[int, None] = {}
        """Ids of closed producers, on topics of either kind, whose late SENDs are ignored instead of ending the connection."""
        self._throttled_bytes = 0
        self._in_order = InOrder(self._broker.openings, session.number)

    def handlers(self) -> dict[int, Callable[[Any], None]]:
        """Command type -> what answers it. SEND is not among them: it comes in runs, to `publish`."""
        return {
            5: lambda c: self._producer(c.producer),
            15: lambda c: self._close_producer(c.close_producer),
        }

    def disconnected(self) -> None:
        """The socket is gone: so are its producers."""
        self._opening.clear()
        for producer_id in list(self.open):
            self.drop(producer_id)

    def _producer(self, command: pb.CommandProducer) -> None:
        producer_id, request_id = command.producer_id, command.request_id
        existing = self.open.get(producer_id)
        opening = producer_id in self._opening
        if existing is not None and command.epoch <= existing.epoch:
            if existing.answered and existing not in self._closing:
                self._producer_ready(existing, request_id)
                return
            opening = True  # it waits for its turn, or something has to be durable before its client may know
        if opening:
            self._session.refuse(
                request_id,
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"producer {producer_id} is already being {'closed' if existing in self._closing else 'opened'}",
                ),
            )
            return
        try:
            name = self._check_allowed(command)
            if command.initial_subscription_name:
                names.check_subscription(command.initial_subscription_name)
            mode = self._access_mode(command.producer_access_mode)
            if command.producer_name:
                names.check_producer(command.producer_name)
            self._session.check_room_for_producer(producer_id)
            self._broker.client_bytes.held(self._session.number, str(name), command)
        except (BrokerError, NameNotValid) as error:
            self._session.refuse(request_id, _as_broker_error(error))
            return
        self._opening[producer_id] = command

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            if topic is None:
                self._give_up(command, error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"))
            elif self._wanted(command):
                self._check_schema(topic, command, mode)

        self._broker.catalog.open(name, create=True, then=opened)

    def _check_allowed(self, command: pb.CommandProducer) -> TopicName:
        """The topic, where the client may produce."""
        name = topic_name(command.topic)
        self._session.check(Operation.PRODUCE, name)
        if command.initial_subscription_name:
            self._session.check(Operation.CONSUME, name, subscription=command.initial_subscription_name)
        return name

    def _wanted(self, command: pb.CommandProducer) -> bool:
        """Whether an attempt was not given up meanwhile."""
        return self._opening.get(command.producer_id) is command

    def _give_up(self, command: pb.CommandProducer, error: BrokerError) -> None:
        """Refuse an attempt, unless that was done already."""
        if self._wanted(command):
            del self._opening[command.producer_id]
            self._session.refuse(command.request_id, error)

    def _check_schema(self, topic: Topic, command: pb.CommandProducer, mode: AccessMode) -> None:
        def checked(version: bytes, error: BrokerError | None) -> None:
            if error is None:
                self._attach_producer(topic, command, mode, version, probed=False)
            else:
                self._give_up(command, error)

        try:
            topic.check_writable()
            check_encrypts(command, topic.limits, topic.text)
        except BrokerError as error:
            self._give_up(command, error)
            return
        self._broker.schemas.for_producer(topic, command.schema if command.HasField("schema") else None, checked)

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
        if not self._wanted(command):
            return
        again = partial(self._attach_producer, topic, command, mode, version)
        producer = Producer(
            connection=self._session.number,
            producer_id=command.producer_id,
            request_id=command.request_id,
            name=command.producer_name or self._own_name(),
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
        deduplication = topic.deduplication
        if deduplication is not None and deduplication.status is Status.RECOVERING:
            # What was published before decides what is new: nobody publishes until that is known again.
            deduplication.when_ready(partial(again, probed=probed))
            return
        rival = topic.producers.rival(producer.name)
        free = rival is None or same_place(rival, producer)
        if free and deduplication is not None and topic.appending and deduplication.numbers.undecided(producer.name):
            # It is told the last number, and begins behind it: one that gets into the log afterwards would be used twice.
            topic.when_answered(partial(again, probed=probed))
            return
        idempotency = topic.idempotency
        if idempotency is not None and idempotency.status is Status.RECOVERING:
            idempotency.when_ready(partial(again, probed=probed))
            return
        try:
            topic.check_writable()
            if deduplication is not None:
                deduplication.check()
                self._check_name(producer, topic)
            if idempotency is not None:
                idempotency.check()
            if stop := self._broker.upkeep.stop_now(topic):
                raise BrokerError(stop.code, stop.reason)
            initial = command.initial_subscription_name
            if initial and initial not in topic.subscriptions:
                self._subscribe_first(topic, command, partial(again, probed=probed))
                return
            producer.held = self._broker.client_bytes.held(self._session.number, topic.text, command)
            evicted = topic.producers.add(producer, probed=probed)
        except BrokerError as error:
            if error.code is ErrorCode.PRODUCER_BUSY and rival is not None and not probed:
                # Its client may be gone without a word, and this be its successor.
                self._broker.clients.probe(rival.connection, self._session, partial(again, probed=True))
                return
            self._give_up(command, error)
            return
        del self._opening[command.producer_id]
        self._session.producer_replaced(command.producer_id)
        for loser in evicted:
            self._broker.clients.close_producer(loser)
        self.open[command.producer_id] = producer
        self.topics[command.producer_id] = topic
        self._admitted(producer, topic)

    def _own_name(self) -> str:
        """For a producer that brought none: it brings this one when it comes back."""
        name, role = self._broker.producer_name(), self._role
        return f"{role}-{name}" if self._broker.deduplications.names_begin_with_role and role else name

    @property
    def _role(self) -> str:
        """Whom permissions are given to; of a proxy for whom it speaks. "" without authentication."""
        identity = self._session.identity
        return identity.original or identity.role

    def _check_name(self, producer: Producer, topic: Topic) -> None:
        """Refuse a name that is not the role's, where names are (`names_begin_with_role`).

        Raises:
            BrokerError: NOT_ALLOWED.
        """
        access = self._broker.access
        if not access.enabled or not self._broker.deduplications.names_begin_with_role:
            return
        role = self._role
        if producer.name.startswith(role) or access.authorizer.allowed(
            self._session.identity, Operation.ADMIN, topic.name
        ):
            return
        raise BrokerError(
            ErrorCode.NOT_ALLOWED,
            f"producer name {producer.name[:100]!r} in {topic.text}: there it has to begin with the role's, {role!r} "
            "(names_begin_with_role of [deduplication])",
        )

    def _subscribe_first(self, topic: Topic, command: pb.CommandProducer, then: Callable[[], None]) -> None:
        """Create the subscription that a producer brings; without it the producer does not come either."""

        def created(error: BrokerError | None) -> None:
            if error is None:
                then()
            else:
                reason = f"failed to create the initial subscription: {error.message}"
                self._give_up(command, BrokerError(error.code, reason))

        if not topic.limits.new_subscriptions:
            policy = topic.limits.sources["auto-subscription-creation"]
            reason = f"{topic.text} gets no subscriptions but an administrator's ({policy})"
            self._give_up(command, BrokerError(ErrorCode.NOT_ALLOWED, reason))
            return
        self._broker.catalog.create_subscription(topic, command.initial_subscription_name, Position(*NONE), created)

    def _admitted(self, producer: Producer, topic: Topic) -> None:
        """Answer a producer that has a place: with exclusive access, when it is known where its numbers begin, and the topic's
        epoch is durable, so that after a restart nobody else gets the same one.
        """
        if producer.closed:
            return
        deduplication = topic.deduplication
        if deduplication is not None and producer.ready:
            # While one waits for access, the numbers are the holder's, who may have the same name.
            producer.numbers = deduplication.numbers.attach(producer.name, self._broker.outbox.day_ms)
            if topic.appending and deduplication.numbers.undecided(producer.name):
                # The holder left something on its way: it begins behind that.
                topic.when_answered(partial(self._admitted, producer, topic))
                return
        if not (producer.exclusive and producer.ready):
            self._producer_ready(producer, producer.request_id)
            return

        def stored(error: BrokerError | None) -> None:
            if producer.closed or producer.answered:
                return
            if error is None:
                self._producer_ready(producer, producer.request_id)
            else:
                self.drop(producer.producer_id)
                self._session.refuse(producer.request_id, error)

        self._broker.catalog.store_epoch(topic, stored)

    def _producer_ready(self, producer: Producer, request_id: int) -> None:
        topic = self.topics.get(producer.producer_id)
        if producer.closed or self._session.closed or topic is None:
            return
        producer.answered = producer.ready
        self._session.send(
            commands.producer_success(
                request_id,
                producer.name,
                last_sequence_id=producer.numbers.persisted if producer.numbers is not None else NOTHING,
                schema_version=producer.schema_version,
                ready=producer.ready,
                topic_epoch=producer.topic_epoch if producer.exclusive and producer.ready else None,
            )
        )

    def beside(self, producer_id: int) -> int:
        """How many others are open or being opened; what this one would replace is none of them."""
        return len(self.open) - (producer_id in self.open) + len(self._opening)

    def answers(self, command: pb.CommandProducer) -> bool:
        """Whether what there is answers a PRODUCER: one of its id is open, or being opened."""
        existing = self.open.get(command.producer_id)
        return command.producer_id in self._opening or (existing is not None and command.epoch <= existing.epoch)

    def replaced(self, producer_id: int) -> None:
        """Another of this id has its place, wherever. The client asked for that: CLOSE_PRODUCER would take it for the new one."""
        producer = self.open.get(producer_id)
        if producer is not None:
            self.drop(producer_id)
            if not producer.answered:
                self._session.refuse_closed(producer.request_id, f"producer {producer_id}")

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""
        if self.open.get(producer.producer_id) is producer:
            self._admitted(producer, self.topics[producer.producer_id])

    def permissions_changed(self) -> None:
        """Close producers whose client may no longer produce; it looks the topic up again, and is refused there."""
        access, identity = self._broker.access, self._session.identity
        for producer, topic in [(self.open[number], topic) for number, topic in self.topics.items()]:
            if not access.authorizer.allowed(identity, Operation.PRODUCE, topic.name):
                self.evict(producer)
        for command in list(self._opening.values()):
            try:
                self._check_allowed(command)
            except BrokerError as error:
                self._give_up(command, error)

    def publish(self, producer_id: int, frames: list[Frame]) -> None:
        """A run of SENDs for one producer.

        Raises:
            ProtocolError: it is not open, or not ready.
        """
        producer = self.open.get(producer_id)
        if producer is None:
            if producer_id in self._recently_closed:
                return
            raise ProtocolError(f"SEND for producer {producer_id}, which is not open on this connection")
        if not producer.ready:
            raise ProtocolError(f"SEND for producer {producer_id}, which still waits for exclusive access")
        if producer in self._closing:
            return
        topic = self.topics[producer_id]
        if now := admitted(topic, producer, self, frames):
            self._publish(producer, now)

    def publish_now(self, producer: Producer, frames: list[Frame]) -> None:
        """Publish what waited for a rate. Nobody is above to end the connection if it breaks the protocol."""
        try:
            self._publish(producer, frames)
        except ProtocolError as error:
            self._broker.broke_protocol(self._session.number, error)

    def _publish(self, producer: Producer, frames: list[Frame]) -> None:
        topic = self.topics.get(producer.producer_id)
        if topic is None or producer.closed:
            return
        if topic.idempotency is None and not self._in_order:
            Publishing(self._session, producer, topic).take(frames, self._broker.config.message_bytes_max)
        else:
            self._in_order.publish(self, producer, frames)

    def take(self, producer: Producer, frames: list[Frame], found: Found | None) -> Elsewhere | None:
        """Publish SENDs up to one whose batch has to be opened elsewhere; `found` is of the first, when it was opened there."""
        topic = self.topics.get(producer.producer_id)
        if topic is None or producer.closed:
            return None
        publishing = Publishing(self._session, producer, topic)
        try:
            return publishing.take(frames, self._broker.config.message_bytes_max, found)
        except ProtocolError as error:
            if found is None:
                raise
            # It waited: there is no caller to end the connection.
            self._broker.broke_protocol(self._session.number, error)
            return None

    def throttled(self, size: int) -> None:
        """So many bytes more (or fewer) of this connection wait here, for a publish rate or until a batch is opened: too many
        stop the socket.
        """
        self._throttled_bytes += size
        if self._throttled_bytes > THROTTLED_BYTES_MAX:
            self._session.hold(True, "rate")
        elif self._throttled_bytes <= THROTTLED_BYTES_MAX // 2:
            self._session.hold(False, "rate")

    def closed(self, producer_id: int) -> None:
        """A producer is closed; its client may not know, and have sent more. All of a connection may be, in one event."""
        self._recently_closed.pop(producer_id, None)
        self._recently_closed[producer_id] = None
        if len(self._recently_closed) > self._broker.config.handles_per_connection_max:
            del self._recently_closed[next(iter(self._recently_closed))]

    def drop(self, producer_id: int) -> None:
        """Forget a producer; whoever waits for its topic comes next."""
        producer = self.open.pop(producer_id, None)
        topic = self.topics.pop(producer_id, None)
        if producer is None or topic is None:
            return
        if topic.publish_throttle is not None:
            topic.publish_throttle.forget(producer)
        self._in_order.forget(producer)
        topic.used_ms = self._broker.outbox.now_ms
        self.closed(producer_id)
        if topic.deduplication is not None and producer.numbers is not None:
            topic.deduplication.numbers.detach(producer.name, self._broker.outbox.day_ms)
        self._broker.follow_up(topic.producers.remove(producer))
        for request_id in self._closing.pop(producer, ()):
            self._session.send(commands.success(request_id))

    def _close_producer(self, command: pb.CommandCloseProducer) -> None:
        producer_id = command.producer_id
        # Clients close what they no longer wait for: it must not come into being behind this answer.
        attempt, producer = self._opening.pop(producer_id, None), self.open.get(producer_id)
        if attempt is not None:
            self._session.refuse_closed(attempt.request_id, f"producer {producer_id}")
        if producer is not None and producer.answered:
            requests = self._closing.setdefault(producer, [])
            requests.append(command.request_id)
            if len(requests) == 1:
                self._close_behind(producer)
            return
        self.drop(producer_id)
        if producer is not None:
            self._session.refuse_closed(producer.request_id, f"producer {producer_id}")
        self._session.send(commands.success(command.request_id))

    def _close_behind(self, producer: Producer) -> None:
        """Close a producer behind the receipts of all that it sent: whatever has none when its client is told that it is closed,
        the client takes for not stored. Until then it keeps its name, so that nobody publishes in front of that.
        """

        def closed() -> None:
            if self.open.get(producer.producer_id) is producer:
                self.drop(producer.producer_id)

        def published() -> None:
            self._in_order.when_published(producer, lambda: topic.when_answered(closed))

        topic = self.topics[producer.producer_id]
        if topic.publish_throttle is not None and topic.publish_throttle.waits(producer):
            topic.publish_throttle.when_published(producer, published)
        else:
            published()

    def evict(self, producer: Producer) -> None:
        """The broker closes a producer: the client looks the topic up again. One that was never open only has its answer."""
        if self.open.get(producer.producer_id) is producer:
            closing = producer in self._closing
            self.drop(producer.producer_id)
            if closing:
                return  # its client has the answer that it waited for
            if producer.answered:
                self._session.send(commands.close_producer(producer.producer_id))
            else:
                self._session.refuse(producer.request_id, producer.gone())


def _as_broker_error(error: BrokerError | NameNotValid) -> BrokerError:
    return error if isinstance(error, BrokerError) else BrokerError(ErrorCode.PRODUCER_BUSY, str(error))
