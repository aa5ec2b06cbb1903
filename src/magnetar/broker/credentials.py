"""Who somebody is: tokens (JWT), names with passwords, client certificates. Pure: keys and the time are arguments.

What a token has to fulfil, in this order; the first that fails is the answer:

    size           at most `token_bytes_max`: nothing longer is looked into
    shape          three parts in base64url, a JSON header without `crit`
    algorithm      one that a configured key can have: the *key* says which, never the token. A secret key knows HS256,
                   HS384 and HS512 alone, a public key those of its own type: so a token "signed" by HMAC with the
                   public key as its secret finds no key, and neither does `none`
    signature      of any of the keys with that algorithm
    times          `exp` and `nbf`, with the allowed skew; `exp` may be demanded
    audience       when one is configured
    role           the claim is a text, or a list whose first element is one

Answers name what is wrong, and never show what was presented.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import bcrypt
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from magnetar.core.errors import BrokerError, ConfigError, ErrorCode
from magnetar.core.security import AuthenticationConfig, check_role

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

SECRET_BYTES_MIN: Final = 32
"""RFC 7518, 3.2: a key of HMAC is at least as long as its hash."""

PASSWORD_BYTES_MAX: Final = 72
"""What bcrypt looks at; a longer password would be equal to its beginning."""

ANONYMOUS_METHODS: Final = frozenset({"", "none"})
"""How clients without credentials announce themselves."""

# Checked when the name is unknown and nobody else's hash is there to take as long as a wrong password does.
_NOBODY: Final = b"$2b$10$CwTycUXWue0Thq9StjUM0uJ8mW5F8h5QYQ9ZK1Zr7C3rJ2s5g8h5K"


class Identity(NamedTuple):
    """Somebody who proved who they are.

    Attributes:
        role: what permissions are given to.
        method: how it was proved; "anonymous" when it was not.
        expires_ms: when the proof ends; None: never.
        original: for whom a proxy speaks, "" when for itself: both need the permission.
    """

    role: str
    method: str
    expires_ms: int | None = None
    original: str = ""

    @property
    def shown(self) -> str:
        """For logs and errors."""
        return f"{self.role} for {self.original}" if self.original else self.role


class Keys(NamedTuple):
    """What proofs are checked with; read from files by `runtime.secrets`.

    Attributes:
        secrets: keys of HMAC.
        publics: keys of the other algorithms.
        passwords: name -> bcrypt hash.
    """

    secrets: Sequence[bytes] = ()
    publics: Sequence[PublicKey] = ()
    passwords: Mapping[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Keys({len(self.secrets)} secret, {len(self.publics)} public, {len(self.passwords)} passwords)"


def secret_algorithms(secret: bytes) -> tuple[str, ...]:
    """The algorithms for which a secret is long enough."""
    return tuple(name for name, size in (("HS256", 32), ("HS384", 48), ("HS512", 64)) if len(secret) >= size)


def public_algorithms(key: PublicKey) -> tuple[str, ...]:
    """The algorithms of a public key, by its type and curve.

    Raises:
        ConfigError: a curve that JWT does not know, or an RSA key of less than 2048 bits.
    """
    match key:
        case RSAPublicKey():
            if key.key_size < 2048:
                raise ConfigError(f"an RSA key of {key.key_size} bits can be broken: 2048 is the least")
            return ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
        case EllipticCurvePublicKey():
            curves: tuple[tuple[type[Any], str], ...] = (
                (SECP256R1, "ES256"),
                (SECP384R1, "ES384"),
                (SECP521R1, "ES512"),
            )
            for curve, name in curves:
                if isinstance(key.curve, curve):
                    return (name,)
            raise ConfigError(f"JWT has no algorithm for the curve {key.curve.name}: use P-256, P-384 or P-521")
        case _:
            return ("EdDSA",)


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
    """A failed login of somebody who may be guessing: what was presented is by no key, or no password, of this broker."""


def denied(reason: str) -> BrokerError:
    """A failed login that is no guess: nothing was presented, or what was is genuine but does not do."""
    return BrokerError(ErrorCode.AUTHENTICATION, f"authentication failed: {reason}")


def guessed(reason: str) -> Guess:
    """A failed login that counts against its address."""
    return Guess(ErrorCode.AUTHENTICATION, f"authentication failed: {reason}")


class Verifier:
    """Checks proofs.

    Args:
        config: the `[authentication]` table.
        keys: what to check with.
    """

    def __init__(self, config: AuthenticationConfig, keys: Keys) -> None:
        self._config = config
        self._methods = frozenset(config.methods)
        self._passwords = dict(keys.passwords)
        self._nobody = next(iter(self._passwords.values()), _NOBODY)
        # PyJWT's own time and audience checks read the clock and know one name of the claim: they are made here.
        self._jwt = jwt.PyJWS(options={"verify_signature": True})
        self._keys: list[tuple[Any, tuple[str, ...]]] = []
        for secret in keys.secrets:
            self._keys.append((secret, secret_algorithms(secret)))
        for public in keys.publics:
            self._keys.append((public, public_algorithms(public)))

    def slow(self, method: str) -> bool:
        """Whether `verify` takes long enough (bcrypt: 50 ms and more) to be done off the broker's thread."""
        return method == "basic"

    def verify(self, method: str, data: bytes, now_ms: int, certificate: str = "") -> Identity:
        """Who presents this.

        Args:
            method: as CONNECT names it: `token`, `basic`, `tls`, or nothing.
            data: what is presented.
            now_ms: wall clock.
            certificate: the common name of the client certificate that TLS checked, "" without.

        Raises:
            BrokerError: nobody (AuthenticationError); one line that does not show what was presented.
        """
        if method in ANONYMOUS_METHODS or (method not in self._methods and self._config.anonymous_role):
            # As in Pulsar: what is presented in a way that nobody checks here gives no other rights than nothing does.
            if not self._config.anonymous_role:
                raise denied(f"this broker needs one of {', '.join(sorted(self._methods))}, and nothing was presented")
            return Identity(self._config.anonymous_role, "anonymous")
        if method not in self._methods:
            raise denied(f"method {method[:40]!a} is not one of {', '.join(sorted(self._methods))}")
        if method == "tls":
            return _from_certificate(certificate)
        if not data:
            raise denied(f"method {method} without any data")
        if method == "basic":
            return self._password(data)
        return self._token(data, now_ms)

    # --------------------------------------------------------------------------------------------------------- tokens

    def _token(self, data: bytes, now_ms: int) -> Identity:
        if len(data) > self._config.token_bytes_max:
            raise guessed(f"a token of {len(data)} bytes is over token_bytes_max ({self._config.token_bytes_max})")
        claims = self._claims(data)
        expires_ms = self._check_times(claims, now_ms)
        self._check_audience(claims)
        return Identity(self._role(claims), "token", expires_ms)

    def _claims(self, data: bytes) -> dict[str, Any]:
        """The claims of a token whose signature is right."""
        try:
            header = self._jwt.get_unverified_header(data.decode("ascii"))
        except (jwt.PyJWTError, UnicodeDecodeError, ValueError, RecursionError):
            raise guessed("the token is not a JWT") from None
        found = header.get("alg")
        algorithm = found if isinstance(found, str) else type(found).__name__
        if "crit" in header or header.get("b64", True) is not True:
            raise guessed("the token's header demands an extension that this broker does not know")
        keys = [key for key, algorithms in self._keys if algorithm in algorithms]
        if not keys:
            raise guessed(f"no key of this broker has the token's algorithm {algorithm[:20]!a}")
        for key in keys:
            try:
                payload = self._jwt.decode_complete(data, key, algorithms=[algorithm])["payload"]
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
                continue
            return _json_object(payload)
        raise guessed("the token's signature is not by a key of this broker")

    def _check_times(self, claims: dict[str, Any], now_ms: int) -> int | None:
        skew_ms = self._config.clock_skew_s * 1000
        expires_ms = _time_ms(claims, "exp")
        starts_ms = _time_ms(claims, "nbf")
        if expires_ms is None and self._config.expiry_required:
            raise denied("the token has no expiry (exp), which expiry_required demands")
        if expires_ms is not None and now_ms >= expires_ms + skew_ms:
            raise denied("the token has expired")
        if starts_ms is not None and now_ms < starts_ms - skew_ms:
            raise denied("the token is not valid yet (nbf)")
        return None if expires_ms is None else expires_ms + skew_ms

    def _check_audience(self, claims: dict[str, Any]) -> None:
        wanted = self._config.audience
        if not wanted:
            return
        found = claims.get(self._config.audience_claim)
        if not (found == wanted or (isinstance(found, list) and wanted in found)):
            raise denied(f"the token is for another audience, not {wanted!a}")

    def _role(self, claims: dict[str, Any]) -> str:
        found = claims.get(self._config.role_claim)
        if isinstance(found, list):
            found = found[0] if found else None
        if not isinstance(found, str):
            raise denied(f"the token has no role: claim {self._config.role_claim!a} is no text")
        try:
            return check_role(found)
        except ValueError as error:
            raise denied(f"claim {self._config.role_claim!a}: {error}") from None

    # ------------------------------------------------------------------------------------------------------ passwords

    def _password(self, data: bytes) -> Identity:
        if len(data) > self._config.token_bytes_max:
            raise guessed("the name and password are too long")
        name_bytes, colon, password = data.partition(b":")
        try:
            name = name_bytes.decode()
        except UnicodeDecodeError:
            name = ""
        hashed = self._passwords.get(name)
        usable = bool(colon) and 0 < len(password) <= PASSWORD_BYTES_MAX and b"\0" not in password
        right = bcrypt.checkpw(password if usable else b"-", hashed or self._nobody)
        if not (usable and right and hashed):
            raise guessed("the name or the password is wrong")
        return Identity(name, "basic")


def _from_certificate(certificate: str) -> Identity:
    if not certificate:
        raise denied("method tls needs a connection by TLS with a client certificate that has a common name")
    try:
        return Identity(check_role(certificate), "tls")
    except ValueError as error:
        raise denied(f"the certificate's common name: {error}") from None


def _json_object(payload: Any) -> dict[str, Any]:
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise denied("the token's claims are not a JSON object")
    return claims


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise denied(f"the token's {name} is not a time in seconds")
    if not 0 <= value < 1 << 40:
        raise denied(f"the token's {name} is no possible time")
    return int(value * 1000)


def basic_from_header(text: str) -> bytes:
    """`name:password` of an HTTP `Authorization: Basic` value.

    Raises:
        BrokerError: it is not base64.
    """
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise guessed("the Basic credentials are not in base64") from None
