"""End-to-end encryption: the broker passes on what it cannot read, and so do clients that have no key."""

import urllib.request
import uuid
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.brokers import BrokerProcess, eventually
from tests.support.receiving import WAIT_MS, drain, nothing_more

EARLIEST = pulsar.InitialPosition.Earliest
Action = pulsar.ConsumerCryptoFailureAction


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    """A pair of RSA keys as the client takes them."""
    return key_reader(tmp_path_factory.mktemp("keys"))


def key_reader(folder: Path) -> pulsar.CryptoKeyReader:
    """A new pair of keys in a folder."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = serialization.Encoding.PEM
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


def secrets(count: int) -> list[bytes]:
    """Payloads that are found nowhere else."""
    return [b"plain-%s-%d" % (uuid.uuid4().hex.encode(), number) for number in range(count)]


def publish(
    client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader | None, payloads: list[bytes], *, batching: bool
) -> None:
    """Publish, encrypted when there are keys; a batch is one entry."""
    encrypted = {} if keys is None else {"encryption_key": "ours", "crypto_key_reader": keys}
    # The delay is longer than the test: only flush() ends the batch, so it is one whatever the machine does.
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=60_000, properties={"test": "yes"}, **encrypted
    )
    for number, payload in enumerate(payloads):
        producer.send_async(payload, lambda _result, _id: None, properties={"number": str(number)})
    producer.flush()
    producer.close()


def backlog(broker: BrokerProcess, topic: str, name: str) -> int:
    """Of a subscription."""
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    return int(stats["subscriptions"][name]["msgBacklog"])


def stored(broker: BrokerProcess, needle: bytes) -> bool:
    """Whether some file of the broker's data has these bytes."""
    files = [path for path in (broker.config.parent / "data").rglob("*") if path.is_file()]
    assert files
    return any(needle in path.read_bytes() for path in files)


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZSTD])
@pytest.mark.parametrize("batching", [False, True])
def test_who_has_the_key_reads(
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    batching: bool,
    compression: pulsar.CompressionType,
) -> None:
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(
        topic,
        encryption_key="ours",
        crypto_key_reader=keys,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_publish_delay_ms=60_000,
    )
    payloads = secrets(20)
    for payload in payloads:
        producer.send_async(payload, lambda _result, _id: None, partition_key="k", properties={"a": "1"})
    producer.flush()
    messages = drain(consumer, 20)
    assert [message.data() for message in messages] == payloads
    # Encrypted is the payload alone: what the broker works with came through as it was.
    assert {message.partition_key() for message in messages} == {"k"}
    assert all(message.properties() == {"a": "1"} for message in messages)
    entries = {(message.message_id().ledger_id(), message.message_id().entry_id()) for message in messages}
    assert len(entries) == (1 if batching else 20)
    assert nothing_more(consumer)


@pytest.mark.parametrize("batching", [False, True])
def test_the_broker_has_no_plain_text(
    client: pulsar.Client, broker: BrokerProcess, topic: str, keys: pulsar.CryptoKeyReader, batching: bool
) -> None:
    client.subscribe(topic, "s").close()
    (secret, open_one) = secrets(2)
    publish(client, topic, keys, [secret], batching=batching)
    publish(client, topic, None, [open_one], batching=batching)
    peeked = []
    for number in (1, 2):
        path = f"/admin/v2/{topic.replace('://', '/')}/subscription/s/position/{number}"
        with urllib.request.urlopen(broker.web + path, timeout=20) as answer:
            peeked.append(answer.read())
    assert secret not in peeked[0]
    # AES-GCM adds a tag and nothing else: it is the client's ciphertext, not something emptied or cut.
    assert len(peeked[0]) == len(peeked[1]) + 16
    # The message beside it shows that both looks would have found a plain text.
    assert open_one in peeked[1]
    assert stored(broker, open_one)
    assert not stored(broker, secret)


@pytest.mark.parametrize("batching", [False, True])
def test_without_a_key_and_fail_nothing_is_delivered_and_nothing_lost(
    client: pulsar.Client, broker: BrokerProcess, topic: str, keys: pulsar.CryptoKeyReader, batching: bool
) -> None:
    blind = client.subscribe(topic, "s", crypto_failure_action=Action.FAIL)
    payloads = secrets(3)
    publish(client, topic, keys, payloads, batching=batching)
    # It did reach this client, which is what makes the silence one of the client and not of the broker.
    eventually(
        lambda: broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]["s"][
            "msgOutCounter"
        ]
    )
    assert nothing_more(blind)
    blind.close()
    assert backlog(broker, topic, "s") > 0
    seeing = client.subscribe(topic, "s", crypto_key_reader=keys)
    assert [message.data() for message in drain(seeing, 3)] == payloads
    eventually(lambda: backlog(broker, topic, "s") == 0)


@pytest.mark.parametrize("batching", [False, True])
def test_without_a_key_and_discard_it_is_acknowledged_unseen(
    client: pulsar.Client, broker: BrokerProcess, topic: str, keys: pulsar.CryptoKeyReader, batching: bool
) -> None:
    blind = client.subscribe(topic, "s", crypto_failure_action=Action.DISCARD)
    beside = client.subscribe(topic, "beside", crypto_key_reader=keys, initial_position=EARLIEST)
    payloads = secrets(3)
    publish(client, topic, keys, payloads, batching=batching)
    publish(client, topic, None, [b"for everybody"], batching=batching)
    assert blind.receive(WAIT_MS).data() == b"for everybody"
    eventually(lambda: backlog(broker, topic, "s") == 1)
    # The other subscription has its own acknowledgements.
    assert [message.data() for message in drain(beside, 4)] == [*payloads, b"for everybody"]


@pytest.mark.parametrize("batching", [False, True])
def test_without_a_key_and_consume_the_ciphertext_comes_with_all_that_opens_it(
    client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, batching: bool
) -> None:
    blind = client.subscribe(topic, "s", crypto_failure_action=Action.CONSUME)
    payloads = secrets(3)
    publish(client, topic, keys, payloads, batching=batching)
    messages = drain(blind, 1 if batching else 3)
    for message in messages:
        context = message.encryption_context()
        assert context is not None
        assert context.is_decryption_failed()
        (key,) = context.keys()
        assert (key.key, len(key.value)) == ("ours", 256)
        assert len(context.param()) == 12
        assert not any(payload in message.data() for payload in payloads)
        # What a client cannot open it cannot take apart: a batch comes whole.
        assert context.batch_size() == (3 if batching else -1)
    if not batching:
        assert [message.properties()["number"] for message in messages] == ["0", "1", "2"]
    assert nothing_more(blind)


def test_another_pair_of_keys_opens_nothing(
    client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, tmp_path: Path
) -> None:
    wrong = client.subscribe(topic, "s", crypto_key_reader=key_reader(tmp_path), crypto_failure_action=Action.CONSUME)
    (payload,) = secrets(1)
    publish(client, topic, keys, [payload], batching=False)
    message = wrong.receive(WAIT_MS)
    context = message.encryption_context()
    assert context is not None
    assert context.is_decryption_failed()
    assert payload not in message.data()


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_where_a_namespace_wants_encryption_nothing_else_gets_in(
    client: pulsar.Client, broker: BrokerProcess, keys: pulsar.CryptoKeyReader, domain: str
) -> None:
    namespace = f"public/locked-{domain}"
    path = f"/admin/v2/namespaces/{namespace}"
    broker.rest("PUT", path)
    assert broker.rest("GET", f"{path}/encryptionRequired") is False
    topic = f"{domain}://{namespace}/t"
    early = client.create_producer(topic)
    broker.rest("POST", f"{path}/encryptionRequired", True)
    assert broker.rest("GET", f"{path}/encryptionRequired") is True
    # An error of metadata, as Pulsar's: clients try again until their timeout, in case that somebody changes it back.
    hasty = pulsar.Client(broker.url, operation_timeout_seconds=2)
    with pytest.raises(pulsar.Timeout):
        hasty.create_producer(topic)
    hasty.close()
    # Who was there before goes on, but not with what is not encrypted: it fails alone (decision 0013).
    with pytest.raises(pulsar.ChecksumError):
        early.send(b"plain")
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys, initial_position=EARLIEST)
    publish(client, topic, keys, [b"locked"], batching=False)
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"locked"
    broker.rest("POST", f"{path}/encryptionRequired", False)
    early.send(b"plain again")
    assert consumer.receive(WAIT_MS).data() == b"plain again"
