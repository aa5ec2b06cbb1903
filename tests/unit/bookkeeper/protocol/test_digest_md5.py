"""DIGEST-MD5: the example of RFC 2831, what is no challenge, and servers that do not know the password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.protocol.digest_md5 import CHALLENGE_BYTES_MAX, DigestMd5, Refused, credential, directives

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def login(user: str = "chris", password: str = "secret") -> DigestMd5:
    """The client of the example in section 4 of RFC 2831."""
    return DigestMd5(user, password, "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk")


def test_the_example_of_the_rfc() -> None:
    client = login()
    answer = directives(client.respond(CHALLENGE))
    assert answer == {
        "charset": [b"utf-8"],
        "username": [b"chris"],
        "realm": [b"elwood.innosoft.com"],
        "nonce": [b"OA6MG9tEQGm2hh"],
        "nc": [b"00000001"],
        "cnonce": [b"OA6MHXh6VqTrRk"],
        "digest-uri": [b"imap/elwood.innosoft.com"],
        "response": [b"d388dad90d4bbd760a152321f2143af7"],
        "qop": [b"auth"],
    }
    client.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("proof", [b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"", b"rspauth=", b"x=1"])
def test_a_server_that_does_not_know_the_password(proof: bytes) -> None:
    client = login()
    client.respond(CHALLENGE)
    with pytest.raises(Refused):
        client.check(proof)


def test_a_proof_before_a_challenge_counts_for_nothing() -> None:
    with pytest.raises(Refused, match="does not know the password"):
        login().check(b'rspauth=""')


def test_another_password_gives_another_answer() -> None:
    answers = {login(password=password).respond(CHALLENGE) for password in ("secret", "Secret", "secret ")}
    assert len(answers) == 3


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"", "does not authenticate by DIGEST-MD5"),
        (b"rspauth=ea40", "does not authenticate by DIGEST-MD5"),
        (CHALLENGE.replace(b"md5-sess", b"md5"), "does not authenticate by DIGEST-MD5"),
        (CHALLENGE + b',nonce="again"', "does not authenticate by DIGEST-MD5"),
        (CHALLENGE.replace(b'"auth"', b'"auth-int,auth-conf"'), "signed or encrypted"),
        (b"\x00\x01", "not a message of DIGEST-MD5"),
        (b'realm="never closed', "not a message of DIGEST-MD5"),
        (b" " * (CHALLENGE_BYTES_MAX + 1), "2048 are the most"),
    ],
)
def test_what_is_no_challenge_is_one_line(challenge: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        login().respond(challenge)
    assert "\n" not in str(caught.value)


@given(st.text(min_size=1), st.text(), st.text())
def test_any_user_comes_back_from_the_answer(user: str, password: str, realm: str) -> None:
    """Quotes and backslashes are escaped, and the password is not in the answer."""
    escaped = realm.encode("utf-8", "replace").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    challenge = b'realm="%b",nonce="n",charset=utf-8,algorithm=md5-sess' % escaped
    try:
        answer = directives(DigestMd5(user, password, "a/b", "c").respond(challenge))
    except UnicodeEncodeError:
        return  # half of a surrogate pair, which no file of UTF-8 has
    except Refused:
        assert len(challenge) > CHALLENGE_BYTES_MAX - 500
        return
    assert answer["username"] == [user.encode()]
    assert answer["realm"] == [realm.encode("utf-8", "replace")]


def test_credentials_are_latin_if_they_can_be() -> None:
    assert credential("caf\u00e9") == b"caf\xe9"
    assert credential("\u20ac") == "\u20ac".encode()
