"""Authentication and authorization for one broker: counting logins, checking credentials, deciding.

The Pulsar port and REST ask `Access`. Without authentication `Broker.access.enabled` is false, every client is
`NOBODY`, and nothing is refused.

A change of permissions or of a tenant's administrators applies to everything that begins after it, and ends at once
what it forbids: producers and consumers whose role lost the permission are closed, and their clients are refused when
they reconnect.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from magnetar.broker.security.authorization import Authorizer, Operation, Where
from magnetar.broker.security.credentials import Guess, Identity, Keys, PasswordProof, Verifier
from magnetar.broker.security.logins import (
    CHECKS_WAITING_MAX,
    SPRAY,
    Check,
    CheckQueue,
    FailedLogins,
    Outcome,
    Recent,
    Waiter,
    source_of,
)
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.core.security import Security
from magnetar.effects.outbox import Compute, Note, Outbox
from magnetar.metadata.change import Change
from magnetar.metadata.keys import TENANT_PREFIX
from magnetar.metadata.permissions import PERMISSION_PREFIX
from magnetar.metadata.resources import Resources

NOBODY: Final = Identity("", "none")
"""Every client, without authentication."""

NAME_COUNTED: Final = 64
"""The number of characters of a name that are remembered after a failed login."""

NO_SECURITY: Final = Security()

Then = Callable[[Identity | None, BrokerError | None], None]
Wanted = Callable[[], bool]


class Client(Protocol):
    """A connection on which a client may have logged in (`session.session.Session`)."""

    def permissions_changed(self) -> None:
        """Permissions changed: end what this client may no longer do."""


class Access:
    """Checks logins and permissions.

    Args:
        outbox: the broker's.
        security: the configuration.
        keys: the keys for checking credentials.
        resources: tenants and permissions.
        sessions: the broker's connections, by number.
    """

    def __init__(
        self,
        outbox: Outbox,
        security: Security,
        keys: Keys,
        resources: Resources,
        sessions: Mapping[int, Client],
    ) -> None:
        self._outbox = outbox
        self._sessions = sessions
        self.config = security.authentication
        self.enabled = self.config.enabled
        self.authorizer = Authorizer(security.authorization, resources)
        self._resources = resources
        self._prefixed: set[NamespaceName] = set()
        self.verifier = Verifier(self.config, keys)
        most, window_ms = self.config.failed_logins_max, self.config.failed_logins_ms
        self._failed_tokens = FailedLogins(most, window_ms)
        self._failed_names = FailedLogins(most, window_ms)
        self._failed_sources = FailedLogins(most * SPRAY, window_ms)
        self._queue = CheckQueue()
        self._checking: Check | None = None
        self._proven, self._users = Recent(), Recent()
        self._counts = dict.fromkeys(("in", "refused", "guessed", "waiting"), 0)

    def new_keys(self, keys: Keys) -> None:
        """The key files changed. Connected clients stay; later credentials are checked with the new keys."""
        self.verifier = Verifier(self.config, keys)
        self._proven.clear()
        self._outbox.put(Note("info", f"authentication: new keys are in force: {keys}"))

    # --------------------------------------------------------------------------------------------------------- logins

    def login(
        self, address: str, method: str, data: bytes, certificate: str, then: Then, *, wanted: Wanted = lambda: True
    ) -> None:
        """Authenticate a client: `then(identity, None)` or `then(None, error)`, at once or after a slow check.

        Args:
            address: the peer's address, with its port.
            method, data: the credentials.
            certificate: common name of the client certificate that TLS checked.
            then: called with the result.
            wanted: whether the result is still wanted: a client that is gone does not delay others.
        """
        source = source_of(address)

        def end(outcome: Outcome) -> None:
            if isinstance(outcome, BrokerError):
                then(None, outcome)
            else:
                self._counts["in"] += 1
                then(outcome, None)

        if self.verifier.slow(method):
            self._password(address, source, data, end, wanted)
            return
        try:
            identity = self.verifier.verify(method, data, self._outbox.day_ms, certificate)
        except BrokerError as error:
            end(self._wrong_token(address, source, error))
        else:
            end(identity)

    def _wrong_token(self, address: str, source: str, error: BrokerError) -> BrokerError:
        """The error for wrong credentials other than a password."""
        now_ms = self._outbox.now_ms
        if isinstance(error, Guess) and (wait_ms := self._failed_tokens.waits_ms(source, now_ms)):
            return self._waits(source, wait_ms)
        self._refused(address, error)
        if isinstance(error, Guess) and self._failed_tokens.failed(source, now_ms):
            self._say_waits(source, "failed logins", self.config.failed_logins_max, "wrong tokens are")
        return error

    def _waits(self, who: str, wait_ms: int) -> BrokerError:
        self._counts["waiting"] += 1
        return BrokerError(
            ErrorCode.TOO_MANY_REQUESTS,
            f"too many failed logins from {who} (failed_logins_max): wait {-(-wait_ms // 1000)} s",
        )

    def _refused(self, address: str, error: BrokerError) -> None:
        self._counts["guessed" if isinstance(error, Guess) else "refused"] += 1
        self._outbox.put(Note("warning", f"{address}: {error.message}"))

    def _say_waits(self, who: str, what: str, count: int, refused: str) -> None:
        seconds = self.config.failed_logins_ms // 1000
        self._outbox.put(
            Note("warning", f"{who}: {count} {what} (failed_logins_max): {refused} refused for {seconds} s")
        )

    # ------------------------------------------------------------------------------------------------------ passwords

    def _password(self, address: str, source: str, data: bytes, end: Waiter, wanted: Wanted) -> None:
        """Check a name and a password, now if it is known to be right, else in its turn."""
        try:
            proof = self.verifier.password(data)
        except BrokerError as wrong:
            self._refused(address, wrong)
            if isinstance(wrong, Guess):
                self._guessed(source, "")
            end(wrong)
            return
        name = proof.name[:NAME_COUNTED]
        if wait_ms := self._password_waits_ms(source, name):
            end(self._waits(source, wait_ms))
            return
        if proof.key in self._proven:
            self._proven.note(proof.key)
            self._users.note((source, name))
            end(Identity(proof.name, "basic"))
            return

        def judged(outcome: Outcome) -> None:
            # Counted for each client: equal credentials of many clients are one check, and as many guesses.
            if isinstance(outcome, Guess):
                self._refused(address, outcome)
                self._guessed(source, name)
            elif not isinstance(outcome, BrokerError):
                self._users.note((source, name))
            end(outcome)

        if self._checking is not None and self._checking.proof.key == proof.key:
            self._checking.waiters.append((judged, wanted))
            return
        if (same := self._queue.same(proof.key)) is not None:
            same.waiters.append((judged, wanted))
            return
        goes = self._queue.put(Check(source, name, proof, [(judged, wanted)]))
        if goes is not None:
            error = BrokerError(
                ErrorCode.SERVICE_NOT_READY,
                f"{CHECKS_WAITING_MAX} passwords wait to be checked, and {goes.source} presented most of them; try again",
            )
            for waiter, _ in goes.waiters:
                waiter(error)
        self._check_next()

    def _password_waits_ms(self, source: str, name: str) -> int:
        """The time for which a name's passwords are refused without a check; for a name that has logged in from there,
        only its own failures count.
        """
        now_ms = self._outbox.now_ms
        wait_ms = self._failed_names.waits_ms(f"{source} {name}", now_ms)
        if not wait_ms and (source, name) not in self._users:
            wait_ms = self._failed_sources.waits_ms(source, now_ms)
        return wait_ms

    def _guessed(self, source: str, name: str) -> None:
        now_ms, most = self._outbox.now_ms, self.config.failed_logins_max
        if self._failed_names.failed(f"{source} {name}", now_ms):
            self._say_waits(source, "failed logins of one name", most, "passwords of that name are")
        if self._failed_sources.failed(source, now_ms):
            self._say_waits(source, "failed logins", most * SPRAY, "passwords of names not proved from there are")

    def _check_next(self) -> None:
        while self._checking is None and (check := self._queue.take()) is not None:
            check.waiters = [(waiter, wanted) for waiter, wanted in check.waiters if wanted()]
            if check.waiters:
                self._checking = check
                self._outbox.put(Compute(partial(_outcome, check.proof), self._checked))

    def _checked(self, outcome: Outcome) -> None:
        check, self._checking = self._checking, None
        assert check is not None
        if isinstance(outcome, Identity):
            if self.verifier.password_of(outcome.role) == check.proof.hashed:
                self._proven.note(check.proof.key)
            else:
                outcome = BrokerError(ErrorCode.SERVICE_NOT_READY, "the passwords were just changed: try again")
        for waiter, _ in check.waiters:
            waiter(outcome)
        self._check_next()

    def speak_for(self, identity: Identity, original: str) -> Identity:
        """Add the original role that a proxy names.

        Raises:
            BrokerError: the role is not a proxy, or the name is not a possible role (AuthorizationError).
        """
        if not original:
            return identity
        if identity.role not in self.config.proxy_roles:
            raise BrokerError(
                ErrorCode.AUTHORIZATION,
                f"role {identity.role} is not a proxy (proxy_roles): it may act for no other role",
            )
        if original in self.config.proxy_roles or not original.isprintable() or len(original) > 512:
            raise BrokerError(ErrorCode.AUTHORIZATION, f"a proxy cannot speak for {original[:60]!a}")
        return identity._replace(original=original)

    def stats(self) -> dict[str, int]:
        """Logins since the start, by result: accepted; refused; refused as guesses; refused because the source
        waits.
        """
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
        """A change of resources is in force: close what it forbids."""
        if not self.enabled:
            return
        modes = self._modes_changed(change)
        if modes or any(key.startswith((PERMISSION_PREFIX, TENANT_PREFIX)) for key in change.keys):
            for session in list(self._sessions.values()):
                session.permissions_changed()

    def _modes_changed(self, change: Change) -> bool:
        """Whether a namespace begins to require subscriptions named after roles; other policies do not affect
        permissions.
        """
        changed = False
        for text in change.namespaces:
            namespace = NamespaceName.parse(text)
            if self._resources.shared_policies(namespace).subscription_auth_mode != "Prefix":
                self._prefixed.discard(namespace)
            elif namespace not in self._prefixed:
                self._prefixed.add(namespace)
                changed = True
        return changed


def _outcome(proof: PasswordProof) -> Outcome:
    """The result of a slow check, which is done outside the broker's thread."""
    try:
        return Verifier.check(proof)
    except BrokerError as error:
        return error
