"""The table of wire.connection, cell by cell."""

import pytest

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire import versions
from magnetar.wire.connection import CLIENT_COMMANDS, GEO_REQUESTS, NO_REQUEST, ServerHandshake, State, request_id_of

TOKEN = b"0123456789"


def connect(method: str = "", data: bytes = b"", version: int = 19) -> pb.BaseCommand:
    body = pb.CommandConnect(client_version="t", auth_method_name=method, auth_data=data, protocol_version=version)
    return pb.BaseCommand(type=2, connect=body)


def connected(*, link: bool = False) -> ServerHandshake:
    handshake = ServerHandshake(TOKEN)
    handshake.connect(connect("magnetar-link", TOKEN) if link else connect())
    return handshake


# What each command is, by its number in wire/pulsar.proto (docs/design/pulsar.md#commands), not by the code under test.
SERVERS_OWN = {
    3,
    7,
    8,
    9,
    13,
    14,
    17,
    22,
    24,
    26,
    27,
    30,
    31,
    33,
    35,
    36,
    38,
    40,
    51,
    53,
    55,
    57,
    59,
    61,
    63,
    65,
    66,
    68,
}
CLIENTS_OWN = {4, 5, 6, 10, 11, 12, 20, 21, 23, 25, 28, 29, 32, 34, 37, 39, 50, 52, 54, 56, 58, 60, 62, 64, 67}
BOTH = {15, 16, 18, 19}
LINKS_OWN = {1000, 1002, 1004, 1006, 1008, 1010, 1012, 1014, 1017, 1018}
EVERY = [*range(90), *range(1000, 1020), 5000, -1]


def verdict(handshake: ServerHandshake, kind: int) -> str:
    try:
        handshake.check(pb.BaseCommand(type=kind))
    except ProtocolError:
        return "end"
    except BrokerError as error:
        return "refuse" if error.code is ErrorCode.NOT_ALLOWED else f"refuse by {error.code}"
    return "ok"


@pytest.mark.parametrize("kind", EVERY)
def test_every_command_in_every_state(kind):
    legal = "ok" if kind in CLIENTS_OWN | BOTH else "end"
    assert verdict(connected(), kind) == ("refuse" if kind in LINKS_OWN else legal)
    assert verdict(connected(link=True), kind) == ("ok" if kind in LINKS_OWN else legal)
    assert verdict(ServerHandshake(TOKEN), kind) == "end"
    closing = connected(link=True)
    closing.close()
    assert verdict(closing, kind) == "end"


@pytest.mark.parametrize("kind", EVERY)
def test_nothing_is_legal_while_somebody_proves_who_they_are(kind):
    handshake = ServerHandshake(b"", authentication=True)
    accepted = handshake.connect(connect("magnetar-link", b"x"))
    assert accepted.proving and accepted.link and not handshake.connected and not handshake.link
    assert verdict(handshake, kind) == "end"
    handshake.proved(link=False)
    assert verdict(handshake, 18) == "ok" and verdict(handshake, 1000) == "refuse"


def test_the_lists_are_those_of_the_protocol():
    assert CLIENT_COMMANDS == CLIENTS_OWN | BOTH
    assert GEO_REQUESTS == LINKS_OWN
    assert not CLIENT_COMMANDS & SERVERS_OWN


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != 2])
def test_only_connect_comes_first(kind):
    handshake = ServerHandshake(TOKEN)
    with pytest.raises(ProtocolError, match="before CONNECT"):
        handshake.connect(pb.BaseCommand(type=kind))
    assert handshake.state is State.NEW


def test_connect_comes_once():
    handshake = connected()
    for act in (handshake.connect, handshake.check):
        with pytest.raises(ProtocolError, match="a second time"):
            act(connect())
    handshake.close()
    with pytest.raises(ProtocolError, match="closing"):
        handshake.connect(connect())


@pytest.mark.parametrize("data", [b"", b"0", TOKEN + b"0", TOKEN[:-1], b"\xff" * 10])
def test_a_wrong_token_is_refused_and_nothing_follows(data):
    handshake = ServerHandshake(TOKEN)
    with pytest.raises(BrokerError, match="link token") as caught:
        handshake.connect(connect("magnetar-link", data))
    assert caught.value.code is ErrorCode.AUTHENTICATION
    assert not handshake.connected
    assert not handshake.link
    assert verdict(handshake, 18) == "end"
    with pytest.raises(ProtocolError, match="closing"):
        handshake.connect(connect("magnetar-link", TOKEN))  # no second guess


def test_without_a_token_there_are_no_links():
    with pytest.raises(BrokerError):
        ServerHandshake(b"").connect(connect("magnetar-link", b""))


def test_the_token_by_another_method_makes_no_link():
    assert not connected().link
    handshake = ServerHandshake(TOKEN)
    assert not handshake.connect(connect("token", TOKEN)).link


@pytest.mark.parametrize(("peer", "agreed"), [(0, 0), (-3, 0), (19, 19), (21, 21), (40, 21)])
def test_the_smaller_version_is_spoken(peer, agreed):
    assert ServerHandshake(TOKEN).connect(connect(version=peer)).protocol_version == agreed


def test_request_ids():
    assert request_id_of(pb.BaseCommand(type=28, seek=pb.CommandSeek(consumer_id=1, request_id=77))) == 77
    assert (
        request_id_of(pb.BaseCommand(type=1000, geo_topics=pb.CommandGeoTopics(request_id=5, to="x", counter=0))) == 5
    )
    assert request_id_of(pb.BaseCommand(type=18, ping=pb.CommandPing())) == NO_REQUEST
    assert request_id_of(pb.BaseCommand(type=1)) == request_id_of(pb.BaseCommand(type=70)) == NO_REQUEST


@pytest.mark.parametrize(
    "other", [pb.BaseCommand(ping=pb.CommandPing()), pb.BaseCommand(seek={"consumer_id": 1, "request_id": 2})]
)
def test_the_request_id_is_that_of_the_command_that_the_type_says(other):
    command = pb.BaseCommand(type=1002, geo_read=pb.CommandGeoRead(request_id=5))
    command.MergeFrom(other)
    assert request_id_of(command) == 5


@pytest.mark.parametrize(
    ("kind", "version", "may"),
    [(31, 11, False), (31, 12, True), (68, 19, False), (68, 20, True), (27, 21, False), (66, 21, False), (15, 0, True)],
)
def test_what_may_be_pushed(kind, version, may):
    assert versions.may_push(kind, version) is may
