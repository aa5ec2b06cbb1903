"""The server's side of a connection's life (pulsar-facts A.6).

    state       CONNECT                other known command        server's own command     unknown command
    NEW         -> CONNECTED / refused protocol error             protocol error           protocol error
    CONNECTED   protocol error         legal                      protocol error           protocol error
    CLOSED      nothing is read any more

A link peer is a client that presented the links' shared secret: `auth_method_name = "magnetar-link"` and the token as
`auth_data`. Only link peers may use commands from 1000 up, publish markers, or set `replicated_from`; anybody else gets
`NotAllowedError`. A wrong token is refused at CONNECT, whoever presents it.

Blame: everything raised here is the peer's doing (`ProtocolError` ends the connection, `BrokerError` answers a request).
"""

import hmac
from enum import Enum
from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire.pulsar_pb2 import BaseCommand

LINK_AUTH_METHOD: Final = "magnetar-link"
GEO_COMMANDS_FROM: Final = 1000

CLIENT_COMMANDS: Final = frozenset(
    {
        4,
        5,
        6,
        10,
        11,
        12,
        15,
        16,
        18,
        19,
        20,
        21,
        23,
        25,
        28,
        29,
        32,
        34,
        37,
        39,
        *range(50, 62),
        62,
        64,
        67,
    }
)
"""What a client may send after CONNECT (A.2); which of these are served is the broker's matter."""

GEO_REQUESTS: Final = frozenset({1000, 1002, 1004, 1006, 1008, 1010})


class State(Enum):
    """Of a connection, on the server."""

    NEW = "new"
    CONNECTED = "connected"
    CLOSED = "closed"


class Accepted(NamedTuple):
    """A CONNECT that was accepted: the version both speak, and whether it is a link peer."""

    protocol_version: int
    link: bool


class ServerHandshake:
    """Who the peer is and what it may send.

    Args:
        link_token: the links' shared secret.
    """

    __slots__ = ("_token", "link", "protocol_version", "state")

    def __init__(self, link_token: bytes) -> None:
        self._token = link_token
        self.state = State.NEW
        self.protocol_version = 0
        self.link = False

    @property
    def connected(self) -> bool:
        """Whether CONNECT was accepted."""
        return self.state is State.CONNECTED

    def connect(self, command: BaseCommand) -> Accepted:
        """The first command.

        Raises:
            ProtocolError: it is not CONNECT.
            BrokerError: it is refused: the link token is wrong.
        """
        if self.state is not State.NEW or command.type != 2 or not command.HasField("connect"):
            raise ProtocolError(f"command type {command.type} before CONNECT")
        connect = command.connect
        if connect.auth_method_name == LINK_AUTH_METHOD:
            # Compared in constant time: how long a refusal takes tells nothing about the token.
            if not self._token or not hmac.compare_digest(bytes(connect.auth_data), self._token):
                self.state = State.CLOSED
                raise BrokerError(
                    ErrorCode.AUTHENTICATION,
                    "the link token is not this cluster's; see [replication] token_file",
                )
            self.link = True
        self.protocol_version = max(0, connect.protocol_version)
        self.state = State.CONNECTED
        return Accepted(self.protocol_version, self.link)

    def check(self, command: BaseCommand) -> None:
        """Whether a later command is legal.

        Raises:
            ProtocolError: never legal from a client, or without its body.
            BrokerError: legal only for link peers.
        """
        kind = command.type
        if kind >= GEO_COMMANDS_FROM:
            if kind not in GEO_REQUESTS:
                raise ProtocolError(f"command type {kind} is not a request")
            if not self.link:
                raise BrokerError(ErrorCode.NOT_ALLOWED, f"command type {kind} needs the link token")
            return
        if kind not in CLIENT_COMMANDS:
            raise ProtocolError(f"command type {kind} is not one that a client sends")


def request_id_of(command: BaseCommand) -> int:
    """The request id of any command that has one, else 2^64 - 1 (an error that answers no request)."""
    for _field, body in command.ListFields():
        if hasattr(body, "request_id"):
            return int(body.request_id)
    return 2**64 - 1
