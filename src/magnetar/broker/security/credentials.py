"""Credentials of clients: names with passwords, client certificates, and JWT (in `tokens`). Pure: keys and the time are
arguments.

Errors name the reason, and never show the credentials.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import bcrypt

from magnetar.core.errors import BrokerError, ConfigError, ErrorCode
from magnetar.core.security import AuthenticationConfig, check_role

if TYPE_CHECKING:
    from magnetar.broker.security.tokens import PublicKey, Tokens

SECRET_BYTES_MIN: Final = 32
"""RFC 7518, 3.2: a key of HMAC is at least as long as its hash."""

PASSWORD_BYTES_MAX: Final = 72
"""The bytes that bcrypt looks at; a longer password would be equal to its beginning."""

METHOD_SHOWN_MAX: Final = 12
"""Characters of an unknown method that are shown; those of other systems are words such as `kerberos`."""

ANONYMOUS_METHODS: Final = frozenset({"", "none"})
"""The method names of clients without credentials."""

# Checked for an unknown name if there is no other hash, so that it takes as long as a wrong password.
_NOBODY: Final = b"$2b$10$CwTycUXWue0Thq9StjUM0uJ8mW5F8h5QYQ9ZK1Zr7C3rJ2s5g8h5K"


class Identity(NamedTuple):
    """An authenticated client.

    Attributes:
        role: the role that permissions are granted to.
        method: method of authentication; "anonymous" without one.
        expires_ms: when the credentials expire; None: never.
        original: the original role that a proxy acts for, "" for none: both need the permission.
    """

    role: str
    method: str
    expires_ms: int | None = None
    original: str = ""

    @property
    def shown(self) -> str:
        """The identity for logs and errors."""
        return f"{self.role} for {self.original}" if self.original else self.role


class Keys(NamedTuple):
    """The keys for checking credentials; read from files by `runtime.security.secrets`.

    Attributes:
        secrets: keys of HMAC.
        publics: keys of the other algorithms.
        passwords: name -> bcrypt hash.
        pepper: a secret of this process, with which right passwords are recognised without another slow check.
    """

    secrets: Sequence[bytes] = ()
    publics: "Sequence[PublicKey]" = ()
    passwords: Mapping[str, bytes] = {}
    pepper: bytes = b""

    def __repr__(self) -> str:
        return f"Keys({len(self.secrets)} secret, {len(self.publics)} public, {len(self.passwords)} passwords)"


class PasswordProof(NamedTuple):
    """A name and a password that may be right.

    Attributes:
        name: the claimed name; the role, if the password is right.
        password: as presented.
        hashed: the hash that it has to match; for an unknown name another's, so that the check takes as long.
        known: whether there is such a name.
        key: identifies the name and password; it reveals nothing without the process's secret.
    """

    name: str
    password: bytes
    hashed: bytes
    known: bool
    key: bytes

    def __repr__(self) -> str:
        return "PasswordProof(...)"  # never the password


def parse_passwords(text: str, where: str) -> dict[str, bytes]:
    """The lines `name:hash` of an htpasswd file.

    Raises:
        ConfigError: a line is no such pair, or its hash is not bcrypt; names the line, never shows it.
    """
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, hashed = line.strip().partition(":")
        try:
            check_role(name)
        except ValueError as error:
            raise ConfigError(f"{where}, line {number}: {error}") from None
        if not colon or not hashed.startswith(("$2y$", "$2a$", "$2b$")) or len(hashed) != 60:
            raise ConfigError(f"{where}, line {number}: the hash is not bcrypt; make it with: htpasswd -B")
        found[name] = hashed.encode()
    return found


class Guess(BrokerError):
    """A failed login that may be a guess: the credentials match no key or password of this broker."""


def denied(reason: str) -> BrokerError:
    """A failed login that is not a guess: there were no credentials, or they are genuine but not sufficient."""
    return BrokerError(ErrorCode.AUTHENTICATION, f"authentication failed: {reason}")


def guessed(reason: str) -> Guess:
    """A failed login that counts against its address."""
    return Guess(ErrorCode.AUTHENTICATION, f"authentication failed: {reason}")


class Verifier:
    """Checks credentials.

    Args:
        config: the `[authentication]` table.
        keys: the keys.
    """

    def __init__(self, config: AuthenticationConfig, keys: Keys) -> None:
        self._config = config
        self._methods = frozenset(config.methods)
        self._passwords = dict(keys.passwords)
        self._pepper = keys.pepper
        self._nobody = next(iter(self._passwords.values()), _NOBODY)
        self._tokens = _tokens(config, keys) if "token" in self._methods else None

    def slow(self, method: str) -> bool:
        """Whether `verify` takes long enough (bcrypt: 50 ms and more) to be done off the broker's thread."""
        return method == "basic" and method in self._methods

    def verify(self, method: str, data: bytes, now_ms: int, certificate: str = "") -> Identity:
        """Check credentials, and return their identity.

        Args:
            method: as CONNECT names it: `token`, `basic`, `tls`, or nothing.
            data: the credentials.
            now_ms: wall clock.
            certificate: the common name of the client certificate that TLS checked, "" without.

        Raises:
            BrokerError: they are not valid (AuthenticationError); one line that does not show them.
        """
        if method in ANONYMOUS_METHODS or (method not in self._methods and self._config.anonymous_role):
            # As in Pulsar: credentials of a method that is not configured give the same rights as none.
            if not self._config.anonymous_role:
                raise denied(f"this broker needs one of {', '.join(sorted(self._methods))}, and nothing was presented")
            return Identity(self._config.anonymous_role, "anonymous")
        if method not in self._methods:
            # A client that mixes its fields up names its token as the method.
            shown = f"{method!a} " if len(method) <= METHOD_SHOWN_MAX else ""
            raise denied(f"method {shown}is not one of {', '.join(sorted(self._methods))}")
        if method == "tls":
            return _from_certificate(certificate)
        if not data:
            raise denied(f"method {method} without any data")
        if method == "basic":
            return self.check(self.password(data))
        assert self._tokens is not None, f"a method that nobody checks: {method}"
        return self._tokens.verify(data, now_ms)

    # ------------------------------------------------------------------------------------------------------ passwords

    def password(self, data: bytes) -> PasswordProof:
        """The cheap part of checking a name and a password; `check` does the rest.

        Raises:
            BrokerError: they cannot be right, for any content of the password file.
        """
        if not data:
            raise denied("method basic without any data")
        if len(data) > self._config.token_bytes_max:
            raise guessed("the name and password are too long")
        name_bytes, colon, password = data.partition(b":")
        try:
            name = name_bytes.decode()
        except UnicodeDecodeError:
            name = ""
        if not colon or not 0 < len(password) <= PASSWORD_BYTES_MAX or b"\0" in password:
            raise guessed("the name or the password is wrong")
        hashed = self._passwords.get(name)
        key = hmac.digest(self._pepper, b"%d:" % len(name_bytes) + data + (hashed or b""), "sha256")
        return PasswordProof(name, password, hashed or self._nobody, hashed is not None, key)

    def password_of(self, name: str) -> bytes | None:
        """The hash that a name's password has to match now; None: there is no such name."""
        return self._passwords.get(name)

    @staticmethod
    def check(proof: PasswordProof) -> Identity:
        """Check a password and return its identity: 50 ms and more, by design.

        Raises:
            BrokerError: the password is wrong.
        """
        if not (bcrypt.checkpw(proof.password, proof.hashed) and proof.known):
            raise guessed("the name or the password is wrong")
        return Identity(proof.name, "basic")


def _tokens(config: AuthenticationConfig, keys: Keys) -> "Tokens":
    from magnetar.broker.security.tokens import (
        Tokens,  # PyJWT and cryptography take 0.1 s to import: only for those who use them
    )

    return Tokens(config, keys)


def _from_certificate(certificate: str) -> Identity:
    if not certificate:
        raise denied("method tls needs a connection by TLS with a client certificate that has a common name")
    try:
        return Identity(check_role(certificate), "tls")
    except ValueError as error:
        raise denied(f"the certificate's common name: {error}") from None


def basic_from_header(text: str) -> bytes:
    """`name:password` of an HTTP `Authorization: Basic` value.

    Raises:
        BrokerError: it is not base64.
    """
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise guessed("the Basic credentials are not in base64") from None
