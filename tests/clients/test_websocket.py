"""Pulsar's WebSocket API: pages and shells publish and consume, beside official clients on the same topics."""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest

from magnetar.admin.websocket.publisher import java_hash
from magnetar.broker.subscriptions.dispatch.hashing import murmur3_32
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.patience import PATIENCE
from tests.support.secured import Secured, token

pytestmark = pytest.mark.e2e

WAIT_S = 20 * PATIENCE
Story = Callable[[aiohttp.ClientSession], Awaitable[None]]


def tell(story: Story) -> None:
    async def whole() -> None:
        async with aiohttp.ClientSession() as session:
            await story(session)

    asyncio.run(whole())


def url(broker: BrokerProcess, kind: str, topic: str, rest: str = "") -> str:
    return f"{broker.web.replace('http', 'ws', 1)}/ws/v2/{kind}/{topic.replace('://', '/')}{rest}"


async def got(socket: aiohttp.ClientWebSocketResponse) -> Any:
    message = await socket.receive(timeout=WAIT_S)
    assert message.type is aiohttp.WSMsgType.TEXT, (message.type, message.data, message.extra)
    return json.loads(message.data)


async def closed(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, str]:
    message = await socket.receive(timeout=WAIT_S)
    assert message.type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}, message
    return socket.close_code, str(message.extra or "")


def payload(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def said(message: Any) -> str:
    return base64.b64decode(message["payload"]).decode()


async def refused(session: aiohttp.ClientSession, address: str, **more: Any) -> tuple[int, str]:
    """The status and the reason with which a WebSocket is refused."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(b"0" * 16).decode(),
    } | more.pop("headers", {})
    async with session.get(address.replace("ws", "http", 1), headers=headers, **more) as answer:
        assert answer.status != 101, "it is let in"
        return answer.status, json.loads(await answer.read())["reason"]


# ------------------------------------------------------------------------------------------------------------ publishing


def test_messages_of_a_page_reach_an_official_client(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "producer", topic, "?producerName=page")) as socket:
            for number in range(3):
                await socket.send_json(
                    {
                        "payload": payload(f"m{number}"),
                        "properties": {"a": "1", "b": "ü"},
                        "key": "k",
                        "context": str(number),
                        "eventTime": "5000",
                    }
                )
            answers = [await got(socket) for _ in range(3)]
        assert [(answer["result"], answer["context"]) for answer in answers] == [("ok", str(n)) for n in range(3)]
        assert len({answer["messageId"] for answer in answers}) == 3

    tell(story)
    for number in range(3):
        message = consumer.receive(20_000)
        assert (message.data().decode(), message.partition_key()) == (f"m{number}", "k")
        assert message.properties() == {"a": "1", "b": "ü"}
        assert (message.event_timestamp(), message.producer_name()) == (5000, "page")
        consumer.acknowledge(message)


@pytest.mark.parametrize(
    ("text", "result", "why"),
    [
        ("no json", "send-error:3", "Failed to de-serialize from JSON"),
        ('{"payload": "%%%", "context": "7"}', "send-error:7", "Invalid payload encoding"),
        ('{"payload": 5}', "send-error:3", "Failed to de-serialize from JSON"),
        ('{"payload": "", "eventTime": "soon", "context": "7"}', "send-error:7", "Invalid payload encoding"),
        ('{"payload": "", "deliverAt": -5}', "send-error:3", "deliverAt"),
    ],
)
def test_what_is_no_message_is_answered_and_the_next_one_is_taken(
    broker: BrokerProcess, topic: str, text: str, result: str, why: str
) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "producer", topic)) as socket:
            await socket.send_str(text)
            answer = await got(socket)
            assert answer["result"] == result
            assert why in answer["errorMsg"]
            assert answer.get("context") == ("7" if "context" in text else None)
            await socket.send_json({"payload": payload("good")})
            assert (await got(socket))["result"] == "ok"

    tell(story)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_compressed_payloads_are_read_by_clients_and_by_pages(
    broker: BrokerProcess, client: pulsar.Client, topic: str, compression: str
) -> None:
    consumer = client.subscribe(topic, "s")
    text = "again and " * 200

    async def story(session: aiohttp.ClientSession) -> None:
        reader = url(broker, "reader", topic, "?messageId=earliest")
        producer = url(broker, "producer", topic, f"?compressionType={compression}")
        async with session.ws_connect(producer) as socket, session.ws_connect(reader) as page:
            await socket.send_json({"payload": payload(text)})
            assert (await got(socket))["result"] == "ok"
            assert said(await got(page)) == text

    tell(story)
    assert consumer.receive(20_000).data().decode() == text


def test_a_producer_goes_on_when_its_topic_is_unloaded(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    """What had no receipt is sent again with its number: where deduplication is on it is stored once."""
    where = f"/admin/v2/{topic.replace('://', '/')}"
    broker.rest("PUT", where)
    broker.rest("POST", f"{where}/deduplicationEnabled", True)

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "producer", topic)) as socket:
            for number in range(200):
                await socket.send_json({"payload": payload(str(number)), "context": str(number)})
                if number == 100:
                    await asyncio.get_running_loop().run_in_executor(None, broker.rest, "PUT", f"{where}/unload")
            answers = [await got(socket) for _ in range(200)]
        assert [answer["result"] for answer in answers] == ["ok"] * 200

    tell(story)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(20_000).data().decode() for _ in range(200)] == [str(number) for number in range(200)]
    assert not reader.has_message_available()


@pytest.mark.parametrize("hashing", ["JavaStringHash", "Murmur3_32Hash"])
def test_keys_choose_the_partition(broker: BrokerProcess, topic: str, hashing: str) -> None:
    broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 4)
    keys = [f"key-{number}-ü" for number in range(12)]

    async def story(session: aiohttp.ClientSession) -> None:
        where: dict[str, list[int]] = {}
        beginning = "/s?subscriptionInitialPosition=Earliest"
        async with (
            session.ws_connect(url(broker, "producer", topic, f"?hashingScheme={hashing}")) as producer,
            session.ws_connect(url(broker, "consumer", topic, beginning)) as consumer,
        ):
            for key in 2 * keys:
                await producer.send_json({"payload": "", "key": key})
                assert (await got(producer))["result"] == "ok"
            for _ in 2 * keys:
                message = await got(consumer)
                place = pb.MessageIdData.FromString(base64.b64decode(message["messageId"]))
                where.setdefault(message["key"], []).append(place.partition)
                await consumer.send_json({"messageId": message["messageId"]})
        chosen = {key: (java_hash(key) if hashing == "JavaStringHash" else murmur3_32(key.encode())) for key in keys}
        assert where == {key: 2 * [(number & 0x7FFFFFFF) % 4] for key, number in chosen.items()}

    tell(story)


# -------------------------------------------------------------------------------------------------------------- consuming


def test_messages_of_an_official_client_reach_a_page_batch_by_batch(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        address = url(broker, "consumer", topic, "/s?subscriptionType=Shared&receiverQueueSize=3")
        async with session.ws_connect(address) as socket:
            producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
            for number in range(10):
                producer.send_async(str(number).encode(), None, properties={"n": str(number)})
            producer.flush()
            seen = []
            for _ in range(10):
                message = await got(socket)
                seen.append(said(message))
                assert message["properties"] == {"n": seen[-1]}
                assert message["redeliveryCount"] == 0
                if seen[-1] != "4":  # of one batch all but one are acknowledged
                    await socket.send_json({"messageId": message["messageId"]})
        assert seen == [str(number) for number in range(10)]
        async with session.ws_connect(address) as socket:
            message = await got(socket)
            assert said(message) == "4"
            await socket.send_json({"messageId": message["messageId"]})
            await socket.send_json({"type": "isEndOfTopic"})
            assert await got(socket) == {"endOfTopic": False}

    tell(story)
    backlog = f"/admin/v2/{topic.replace('://', '/')}/stats"
    assert broker.rest("GET", backlog)["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_page_that_does_not_acknowledge_is_not_buried(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "consumer", topic, "/s?receiverQueueSize=2")) as socket:
            for number in range(6):
                producer.send(str(number).encode())
            first, second = await got(socket), await got(socket)
            await socket.send_json({"type": "isEndOfTopic"})
            assert await got(socket) == {"endOfTopic": False}, "more came than was asked for"
            await socket.send_json({"messageId": first["messageId"]})
            assert [said(second), said(await got(socket))] == ["1", "2"]

    tell(story)


def test_a_page_that_pulls_gets_as_many_as_it_permits(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "consumer", topic, "/s?pullMode=true")) as socket:
            for number in range(5):
                producer.send(str(number).encode())
            await socket.send_json({"type": "permit", "permitMessages": 2})
            assert [said(await got(socket)) for _ in range(2)] == ["0", "1"]
            await socket.send_json({"type": "isEndOfTopic"})
            assert await got(socket) == {"endOfTopic": False}
            await socket.send_json({"type": "permit", "permitMessages": 3})
            assert [said(await got(socket)) for _ in range(3)] == ["2", "3", "4"]

    tell(story)


def test_negatively_acknowledged_messages_come_again_and_then_go_to_the_dead_letters(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    dead = client.subscribe(f"{topic}-s-DLQ", "look")

    async def story(session: aiohttp.ClientSession) -> None:
        address = url(
            broker,
            "consumer",
            topic,
            "/s?subscriptionType=Shared&negativeAckRedeliveryDelay=100&maxRedeliverCount=2",
        )
        async with session.ws_connect(address) as socket:
            producer.send(b"poison", properties={"p": "1"})
            counts = []
            for _ in range(2):
                message = await got(socket)
                counts.append(message["redeliveryCount"])
                await socket.send_json({"type": "negativeAcknowledge", "messageId": message["messageId"]})
            assert counts == [0, 1]
            letter = await asyncio.get_running_loop().run_in_executor(None, dead.receive, 20_000)
            assert letter.data() == b"poison"
            assert letter.properties()["p"] == "1"
            assert letter.properties()["REAL_TOPIC"] == topic
            producer.send(b"good")
            assert said(await got(socket)) == "good"

    tell(story)


def test_what_is_not_acknowledged_in_time_comes_again(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)

    async def story(session: aiohttp.ClientSession) -> None:
        address = url(broker, "consumer", topic, "/s?subscriptionType=Shared&ackTimeoutMillis=1000")
        async with session.ws_connect(address) as socket:
            producer.send(b"m")
            assert [(await got(socket))["redeliveryCount"] for _ in range(2)] == [0, 1]

    tell(story)


def test_a_consumer_goes_on_after_a_seek_and_hears_of_the_end(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    path = f"/admin/v2/{topic.replace('://', '/')}"

    async def story(session: aiohttp.ClientSession) -> None:
        run = asyncio.get_running_loop().run_in_executor
        async with session.ws_connect(url(broker, "consumer", topic, "/s")) as socket:
            producer.send(b"m")
            message = await got(socket)
            await socket.send_json({"messageId": message["messageId"]})
            body = {"ledgerId": -1, "entryId": -1}
            await run(None, broker.rest, "POST", f"{path}/subscription/s/resetcursor", body)
            again = await got(socket)
            assert again["messageId"] == message["messageId"]
            await socket.send_json({"messageId": again["messageId"]})
            await run(None, broker.rest, "POST", f"{path}/terminate")
            ended, until_s = False, time.monotonic() + WAIT_S
            while not ended:
                assert time.monotonic() < until_s, "it is never told of the end"
                await socket.send_json({"type": "isEndOfTopic"})
                ended = (await got(socket))["endOfTopic"]
            await socket.send_json({"type": "unsubscribe"})
            assert await closed(socket) == (1000, "unsubscribed")

    tell(story)
    assert broker.rest("GET", f"{path}/subscriptions") == []


def test_messages_in_chunks_come_whole(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    text = "0123456789" * 1_200_000

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "consumer", topic, "/s"), max_msg_size=1 << 26) as socket:
            producer.send(text.encode())
            message = await got(socket)
            assert said(message) == text
            await socket.send_json({"messageId": message["messageId"]})
            await socket.send_json({"type": "isEndOfTopic"})
            await got(socket)

    tell(story)
    assert broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_reader_begins_where_it_says_and_leaves_nothing(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(4):
        producer.send(str(number).encode())

    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(
            url(broker, "reader", topic, "?messageId=earliest&receiverQueueSize=1")
        ) as socket:
            seen = []
            for _ in range(4):
                seen.append(await got(socket))
                await socket.send_json({"messageId": seen[-1]["messageId"]})
        assert [said(message) for message in seen] == ["0", "1", "2", "3"]
        quoted = seen[1]["messageId"].replace("+", "%2B").replace("=", "%3D")
        async with session.ws_connect(url(broker, "reader", topic, f"?messageId={quoted}")) as socket:
            assert said(await got(socket)) == "2"

    tell(story)
    eventually(lambda: broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/subscriptions") == [])


def test_topics_that_store_nothing(broker: BrokerProcess, topic: str) -> None:
    passing = f"non-{topic}"

    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            session.ws_connect(url(broker, "consumer", passing, "/s")) as consumer,
            session.ws_connect(url(broker, "producer", passing)) as producer,
        ):
            await producer.send_json({"payload": payload("m")})
            assert said(await got(consumer)) == "m"
            assert (await got(producer))["result"] == "ok"

    tell(story)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "rest", "status", "why"),
    [
        ("consumer", "/s?subscriptionType=Some", 400, "subscriptionType"),
        ("consumer", "/s?receiverQueueSize=-1", 400, "receiverQueueSize"),
        ("consumer", "/s?receiverQueueSize=99999999999", 400, "receiverQueueSize"),
        ("consumer", "/s?ackTimeoutMillis=5", 400, "ackTimeoutMillis"),
        ("consumer", "/pulsar.repl.x", 412, "pulsar.repl"),
        ("reader", "?messageId=bm9uZQ", 400, "message id"),
        ("reader", "?messageId=////", 400, "message id"),
        ("producer", "?compressionType=RAR", 400, "compressionType"),
        ("producer", f"?producerName={'x' * 600}", 400, "producerName"),
        ("producer", "?initialSequenceId=9223372036854775807", 400, "initialSequenceId"),
    ],
)
def test_parameters_that_are_not_possible(
    broker: BrokerProcess, topic: str, kind: str, rest: str, status: int, why: str
) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        found, reason = await refused(session, url(broker, kind, topic, rest))
        assert found == status and why in reason, (found, reason)

    tell(story)


def test_refusals_of_the_broker_are_answers_of_http(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")

    async def story(session: aiohttp.ClientSession) -> None:
        status, reason = await refused(session, url(broker, "consumer", topic, "/s?subscriptionType=Shared"))
        assert (status, "Exclusive" in reason) == (409, True), reason
        status, reason = await refused(session, url(broker, "producer", "persistent://missing/default/t"))
        assert status in {404, 500} and "missing" in reason, (status, reason)
        async with session.get(url(broker, "producer", topic).replace("ws", "http", 1)) as answer:
            assert answer.status == 400 and "upgrade" in json.loads(await answer.read())["reason"]
        address = url(broker, "consumer", topic, "/s").replace("/ws/v2/", "/ws/v7/")
        assert (await refused(session, address))[0] == 501

    tell(story)
    consumer.close()


@pytest.mark.parametrize(
    "text", ["no json", '{"type": "dance"}', '{"messageId": "?"}', '{"type": "permit", "permitMessages": 5}']
)
def test_what_a_consumer_cannot_say_ends_it_with_the_reason(broker: BrokerProcess, topic: str, text: str) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url(broker, "consumer", topic, "/s")) as socket:
            await socket.send_str(text)
            code, reason = await closed(socket)
            assert code == 1008 and reason

    tell(story)


def test_other_sites_pages_are_refused(broker: BrokerProcess, topic: str) -> None:
    """A browser opens a WebSocket to anywhere for any page, and adds the user's password."""

    async def story(session: aiohttp.ClientSession) -> None:
        address = url(broker, "producer", topic)
        status, reason = await refused(session, address, headers={"Origin": "https://evil.example"})
        assert status == 403 and "websocket_origins" in reason
        async with session.ws_connect(address, origin=broker.web) as socket:
            await socket.send_json({"payload": ""})
            assert (await got(socket))["result"] == "ok"

    tell(story)


def test_origins_of_the_file_are_let_in_and_the_broker_stops_without_waiting(tmp_path: Path, topic: str) -> None:
    world = World(tmp_path, ["solo"], '[broker]\nwebsocket_origins = ["https://app.example.com"]\n').start()
    try:
        broker = world["solo"]

        async def story(session: aiohttp.ClientSession) -> None:
            address = url(broker, "consumer", topic, "/s")
            assert (await refused(session, address, headers={"Origin": "https://app.example.org"}))[0] == 403
            async with session.ws_connect(address, origin="https://app.example.com") as socket:
                stopping = asyncio.get_running_loop().run_in_executor(None, broker.stop)
                code, reason = await closed(socket)
                assert (code, reason) == (1001, "the broker stops")
                assert await stopping == 0

        tell(story)
    finally:
        world.close()


def test_websockets_can_be_switched_off(tmp_path: Path, topic: str) -> None:
    world = World(tmp_path, ["solo"], "[broker]\nwebsocket = false\n").start()
    try:

        async def story(session: aiohttp.ClientSession) -> None:
            assert (await refused(session, url(world["solo"], "producer", topic)))[0] == 501

        tell(story)
    finally:
        world.close()


# -------------------------------------------------------------------------------------------------------- who may come


def test_who_may_come_and_with_what(secured: Secured) -> None:
    broker = secured.broker
    topic = "persistent://public/default/ws-secured"

    async def story(session: aiohttp.ClientSession) -> None:
        address = url(broker, "producer", topic)
        assert (await refused(session, address))[0] == 401
        assert (await refused(session, f"{address}?token=nonsense"))[0] == 401
        assert (await refused(session, f"{address}?token={token('nobody')}"))[0] == 403
        evil = {"Origin": "https://page.example"}
        async with session.ws_connect(f"{address}?token={token('root')}", headers=evil) as socket:
            await socket.send_json({"payload": payload("m")})
            assert (await got(socket))["result"] == "ok"
        headers = {"Authorization": f"Bearer {token('root')}"}
        async with session.ws_connect(address, headers=headers) as socket:
            await socket.send_json({"payload": payload("m")})
            assert (await got(socket))["result"] == "ok"
        assert (await refused(session, address, headers=headers | evil))[0] == 403

    tell(story)
    assert token("root").rpartition(".")[2] not in broker.log.read_text()


def test_a_token_that_expires_ends_the_websocket(secured: Secured) -> None:
    topic = "persistent://public/default/ws-expires"

    async def story(session: aiohttp.ClientSession) -> None:
        soon = token("root", exp=int(time.time()) + 2)
        async with session.ws_connect(url(secured.broker, "consumer", topic, f"/s?token={soon}")) as socket:
            code, _ = await closed(socket)
            assert code == 1011

    tell(story)
