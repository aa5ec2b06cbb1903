"""`magnetar tokens`: keys, and the tokens (JWT) of clients, links and commands. Works without a broker."""

import os
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from magnetar.cli.shared.common import ConfigOption, JsonOption, print_json, print_line, read_config
from magnetar.cli.shared.group import Group
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.core.numbers import whole_number
from magnetar.core.security import AuthenticationConfig, check_role

app = Group("Tokens: keys, and the tokens that clients, links and commands present.")

SECRET_BYTES: Final = 64
"""Enough for HS512."""

EXPIRY_S_MAX: Final = 1_000 * 365 * 86_400
"""A ceiling far below what brokers take for no possible time."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 365 * 86_400}

SecretKeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sign with this secret key (HS256/384/512).")
]
PrivateKeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sign with this private key (RS, PS, ES, EdDSA).")
]
TokenArgument = Annotated[
    str,
    typer.Argument(metavar="FILE", help="File with the token; - reads it from standard input. Never the token itself."),
]


@app.add("create-secret-key", example="magnetar tokens create-secret-key --output secret.key")
def create_secret_key(
    output: Annotated[Path, typer.Option(metavar="FILE", help="A new file for it; mode 0600.")],
) -> None:
    """Make a secret key, which also makes tokens. Brokers read it by secret_key_files."""
    import base64

    _write(output, base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n", 0o600)
    print_line(f"wrote {output}: give it to brokers (secret_key_files) only")


@app.add("create-key-pair", example="magnetar tokens create-key-pair --private private.pem --public public.pem")
def create_key_pair(
    private: Annotated[Path, typer.Option(metavar="FILE", help="File for the key that signs tokens; mode 0600.")],
    public: Annotated[Path, typer.Option(metavar="FILE", help="File for the key with which brokers check tokens.")],
    algorithm: Annotated[
        Literal["RS256", "ES256", "ES384", "ES512", "EdDSA"], typer.Option(help="Algorithm of the signatures.")
    ] = "ES256",
) -> None:
    """Make a pair of keys. Brokers get the public one, which cannot make tokens."""
    from cryptography.hazmat.primitives import serialization

    key = _generate(algorithm)
    if private.absolute() == public.absolute():
        raise ConfigError(f"--private and --public are both {private}: name two files")
    for path in (private, public):
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists already: a key is never written over")
    pem = serialization.Encoding.PEM
    _write(private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()), 0o600)
    try:
        _write(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo), 0o644)
    except ConfigError:
        private.unlink()  # the other half of the pair was not written
        raise
    print_line(f"wrote {private} and {public}: brokers need the public one alone (public_key_files)")


def _generate(algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match algorithm:
        case "RS256":
            return rsa.generate_private_key(65537, 3072)
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case _:
            curves: dict[str, ec.EllipticCurve] = {
                "ES256": ec.SECP256R1(),
                "ES384": ec.SECP384R1(),
                "ES512": ec.SECP521R1(),
            }
            return ec.generate_private_key(curves[algorithm])


@app.add("create", example="magnetar tokens create --secret-key secret.key --subject app --expiry 30d --output app.jwt")
def create(
    subject: Annotated[str, typer.Option(metavar="ROLE", help="The role that the token is for.")],
    secret_key: SecretKeyOption = None,
    private_key: PrivateKeyOption = None,
    expiry: Annotated[
        str, typer.Option(metavar="TIME", help="Time for which it is valid: 90s, 15m, 12h, 30d, 1y; default: for ever.")
    ] = "",
    audience: Annotated[
        str, typer.Option(metavar="NAME", help="Its installation (audience of [authentication]).")
    ] = "",
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="Default: the first algorithm of the key's type, such as HS256.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for it, mode 0600; default: print it.")
    ] = None,
) -> None:
    """Make a token for a role."""
    import jwt

    try:
        check_role(subject)
    except ValueError as error:
        raise ConfigError(f"--subject {subject[:60]!a}: {error}") from None
    key, algorithms = _signing_key(secret_key, private_key)
    chosen = algorithm or algorithms[0]
    if chosen not in algorithms:
        raise ConfigError(f"--algorithm {chosen[:20]!a} is not one of this key: {', '.join(algorithms)}")
    now = int(time.time())
    claims: dict[str, Any] = {"sub": subject, "iat": now}
    if expiry:
        claims["exp"] = now + seconds_of(expiry)
    if audience:
        claims["aud"] = audience
    token = jwt.encode(claims, key, algorithm=chosen)
    if output is None:
        print_line(token)
    else:
        _write(output, token.encode() + b"\n", 0o600)
        print_line(f"wrote {output}: a token for role {subject}, {_shown_time(claims.get('exp'))}")


@app.add("show", example="magnetar tokens show app.jwt")
def show(token: TokenArgument) -> None:
    """Show the claims of a token. Its signature is not checked."""
    import jwt

    text = _token(token)
    try:
        print_json({"header": jwt.get_unverified_header(text), "claims": _claims(text)})
    except (jwt.PyJWTError, ValueError):
        raise MagnetarError("that is not a token (JWT)") from None


@app.add("validate", example="magnetar tokens validate app.jwt -c clusters.toml")
def validate(
    token: TokenArgument,
    secret_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Check with this secret key.")] = None,
    public_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Check with this public key.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a token as a broker of the configuration does, or by one key."""
    from magnetar.broker.security.credentials import Verifier
    from magnetar.runtime.security.secrets import load_keys

    if secret_key is not None or public_key is not None:
        settings = AuthenticationConfig(
            methods=["token"],
            secret_key_files=[str(secret_key)] if secret_key else [],
            public_key_files=[str(public_key)] if public_key else [],
        )
    else:
        settings = read_config(config).security.authentication
        if "token" not in settings.methods:
            raise ConfigError(
                '[authentication] of the configuration does not have methods = ["token"]: name a key instead'
            )
    identity = Verifier(settings, load_keys(settings)).verify(
        "token", _token(token).encode(), time.time_ns() // 1_000_000
    )
    expires_s = identity.expires_ms // 1000 if identity.expires_ms is not None else None
    if as_json:
        print_json({"role": identity.role, "expires": expires_s})
    else:
        print_line(f"valid: role {identity.role}, {_shown_time(expires_s)}")


def seconds_of(text: str) -> int:
    """A time as people write it: `90s`, `15m`, `12h`, `30d`, `2w`, `1y`.

    Raises:
        ConfigError: it is not one.
    """
    number, unit = whole_number(text[:-1]), text[-1:]
    if unit not in _UNITS or number is None or not 0 < number <= 1_000_000:
        raise ConfigError(f"--expiry {text[:20]!a} is not a valid duration: write 90s, 15m, 12h, 30d, 2w or 1y")
    if number * _UNITS[unit] > EXPIRY_S_MAX:
        raise ConfigError(f"--expiry {text[:20]!a} is too long: leave it out for a token without expiry")
    return number * _UNITS[unit]


def _signing_key(secret_key: Path | None, private_key: Path | None) -> tuple[Any, tuple[str, ...]]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from magnetar.broker.security.tokens import public_algorithms, secret_algorithms
    from magnetar.core.secret_file import read_file
    from magnetar.runtime.security.secrets import parse_secret

    if (secret_key is None) == (private_key is None):
        raise ConfigError("use either --secret-key FILE or --private-key FILE")
    if secret_key is not None:
        secret = parse_secret(read_file(secret_key, "secret key", private=True), f"secret key {secret_key}")
        return secret, secret_algorithms(secret)
    assert private_key is not None
    data = read_file(private_key, "private key", private=True)
    try:
        key: Any = load_pem_private_key(data, None)
        return key, public_algorithms(key.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm, AttributeError):
        raise ConfigError(f"private key {private_key} is not an unencrypted key in PEM") from None


def _token(path: str) -> str:
    from magnetar.core.secret_file import read_token

    if path == "-":
        try:
            return sys.stdin.read(1 << 20).encode("ascii").decode().strip()
        except UnicodeError:
            raise MagnetarError("that is not a token (JWT)") from None
    if path.startswith("eyJ") and path.count(".") == 2:
        raise ConfigError(
            "name a file with the token, or - for standard input: every user of this machine can read arguments"
        )
    return read_token(path)


def _claims(text: str) -> Any:
    import jwt

    return jwt.decode(text, options={"verify_signature": False})


def _shown_time(expires_s: int | None) -> str:
    if expires_s is None:
        return "valid for ever"
    try:
        return f"valid until {datetime.fromtimestamp(expires_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "valid until long after the year 9999"


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file with a secret; other users can never read it, not for a moment.

    Raises:
        ConfigError: it exists, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{path} exists already: a key is never written over") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        path.unlink()  # half a key is useless, and would be in the way of a whole one
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
