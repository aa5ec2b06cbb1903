"""DIGEST-MD5 as a client: the authentication of SASL that bookies have without Kerberos. No I/O here.

The server sends a challenge, the client answers, and the server proves with its last message that it knows the password, too:

    challenge   realm="bookkeeper",nonce="...",charset=utf-8,algorithm=md5-sess
    response    charset=utf-8,username="magnetar",realm="bookkeeper",nonce="...",nc=00000001,cnonce="...",
                digest-uri="bookkeeper/bookkeeper",response=...,qop=auth
    proof       rspauth=...

Only the authentication itself is done (`qop=auth`): what follows is neither signed nor encrypted. That needs TLS.

Source: RFC 2831; docs/design/bookkeeper.md#authentication.
"""

import hmac
import re
from hashlib import md5
from typing import Final

CHALLENGE_BYTES_MAX: Final = 2048
"""The longest challenge that RFC 2831 allows."""

_DIRECTIVE: Final = re.compile(
    rb'[\s,]*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?=,|$)', re.DOTALL
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPE: Final = re.compile(rb'(["\\])')


class Refused(Exception):
    """The server sent what is not DIGEST-MD5, or it does not know the password. One line."""


class DigestMd5:
    """One authentication: `respond`, then `check`.

    Args:
        user, password: as the server has them.
        uri: service and host, such as `bookkeeper/bookkeeper`.
        nonce: random text of this authentication alone.
    """

    def __init__(self, user: str, password: str, uri: str, nonce: str) -> None:
        self._user = user
        self._password = password
        self._uri = uri.encode()
        self._client_nonce = nonce.encode()
        self._proof = b""

    def respond(self, challenge: bytes) -> bytes:
        """The answer to the server's challenge.

        Raises:
            Refused: it is not a challenge, or it wants what this client does not do.
        """
        found = directives(challenge)
        nonces = found.get("nonce", [])
        if len(nonces) != 1 or found.get("algorithm") != [b"md5-sess"]:
            raise Refused("it does not authenticate by DIGEST-MD5")
        if "qop" in found and b"auth" not in re.split(rb"[\s,]+", found["qop"][0]):
            raise Refused("it wants messages that are signed or encrypted by SASL; this client has TLS for that")
        realm, nonce = found.get("realm", [b""])[0], nonces[0]
        utf8 = found.get("charset") == [b"utf-8"]
        user = self._user.encode("utf-8" if utf8 else "latin-1", "replace")
        secret = md5(b":".join((credential(self._user), realm, credential(self._password))), usedforsecurity=False)
        session = md5(b":".join((secret.digest(), nonce, self._client_nonce)), usedforsecurity=False).hexdigest()

        def value(method: bytes) -> bytes:
            of_uri = md5(method + b":" + self._uri, usedforsecurity=False).hexdigest()
            parts = (session.encode(), nonce, b"00000001", self._client_nonce, b"auth", of_uri.encode())
            return md5(b":".join(parts), usedforsecurity=False).hexdigest().encode()

        self._proof = value(b"")
        answer = [
            b'username="%b"' % _escaped(user),
            b'realm="%b"' % _escaped(realm),
            b'nonce="%b"' % _escaped(nonce),
            b"nc=00000001",
            b'cnonce="%b"' % _escaped(self._client_nonce),
            b'digest-uri="%b"' % _escaped(self._uri),
            b"response=" + value(b"AUTHENTICATE"),
            b"qop=auth",
        ]
        return b",".join([b"charset=utf-8", *answer] if utf8 else answer)

    def check(self, message: bytes) -> None:
        """Compare the server's last message with what only a server that knows the password can send.

        Raises:
            Refused: it is another one.
        """
        proofs = directives(message).get("rspauth", [])
        if not self._proof or len(proofs) != 1 or not hmac.compare_digest(proofs[0], self._proof):
            raise Refused("it does not know the password: it is not the server that it should be")


def directives(message: bytes) -> dict[str, list[bytes]]:
    """The directives of a message: name, in small letters -> its values.

    Raises:
        Refused: it is not such a list, or too long.
    """
    if len(message) > CHALLENGE_BYTES_MAX:
        raise Refused(f"it sent {len(message)} bytes for an authentication, and {CHALLENGE_BYTES_MAX} are the most")
    found: dict[str, list[bytes]] = {}
    end = 0
    while match := _DIRECTIVE.match(message, end):
        name, quoted, plain = match.groups()
        value = plain if quoted is None else _ESCAPED.sub(rb"\1", quoted)
        found.setdefault(name.decode().lower(), []).append(value)
        end = match.end()
    if message[end:].strip(b" \t\r\n,"):
        raise Refused("it sent what is not a message of DIGEST-MD5")
    return found


def credential(text: str) -> bytes:
    """A user or password as it is hashed: ISO 8859-1 if that has all its characters, else UTF-8. RFC 2831, section 2.1.2.1."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _escaped(value: bytes) -> bytes:
    return _ESCAPE.sub(rb"\\\1", value)
