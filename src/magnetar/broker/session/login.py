"""How one client proves who it is, and proves it again before its token expires.

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

A client that is asked has until its old proof ends, but `ANSWER_MS_MIN` at least. AUTH_RESPONSE that nobody asked for ends
the connection: it is no way to become somebody else.
"""

from typing import TYPE_CHECKING, Final

from magnetar.broker.security.access import Then
from magnetar.broker.security.credentials import Identity, denied
from magnetar.broker.session.part import SessionPart
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD, NO_REQUEST

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session

ANSWER_MS_MIN: Final = 5_000
"""How long a client may at least take to present itself anew: a round trip and asking its token's issuer."""


class SessionLogin(SessionPart):
    """The login of one connection.

    Args:
        session: the connection.
    """

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self._link = False
        self._method = ""
        self._refreshes = False
        self._asked = False
        self._round = 0  # a timer of an earlier round has nothing to say

    def connect(self, command: pb.CommandConnect, *, link: bool) -> None:
        """Check what CONNECT presents; the answer to it follows."""
        self._link = link
        self._refreshes = command.feature_flags.supports_auth_refresh
        original = command.original_principal

        def then(identity: Identity | None, error: BrokerError | None) -> None:
            session = self._session
            if session.closed:
                return
            if identity is None:
                session.refuse_connection(error or denied("nobody"), logged=True)
                return
            try:
                self._let_in(self._broker.access.speak_for(identity, original))
            except BrokerError as refused:
                session.refuse_connection(refused)

        self._check(command.auth_method_name, command.auth_data, then)

    def _check(self, name: str, data: bytes, then: Then) -> None:
        """Links say by the method's name that they are links: they present a token, or a certificate alone."""
        self._method = name
        method = name
        if name == LINK_AUTH_METHOD:
            method = "token" if data else "tls"
        session = self._session
        self._broker.access.login(
            session.address, method, data, session.certificate, then, wanted=lambda: not session.closed
        )

    def _let_in(self, identity: Identity) -> None:
        session = self._session
        if self._link and not self._broker.access.authorizer.links_at_all(identity):
            raise BrokerError(
                ErrorCode.AUTHORIZATION,
                f"role {identity.shown} may not be a link: it is none of replicate_roles and has no replicate permission",
            )
        session.identity = identity
        session.handshake.proved(link=self._link)
        session.connected(link=self._link)
        self._watch(identity)

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
        day_ms = self._broker.outbox.day_ms
        early_ms = min(self._broker.access.config.refresh_ms, max(0, identity.expires_ms - day_ms) // 2)
        at_ms = identity.expires_ms - early_ms if self._refreshes else identity.expires_ms
        self._wake(at_ms, identity.expires_ms)

    def _wake(self, at_ms: int, expires_ms: int) -> None:
        """Look again at a time of day, which comes later when the clock is set back meanwhile."""
        outbox, current = self._broker.outbox, self._round

        def due(_now_ms: int) -> None:
            if current == self._round and not self._session.closed:
                if outbox.day_ms < at_ms:
                    self._wake(at_ms, expires_ms)
                else:
                    self._due(expires_ms)

        self._broker.timer(at_ms + outbox.ahead_ms, due)

    def _due(self, expires_ms: int) -> None:
        if self._asked or not self._refreshes:
            self._expired()
            return
        self._asked = True
        self._session.send(commands.auth_challenge(self._session.handshake.protocol_version, self._method))
        self._wake(max(expires_ms, self._broker.outbox.day_ms + ANSWER_MS_MIN), expires_ms)

    def _expired(self) -> None:
        session = self._session
        session.close(f"what {session.identity.shown} presented has expired")
        self._broker.disconnected(session.number)

    def response(self, command: pb.CommandAuthResponse) -> None:
        """AUTH_RESPONSE.

        Raises:
            ProtocolError: nobody asked.
        """
        if not self._asked:
            raise ProtocolError("AUTH_RESPONSE without a request for it")
        current = self._round
        before = self._session.identity

        def then(identity: Identity | None, error: BrokerError | None) -> None:
            session = self._session
            if session.closed or current != self._round:
                return
            if identity is None or identity.role != before.role:
                reason = error.message if error is not None else f"role {before.role} presented itself as another one"
                if error is not None:
                    session.refuse(NO_REQUEST, error)  # as Pulsar: it is in the client's log then
                session.close(reason)
                self._broker.disconnected(session.number)
                return
            session.identity = identity._replace(original=before.original)
            if identity.expires_ms is not None and identity.expires_ms <= (before.expires_ms or 0):
                # The same token again: its issuer has not made another yet. It is asked for once more, at its end.
                self._asked = False
                self._round += 1
                self._wake(identity.expires_ms, identity.expires_ms)
                return
            self._watch(identity)

        self._check(command.response.auth_method_name, command.response.auth_data, then)
