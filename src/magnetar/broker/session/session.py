"""One client connection: its commands in, calls on topics out.

What a connection may do in which state is `wire.connection`'s matter; what each command means, that of

    session_login      CONNECT where there is authentication, AUTH_RESPONSE
    session_lookups    partitions, lookup, topics of a namespace, schemas
    session_watchers   WATCH_TOPIC_LIST and its end
    session_producers  PRODUCER, SEND, CLOSE_PRODUCER
    session_consumers  SUBSCRIBE, ACK, FLOW, SEEK and the like
    geo_session        what links say

Transactions are not served. Whatever is about them is answered here, by a refusal of the kind that its client waits for.

Every command with a request id gets exactly one answer, however long that takes (a topic may have to be created first):
the answer travels as an effect from whichever event completes it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.nonpersistent.session import SessionNonPersistent
from magnetar.broker.publish.producers import Producer
from magnetar.broker.publish.publishing import NO_TRANSACTIONS, in_transaction, refused_id
from magnetar.broker.security.access import NOBODY
from magnetar.broker.security.authorization import Operation, Where
from magnetar.broker.session.consumers import SessionConsumers
from magnetar.broker.session.links import GeoSession
from magnetar.broker.session.login import SessionLogin
from magnetar.broker.session.lookups import SessionLookups
from magnetar.broker.session.over_limit import over_limit, refusal
from magnetar.broker.session.producers import SessionProducers
from magnetar.broker.session.watchers import SessionWatchers
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.effects.outbox import Close, FrameLimit, Hold, Note, Send
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import GEO_REQUESTS, NO_REQUEST, ServerHandshake, State, request_id_of
from magnetar.wire.frames import Frame, Refused, encode
from magnetar.wire.limits import LINK_COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

_SEND: Final = 6
_ACK: Final = 10
_NEW_TXN: Final = 50
_TC_CLIENT_CONNECT: Final = 62
_TRANSACTIONS: Final = (_NEW_TXN, 52, 54, 56, 58, 60, _TC_CLIENT_CONNECT)
_FIELDS: Final = pb.BaseCommand.DESCRIPTOR.fields_by_number

PROBE_MS: Final = 3000
"""How long a client has to show that it lives before a newcomer gets its producer's name, or its place as the exclusive consumer.
Longer than a round trip across the world and a garbage collection; shorter than a client's operation timeout (30 s)."""

ANSWERS_BYTES_MAX: Final = 16 * 1024 * 1024
"""A ceiling on the answers to what one event of a connection brings (`runtime.network.server.RUN_FRAMES_MAX` frames): hundreds of
requests for a list of topics may wait in a socket. Who asks once and waits gets any list."""


class Session:
    """What the broker knows of one connection.

    Args:
        broker: the broker.
        number: the connection.
        address: of the peer, for logs and statistics.
        certificate: common name of the client certificate that TLS checked, "" without.
        tls: whether the connection is by TLS.
    """

    def __init__(
        self, broker: "Broker", number: int, address: str, certificate: str = "", *, tls: bool = False
    ) -> None:
        self.broker = broker
        self.outbox = broker.outbox
        self.number = number
        self.address = address
        self.connected_ms = broker.outbox.now_ms
        self.client_version = ""
        self.partial_producers = False
        """Whether the client says that it can publish to some of a topic's partitions alone (PIP-79)."""
        self.certificate = certificate
        self.tls = tls
        self.identity = NOBODY
        self.handshake = ServerHandshake(broker.link_token, authentication=broker.access.enabled)
        self.login = SessionLogin(self)
        self.producers = SessionProducers(self)
        self.consumers = SessionConsumers(self)
        self.watchers = SessionWatchers(self)
        self.nonpersistent = SessionNonPersistent(self)
        self.geo: GeoSession | None = None
        self.closed = False
        self._probing: list[Callable[[], None]] = []
        self._probes = 0
        self.writable = True
        self.pending_bytes = 0
        self._answered = 0
        self.held = False
        self._holds: set[str] = set()
        handlers: dict[int, Callable[[Any], None]] = {
            18: lambda c: self.send(commands.pong()),
            19: lambda c: None,
            37: lambda c: self.login.response(c.authResponse),
            **SessionLookups(self).handlers(),
            **self.producers.handlers(),
            **self.consumers.handlers(),
            **self.watchers.handlers(),
            **dict.fromkeys(_TRANSACTIONS, self._refuse_transaction),
        }
        self._handlers = self.nonpersistent.before(handlers)

    # ------------------------------------------------------------------------------------------------------ incoming

    def send(self, *buffers: bytes) -> None:
        """Answer."""
        if not self.closed:
            self.outbox.put(Send(self.number, buffers))
            for buffer in buffers:
                self._answered += len(buffer)

    def close(self, reason: str) -> None:
        """End the connection; what it owns goes when the socket does."""
        self.outbox.put(Close(self.number, reason))

    def frames(self, frames: list[Frame]) -> None:
        """Handle what came, in order.

        Raises:
            ProtocolError: the peer broke the protocol; the caller closes the connection.
        """
        self._answered = 0
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
                if producer_id in self.nonpersistent.producers:
                    self.nonpersistent.publish(producer_id, self._without_transactions(frames[at:run]))
                else:
                    self.producers.publish(producer_id, frames[at:run])
                at = run
                continue
            at += 1
            if self._answered > ANSWERS_BYTES_MAX and self.geo is None:
                raise ProtocolError(
                    f"requests whose answers have {self._answered} bytes at once, over {ANSWERS_BYTES_MAX}"
                )
            if not self.handshake.connected:
                self._connect(frame)
                continue
            if type(frame) is Refused:
                self._refuse_over_limit(frame)
                continue
            try:
                self.handshake.check(frame.command)
            except BrokerError as error:
                self.refuse(request_id_of(frame.command), error)
                continue
            if self.geo is not None and kind in GEO_REQUESTS:
                self.geo.handle(frame)
                continue
            if kind == _ACK and in_transaction(frame.command.ack):
                self._refuse_ack(frame.command.ack)
                continue
            handler = self._handlers.get(kind)
            if handler is None:
                raise ProtocolError(f"command type {kind} is not served by this broker")
            handler(frame.command)
        if self._probing:
            self._probed()  # at last: it may just have closed what the others wait for

    def probe(self, then: Callable[[], None]) -> None:
        """Ask the client whether it is still there, and call `then` when that is known: it answered, or it is gone.

        No answer within `PROBE_MS` means gone, unless the broker itself has stopped reading from the client.
        """
        self._probing.append(then)
        if len(self._probing) > 1:
            return
        self.send(commands.ping())
        self._probes += 1
        current = self._probes

        def judge(_now_ms: int) -> None:
            if current != self._probes or not self._probing:
                return
            if self.held:
                self._probed()
            else:
                self.close("did not answer a ping while another client wants its place")
                self.broker.disconnected(self.number)

        self.broker.timer(self.outbox.now_ms + PROBE_MS, judge)

    def _probed(self) -> None:
        waiting, self._probing = self._probing, []
        for then in waiting:
            then()

    @property
    def remembers_migration(self) -> bool:
        """Whether the client can be sent TOPIC_MIGRATED, so that it remembers the other cluster's address.

        Clients over the C++ client 4.2 and older end their process when they log at debug level that it came, and the
        Python client does so with every logger of Python's. They are moved by CLOSE_CONSUMER alone unless the operator
        says otherwise (`topic_migrated_to_cpp`).
        """
        cpp = self.client_version.startswith("Pulsar-CPP")
        return self.broker.config.topic_migrated_to_cpp or not cpp

    @property
    def learns_end(self) -> bool:
        """Whether the client can be sent REACHED_END_OF_TOPIC. Java's clients and our WebSockets are made for it; the C++
        client, and Go's, close their connection when they meet it.
        """
        return self.client_version.startswith(("Pulsar-Java", "Magnetar-WebSocket"))

    def _refuse_over_limit(self, frame: Refused) -> None:
        """Answer a command that breaks a limit, as one that was understood."""
        try:
            self.handshake.check(frame.command)
        except BrokerError as error:
            self.refuse(request_id_of(frame.command), error)
            return
        if frame.command.type in _TRANSACTIONS:
            self._refuse_transaction(frame.command)
        else:
            self.send(refusal(frame))

    def _connect(self, frame: Frame) -> None:
        if type(frame) is Refused and self.handshake.state is State.NEW:
            self.refuse_connection(over_limit(frame))
            return
        self.client_version = frame.command.connect.client_version
        self.partial_producers = frame.command.connect.feature_flags.supports_partial_producer
        try:
            accepted = self.handshake.connect(frame.command)
        except BrokerError as error:
            self.refuse_connection(error)
            return
        if accepted.proving:
            self.login.connect(frame.command.connect, link=accepted.link)
        else:
            self.connected(link=accepted.link)

    def connected(self, *, link: bool) -> None:
        """CONNECT is answered; what a link peer needs is there."""
        self.broker.connections.let_in += 1
        hello = None
        if link:
            hello = pb.GeoHello(version=1, cluster=self.broker.cluster, uuid=self.broker.uuid)
            self.geo = GeoSession(self)
        limit = self.broker.link_frame_bytes_max if link else self.broker.frame_bytes_max
        most = LINK_COMMAND_BYTES_MAX if link else self.broker.command_bytes_max
        self.outbox.put(FrameLimit(self.number, limit, most, link))
        version = self.handshake.protocol_version
        self.send(commands.connected(version, self.broker.config.message_bytes_max, hello))

    def refuse_connection(self, error: BrokerError, *, logged: bool = False) -> None:
        """Answer with an error, then end the connection; `logged`: why is in the log already."""
        self.broker.connections.failed += 1
        self.send(commands.error(NO_REQUEST, error.code, error.message))
        self.close("" if logged else error.message)
        self.closed = True
        self.handshake.close()

    def check(self, operation: Operation, where: Where, original: str = "", subscription: str = "") -> None:
        """Refuse what the client's role may not do.

        Args:
            operation, where: what it wants.
            original: for whom it says to speak in this one command.
            subscription: through which it wants to consume.

        Raises:
            BrokerError: AuthorizationError.
        """
        access = self.broker.access
        if access.enabled:
            identity = access.speak_for(self.identity, original) if original else self.identity
            access.check(identity, operation, where, subscription)

    def check_room_for_producer(self, producer_id: int) -> None:
        """Refuse one producer too many; those on their way count: their requests come hundreds at once.

        Raises:
            BrokerError: ProducerBusy.
        """
        present = self.producers.beside(producer_id) + self.nonpersistent.producers_beside(producer_id)
        self._check_room(present, "producers", ErrorCode.PRODUCER_BUSY)

    def check_room_for_consumer(self) -> None:
        """Refuse one consumer too many.

        Raises:
            BrokerError: ConsumerBusy.
        """
        present = self.consumers.count + self.nonpersistent.consumer_count
        self._check_room(present, "consumers", ErrorCode.CONSUMER_BUSY)

    def _check_room(self, present: int, what: str, code: ErrorCode) -> None:
        most = self.broker.config.handles_per_connection_max
        if present >= most:
            raise BrokerError(code, f"{most} {what} are the most on one connection (handles_per_connection_max)")

    def permissions_changed(self) -> None:
        """Somebody's permissions changed: end what this client may no longer do."""
        if self.handshake.connected and not self.closed:
            self.producers.permissions_changed()
            self.consumers.permissions_changed()
            self.watchers.permissions_changed()
            self.nonpersistent.permissions_changed()

    def disconnected(self) -> None:
        """The socket is gone: so are its producers and consumers."""
        self.closed = True
        parts = [self.login, self.producers, self.consumers, self.watchers, self.nonpersistent]
        if self.geo is not None:
            parts.insert(0, self.geo)
        for part in parts:
            part.disconnected()
        self._probed()
        # These refer to the session from within it: left so, it would wait in circles for Python's collector.
        for part in parts:
            part.leave()
        self._handlers.clear()

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again.

        Who does not read the answers is not heard either: else answers would pile up without end. A link's peer is, which
        reads and writes in one thread and has limits of its own.
        """
        self.writable = writable
        if self.geo is None:
            self.hold(not writable, "unread")
        self.consumers.set_writable(writable)
        self.watchers.set_writable(writable)
        self.nonpersistent.set_writable(writable)

    def refuse(self, request_id: int, error: BrokerError) -> None:
        """Answer a request with an error."""
        self.send(commands.error(request_id, error.code, error.message))

    def refuse_closed(self, request_id: int, what: str) -> None:
        """Answer a request to open something that its client closed meanwhile."""
        self.refuse(request_id, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{what} was closed before it was open"))

    def _refuse_transaction(self, command: pb.BaseCommand) -> None:
        """Refuse a request about transactions; the type of its answer is the next one."""
        answer = pb.BaseCommand(type=command.type + 1)
        asked: Any = getattr(command, _FIELDS[command.type].name)
        told: Any = getattr(answer, _FIELDS[answer.type].name)
        told.request_id, told.error, told.message = asked.request_id, ErrorCode.NOT_ALLOWED, NO_TRANSACTIONS
        # Java's client finds who waits by the coordinator's number, which is the upper half of a transaction's id, and
        # closes the connection when it finds nobody.
        if command.type == _NEW_TXN:
            told.txnid_most_bits = asked.tc_id
        elif command.type != _TC_CLIENT_CONNECT:
            told.txnid_most_bits, told.txnid_least_bits = asked.txnid_most_bits, asked.txnid_least_bits
        self.send(encode(answer))

    def _refuse_ack(self, ack: pb.CommandAck) -> None:
        """Acknowledge nothing: the client counts on it that an abort takes it back."""
        if ack.HasField("request_id"):
            self.send(commands.ack_response(ack.consumer_id, ack.request_id, ErrorCode.NOT_ALLOWED, NO_TRANSACTIONS))

    def _without_transactions(self, frames: list[Frame]) -> list[Frame]:
        """SENDs to a non-persistent topic that are in no transaction; the others are refused."""
        kept = []
        for frame in frames:
            send = frame.command.send
            if not in_transaction(send):
                kept.append(frame)
                continue
            self.outbox.put(Note("warning", f"refused a message of {self.address}: {NO_TRANSACTIONS}"))
            told = commands.send_error(send.producer_id, refused_id(send), ErrorCode.NOT_ALLOWED, NO_TRANSACTIONS)
            self.send(told)
        return kept

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""
        self.producers.successor_ready(producer)
        self.nonpersistent.successor_ready(producer)

    def producer_replaced(self, producer_id: int) -> None:
        """The client opened a producer anew, maybe for another topic: what it had by that id has no place any more."""
        self.producers.replaced(producer_id)
        self.nonpersistent.replaced(producer_id)

    def evict_producer(self, producer: Producer) -> None:
        """The broker closes a producer: the client looks the topic up again."""
        self.producers.evict(producer)
        self.nonpersistent.evict(producer)

    def consumer_attached(self, consumer: Consumer, request_id: int, at: int) -> None:
        """The subscription took the consumer; the answer goes to place `at` among the effects."""
        self.consumers.attached(consumer, request_id, at)

    def consumer_detached(self, consumer_id: int) -> None:
        """The subscription let the consumer go by itself (seek, deletion): its id is free again."""
        self.consumers.detached(consumer_id)

    def hold(self, hold: bool, reason: str = "memory") -> None:
        """Stop or go on reading from the socket: its bytes stay with the sender. It is read when no reason is left."""
        if self.closed:
            return
        before = self.held
        (self._holds.add if hold else self._holds.discard)(reason)
        self.held = bool(self._holds)
        if self.held != before:
            self.outbox.put(Hold(self.number, self.held))
