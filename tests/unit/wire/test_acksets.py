"""Bodies of the markers of exact mode: round trip, golden bytes, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import OriginKey, Position
from magnetar.wire import acksets, markers
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import (
    CREATION,
    AckedSet,
    AckedSetsMarker,
    Epoch,
    FenceToken,
    LowWater,
    Mark,
    SoughtEpoch,
    StateRequest,
)

SEEK = Epoch(1, 1_700_000_000_000, "us-west", 9)
FULL = AckedSet(
    "sub", SEEK, True, 1, 2, {OriginKey("eu", 3): BitMap64([1, 2, 3, 1 << 40])}, {OriginKey("us-west", 9): BitMap64([0])},
    (Mark("eu", 3, 1),), FenceToken(5, "eu", "us-west", "final"),
)  # fmt: skip
DELTA = AckedSet("other", CREATION, False, 1, 1, {OriginKey("eu", 3): BitMap64([7])}, None, (), None)
MARKER = AckedSetsMarker(
    "eu", 3, 12, (LowWater("eu", 3, Position(5, 6), (Mark("eu", 3, 0), Mark("us-west", 9, 4))),), (Mark("eu", 3, 2),),
    (FULL, DELTA),
)  # fmt: skip
GOLDEN = bytes.fromhex(
    "0a0265751003180c22250a02657510031a040805100622080a02657510031800220d0a0775732d77657374100918042a080a"
    "0265751003180232b4010a03737562121408011080d095ffbc311a0775732d77657374200918012001280232400a02657510"
    "031a380200000000000000000000003a300000010000000000020010000000010002000300000100003a3000000100000000"
    "0000001000000000003801422b0a0775732d7765737410091a1e0100000000000000000000003a3000000100000000000000"
    "1000000000004a080a0265751003180152160805120265751a0775732d77657374220566696e616c32330a056f7468657212"
    "02080032260a02657510031a1e0100000000000000000000003a3000000100000000000000100000000700"
)
"""`MARKER` as version 1 wrote it: what is in the topics of users stays readable."""

names = st.sampled_from(("eu", "us-west", "a"))
numbers = st.integers(0, 1 << 40)
bitmaps = st.builds(BitMap64, st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=8))
indexes = st.dictionaries(st.builds(OriginKey, names, numbers), bitmaps, max_size=3)
mark_lists = st.lists(st.builds(Mark, names, numbers, numbers), max_size=3, unique_by=lambda m: m.cluster).map(
    lambda found: tuple(sorted(found))
)
epochs = st.one_of(st.just(CREATION), st.builds(Epoch, st.just(1), st.integers(1, acksets.TIME_MS_MAX), names, numbers))
fences = st.one_of(
    st.none(), st.builds(FenceToken, st.integers(1, 1 << 40), names, names, st.sampled_from(("final", "back")))
)


@st.composite
def sets(draw):
    parts = draw(st.integers(1, 3))
    base = draw(st.one_of(st.none(), indexes))
    return AckedSet(
        draw(st.sampled_from(("s", "tä", "u/v"))), draw(epochs), draw(st.booleans()), draw(st.integers(1, parts)), parts,
        draw(indexes), base, () if base is None else draw(mark_lists), draw(fences),
    )  # fmt: skip


lows = st.lists(
    st.builds(LowWater, names, numbers, st.builds(Position, st.integers(-1, 99), st.integers(-1, 99)), mark_lists),
    max_size=3,
    unique_by=lambda low: low.cluster,
).map(lambda found: tuple(sorted(found)))
ack_markers = st.one_of(
    st.builds(AckedSetsMarker, names, numbers, numbers, lows, mark_lists, st.lists(sets(), max_size=3).map(tuple)),
    st.builds(SoughtEpoch, names, st.just("s"), epochs),
    st.builds(StateRequest, names, st.lists(st.sampled_from("st"), max_size=3).map(tuple)),
)


@given(ack_markers)
def test_round_trip(marker):
    entry = markers.build_marker(marker, 5)
    assert markers.parse_marker(entry) == marker
    assert markers.build_marker(markers.parse_marker(entry), 5) == entry, "equal markers have equal bytes"


def test_types_are_ours():
    assert [acksets.encode_body(marker)[0] for marker in (MARKER, SoughtEpoch("a", "s", SEEK), StateRequest("a", ()))] == [
        markers.MarkerType.ACKED_SETS, markers.MarkerType.SOUGHT_EPOCH, markers.MarkerType.STATE_REQUEST,
    ]  # fmt: skip
    assert acksets.parse_body(13, b"") is None


def refused(text, **changes):
    body = pb.GeoAckedSets.FromString(acksets.encode_body(MARKER)[1])
    for path, value in changes.items():
        at = body
        *steps, last = path.split("__")
        for step in steps:
            at = at[int(step)] if step.isdigit() else getattr(at, step)
        setattr(at, last, value)
    with pytest.raises(ProtocolError, match=text):
        acksets.parse_body(110, body.SerializeToString())


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("names a cluster", {"writer": "UPPER"}),
        ("names a cluster", {"own__0__cluster": ""}),
        ("incarnation -1", {"incarnation": -1}),
        ("origin index", {"next_index": 1 << 62}),
        ("names a subscription", {"sets__0__subscription": ""}),
        ("names a subscription", {"sets__0__subscription": "pulsar.repl.x"}),
        ("part 3 of 2", {"sets__0__part": 3}),
        ("part 0 of 2", {"sets__0__part": 0}),
        ("says that it has none", {"sets__0__based": False}),
        ("kind 2", {"sets__0__epoch__kind": 2}),
        ("creation has a time", {"sets__1__epoch__time_ms": 5}),
        ("time 0", {"sets__0__epoch__time_ms": 0}),
        ("time", {"sets__0__epoch__time_ms": acksets.TIME_MS_MAX + 1}),
        ("bitmap of 3 bytes is damaged", {"sets__0__acks__0__indexes": b"abc"}),
        ("stage", {"sets__0__fence__stage": "x" * 100}),
    ],
)
def test_what_cannot_be(text, changes):
    refused(text, **changes)


def test_bitmaps_are_whole():
    data = BitMap64([1, 5]).serialize()
    refused("too many", sets__0__acks__0__indexes=data + b"x")
    refused("damaged", sets__0__acks__0__indexes=data[:-1])
    refused("origin index", sets__0__acks__0__indexes=BitMap64([1 << 62]).serialize())


def test_golden():
    assert acksets.parse_body(110, GOLDEN) == MARKER
    assert acksets.encode_body(MARKER) == (110, GOLDEN)


@pytest.mark.parametrize("path", ["sets.0.acks", "sets.0.floor", "low", "own"])
def test_nothing_is_said_twice(path):
    body = pb.GeoAckedSets.FromString(GOLDEN)
    field = body
    for step in path.split("."):
        field = field[int(step)] if step.isdigit() else getattr(field, step)
    field.append(field[0])
    with pytest.raises(ProtocolError, match="twice|two marks"):
        acksets.parse_body(110, body.SerializeToString())


def test_ceilings(monkeypatch):
    monkeypatch.setattr(acksets, "SETS_MAX", 1)
    with pytest.raises(ProtocolError, match="2 subscriptions: at most 1"):
        acksets.parse_body(110, acksets.encode_body(MARKER)[1])
    monkeypatch.setattr(acksets, "ACK_MARKER_BYTES_MAX", 10)
    with pytest.raises(ProtocolError, match="at most 10"):
        acksets.parse_body(110, b"x" * 11)


@given(st.data())
def test_no_bytes_break_it(data):
    """Damage is told as what it is, or still says something that can be; nothing else ever comes out."""
    kind, body = acksets.encode_body(data.draw(ack_markers))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        found = acksets.parse_body(kind, bytes(damaged))
    except ProtocolError as error:
        assert "\n" not in str(error)
    else:
        assert acksets.parse_body(*acksets.encode_body(found)) == found


@pytest.mark.parametrize("kind", [110, 111, 112])
def test_required_fields(kind):
    with pytest.raises(ProtocolError, match="lacks required fields"):
        acksets.parse_body(kind, b"")
