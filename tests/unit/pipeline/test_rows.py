"""What a link's filter is told of an entry."""

import pyarrow as pa

from magnetar.pipeline.columns import DECODED
from magnetar.pipeline.rows import ARROW, decode
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build


def test_columns_hold_whatever_a_client_wrote() -> None:
    """Text that is none and numbers over 63 bits: a row that cannot be made would stop all links of the query."""
    seen = pb.MessageMetadata(producer_name="@@", sequence_id=2**64 - 1, publish_time=1, partition_key="@@")
    seen.event_time = 2**63
    seen.properties.add(key="@@", value="@@")
    seen = pb.MessageMetadata.FromString(seen.SerializeToString().replace(b"@@", b"\xff\xfe"))
    values = decode(memoryview(build(seen, b"x")))
    made = {name: pa.array([value], ARROW[DECODED[name]]).to_pylist() for name, value in values.items()}
    assert made == {
        "key": ["\ufffd\ufffd"], "producer_name": ["\ufffd\ufffd"], "sequence_id": [-1], "event_time": [-(2**63)],
        "properties": [[("\ufffd\ufffd", "\ufffd\ufffd")]],
    }  # fmt: skip
