"""How rows become entries."""

from dataclasses import dataclass, field

import pytest

from magnetar.spark.options import WriteOptions, write_options
from magnetar.spark.sink import Target
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import MESSAGES_PER_BATCH_MAX

LIMIT = 50_000


@dataclass
class Broker:
    """A producer whose broker takes entries up to a limit, as `wire.metadata.inspect` judges them."""

    message_bytes_max: int = LIMIT
    name: str = "n" * 512
    last: int = -1
    counts: list[int] = field(default_factory=list)

    def send(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        assert metadata.ByteSize() + len(payload) <= self.message_bytes_max
        assert metadata.num_messages_in_batch <= MESSAGES_PER_BATCH_MAX
        self.counts.append(metadata.num_messages_in_batch)


def options(**given: str) -> WriteOptions:
    named = {f"pulsar.producer.{name}": value for name, value in given.items()}
    return write_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t", **named})


@pytest.mark.parametrize(("messages", "size"), [("1000", "10000000"), ("100000", "131072"), ("100000", "10000000")])
def test_entries_are_no_larger_than_the_broker_takes(messages: str, size: str) -> None:
    """Rows that are small enough are written, whatever the options say."""
    broker = Broker()
    target = Target(options(batchingMaxMessages=messages, batchingMaxBytes=size), broker)  # type: ignore[arg-type]
    for number in range(200):
        target.add(number, b"h" * 10, b"v" * 990, 1000)
    target.flush()
    assert sum(broker.counts) == 200
    assert max(broker.counts) == (LIMIT - 1024) // 1000


def test_entries_hold_no_more_messages_than_the_broker_takes() -> None:
    broker = Broker(message_bytes_max=5 << 20)
    target = Target(options(batchingMaxMessages="1000000", batchingMaxBytes="5000000"), broker)  # type: ignore[arg-type]
    for number in range(MESSAGES_PER_BATCH_MAX + 1):
        target.add(number, b"h", b"", 1)
    target.flush()
    assert broker.counts == [MESSAGES_PER_BATCH_MAX, 1]
