"""Who is let in and what they may do, for one broker: logins counted, proofs checked, decisions made.

`Access` is what the Pulsar port and REST ask. Without authentication there is none: `Broker.access.enabled` is false,
everybody is `NOBODY`, and nothing is refused.

A change of permissions or of a tenant's administrators holds for everything that begins after it, and ends what it
forbids at once: producers and consumers whose role lost the permission are closed, and their clients are refused when
they come back.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.broker.authorizing import Authorizer, Operation, Where
from magnetar.broker.credentials import Guess, Identity, Keys, Verifier
from magnetar.broker.effects import Compute, Note, Outbox
from magnetar.broker.logins import FailedLogins, host_of
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.core.security import Security
from magnetar.metadata.change import Change
from magnetar.metadata.keys import TENANT_PREFIX
from magnetar.metadata.permissions import PERMISSION_PREFIX
from magnetar.metadata.resources import Resources

if TYPE_CHECKING:
    from magnetar.broker.session import Session

NOBODY: Final = Identity("", "none")
"""Everybody, where there is no authentication."""

CHECKS_MAX: Final = 64
"""A ceiling on slow checks (passwords, 60 ms each) under way: more would be answered after their clients gave up."""

NO_SECURITY: Final = Security()

Then = Callable[[Identity | None, BrokerError | None], None]


class Access:
    """Lets clients in.

    Args:
        outbox: the broker's.
        security: the configuration.
        keys: what proofs are checked with.
        resources: tenants and permissions.
        sessions: the broker's connections, by number.
    """

    def __init__(
        self,
        outbox: Outbox,
        security: Security,
        keys: Keys,
        resources: Resources,
        sessions: "dict[int, Session]",
    ) -> None:
        self._outbox = outbox
        self._sessions = sessions
        self.config = security.authentication
        self.enabled = self.config.enabled
        self.authorizer = Authorizer(security.authorization, resources)
        self._resources = resources
        self._prefixed: set[NamespaceName] = set()
        self.verifier = Verifier(self.config, keys)
        self._failed = FailedLogins(self.config.failed_logins_max, self.config.failed_logins_ms)
        self._checks = 0
        self._counts = dict.fromkeys(("in", "refused", "guessed", "waiting"), 0)

    def new_keys(self, keys: Keys) -> None:
        """The key files changed. Who is in stays in; every later proof is checked with these."""
        self.verifier = Verifier(self.config, keys)
        self._outbox.put(Note("info", f"authentication: new keys are in force: {keys}"))

    # --------------------------------------------------------------------------------------------------------- logins

    def login(self, address: str, method: str, data: bytes, certificate: str, then: Then) -> None:
        """Find out who somebody is: `then(identity, None)` or `then(None, error)`, at once or after a slow check.

        Args:
            address: of the peer, with its port.
            method, data: what they present.
            certificate: common name of the client certificate that TLS checked.
            then: told the outcome.
        """
        wait_ms = self._failed.waits_ms(host_of(address), self._outbox.now_ms)
        if wait_ms:
            seconds = -(-wait_ms // 1000)
            error = BrokerError(
                ErrorCode.TOO_MANY_REQUESTS,
                f"too many failed logins from {host_of(address)} (failed_logins_max): wait {seconds} s",
            )
            self._counts["waiting"] += 1
            then(None, error)
            return
        verifier, now_ms = self.verifier, self._outbox.now_ms

        def work() -> Identity | BrokerError:
            try:
                return verifier.verify(method, data, now_ms, certificate)
            except BrokerError as error:
                return error

        def done(outcome: Identity | BrokerError) -> None:
            self._checks -= 1
            if isinstance(outcome, BrokerError):
                self._refused(address, outcome)
                then(None, outcome)
            else:
                self._counts["in"] += 1
                then(outcome, None)

        if self._checks >= CHECKS_MAX:
            then(None, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{CHECKS_MAX} logins are being checked; try again"))
            return
        self._checks += 1
        if verifier.slow(method):
            self._outbox.put(Compute(work, done))
        else:
            done(work())

    def _refused(self, address: str, error: BrokerError) -> None:
        self._counts["guessed" if isinstance(error, Guess) else "refused"] += 1
        self._outbox.put(Note("warning", f"{address}: {error.message}"))
        if isinstance(error, Guess) and self._failed.failed(host_of(address), self._outbox.now_ms):
            seconds = self.config.failed_logins_ms // 1000
            self._outbox.put(
                Note(
                    "warning",
                    f"{host_of(address)}: {self.config.failed_logins_max} failed logins (failed_logins_max): "
                    f"its logins are refused for {seconds} s",
                )
            )

    def speak_for(self, identity: Identity, original: str) -> Identity:
        """A proxy says for whom it speaks.

        Raises:
            BrokerError: it is no proxy, or nobody can have that name (AuthorizationError).
        """
        if not original:
            return identity
        if identity.role not in self.config.proxy_roles:
            raise BrokerError(
                ErrorCode.AUTHORIZATION, f"role {identity.role} is no proxy (proxy_roles): it speaks for itself alone"
            )
        if original in self.config.proxy_roles or not original.isprintable() or len(original) > 512:
            raise BrokerError(ErrorCode.AUTHORIZATION, f"a proxy cannot speak for {original[:60]!a}")
        return identity._replace(original=original)

    def stats(self) -> dict[str, int]:
        """Logins since the start, by their end: in; refused; refused as guesses; not looked at, for the address waits."""
        return dict(self._counts)

    # ------------------------------------------------------------------------------------------------------ decisions

    def check(self, identity: Identity, operation: Operation, where: Where = None, subscription: str = "") -> None:
        """Refuse what is not allowed.

        Raises:
            BrokerError: AuthorizationError.
        """
        if self.enabled:
            self.authorizer.check(identity, operation, where, subscription)

    def policies_changed(self, change: Change) -> None:
        """A change of resources is in force: what it forbids ends."""
        if not self.enabled:
            return
        modes = self._modes_changed(change)
        if modes or any(key.startswith((PERMISSION_PREFIX, TENANT_PREFIX)) for key in change.keys):
            for session in list(self._sessions.values()):
                session.permissions_changed()

    def _modes_changed(self, change: Change) -> bool:
        """Whether a namespace begins to ask for subscriptions named after roles; other policies concern nobody's rights."""
        changed = False
        for text in change.namespaces:
            namespace = NamespaceName.parse(text)
            if self._resources.shared_policies(namespace).subscription_auth_mode != "Prefix":
                self._prefixed.discard(namespace)
            elif namespace not in self._prefixed:
                self._prefixed.add(namespace)
                changed = True
        return changed
