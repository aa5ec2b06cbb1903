"""The authentication of bookies by SASL, with a user and a password (DIGEST-MD5).

Source: docs/design/bookkeeper.md#authentication.
"""

import secrets
from typing import Final

from magnetar.bookkeeper.network.errors import AuthenticationRefused
from magnetar.bookkeeper.protocol.digest_md5 import DigestMd5, Refused

PLUGIN: Final = "sasl"
URI: Final = "bookkeeper/bookkeeper"
"""The names that bookies and clients use for DIGEST-MD5, whatever the host is called [`S/sasl/SaslConstants`]."""


class SaslLogin:
    """`Authentication`, by DIGEST-MD5.

    Args:
        user, password: as the bookies have them.
    """

    plugin = PLUGIN

    def __init__(self, user: str, password: str) -> None:
        self._machine = DigestMd5(user, password, URI, secrets.token_hex(16))
        self._answered = False

    def first(self) -> bytes:
        """See `Authentication`. DIGEST-MD5 begins with the server's challenge."""
        return b""

    def next(self, payload: bytes) -> bytes | None:
        """See `Authentication`."""
        try:
            if self._answered:
                self._machine.check(payload)
                return None
            self._answered = True
            return self._machine.respond(payload)
        except Refused as error:
            raise AuthenticationRefused(str(error)) from None
