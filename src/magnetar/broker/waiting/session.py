"""One connection of a client to a broker that waits to take over.

    CONNECT                                   as at a broker that serves; a link is refused, so that it tries another address
    LOOKUP                                    a redirect to the broker that serves; held while there is none (`look_ups`)
    PARTITIONED_METADATA,                     relayed: a client sends these to the address that it was given, and follows
      GET_TOPICS_OF_NAMESPACE, GET_SCHEMA     no redirect there. Without the relay a client that has only this address
                                              could open nothing
    PING                                      PONG
    other requests                            ServiceNotReady
    what has no answer                        ignored, as late commands about producers and consumers are; SEND ends the
                                              connection, because there is no producer

Authorization is the serving broker's: permissions are in its log. What is relayed carries the credentials of the client, so the
serving broker checks them, and the permissions of the role.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.security.access import Access
from magnetar.broker.security.credentials import Identity
from magnetar.broker.session.frame_limits import FrameLimits
from magnetar.broker.session.login import Ending, SessionLogin
from magnetar.broker.session.names import looked_up_name
from magnetar.broker.session.refusals import (
    TRANSACTIONS,
    in_look_up,
    refusal,
    refused,
    transaction_refused,
)
from magnetar.broker.statistics.latency import Connections
from magnetar.broker.waiting.look_ups import LookUps
from magnetar.broker.waiting.registration import Registration
from magnetar.broker.waiting.takeover import Takeover
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.effects.outbox import FrameLimit
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import RESPONSE_OF
from magnetar.wire.connection import request_id_of
from magnetar.wire.frame import Frame, PlainSend, Refused
from magnetar.wire.frames import encode

RELAYED: Final = frozenset({pb.PARTITIONED_METADATA, pb.GET_TOPICS_OF_NAMESPACE, pb.GET_SCHEMA})
"""Requests that the broker that serves is asked on behalf of the client."""

WAITING_MAX: Final = 1_000
"""Requests of one connection that wait for an answer, relayed ones and look-ups; above it the socket is not read. Java's client
asks for 5,000 topics at once by default."""

WAITING_BYTES_MAX: Final = 1 << 20
"""The same in bytes of the requests: a thousand have some 200 KB."""

_FIELDS: Final = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}

Answered = Callable[[pb.BaseCommand | BrokerError], None]
"""Called with the answer to a relayed request, or with why there is none."""


class Relay(Protocol):
    """Connections to the broker that serves (`runtime.network.relay`)."""

    def ask(
        self,
        connection: int,
        serving: Registration,
        connect: pb.CommandConnect,
        command: pb.BaseCommand,
        answered: Answered,
        *,
        tls: bool,
    ) -> None:
        """Send a request of a client to the broker that serves.

        Args:
            connection: of the client.
            serving: the broker that serves.
            connect: the credentials of the client.
            command: the request; its id is changed.
            answered: called once, unless the connection is forgotten before.
            tls: whether the client came by TLS, so that its credentials are sent by TLS if that broker has it.
        """

    def forget(self, connection: int) -> None:
        """A client is gone."""

    def hold(self, connection: int, hold: bool) -> None:
        """A client takes no more answers, or takes more again."""


@dataclass(frozen=True)
class WaitingServices:
    """The services of sessions of a waiting broker; for `SessionLogin`, too.

    Attributes:
        context: the broker's context.
        broker: the waiting broker.
        access: checks credentials; it knows no permissions.
        counters: counts connections.
        takeover: which broker serves.
        relay: asks that broker.
        look_ups: answers look-ups.
        limits: of frames.
    """

    context: BrokerContext
    broker: Ending
    access: Access
    counters: Connections
    takeover: Takeover
    relay: Relay
    look_ups: LookUps
    limits: FrameLimits

    def may_link(self, identity: Identity) -> bool:
        """Every role: permissions are known to the broker that serves, and a link is sent there."""
        return True


class WaitingSession:
    """The session of one connection.

    Args:
        connection: the client's connection.
        services: of the waiting broker.
    """

    def __init__(self, connection: Connection, services: WaitingServices) -> None:
        self.connection = connection
        self._services = services
        self._login = SessionLogin(connection, services)
        self._first = pb.BaseCommand(type=pb.CONNECT)
        """CONNECT as the client sent it, with the credentials that it sent last."""
        self._unanswered: dict[int, pb.BaseCommand] = {}
        """Requests that wait for an answer, in the order in which they came."""
        self._begun = 0
        self._asked_bytes = 0

    def frames(self, frames: list[Frame]) -> None:
        """Handle what came, in order.

        Raises:
            ProtocolError: the peer broke the protocol; the caller closes the connection.
        """
        for frame in frames:
            if self.connection.closed:
                return
            if self.connection.handshake.connected:
                self._frame(frame)
            else:
                if type(frame) is Frame:
                    self._keep_credentials(frame.command.connect)
                self._login.connect(frame, self._let_in)

    def to_repeat(self) -> list[Frame]:
        """The commands with which another broker continues the connection: CONNECT, and the requests without an answer.

        None if the client has not been let in, or is just asked for a new token: the other broker would not know of the question,
        and would take the answer for a broken protocol.
        """
        if self.connection.closed or not self.connection.handshake.connected or self._login.asked:
            return []
        return [Frame(command, b"") for command in (self._first, *self._unanswered.values())]

    def permissions_changed(self) -> None:
        """Nothing changes: permissions are the serving broker's."""

    def disconnected(self) -> None:
        """The socket is gone."""
        self.connection.closed = True
        self._login.disconnected()
        self._services.relay.forget(self.connection.number)
        self._services.look_ups.forget(self.connection)

    def set_writable(self, writable: bool) -> None:
        """A client that does not read the answers is not heard either."""
        self.connection.writable = writable
        self.connection.hold(not writable, "unread")
        self._services.relay.hold(self.connection.number, not writable)

    # ---------------------------------------------------------------------------------------------------------- CONNECT

    def _keep_credentials(self, connect: pb.CommandConnect) -> None:
        """Keep what the serving broker is shown, for relayed requests and when it is this one."""
        self._first.connect.CopyFrom(connect)

    def _relayed_connect(self) -> pb.CommandConnect:
        """CONNECT for the relay."""
        connect = pb.CommandConnect()
        connect.CopyFrom(self._first.connect)
        connect.ClearField("proxy_to_broker_url")
        # A new token is not asked for there: that connection ends with the token, and another one is made with the next.
        connect.feature_flags.supports_auth_refresh = False
        return connect

    def _let_in(self, link: bool) -> None:
        services, connection = self._services, self.connection
        if link:
            self._login.refuse(services.takeover.not_ready(), logged=True)
            return
        services.counters.let_in += 1
        limits = services.limits
        # Nothing larger than a command is accepted: there is no producer.
        connection.outbox.put(FrameLimit(connection.number, limits.login + limits.command, limits.command))
        version = connection.handshake.protocol_version
        connection.send(commands.connected(version, services.context.config.message_bytes_max))

    # --------------------------------------------------------------------------------------------------------- requests

    def _frame(self, frame: Frame) -> None:
        connection = self.connection
        if type(frame) is PlainSend:
            raise ProtocolError(f"SEND for producer {frame.producer_id}, which is not open on this connection")
        command = frame.command
        kind = command.type
        try:
            connection.handshake.check(command)
        except BrokerError as error:
            connection.refuse(request_id_of(command), error)
            return
        if kind in TRANSACTIONS:
            connection.send(transaction_refused(command))
        elif type(frame) is Refused:
            connection.send(refusal(frame))
        elif kind == pb.PING:
            connection.send(commands.pong())
        elif kind == pb.LOOKUP:
            self._look_up(command)
        elif kind in RELAYED:
            self._relay(command)
        elif kind == pb.AUTH_RESPONSE:
            self._first.connect.auth_method_name = command.authResponse.response.auth_method_name
            self._first.connect.auth_data = command.authResponse.response.auth_data
            self._login.response(command.authResponse)
        elif kind == pb.SEND:
            raise ProtocolError(f"SEND for producer {command.send.producer_id}, which is not open on this connection")
        elif kind in (pb.CLOSE_PRODUCER, pb.CLOSE_CONSUMER, pb.WATCH_TOPIC_LIST_CLOSE):
            connection.send(commands.success(request_id_of(command)))
        elif kind in RESPONSE_OF and not (kind == pb.ACK and not command.ack.HasField("request_id")):
            connection.send(refused(command, self._services.takeover.not_ready()))

    def _look_up(self, command: pb.BaseCommand) -> None:
        look_up = command.lookupTopic
        try:
            looked_up_name(look_up.topic)
        except BrokerError as error:
            self.connection.send(commands.lookup_failed(look_up.request_id, in_look_up(error), error.message))
            return
        asked, answered = self._begin(command)
        self._services.look_ups.look_up(self.connection, asked.lookupTopic, answered)

    def _relay(self, command: pb.BaseCommand) -> None:
        takeover, connection = self._services.takeover, self.connection
        serving = takeover.serving
        if serving is None:
            self._relay_refused(command, takeover.not_ready())
            return
        if self._services.access.enabled and "tls" in (
            connection.identity.method,
            self._first.connect.auth_method_name,
        ):
            # Only the client can prove that the certificate is its own. The relay presents that of the `[client]` table, so the
            # serving broker would give the client the permissions of another role.
            self._relay_refused(
                command,
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"{takeover.state}; a client that is authenticated by its certificate has to connect there",
                ),
            )
            return
        asked, over = self._begin(command)

        def answered(answer: pb.BaseCommand | BrokerError) -> None:
            over()
            if isinstance(answer, BrokerError):
                self._relay_refused(command, answer)
            else:
                getattr(answer, _FIELDS[answer.type]).request_id = request_id_of(command)
                connection.send(encode(answer))

        relayed = pb.BaseCommand()
        relayed.CopyFrom(asked)  # its id is changed
        connect = self._relayed_connect()
        self._services.relay.ask(connection.number, serving, connect, relayed, answered, tls=connection.tls)

    def _begin(self, command: pb.BaseCommand) -> tuple[pb.BaseCommand, Callable[[], None]]:
        """A request begins to wait: a copy of it, and the call for when it is answered."""
        asked, size = pb.BaseCommand(), command.ByteSize()
        asked.CopyFrom(command)
        number = self._begun
        self._begun += 1
        self._unanswered[number] = asked
        self._count(size)

        def answered() -> None:
            del self._unanswered[number]
            self._count(-size)

        return asked, answered

    def _count(self, size: int) -> None:
        """A request begins to wait, or is answered (a negative size): too many of them stop reading the socket."""
        self._asked_bytes += size
        full = len(self._unanswered) > WAITING_MAX or self._asked_bytes > WAITING_BYTES_MAX
        self.connection.hold(full, "waiting")

    def _relay_refused(self, command: pb.BaseCommand, error: BrokerError) -> None:
        if command.type == pb.PARTITIONED_METADATA:
            error = BrokerError(in_look_up(error), error.message)
        self.connection.send(refused(command, error))
