"""Long lists of message ids come out in portions, whatever their number: the same ids, in order, with what belongs to them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.dividing import PORTION_IDS
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder, FrameError, encode
from magnetar.wire.limits import FREE_IDS_BYTES

PING = encode(pb.BaseCommand(type=18, ping=pb.CommandPing()))


def ack(count: int, words: int = 0, **more: int) -> pb.CommandAck:
    """Of so many messages of so large batches."""
    command = pb.CommandAck(consumer_id=3, **{"ack_type": 0, **more})
    for entry in range(count):
        command.message_id.add(ledgerId=7, entryId=entry, partition=-1, ack_set=[-1] * words)
    return command


def redeliver(count: int, **more: int) -> pb.CommandRedeliverUnacknowledgedMessages:
    """So many messages."""
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=3, **more)
    for entry in range(count):
        command.message_ids.add(ledgerId=7, entryId=entry, partition=-1)
    return command


def taken(data: bytes, piece: int = 1 << 16) -> list[list[Frame]]:
    """What comes out, turn by turn."""
    decoder = FrameDecoder(1 << 24)
    decoder.limit(1 << 19)
    turns = []
    for at in range(0, len(data), piece):
        rest = data[at : at + piece]
        while rest:
            room = decoder.get_buffer(len(rest))
            count = min(len(room), len(rest))
            room[:count], rest = rest[:count], rest[count:]
            turns.append(decoder.buffer_updated(count, 20))
            while decoder.more:
                turns.append(decoder.buffer_updated(0, 20))
    return turns


def acked(frames: list[Frame]) -> list[int]:
    """Which messages."""
    return [item.entryId for frame in frames for item in frame.command.ack.message_id]


@given(st.integers(0, 4_500), st.integers(0, 40), st.booleans())
def test_every_id_comes_once_in_portions(count: int, words: int, wished: bool) -> None:
    command = ack(count, words, **({"request_id": 5} if wished else {}))
    turns = taken(encode(pb.BaseCommand(type=10, ack=command)) + PING)
    frames = [frame for turn in turns for frame in turn]
    assert frames.pop().command.type == 18
    assert acked(frames) == list(range(count))
    assert [frame.command.ack.HasField("request_id") for frame in frames] == [False] * (len(frames) - 1) + [wished]
    assert all((frame.command.ack.consumer_id, frame.command.ack.ack_type) == (3, 0) for frame in frames)
    if command.ByteSize() > FREE_IDS_BYTES + 10:
        assert all(len(acked([frame])) <= PORTION_IDS for frame in frames)
        assert all(len(turn) <= 2 for turn in turns), "one portion a turn, and what stands behind the last"


@given(st.integers(0, 4_500), st.booleans())
def test_what_is_given_back_keeps_its_epoch(count: int, epoch: bool) -> None:
    command = redeliver(count, **({"consumer_epoch": 9} if epoch else {}))
    frames = [
        frame
        for turn in taken(encode(pb.BaseCommand(type=20, redeliverUnacknowledgedMessages=command)))
        for frame in turn
    ]
    parts = [frame.command.redeliverUnacknowledgedMessages for frame in frames]
    assert [item.entryId for part in parts for item in part.message_ids] == list(range(count))
    assert all(part.consumer_id == 3 and part.HasField("consumer_epoch") == epoch for part in parts)
    assert count == 0 or all(part.message_ids for part in parts), "one without ids gives back everything"


def test_half_a_million_are_taken_in_small_turns() -> None:
    body = ack(1).SerializeToString()
    head, one = body[:4], body[4:]
    raw = head + one * 250_000
    command = b"\x08\x0a\x52" + pb.BaseCommand(type=10, ack=pb.CommandAck.FromString(raw)).SerializeToString()[3:]
    turns = taken(struct.pack(">II", len(command) + 4, len(command)) + command)
    assert sum(len(acked(turn)) for turn in turns) == 250_000
    assert max(len(acked(turn)) for turn in turns) <= PORTION_IDS


@pytest.mark.parametrize(
    "more", [{"txnid_least_bits": 5, "txnid_most_bits": 1}, {"ack_type": 1}], ids=["transaction", "cumulative"]
)
def test_what_means_something_as_a_whole_stays_whole(more: dict[str, int]) -> None:
    command = ack(2_000, **more)
    (frame,) = [frame for turn in taken(encode(pb.BaseCommand(type=10, ack=command))) for frame in turn]
    assert frame.command.ack == command
    with pytest.raises(FrameError, match="command of type 10 that is refused: it has more than 10000 fields"):
        taken(encode(pb.BaseCommand(type=10, ack=ack(20_000, request_id=4, **more))))


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 20])
def test_one_that_ends_in_the_middle_is_no_command(cut: int) -> None:
    body = ack(3_000).SerializeToString()[:-cut]
    command = b"\x08\x0a" + b"\x52" + bytes([len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14]) + body
    with pytest.raises(FrameError, match="not a protobuf BaseCommand|lacks the required"):
        taken(struct.pack(">II", len(command) + 4, len(command)) + command)
