"""The quick look at an entry's producer and number says what decoding its metadata says, or leaves it to that."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.metadata import build, parse_metadata, sender
from magnetar.wire.pulsar_pb2 import MessageMetadata

NUMBERS = st.integers(0, 2**63 - 1) | st.integers(0, 300)


@given(
    name=st.text(max_size=200),
    sequence=NUMBERS,
    highest=st.none() | NUMBERS,
    key=st.none() | st.text(max_size=20),
    properties=st.binary(max_size=40),
    payload=st.binary(max_size=40),
)
def test_sender_agrees_with_the_decoder(
    name: str, sequence: int, highest: int | None, key: str | None, properties: bytes, payload: bytes
) -> None:
    metadata = MessageMetadata(producer_name=name, sequence_id=sequence, publish_time=1, ordering_key=properties)
    if highest is not None:
        metadata.highest_sequence_id = highest
    if key is not None:
        metadata.partition_key = key
    data = build(metadata, payload)
    found = sender(data)
    whole = parse_metadata(data)
    if highest is not None:
        assert found is None, "it would be overlooked that a batch goes further"
    elif found is not None:
        assert found == (whole.producer_name.encode(), whole.sequence_id)


def test_ordinary_entries_are_seen_at_once() -> None:
    data = build(MessageMetadata(producer_name="p-1", sequence_id=300, publish_time=1), b"x")
    assert sender(data) == (b"p-1", 300)
