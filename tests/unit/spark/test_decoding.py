"""Entries to rows, and rows to entries: round trips, damage, and Java's hash."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import ProtocolError
from magnetar.spark.client import open_entry
from magnetar.spark.compression import (
    AT_ONCE_BYTES_MAX,
    UNCOMPRESSED_BYTES_MAX,
    Undecodable,
    compress,
    uncompress,
)
from magnetar.spark.decoding import TYPES, Rows
from magnetar.spark.producing import seal
from magnetar.spark.reading import Chunks
from magnetar.spark.sink import java_hash, key_text
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch

T = "persistent://public/default/t"


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_001, **fields)  # type: ignore[arg-type]


@given(plain=st.binary(max_size=2000), kind=st.integers(0, 4))
def test_compression_there_and_back(plain: bytes, kind: int) -> None:
    assert bytes(uncompress(kind, len(plain), compress(kind, plain))) == plain


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 9])
def test_what_cannot_be_uncompressed(kind: int) -> None:
    with pytest.raises(Undecodable):
        uncompress(kind, 1000, memoryview(b"\x01nonsense" * 5))
    with pytest.raises(Undecodable):
        uncompress(kind, 1 << 40, memoryview(b""))


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("plain", [b"x", b"a" * 100_000, bytes(range(256)) * 9, b"short, short, short"])
@pytest.mark.parametrize("wrong", [-1, 1, 1_000])
def test_a_size_that_lies_gives_nobodys_memory(kind: int, plain: bytes, wrong: int) -> None:
    """pyarrow would give what was in the buffer before, where LZ4 or Snappy hold less than they are said to."""
    size = len(plain) + wrong
    if size < 0:
        return
    with pytest.raises(Undecodable) as refused:
        uncompress(kind, size, compress(kind, plain))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_a_forged_size_takes_no_memory(kind: int) -> None:
    body = compress(kind, b"little" * 20)
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    for size in (UNCOMPRESSED_BYTES_MAX, AT_ONCE_BYTES_MAX + 1, UNCOMPRESSED_BYTES_MAX + 1):
        with pytest.raises(Undecodable):
            uncompress(kind, size, body)
    assert pool.max_memory() <= before + AT_ONCE_BYTES_MAX


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_what_is_large_and_honest_is_read(kind: int) -> None:
    plain = b"a line of a log that says much the same as all the others\n" * (AT_ONCE_BYTES_MAX // 50)
    assert len(plain) > AT_ONCE_BYTES_MAX
    body = compress(kind, plain)
    assert uncompress(kind, len(plain), memoryview(body)) == plain
    for wrong in (-1, 1):
        with pytest.raises(Undecodable):
            uncompress(kind, len(plain) + wrong, body)


def test_a_zlib_stream_without_its_end_is_refused() -> None:
    with pytest.raises(Undecodable, match="cut off"):
        uncompress(2, 600, compress(2, b"little" * 100)[:-4])


@given(
    messages=st.lists(
        st.tuples(st.none() | st.binary(max_size=30), st.none() | st.text(max_size=5), st.integers(0, 5)),
        min_size=1,
        max_size=40,
    ),
    first=st.integers(0, 5),
    past=st.integers(1, 50),
)
def test_batches(messages: list[tuple[bytes | None, str | None, int]], first: int, past: int) -> None:
    held = []
    for value, key, event in messages:
        one = pb.SingleMessageMetadata(payload_size=0, event_time=event, null_value=value is None)
        if key is not None:
            one.partition_key = key
        one.properties.add(key="n", value=str(event))
        held.append((one, value or b""))
    seen = metadata(num_messages_in_batch=len(held))
    rows = Rows(T, 3, list(TYPES))
    rows.add_batch(7, 8, seen, memoryview(encode_batch(held)), first, past, ())
    batch = rows.take()
    batch.validate(full=True)
    wanted = messages[first:past]
    assert batch.column(0).to_pylist() == [value for value, _, _ in wanted]
    assert batch.column(1).to_pylist() == [None if key is None else key.encode() for _, key, _ in wanted]
    assert [bool(event) for event in batch.column(5).to_pylist()] == [event > 0 for _, _, event in wanted]
    assert [dict(one) for one in batch.column(6).to_pylist()] == [{"n": str(event)} for _, _, event in wanted]
    for index, data in zip(range(first, past), batch.column(3).to_pylist(), strict=False):
        position = pb.MessageIdData.FromString(data)
        assert (position.ledgerId, position.entryId, position.partition, position.batch_index) == (7, 8, 3, index)
        assert position.batch_size == len(messages)


def test_a_batch_that_is_none() -> None:
    body = encode_batch([(pb.SingleMessageMetadata(payload_size=0), b"abc")] * 3)
    for damaged in (body[:-1], body[:2], b"\xff" * 40, b""):
        with pytest.raises(Undecodable):
            Rows(T, -1, ["value"]).add_batch(1, 1, metadata(num_messages_in_batch=3), memoryview(damaged), 0, 99, ())


def test_indexes_that_were_acknowledged_are_not_delivered() -> None:
    body = encode_batch([(pb.SingleMessageMetadata(payload_size=0), b"%d" % number) for number in range(70)])
    rows = Rows(T, -1, ["value"])
    rows.add_batch(1, 1, metadata(num_messages_in_batch=70), memoryview(body), 0, 99, (0b101, 1))
    assert rows.take().column(0).to_pylist() == [b"0", b"2", b"64"]


def test_entries_are_checked() -> None:
    data = b"".join(seal(metadata(), b"payload"))
    seen, body = open_entry(memoryview(data))
    assert (seen.producer_name, bytes(body)) == ("p", b"payload")
    assert bytes(open_entry(memoryview(b"\x0e\x02\x00\x00\x00\x02\x08\x01" + data))[1]) == b"payload"
    for damaged in (data[:-1] + b"X", data[:8], b"\x00\x00\xff\xff", b""):
        with pytest.raises(ProtocolError):
            open_entry(memoryview(damaged))


def chunk(uuid: str, number: int, of: int, body: bytes) -> tuple[pb.MessageMetadata, memoryview]:
    return metadata(uuid=uuid, chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=9), memoryview(body)


def test_chunks_of_several_producers() -> None:
    chunks = Chunks(T)
    assert chunks.add(*chunk("a", 0, 2, b"a0")) is None
    assert chunks.add(*chunk("b", 0, 2, b"b0")) is None
    assert chunks.add(*chunk("b", 0, 2, b"B0")) is None  # begun again
    assert chunks.add(*chunk("a", 0, 2, b"a0")) is None
    whole = chunks.add(*chunk("a", 1, 2, b"a1"))
    assert whole
    assert bytes(whole[1]) == b"a0a1"  # type: ignore[index]
    whole = chunks.add(*chunk("b", 1, 2, b"b1"))
    assert whole
    assert bytes(whole[1]) == b"B0b1"  # type: ignore[index]
    assert chunks.add(*chunk("c", 1, 2, b"c1")) is False


def test_keys() -> None:
    assert (java_hash("hello"), java_hash("")) == (99162322, 0)
    assert java_hash("polygenelubricants") == 0  # Java's -2^31 without its sign
    assert java_hash("\U0001f600") == (0xD83D * 31 + 0xDE00)
    assert key_text(b"k\xc3\xa9") == ("ké", False)
    assert key_text(b"\xff\x00") == ("/wA=", True)
    assert pa.array([None], TYPES["value"]).null_count == 1


@pytest.mark.parametrize("batch", [False, True])
def test_properties_that_are_no_text_are_shown_as_such(batch: bool) -> None:
    seen, one = metadata(), pb.SingleMessageMetadata(payload_size=1)
    for properties in (seen.properties, one.properties):
        properties.add(key="k", value="v")
    seen = pb.MessageMetadata.FromString(seen.SerializeToString().replace(b"\x01k", b"\x01\xff"))
    rows = Rows(T, -1, list(TYPES))
    if batch:
        body = len(one.SerializeToString()).to_bytes(4, "big") + one.SerializeToString().replace(b"\x01k", b"\x01\xff")
        rows.add_batch(1, 0, metadata(num_messages_in_batch=1), memoryview(body + b"x"), 0, 1, ())
    else:
        rows.add(1, 0, seen, memoryview(b"x"))
    assert rows.take().column("__messageProperties").to_pylist() == [[("\ufffd", "v")]]


@pytest.mark.parametrize("time", [2**64 - 1, 2**63, 1_700_000_000_000_000_000])
def test_times_that_no_timestamp_can_be_are_null(time: int) -> None:
    """Nanoseconds, and minus one."""
    rows = Rows(T, -1, ["__publishTime", "__eventTime"])
    rows.add(1, 0, pb.MessageMetadata(producer_name="p", publish_time=time, event_time=time), memoryview(b""))
    rows.add(1, 1, pb.MessageMetadata(producer_name="p", publish_time=7, event_time=8), memoryview(b""))
    rows.add(1, 2, pb.MessageMetadata(producer_name="p", publish_time=9), memoryview(b""))
    taken = rows.take()
    assert taken.column("__publishTime").cast(pa.int64()).to_pylist() == [None, 7000, 9000]
    assert taken.column("__eventTime").cast(pa.int64()).to_pylist() == [None, 8000, None]
