"""CONNECT of one client, its authentication, and the repetition of this before the client's token expires.

    state      event                                  becomes
    ---------  -------------------------------------  -------------------------------------------------------------
    proving    proof is right                         in; a timer for `refresh_ms` before its end, if it has one
               proof is wrong, or may not be a link   closed (AuthenticationError, AuthorizationError)
    in         timer; the client can refresh          asked (AUTH_CHALLENGE); a timer for the end of the proof
               timer; the client cannot               in; a timer for the end
               end of the proof                       closed
    asked      right proof of the same role           in; as above. One that ends no later is asked for again at its end
               wrong proof, or of another role        closed
               end of the proof                       closed

A client that is asked has time until its old proof ends, but at least `ANSWER_MS_MIN`. An AUTH_RESPONSE without a
challenge ends the connection: a client cannot change its role in this way.
"""

from collections.abc import Callable
from typing import Final, Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.security.access import Access, Then
from magnetar.broker.security.credentials import Identity, denied
from magnetar.broker.session.refusals import over_limit
from magnetar.broker.statistics.latency import Connections
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD, NO_REQUEST, State
from magnetar.wire.frame import Frame, Refused

ANSWER_MS_MIN: Final = 5_000
"""The least time that a client has to authenticate again: a round trip, and a request to the issuer of its token."""


LetIn = Callable[[bool], None]
"""Called when CONNECT is accepted, with whether the client is a link: it answers CONNECT."""


class Ending(Protocol):
    """A broker that ends connections."""

    def disconnected(self, connection: int) -> None:
        """A client is gone."""


class LoginServices(Protocol):
    """The part of a broker, which serves or waits to take over, that a login uses."""

    @property
    def context(self) -> BrokerContext:
        """The broker's context."""

    @property
    def access(self) -> Access:
        """Checks credentials."""

    @property
    def counters(self) -> Connections:
        """Counts connections that are refused."""

    @property
    def broker(self) -> Ending:
        """The broker itself."""

    def may_link(self, identity: Identity) -> bool:
        """Whether this role may be a link at all."""


class SessionLogin:
    """The login of one connection.

    Args:
        connection: the connection.
        services: of the broker.
    """

    def __init__(self, connection: Connection, services: LoginServices) -> None:
        self._connection = connection
        self._access = services.access
        self._services = services
        self._link = False
        self._method = ""
        self._refreshes = False
        self._asked = False
        self._round = 0  # a timer of an earlier round has nothing to say

    @property
    def asked(self) -> bool:
        """Whether the client was asked for a new proof that has not been accepted yet."""
        return self._asked

    def connect(self, frame: Frame, let_in: LetIn) -> None:
        """The first frame of the connection: CONNECT is checked, and refused here if it cannot be accepted.

        Args:
            frame: what came.
            let_in: called if the client may come in, unless the connection ends before.

        Raises:
            ProtocolError: it is not CONNECT, or not the first.
        """
        connection = self._connection
        if type(frame) is Refused and connection.handshake.state is State.NEW:
            self.refuse(over_limit(frame))
            return
        command = frame.command.connect
        connection.client_version = command.client_version
        connection.partial_producers = command.feature_flags.supports_partial_producer
        try:
            accepted = connection.handshake.connect(frame.command)
        except BrokerError as error:
            self.refuse(error)
            return
        if accepted.proving:
            self._authenticate(command, link=accepted.link, let_in=let_in)
        else:
            let_in(accepted.link)

    def refuse(self, error: BrokerError, *, logged: bool = False) -> None:
        """Answer CONNECT with an error, then end the connection; `logged`: why is in the log already."""
        connection = self._connection
        self._services.counters.failed += 1
        connection.send(commands.error(NO_REQUEST, error.code, error.message))
        connection.close("" if logged else error.message)
        connection.closed = True
        connection.handshake.close()

    def _authenticate(self, command: pb.CommandConnect, *, link: bool, let_in: LetIn) -> None:
        self._link = link
        self._refreshes = command.feature_flags.supports_auth_refresh
        original = command.original_principal

        def then(identity: Identity | None, error: BrokerError | None) -> None:
            if self._connection.closed:
                return
            if identity is None:
                self.refuse(error or denied("nobody"), logged=True)
                return
            try:
                self._prove(self._access.speak_for(identity, original))
            except BrokerError as refused:
                self.refuse(refused)
                return
            let_in(link)
            if not self._connection.closed:
                self._watch(self._connection.identity)

        self._check(command.auth_method_name, command.auth_data, then)

    def _check(self, name: str, data: bytes, then: Then) -> None:
        """Links say by the method's name that they are links: they present a token, or a certificate alone."""
        self._method = name
        method = name
        if name == LINK_AUTH_METHOD:
            method = "token" if data else "tls"
        connection = self._connection
        self._access.login(
            connection.address, method, data, connection.certificate, then, wanted=lambda: not connection.closed
        )

    def _prove(self, identity: Identity) -> None:
        if self._link and not self._services.may_link(identity):
            raise BrokerError(
                ErrorCode.AUTHORIZATION,
                f"role {identity.shown} may not be a link: it is not in replicate_roles and has no replicate permission",
            )
        self._connection.identity = identity
        self._connection.handshake.proved(link=self._link)

    def disconnected(self) -> None:
        """The connection is gone."""
        self._round += 1

    # ------------------------------------------------------------------------------------------------------ refreshing

    def _watch(self, identity: Identity) -> None:
        """Set the timer for the end of a proof."""
        self._round += 1
        self._asked = False
        if identity.expires_ms is None:
            return
        day_ms = self._connection.outbox.day_ms
        early_ms = min(self._access.config.refresh_ms, max(0, identity.expires_ms - day_ms) // 2)
        at_ms = identity.expires_ms - early_ms if self._refreshes else identity.expires_ms
        self._wake(at_ms, identity.expires_ms)

    def _wake(self, at_ms: int, expires_ms: int) -> None:
        """Look again at a time of day, which comes later when the clock is set back meanwhile."""
        outbox, current = self._connection.outbox, self._round

        def due(_now_ms: int) -> None:
            if current == self._round and not self._connection.closed:
                if outbox.day_ms < at_ms:
                    self._wake(at_ms, expires_ms)
                else:
                    self._due(expires_ms)

        self._services.context.timer(at_ms + outbox.ahead_ms, due)

    def _due(self, expires_ms: int) -> None:
        if self._asked or not self._refreshes:
            self._expired()
            return
        self._asked = True
        self._connection.send(commands.auth_challenge(self._connection.handshake.protocol_version, self._method))
        self._wake(max(expires_ms, self._connection.outbox.day_ms + ANSWER_MS_MIN), expires_ms)

    def _expired(self) -> None:
        connection = self._connection
        connection.close(f"what {connection.identity.shown} presented has expired")
        self._services.broker.disconnected(connection.number)

    def response(self, command: pb.CommandAuthResponse) -> None:
        """AUTH_RESPONSE.

        Raises:
            ProtocolError: there was no challenge.
        """
        if not self._asked:
            raise ProtocolError("AUTH_RESPONSE without a request for it")
        current = self._round
        before = self._connection.identity

        def then(identity: Identity | None, error: BrokerError | None) -> None:
            connection = self._connection
            if connection.closed or current != self._round:
                return
            if identity is None or identity.role != before.role:
                reason = error.message if error is not None else f"role {before.role} presented itself as another one"
                if error is not None:
                    connection.refuse(NO_REQUEST, error)  # as Pulsar: it is in the client's log then
                connection.close(reason)
                self._services.broker.disconnected(connection.number)
                return
            connection.identity = identity._replace(original=before.original)
            if identity.expires_ms is not None and identity.expires_ms <= (before.expires_ms or 0):
                # The same token again: its issuer has not made another yet. It is asked for once more, at its end.
                self._asked = False
                self._round += 1
                self._wake(identity.expires_ms, identity.expires_ms)
                return
            self._watch(identity)

        self._check(command.response.auth_method_name, command.response.auth_data, then)
