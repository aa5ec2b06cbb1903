"""The format on disk against bytes kept from the version that introduced it: what was written stays readable.

The files in `tests/golden/storage` are history: never changed, only added to. A new format gets a new file beside them.
"""

from pathlib import Path

import pytest

from magnetar.core.ids import Identity, Position
from magnetar.runtime.log.files import OsFiles
from magnetar.storage import topiclog
from magnetar.storage.entries import EntryFlags, NewEntry
from magnetar.storage.records import START_RECORD_BYTES, EntryHead, read_entry, read_head, whole
from magnetar.storage.recovery import index_name, segment_name
from magnetar.storage.segments.index import decode_index
from tests.unit.storage.harness import INCARNATION, TOPIC, Log

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "storage"
FOREIGN = {"origin": "us-east", "incarnation": 77, "first_index": 40, "source": Position(78, 5)}


def write(folder: Path, *, lanes: bool = False) -> None:
    """What the golden segments hold."""
    log = Log(OsFiles(), folder, lanes=lanes)
    topic = log.topic()
    for batch in (
        [NewEntry(b"\x0e\x01first", 0, 1, 1_700_000_000_000)],
        [
            NewEntry(b"\x0e\x01batch", int(EntryFlags.BATCH | EntryFlags.KEYED), 65_536, 1_700_000_000_001),
            NewEntry(b"marker", int(EntryFlags.MARKER), 0, 1_700_000_000_002),
        ],
        [
            NewEntry(
                b"\x0e\x01from afar",
                int(EntryFlags.REPLICATED),
                3,
                1_700_000_000_003,
                "us-east",
                77,
                40,
                Position(78, 5),
            )
        ],
        [NewEntry(b"", int(EntryFlags.RESTRICTED | EntryFlags.DELAYED | EntryFlags.CHUNK), 1, -1)],
    ):
        append = topic.stage(batch, 1_700_000_001_000)
        log.thread.submit(append)
        log.settle([append])
    log.thread.stop()


def test_todays_bytes_are_the_golden_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one")
    assert (tmp_path / "one" / segment_name(1)).read_bytes() == (GOLDEN / "segment-v1.seg").read_bytes()
    monkeypatch.setattr(topiclog, "LARGE_BYTES", 0)
    write(tmp_path / "two", lanes=True)
    assert (tmp_path / "two" / segment_name(2)).read_bytes() == (GOLDEN / "segment-v2.seg").read_bytes()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sidecar", [True, False])
def test_the_golden_segments_are_read(tmp_path: Path, sidecar: bool, version: int) -> None:
    (tmp_path / segment_name(1)).write_bytes((GOLDEN / f"segment-v{version}.seg").read_bytes())
    if sidecar:
        (tmp_path / index_name(1)).write_bytes((GOLDEN / "segment-v1.idx").read_bytes())
        assert decode_index((GOLDEN / "segment-v1.idx").read_bytes(), 1) is not None
        # A sidecar counts for a closed segment only.
        Log(OsFiles(), tmp_path).stop()
    log = Log(OsFiles(), tmp_path)
    assert log.recovered.problems == []
    topic = log.topic()
    entries = log.read(topic)
    assert [entry.data for entry in entries] == [
        b"\x0e\x01first",
        b"\x0e\x01batch",
        b"marker",
        b"\x0e\x01from afar",
        b"",
    ]
    assert [entry.count for entry in entries] == [1, 65_536, 0, 3, 1]
    assert [entry.first_index for entry in entries] == [0, 1, -1, 40, 65_537]
    assert [entry.publish_time for entry in entries] == [1_700_000_000_000 + n for n in range(4)] + [-1]
    assert {entry.broker_time for entry in entries} == {1_700_000_001_000}
    assert [entry.flags for entry in entries] == [0, 40, 4, 1, 82]
    assert (entries[3].origin, entries[3].incarnation, entries[3].source) == ("us-east", 77, Position(78, 5))
    assert topic.watermarks() == {"us-east": Position(78, 5)}
    assert topic.next_index == 65_538
    assert topic.position_of(Identity("us-east", 77, 42)) == Position(INCARNATION, 3)
    assert topic.position_of(Identity("", INCARNATION, 65_537)) == Position(INCARNATION, 4)
    log.stop()


def test_the_page_about_the_format_is_true() -> None:
    """The first records of the golden segment, taken apart by hand as docs/storage-format.md says."""
    data = (GOLDEN / "segment-v1.seg").read_bytes()
    assert data[:12] == b"MAGNETAR\0\0\0\1"
    start = data[12 : 12 + START_RECORD_BYTES]
    assert int.from_bytes(start[:4], "little") == START_RECORD_BYTES - 8
    assert start[8] == 5
    assert int.from_bytes(start[9:17], "little") == 1
    assert start[17:25] == b"saltsalt"
    opening = data[12 + START_RECORD_BYTES :]
    assert opening[8] == 3
    assert int.from_bytes(opening[9:17], "little") == INCARNATION
    assert TOPIC.encode() in opening[:200]
    at = 12 + START_RECORD_BYTES + 8 + int.from_bytes(opening[:4], "little")
    view = memoryview(data)
    size = whole(view, at, check=True)
    head = read_head(view, at)
    assert isinstance(head, EntryHead)
    assert (data[at + 8], head.ledger, head.entry) == (1, INCARNATION, 0)
    entry = read_entry(view, at, size)
    assert entry is not None
    assert entry.data == b"\x0e\x01first"
