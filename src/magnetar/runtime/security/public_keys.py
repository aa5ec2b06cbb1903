"""Reads public keys from files. Separate from `secrets`: a broker without public keys does not load the library for them."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from magnetar.broker.security.tokens import PublicKey, public_algorithms
from magnetar.core.errors import ConfigError


def parse_public(data: bytes, where: str) -> PublicKey:
    """A public key, PEM or DER.

    Raises:
        ConfigError: it is not a key, or of a kind that tokens do not know.
    """
    try:
        key = load_pem_public_key(data) if b"-----BEGIN" in data else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where} is not a public key in PEM or DER") from None
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey):
        raise ConfigError(f"{where} is of a kind that tokens do not know: use RSA, EC or Ed25519")
    try:
        public_algorithms(key)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return key
