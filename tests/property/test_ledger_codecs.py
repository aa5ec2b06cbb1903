"""The bytes of BookKeeper: what goes in comes out, however the stream is cut; damage and nonsense end in errors of ours."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.ledgers.layouts import LEDGER_ID_MAX, SHORT_ID_END, Layout, LedgerPaths, NotALedger
from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, BookieId, DigestType, LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.ledgers.serialization import UnreadableMetadata, decode_metadata, encode_metadata
from magnetar.bookkeeper.protocol import messages as m
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.entries import DamagedEntry, EntryCodec, Stored
from magnetar.bookkeeper.protocol.frames import FrameReader, ProtocolError

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
KEYS = st.binary(min_size=20, max_size=20)
BODIES = st.one_of(st.binary(max_size=80), st.integers(0, 40_000).map(lambda size: b"\xa5" * size))
STORED = st.binary(min_size=16, max_size=80)
"""An add of v2 has ledger and entry in its body alone."""
FLAG = st.booleans()
CODES = st.sampled_from(m.Code)
FAILURES = st.sampled_from([code for code in m.Code if code is not m.Code.OK])
NAMES = st.text(max_size=20).filter(lambda text: text.isprintable())


def added(body: bytes, key: bytes, recovery: bool, high: bool) -> m.AddEntry:
    ledger, entry = (int.from_bytes(body[at : at + 8], signed=True) for at in (0, 8))
    return m.AddEntry(ledger, entry, key, body, recovery, high)


def read_answers(lac: st.SearchStrategy[int | None]) -> st.SearchStrategy[m.EntryRead]:
    return st.builds(m.EntryRead, I64, I64, st.just(m.Code.OK), BODIES, lac) | st.builds(
        m.EntryRead, I64, I64, FAILURES, st.none(), lac
    )


V2_REQUESTS: st.SearchStrategy[m.Request] = st.one_of(
    st.builds(added, STORED, KEYS, FLAG, FLAG),
    st.builds(m.ReadEntry, I64, I64, st.just(True), KEYS, FLAG),
    st.builds(m.ReadEntry, I64, I64, high_priority=FLAG),
    st.builds(m.ReadBatch, I64, I64, I32, I64),
    st.builds(m.Authenticate, NAMES, BODIES),
)
V2_RESPONSES: st.SearchStrategy[m.Response] = st.one_of(
    st.builds(m.EntryAdded, I64, I64, CODES),
    read_answers(st.none()),
    st.builds(m.BatchRead, I64, I64, CODES, st.lists(BODIES, max_size=4).map(tuple)),
    st.builds(m.Authenticated, NAMES, BODIES),
)
V3_REQUESTS: st.SearchStrategy[m.Request] = st.one_of(
    st.builds(m.AddEntry, I64, I64, KEYS, BODIES, FLAG, FLAG, FLAG),
    st.builds(m.ReadEntry, I64, I64, FLAG, KEYS, FLAG),
    st.builds(
        m.ReadEntry,
        I64,
        I64,
        high_priority=FLAG,
        previous_lac=I64,
        timeout_ms=st.integers(0, 2**62),
        piggyback=FLAG,
    ),
    st.builds(m.ForceLedger, I64),
    st.builds(m.ReadLac, I64),
    st.builds(m.WriteLac, I64, I64, KEYS, BODIES),
    st.just(m.GetBookieInfo()),
    st.builds(m.Authenticate, NAMES, BODIES),
    st.just(m.StartTls()),
)
V3_RESPONSES: st.SearchStrategy[m.Response] = st.one_of(
    st.builds(m.EntryAdded, I64, I64, CODES),
    read_answers(st.none() | I64),
    st.builds(m.LedgerForced, I64, CODES),
    st.builds(m.LacRead, I64, CODES, st.none() | BODIES, st.none() | BODIES),
    st.builds(m.LacWritten, I64, CODES),
    st.builds(m.BookieInfo, CODES, I64, I64),
    st.builds(m.Authenticated, NAMES, BODIES),
    st.builds(m.Authenticated, st.just(""), st.just(b""), FAILURES),
    st.builds(m.TlsStarted, CODES),
)


@given(st.lists(V2_REQUESTS, max_size=6), st.lists(V2_RESPONSES, max_size=6), U64.map(lambda n: n >> 1), st.data())
def test_version_2_in_any_pieces(
    requests: list[m.Request], responses: list[m.Response], number: int, data: st.DataObject
) -> None:
    stream = b"".join(b"".join(v2.encode_request(request, number)) for request in requests)
    expected = [(number if isinstance(request, m.ReadBatch) else None, request) for request in requests]
    assert [v2.decode_request(frame) for frame in cut(stream, data)] == expected
    stream = b"".join(b"".join(v2.encode_response(response, number)) for response in responses)
    answered = [(number if isinstance(response, m.BatchRead) else None, response) for response in responses]
    assert [v2.decode_response(frame) for frame in cut(stream, data)] == answered


@given(st.lists(V3_REQUESTS, max_size=6), st.lists(V3_RESPONSES, max_size=6), U64, st.data())
def test_version_3_in_any_pieces(
    requests: list[m.Request], responses: list[m.Response], number: int, data: st.DataObject
) -> None:
    stream = b"".join(b"".join(v3.encode_request(request, number)) for request in requests)
    assert [v3.decode_request(frame) for frame in cut(stream, data)] == [(number, request) for request in requests]
    stream = b"".join(b"".join(v3.encode_response(response, number)) for response in responses)
    assert [v3.decode_response(frame) for frame in cut(stream, data)] == [(number, item) for item in responses]


@given(V2_REQUESTS)
def test_a_bookie_knows_version_2_by_its_first_frame(request: m.Request) -> None:
    with pytest.raises(ProtocolError):
        v3.decode_request(b"".join(v2.encode_request(request))[4:])


def cut(stream: bytes, data: st.DataObject) -> list[bytes | bytearray]:
    """The frames of a stream that arrives in pieces of any size."""
    reader = FrameReader()
    frames = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, 40) | st.integers(1, max(40, len(stream))), label="piece")
        frames += reader.feed(stream[at : at + size])
        at += size
    assert reader.idle
    return frames


@given(st.binary(max_size=200), st.integers(4, 64))
def test_no_stream_breaks_the_reader_of_frames(stream: bytes, limit: int) -> None:
    reader = FrameReader(limit)
    try:
        frames = reader.feed(stream)
    except ProtocolError:
        return
    assert all(len(frame) <= limit - 4 for frame in frames)


def mutated(encoded: bytes, data: st.DataObject) -> bytes:
    """The bytes with one changed, or cut, or with more at the end."""
    kind = data.draw(st.sampled_from(["change", "cut", "more"]))
    if kind == "more":
        return encoded + data.draw(st.binary(min_size=1, max_size=20))
    at = data.draw(st.integers(0, len(encoded) - 1))
    if kind == "cut":
        return encoded[:at]
    return encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))]) + encoded[at + 1 :]


DECODERS: list[Callable[[bytes], object]] = [
    v2.decode_request,
    v2.decode_response,
    v3.decode_request,
    v3.decode_response,
]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: f"{decode.__module__[-2:]}.{decode.__name__}")
@given(data=st.data())
def test_nonsense_is_a_protocol_error(decode: Callable[[bytes], object], data: st.DataObject) -> None:
    if data.draw(FLAG, label="near a message"):
        number = data.draw(U64) >> 1
        kind, version = data.draw(
            st.sampled_from([(V2_REQUESTS, 2), (V2_RESPONSES, 2), (V3_REQUESTS, 3), (V3_RESPONSES, 3)])
        )
        codec = v2 if version == 2 else v3
        message = data.draw(kind)
        encode: Callable[..., tuple[bytes, ...]]
        encode = codec.encode_request if kind in (V2_REQUESTS, V3_REQUESTS) else codec.encode_response
        frame = mutated(b"".join(encode(message, number))[4:] or b"\0", data)
    else:
        frame = data.draw(st.binary(max_size=120))
    try:
        decode(frame)
    except ProtocolError as error:
        assert "\n" not in str(error)


CODECS = st.builds(EntryCodec, I64, st.sampled_from(DigestType), st.binary(max_size=20))


@given(CODECS, I64, I64, I64, BODIES)
def test_an_entry_is_unpacked_as_it_was_packed(
    codec: EntryCodec, entry: int, lac: int, length: int, payload: bytes
) -> None:
    body = codec.pack(entry, lac, length, payload)
    assert codec.unpack(entry, body) == codec.unpack(m.LAST_ENTRY, body) == Stored(lac, length, payload)
    assert len(body) == codec.overhead + len(payload)
    assert codec.unpack_lac(codec.pack_lac(lac)) == lac


CHECKED = st.builds(
    EntryCodec,
    I64,
    st.sampled_from([kind for kind in DigestType if kind is not DigestType.DUMMY]),
    st.binary(max_size=20),
)


@given(CHECKED, I64, I64, I64, st.binary(max_size=60), st.data())
def test_a_damaged_entry_passes_no_digest(
    codec: EntryCodec, entry: int, lac: int, length: int, payload: bytes, data: st.DataObject
) -> None:
    body = mutated(codec.pack(entry, lac, length, payload), data)
    with pytest.raises(DamagedEntry) as caught:
        codec.unpack(entry, body)
    assert "\n" not in str(caught.value)
    with pytest.raises(DamagedEntry):
        codec.unpack_lac(mutated(codec.pack_lac(lac), data))


@given(CODECS, I64, st.binary(max_size=100))
def test_nonsense_is_a_damaged_entry(codec: EntryCodec, entry: int, body: bytes) -> None:
    for read in (lambda: codec.unpack(entry, body), lambda: codec.unpack_lac(body)):
        try:
            read()
        except DamagedEntry as error:
            assert "\n" not in str(error)


BOOKIES = st.from_regex(r"[a-zA-Z0-9.:_-]{1,20}", fullmatch=True).map(BookieId)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    """Any metadata that its own format can store."""
    version = draw(st.integers(1, 3))
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))]
    bookies = st.lists(BOOKIES, min_size=ensemble, max_size=ensemble).map(tuple)
    return LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=write if version == 1 else draw(st.integers(1, write)),
        state=state,
        segments=tuple(Segment(first, draw(bookies)) for first in firsts),
        digest=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=20)),
        last_entry=draw(st.integers(NO_ENTRY, 2**63 - 1)) if closed else NO_ENTRY,
        length=draw(st.integers(0, 2**63 - 1)) if closed else 0,
        created_ms=-1 if version == 1 else draw(st.integers(-1, 2**62)),
        custom={} if version == 1 else draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=3)),
        token=draw(I64) if version == 3 else 0,
        format_version=version,
    )


@given(ledgers())
def test_metadata_comes_back(metadata: LedgerMetadata) -> None:
    # Format 1 stores neither digest nor password.
    assert decode_metadata(encode_metadata(metadata), digest=metadata.digest, password=metadata.password) == metadata


@given(ledgers(), st.data())
def test_damaged_metadata_is_unreadable_or_valid(metadata: LedgerMetadata, data: st.DataObject) -> None:
    refuses_or_reads(mutated(encode_metadata(metadata), data))


@given(
    st.sampled_from([b"", b"BookieMetadataFormatVersion\t"]), st.sampled_from([b"", b"1\n", b"2\n", b"3\n"]), st.data()
)
def test_nonsense_is_unreadable_metadata(head: bytes, version: bytes, data: st.DataObject) -> None:
    text = st.text("0123456789-\n\tCLOSED:{}\"\\'# abc", max_size=80).map(str.encode)
    refuses_or_reads(head + version + data.draw(st.binary(max_size=80) | text))


def refuses_or_reads(encoded: bytes) -> None:
    try:
        read = decode_metadata(encoded)
    except UnreadableMetadata as error:
        assert "\n" not in str(error)
        return
    # What was read can be stored, in the same format.
    again = encode_metadata(read)
    assert decode_metadata(again, digest=read.digest, password=read.password) == read


IDS = st.integers(0, 2**32) | st.integers(0, LEDGER_ID_MAX) | st.integers(SHORT_ID_END - 2, SHORT_ID_END + 2)
ROOTS = st.sampled_from(["/ledgers", "", "/a/b"])


@given(IDS, st.sampled_from(Layout), ROOTS)
def test_an_id_comes_back_from_its_path(ledger: int, layout: Layout, root: str) -> None:
    paths = LedgerPaths(layout, root)
    if layout is Layout.FLAT and ledger >= 10**10:
        with pytest.raises(ValueError, match="at most 10 digits"):
            paths.of(ledger)
        return
    path = paths.of(ledger)
    assert paths.ledger_of(path) == ledger
    assert paths.holds_ledgers(path.removeprefix(root).split("/")[1])


@given(st.text("0123456789L/", max_size=30), st.sampled_from(Layout))
def test_only_the_path_of_a_ledger_gives_an_id(path: str, layout: Layout) -> None:
    paths = LedgerPaths(layout, "")
    try:
        ledger = paths.ledger_of(path)
    except NotALedger:
        return
    assert paths.of(ledger) == path
