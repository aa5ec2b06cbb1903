"""The stamp of origin, small and large, is the same as the wire module's."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.replication.link.incoming import COPIED_BYTES_MAX, Stamp, stamped
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build, inspect, split, with_replicated_from


@given(
    st.binary(max_size=200), st.sampled_from([0, 1, COPIED_BYTES_MAX]), st.sampled_from(["a", "us-west-1", "c" * 128])
)
def test_stamped_is_with_replicated_from(payload: bytes, padding: int, cluster: str) -> None:
    data = build(pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=9), payload + bytes(padding))
    made = stamped(data, split(data), Stamp(cluster).field)
    assert made == with_replicated_from(data, cluster)
    seen = inspect(made, message_bytes_max=1 << 20)
    assert seen.metadata.replicated_from == cluster
    assert made[seen.metadata_end :] == payload + bytes(padding)
