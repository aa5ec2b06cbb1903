"""Bytes that Apache BookKeeper 4.17.3 wrote once (bookkeeper/README.md): they are understood, and come out again the same."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from magnetar.bookkeeper.ledgers.layouts import Layout, decode_layout, encode_layout
from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, DigestType, LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.ledgers.serialization import decode_metadata, encode_metadata
from magnetar.bookkeeper.protocol import messages as m
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.entries import EntryCodec, Stored
from magnetar.bookkeeper.protocol.frames import Frame, FrameReader

GOLDEN = Path(__file__).parent / "bookkeeper"
CODECS = {"v2": v2, "v3": v3}
PASSWORD = b"golden"
KEY = EntryCodec(0, DigestType.DUMMY, PASSWORD).master_key

FIRST = ("10.0.0.1:3181", "10.0.0.2:3181", "bookie-3.example:3181")
SECOND = ("10.0.0.1:3181", "10.0.0.4:3181", "bookie-3.example:3181")
DIGESTS = {
    "open": DigestType.CRC32C,
    "recovery": DigestType.HMAC,
    "closed": DigestType.CRC32,
    "empty": DigestType.DUMMY,
}
STATES = {"open": LedgerState.OPEN, "recovery": LedgerState.IN_RECOVERY}


def serialized(version: int, state: str) -> LedgerMetadata:
    """What Java's serializer was given."""
    segments = [Segment(0, FIRST), Segment(4_000_000_000, SECOND)]  # type: ignore[arg-type]
    ours: dict[str, Any] = {"digest": DIGESTS[state], "password": b"\0\x07\n\"'\\\xc8a"}
    if version == 1:
        ours = {"digest": DigestType.CRC32C, "password": b""}
    else:
        ours["created_ms"] = -1 if state == "recovery" else 1_767_225_600_123
        ours["custom"] = {"application": b"pulsar", 'caf\u00e9 "x"': b"\xff\0\1"}
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2 if version == 1 else 1,
        state=STATES.get(state, LedgerState.CLOSED),
        segments=tuple(segments[:1] if state == "empty" else segments),
        last_entry=4_000_000_123 if state == "closed" else NO_ENTRY,
        length=8_000_000_000 if state == "closed" else 0,
        token=-1_234_567_890_123_456_789 if version == 3 else 0,
        format_version=version,
        **ours,
    )


@pytest.mark.parametrize("state", DIGESTS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_of_javas_serializer(version: int, state: str) -> None:
    encoded = (GOLDEN / "metadata" / f"format-{version}-{state}.bin").read_bytes()
    metadata = serialized(version, state)
    assert decode_metadata(encoded) == metadata
    # In the text form, Java has a short escape for the byte 7 and Python has none. Both read both.
    assert encode_metadata(metadata).replace(b"\\007", b"\\a") == encoded


def test_nodes_of_zookeeper() -> None:
    closed, opened = ((GOLDEN / "metadata" / f"node-{state}.bin").read_bytes() for state in ("closed", "open"))
    assert encode_metadata(decode_metadata(closed)) == closed
    assert encode_metadata(decode_metadata(opened)) == opened
    metadata = decode_metadata(closed)
    assert (metadata.state, metadata.last_entry, metadata.length, metadata.token) == (LedgerState.CLOSED, 2, 81, 0)
    assert (metadata.digest, metadata.password) == (DigestType.CRC32C, PASSWORD)
    assert metadata.custom == {"of": PASSWORD}
    metadata = decode_metadata(opened)
    assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.OPEN, NO_ENTRY, 0)
    assert metadata.token != 0


def test_the_layout() -> None:
    encoded = (GOLDEN / "metadata" / "LAYOUT").read_bytes()
    assert decode_layout(encoded) is Layout.HIERARCHICAL
    assert encode_layout(Layout.HIERARCHICAL) == encoded


@pytest.mark.parametrize(("ledger", "digest"), list(enumerate(["CRC32", "HMAC", "CRC32C", "DUMMY"])))
def test_an_entry_of_each_digest(ledger: int, digest: str) -> None:
    body = (GOLDEN / "entries" / f"{digest.lower()}.bin").read_bytes()
    codec = EntryCodec(ledger, DigestType[digest], PASSWORD)
    stored = Stored(lac=0, length=47, payload=bytes(range(1, 28)))
    assert codec.unpack(1, body) == codec.unpack(m.LAST_ENTRY, body) == stored
    assert codec.pack(1, 0, 47, stored.payload) == body


def frames(name: str) -> list[Frame]:
    return FrameReader().feed((GOLDEN / "wire" / f"{name}.bin").read_bytes())


def again(codec: ModuleType, direction: str, frame: Frame) -> bytes:
    """A frame that was decoded and encoded, without its length."""
    if direction == "sent":
        number, request = codec.decode_request(frame)
        return b"".join(codec.encode_request(request, number or 0))[4:]
    number, response = codec.decode_response(frame)
    return b"".join(codec.encode_response(response, number))[4:]


@pytest.mark.parametrize("direction", ["sent", "received"])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_connection_of_javas_client(version: str, direction: str) -> None:
    codec = CODECS[version]
    decode = codec.decode_request if direction == "sent" else codec.decode_response
    changed = []
    for frame in frames(f"{version}-{direction}"):
        encoded = again(codec, direction, frame)
        assert decode(encoded) == decode(frame)
        if encoded != frame:
            assert sorted(encoded) == sorted(frame)
            changed.append(decode(frame)[1])
    # An add of v3 has its body last, which protobuf allows: it differs from Java's where Java has a flag behind the body.
    assert all(request.recovery or request.deferred_sync for request in changed)
    assert len(changed) == (2 if (version, direction) == ("v3", "sent") else 0)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_what_javas_client_asked(version: str) -> None:
    requests = [CODECS[version].decode_request(frame)[1] for frame in frames(f"{version}-sent")]
    adds = [request for request in requests if isinstance(request, m.AddEntry)]
    reads = [request for request in requests if isinstance(request, m.ReadEntry)]
    for add in adds:
        assert len(add.master_key) == 20
    assert sum(add.master_key == KEY for add in adds) == 14
    assert [(add.entry, add.recovery) for add in adds if add.ledger == (2 if version == "v2" else 6)] == [
        (0, False),
        (1, False),
        (2, False),
        (2, True),
        (3, False),
    ]
    assert any(read.fence and read.entry == m.LAST_ENTRY and read.master_key == KEY for read in reads)
    if version == "v3":
        assert [request.lac for request in requests if isinstance(request, m.WriteLac)] == [1, 0, 2, 2]
        assert [add.ledger for add in adds if add.deferred_sync] == [8]
        assert m.ForceLedger(8) in requests
        assert m.GetBookieInfo() in requests


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_what_the_bookie_answered(version: str) -> None:
    responses = [CODECS[version].decode_response(frame)[1] for frame in frames(f"{version}-received")]
    ledger = 2 if version == "v2" else 6
    assert m.EntryAdded(ledger, 3, m.Code.FENCED) in responses
    codec = EntryCodec(ledger, DigestType.CRC32C, PASSWORD)
    read = [item for item in responses if isinstance(item, m.EntryRead) and item.body is not None]
    for response in read:
        assert response.body is not None
        codec.unpack(response.entry, response.body)
    assert len(read) == (4 if version == "v2" else 3)
    lacs = [item for item in responses if isinstance(item, m.LacRead)]
    for response in lacs:
        assert response.lac_body is not None and codec.unpack_lac(response.lac_body) == 2
        assert response.last_entry_body is not None and codec.unpack(2, response.last_entry_body).lac == 1
    assert len(lacs) == (0 if version == "v2" else 4)


ASKED = {item["name"]: item for item in json.loads((GOLDEN / "wire" / "answers.json").read_text())}
LEDGER = EntryCodec(7000, DigestType.CRC32C, PASSWORD)
BODIES = tuple(
    LEDGER.pack(entry, entry - 1, 3 * entry + 3, payload) for entry, payload in enumerate([b"abc", b"def", b"ghi"])
)
DISABLED = m.Authenticated("AuthDisabledPlugin", b"")

ANSWERS: dict[str, tuple[int | None, m.Response]] = {
    "add": (1, m.EntryAdded(7000, 0, m.Code.OK)),
    "deferred sync": (2, m.EntryAdded(7000, 1, m.Code.OK)),
    "force": (3, m.LedgerForced(7000, m.Code.OK)),
    # The entry is that of the body, not the one of the request.
    "long poll": (4, m.EntryRead(7000, 1, m.Code.OK, BODIES[1], 1)),
    "long poll, time over": (6, m.EntryRead(7000, m.LAST_ENTRY, m.Code.OK, None, 1)),
    "write lac": (7, m.LacWritten(7000, m.Code.OK)),
    "read lac": (8, m.LacRead(7000, m.Code.OK, LEDGER.pack_lac(2), BODIES[2])),
    "batch read": (9, m.BatchRead(7000, 0, m.Code.OK, BODIES)),
    "batch read of two": (9, m.BatchRead(7000, 1, m.Code.OK, BODIES[1:])),
    "batch read, no entry": (10, m.BatchRead(7000, 5, m.Code.NO_ENTRY, ())),
    "read": (None, m.EntryRead(7000, 2, m.Code.OK, BODIES[2], None)),
    "no entry": (11, m.EntryRead(7000, 5, m.Code.NO_ENTRY, None, None)),
    "no ledger": (12, m.EntryRead(7001, 0, m.Code.NO_LEDGER, None, None)),
    "no ledger, v2": (None, m.EntryRead(7001, 0, m.Code.NO_LEDGER, None, None)),
    "wrong key": (13, m.EntryRead(7000, m.LAST_ENTRY, m.Code.UNAUTHORISED, None, None)),
    "fence": (14, m.EntryRead(7000, m.LAST_ENTRY, m.Code.OK, BODIES[2], None)),
    "fenced": (15, m.EntryAdded(7000, 3, m.Code.FENCED)),
    "fenced, v2": (None, m.EntryAdded(7000, 3, m.Code.FENCED)),
    "recovery": (16, m.EntryAdded(7000, 3, m.Code.OK)),
    "recovery, v2": (None, m.EntryAdded(7000, 4, m.Code.OK)),
    "no TLS": (18, m.TlsStarted(m.Code.BAD_REQUEST)),
    "no authentication": (19, DISABLED),
    "no authentication, v2": (None, DISABLED),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_the_bookie_answers_to_this_client(name: str) -> None:
    codec = CODECS[f"v{ASKED[name]['version']}"]
    (answer,) = FrameReader().feed(bytes.fromhex(ASKED[name]["answer"]))
    assert codec.decode_response(answer) == ANSWERS[name]
    asked = bytes.fromhex(ASKED[name]["request"])
    (frame,) = FrameReader().feed(asked)
    number, request = codec.decode_request(frame)
    assert b"".join(codec.encode_request(request, number or 0)) == asked
