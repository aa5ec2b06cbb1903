"""The blocking link client against a scripted peer: real sockets, no broker."""

from collections.abc import Callable, Iterator

import pytest

from magnetar.core import addresses as limits
from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ConfigError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.runtime.network import link_client as module
from magnetar.runtime.network.link_client import LinkClient, LinkDown, LinkRefused, geo_position
from magnetar.runtime.security.tls import target_of
from magnetar.wire import commands, frames
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from tests.support.peer import Peer, Script

HELLO = pb.GeoHello(version=1, cluster="us-east", uuid="u-1")


def broker(handle: Script) -> Script:
    """Answer CONNECT as a broker does; the rest is the test's."""

    def script(frame: Frame, peer: Peer) -> None:
        if frame.command.type == 2:
            peer.send(commands.connected(frame.command.connect.protocol_version, 5 << 20, HELLO))
        else:
            handle(frame, peer)

    return script


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Peer]]:
    """Start a peer; it ends with the test."""
    peers: list[Peer] = []

    def start(script: Script) -> Peer:
        peers.append(Peer(script))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def appended(request_id: int, position: Position) -> bytes:
    answer = pb.CommandGeoAppendResponse(request_id=request_id, persisted=geo_position(position))
    return frames.encode(pb.BaseCommand(type=1005, geo_append_response=answer))


def an_append(entry: int, sizes: list[int]) -> pb.CommandGeoAppend:
    count = len(sizes)
    return pb.CommandGeoAppend(
        request_id=0,
        topic="persistent://public/default/t",
        source="us-west",
        uuid="u-2",
        incarnation=7,
        gen=1,
        p=geo_position(NONE),
        ledgers=[7] * count,
        entries=range(entry, entry + count),
        first_indexes=range(entry, entry + count),
        counts=[1] * count,
        sizes=sizes,
    )


def test_handshake_presents_the_token_and_learns_who_is_there(serve):
    peer = serve(broker(lambda frame, peer: None))
    with LinkClient.connect(peer.address, "secret") as client:
        assert (client.hello.cluster, client.hello.uuid, client.message_bytes_max) == ("us-east", "u-1", 5 << 20)
    connect = peer.frames[0].command.connect
    assert (connect.auth_method_name, connect.auth_data) == ("magnetar-link", b"secret")


def test_a_wrong_token_is_refused_not_down(serve):
    def script(frame: Frame, peer: Peer) -> None:
        peer.send(commands.error(2**64 - 1, ErrorCode.AUTHENTICATION, "the link token is wrong"))
        peer.hang_up()

    peer = serve(script)
    with pytest.raises(LinkRefused, match="the link token is wrong") as caught:
        LinkClient.connect(peer.address, "x")
    assert caught.value.code is ErrorCode.AUTHENTICATION


def test_a_pulsar_broker_without_links_is_refused(serve):
    peer = serve(lambda frame, peer: peer.send(commands.connected(21, 5 << 20)))
    with pytest.raises(LinkRefused, match="speaks no link commands; version 1 is needed"):
        LinkClient.connect(peer.address, "x")


def test_nobody_there_is_down():
    with pytest.raises(LinkDown, match=r"^127\.0\.0\.1:1: "):
        LinkClient.connect("127.0.0.1:1", "x", timeout_ms=2000)


def test_a_peer_that_says_nothing_is_down(serve):
    peer = serve(lambda frame, peer: None)
    with pytest.raises(LinkDown, match=r"no answer to CONNECT within 0\.05 s"):
        LinkClient.connect(peer.address, "x", timeout_ms=50)


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", commands.success(1), commands.pong() + b"\0\0\0\0"]
)
def test_a_peer_that_talks_nonsense_is_down(serve, reply):
    peer = serve(lambda frame, peer: peer.send(reply))
    with pytest.raises(LinkDown):
        LinkClient.connect(peer.address, "x", timeout_ms=2000)


def test_topics_says_everything_that_is_asked(serve):
    seen: list[pb.CommandGeoTopics] = []

    def handle(frame: Frame, peer: Peer) -> None:
        ask = frame.command.geo_topics
        seen.append(ask)
        answer = pb.CommandGeoTopicsResponse(request_id=ask.request_id, counter=9, uuid="u-1")
        peer.send(commands.ping(), frames.encode(pb.BaseCommand(type=1001, geo_topics_response=answer)))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        assert client.topics("eu", 5, boot=3, wait_ms=20_000, pipeline="p", lease_ms=1000).counter == 9
    ask = seen[0]
    assert (ask.to, ask.counter, ask.boot, ask.wait_ms, ask.pipeline, ask.lease_ms) == ("eu", 5, 3, 20_000, "p", 1000)


def test_pings_are_answered(serve):
    def handle(frame: Frame, peer: Peer) -> None:
        if frame.command.type == 1010:
            peer.send(commands.ping())
        elif frame.command.type == 19:
            answer = pb.CommandGeoStatusResponse(request_id=1, gap=4)
            peer.send(frames.encode(pb.BaseCommand(type=1011, geo_status_response=answer)))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        assert client.status("eu").gap == 4


def test_read_hands_out_the_bytes_as_they_came(serve):
    payload = bytes(range(256)) * 4000

    def handle(frame: Frame, peer: Peer) -> None:
        ask = frame.command.geo_read
        assert not ask.HasField("to")
        assert (ask.after.ledger, ask.after.entry, ask.up_to.ledger, ask.bytes_max) == (3, 4, 9, 77)
        answer = pb.CommandGeoReadResponse(
            request_id=ask.request_id, ledgers=[3, 3], entries=[5, 6], sizes=[1000, len(payload) - 1000], end=ask.up_to
        )
        peer.send(*frames.encode_with_payload(pb.BaseCommand(type=1003, geo_read_response=answer), [payload]))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        got = client.read("t", Position(3, 4), up_to=Position(9, 9), bytes_max=77)
        assert list(got.response.entries) == [5, 6]
        assert got.payload == payload


def test_read_whose_bytes_do_not_fit_its_columns_is_nonsense(serve):
    def handle(frame: Frame, peer: Peer) -> None:
        answer = pb.CommandGeoReadResponse(
            request_id=frame.command.geo_read.request_id, sizes=[3], end=geo_position(NONE)
        )
        peer.send(*frames.encode_with_payload(pb.BaseCommand(type=1003, geo_read_response=answer), [b"four"]))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        with pytest.raises(LinkDown, match="4 bytes came for entries of 3 bytes"):
            client.read("t")
        with pytest.raises(LinkDown, match="4 bytes came"):
            client.status()


def test_errors_of_one_request_leave_the_connection(serve):
    def handle(frame: Frame, peer: Peer) -> None:
        if frame.command.type == 1002:
            answer = pb.CommandGeoReadResponse(
                request_id=frame.command.geo_read.request_id, end=geo_position(NONE), error=11, message="no such topic"
            )
            peer.send(frames.encode(pb.BaseCommand(type=1003, geo_read_response=answer)))
        else:
            peer.send(commands.error(frame.command.geo_status.request_id, ErrorCode.NOT_ALLOWED, "not now"))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        for _ in range(2):
            with pytest.raises(LinkRefused, match="no such topic") as caught:
                client.read("t")
            assert caught.value.code is ErrorCode.TOPIC_NOT_FOUND
        with pytest.raises(LinkRefused, match="not now"):
            client.status()


def test_an_error_code_from_the_future_is_unknown():
    assert LinkRefused(999, "?", "here").code is ErrorCode.UNKNOWN


def test_appends_are_pipelined_and_their_bytes_are_exact(serve):
    payloads: list[bytes] = []
    waiting: list[int] = []

    def handle(frame: Frame, peer: Peer) -> None:
        payloads.append(frame.payload)
        waiting.append(frame.command.geo_append.request_id)
        if len(waiting) == 5:  # the answer to each comes only when all have been sent
            for request_id in waiting:
                peer.send(appended(request_id, Position(7, request_id)))

    peer = serve(broker(handle))
    sent = [[bytes([number]) * 1_000_000, memoryview(b"tail")] for number in range(5)]
    with LinkClient.connect(peer.address, "x") as client:
        ids = [client.append_async(an_append(number, [999_999, 5]), buffers) for number, buffers in enumerate(sent)]
        answers: list[module.Appended] = []
        while len(answers) < 5:
            answers += client.poll(5000)
        assert client.in_flight == 0
        assert client.poll(60_000) == []  # nothing is in flight: returns at once
    assert [answer.request_id for answer in answers] == ids
    assert [answer.response.persisted.entry for answer in answers] == ids
    assert payloads == [b"".join(buffers) for buffers in sent]


def test_the_window_waits_for_answers(serve, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_REQUESTS", 3)
    most = 0
    unanswered: list[int] = []

    def handle(frame: Frame, peer: Peer) -> None:
        nonlocal most
        if frame.command.type == 1010:
            while unanswered:
                peer.send(appended(unanswered.pop(0), NONE))
            answer = pb.CommandGeoStatusResponse(request_id=frame.command.geo_status.request_id)
            peer.send(frames.encode(pb.BaseCommand(type=1011, geo_status_response=answer)))
            return
        unanswered.append(frame.command.geo_append.request_id)
        most = max(most, len(unanswered))
        if len(unanswered) == 3:
            peer.send(appended(unanswered.pop(0), NONE))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        for number in range(20):
            client.append_async(an_append(number, [3]), [b"abc"])
            assert client.in_flight <= 3
        client.status()  # answers to appends come meanwhile, and are kept
        got = client.poll(5000)
        while client.in_flight:
            got += client.poll(5000)
        assert len(got) == 20
    assert most == 3


def test_a_refused_append_is_told_by_poll(serve):
    def handle(frame: Frame, peer: Peer) -> None:
        peer.send(commands.error(frame.command.geo_append.request_id, ErrorCode.NOT_ALLOWED, "who are you"))

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        request = client.append_async(an_append(0, [1]), [b"x"])
        (answer,) = client.poll(5000)
        assert answer.request_id == request
        assert answer.refusal is not None
        assert answer.refusal.code is ErrorCode.NOT_ALLOWED


def test_answers_that_came_before_the_end_are_not_lost(serve):
    def handle(frame: Frame, peer: Peer) -> None:
        peer.send(appended(frame.command.geo_append.request_id, Position(7, 0)))
        peer.hang_up()

    peer = serve(broker(handle))
    with LinkClient.connect(peer.address, "x") as client:
        client.append_async(an_append(0, [1]), [b"x"])
        (answer,) = client.poll(5000)
        assert answer.response.persisted.ledger == 7
        with pytest.raises(LinkDown):
            client.status()


def test_an_answer_to_nothing_is_nonsense(serve):
    peer = serve(broker(lambda frame, peer: peer.send(appended(4711, NONE))))
    with LinkClient.connect(peer.address, "x") as client, pytest.raises(LinkDown, match="answered request 4711"):
        client.status()


def test_the_wrong_kind_of_answer_is_nonsense(serve):
    peer = serve(broker(lambda frame, peer: peer.send(appended(frame.command.geo_status.request_id, NONE))))
    with LinkClient.connect(peer.address, "x") as client, pytest.raises(LinkDown, match="is not an answer to it"):
        client.status()


def test_a_silent_broker_is_down_after_the_timeout(serve):
    peer = serve(broker(lambda frame, peer: None))
    with (
        LinkClient.connect(peer.address, "x", timeout_ms=80) as client,
        pytest.raises(LinkDown, match=r"within 0\.08 s"),
    ):
        client.status()


def test_columns_and_buffers_must_agree(serve):
    peer = serve(broker(lambda frame, peer: None))
    with LinkClient.connect(peer.address, "x") as client:
        with pytest.raises(ValueError, match="2 bytes in buffers"):
            client.append_async(an_append(0, [3]), [b"ab"])
        short = an_append(0, [1, 1])
        del short.counts[0]
        with pytest.raises(ValueError, match=r"lengths \[2\]|lengths"):
            client.append_async(short, [b"ab"])


def test_closed_here(serve):
    peer = serve(broker(lambda frame, peer: None))
    client = LinkClient.connect(peer.address, "x")
    client.close()
    with pytest.raises(LinkDown, match="closed here"):
        client.status()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("h:1", ("h", 1)),
        ("pulsar://h:65535/", ("h", 65535)),
        ("[::1]:6650", ("::1", 6650)),
        ("pulsar://[::1]:1", ("::1", 1)),
    ],
)
def test_addresses(text, want):
    assert target_of(text)[:2] == want


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:-1", "h:١", "h:" + "9" * 5_000, "a..b:1"]
)
def test_bad_addresses(text):
    with pytest.raises(ConfigError, match="write host:port"):
        target_of(text)


def waits(frame: Frame, peer: Peer) -> None:
    """A broker that waits to take over refuses everything."""
    peer.send(commands.error(2**64 - 1, ErrorCode.SERVICE_NOT_READY, "broker b serves this cluster"))
    peer.hang_up()


def test_the_broker_that_serves_is_found_among_several_addresses(serve, monkeypatch):
    monkeypatch.setattr(limits, "SILENT_S", 0.05)
    waiting, silent, peer = serve(waits), serve(lambda frame, peer: None), serve(broker(lambda frame, peer: None))
    addresses = BrokerAddresses(["127.0.0.1:1", waiting.address, silent.address, peer.address])
    for _ in range(2):
        with LinkClient.connect(addresses, "secret") as client:
            assert (client.address, client.hello.cluster) == (peer.address, "us-east")
    assert (len(waiting.frames), len(silent.frames), len(peer.frames)) == (1, 1, 2)  # the second time at once


def test_a_broker_that_was_too_slow_is_tried_again_when_no_other_one_serves(serve, monkeypatch):
    monkeypatch.setattr(limits, "SILENT_S", 0.05)
    answer, seen = broker(lambda frame, peer: None), list[Frame]()

    def second_time(frame: Frame, peer: Peer) -> None:
        seen.append(frame)
        if len(seen) > 1:
            answer(frame, peer)

    slow, waiting = serve(second_time), serve(waits)
    with LinkClient.connect(f"{slow.address},{waiting.address}", "secret") as client:
        assert client.address == slow.address
    assert (len(slow.frames), len(waiting.frames)) == (2, 1)


def test_no_broker_serves_names_every_address(serve):
    waiting = serve(waits)
    with pytest.raises(LinkDown) as caught:
        LinkClient.connect(f"127.0.0.1:1,{waiting.address}", "x")
    assert str(caught.value) == (f"127.0.0.1:1: Connection refused; {waiting.address}: broker b serves this cluster")


def test_a_wrong_token_is_refused_also_when_another_broker_is_down(serve):
    def script(frame: Frame, peer: Peer) -> None:
        peer.send(commands.error(2**64 - 1, ErrorCode.AUTHENTICATION, "the link token is wrong"))
        peer.hang_up()

    with pytest.raises(LinkRefused, match="the link token is wrong"):
        LinkClient.connect(f"{serve(script).address},127.0.0.1:1", "x")
