"""The client role, against what a broker says."""

import pytest

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import (
    RESPONSE_OF,
    ClientConnection,
    ClientFault,
    ClientState,
    Connected,
    ConnectRefused,
    Push,
    Response,
)
from magnetar.wire.connection import (
    CLIENT_COMMANDS,
    GEO_REQUESTS,
    LINK_AUTH_METHOD,
    NO_REQUEST,
    ServerHandshake,
    request_id_of,
)
from magnetar.wire.frames import FrameDecoder, encode, encode_with_payload

CONNECTED = commands.connected(21, 5 << 20)


def hello(**more: object) -> pb.CommandConnect:
    return pb.CommandConnect(client_version="test", protocol_version=21, **more)  # type: ignore[arg-type]


def connected() -> ClientConnection:
    client = ClientConnection(1 << 20)
    client.connect(hello())
    (event,) = client.receive(CONNECTED)
    assert isinstance(event, Connected)
    sent(client)
    return client


def sent(client: ClientConnection) -> list[pb.BaseCommand]:
    """Take what a client sends."""
    data = b"".join(client.outgoing())
    client.sent(len(data))
    return [frame.command for frame in FrameDecoder().feed(data)]


def seek() -> pb.BaseCommand:
    return pb.BaseCommand(type=pb.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=0, message_publish_time=5))


def test_both_roles_shake_hands():
    client, server = ClientConnection(1 << 20), ServerHandshake(b"secret")
    client.connect(hello(auth_method_name=LINK_AUTH_METHOD, auth_data=b"secret"))
    (connect,) = sent(client)
    accepted = server.connect(connect)
    assert accepted.link
    (event,) = client.receive(
        commands.connected(accepted.protocol_version, 5 << 20, pb.GeoHello(version=1, cluster="b", uuid="u"))
    )
    assert isinstance(event, Connected)
    assert client.state is ClientState.CONNECTED
    assert client.greeting is not None
    assert (client.greeting.geo.version, client.greeting.max_message_size) == (1, 5 << 20)


def test_a_refused_client_sends_nothing_more():
    client, server = ClientConnection(1 << 20), ServerHandshake(b"secret")
    client.connect(hello(auth_method_name=LINK_AUTH_METHOD, auth_data=b"guessed"))
    client.request(seek())
    (connect,) = sent(client)
    with pytest.raises(BrokerError) as caught:
        server.connect(connect)
    (event,) = client.receive(commands.error(NO_REQUEST, caught.value.code, str(caught.value)))
    assert isinstance(event, ConnectRefused)
    assert event.error.error == ErrorCode.AUTHENTICATION
    assert not client.has_outgoing


def test_what_waits_for_connected_goes_to_another_broker():
    client = ClientConnection(1 << 20)
    client.connect(hello())
    number = client.request(seek())
    client.sent(10)  # a part of CONNECT
    client.receive(
        encode(pb.BaseCommand(type=pb.ERROR, error=pb.CommandError(request_id=NO_REQUEST, error=6, message="")))[:-1]
    )
    client.connect_elsewhere(hello())
    assert [command.type for command in sent(client)] == [pb.CONNECT]
    client.receive(CONNECTED)
    (command,) = sent(client)
    assert (command.type, command.seek.request_id, client.unsent_bytes) == (pb.SEEK, number, 0)


def test_a_client_that_was_refused_can_connect_elsewhere():
    client = ClientConnection(1 << 20)
    client.connect(hello())
    sent(client)
    refusal = pb.CommandError(request_id=NO_REQUEST, error=ErrorCode.SERVICE_NOT_READY, message="it waits")
    (event,) = client.receive(encode(pb.BaseCommand(type=pb.ERROR, error=refusal)))
    assert isinstance(event, ConnectRefused)
    client.connect_elsewhere(hello())
    assert [command.type for command in sent(client)] == [pb.CONNECT]
    (event,) = client.receive(CONNECTED)
    assert isinstance(event, Connected)


def test_every_request_has_an_answer_that_a_client_does_not_send():
    assert RESPONSE_OF.keys() <= CLIENT_COMMANDS | GEO_REQUESTS
    assert not set(RESPONSE_OF.values()) & (CLIENT_COMMANDS | GEO_REQUESTS)
    for kind in (*RESPONSE_OF, *RESPONSE_OF.values()):
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind]
        assert "request_id" in field.message_type.fields_by_name, field.name


def test_requests_are_numbered_and_matched():
    client = connected()
    first, second = client.request(seek()), client.request(seek())
    assert [request_id_of(command) for command in sent(client)] == [first, second]
    events = client.receive(
        commands.success(second) + commands.error(first, ErrorCode.NOT_ALLOWED, "no") + commands.success(first)
    )
    answers = [event for event in events if isinstance(event, Response)]
    assert [answer.request_id for answer in answers] == [second, first]
    assert answers[0].error is None
    assert answers[1].error is not None
    assert answers[1].error.message == "no"
    assert isinstance(events[2], Push), "it has its answer already"


def test_an_answer_of_the_wrong_type_answers_nothing():
    client = connected()
    request = client.request(seek())
    (event,) = client.receive(commands.producer_success(request, "p"))
    assert isinstance(event, Push)
    (answer,) = client.receive(commands.success(request))
    assert isinstance(answer, Response)


def test_a_producer_that_waits_for_its_turn_has_no_answer_yet():
    client = connected()
    command = pb.BaseCommand(type=pb.PRODUCER, producer=pb.CommandProducer(topic="t", producer_id=1, request_id=0))
    request = client.request(command)
    (waits,) = client.receive(commands.producer_success(request, "p", ready=False))
    assert isinstance(waits, Push)
    (answer,) = client.receive(commands.producer_success(request, "p"))
    assert isinstance(answer, Response)
    assert answer.command.producer_success.producer_name == "p"


def test_pings_are_answered_and_nobody_hears_of_them():
    client = connected()
    assert client.receive(commands.ping() + commands.pong()) == []
    assert client.sent(sum(map(len, client.outgoing()))) is False, "a PONG is no progress"
    client.receive(commands.ping())
    client.request(seek())
    assert client.sent(sum(map(len, client.outgoing()))) is True


@pytest.mark.parametrize("data", [commands.success(1), commands.close_producer(1), encode(pb.BaseCommand(type=4711))])
def test_connect_is_answered_first(data):
    client = ClientConnection(1 << 20)
    client.connect(hello())
    with pytest.raises(ClientFault, match="answered CONNECT by command type"):
        client.receive(data)
    with pytest.raises(ClientFault, match="answered CONNECT by command type"):
        client.receive(CONNECTED)


def test_what_a_later_version_sends_is_passed_on():
    (event,) = connected().receive(encode(pb.BaseCommand(type=4711)))
    assert isinstance(event, Push)
    assert event.command.type == 4711


def test_events_in_front_of_a_fault_are_told():
    client = connected()
    request = client.request(seek())
    with pytest.raises(ClientFault, match="frame of 4294967295 bytes: at most 1048576 are accepted") as caught:
        client.receive(commands.success(request) + b"\xff\xff\xff\xff")
    (answer,) = caught.value.events
    assert isinstance(answer, Response)


def test_a_large_frame_is_received_into_a_buffer_of_its_own():
    client = ClientConnection(1 << 30, receive_bytes=1000)
    client.connect(hello())
    client.receive(CONNECTED)
    data = b"".join(encode_with_payload(pb.BaseCommand(type=4711), [bytes(9000)]))
    for _ in range(3):
        assert client.receive(data[:700]) == []
        assert len(client.get_buffer()) == len(data) - 700, "no byte of the next frame"
        (event,) = client.receive(data[700:])
        assert isinstance(event, Push)
        assert len(event.payload.obj) == len(data), "a view, not a copy"
        assert len(client.get_buffer()) == 1000


def test_the_buffer_of_a_small_frame_is_used_again():
    client = ClientConnection(1 << 30, receive_bytes=1000)
    client.connect(hello())
    client.receive(CONNECTED)
    data = b"".join(encode_with_payload(pb.BaseCommand(type=4711), [b"x" * 400]))
    first, second = (client.receive(piece)[0] for piece in (data, data.replace(b"x", b"y")))
    assert isinstance(first, Push)
    assert isinstance(second, Push)
    assert (first.payload, second.payload) == (b"x" * 400, b"y" * 400)
