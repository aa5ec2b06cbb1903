"""The clients of `bench.load` count what came, ask for more, and acknowledge the ids they were sent, however bytes were cut."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from bench.crowd import Crowd, until

from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from tests.support.peer import Peer, Script


def entry(held: int, size: int) -> bytes:
    """What the log holds of messages, checksum (which nobody looks at) included."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=held)
    told = metadata.SerializeToString()
    return b"\x0e\x01" + bytes(4) + len(told).to_bytes(4, "big") + told + bytes(size)


def message(ledger: int, number: int, held: int = 1, size: int = 10, *, redelivered: int = 0) -> bytes:
    content = entry(held, size)
    return commands.message_header(7, ledger, number, -1, redelivered, None, None, len(content)) + content


def broker(sent: list[bytes], portion: int) -> Script:
    """Lets anybody in; what it sends when it is asked for messages comes in portions."""
    left = [sent]

    def script(frame: Frame, peer: Peer) -> None:
        kind = frame.command.type
        if kind == 2:
            peer.send(commands.connected(19, 5 << 20))
        elif kind == 4:
            peer.send(commands.success(frame.command.subscribe.request_id))
        elif kind == 11 and left:
            everything = b"".join(left.pop())
            for at in range(0, len(everything), portion):
                peer.send(everything[at : at + portion])

    return script


def run(script: Script, work: Callable[[Crowd], Awaitable[None]]) -> list[Frame]:
    """A client at that broker; what it sent."""
    peer = Peer(script)

    async def main() -> None:
        client = await Crowd.connect(int(peer.address.rpartition(":")[2]))
        try:
            await work(client)
        finally:
            client.close()

    try:
        asyncio.run(main())
    finally:
        peer.close()
    assert not peer.errors
    return peer.frames


def acknowledged(frames: list[Frame]) -> list[tuple[int, int]]:
    acks = [frame.command.ack for frame in frames if frame.command.type == 10]
    assert all((ack.consumer_id, ack.ack_type) == (7, 0) for ack in acks)
    return [(one.ledgerId, one.entryId) for ack in acks for one in ack.message_id]


@pytest.mark.parametrize("portion", [1, 7, 1 << 20], ids=["bytes", "sevens", "at once"])
def test_what_came_is_counted_and_acknowledged(portion: int) -> None:
    ids = [(1 << shift, number) for number, shift in enumerate([0, 6, 7, 13, 14, 40, 62])]
    sent = [message(*one, redelivered=number) for number, one in enumerate(ids)]
    sent.insert(3, commands.ping())
    told: list[int] = []

    async def work(client: Crowd) -> None:
        client.on_message = lambda: told.append(client.received[7])
        await client.consume("t", "s", 7)
        await until(lambda: client.received.get(7, 0) == len(ids))
        await until(lambda: not client._acks)

    frames = run(broker(sent, portion), work)
    assert acknowledged(frames) == ids
    assert told == list(range(1, len(ids) + 1))
    assert [frame.command.type for frame in frames].count(19) == 1, "the ping is answered"


def test_messages_of_any_shape_are_understood() -> None:
    """Consumers of a large number, and messages that say more than their id, such as which of a batch are still to come."""
    shapes = [(7, None), (7, [1]), (300, None), (7, [(1 << 62) + 1] * 20), (300, [1]), (7, None)]
    sent = []
    for number, (consumer, left) in enumerate(shapes):
        content = entry(1, 10)
        sent.append(commands.message_header(consumer, 5, number, -1, number, left, 3, len(content)) + content)

    async def work(client: Crowd) -> None:
        await client.consume("t", "s", 7)
        await until(lambda: client.received == {7: 4, 300: 2})
        await until(lambda: not client._acks)

    acks = [frame.command.ack for frame in run(broker(sent, 1 << 20), work) if frame.command.type == 10]
    assert {ack.consumer_id: [one.entryId for one in ack.message_id] for ack in acks} == {7: [0, 1, 3, 5], 300: [2, 4]}


def test_half_of_what_was_asked_for_is_asked_for_again() -> None:
    async def work(client: Crowd) -> None:
        client.batch = 100
        await client.consume("t", "s", 7)
        await until(lambda: client.received.get(7, 0) == 2_400)
        await until(lambda: not client._acks)

    frames = run(broker([message(5, number, 100) for number in range(24)], 1 << 20), work)
    flows = [frame.command.flow.messagePermits for frame in frames if frame.command.type == 11]
    assert flows == [1_000, 500, 500, 500, 500]
    assert len(acknowledged(frames)) == 24


@pytest.mark.parametrize("size", [100, 1 << 14, (1 << 20) + 3, 3 << 20])
def test_large_ones_come_whole(size: int) -> None:
    async def work(client: Crowd) -> None:
        await client.consume("t", "s", 7)
        await until(lambda: client.received.get(7, 0) == 3)
        await until(lambda: not client._acks)

    frames = run(broker([message(5, number, 1, size) for number in range(3)], 1 << 16), work)
    assert acknowledged(frames) == [(5, 0), (5, 1), (5, 2)]


def test_who_does_not_acknowledge_asks_for_nothing() -> None:
    async def work(client: Crowd) -> None:
        client.acknowledges = False
        await client.consume("t", "s", 7)
        await until(lambda: client.received.get(7, 0) == 700)

    frames = run(broker([message(5, number) for number in range(700)], 1 << 20), work)
    assert [frame.command.type for frame in frames] == [2, 4, 11]


def test_entries_of_another_kind_are_not_counted_as_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever counts by entries has to know what they hold."""

    async def work(client: Crowd) -> None:
        client.batch = 10
        await client.consume("t", "s", 7)
        await until(lambda: bool(caplog.records))
        assert not client.received

    run(broker([message(5, 0, 9)], 1 << 20), work)
    assert "an entry of 9 messages" in str(caplog.records[0].exc_info)


def test_receipts_are_counted() -> None:
    def script(frame: Frame, peer: Peer) -> None:
        if frame.command.type == 2:
            peer.send(commands.connected(19, 5 << 20))
        elif frame.command.type == 5:
            peer.send(commands.producer_success(frame.command.producer.request_id, "p"))
        elif frame.command.type == 6:
            number = frame.command.send.sequence_id
            peer.send(commands.receipts(1, [(number, 0, 5, number)]))

    came: list[int] = []

    async def work(client: Crowd) -> None:
        client.on_receipt = lambda: came.append(client.confirmed)
        await client.produce("t", 1)
        for number in range(200):
            client.send(1, number, b"x")
        await until(lambda: client.confirmed == 200)

    run(script, work)
    assert came == list(range(1, 201))
