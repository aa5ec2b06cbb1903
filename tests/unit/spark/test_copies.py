"""No more than one copy of a payload in Python: from the buffer that was received into the column, and nowhere else."""

import tracemalloc

import pyarrow as pa

from magnetar.spark.decoding import Rows
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch

MESSAGES, SIZE = 2_000, 1_024
PAYLOAD = MESSAGES * SIZE


def test_a_batch_is_copied_once() -> None:
    body = memoryview(encode_batch([(pb.SingleMessageMetadata(), b"x" * SIZE)] * MESSAGES))
    seen = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=MESSAGES)
    warm = Rows("persistent://public/default/t", -1, ["value"])
    warm.add_batch(1, 0, seen, body, 0, 1 << 31, ())
    warm.take()
    rows = Rows("persistent://public/default/t", -1, ["value"])
    columns_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        rows.add_batch(1, 0, seen, body, 0, 1 << 31, ())
        batch = rows.take()
        _, in_python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch.num_rows == MESSAGES
    assert batch.column(0)[MESSAGES - 1].as_py() == b"x" * SIZE
    in_columns = pa.total_allocated_bytes() - columns_before
    assert in_python + in_columns < 1.6 * PAYLOAD, (
        in_python,
        in_columns,
    )  # views of 200 bytes a message beside the copy
    assert in_columns >= PAYLOAD or in_python >= PAYLOAD  # or it was not measured at all


def test_a_single_message_is_copied_once() -> None:
    body = memoryview(bytes(4 << 20))
    rows = Rows("persistent://public/default/t", -1, ["value"])
    columns_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        rows.add(1, 0, pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), body)
        batch = rows.take()
        _, in_python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch.num_rows == 1
    assert in_python + pa.total_allocated_bytes() - columns_before < 1.6 * len(body)
