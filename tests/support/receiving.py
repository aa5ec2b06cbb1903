"""What the tests of the official client do with a consumer or a reader."""

import pulsar

WAIT_MS = 60_000


def drain(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Receive and acknowledge so many."""
    messages = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        messages.append(message)
    return messages


def nothing_more(consumer: pulsar.Consumer) -> bool:
    """Whether nothing comes for a moment."""
    try:
        consumer.receive(300)
    except pulsar.Timeout:
        return True
    return False


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The payloads of so many messages, acknowledged."""
    return [message.data() for message in drain(consumer, count)]


def everything(client: pulsar.Client, topic: str) -> list[bytes]:
    """All messages of a topic, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = []
    while reader.has_message_available():
        messages.append(reader.read_next(WAIT_MS).data())
    reader.close()
    return messages
