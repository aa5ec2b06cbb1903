"""Non-persistent topics, by the official client: what nobody can take now is gone, everything else is as with stored ones."""

import re
import urllib.error
import uuid

import pulsar
import pytest
from pulsar import schema

from tests.support.brokers import BrokerProcess, eventually
from tests.support.pulsarstats import PASSING_PARTITIONED, faults


@pytest.fixture
def passing() -> str:
    """A fresh name."""
    return f"non-persistent://public/default/n-{uuid.uuid4().hex[:12]}"


def stats_of(broker: BrokerProcess, topic: str) -> dict:
    return broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")


def test_there_and_gone(broker: BrokerProcess, client: pulsar.Client, passing: str) -> None:
    producer = client.create_producer(passing, batching_enabled=False)
    before = producer.send(b"nobody is here")
    consumer = client.subscribe(passing, "s", initial_position=pulsar.InitialPosition.Earliest)
    ids = [producer.send(b"%d" % number) for number in range(50)]
    assert len({str(one) for one in [before, *ids]}) == 51
    messages = [consumer.receive(60_000) for _ in range(50)]
    assert [message.data() for message in messages] == [b"%d" % number for number in range(50)]
    assert [message.topic_name() for message in messages[:1]] == [passing]
    for message in messages:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    stats = stats_of(broker, passing)
    assert stats["msgInCounter"] == 51
    assert stats["msgOutCounter"] == 50
    assert [one["producerName"] for one in stats["publishers"]] == [producer.producer_name()]
    assert stats["subscriptions"]["s"]["consumers"][0]["msgOutCounter"] == 50
    consumer.close()
    producer.close()
    eventually(lambda: passing not in broker.rest("GET", "/admin/v2/non-persistent/public/default"), within_s=10)


def test_what_cannot_be_taken_is_dropped_and_counted(
    broker: BrokerProcess, client: pulsar.Client, passing: str
) -> None:
    consumer = client.subscribe(passing, "slow", receiver_queue_size=10)
    producer = client.create_producer(passing, batching_enabled=False)
    for number in range(100):
        producer.send(b"%d" % number)
    stats = stats_of(broker, passing)
    dropped, sent = stats["msgDropCount"], stats["msgOutCounter"]
    assert dropped + sent == 100
    assert dropped > 0
    got = [consumer.receive(60_000).data() for _ in range(sent)]
    assert got == [b"%d" % number for number in range(sent)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)


def test_batches_large_messages_and_schemas(client: pulsar.Client, passing: str) -> None:
    class Flight(schema.Record):
        number = schema.Integer()

    consumer = client.subscribe(passing, "s", schema=schema.AvroSchema(Flight))
    producer = client.create_producer(
        passing, schema=schema.AvroSchema(Flight), batching_enabled=True, compression_type=pulsar.CompressionType.ZLib
    )
    for number in range(100):
        producer.send_async(Flight(number=number), lambda _result, _id: None)
    producer.flush()
    assert [consumer.receive(60_000).value().number for _ in range(100)] == list(range(100))
    large = bytes(range(256)) * (4 << 12)
    plain = passing + "-large"
    reading = client.subscribe(plain, "s")
    client.create_producer(plain, batching_enabled=False).send(large)
    assert reading.receive(60_000).data() == large


def test_types_of_subscriptions(client: pulsar.Client, passing: str) -> None:
    producer = client.create_producer(passing, batching_enabled=False)
    exclusive = client.subscribe(passing, "exclusive")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(passing, "exclusive")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(passing, "exclusive", consumer_type=pulsar.ConsumerType.Shared)
    shared = [client.subscribe(passing, "shared", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)]
    keyed = [client.subscribe(passing, "keyed", consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(2)]
    first = client.subscribe(passing, "failover", consumer_type=pulsar.ConsumerType.Failover, consumer_name="1")
    second = client.subscribe(passing, "failover", consumer_type=pulsar.ConsumerType.Failover, consumer_name="2")
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"k{number % 20}")

    def drain(consumer: pulsar.Consumer) -> list[pulsar.Message]:
        got = []
        while True:
            try:
                got.append(consumer.receive(200))
            except pulsar.Timeout:
                return got

    everything = [b"%d" % number for number in range(60)]
    assert [message.data() for message in drain(exclusive)] == everything
    assert [message.data() for message in drain(first)] == everything
    assert drain(second) == []
    shares = [drain(consumer) for consumer in shared]
    assert sorted(len(share) for share in shares) == [30, 30]
    assert sorted(m.data() for share in shares for m in share) == sorted(everything)
    shares = [drain(consumer) for consumer in keyed]
    keys = [{message.partition_key() for message in share} for share in shares]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 20
    assert sorted(m.data() for share in shares for m in share) == sorted(everything)
    first.close()
    producer.send(b"next")
    assert second.receive(60_000).data() == b"next"


def test_access_modes(client: pulsar.Client, passing: str) -> None:
    holder = client.create_producer(passing, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(passing, access_mode=pulsar.ProducerAccessMode.Exclusive)
    holder.close()
    taken = client.create_producer(passing, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    taken.send(b"x")


def test_patterns_partitions_and_administration(broker: BrokerProcess, client: pulsar.Client, passing: str) -> None:
    path = f"/admin/v2/{passing.replace('://', '/')}"
    broker.rest("PUT", f"{path}/partitions", 3)
    assert broker.rest("GET", f"{path}/partitions")["partitions"] == 3
    producer = client.create_producer(passing, batching_enabled=False)
    other = client.create_producer(passing.replace("non-persistent", "persistent"), batching_enabled=False)
    consumer = client.subscribe(
        re.compile(f"public/default/{passing.rpartition('/')[2]}.*"),
        "s",
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    mine = [name for name in broker.rest("GET", "/admin/v2/non-persistent/public/default") if passing in name]
    assert mine == [f"{passing}-partition-{number}" for number in range(3)]
    other.send(b"stored")
    for number in range(9):
        producer.send(b"%d" % number)
    got = [consumer.receive(60_000) for _ in range(9)]
    assert sorted(message.data() for message in got) == [b"%d" % number for number in range(9)]
    assert {message.topic_name().rpartition("-")[2] for message in got} == {"0", "1", "2"}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)
    broker.rest("DELETE", f"{path}/partitions?force=true")
    assert not [name for name in broker.rest("GET", "/admin/v2/non-persistent/public/default") if passing in name]


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("whole", [False, True], ids=["topic", "namespace"])
def test_unloading_makes_clients_come_again(
    broker: BrokerProcess, client: pulsar.Client, passing: str, partitions: int, whole: bool
) -> None:
    namespace = f"u-{uuid.uuid4().hex[:12]}"
    broker.rest("PUT", f"/admin/v2/namespaces/public/{namespace}")
    passing = passing.replace("/default/", f"/{namespace}/")
    path = f"/admin/v2/{passing.replace('://', '/')}"
    broker.rest("PUT", f"{path}/partitions" if partitions else path, partitions or None)
    consumer = client.subscribe(passing, "s")
    producer = client.create_producer(passing)
    stats = f"{path}/partitioned-stats" if partitions else f"{path}/stats"

    def since() -> list[str]:
        told = broker.rest("GET", stats)
        consumers = told["subscriptions"].get("s", {"consumers": []})["consumers"]
        return [end["connectedSince"] for end in (*told["publishers"], *consumers)]

    before = since()
    assert len(before) == 2 * (partitions or 1)
    broker.rest("PUT", f"/admin/v2/namespaces/public/{namespace}/unload" if whole else f"{path}/unload")

    def back() -> bool:
        now = since()
        return len(now) == len(before) and not set(now) & set(before)

    eventually(back)
    producer.send(b"again")
    assert consumer.receive(60_000).data() == b"again"
    if partitions:
        broker.rest("DELETE", f"{path}/partitions?force=true")


def test_partitions_where_nobody_is_have_statistics(broker: BrokerProcess, passing: str) -> None:
    path = f"/admin/v2/{passing.replace('://', '/')}"
    broker.rest("PUT", f"{path}/partitions", 2)
    stats = broker.rest("GET", f"{path}/partitioned-stats")
    assert faults(stats, PASSING_PARTITIONED, "stats") == []
    assert len(stats["partitions"]) == 2
    assert (stats["msgInCounter"], stats["averageMsgSize"], stats["topicCreationTimeStamp"]) == (0, 0, 0)
    assert broker.rest("GET", f"{path}-partition-1/stats")["publishers"] == []
    for absent in (f"{path}-partition-2/stats", f"{path}-no-partition-0/stats"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            broker.rest("GET", absent)
    broker.rest("PUT", f"{path}/unload")


def test_nothing_is_stored_and_internal_statistics_say_so(broker: BrokerProcess, passing: str) -> None:
    path = f"/admin/v2/{passing.replace('://', '/')}"
    broker.rest("PUT", path)
    with pytest.raises(urllib.error.HTTPError, match="405"):
        broker.rest("GET", f"{path}/internalStats")


def test_made_and_deleted_by_an_administrator(broker: BrokerProcess, client: pulsar.Client, passing: str) -> None:
    path = f"/admin/v2/{passing.replace('://', '/')}"
    broker.rest("PUT", path)
    assert passing in broker.rest("GET", "/admin/v2/non-persistent/public/default")
    consumer = client.subscribe(passing, "s")
    with pytest.raises(urllib.error.HTTPError, match="412"):
        broker.rest("DELETE", path)
    consumer.close()
    broker.rest("DELETE", path)
    assert passing not in broker.rest("GET", "/admin/v2/non-persistent/public/default")


def test_a_reader_and_what_needs_storage(client: pulsar.Client, passing: str) -> None:
    consumer = client.subscribe(passing, "s")
    with pytest.raises(pulsar.PulsarException):
        consumer.seek(pulsar.MessageId.earliest)
    client.create_producer(passing).send(b"on")
    assert consumer.receive(60_000).data() == b"on"
