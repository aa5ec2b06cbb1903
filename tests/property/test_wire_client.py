"""The client role: any split of the broker's bytes gives the same events, and any bytes give events or a `ClientFault`."""

from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.core.errors import ErrorCode
from magnetar.wire import commands, frames
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import ClientConnection, ClientFault, ConnectRefused, Push, Response
from magnetar.wire.frame import Frame
from tests.property.wire_strategies import COMMANDS, FRAMES, PAYLOADS, wire

LIMIT = 100_000
RECEIVE_BYTES = 1_000
"""Small, so that frames are larger and smaller than the buffer, and lie across its end."""

CONNECTED = commands.connected(21, 5 << 20, pb.GeoHello(version=1, cluster="b", uuid="u"))
CUTS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 20_000)), max_size=12)


def answer(request_id: int, entry: int = 2) -> pb.BaseCommand:
    response = pb.CommandGeoReadResponse(request_id=request_id, end={"ledger": 1, "entry": entry})  # type: ignore[arg-type]
    return pb.BaseCommand(type=pb.GEO_READ_RESPONSE, geo_read_response=response)


READ = st.tuples(st.builds(answer, st.integers(0, 5)), PAYLOADS)
REFUSED = st.integers(0, 5).map(
    lambda request_id: (
        pb.BaseCommand(type=pb.ERROR, error=pb.CommandError(request_id=request_id, error=1, message="no")),
        b"",
    )
)


def asked() -> ClientConnection:
    """A client that has asked for four reads, before CONNECTED came."""
    client = ClientConnection(LIMIT, receive_bytes=RECEIVE_BYTES)
    client.connect(pb.CommandConnect(client_version="test", protocol_version=21))
    for number in range(4):
        read = pb.BaseCommand(type=pb.GEO_READ)
        read.geo_read.topic, read.geo_read.bytes_max = "t", 1
        read.geo_read.after.ledger = read.geo_read.after.entry = -1
        assert client.request(read) == number + 1
    return client


def outcome(data: bytes, cuts: list[int]) -> tuple[list[object], str, bytes]:
    """Events of bytes that arrive in pieces of these lengths, again and again; the fault if any; and what is sent by then."""
    client = asked()
    events: list[object] = []
    held: list[tuple[memoryview, bytes]] = []
    fault, at, turn = "", 0, 0
    while at < len(data) and not fault:
        room = client.get_buffer()
        count = min(len(room), len(data) - at, cuts[turn % len(cuts)] if cuts else len(data))
        room[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        try:
            came = client.received(count)
        except ClientFault as error:
            came, fault = error.events, str(error)
        held += [(event.payload, bytes(event.payload)) for event in came if isinstance(event, Response | Push)]
        events += came
    assert all(view == copy for view, copy in held), "a payload was written over"
    return events, fault, b"".join(client.outgoing())


@given(st.lists(st.one_of(FRAMES, READ, REFUSED), max_size=8), CUTS)
def test_any_split_gives_the_same_events(items, cuts):
    data = CONNECTED + wire(items)
    whole = outcome(data, [])
    assert outcome(data, cuts) == whole
    assert outcome(data, [1]) == whole


@given(st.lists(st.one_of(FRAMES, READ), max_size=4), st.binary(max_size=40), CUTS)
@example([], b"\x00\x00\x00\x05\x00\x00\x00\x01\x08", [4])
@example([], b"\xff\xff\xff\xff", [2])
@example([], commands.error(7, ErrorCode.AUTHENTICATION, "no"), [1])
def test_any_bytes_give_the_same_events_and_the_same_fault(items, junk, cuts):
    for begin in (b"", CONNECTED):
        data = begin + wire(items) + junk
        whole = outcome(data, [])
        assert outcome(data, cuts) == whole
        assert "\n" not in whole[1]


@given(st.lists(st.tuples(COMMANDS, PAYLOADS), max_size=6), st.lists(st.integers(1, 5_000), max_size=12), st.booleans())
def test_what_is_sent_arrives_however_the_socket_takes_it(items, taken, early):
    """Frames that are queued before CONNECTED follow it; a PONG never stands inside of another frame."""
    client = ClientConnection(LIMIT)
    client.connect(pb.CommandConnect(client_version="test", protocol_version=21))
    if not early:
        client.receive(CONNECTED)
    for command, payload in items:
        client.send(command, [payload[:7], memoryview(payload)[7:]])
    server = frames.FrameDecoder(1 << 20)
    got: list[Frame] = []
    for turn, most in enumerate([*taken, 1 << 30]):
        if turn == 1:
            client.receive(commands.ping())
        data = b"".join(client.outgoing())[:most]
        client.sent(len(data))
        got += server.feed(data)
    if early:
        assert [frame.command.type for frame in got if frame.command.type != pb.PONG] == [pb.CONNECT]
        client.receive(CONNECTED)
        data = b"".join(client.outgoing())
        client.sent(len(data))
        got += server.feed(data)
    assert client.unsent_bytes == 0
    assert not client.has_outgoing
    assert [(f.command, f.payload) for f in got if f.command.type not in (pb.CONNECT, pb.PONG)] == items
    assert sum(frame.command.type == pb.PONG for frame in got) == (1 if taken else 0)


@given(st.permutations(range(1, 5)), CUTS)
def test_each_answer_finds_its_request(order, cuts):
    answers = [(answer(number), bytes([number]) * 900 * number) for number in order]
    (_, *events), fault, _ = outcome(CONNECTED + wire(answers), cuts)
    assert not fault
    assert [event.request_id for event in events] == list(order)
    assert all(len(event.payload) == 900 * event.request_id for event in events)


def test_after_a_refusal_nothing_comes_out():
    data = commands.error(2**64 - 1, ErrorCode.AUTHENTICATION, "no") + CONNECTED + commands.success(1)
    for cuts in ([], [1], [7]):
        events, fault, _ = outcome(data, cuts)
        assert not fault
        assert len(events) == 1
        assert isinstance(events[0], ConnectRefused)
