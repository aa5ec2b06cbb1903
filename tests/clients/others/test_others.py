"""Official clients of other languages publish, consume, read, seek and survive a broker that is killed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.clients.others.conversation import BUILDS, Conversation, Missing
from tests.support.brokers import BrokerProcess, World, eventually

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module", params=list(BUILDS))
def command(request: pytest.FixtureRequest) -> list[str]:
    try:
        return BUILDS[request.param]()
    except Missing as why:
        pytest.skip(f"the {request.param} client cannot be built here: {why}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    world = World(tmp_path_factory.mktemp("others"), ["a"])
    world["a"].start()
    yield world["a"]
    world["a"].kill()


@pytest.fixture
def other(command: list[str], broker: BrokerProcess, tmp_path: Path) -> Iterator[Conversation]:
    conversation = Conversation(command, broker.url, tmp_path / "client.log")
    yield conversation
    conversation.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"persistent://public/default/{name}"


def numbers(answer: dict[str, Any]) -> list[int]:
    return [one["number"] for one in answer["messages"]]


@pytest.mark.parametrize("compression", ["", "LZ4", "ZLib", "ZSTD"])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batches"])
def test_to_the_python_client_and_back(other, broker, topic, batch, compression):
    other.ask("publish", topic=topic, count=100, batch=batch, compression=compression)
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        for number in range(100):
            message = reader.read_next(60_000)
            assert message.data() == str(number).encode().ljust(20, b".")
            assert message.partition_key() == f"key-{number % 7}"
            assert message.properties() == {"number": str(number)}
        kinds = {
            "": pulsar.CompressionType.NONE,
            "LZ4": pulsar.CompressionType.LZ4,
            "ZLib": pulsar.CompressionType.ZLib,
            "ZSTD": pulsar.CompressionType.ZSTD,
        }
        producer = client.create_producer(topic, batching_enabled=batch, compression_type=kinds[compression])
        for number in range(100, 150):
            properties = {"number": str(number)}
            producer.send_async(str(number).encode(), None, partition_key=f"key-{number % 7}", properties=properties)
        producer.flush()
    finally:
        client.close()
    seen = other.ask("read", topic=topic)["messages"]
    assert [one["number"] for one in seen] == list(range(150))
    assert all(one["key"] == f"key-{one['number'] % 7}" and one["property"] == str(one["number"]) for one in seen)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_consume_and_acknowledge(other, topic, kind):
    other.ask("subscribe", topic=topic, subscription="s", type=kind)
    other.ask("publish", topic=topic, count=50)
    assert sorted(numbers(other.ask("consume", count=50, acknowledge="individual"))) == list(range(50))
    other.ask("publish", topic=topic, **{"from": 50}, count=5)
    other.ask(
        "subscribe", topic=topic, subscription="s", type=kind
    )  # closed and opened: what was acknowledged stays away
    assert sorted(numbers(other.ask("consume", count=5, acknowledge="individual"))) == list(range(50, 55))
    other.ask("unsubscribe")


def test_cumulative(other, topic):
    other.ask("publish", topic=topic, count=50, batch=True)
    other.ask("subscribe", topic=topic, subscription="s", type="Failover")
    assert numbers(other.ask("consume", count=30, acknowledge="cumulative")) == list(range(30))
    other.ask("unsubscribe")


def test_negative_acknowledgements_come_again(other, topic):
    other.ask("publish", topic=topic, count=10)
    other.ask("subscribe", topic=topic, subscription="s")
    assert sorted(numbers(other.ask("consume", count=10, acknowledge="negative"))) == list(range(10))
    again = other.ask("consume", count=10, acknowledge="individual")
    assert sorted(numbers(again)) == list(range(10))
    assert {one["redelivered"] for one in again["messages"]} == {1}


def test_retry_topics(other, command, broker, topic):
    """What is to be consumed later comes again by way of the subscription's retry topic, and at last to the dead letter topic."""
    if "main.js" in command[-1]:
        pytest.skip("the Node.js client has no retry topics")
    other.ask("subscribe", topic=topic, subscription="s", retries=2)
    other.ask("publish", topic=topic, count=10)
    assert sorted(numbers(other.ask("consume", count=10, acknowledge="later"))) == list(range(10))
    for _ in range(2):  # both retries, after their delay; each message once
        assert sorted(numbers(other.ask("consume", count=10, acknowledge="later"))) == list(range(10))

    def letters() -> int:
        names = broker.rest("GET", "/admin/v2/persistent/public/default")
        if f"{topic}-s-DLQ" not in names:
            return 0
        return int(broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}-s-DLQ/stats")["msgInCounter"])

    eventually(lambda: letters() == 10, what="all are in the dead letter topic")
    assert sorted(numbers(other.ask("read", topic=f"{topic}-s-DLQ"))) == list(range(10))
    for name in (topic, f"{topic}-s-RETRY"):
        path = f"/admin/v2/{name.replace('://', '/')}/stats"
        eventually(
            lambda path=path: broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 0,
            what=f"everything of {name} is acknowledged",
        )


def test_seek(other, topic):
    other.ask("publish", topic=topic, count=20)
    other.ask("subscribe", topic=topic, subscription="s", type="Exclusive")
    assert numbers(other.ask("consume", count=20, acknowledge="individual")) == list(range(20))
    other.ask("seek")
    assert numbers(other.ask("consume", count=20, acknowledge="individual")) == list(range(20))


def test_chunks(other, topic):
    size = 12 << 20  # above one message's limit of 5 MB
    other.ask("publish", topic=topic, count=2, size=size, chunk=True)
    other.ask("subscribe", topic=topic, subscription="s", type="Exclusive")
    seen = other.ask("consume", count=2, acknowledge="individual")["messages"]
    assert [(one["number"], one["size"]) for one in seen] == [(0, size), (1, size)]


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batches"])
def test_partitions(other, broker, topic, batch):
    broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 3)
    other.ask("publish", topic=topic, count=60, batch=batch)
    other.ask("subscribe", topic=topic, subscription="s")
    seen = other.ask("consume", count=60, acknowledge="individual")["messages"]
    assert sorted(one["number"] for one in seen) == list(range(60))
    of_key: dict[str, list[int]] = {}
    for one in seen:
        of_key.setdefault(one["key"], []).append(one["number"])
    assert all(order == sorted(order) for order in of_key.values())


def test_a_killed_broker(other, broker, topic):
    """Half way through a stream the broker is killed and started again: every message comes, none of them is published twice."""
    other.ask("subscribe", topic=topic, subscription="s")
    # Off by default: then what was stored without a receipt is there twice, as the client sends it once more.
    broker.rest("POST", f"/admin/v2/{topic.replace('://', '/')}/deduplicationEnabled", True)
    other.tell("stream", topic=topic, count=2000, batch=True)
    assert other.hear() == {"half": True}
    broker.kill()
    broker.start()
    assert other.hear()["distinct"] == 2000
    assert Counter(numbers(other.ask("read", topic=topic))) == Counter(range(2000))
