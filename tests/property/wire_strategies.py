"""Frames, metadata and pieces of them, for Hypothesis."""

from collections.abc import Callable

from hypothesis import strategies as st

from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.wire import frames
from magnetar.wire import pulsar_pb2 as pb

U64 = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=12)
NAMES = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=12)
PAYLOADS = st.one_of(st.just(b""), st.binary(max_size=60), st.integers(0, 40_000).map(lambda size: b"\xa5" * size))

PAIRS = st.builds(pb.KeyValue, key=TEXT, value=TEXT)

COMMANDS = st.one_of(
    st.builds(pb.CommandSend, producer_id=U64, sequence_id=U64, num_messages=st.integers(1, 9)).map(
        lambda body: pb.BaseCommand(type=6, send=body)
    ),
    st.builds(
        pb.CommandProducer, topic=TEXT, producer_id=U64, request_id=U64, metadata=st.lists(PAIRS, max_size=3)
    ).map(lambda body: pb.BaseCommand(type=5, producer=body)),
    st.builds(pb.CommandFlow, consumer_id=U64, messagePermits=st.integers(0, 2**32 - 1)).map(
        lambda body: pb.BaseCommand(type=11, flow=body)
    ),
    st.builds(
        pb.CommandAck,
        consumer_id=U64,
        ack_type=st.integers(0, 1),
        message_id=st.lists(st.builds(pb.MessageIdData, ledgerId=U64, entryId=U64), max_size=4),
    ).map(lambda body: pb.BaseCommand(type=10, ack=body)),
    st.just(pb.BaseCommand(type=18, ping=pb.CommandPing())),
    st.integers(2000, 2**31 - 1).map(lambda kind: pb.BaseCommand(type=kind)),
)

FRAMES = st.tuples(COMMANDS, PAYLOADS)

METADATA = st.builds(
    pb.MessageMetadata,
    producer_name=NAMES,
    sequence_id=U64,
    publish_time=st.integers(0, 2**63 - 1),
    properties=st.lists(PAIRS, max_size=3),
    replicate_to=st.lists(NAMES, max_size=2),
    replicated_from=st.one_of(st.none(), NAMES),
    partition_key=st.one_of(st.none(), TEXT),
    ordering_key=st.one_of(st.none(), st.binary(max_size=8)),
    num_messages_in_batch=st.one_of(st.none(), st.integers(1, 65_536)),
    schema_version=st.one_of(st.none(), st.binary(max_size=8)),
    deliver_at_time=st.one_of(st.none(), SIGNED),
    marker_type=st.one_of(st.none(), st.integers(0, 22)),
    chunk_id=st.one_of(st.none(), st.integers(0, 5)),
)


def wire(items: list[tuple[pb.BaseCommand, bytes]]) -> bytes:
    """The bytes of some frames."""
    return b"".join(b"".join(frames.encode_with_payload(command, [payload])) for command, payload in items)


def only_documented_errors(act: Callable[[], object]) -> None:
    """Do something with hostile bytes: it works, or raises one of the two errors that may come, with one line of text."""
    try:
        act()
    except (ProtocolError, BrokerError) as error:
        text = str(error)
    else:
        return
    assert "\n" not in text
    assert 0 < len(text) < 300
