"""The states of a connection on the server's side, and the commands that are allowed in each
(docs/design/pulsar.md#connection).

A peer sends CONNECT first and once. After that it may send the commands of clients. Commands that only a server sends
are illegal from a client in every state: the peer has mixed up its roles, or the bytes are not Pulsar's protocol.

    state      CONNECT              request of a client   request of a link            anything else
    ---------  -------------------  --------------------  ---------------------------  --------------
    NEW        -> CONNECTED         end                   end                          end
               or -> PROVING
               or -> CLOSED: refuse
    PROVING    end                  end                   end                          end
    CONNECTED  end                  ok                    ok to a link peer, else      end
                                                          refuse
    CLOSED     end                  end                   end                          end

PROVING exists only with authentication: the peer's credentials are being checked (`proved` and `close` end this state).
Until then no other command is accepted, so that no command of an unknown peer is ever decoded.

"end" is a `ProtocolError`: the connection is closed without an answer. "refuse" is a `BrokerError`: the request is
answered and the connection stays open (a refused CONNECT is answered, then the connection is closed). Both mean that
the peer made a mistake; a mistake of this side is never reported through them.

A **link peer** is a client that asked for this by `auth_method_name = "magnetar-link"` and is allowed to be one:
without authentication its `auth_data` is the links' shared secret, with authentication its role has the permission to
replicate. A wrong token is always refused at CONNECT. Only link peers may send commands from 1000 up:
`ServerHandshake.check` refuses the others, with NotAllowedError. Their SEND commands are checked as those of any
client: markers and entries with `replicated_from` travel by the commands from 1000 up, whose handlers check the
permission `replicate` on each topic. Only link peers get a `GeoHello` in CONNECTED.
"""

import hmac
from enum import Enum
from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.versions import agreed

LINK_AUTH_METHOD: Final = "magnetar-link"
"""The `auth_method_name` in CONNECT that announces the link token."""

CONNECT: Final = pb.CONNECT
GEO_COMMANDS_FROM: Final = pb.GEO_TOPICS

CLIENT_COMMANDS: Final = frozenset(
    {
        pb.SUBSCRIBE,
        pb.PRODUCER,
        pb.SEND,
        pb.ACK,
        pb.FLOW,
        pb.UNSUBSCRIBE,
        pb.CLOSE_PRODUCER,
        pb.CLOSE_CONSUMER,
        pb.PING,
        pb.PONG,
        pb.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        pb.PARTITIONED_METADATA,
        pb.LOOKUP,
        pb.CONSUMER_STATS,
        pb.SEEK,
        pb.GET_LAST_MESSAGE_ID,
        pb.GET_TOPICS_OF_NAMESPACE,
        pb.GET_SCHEMA,
        pb.AUTH_RESPONSE,
        pb.GET_OR_CREATE_SCHEMA,
        # Requests of transactions; their answers have the odd numbers.
        pb.NEW_TXN,
        pb.ADD_PARTITION_TO_TXN,
        pb.ADD_SUBSCRIPTION_TO_TXN,
        pb.END_TXN,
        pb.END_TXN_ON_PARTITION,
        pb.END_TXN_ON_SUBSCRIPTION,
        pb.TC_CLIENT_CONNECT_REQUEST,
        pb.WATCH_TOPIC_LIST,
        pb.WATCH_TOPIC_LIST_CLOSE,
    }
)
"""The commands that a client may send after CONNECT. The broker decides which of them it serves.

See docs/design/pulsar.md#commands.
"""

GEO_REQUESTS: Final = frozenset(
    {
        pb.GEO_TOPICS,
        pb.GEO_READ,
        pb.GEO_FETCH,
        pb.GEO_APPEND,
        pb.GEO_COMMIT,
        pb.GEO_WATERMARKS,
        pb.GEO_STATUS,
        pb.GEO_RESTORE,
        pb.GEO_SCHEMAS,
        pb.GEO_SCHEMAS_BROUGHT,
    }
)
"""The additional commands that a link peer may send."""

_WITH_REQUEST_ID: Final = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and "request_id" in field.message_type.fields_by_name
}

NO_REQUEST: Final = 2**64 - 1
"""The request id (-1 as unsigned) of an error that answers no request."""


class State(Enum):
    """The state of a connection, on the server."""

    NEW = "new"
    PROVING = "proving"
    CONNECTED = "connected"
    CLOSED = "closed"


_LEGAL: Final[dict[State, frozenset[int]]] = {
    State.NEW: frozenset({CONNECT}),
    State.PROVING: frozenset(),
    State.CONNECTED: CLIENT_COMMANDS | GEO_REQUESTS,
    State.CLOSED: frozenset(),
}


class Accepted(NamedTuple):
    """A CONNECT that was accepted.

    Attributes:
        protocol_version: the version that both sides use.
        link: whether it is a link peer; if `proving`, whether it asks to be one.
        proving: whether its credentials are still to be checked.
    """

    protocol_version: int
    link: bool
    proving: bool = False


class ServerHandshake:
    """The handshake on the server's side, and the check of every later command.

    Args:
        link_token: the links' shared secret; empty: there are no links, and every token is wrong. Not used with
            authentication.
        authentication: whether every client has to authenticate.

    Attributes:
        state: see the table above.
        protocol_version: the version that both sides use, once connected.
        link: whether it is a link peer.
    """

    __slots__ = ("_authentication", "_token", "link", "protocol_version", "state")

    def __init__(self, link_token: bytes, *, authentication: bool = False) -> None:
        self._token = link_token
        self._authentication = authentication
        self.state = State.NEW
        self.protocol_version = 0
        self.link = False

    @property
    def connected(self) -> bool:
        """Whether CONNECT was accepted and the connection not closed since."""
        return self.state is State.CONNECTED

    def connect(self, command: pb.BaseCommand) -> Accepted:
        """The first command.

        Raises:
            ProtocolError: it is not CONNECT, or not the first.
            BrokerError: it is refused (AuthenticationError): the link token is wrong.
        """
        if self.state is not State.NEW or command.type != CONNECT:
            raise self._illegal(command.type)
        connect = command.connect
        self.protocol_version = agreed(connect.protocol_version)
        if self._authentication:
            self.state = State.PROVING
            return Accepted(self.protocol_version, connect.auth_method_name == LINK_AUTH_METHOD, proving=True)
        if connect.auth_method_name == LINK_AUTH_METHOD:
            # Compared in constant time, so that the duration of a refusal reveals nothing about the token.
            if not self._token or not hmac.compare_digest(connect.auth_data, self._token):
                self.state = State.CLOSED
                raise BrokerError(
                    ErrorCode.AUTHENTICATION, "the link token is not this cluster's; see [replication] token_file"
                )
            self.link = True
        self.state = State.CONNECTED
        return Accepted(self.protocol_version, self.link)

    def proved(self, *, link: bool) -> None:
        """The credentials were accepted; `link`: the peer asks to be a link peer and may be one."""
        assert self.state is State.PROVING, f"proved in state {self.state}"
        self.link = link
        self.state = State.CONNECTED

    def check(self, command: pb.BaseCommand) -> None:
        """Whether a later command is legal.

        Raises:
            ProtocolError: not legal in this state.
            BrokerError: legal only for link peers (NotAllowedError).
        """
        kind = command.type
        if kind == CONNECT or kind not in _LEGAL[self.state]:
            raise self._illegal(kind)
        if kind >= GEO_COMMANDS_FROM and not self.link:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"command type {kind} is for links: it needs what links present")

    def close(self) -> None:
        """From now on no command is legal."""
        self.state = State.CLOSED

    def _illegal(self, kind: int) -> ProtocolError:
        if self.state is State.CLOSED:
            return ProtocolError(f"command type {kind} on a connection that is closing")
        if self.state is State.NEW:
            return ProtocolError(f"command type {kind} before CONNECT")
        if kind == CONNECT:
            return ProtocolError("CONNECT a second time")
        if self.state is State.PROVING:
            return ProtocolError(f"command type {kind} before CONNECT was answered")
        return ProtocolError(f"command type {kind} is not one that a client sends")


def request_id_of(command: pb.BaseCommand) -> int:
    """The request id of any command that has one, else `NO_REQUEST`.

    It is taken from the sub-command that the type names. A frame may hold other sub-commands as well; their request ids
    do not count.
    """
    field = _WITH_REQUEST_ID.get(command.type)
    return int(getattr(command, field).request_id) if field is not None else NO_REQUEST
