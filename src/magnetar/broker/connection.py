"""One client's connection: the client's identity, its permissions, and sending to it.

Every part of a session holds the connection and none holds the session, so that nothing of a connection refers to itself: it is
freed with its last use (decision 22).
"""

from magnetar.broker.context import BrokerContext
from magnetar.broker.security.access import NOBODY, Access
from magnetar.broker.security.authorization import Operation, Where
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.effects.outbox import Close, Hold, Send
from magnetar.wire import commands
from magnetar.wire.connection import ServerHandshake


class Connection:
    """One client's connection.

    Args:
        context: the broker's context.
        access: authorization.
        number: number of the connection.
        address: the peer's address, for logs and statistics.
        certificate: common name of the client certificate that TLS checked, "" without.
        tls: whether the connection is by TLS.
        link_token: the shared secret of links.

    Attributes:
        outbox: the broker's.
        connected_ms: when it connected.
        client_version: the client's own name and version.
        partial_producers: whether the client says that it can publish to some of a topic's partitions alone (PIP-79).
        identity: its authenticated identity.
        handshake: the state of the protocol.
        closed: nothing more is sent: the connection was refused, or is gone.
        writable: whether the socket accepts bytes.
        held: whether reading the socket is stopped.
        answered_bytes: bytes of the answers to the current event.
    """

    def __init__(
        self,
        context: BrokerContext,
        access: Access,
        number: int,
        address: str,
        *,
        certificate: str,
        tls: bool,
        link_token: bytes,
    ) -> None:
        self.outbox = context.outbox
        self.number = number
        self.address = address
        self.certificate = certificate
        self.tls = tls
        self.connected_ms = context.outbox.now_ms
        self.client_version = ""
        self.partial_producers = False
        self.identity = NOBODY
        self.handshake = ServerHandshake(link_token, authentication=access.enabled)
        self.closed = False
        self.writable = True
        self.held = False
        self.answered_bytes = 0
        self._access = access
        self._migrates_cpp = context.config.topic_migrated_to_cpp
        self._holds: set[str] = set()

    def send(self, *buffers: bytes) -> None:
        """Send to the client; nothing once the connection is closed."""
        if not self.closed:
            self.outbox.put(Send(self.number, buffers))
            for buffer in buffers:
                self.answered_bytes += len(buffer)

    def refuse(self, request_id: int, error: BrokerError) -> None:
        """Answer a request with an error."""
        self.send(commands.error(request_id, error.code, error.message))

    def refuse_closed(self, request_id: int, what: str) -> None:
        """Answer a request to open something that its client closed meanwhile."""
        self.refuse(request_id, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{what} was closed before it was open"))

    def close(self, reason: str) -> None:
        """End the connection; its producers and consumers end when the socket does."""
        self.outbox.put(Close(self.number, reason))

    def hold(self, hold: bool, reason: str = "memory") -> None:
        """Stop or resume reading from the socket: unread bytes stay with the sender. It is read when no reason to stop
        is left.
        """
        if self.closed:
            return
        before = self.held
        (self._holds.add if hold else self._holds.discard)(reason)
        self.held = bool(self._holds)
        if self.held != before:
            self.outbox.put(Hold(self.number, self.held))

    def check(self, operation: Operation, where: Where, original: str = "", subscription: str = "") -> None:
        """Refuse an operation that the client's role has no permission for.

        Args:
            operation, where: the operation and its scope.
            original: the original role that it names in this command.
            subscription: the subscription that it wants to use.

        Raises:
            BrokerError: AuthorizationError.
        """
        access = self._access
        if access.enabled:
            identity = access.speak_for(self.identity, original) if original else self.identity
            access.check(identity, operation, where, subscription)

    def allowed(self, operation: Operation, where: Where, subscription: str = "") -> bool:
        """Whether the client's role may do something."""
        return self._access.authorizer.allowed(self.identity, operation, where, subscription)

    @property
    def role(self) -> str:
        """The role that permissions are granted to; for a proxy its original role. "" without authentication."""
        return self.identity.original or self.identity.role

    @property
    def remembers_migration(self) -> bool:
        """Whether the client can be sent TOPIC_MIGRATED, so that it remembers the other cluster's address.

        Clients over the C++ client 4.2 and older end their process when they log at debug level that it came, and the
        Python client does so with every logger of Python's. They are moved by CLOSE_CONSUMER alone unless the operator
        says otherwise (`topic_migrated_to_cpp`).
        """
        return self._migrates_cpp or not self.client_version.startswith("Pulsar-CPP")

    @property
    def learns_end(self) -> bool:
        """Whether the client can be sent REACHED_END_OF_TOPIC. Java's clients and our WebSockets are made for it; the C++
        client, and Go's, close their connection when they meet it.
        """
        return self.client_version.startswith(("Pulsar-Java", "Magnetar-WebSocket"))
