"""Frames by hand: what each fault is called, and what a command that comes out is sure to have."""

import gc
import weakref

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.wire import frames
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, FrameError

PING = pb.BaseCommand(type=18, ping=pb.CommandPing())


def raw(command: bytes, payload: bytes = b"") -> bytes:
    total = 4 + len(command) + len(payload)
    return total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload


def producer(topic: bytes) -> bytes:
    body = b"\x0a" + bytes([len(topic)]) + topic + b"\x10\x80\x01\x18\x01"
    return raw(b"\x08\x05\x2a" + bytes([len(body)]) + body)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\0", "frame of 0 bytes: the least is 5"),
        (b"\0\0\0\4\0\0\0\0", "frame of 4 bytes: the least is 5"),
        (b"\0\x51\0\0", "frame of 5308416 bytes: at most 5253120 are accepted"),
        (b"GET / HTTP/1.1\r\n", "frame of 1195725856 bytes: at most 5253120 are accepted"),
        (b"\0\0\0\x09\0\0\0\6......", "command of 6 bytes in a frame of 9"),
        (b"\0\0\0\x09\0\0\0\0......", "command of 0 bytes in a frame of 9"),
        (raw(b"\x08"), "command is not a protobuf BaseCommand"),
        (raw(b"\x12\x00"), "command of type 0 lacks the required type"),
        (raw(b"\x08\x06"), "command of type 6 without its 'send' part"),
        (raw(b"\x08\x06\x12\x00"), "command of type 6 without its 'send' part"),
        (raw(b"\x08\x06\x32\x02\x08\x01"), "command of type 6 lacks the required send.sequence_id"),
        (producer(b"a\xff"), "command of type 5 holds text that is not UTF-8"),
        (producer(b"\xed\xa0\x80"), "command of type 5 holds text that is not UTF-8"),
    ],
)
def test_faults(data, text):
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(data)
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value, ProtocolError)


def test_text_is_text():
    (frame,) = FrameDecoder().feed(producer("ä☃".encode()))
    assert frame.command.producer.topic == "ä☃"


def test_text_is_checked_at_any_depth():
    good = pb.CommandSubscribe(
        topic="t", subscription="ä", subType=0, consumer_id=1, request_id=1, metadata=[pb.KeyValue(key="k", value="QQ")]
    )
    data = frames.encode(pb.BaseCommand(type=4, subscribe=good))
    assert FrameDecoder().feed(data)
    with pytest.raises(FrameError, match="not UTF-8"):
        FrameDecoder().feed(data.replace(b"QQ", b"Q\xff"))


def test_unknown_types_come_out():
    (frame,) = FrameDecoder().feed(raw(b"\x08\xe7\x07"))
    assert frame.command.type == 999


def test_frames_in_front_of_a_fault_are_handed_over():
    decoder = FrameDecoder()
    with pytest.raises(FrameError) as caught:
        decoder.feed(frames.encode(PING) * 3 + b"\0\0\0\0")
    assert [frame.command.type for frame in caught.value.frames] == [18, 18, 18]
    with pytest.raises(FrameError, match="frame of 0 bytes") as again:
        decoder.feed(frames.encode(PING))
    assert again.value.frames == []


def test_a_large_frame_in_many_pieces_and_the_room_is_given_back():
    payload = bytes(range(256)) * 16_000
    data = b"".join(frames.encode_with_payload(PING, [payload])) + frames.encode(PING)
    decoder = FrameDecoder()
    got = []
    for at in range(0, len(data), 40_000):
        got += decoder.feed(data[at : at + 40_000])
        assert decoder.capacity_bytes <= 2 * (decoder.buffered_bytes + frames.BUFFER_BYTES_BUSY)
    assert [frame.payload for frame in got] == [payload, b""]
    assert decoder.capacity_bytes == frames.BUFFER_BYTES_BUSY
    assert decoder.buffered_bytes == 0


def test_a_busy_connection_gets_a_larger_buffer():
    decoder = FrameDecoder()
    assert decoder.capacity_bytes == frames.BUFFER_BYTES_MIN
    decoder.feed(frames.encode(PING) * 100_000)
    assert decoder.capacity_bytes == frames.BUFFER_BYTES_BUSY


def test_the_limit_may_be_raised_for_a_link():
    data = b"".join(frames.encode_with_payload(PING, [bytes(6 << 20)]))
    decoder = FrameDecoder()
    decoder.frame_bytes_max = 8 << 20
    assert len(decoder.feed(data)) == 1
    decoder.frame_bytes_max = 4 << 20
    with pytest.raises(FrameError, match="at most 4194304"):
        decoder.feed(data)


def test_payload_buffers_are_not_joined():
    first, second = b"a" * 10, memoryview(b"b" * 20)
    head, *rest = frames.encode_with_payload(PING, [first, second])
    assert rest[0] is first
    assert rest[1] is second
    assert FrameDecoder().feed(b"".join([head, *rest]))[0].payload == b"a" * 10 + b"b" * 20


def test_every_item_of_a_list_is_checked():
    names = pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["ä", "QQ"])
    data = frames.encode(pb.BaseCommand(type=33, getTopicsOfNamespaceResponse=names))
    assert FrameDecoder().feed(data)
    with pytest.raises(FrameError, match="not UTF-8"):
        FrameDecoder().feed(data.replace(b"QQ", b"Q\xff"))


def test_a_decoder_that_met_a_fault_goes_with_its_last_reference():
    """Else it, and its buffer, would wait for Python's collector: whoever sends garbage would fill the memory."""
    decoder = FrameDecoder(1 << 20)
    gone = weakref.ref(decoder)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(FrameError, match="frame of 3 bytes"):
                decoder.feed(b"\0\0\0\3\0\0\0\1xx")
        del decoder
        assert gone() is None
    finally:
        gc.enable()
