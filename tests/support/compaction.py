"""Compacts a topic, and reads one as official clients see it."""

import pulsar

from tests.support.brokers import BrokerProcess, eventually, path_of

Row = tuple[str, bytes]
"""The key of a message, and what it contains."""


def compact(broker: BrokerProcess, topic: str) -> None:
    """Compact a topic, and wait for the end."""
    path = f"{path_of(topic)}/compaction"
    eventually(lambda: broker.rest("GET", path)["status"] != "RUNNING", within_s=20)  # one by the threshold
    broker.rest("PUT", path)
    eventually(lambda: broker.rest("GET", path) == {"status": "SUCCESS", "lastError": ""}, within_s=20)


def rows(
    client: pulsar.Client, topic: str, start: pulsar.MessageId = pulsar.MessageId.earliest, *, compacted: bool = True
) -> list[Row]:
    """What a reader sees, of the compacted topic or of all messages."""
    reader = client.create_reader(topic, start, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found
