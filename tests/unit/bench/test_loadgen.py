"""The load generator must be able to fail: against a scripted server that confirms rightly, wrongly, or not at all."""

import argparse
from collections.abc import Callable, Iterator

import pytest
from bench import loadgen

from magnetar.core.errors import ErrorCode, MagnetarError
from magnetar.wire import commands, metadata
from magnetar.wire.batches import decode_batch
from magnetar.wire.frame import Frame
from tests.support.peer import Peer, Script

Confirm = Callable[[int, Frame, Peer], None]


def options(address: str, **changes: object) -> argparse.Namespace:
    given = loadgen.command_line().parse_args(
        ["--url", address, "--topic", "t", "--messages", "300", "--size", "50", "--window", "7"]
    )
    return argparse.Namespace(**(vars(given) | changes))


def receipt(frame: Frame, peer: Peer, ledger: int = 5, entry: int = 1) -> None:
    send = frame.command.send
    peer.send(commands.receipts(send.producer_id, [(send.sequence_id, 0, ledger, entry)]))


def broker(confirm: Confirm) -> Script:
    """Accept everything; what happens to the n-th SEND is the test's."""
    count = 0

    def script(frame: Frame, peer: Peer) -> None:
        nonlocal count
        if frame.command.type == 2:
            peer.send(commands.connected(19, 5 << 20))
        elif frame.command.type == 5:
            peer.send(commands.ping(), commands.producer_success(1, "p-1"))
        elif frame.command.type == 6:
            count += 1
            confirm(count - 1, frame, peer)

    return script


@pytest.fixture
def serve() -> Iterator[Callable[[Confirm], Peer]]:
    peers: list[Peer] = []

    def start(confirm: Confirm) -> Peer:
        peers.append(Peer(broker(confirm)))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def sent(peer: Peer) -> list[Frame]:
    return [frame for frame in peer.frames if frame.command.type == 6]


def test_closed_loop_sends_what_it_says(serve):
    waiting = most = 0

    def confirm(number: int, frame: Frame, peer: Peer) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == 7 or number == 299:
            for _ in range(waiting):
                send = sent(peer)[number + 1 - waiting].command.send
                peer.send(commands.receipts(1, [(send.sequence_id, 0, 5, send.sequence_id)]))
                waiting -= 1

    peer = serve(confirm)
    figures = loadgen.measure(options(peer.address))
    assert most == 7
    assert (figures["messages"], figures["entries"], figures["in_order"], figures["duplicates"]) == (300, 300, True, 0)
    assert (figures["first"], figures["last"]) == ("5:0", "5:299")
    assert figures["messages_per_s"] > 0
    assert list(figures["latency_ms"]) == ["p50", "p90", "p99", "p999", "max"]
    for number, frame in enumerate(sent(peer)):
        seen = metadata.inspect(frame.payload, message_bytes_max=1000)
        assert frame.command.send.sequence_id == seen.metadata.sequence_id == number
        assert len(frame.payload) - seen.metadata_end == 50
        assert seen.metadata.producer_name == "p-1"


def test_batches_are_batches(serve):
    peer = serve(lambda number, frame, peer: receipt(frame, peer))
    figures = loadgen.measure(options(peer.address, messages=95, batch=10))
    assert (figures["messages"], figures["entries"]) == (100, 10)
    for number, frame in enumerate(sent(peer)):
        seen = metadata.inspect(frame.payload, message_bytes_max=10_000)
        assert (seen.count, frame.command.send.num_messages, seen.metadata.sequence_id) == (10, 10, 10 * number)
        assert len(decode_batch(seen.payload[seen.metadata_end :], 10)) == 10


def test_each_message_has_a_key_of_its_own(serve):
    peer = serve(lambda number, frame, peer: receipt(frame, peer))
    loadgen.measure(options(peer.address, messages=50, key="order"))
    keys = {
        entry.value
        for frame in sent(peer)
        for entry in metadata.inspect(frame.payload, message_bytes_max=1000).metadata.properties
        if entry.key == "order"
    }
    assert len(keys) == 50


def test_batches_share_a_payload_and_cannot_have_keys(serve):
    peer = serve(lambda number, frame, peer: receipt(frame, peer))
    with pytest.raises(MagnetarError, match="--key goes with --batch 1"):
        loadgen.measure(options(peer.address, batch=10, key="order"))


def test_open_loop_keeps_the_rate(serve):
    peer = serve(lambda number, frame, peer: receipt(frame, peer))
    figures = loadgen.measure(options(peer.address, messages=100, rate=1000.0, window=1))
    assert figures["mode"] == "open"
    assert figures["seconds"] >= 0.099
    assert figures["late_ms"]["max"] >= 0


def test_pings_are_answered_in_the_middle(serve):
    def confirm(number: int, frame: Frame, peer: Peer) -> None:
        if number == 100:
            peer.send(commands.ping())
        receipt(frame, peer)

    peer = serve(confirm)
    loadgen.measure(options(peer.address))
    assert [frame.command.type for frame in peer.frames].count(19) >= 2


def test_duplicates_are_counted(serve):
    def confirm(number: int, frame: Frame, peer: Peer) -> None:
        receipt(frame, peer, *((-1, -1) if number % 3 == 1 else (5, 5)))

    assert loadgen.measure(options(serve(confirm).address))["duplicates"] == 100


def twice(number: int, frame: Frame, peer: Peer) -> None:
    receipt(frame, peer)
    if number == 50:
        receipt(frame, peer)


def left_out(number: int, frame: Frame, peer: Peer) -> None:
    if number != 50:
        receipt(frame, peer)


def refused(number: int, frame: Frame, peer: Peer) -> None:
    if number == 50:
        peer.send(commands.send_error(1, 50, ErrorCode.PERSISTENCE, "disk full"))
    else:
        receipt(frame, peer)


def gone(number: int, frame: Frame, peer: Peer) -> None:
    receipt(frame, peer)
    if number == 50:
        peer.hang_up()


def closed(number: int, frame: Frame, peer: Peer) -> None:
    receipt(frame, peer)
    if number == 50:
        peer.send(commands.close_producer(1))


@pytest.mark.parametrize(
    ("confirm", "text"),
    [
        (twice, "receipt out of order: 50 came where 51 was due"),
        (left_out, "receipt out of order: 51 came where 50 was due"),
        (refused, "entry 50 was refused: disk full"),
        (gone, "the broker closed the connection|the connection failed"),
        (closed, "the broker closed the producer"),
    ],
)
def test_whatever_goes_wrong_is_told(serve, confirm, text):
    with pytest.raises(MagnetarError, match=text):
        loadgen.measure(options(serve(confirm).address))


def test_silence_is_told(serve, monkeypatch):
    monkeypatch.setattr(loadgen, "STALL_S", 0.05)
    peer = serve(lambda number, frame, peer: None)
    with pytest.raises(MagnetarError, match="no receipt for"):
        loadgen.measure(options(peer.address))
