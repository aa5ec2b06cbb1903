"""Tokens (JWT). The checks, in this order; the first that fails is the answer:

    size           at most `token_bytes_max`: nothing longer is parsed
    shape          three parts in base64url, a JSON header without `crit`
    algorithm      one that a configured key can have: the *key* says which, never the token. A secret key knows HS256,
                   HS384 and HS512 alone, a public key those of its own type: so a token "signed" by HMAC with the
                   public key as its secret finds no key, and neither does `none`
    signature      of any of the keys with that algorithm
    times          `exp` and `nbf`, with the allowed skew; `exp` may be demanded
    audience       when one is configured
    role           the claim is a text, or a list whose first element is one

Errors name the reason, and never show the token.
"""

import json
import math
from typing import Any

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

from magnetar.broker.security.credentials import Identity, Keys, denied, guessed
from magnetar.core.errors import ConfigError
from magnetar.core.security import AuthenticationConfig, check_role

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


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


class Tokens:
    """Checks tokens.

    Args:
        config: the `[authentication]` table.
        keys: the keys.
    """

    def __init__(self, config: AuthenticationConfig, keys: Keys) -> None:
        self._config = config
        # PyJWT's own time and audience checks read the clock and know one name of the claim: they are made here.
        self._jwt = jwt.PyJWS(options={"verify_signature": True})
        self._keys: list[tuple[Any, tuple[str, ...]]] = []
        for secret in keys.secrets:
            self._keys.append((secret, secret_algorithms(secret)))
        for public in keys.publics:
            self._keys.append((public, public_algorithms(public)))

    def verify(self, data: bytes, now_ms: int) -> Identity:
        """Check a token, and return its identity; see `credentials.Verifier.verify`."""
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
            raise denied(f"the token has no role: claim {self._config.role_claim!a} is not text")
        try:
            return check_role(found)
        except ValueError as error:
            raise denied(f"claim {self._config.role_claim!a}: {error}") from None


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
        raise denied(f"the token's {name} is not a possible time")
    return int(value * 1000)
