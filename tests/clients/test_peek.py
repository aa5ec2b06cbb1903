"""Looking at a message by HTTP: payloads as clients gave them, whatever they were compressed with."""

import urllib.request
from email.message import Message

import pulsar
import pytest

from magnetar.wire.batches import walk_batch
from tests.support.brokers import BrokerProcess

KINDS = {
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}


def peek(broker: BrokerProcess, topic: str) -> tuple[Message, bytes]:
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription/s/position/1"
    with urllib.request.urlopen(broker.web + path, timeout=20) as answer:
        return answer.headers, answer.read()


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_batch(broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(
        topic, compression_type=KINDS[kind], batching_enabled=True, batching_max_publish_delay_ms=500
    )
    sent = [b"message %d " % number * 20 for number in range(30)]
    for payload in sent:
        producer.send_async(payload, lambda _result, _id: None)
    producer.flush()
    headers, body = peek(broker, topic)
    assert headers["X-Pulsar-num-batch-message"] == "30"
    assert headers["X-Pulsar-compression"] == kind
    assert headers["X-Pulsar-Is-Encrypted"] == "false"
    assert headers["X-Magnetar-Still-Compressed"] is None
    assert int(headers["X-Pulsar-uncompressed-size"]) == len(body)
    assert [body[first:end] for _, _, first, end in walk_batch(body, 30)] == sent


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_message(broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, compression_type=KINDS[kind], batching_enabled=False)
    payload = b"".join(b"%d " % (number * number) for number in range(200_000))
    producer.send(payload)
    assert peek(broker, topic)[1] == payload
