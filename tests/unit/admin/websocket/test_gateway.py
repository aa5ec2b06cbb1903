"""WebSockets without a network: what a consumer and a producer tell the broker, and what they hold."""

import asyncio
import base64
import json
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from magnetar.admin.http.answers import Answers
from magnetar.admin.websocket.client import BrokerClient
from magnetar.admin.websocket.consumer import ConsumerSocket
from magnetar.admin.websocket.gateway import Gateway
from magnetar.admin.websocket.options import consumer_options, producer_options, reader_options
from magnetar.admin.websocket.outgoing import HIGH_BYTES, Outgoing
from magnetar.admin.websocket.producer import ProducerSocket
from magnetar.admin.websocket.unpacking import CHUNKED_MAX, Unpacker
from magnetar.metadata.errors import Forbidden, PreconditionFailed
from magnetar.runtime.network.in_process import InsideConnection
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build

TOPIC = "persistent://public/default/t"
ACK, FLOW, REDELIVER = 10, 11, 20
Settled = Callable[[], Awaitable[None]]


class Broker:
    """Hears what a WebSocket's client says."""

    def __init__(self, partitions: int = 0) -> None:
        self._partitions = partitions
        self.told: list[pb.BaseCommand] = []
        self.ended = asyncio.Event()
        self.reason = ""
        self.held = False

    async def partitions(self, _topic: str) -> int:
        return self._partitions

    def request_id(self) -> int:
        return 1

    async def ask(self, command: pb.BaseCommand) -> pb.BaseCommand:
        self.told.append(command)
        return pb.BaseCommand(
            type=17, producer_success=pb.CommandProducerSuccess(request_id=1, producer_name="p", last_sequence_id=-1)
        )

    def tell(self, command: pb.BaseCommand, _payload: bytes = b"") -> None:
        self.told.append(command)

    def of(self, kind: int) -> list[Any]:
        """What was said of a kind."""
        field = {ACK: "ack", FLOW: "flow", REDELIVER: "redeliverUnacknowledgedMessages"}[kind]
        return [getattr(command, field) for command in self.told if command.type == kind]

    def permits(self, consumer: int = 0) -> int:
        return sum(flow.messagePermits for flow in self.of(FLOW) if flow.consumer_id == consumer)

    def acked(self) -> list[int]:
        return [place.entryId for ack in self.of(ACK) for place in ack.message_id]


class Page:
    """What a WebSocket is sent."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self.waiting = 0

    def put(self, value: Any) -> None:
        self.texts.append(json.loads(json.dumps(value)))

    def held(self, size: int) -> None:
        self.waiting += size

    async def room(self) -> None:
        pass

    def payloads(self) -> list[str]:
        return [base64.b64decode(text["payload"]).decode() for text in self.texts]


async def beside(work: Callable[..., bytes], *arguments: Any) -> bytes:
    return work(*arguments)


class World:
    """A consumer between a broker and a page."""

    def __init__(self, partitions: int = 0, *, reader: str | None = None, **query: str) -> None:
        self.broker, self.page = Broker(partitions), Page()
        options = consumer_options(query, "s") if reader is None else reader_options({"messageId": reader} | query, "r")
        self.socket = ConsumerSocket(options, TOPIC, beside)

    async def begin(self) -> "World":
        await self.socket.open(cast("BrokerClient", self.broker))
        self.socket.start(cast("Outgoing", self.page))
        return self

    def comes(
        self, entry: int, payload: str | bytes = "x", *, consumer: int = 0, redeliveries: int = 0, **metadata: Any
    ) -> None:
        """The broker sends an entry."""
        fields: dict[str, Any] = {
            "producer_name": "p",
            "sequence_id": entry,
            "publish_time": time.time_ns() // 1_000_000,
        } | metadata
        place = pb.MessageIdData(ledgerId=1, entryId=entry)
        message = pb.CommandMessage(consumer_id=consumer, message_id=place, redelivery_count=redeliveries)
        data = build(pb.MessageMetadata(**fields), payload if isinstance(payload, bytes) else payload.encode())
        self.socket.heard(pb.BaseCommand(type=9, message=message), data)

    def chunk(self, entry: int, number: int, of: int, uuid: str = "u", **metadata: Any) -> None:
        self.comes(
            entry, f"{number}", uuid=uuid, chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of, **metadata
        )

    def batch(self, entry: int, *payloads: str, compression: int = 0) -> None:
        parts = b""
        for payload in payloads:
            single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
            parts += len(single).to_bytes(4, "big") + single + payload.encode()
        fields = {"compression": compression, "uncompressed_size": len(parts)} if compression else {}
        data = zlib.compress(parts) if compression else parts
        self.comes(entry, data, num_messages_in_batch=len(payloads), **fields)

    async def says(self, **what: Any) -> None:
        await self.socket.text(json.dumps(what), cast("Outgoing", self.page))

    async def nacks(self, text: int) -> None:
        await self.says(type="negativeAcknowledge", messageId=self.page.texts[text]["messageId"])

    async def quiet(self) -> None:
        """Let everything that can go on do so."""
        for _ in range(20):
            await asyncio.sleep(0)


async def eventually(check: Callable[[], Any]) -> None:
    """Let others work until something is so."""
    for _ in range(2_000):
        if check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come")


def tell(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


# ------------------------------------------------------------------------------------------------------------------ chunks


def test_all_chunks_of_a_message_come_again_with_it() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared", negativeAckRedeliveryDelay="0").begin()
        for number in range(3):
            world.chunk(number, number, 3)
        await world.quiet()
        assert world.page.payloads() == ["012"]
        await world.nacks(0)
        await eventually(lambda: world.broker.of(REDELIVER))
        assert [place.entryId for place in world.broker.of(REDELIVER)[0].message_ids] == [0, 1, 2]
        for number in range(3):
            world.chunk(number, number, 3)
        await world.quiet()
        assert world.page.payloads() == ["012", "012"] and not world.broker.acked()
        await world.says(messageId=world.page.texts[1]["messageId"])
        assert world.broker.acked() == [0, 1, 2]
        await world.socket.close()

    tell(story())


def test_chunks_that_come_again_are_not_acknowledged_before_their_message() -> None:
    """After an unload the broker sends all of them again: what is acknowledged then is lost to the next consumer."""

    async def story() -> None:
        world = await World().begin()
        world.chunk(0, 0, 3)
        world.chunk(1, 1, 3)
        await world.quiet()
        for number in (0, 1, 1, 2):
            world.chunk(number, number, 3)
        await world.quiet()
        assert world.page.payloads() == ["012"] and not world.broker.acked()
        await world.socket.close()

    tell(story())


def test_a_chunk_whose_first_ones_went_to_another_consumer_is_put_back() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared", negativeAckRedeliveryDelay="0").begin()
        world.chunk(2, 2, 3)
        await eventually(lambda: world.broker.of(REDELIVER))
        assert not world.broker.acked()
        world.chunk(2, 2, 3, publish_time=time.time_ns() // 1_000_000 - 3_600_000)
        await eventually(world.broker.acked)
        assert world.broker.acked() == [2], "it is an hour old: it will never be whole"
        await world.socket.close()

    tell(story())


def test_messages_that_are_put_together_at_a_time_are_bounded_and_none_is_lost() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared", negativeAckRedeliveryDelay="0").begin()
        for number in range(CHUNKED_MAX + 1):
            world.chunk(number, 0, 2, uuid=f"u{number}")
        await eventually(lambda: world.broker.of(REDELIVER))
        assert [place.entryId for place in world.broker.of(REDELIVER)[0].message_ids] == [0]
        assert not world.broker.acked()
        await world.socket.close()

    tell(story())


def test_a_reader_goes_on_before_a_message_of_which_it_has_a_part() -> None:
    async def story() -> None:
        world = await World(reader="earliest").begin()
        world.comes(0, "a")
        world.chunk(1, 0, 2)
        await world.quiet()
        close = pb.CommandCloseConsumer(consumer_id=0, request_id=0)
        world.socket.heard(pb.BaseCommand(type=16, close_consumer=close), b"")
        await eventually(lambda: sum(command.type == 4 for command in world.broker.told) == 2)
        assert world.broker.told[-1].type == FLOW
        again = next(command for command in reversed(world.broker.told) if command.type == 4)
        assert again.subscribe.start_message_id.entryId == 0
        await world.socket.close()

    tell(story())


# ----------------------------------------------------------------------------------------------- acknowledgements and permits


def test_a_negative_acknowledgement_lets_the_next_message_come_at_once() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared", receiverQueueSize="1").begin()
        world.comes(0)
        await world.quiet()
        await world.nacks(0)
        assert world.broker.permits() == 2, "the next one comes a minute later"
        world.comes(1)
        await world.quiet()
        assert len(world.page.texts) == 2
        await world.socket.close()

    tell(story())


def test_negative_acknowledgements_leave_nothing_behind() -> None:
    """A timer for each would hold the WebSocket's messages for as long as the longest of them, after its end, too."""

    async def story() -> None:
        world = await World(negativeAckRedeliveryDelay="86400000").begin()
        world.comes(0)
        await world.quiet()
        loop = asyncio.get_running_loop()
        timers = []
        real = loop.call_later

        def noted(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(real(*arguments, **more))
            return timers[-1]

        loop.call_later = noted  # type: ignore[method-assign, assignment]
        for _ in range(100):
            await world.nacks(0)
        assert len(timers) <= 1
        await world.socket.close()
        assert all(timer.cancelled() for timer in timers)

    tell(story())


def test_what_another_websocket_was_sent_is_acknowledged() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared").begin()
        place = pb.MessageIdData(ledgerId=1, entryId=7)
        await world.says(messageId=base64.b64encode(place.SerializeToString()).decode())
        assert world.broker.acked() == [7]
        assert world.broker.permits() == 1_000, "it takes no permit"
        await world.socket.close()

    tell(story())


def test_a_subscription_that_is_not_kept_is_acknowledged_too() -> None:
    async def story() -> None:
        world = await World(subscriptionType="Shared", subscriptionMode="NonDurable").begin()
        world.comes(3)
        await world.quiet()
        await world.says(messageId=world.page.texts[0]["messageId"])
        assert world.broker.acked() == [3]
        await world.socket.close()

    tell(story())


@pytest.mark.parametrize(("index", "size"), [(1, 0), (5, 5), (0, 1 << 30)])
def test_ids_that_no_batch_has_are_refused(index: int, size: int) -> None:
    async def story() -> None:
        world = await World().begin()
        place = pb.MessageIdData(ledgerId=1, entryId=7, batch_index=index, batch_size=size)
        with pytest.raises(Exception, match="batch"):
            await world.says(messageId=base64.b64encode(place.SerializeToString()).decode())
        await world.socket.close()

    tell(story())


def test_what_an_exclusive_subscription_sends_again_costs_no_permits() -> None:
    """All that is not acknowledged comes again there, when only one message was refused."""

    async def story() -> None:
        world = await World(receiverQueueSize="4", negativeAckRedeliveryDelay="0").begin()
        for entry in range(4):
            world.comes(entry)
        await world.quiet()
        await world.nacks(0)
        await eventually(lambda: world.broker.of(REDELIVER))
        for entry in range(4):
            world.comes(entry, redeliveries=1)
        await world.quiet()
        for number in range(4, 8):
            await world.says(messageId=world.page.texts[number]["messageId"])
            await world.quiet()
        came = 8
        assert world.broker.permits() - came == 4, "a queue's worth of permits is left"
        await world.socket.close()

    tell(story())


def test_what_is_sent_and_not_acknowledged_takes_no_memory_but_for_its_id() -> None:
    async def story() -> None:
        world = await World().begin()
        world.page.put = lambda _value: None  # type: ignore[method-assign, assignment]
        tracemalloc.start()
        try:
            for entry in range(20):
                world.comes(entry, "x" * 1_000_000)
                await world.quiet()
            assert tracemalloc.get_traced_memory()[0] < 4_000_000
        finally:
            tracemalloc.stop()
        assert world.page.waiting == 0
        await world.socket.close()

    tell(story())


# -------------------------------------------------------------------------------------------------------------------- pulling


def test_a_page_that_pulls_gets_all_from_the_partition_that_has_messages() -> None:
    async def story() -> None:
        world = await World(4, pullMode="true").begin()
        await world.says(type="permit", permitMessages=10)
        assert world.broker.permits(2) == 10
        for entry in range(10):
            world.comes(entry, f"{entry}", consumer=2)
        world.comes(0, "more", consumer=1)
        await world.quiet()
        assert world.page.payloads() == [f"{entry}" for entry in range(10)]
        await world.says(type="permit", permitMessages=1)
        await world.quiet()
        assert world.page.payloads()[10:] == ["more"] and world.page.waiting == 0
        await world.socket.close()

    tell(story())


def test_a_batch_is_sent_message_by_message() -> None:
    async def story() -> None:
        world = await World(pullMode="true").begin()
        await world.says(type="permit", permitMessages=2)
        world.batch(0, "a", "b", "c", "d", "e")
        await world.quiet()
        assert world.page.payloads() == ["a", "b"]
        for permits in (1, 2):
            await world.says(type="permit", permitMessages=permits)
            await world.quiet()
        assert world.page.payloads() == ["a", "b", "c", "d", "e"]
        assert world.broker.permits() == 5
        await world.socket.close()

    tell(story())


def test_what_waited_when_the_consumer_was_closed_comes_once() -> None:
    async def story() -> None:
        world = await World(receiverQueueSize="2").begin()
        world.batch(0, "a", "b", "c")
        await world.quiet()
        assert world.page.payloads() == ["a", "b"]
        close = pb.CommandCloseConsumer(consumer_id=0, request_id=0)
        world.socket.heard(pb.BaseCommand(type=16, close_consumer=close), b"")
        await eventually(lambda: world.broker.permits() == 4)
        world.batch(0, "a", "b", "c")
        await world.quiet()
        assert world.page.payloads() == ["a", "b", "a", "b"]
        await world.says(messageId=world.page.texts[2]["messageId"])
        await world.quiet()
        assert world.page.payloads()[4:] == ["c"] and world.page.waiting == 0
        await world.socket.close()

    tell(story())


def test_memory_that_all_share_does_not_wait_for_permits() -> None:
    async def story() -> None:
        answers = Answers()
        world = World(pullMode="true")
        world.socket._hold = answers.hold
        world.page.written = asyncio.Event().wait  # type: ignore[attr-defined]
        await world.begin()
        big = "x" * (600 << 10)
        await world.says(type="permit", permitMessages=1)
        world.batch(0, big, big, compression=2)
        world.batch(1, big, big, compression=2)
        await eventually(lambda: len(world.page.texts) == 2)
        assert answers.held, "until it is written"
        await world.quiet()
        assert len(world.page.texts) == 2
        await world.socket.close()
        assert not answers.held
        answers.close()

    tell(story())


# -------------------------------------------------------------------------------------------------------------- failures


def test_what_only_this_broker_cannot_open_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: Any) -> bytes:
        raise PreconditionFailed("ZSTD needs pyarrow: pip install 'magnetar[spark]'")

    monkeypatch.setattr("magnetar.admin.websocket.unpacking.decompress", missing)

    async def story() -> None:
        world = await World().begin()
        world.comes(0, compression=3, uncompressed_size=1)
        await world.quiet()
        assert not world.broker.acked()
        assert world.socket.failed.is_set() and "pyarrow" in world.socket.reason
        await world.socket.close()

    tell(story())


def test_a_mistake_ends_the_websocket_and_does_not_leave_it_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: Any) -> list[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(Unpacker, "messages", broken)

    async def story() -> None:
        world = await World().begin()
        world.comes(0)
        await world.quiet()
        assert world.socket.failed.is_set() and world.socket.reason
        await world.socket.close()

    tell(story())


@pytest.mark.parametrize("text", ['{"x":' + "[" * 100_000, '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_deep_json_is_refused_as_json(text: str) -> None:
    async def story() -> None:
        world = await World().begin()
        with pytest.raises(Exception, match="command of a consumer"):
            await world.socket.text(text, cast("Outgoing", world.page))
        await world.socket.close()
        page, _ = await published(text)
        assert page.texts[0]["result"] == "send-error:3"

    tell(story())


# ------------------------------------------------------------------------------------------------------------- producing


async def published(text: str) -> tuple[Page, list[pb.MessageMetadata]]:
    """What a producer answers at once, and the metadata of what it publishes."""
    sent: list[pb.MessageMetadata] = []
    page, broker = Page(), Broker()
    producer = ProducerSocket(producer_options({}), TOPIC, lambda: 1_000)
    await producer.open(cast("BrokerClient", broker))
    publisher = producer._publisher
    assert publisher is not None
    real = publisher.publish
    publisher.publish = lambda metadata, payload: sent.append(metadata) or real(metadata, payload)  # type: ignore[method-assign,func-returns-value]
    await producer.text(text, cast("Outgoing", page))
    for command in broker.told:
        if command.type == 6:
            place = pb.MessageIdData(ledgerId=1, entryId=0)
            receipt = pb.CommandSendReceipt(producer_id=0, sequence_id=command.send.sequence_id, message_id=place)
            producer.heard(pb.BaseCommand(type=7, send_receipt=receipt), b"")
    for _ in range(5):
        await asyncio.sleep(0)
    await producer.close()
    return page, sent


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"context": 5}, {}),
        ({"context": "5", "properties": None, "key": None, "replicationClusters": None, "eventTime": None}, {}),
        ({"context": 5, "deliverAt": None, "deliverAfterMs": None, "disableReplication": None}, {}),
        ({"context": "5", "properties": {"a": 1, "b": True}}, {"properties": {"a": "1", "b": "true"}}),
        ({"context": "5", "key": 7}, {"partition_key": "7"}),
        ({"context": "5", "eventTime": 5000}, {"event_time": 5000}),
        ({"context": "5", "eventTime": "5000"}, {"event_time": 5000}),
        ({"context": "5", "eventTime": "2016-08-30T16:45:57.785Z"}, {"event_time": 1472575557785}),
        ({"context": "5", "eventTime": "2016-08-30T18:45:57.785+02:00"}, {"event_time": 1472575557785}),
        ({"context": "5", "deliverAfterMs": "7"}, {"deliver_at_time": 1007}),
        ({"context": "5", "payload": "eA"}, {}),
    ],
)
def test_what_clients_of_pulsar_send_is_taken(said: dict[str, Any], found: dict[str, Any]) -> None:
    async def story() -> None:
        page, sent = await published(json.dumps({"payload": "eA=="} | said))
        assert page.texts[0]["result"] == "ok" and page.texts[0]["context"] == "5"
        for key, value in found.items():
            got = getattr(sent[0], key)
            assert ({pair.key: pair.value for pair in got} if key == "properties" else got) == value

    tell(story())


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ({"payload": None}, 7),
        ({}, 7),
        ({"payload": "", "eventTime": "soon"}, 7),
        ({"payload": "", "eventTime": "2016-08-30T"}, 7),
        ({"payload": "", "properties": {"a": None}}, 3),
        ({"payload": "", "properties": {"a": ["b"]}}, 3),
        ({"payload": "", "context": {}}, 3),
    ],
)
def test_what_pulsar_refuses_is_refused_with_its_numbers(said: dict[str, Any], result: int) -> None:
    async def story() -> None:
        page, sent = await published(json.dumps(said))
        assert page.texts[0]["result"] == f"send-error:{result}" and not sent

    tell(story())


class Stuck:
    """A WebSocket whose client reads nothing."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.sent = 0

    async def send_str(self, _text: str) -> None:
        await self.reads.wait()
        self.sent += 1


def test_answers_that_are_not_read_stop_what_is_asked() -> None:
    async def story() -> None:
        socket = Stuck()
        outgoing = Outgoing(cast("web.WebSocketResponse", socket), lambda _writable: None)
        producer = ProducerSocket(producer_options({}), TOPIC, lambda: 0)
        await producer.open(cast("BrokerClient", Broker()))
        wrong = json.dumps({"payload": "?", "context": "x" * 100_000})
        count = 0

        async def send() -> None:
            nonlocal count
            for _ in range(1_000):
                await producer.text(wrong, outgoing)
                count += 1

        sending = asyncio.ensure_future(send())
        await asyncio.sleep(0.05)
        assert count * 100_000 < 2 * HIGH_BYTES
        socket.reads.set()
        await sending
        assert count == 1_000
        await outgoing.close()
        await producer.close()

    tell(story())


def test_routing_and_limits_without_and_beyond_their_parameters() -> None:
    assert producer_options({}).single
    assert producer_options({"messageRoutingMode": "CustomPartition"}).single
    assert not producer_options({"messageRoutingMode": "RoundRobinPartition"}).single
    assert producer_options({"maxPendingMessages": "50000"}).pending_max == 10_000
    assert consumer_options({"receiverQueueSize": "50000"}, "s").queue == 10_000


# ------------------------------------------------------------------------------------------------------------- the gateway


def gateway(*, tokens: bool) -> Gateway:
    return Gateway(cast("Any", None), Answers(), lambda: 0, 1_000, (), certificates=False, tokens=tokens)


def test_a_token_opens_the_door_to_other_sites_only_where_it_is_checked() -> None:
    """Without authentication any page would bring one, and reach a broker behind a firewall by its visitor's browser."""
    headers = {"Origin": "https://evil.example", "Host": "localhost:8080"}
    request = make_mocked_request("GET", "/ws/v2/producer/persistent/a/b/c?token=x", headers=headers)
    gateway(tokens=True)._check_origin(request)
    with pytest.raises(Forbidden, match="websocket_origins"):
        gateway(tokens=False)._check_origin(request)


def test_a_broker_that_stops_waits_for_mute_clients_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.websocket.gateway.GOODBYE_S", 0.05)
    ended = []

    class Mute:
        async def close(self, **_how: Any) -> None:
            await asyncio.Event().wait()

    class Opening:
        def close(self) -> None:
            ended.append(1)

    async def story() -> None:
        found = gateway(tokens=False)
        found.open.update(cast("Any", Mute()) for _ in range(100))
        found.opening.add(cast("Any", Opening()))
        async with asyncio.timeout(3):
            await found.shut_down(cast("Any", None))
        assert ended == [1]

    tell(story())


def test_a_client_inside_the_process_that_makes_a_mistake_ends_alone() -> None:
    """What the broker sends is handed over inside its own work: an error there would be taken for its own and stop it."""
    ran: list[Any] = []

    class Driver:
        def attach(self, *_arguments: Any) -> None:
            pass

        def detach(self, *_arguments: Any) -> None:
            pass

        def run(self, event: Any, *_arguments: Any) -> None:
            ran.append(event)

    class Machine:
        connected, disconnected = "connected", "disconnected"

    def broken(*_arguments: Any) -> None:
        raise IndexError

    reasons: list[str] = []
    connection = InsideConnection(cast("Any", Driver()), cast("Any", Machine()), 1, broken, reasons.append)
    connection.open("address:1", "", tls=False)
    connection.send([commands.ping()])
    assert ran == ["connected", "disconnected"] and len(reasons) == 1


def test_a_client_that_goes_while_its_websocket_is_opened_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_arguments: Any) -> None:
        raise ConnectionResetError("Connection lost")

    async def nothing(*_arguments: Any) -> None:
        pass

    monkeypatch.setattr(web.WebSocketResponse, "prepare", gone)
    monkeypatch.setattr(Gateway, "_connect", nothing)
    closed: list[int] = []

    class Connection:
        on_free = None
        held = False

        def end(self) -> None:
            closed.append(1)

    class Endpoint:
        reason = ""
        failed = asyncio.Event()
        heard = open = close = staticmethod(nothing)

    async def story() -> None:
        found = Gateway(
            cast("Any", lambda *_: Connection()), Answers(), lambda: 0, 1_000, (), certificates=False, tokens=False
        )
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(b"0" * 16).decode(),
        }
        request = make_mocked_request("GET", "/ws/v2/producer/persistent/a/b/c", headers=headers)
        answer = await found._serve(request, cast("Any", Endpoint()))
        assert answer.status == 503 and closed == [1] and not found.opening

    tell(story())
