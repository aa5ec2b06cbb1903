"""Proofs: what the table at the top of `broker.security.tokens` says, and that no bytes whatever get in or break it."""

import base64
import hashlib
import hmac
import json
from typing import Any

import bcrypt
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.security.credentials import (
    Guess,
    Identity,
    Keys,
    Verifier,
    basic_from_header,
    parse_passwords,
)
from magnetar.broker.security.tokens import public_algorithms, secret_algorithms
from magnetar.core.errors import BrokerError, ConfigError, ErrorCode
from magnetar.core.security import AuthenticationConfig

SECRET = b"s" * 64
EC = ec.generate_private_key(ec.SECP256R1())
KEYS = Keys((SECRET,), (EC.public_key(),), {"reader": bcrypt.hashpw(b"sesame", bcrypt.gensalt(4))})
NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


def verifier(**fields: Any) -> Verifier:
    return Verifier(AuthenticationConfig(**({"methods": ["token", "basic", "tls"]} | fields)), KEYS)


def signed(claims: dict[str, Any], **options: Any) -> bytes:
    return jwt.encode(claims, options.pop("key", SECRET), options.pop("algorithm", "HS256"), **options).encode()


def reason(check: Verifier, method: str, data: bytes, certificate: str = "") -> str:
    with pytest.raises(BrokerError) as caught:
        check.verify(method, data, NOW_MS, certificate)
    assert caught.value.code is ErrorCode.AUTHENTICATION
    return str(caught.value)


def test_a_token_is_its_subject() -> None:
    assert verifier().verify("token", signed({"sub": "app"}), NOW_MS) == Identity("app", "token")
    timed = signed({"sub": "app", "exp": NOW_S + 10})
    assert verifier().verify("token", timed, NOW_MS) == Identity("app", "token", (NOW_S + 10) * 1000)


def test_times_are_judged_by_the_clock_that_is_given() -> None:
    data = signed({"sub": "app", "exp": NOW_S + 10, "nbf": NOW_S})
    assert verifier().verify("token", data, NOW_MS).role == "app"
    assert verifier().verify("token", data, NOW_MS + 9_999).role == "app"
    for now_ms in (NOW_MS + 10_000, NOW_MS - 1):
        with pytest.raises(BrokerError):
            verifier().verify("token", data, now_ms)
    skewed = verifier(clock_skew_s=5)
    assert skewed.verify("token", data, NOW_MS + 14_999).expires_ms == NOW_MS + 15_000
    assert skewed.verify("token", data, NOW_MS - 5_000).role == "app"
    assert "no expiry" in reason(verifier(expiry_required=True), "token", signed({"sub": "app"}))


def test_roles_and_audiences() -> None:
    check = verifier(role_claim="roles", audience="shop", audience_claim="for")
    assert check.verify("token", signed({"roles": ["a", "b"], "for": ["bank", "shop"]}), NOW_MS).role == "a"
    for claims in ({"roles": [], "for": "shop"}, {"roles": 7, "for": "shop"}, {"roles": [["a"]], "for": "shop"}):
        assert "no role" in reason(check, "token", signed(claims))
    for audience in ("bank", "shopping", ["sho", "p"], {"shop": 1}, 7, None):
        assert "audience" in reason(check, "token", signed({"roles": "a", "for": audience}))


@pytest.mark.parametrize("header", [{"crit": ["exp"], "exp": 1}, {"b64": False, "crit": ["b64"]}, {"b64": False}])
def test_extensions_that_must_be_understood_are_refused(header: dict[str, Any]) -> None:
    text = jwt.encode({"sub": "a"}, SECRET, "HS256").split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"} | header).encode()).rstrip(b"=").decode()
    reason(verifier(), "token", f"{head}.{text[1]}.{text[2]}".encode())


def test_keys_say_the_algorithm_not_the_token() -> None:
    assert secret_algorithms(b"x" * 32) == ("HS256",)
    assert secret_algorithms(b"x" * 64) == ("HS256", "HS384", "HS512")
    assert public_algorithms(EC.public_key()) == ("ES256",)
    assert public_algorithms(ed25519.Ed25519PrivateKey.generate().public_key()) == ("EdDSA",)
    with pytest.raises(ConfigError, match="2048"):
        public_algorithms(rsa.generate_private_key(65537, 1024).public_key())
    with pytest.raises(ConfigError, match="curve"):
        public_algorithms(ec.generate_private_key(ec.SECP256K1()).public_key())
    short = Verifier(AuthenticationConfig(methods=["token"]), Keys((b"x" * 32,)))
    assert "no key" in reason(short, "token", signed({"sub": "a"}, key=b"x" * 32, algorithm="HS512"))


def test_any_of_several_keys_does_while_one_follows_another() -> None:
    both = Verifier(AuthenticationConfig(methods=["token"]), Keys((b"o" * 32, b"n" * 32)))
    for key in (b"o" * 32, b"n" * 32):
        assert both.verify("token", signed({"sub": "a"}, key=key), NOW_MS).role == "a"


def test_passwords() -> None:
    check = verifier()
    assert check.slow("basic") and not check.slow("token")
    assert check.verify("basic", b"reader:sesame", NOW_MS) == Identity("reader", "basic")
    for data in (b"reader:Sesame", b"reader", b"reader:", b":sesame", b"\xff:sesame", b"reader:" + b"x" * 73):
        assert "wrong" in reason(check, "basic", data)
    assert basic_from_header("cmVhZGVyOnNlc2FtZQ==") == b"reader:sesame"
    with pytest.raises(BrokerError):
        basic_from_header("cmVh*")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("app:$apr1$x$y", "line 1: the hash is not bcrypt"),
        ("# note\n\napp", "line 3"),
        (":$2y$10$" + "a" * 53, "line 1: a role is not empty"),
    ],
)
def test_password_files_that_are_wrong(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        parse_passwords(text, "users")
    assert "$" not in str(caught.value)


def test_certificates_and_nobody() -> None:
    assert verifier().verify("tls", b"", NOW_MS, "app") == Identity("app", "tls")
    assert "needs a connection by TLS" in reason(verifier(), "tls", b"")
    assert "control characters" in reason(verifier(), "tls", b"", "a\nb")
    assert verifier(anonymous_role="guest").verify("none", b"", NOW_MS) == Identity("guest", "anonymous")


def test_what_nobody_checks_is_as_nothing() -> None:
    assert verifier(anonymous_role="guest").verify("kerberos", b"ticket", NOW_MS) == Identity("guest", "anonymous")
    with pytest.raises(BrokerError, match="'kerberos' is not one of"):
        verifier().verify("kerberos", b"ticket", NOW_MS)
    assert "basic, tls, token" in reason(verifier(), "", b"")
    assert "not one of token" in reason(verifier(methods=["token"]), "basic", b"reader:sesame")


def test_what_is_genuine_is_no_guess() -> None:
    for data, guess in (
        (signed({"sub": "a"}, key=b"x" * 32), True),
        (b"x", True),
        (signed({"sub": "a", "exp": 1}), False),
        (signed({}), False),
        (b"", False),
    ):
        with pytest.raises(BrokerError) as caught:
            verifier().verify("token", data, NOW_MS)
        assert isinstance(caught.value, Guess) is guess


GENUINE = signed({"sub": "app", "exp": NOW_S + 10})
NAMES = ["alg", "typ", "kid", "jku", "jwk", "x5c", "crit", "b64", "zip"]
ALGORITHMS = ["none", "HS256", "ES256", "RS256", "dir"]
HEADERS = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(st.none(), st.booleans(), st.sampled_from(ALGORITHMS), st.integers(), st.lists(st.text())),
)


@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(["token", "basic", "tls", "", "none", "TOKEN", "x"]),
    data=st.one_of(
        st.binary(max_size=400),
        st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.builds(
            lambda header, claims, tail: b".".join(
                base64.urlsafe_b64encode(part).rstrip(b"=")
                for part in (json.dumps(header).encode(), json.dumps(claims).encode(), tail)
            ),
            HEADERS,
            st.recursive(
                st.none() | st.text() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
            ),
            st.binary(max_size=64),
        ),
        st.tuples(st.integers(0, len(GENUINE) - 1), st.binary(min_size=1, max_size=1)).map(
            lambda change: GENUINE[: change[0]] + change[1] + GENUINE[change[0] + 1 :]
        ),
    ),
)
def test_no_bytes_get_in_or_break_it(method: str, data: bytes) -> None:
    """Strangers' bytes, headers of every kind, and the genuine token with one byte changed."""
    try:
        identity = verifier().verify(method, data, NOW_MS)
    except BrokerError as error:
        assert error.code is ErrorCode.AUTHENTICATION
        text = str(error)
        assert text.isprintable() and len(text) < 200
        assert len(data) < 12 or data.decode("latin-1") not in text
    else:
        # Of base64 the last character of a part has bits that mean nothing: another spelling of the same token.
        assert identity.role == "app" and data.rpartition(b".")[0] == GENUINE.rpartition(b".")[0]


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "jti"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3),
        ),
    )
)
def test_any_claims_that_are_genuine_are_judged_in_one_line(claims: dict[str, Any]) -> None:
    try:
        data = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"}).encode()).rstrip(b"=")
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
        tail = base64.urlsafe_b64encode(hmac.new(SECRET, data + b"." + body, hashlib.sha256).digest()).rstrip(b"=")
        identity = verifier().verify("token", b".".join([data, body, tail]), NOW_MS)
    except BrokerError as error:
        assert str(error).isprintable()
    else:
        role = claims["sub"][0] if isinstance(claims["sub"], list) else claims["sub"]
        assert identity.role == role
        assert identity.expires_ms is None or identity.expires_ms > NOW_MS
