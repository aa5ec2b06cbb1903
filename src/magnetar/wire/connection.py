"""The server's side of a connection's life, and who may say what in it (docs/design/pulsar.md#connection).

A peer says CONNECT, once and first. From then on it may send what clients send. What only a server sends is never legal
from a client, in no state: it is the sign of a peer that mixed up its roles, or of bytes that are no Pulsar at all.

    state      CONNECT              request of a client   request of a link            anything else
    ---------  -------------------  --------------------  ---------------------------  --------------
    NEW        -> CONNECTED         end                   end                          end
               or -> PROVING
               or -> CLOSED: refuse
    PROVING    end                  end                   end                          end
    CONNECTED  end                  ok                    ok to a link peer, else      end
                                                          refuse
    CLOSED     end                  end                   end                          end

PROVING is there only where there is authentication: who presents what is being checked (`proved` and `close` end it),
and until then nothing else is heard, so that no command of a stranger is ever looked into.

"end" is a `ProtocolError`: the connection is closed without an answer. "refuse" is a `BrokerError`: the request is
answered and the connection goes on (a refused CONNECT is answered, then closed). Both blame the peer; a mistake of this
side is never reported through them.

A **link peer** is a client that asked for it, by `auth_method_name = "magnetar-link"`, and may: without authentication
because `auth_data` is the links' shared secret, with it because the role that it proved may replicate. A wrong token is
refused at CONNECT, whoever presents it. Only link peers may send commands from 1000 up: `ServerHandshake.check` refuses the
others, with NotAllowedError. What they SEND is judged as everybody's: markers and entries with `replicated_from` travel by
those commands, whose handlers ask for `replicate` on each topic. And only to link peers CONNECTED carries a `GeoHello`.
"""

import hmac
from enum import Enum
from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.versions import agreed

LINK_AUTH_METHOD: Final = "magnetar-link"
"""How the link token is announced in CONNECT."""

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
"""What a client may send after CONNECT; which of these are served is the broker's matter.

See docs/design/pulsar.md#commands.
"""

GEO_REQUESTS: Final = frozenset(
    {
        pb.GEO_TOPICS,
        pb.GEO_READ,
        pb.GEO_APPEND,
        pb.GEO_COMMIT,
        pb.GEO_WATERMARKS,
        pb.GEO_STATUS,
        pb.GEO_RESTORE,
        pb.GEO_SCHEMAS,
        pb.GEO_SCHEMAS_BROUGHT,
    }
)
"""What a link peer may send besides."""

_WITH_REQUEST_ID: Final = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and "request_id" in field.message_type.fields_by_name
}

NO_REQUEST: Final = 2**64 - 1
"""The request id (-1 as unsigned) of an error that answers no request."""


class State(Enum):
    """Of a connection, on the server."""

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
        protocol_version: that both speak.
        link: whether it is a link peer; of one that has still to prove who it is, whether it wants to be one.
        proving: whether it has still to prove who it is.
    """

    protocol_version: int
    link: bool
    proving: bool = False


class ServerHandshake:
    """Who the peer is and what it may send.

    Args:
        link_token: the links' shared secret; empty: there are no links, every token is wrong. Unused with authentication.
        authentication: whether everybody has to prove who they are.

    Attributes:
        state: see the table above.
        protocol_version: the version both speak, once connected.
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
            # Compared in constant time: how long a refusal takes tells nothing about the token.
            if not self._token or not hmac.compare_digest(connect.auth_data, self._token):
                self.state = State.CLOSED
                raise BrokerError(
                    ErrorCode.AUTHENTICATION, "the link token is not this cluster's; see [replication] token_file"
                )
            self.link = True
        self.state = State.CONNECTED
        return Accepted(self.protocol_version, self.link)

    def proved(self, *, link: bool) -> None:
        """Who it is was found out; `link`: it wants to be a link peer and may."""
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
        """Nothing is legal any more."""
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

    Of the command that the type says: a frame may hold others beside it, of which nobody waits for an answer.
    """
    field = _WITH_REQUEST_ID.get(command.type)
    return int(getattr(command, field).request_id) if field is not None else NO_REQUEST
