"""What the codecs refuse, and bytes that are fixed by the protocol."""

import re

import pytest

from magnetar.bookkeeper.ledgers.metadata import DigestType
from magnetar.bookkeeper.protocol import bookkeeper_pb2 as pb
from magnetar.bookkeeper.protocol import messages as m
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.digests import digest_of, master_key
from magnetar.bookkeeper.protocol.entries import DamagedEntry, EntryCodec
from magnetar.bookkeeper.protocol.frames import FRAME_BYTES_MAX, FrameReader, ProtocolError

KEY = b"k" * 20


def frame(*fields: tuple[int, int]) -> bytes:
    """Big-endian fields as (value, bytes)."""
    return b"".join(value.to_bytes(size, signed=True) for value, size in fields)


def test_digests_of_the_standard_check_value() -> None:
    # The check values of the CRC catalogues, of "123456789".
    assert digest_of(DigestType.CRC32C, b"").compute(b"1234", b"56789").hex() == "e3069283"
    assert digest_of(DigestType.CRC32, b"").compute(b"1234", b"56789").hex() == "00000000cbf43926"
    assert digest_of(DigestType.DUMMY, b"").compute(b"1234", b"56789") == b""


def test_version_2_has_fixed_layouts() -> None:
    body = frame((5, 8), (7, 8)) + b"rest"
    add = m.AddEntry(5, 7, KEY, body, recovery=True, high_priority=True)
    assert b"".join(v2.encode_request(add)) == frame((44, 4), (0x02010006, 4)) + KEY + body
    fence = m.ReadEntry(5, m.LAST_ENTRY, fence=True, master_key=KEY)
    assert b"".join(v2.encode_request(fence)) == frame((40, 4), (0x02020001, 4), (5, 8), (-1, 8)) + KEY
    answer = frame((0x02010000, 4), (104, 4), (5, 8), (7, 8))
    assert v2.decode_response(answer) == (None, m.EntryAdded(5, 7, m.Code.FENCED))


def test_the_body_of_an_add_is_not_copied() -> None:
    body = bytes(1000)
    add = m.AddEntry(5, 7, KEY, body)
    assert v2.encode_request(add)[-1] is body
    assert v3.encode_request(add, 1)[-1] is body


def test_an_unknown_code_is_a_failure() -> None:
    answer = frame((0x02010000, 4), (999, 4), (5, 8), (7, 8))
    assert v2.decode_response(answer) == (None, m.EntryAdded(5, 7, m.Code.IO_ERROR))
    header = pb.Header(version=3, operation=pb.ADD_ENTRY, number=9)
    response = pb.Response(header=header, status=0, add=pb.AddResponse(status=999, ledger=5, entry=7))
    assert v3.decode_response(response.SerializeToString()) == (9, m.EntryAdded(5, 7, m.Code.IO_ERROR))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (pb.ADD_ENTRY, m.EntryAdded(-1, -1, m.Code.UNAUTHORISED)),
        (pb.READ_ENTRY, m.EntryRead(-1, -1, m.Code.UNAUTHORISED, None, None)),
        (pb.FORCE_LEDGER, m.LedgerForced(-1, m.Code.UNAUTHORISED)),
        (pb.READ_LAC, m.LacRead(-1, m.Code.UNAUTHORISED, None, None)),
        (pb.WRITE_LAC, m.LacWritten(-1, m.Code.UNAUTHORISED)),
        (pb.GET_BOOKIE_INFO, m.BookieInfo(m.Code.UNAUTHORISED, 0, 0)),
        (pb.AUTH, m.Authenticated("", b"", m.Code.UNAUTHORISED)),
        (pb.START_TLS, m.TlsStarted(m.Code.UNAUTHORISED)),
    ],
)
def test_a_request_that_is_refused_as_a_whole(operation: pb.Operation.ValueType, expected: m.Response) -> None:
    header = pb.Header(version=3, operation=operation, number=9)
    assert v3.decode_response(pb.Response(header=header, status=502).SerializeToString()) == (9, expected)


def test_ok_without_an_answer_is_no_success() -> None:
    header = pb.Header(version=3, operation=pb.ADD_ENTRY, number=9)
    with pytest.raises(ProtocolError, match="request 9 says OK without an answer"):
        v3.decode_response(pb.Response(header=header, status=0).SerializeToString())


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (m.ForceLedger(5), "version 2 of the protocol has no ForceLedger: use version 3"),
        (m.AddEntry(5, 7, KEY, b"", deferred_sync=True), "no deferred sync"),
        (m.ReadEntry(5, -1, previous_lac=3), "no long poll"),
        (m.AddEntry(5, 7, b"short", b""), "a master key of 5 bytes: it has 20"),
        (m.ReadEntry(5, -1, fence=True), "a master key of 0 bytes"),
        (m.AddEntry(5, 7, KEY, bytes(FRAME_BYTES_MAX)), "a message of 5242904 bytes is too long for a frame"),
    ],
)
def test_what_version_2_cannot_say(request_: m.Request, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        v2.encode_request(request_)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (m.ReadBatch(5, 0, 10, 1000), "version 3 of the protocol has no ReadBatch: use version 2"),
        (m.ReadEntry(5, -1, fence=True, master_key=KEY, piggyback=True), "a long poll cannot fence"),
        (m.AddEntry(5, 7, KEY, bytes(FRAME_BYTES_MAX)), "is too long for a frame"),
        (m.WriteLac(5, 7, KEY, bytes(FRAME_BYTES_MAX)), "is too long for a frame"),
    ],
)
def test_what_version_3_cannot_say(request_: m.Request, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        v3.encode_request(request_, 1)


def test_responses_that_a_version_does_not_have() -> None:
    with pytest.raises(ValueError, match="version 2 of the protocol has no LedgerForced"):
        v2.encode_response(m.LedgerForced(5, m.Code.OK))
    with pytest.raises(ValueError, match="version 3 of the protocol has no BatchRead"):
        v3.encode_response(m.BatchRead(5, 0, m.Code.OK, ()), 1)


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (b"", "0 bytes beginning with : no message of version 2"),
        (frame((0x03010000, 4), (0, 4), (5, 8), (7, 8)), "a response of version 3 of the protocol"),
        (frame((0x02010000, 4), (0, 4), (5, 8), (7, 8), (0, 1)), "an answer to an add of 25 bytes: it has 24"),
        (frame((0x02070000, 4), (0, 4), (5, 8), (7, 8), (0, 4)), "an answer to a batch read of 28 bytes is cut off"),
        (
            frame((0x02070000, 4), (0, 4), (5, 8), (7, 8), (0, 8), (9, 4), (0, 1)),
            "an entry of 9 bytes in a batch: the frame has 1 more",
        ),
        (frame((0x02090000, 4), (0, 4), (5, 8), (7, 8)), "24 bytes beginning with 02090000: no message of version 2"),
        (frame((0x02030000, 4)) + b"\x0a\x01\xff\x12\x00", "no message of an authentication"),
    ],
)
def test_a_response_that_version_2_does_not_have(received: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(words)):
        v2.decode_response(received)


def test_a_request_without_its_values_is_refused() -> None:
    header = pb.Header(version=3, operation=pb.ADD_ENTRY, number=9)
    with pytest.raises(ProtocolError, match="a request for ADD_ENTRY without its values"):
        v3.decode_request(pb.Request(header=header).SerializeToString())


def test_a_frame_above_the_limit_ends_the_connection_before_it_is_received() -> None:
    reader = FrameReader()
    assert reader.feed(FRAME_BYTES_MAX.to_bytes(4)[:3]) == []
    with pytest.raises(ProtocolError, match="a frame of 5242880 bytes: at most 5242876 are allowed"):
        reader.feed(FRAME_BYTES_MAX.to_bytes(4)[3:])


def test_a_large_frame_in_small_pieces() -> None:
    reader = FrameReader()
    payload = bytes(range(256)) * 4096
    stream = len(payload).to_bytes(4) + payload
    pieces = [reader.feed(stream[at : at + 1000]) for at in range(0, len(stream), 1000)]
    assert not any(pieces[:-1])
    assert pieces[-1] == [payload]
    assert reader.idle


@pytest.mark.parametrize(
    ("entry", "body", "words"),
    [
        (7, bytes(35), "ledger 5, entry 7: 35 bytes; with CRC32C it has at least 36"),
        (7, bytes(36), "the CRC32C digest does not fit the entry"),
        (8, EntryCodec(5, DigestType.CRC32C, b"").pack(7, 6, 3, b"abc"), "the bookie sent entry 7 of ledger 5 instead"),
        (7, EntryCodec(6, DigestType.CRC32C, b"").pack(7, 6, 3, b"abc"), "the bookie sent entry 7 of ledger 6 instead"),
    ],
)
def test_an_entry_that_was_not_asked_for(entry: int, body: bytes, words: str) -> None:
    with pytest.raises(DamagedEntry, match=words):
        EntryCodec(5, DigestType.CRC32C, b"").unpack(entry, body)


def test_the_password_guards_hmac_and_the_ledger() -> None:
    body = EntryCodec(5, DigestType.HMAC, b"right").pack(7, 6, 3, b"abc")
    with pytest.raises(DamagedEntry, match="HMAC digest does not fit"):
        EntryCodec(5, DigestType.HMAC, b"wrong").unpack(7, body)
    assert len(master_key(b"")) == len(master_key(b"right")) == 20
    assert master_key(b"") != master_key(b"right")
