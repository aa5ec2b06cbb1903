"""One client connection: its commands arrive here, and are passed to topics.

`wire.connection` decides which commands a connection may send in which state. These modules handle the commands:

    login      CONNECT, AUTH_RESPONSE
    lookups    partitions, lookup, topics of a namespace, schemas
    watchers   WATCH_TOPIC_LIST and its end
    producers  PRODUCER, SEND, CLOSE_PRODUCER
    consumers  SUBSCRIBE, ACK, FLOW, SEEK and the like
    links      the commands of links

One session serves persistent and non-persistent topics; the differences are in the implementations of `ports`.
Transactions are not supported. Commands about them are refused here, by an answer of the kind that the client waits
for.

Every command with a request id gets exactly one answer, after any time (a topic may have to be created first): the
event that completes it sends the answer as an effect.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from magnetar.broker.connection import Connection
from magnetar.broker.publish.publishing import NO_TRANSACTIONS, in_transaction
from magnetar.broker.session.consumers import SessionConsumers
from magnetar.broker.session.links import LinkSession
from magnetar.broker.session.login import SessionLogin
from magnetar.broker.session.lookups import SessionLookups
from magnetar.broker.session.producers import SessionProducers
from magnetar.broker.session.refusals import TRANSACTIONS, refusal, transaction_refused
from magnetar.broker.session.services import SessionServices
from magnetar.broker.session.watchers import SessionWatchers
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.effects.outbox import FrameLimit
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import GEO_REQUESTS, request_id_of
from magnetar.wire.frame import Frame, PlainSend, Refused
from magnetar.wire.limits import LINK_COMMAND_BYTES_MAX

_SEND: Final = pb.SEND
_ACK: Final = pb.ACK
PROBE_MS: Final = 3000
"""The time that a client has to answer a probe before a new one gets its producer's name, or its access as the
exclusive consumer. Longer than a round trip across the world and a garbage collection; shorter than a client's
operation timeout (30 s).
"""

ANSWERS_BYTES_MAX: Final = 16 * 1024 * 1024
"""A ceiling on the answers to the commands of one event of a connection (`runtime.network.server.RUN_FRAMES_MAX`
frames): hundreds of requests for a list of topics may wait in a socket. A client that sends one request and waits gets
a list of any size.
"""


class Session:
    """The state of one connection: the parts that answer its commands.

    Args:
        connection: the client's connection.
        services: the services of sessions.

    Attributes:
        producers, consumers: producers and consumers of the connection.
        geo: the link side, for a connection that may replicate.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self.connection = connection
        self.login = SessionLogin(connection, services)
        self.lookups = SessionLookups(connection, services)
        self.producers = SessionProducers(connection, services)
        self.consumers = SessionConsumers(connection, services)
        self.watchers = SessionWatchers(connection, services)
        self.geo: LinkSession | None = None
        self._services = services
        self._handshake = connection.handshake
        self._probing: list[Callable[[], None]] = []
        self._probes = 0

    # ------------------------------------------------------------------------------------------------------ incoming

    def frames(self, frames: list[Frame]) -> None:
        """Handle what came, in order.

        Raises:
            ProtocolError: the peer broke the protocol; the caller closes the connection.
        """
        connection, handshake = self.connection, self._handshake
        connection.answered_bytes = 0
        at = 0
        total = len(frames)
        while at < total and not connection.closed:
            frame = frames[at]
            kind = _SEND if type(frame) is PlainSend else frame.command.type
            if kind == _SEND and handshake.connected:
                sends, at = _by_producer(frames, at)
                self._publish(sends)
                continue
            at += 1
            if connection.answered_bytes > ANSWERS_BYTES_MAX and self.geo is None:
                raise ProtocolError(
                    f"requests whose answers have {connection.answered_bytes} bytes at once, over {ANSWERS_BYTES_MAX}"
                )
            if not handshake.connected:
                self.login.connect(frame, self._connected)
                continue
            if type(frame) is Refused:
                self._refuse_over_limit(frame)
                continue
            try:
                handshake.check(frame.command)
            except BrokerError as error:
                connection.refuse(request_id_of(frame.command), error)
                continue
            if self.geo is not None and kind in GEO_REQUESTS:
                self.geo.handle(frame)
                continue
            if kind == _ACK and in_transaction(frame.command.ack):
                self._refuse_ack(frame.command.ack)
                continue
            handler = _HANDLERS.get(kind)
            if handler is None:
                raise ProtocolError(f"command type {kind} is not served by this broker")
            handler(self, frame.command)
        if self._probing:
            self._probed()  # at last: it may just have closed what the others wait for

    def _publish(self, sends: dict[int, list[Frame]]) -> None:
        """Publish SENDs of several producers, which came together.

        Raises:
            ProtocolError: one of them broke the protocol. The SENDs of the others count: they may have come before.
        """
        fault: ProtocolError | None = None
        for producer_id, frames in sends.items():
            if self.connection.closed:
                break
            try:
                self.producers.publish(producer_id, frames)
            except ProtocolError as error:
                fault = fault or error
        if fault is not None:
            raise fault

    def probe(self, then: Callable[[], None]) -> None:
        """Ask the client whether it is still there, and call `then` when that is known: it answered, or it is gone.

        No answer within `PROBE_MS` means gone, unless the broker itself has stopped reading from the client.
        """
        self._probing.append(then)
        if len(self._probing) > 1:
            return
        self.connection.send(commands.ping())
        self._probes += 1
        current = self._probes

        def judge(_now_ms: int) -> None:
            if current != self._probes or not self._probing:
                return
            if self.connection.held:
                self._probed()
            else:
                self.connection.close("did not answer a ping while another client waits for its slot")
                self._services.broker.disconnected(self.connection.number)

        self._services.context.timer(self.connection.outbox.now_ms + PROBE_MS, judge)

    def _probed(self) -> None:
        waiting, self._probing = self._probing, []
        for then in waiting:
            then()

    def _connected(self, link: bool) -> None:
        """CONNECT is answered; create the link side for a link peer."""
        services, connection = self._services, self.connection
        services.counters.let_in += 1
        hello = None
        if link:
            hello = pb.GeoHello(
                version=1, cluster=services.context.cluster, uuid=services.context.uuid, reads_follow=True
            )
            self.geo = LinkSession(connection, services)
        limit = services.link_frame_bytes_max if link else services.frame_bytes_max
        most = LINK_COMMAND_BYTES_MAX if link else services.command_bytes_max
        connection.outbox.put(FrameLimit(connection.number, limit, most, link))
        version = self._handshake.protocol_version
        connection.send(commands.connected(version, services.context.config.message_bytes_max, hello))

    # ----------------------------------------------------------------------------------------------- the broker's events

    def permissions_changed(self) -> None:
        """Permissions changed: end what this client may no longer do."""
        if self._handshake.connected and not self.connection.closed:
            self.producers.permissions_changed()
            self.consumers.permissions_changed()
            self.watchers.permissions_changed()

    def disconnected(self) -> None:
        """The socket is gone: so are its producers and consumers."""
        self.connection.closed = True
        if self.geo is not None:
            self.geo.disconnected()
        self.login.disconnected()
        self.producers.disconnected()
        self.consumers.disconnected()
        self.watchers.disconnected()
        self._probed()

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again.

        A client that does not read the answers is not heard either: else answers would pile up without end. A link's peer is: it
        reads and writes in one thread and has limits of its own.
        """
        self.connection.writable = writable
        if self.geo is None:
            self.connection.hold(not writable, "unread")
        self.consumers.set_writable(writable)
        self.watchers.set_writable(writable)

    # ---------------------------------------------------------------------------------------------------------- refusals

    def _refuse_over_limit(self, frame: Refused) -> None:
        """Answer a command that breaks a limit, as one that was understood."""
        try:
            self._handshake.check(frame.command)
        except BrokerError as error:
            self.connection.refuse(request_id_of(frame.command), error)
            return
        if frame.command.type in TRANSACTIONS:
            self.refuse_transaction(frame.command)
        else:
            self.connection.send(refusal(frame))

    def refuse_transaction(self, command: pb.BaseCommand) -> None:
        """Refuse a request about transactions."""
        self.connection.send(transaction_refused(command))

    def _refuse_ack(self, ack: pb.CommandAck) -> None:
        """Acknowledge nothing: the client counts on it that an abort takes it back."""
        if ack.HasField("request_id"):
            self.connection.send(
                commands.ack_response(ack.consumer_id, ack.request_id, ErrorCode.NOT_ALLOWED, NO_TRANSACTIONS)
            )


def _by_producer(frames: list[Frame], at: int) -> tuple[dict[int, list[Frame]], int]:
    """The SENDs from the one at `at` on up to another command, by producer id, those of each in order; and the index after them.

    A client that publishes to many topics sends a message to each in turn. One append for all of a producer costs little more
    than one for each message does (docs/performance.md#many-topics).
    """
    sends: dict[int, list[Frame]] = {}
    end = at
    for frame in islice(frames, at, None):
        if type(frame) is PlainSend:
            producer_id = frame.producer_id
        elif frame.command.type == _SEND:
            producer_id = frame.command.send.producer_id
        else:
            break
        end += 1
        found = sends.get(producer_id)
        if found is None:
            sends[producer_id] = [frame]
        else:
            found.append(frame)
    return sends, end


_HANDLERS: Final[dict[int, Callable[[Session, pb.BaseCommand], None]]] = {
    pb.PING: lambda session, command: session.connection.send(commands.pong()),
    pb.PONG: lambda session, command: None,
    pb.AUTH_RESPONSE: lambda session, command: session.login.response(command.authResponse),
    pb.PARTITIONED_METADATA: lambda session, command: session.lookups.partitions(command.partitionMetadata),
    pb.LOOKUP: lambda session, command: session.lookups.lookup(command.lookupTopic),
    pb.GET_TOPICS_OF_NAMESPACE: (
        lambda session, command: session.lookups.topics_of_namespace(command.getTopicsOfNamespace)
    ),
    pb.GET_SCHEMA: lambda session, command: session.lookups.get_schema(command.getSchema),
    pb.GET_OR_CREATE_SCHEMA: lambda session, command: session.lookups.get_or_create_schema(command.getOrCreateSchema),
    pb.PRODUCER: lambda session, command: session.producers.produce(command.producer),
    pb.CLOSE_PRODUCER: lambda session, command: session.producers.close(command.close_producer),
    pb.SUBSCRIBE: lambda session, command: session.consumers.subscribe(command.subscribe),
    pb.ACK: lambda session, command: session.consumers.ack(command.ack),
    pb.FLOW: lambda session, command: session.consumers.flow(command.flow),
    pb.UNSUBSCRIBE: lambda session, command: session.consumers.unsubscribe(command.unsubscribe),
    pb.CLOSE_CONSUMER: lambda session, command: session.consumers.close(command.close_consumer),
    pb.REDELIVER_UNACKNOWLEDGED_MESSAGES: (
        lambda session, command: session.consumers.redeliver(command.redeliverUnacknowledgedMessages)
    ),
    pb.CONSUMER_STATS: lambda session, command: session.consumers.stats(command.consumerStats),
    pb.SEEK: lambda session, command: session.consumers.seek(command.seek),
    pb.GET_LAST_MESSAGE_ID: lambda session, command: session.consumers.last_message_id(command.getLastMessageId),
    pb.WATCH_TOPIC_LIST: lambda session, command: session.watchers.watch(command.watchTopicList),
    pb.WATCH_TOPIC_LIST_CLOSE: lambda session, command: session.watchers.close(command.watchTopicListClose),
    **dict.fromkeys(TRANSACTIONS, Session.refuse_transaction),
}
"""Command -> what answers it. SEND is not among them: it comes in runs, to `SessionProducers.publish`."""
