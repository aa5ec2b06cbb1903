"""The frame decoder: any split gives the same, and any bytes give frames or a ProtocolError."""

from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import BUFFER_BYTES_MIN, READ_BYTES_MIN, FrameDecoder, FrameError
from magnetar.wire.text import text_is_valid
from magnetar.wire.varint import varint
from tests.property.wire_strategies import COMMANDS, FRAMES, only_documented_errors, wire

LIMIT = 100_000


def outcome(data: bytes, cuts: list[int], *, limit: int = LIMIT) -> tuple[list[Frame], str]:
    """What comes out of bytes that arrive in pieces of these lengths (the rest in one): frames, and the error if any."""
    decoder = FrameDecoder(limit)
    frames: list[Frame] = []
    at = 0
    for length in [*cuts, len(data)]:
        piece = data[at : at + length]
        at += length
        try:
            frames += decoder.feed(piece)
        except FrameError as error:
            return [*frames, *error.frames], str(error)
    return frames, ""


def in_place(data: bytes, cuts: list[int]) -> tuple[list[Frame], str]:
    """The same by the other door, as an event loop uses it: it writes at most what it was offered."""
    decoder = FrameDecoder(LIMIT)
    frames: list[Frame] = []
    at, turn = 0, 0
    while at < len(data):
        room = decoder.get_buffer()
        assert len(room) >= min(READ_BYTES_MIN, BUFFER_BYTES_MIN)
        count = min(len(room), len(data) - at, max(1, cuts[turn % len(cuts)]) if cuts else len(data))
        room[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        try:
            frames += decoder.buffer_updated(count)
        except FrameError as error:
            return [*frames, *error.frames], str(error)
    return frames, ""


CUTS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 20_000)), max_size=12)


@given(st.lists(FRAMES, max_size=8), CUTS)
def test_what_went_in_comes_out_however_it_is_split(items, cuts):
    data = wire(items)
    frames, error = outcome(data, cuts)
    assert not error
    assert [(frame.command, frame.payload) for frame in frames] == items
    assert in_place(data, cuts) == (frames, "")


@given(st.lists(FRAMES, max_size=4), st.binary(max_size=40), CUTS)
@example([], b"\x00\x00\x00\x05\x00\x00\x00\x01\x08", [4])
@example([], b"\x00\x00\x00\x04\x00\x00\x00\x00", [1, 3])
@example([], b"\xff\xff\xff\xff", [2])
def test_faults_too_are_the_same_however_they_are_split(items, junk, cuts):
    data = wire(items) + junk
    whole = outcome(data, [])
    assert outcome(data, cuts) == whole
    assert in_place(data, cuts) == whole
    assert [(frame.command, frame.payload) for frame in whole[0][: len(items)]] == items


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_give_only_frames_or_a_protocol_error(data, cuts):
    decoder = FrameDecoder(LIMIT)

    def feed() -> None:
        at = 0
        for length in [*cuts, len(data)]:
            decoder.feed(data[at : at + length])
            at += length

    only_documented_errors(feed)


PARTS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.name != "type"}
BODIES = st.one_of(
    COMMANDS.map(lambda command: getattr(command, PARTS.get(command.type, "ping")).SerializeToString()),
    st.binary(max_size=12),
)
"""Bytes of a part: whole, without its required fields, or no protobuf at all."""


@given(
    st.one_of(st.none(), st.sampled_from([6, 5, 10, 11, 18]), st.integers(0, 2**31 - 1)),
    st.lists(st.tuples(st.sampled_from(sorted(PARTS)), BODIES), max_size=4),
    st.booleans(),
)
@example(18, [(18, b""), (6, b"")], False)  # another part lacks what it requires
@example(6, [(6, b"\x08\x01"), (18, b"")], False)  # the named part does
@example(5, [(5, b"\x0a\x01t\x10\x01\x18\x01"), (4, b"\x0a\x01\xff")], False)  # another part holds text that is none
@example(None, [(18, b"")], False)
def test_a_command_that_comes_out_has_every_required_field_of_the_part_that_its_type_names(kind, parts, whole):
    if whole and kind in PARTS:
        parts = [*parts, (kind, b"")]
    raw = (b"" if kind is None else b"\x08" + varint(kind)) + b"".join(
        varint(number << 3 | 2) + varint(len(body)) + body for number, body in parts
    )
    frames, error = outcome((4 + len(raw)).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw, [])
    try:
        command = pb.BaseCommand.FromString(raw)
    except DecodeError:
        assert error
        return
    name = PARTS.get(command.type)
    part = getattr(command, name) if name else None
    right = command.HasField("type") if part is None else (
        command.HasField(name) and part.IsInitialized() and text_is_valid(part)
    )  # fmt: skip
    assert right == (not error) == bool(frames)


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_flipped_bits_give_only_frames_or_a_protocol_error(items, data):
    raw = bytearray(wire(items))
    for _ in range(data.draw(st.integers(1, 3))):
        # Mostly where it hurts: in sizes and commands.
        at = data.draw(st.one_of(st.integers(0, min(60, len(raw) - 1)), st.integers(0, len(raw) - 1)))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    outcome(bytes(raw), [])


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_truncated_bytes_give_whole_frames_and_no_error(items, data):
    raw = wire(items)
    cut = data.draw(st.integers(0, len(raw)))
    frames, error = outcome(raw[:cut], [])
    assert not error
    assert [(frame.command, frame.payload) for frame in frames] == items[: len(frames)]
    assert len(wire(items[: len(frames)])) <= cut


@given(st.integers(5, LIMIT), st.integers(0, 3000))
def test_memory_follows_what_came_not_what_was_declared(declared, sent):
    decoder = FrameDecoder(LIMIT)
    size = min(declared - 4, 0x7FFF)
    head = declared.to_bytes(4, "big") + size.to_bytes(4, "big")
    decoder.feed((head + bytes(sent))[: 3 + declared])
    assert decoder.capacity_bytes <= 2 * BUFFER_BYTES_MIN
