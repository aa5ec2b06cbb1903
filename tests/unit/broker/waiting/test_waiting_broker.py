"""A waiting broker, frame by frame: who is let in, where look-ups lead, what is relayed and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.security.credentials import Keys
from magnetar.broker.waiting.broker import WaitingBroker
from magnetar.broker.waiting.look_ups import HELD_MS, LOOK_MS
from magnetar.broker.waiting.registration import Brokers, ListenerAddresses, Registration
from magnetar.broker.waiting.session import WAITING_BYTES_MAX, WAITING_MAX, Answered
from magnetar.broker.waiting.takeover import Takeover
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.security import AuthenticationConfig, Security
from magnetar.core.settings import BrokerConfig
from magnetar.effects.outbox import Close, FrameLimit, Hold, Outbox, Send
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD, NO_REQUEST
from magnetar.wire.frame import Frame, Refused
from magnetar.wire.frames import FrameDecoder
from magnetar_sim.host.host import Host

A = Registration(
    broker="a",
    pulsar="pulsar://a:6650",
    pulsar_tls="pulsar+ssl://a:6651",
    listeners={"outside": ListenerAddresses(pulsar="pulsar://outside:1")},
)
B = Registration(broker="b", pulsar="pulsar://b:6650")
TOPIC = "persistent://public/default/t"
SECRET = b"s" * 32
STATE = "broker b of cluster one waits to take over; broker a serves at pulsar://a:6650"


class Asked:
    """A relayed request."""

    def __init__(self, connection: int, serving: Registration, connect: Any, command: Any, tls: bool) -> None:
        self.connection, self.serving, self.command, self.tls = connection, serving, command, tls
        self.connect = pb.CommandConnect()
        self.connect.CopyFrom(connect)


class FakeRelay:
    """Keeps what is asked; the test answers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.waiting: list[Answered] = []
        self.forgotten: list[int] = []
        self.held: list[tuple[int, bool]] = []

    def ask(
        self,
        connection: int,
        serving: Registration,
        connect: pb.CommandConnect,
        command: pb.BaseCommand,
        answered: Answered,
        *,
        tls: bool,
    ) -> None:
        self.asked.append(Asked(connection, serving, connect, command, tls))
        self.waiting.append(answered)

    def forget(self, connection: int) -> None:
        self.forgotten.append(connection)

    def hold(self, connection: int, hold: bool) -> None:
        self.held.append((connection, hold))


class FakeReach:
    """Every broker accepts connections, or none; with `later` the test says when that is known."""

    def __init__(self) -> None:
        self.reachable = True
        self.later = False
        self.asked: list[str] = []
        self.waiting: list[Callable[[bool], None]] = []

    def reach(self, url: str, reached: Callable[[bool], None]) -> None:
        self.asked.append(url)
        if self.later:
            self.waiting.append(reached)
        else:
            reached(self.reachable)


class Waiting:
    """A waiting broker b with one client, whose frames and effects are looked at."""

    def __init__(self, security: Security = Security(), keys: Keys = Keys()) -> None:  # noqa: B008 - immutable
        self.outbox = Outbox(now_ms=1_000_000)
        self.relay = FakeRelay()
        self.reach = FakeReach()
        self.takeover = Takeover("one", B)
        self.broker = WaitingBroker(
            self.outbox, BrokerConfig(), security, keys, b"link-secret", self.takeover, self.relay, self.reach
        )
        self.decoder = FrameDecoder()
        self.sent: list[Any] = []
        self.closed: list[str] = []
        self.holds: list[bool] = []
        self.limits: list[FrameLimit] = []
        self.host = Host(
            self.outbox,
            {
                Send: self._send,
                Close: lambda effect: self.closed.append(effect.reason),
                Hold: lambda effect: self.holds.append(effect.hold),
                FrameLimit: self.limits.append,
            },
        )

    def _send(self, effect: Send) -> None:
        self.sent += [frame.command for frame in self.decoder.feed(b"".join(map(bytes, effect.buffers)))]

    def serve(self, serving: Registration | None, *others: Registration) -> None:
        """A broker serves."""
        self.host.run(self.broker.seen, Brokers(serving, (B, *others)))

    def join(self, *, certificate: str = "", tls: bool = False, **connect: Any) -> list[Any]:
        """A client connects and presents this; what it is answered."""
        self.host.run(self.broker.connected, 1, "10.0.0.9:4000", certificate, tls)
        fields = {"client_version": "test", "protocol_version": 21} | connect
        return self.tell(pb.BaseCommand(type=pb.CONNECT, connect=pb.CommandConnect(**fields)))

    def tell(self, command: pb.BaseCommand) -> list[Any]:
        """The client sends a command; the answers."""
        return self.hear(Frame(command, b""))

    def hear(self, frame: Frame) -> list[Any]:
        """A frame comes; the answers."""
        self.host.run(self.broker.frames, 1, [frame])
        return self.answers()

    def relayed(self, number: int, answer: pb.BaseCommand | BrokerError) -> list[Any]:
        """A relayed request is answered; what the client gets."""
        self.host.run(self.relay.waiting[number], answer)
        return self.answers()

    def after(self, ms: int) -> list[Any]:
        """Time passes; what the client gets meanwhile."""
        self.host.advance(self.outbox.now_ms + ms)
        return self.answers()

    def answers(self) -> list[Any]:
        """What was sent since the last look."""
        found, self.sent = self.sent, []
        return found


@pytest.fixture
def waiting() -> Waiting:
    """Broker b; a serves, and a client is connected."""
    made = Waiting()
    made.serve(A, A)
    (connected,) = made.join()
    assert connected.type == pb.CONNECTED
    return made


def command(kind: int, **fields: dict[str, Any]) -> pb.BaseCommand:
    """A command with its fields."""
    return pb.BaseCommand(type=kind, **fields)


def look_up(listener: str = "", topic: str = TOPIC) -> pb.BaseCommand:
    """LOOKUP."""
    return command(
        pb.LOOKUP, lookupTopic={"topic": topic, "request_id": 7, "advertised_listener_name": listener or None}
    )


def partitions(request_id: int = 8) -> pb.BaseCommand:
    """PARTITIONED_METADATA."""
    return command(pb.PARTITIONED_METADATA, partitionMetadata={"topic": TOPIC, "request_id": request_id})


# -------------------------------------------------------------------------------------------------------------- look-ups


def test_a_look_up_leads_to_the_broker_that_serves(waiting: Waiting) -> None:
    (answer,) = waiting.tell(look_up())
    response = answer.lookupTopicResponse
    assert answer.type == pb.LOOKUP_RESPONSE
    assert response.response == 0, "Redirect"
    assert (response.request_id, response.authoritative) == (7, True)
    assert (response.brokerServiceUrl, response.brokerServiceUrlTls) == ("pulsar://a:6650", "pulsar+ssl://a:6651")


def test_a_look_up_by_a_listener_leads_to_its_address(waiting: Waiting) -> None:
    (answer,) = waiting.tell(look_up("outside"))
    assert answer.lookupTopicResponse.brokerServiceUrl == "pulsar://outside:1"
    assert not answer.lookupTopicResponse.HasField("brokerServiceUrlTls")


def test_a_listener_that_the_serving_broker_has_not_is_refused_for_good(waiting: Waiting) -> None:
    (answer,) = waiting.tell(look_up("inside"))
    assert answer.lookupTopicResponse.error == ErrorCode.NOT_ALLOWED
    assert answer.lookupTopicResponse.message == "listener 'inside' is not one of broker a, which serves (outside)"


def test_a_look_up_of_no_topic_is_refused_for_good(waiting: Waiting) -> None:
    (answer,) = waiting.tell(look_up(topic="persistent://x"))
    assert answer.lookupTopicResponse.error == ErrorCode.INVALID_TOPIC_NAME


def redirected_to(answer: Any) -> str:
    """Where the answer to a look-up leads; "": it is refused."""
    response = answer.lookupTopicResponse
    return str(response.brokerServiceUrl) if response.response == 0 else ""


def test_a_serving_broker_without_an_address_is_a_reason_to_look_up_again(waiting: Waiting) -> None:
    waiting.serve(Registration(broker="a"))
    (answer,) = waiting.tell(look_up())
    response = answer.lookupTopicResponse
    assert (response.response, response.error, response.message) == (
        2,
        ErrorCode.METADATA,
        "broker b of cluster one waits to take over; broker a serves, but its record has no address for clients",
    )


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        (None, "broker b of cluster one waits to take over; no broker serves yet"),
        (B, "broker b of cluster one takes over: it recovers the log"),
    ],
)
def test_while_no_broker_serves_look_ups_are_held_and_refused_at_last(
    waiting: Waiting, serving: Registration | None, message: str
) -> None:
    waiting.serve(serving)
    assert waiting.tell(look_up()) == []
    assert waiting.after(HELD_MS - LOOK_MS) == []
    (answer,) = waiting.after(LOOK_MS)
    response = answer.lookupTopicResponse
    assert (response.response, response.error, response.message) == (2, ErrorCode.METADATA, message)
    assert waiting.after(HELD_MS) == []


def test_a_held_look_up_leads_to_the_next_broker_that_serves(waiting: Waiting) -> None:
    waiting.serve(None)
    assert waiting.tell(look_up()) == []
    waiting.serve(Registration(broker="c", pulsar="pulsar://c:6650"))
    assert [redirected_to(answer) for answer in waiting.answers()] == ["pulsar://c:6650"]
    assert waiting.after(HELD_MS) == []


def test_a_serving_broker_that_accepts_no_connection_is_named_to_no_client(waiting: Waiting) -> None:
    """It was killed, and its session lasts some seconds more."""
    waiting.reach.reachable = False
    assert waiting.tell(look_up()) == []
    assert waiting.after(LOOK_MS) == []
    assert waiting.reach.asked == ["pulsar://a:6650"] * 2
    waiting.reach.reachable = True  # it was away for a moment
    assert [redirected_to(answer) for answer in waiting.after(LOOK_MS)] == ["pulsar://a:6650"]


def test_the_serving_broker_may_change_while_it_is_tried(waiting: Waiting) -> None:
    waiting.reach.later = True
    assert waiting.tell(look_up()) == []
    waiting.serve(Registration(broker="c", pulsar="pulsar://c:6650"))
    waiting.host.run(waiting.reach.waiting.pop(), True)
    assert waiting.answers() == []
    waiting.host.run(waiting.reach.waiting.pop(), True)
    assert [redirected_to(answer) for answer in waiting.answers()] == ["pulsar://c:6650"]


def test_look_ups_of_a_client_that_is_gone_are_forgotten(waiting: Waiting) -> None:
    waiting.serve(None)
    waiting.tell(look_up())
    waiting.serve(A)
    waiting.reach.later = True
    waiting.answers()
    waiting.tell(look_up())
    waiting.host.run(waiting.broker.disconnected, 1)
    waiting.host.run(waiting.reach.waiting.pop(), True)
    assert waiting.after(HELD_MS) == []


def test_the_end_of_one_client_does_not_go_through_the_look_ups_of_all(waiting: Waiting) -> None:
    """When this broker begins to serve, thousands of clients end here in one turn of the loop, each with a look-up."""
    waiting.serve(None)
    for number in (2, 3, 4):
        waiting.host.run(waiting.broker.connected, number, f"10.0.0.9:{number}")
        connect = pb.BaseCommand(type=pb.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=21))
        waiting.host.run(waiting.broker.frames, number, [Frame(connect, b""), Frame(look_up(), b"")])
    held = waiting.broker._look_ups._held
    assert len(held) == 3
    waiting.host.run(waiting.broker.disconnected, 2)
    assert waiting.broker._look_ups._held is held, "not made again for each"
    assert len(held) == 2


def test_too_many_held_look_ups_stop_the_socket(waiting: Waiting) -> None:
    waiting.serve(None)
    for _ in range(WAITING_MAX):
        waiting.tell(look_up())
    assert waiting.holds == []
    waiting.tell(look_up())
    assert waiting.holds == [True]
    waiting.serve(A)
    assert waiting.holds == [True, False]
    assert len(waiting.answers()) == WAITING_MAX + 1


def test_each_change_of_the_serving_broker_is_one_line(waiting: Waiting) -> None:
    waiting.serve(A, A)
    waiting.serve(A, A, Registration(broker="c"))
    waiting.serve(None)
    waiting.serve(B)
    assert [note.text for note in waiting.host.notes] == [
        STATE,
        "broker b of cluster one waits to take over; no broker serves yet",
        "broker b of cluster one takes over: it recovers the log",
    ]


# ----------------------------------------------------------------------------------------------------- refused requests


@pytest.mark.parametrize(
    "asked",
    [
        command(pb.PRODUCER, producer={"topic": TOPIC, "producer_id": 1, "request_id": 9}),
        command(
            pb.SUBSCRIBE,
            subscribe={"topic": TOPIC, "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 9},
        ),
        command(pb.UNSUBSCRIBE, unsubscribe={"consumer_id": 1, "request_id": 9}),
        command(pb.SEEK, seek={"consumer_id": 1, "request_id": 9}),
        command(pb.GET_LAST_MESSAGE_ID, getLastMessageId={"consumer_id": 1, "request_id": 9}),
        command(
            pb.WATCH_TOPIC_LIST,
            watchTopicList={
                "namespace": "public/default",
                "topics_pattern": ".*",
                "watcher_id": 1,
                "request_id": 9,
            },
        ),
    ],
    ids=lambda asked: str(asked.ListFields()[1][0].name),
)
def test_what_only_the_serving_broker_can_do_is_refused_until_later(waiting: Waiting, asked: pb.BaseCommand) -> None:
    (answer,) = waiting.tell(asked)
    assert answer.type == pb.ERROR
    assert (answer.error.request_id, answer.error.error) == (9, ErrorCode.SERVICE_NOT_READY)
    assert answer.error.message == STATE


def test_refusals_have_the_type_that_the_client_waits_for(waiting: Waiting) -> None:
    (stats,) = waiting.tell(command(pb.CONSUMER_STATS, consumerStats={"consumer_id": 1, "request_id": 9}))
    assert (stats.type, stats.consumerStatsResponse.error_code) == (
        pb.CONSUMER_STATS_RESPONSE,
        ErrorCode.SERVICE_NOT_READY,
    )
    schema = {"name": "s", "schema_data": b"", "type": 0}
    (made,) = waiting.tell(
        command(pb.GET_OR_CREATE_SCHEMA, getOrCreateSchema={"topic": TOPIC, "request_id": 9, "schema": schema})
    )
    assert made.getOrCreateSchemaResponse.error_code == ErrorCode.SERVICE_NOT_READY
    ids = [{"ledgerId": 1, "entryId": 1}]
    (ack,) = waiting.tell(command(pb.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids, "request_id": 9}))
    assert (ack.type, ack.ackResponse.error) == (pb.ACK_RESPONSE, ErrorCode.SERVICE_NOT_READY)


def test_transactions_are_refused_as_by_a_broker_that_serves(waiting: Waiting) -> None:
    (answer,) = waiting.tell(command(pb.NEW_TXN, newTxn={"request_id": 9, "tc_id": 3}))
    assert (answer.type, answer.newTxnResponse.error) == (pb.NEW_TXN_RESPONSE, ErrorCode.NOT_ALLOWED)
    assert answer.newTxnResponse.txnid_most_bits == 3


def test_what_has_no_answer_is_ignored(waiting: Waiting) -> None:
    ids = [{"ledgerId": 1, "entryId": 1}]
    assert waiting.tell(command(pb.FLOW, flow={"consumer_id": 1, "messagePermits": 5})) == []
    assert waiting.tell(command(pb.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids})) == []
    assert (
        waiting.tell(command(pb.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages={"consumer_id": 1}))
        == []
    )
    assert waiting.tell(command(pb.PONG, pong={})) == []
    assert waiting.closed == []


def test_pings_are_answered(waiting: Waiting) -> None:
    (answer,) = waiting.tell(command(pb.PING, ping={}))
    assert answer.type == pb.PONG


def test_what_is_not_open_can_be_closed(waiting: Waiting) -> None:
    (answer,) = waiting.tell(command(pb.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 9}))
    assert (answer.type, answer.success.request_id) == (pb.SUCCESS, 9)


@pytest.mark.parametrize(
    "asked",
    [
        command(pb.SEND, send={"producer_id": 1, "sequence_id": 0}),
        command(pb.SUCCESS, success={"request_id": 1}),
        command(pb.CONNECT, connect={"client_version": "x"}),
        command(pb.AUTH_RESPONSE, authResponse={}),
    ],
    ids=lambda asked: str(asked.ListFields()[1][0].name),
)
def test_what_breaks_the_protocol_ends_the_connection(waiting: Waiting, asked: pb.BaseCommand) -> None:
    assert waiting.tell(asked) == []
    (closed,) = waiting.closed
    assert closed.startswith("broke the protocol: ")
    assert waiting.relay.forgotten == [1]


def test_link_commands_of_a_client_are_refused(waiting: Waiting) -> None:
    (answer,) = waiting.tell(command(pb.GEO_TOPICS, geo_topics={"request_id": 9, "to": "x"}))
    assert answer.error.error == ErrorCode.NOT_ALLOWED


def test_a_command_over_a_limit_is_refused_and_the_connection_stays(waiting: Waiting) -> None:
    asked = command(pb.SUBSCRIBE, subscribe={"topic": "", "subscription": "", "subType": 0, "request_id": 9})
    (answer,) = waiting.hear(Refused(asked, b"too large"))
    assert (answer.error.error, answer.error.message) == (
        ErrorCode.NOT_ALLOWED,
        "the command is refused: too large",
    )
    assert waiting.closed == []


# --------------------------------------------------------------------------------------------------------------- relay


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            partitions(8),
            command(pb.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse={"partitions": 3, "request_id": 1}),
        ),
        (
            command(pb.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace={"namespace": "public/default", "request_id": 8}),
            command(
                pb.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                getTopicsOfNamespaceResponse={"topics": [TOPIC], "request_id": 1},
            ),
        ),
        (
            command(pb.GET_SCHEMA, getSchema={"topic": TOPIC, "request_id": 8}),
            command(pb.GET_SCHEMA_RESPONSE, getSchemaResponse={"request_id": 1, "error_code": 11}),
        ),
        (
            partitions(8),
            command(pb.ERROR, error={"request_id": 1, "error": 4, "message": "no permission"}),
        ),
    ],
    ids=["partitions", "topics", "schema", "refused"],
)
def test_what_cannot_be_redirected_is_answered_by_the_serving_broker(
    waiting: Waiting, asked: pb.BaseCommand, answer: pb.BaseCommand
) -> None:
    assert waiting.tell(asked) == []
    (relayed,) = waiting.relay.asked
    assert (relayed.connection, relayed.serving, relayed.tls) == (1, A, False)
    assert relayed.command == asked
    assert relayed.command is not asked, "its request id is changed there"
    (got,) = waiting.relayed(0, answer)
    assert got.type == answer.type
    field = got.ListFields()[1]
    assert field[1].request_id == 8


@pytest.mark.parametrize("serving", [None, B])
def test_nothing_is_relayed_while_no_broker_serves(waiting: Waiting, serving: Registration | None) -> None:
    waiting.serve(serving)
    (answer,) = waiting.tell(partitions())
    assert answer.partitionMetadataResponse.error == ErrorCode.METADATA
    (answer,) = waiting.tell(command(pb.GET_SCHEMA, getSchema={"topic": TOPIC, "request_id": 8}))
    assert answer.getSchemaResponse.error_code == ErrorCode.SERVICE_NOT_READY
    assert waiting.relay.asked == []


def test_a_serving_broker_that_does_not_answer_is_a_reason_to_try_again(waiting: Waiting) -> None:
    waiting.tell(partitions())
    (answer,) = waiting.relayed(0, BrokerError(ErrorCode.SERVICE_NOT_READY, "broker a does not answer"))
    response = answer.partitionMetadataResponse
    assert (response.response, response.error, response.message) == (1, ErrorCode.METADATA, "broker a does not answer")


def test_too_many_relayed_requests_stop_the_socket(waiting: Waiting) -> None:
    for number in range(WAITING_MAX):
        waiting.tell(partitions(number))
    assert waiting.holds == []
    waiting.tell(partitions(WAITING_MAX))
    assert waiting.holds == [True]
    waiting.relayed(0, BrokerError(ErrorCode.METADATA, "x"))
    assert waiting.holds == [True, False]


def test_large_relayed_requests_stop_the_socket(waiting: Waiting) -> None:
    waiting.tell(
        command(pb.PARTITIONED_METADATA, partitionMetadata={"topic": "x" * WAITING_BYTES_MAX, "request_id": 8})
    )
    assert waiting.holds == [True]


def test_a_client_that_reads_nothing_is_not_heard(waiting: Waiting) -> None:
    waiting.host.run(waiting.broker.writable, 1, False)
    assert waiting.holds == [True]
    assert waiting.relay.held == [(1, True)]
    waiting.host.run(waiting.broker.writable, 1, True)
    assert waiting.relay.held == [(1, True), (1, False)]


def test_an_answer_after_the_end_goes_nowhere(waiting: Waiting) -> None:
    waiting.tell(partitions())
    waiting.host.run(waiting.broker.disconnected, 1)
    assert waiting.relay.forgotten == [1]
    assert waiting.relayed(0, BrokerError(ErrorCode.METADATA, "x")) == []
    assert (waiting.broker.counters.made, waiting.broker.counters.let_in, waiting.broker.counters.ended) == (1, 1, 1)


# ----------------------------------------------------------------------------------------------------- it serves itself


def test_what_another_broker_has_to_hear_are_connect_and_the_requests_without_an_answer(waiting: Waiting) -> None:
    waiting.tell(partitions())
    waiting.serve(None)
    waiting.tell(look_up())
    asked = [frame.command for frame in waiting.broker.to_repeat(1)]
    assert asked[0].type == pb.CONNECT
    assert asked[0].connect.client_version == "test"
    assert asked[1:] == [partitions(), look_up()]
    waiting.relayed(0, BrokerError(ErrorCode.METADATA, "x"))
    assert [frame.command for frame in waiting.broker.to_repeat(1)][1:] == [look_up()]
    waiting.serve(A, A)
    assert [frame.command.type for frame in waiting.broker.to_repeat(1)] == [pb.CONNECT], "each was answered"


def test_of_whom_was_not_let_in_or_is_gone_nothing_is_repeated(waiting: Waiting) -> None:
    assert waiting.broker.to_repeat(2) == []
    waiting.host.run(waiting.broker.connected, 2, "10.0.0.9:4001")
    assert waiting.broker.to_repeat(2) == []
    waiting.host.run(waiting.broker.disconnected, 1)
    assert waiting.broker.to_repeat(1) == []


def test_connect_is_repeated_with_all_that_the_client_presented() -> None:
    waiting = secured()
    waiting.join(
        auth_method_name="token",
        auth_data=token("app"),
        proxy_to_broker_url="x:1",
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    connect = waiting.broker.to_repeat(1)[0].command.connect
    assert (connect.proxy_to_broker_url, connect.auth_data) == ("x:1", token("app"))
    assert connect.feature_flags.supports_auth_refresh


def test_a_client_that_is_asked_for_a_new_token_is_not_repeated_until_that_is_accepted() -> None:
    """The broker that serves would not know of the question, and take the answer for a broken protocol."""
    waiting = secured()
    ends_s = waiting.outbox.now_ms // 1000 + 100
    waiting.join(
        auth_method_name="token",
        auth_data=token("app", exp=ends_s),
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    assert waiting.broker.to_repeat(1) != []
    (asked,) = waiting.after(99_000)
    assert asked.type == pb.AUTH_CHALLENGE
    assert waiting.broker.to_repeat(1) == []
    fresh = token("app", exp=ends_s + 100)
    response = {"response": {"auth_method_name": "token", "auth_data": fresh}}
    assert waiting.tell(command(pb.AUTH_RESPONSE, authResponse=response)) == []
    (connect,) = waiting.broker.to_repeat(1)
    assert connect.command.connect.auth_data == fresh


# -------------------------------------------------------------------------------------------------------------- CONNECT


def test_a_client_without_connect_is_closed_in_time() -> None:
    waiting = Waiting()
    waiting.host.run(waiting.broker.connected, 1, "10.0.0.9:4000")
    waiting.host.advance(waiting.outbox.now_ms + BrokerConfig().handshake_ms_max - 1)
    assert waiting.closed == []
    waiting.host.advance(waiting.outbox.now_ms + 1)
    assert waiting.closed == ["no CONNECT within 10000 ms"]
    assert waiting.broker.counters.failed == 1


def test_frames_before_connect_are_small_and_later_ones_are_commands() -> None:
    waiting = Waiting()
    waiting.join()
    (limit,) = waiting.limits
    assert limit.command_bytes_max == BrokerConfig().command_bytes_max
    assert not limit.link


def test_a_link_is_sent_to_another_address() -> None:
    waiting = Waiting()
    waiting.serve(A, A)
    (refused,) = waiting.join(auth_method_name=LINK_AUTH_METHOD, auth_data=b"link-secret")
    assert (refused.type, refused.error.request_id) == (pb.ERROR, NO_REQUEST)
    assert (refused.error.error, refused.error.message) == (ErrorCode.SERVICE_NOT_READY, STATE)
    assert waiting.closed == [""], "it comes again and again: no line for each"


def test_a_link_with_a_wrong_secret_is_refused_as_always() -> None:
    waiting = Waiting()
    waiting.serve(A, A)
    (refused,) = waiting.join(auth_method_name=LINK_AUTH_METHOD, auth_data=b"wrong")
    assert refused.error.error == ErrorCode.AUTHENTICATION
    waiting = Waiting()
    waiting.broker.new_link_token(b"new")
    (refused,) = waiting.join(auth_method_name=LINK_AUTH_METHOD, auth_data=b"new")
    assert refused.error.error == ErrorCode.SERVICE_NOT_READY


def secured() -> Waiting:
    """With tokens and certificates."""
    made = Waiting(
        Security(authentication=AuthenticationConfig(methods=["token", "tls"], secret_key_files=["key"])),
        Keys(secrets=(SECRET,)),
    )
    made.serve(A, A)
    return made


def token(role: str, **claims: int) -> bytes:
    """A token of a role."""
    import jwt

    return jwt.encode({"sub": role, **claims}, SECRET, algorithm="HS256").encode()


def test_with_authentication_credentials_are_checked_here() -> None:
    (refused,) = secured().join(auth_method_name="token", auth_data=b"nonsense")
    assert (refused.type, refused.error.error) == (pb.ERROR, ErrorCode.AUTHENTICATION)
    (refused,) = secured().join()
    assert refused.error.error == ErrorCode.AUTHENTICATION
    (connected,) = secured().join(auth_method_name="token", auth_data=token("app"))
    assert connected.type == pb.CONNECTED


def test_every_role_may_come_as_a_link_because_permissions_are_known_elsewhere() -> None:
    (refused,) = secured().join(auth_method_name=LINK_AUTH_METHOD, auth_data=token("link"))
    assert refused.error.error == ErrorCode.SERVICE_NOT_READY


def test_the_serving_broker_is_shown_what_the_client_presented() -> None:
    waiting = secured()
    waiting.join(
        tls=True,
        auth_method_name="token",
        auth_data=token("app"),
        original_principal="",
        proxy_to_broker_url="x:1",
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    waiting.tell(partitions())
    (relayed,) = waiting.relay.asked
    assert (relayed.connect.auth_method_name, relayed.connect.auth_data) == ("token", token("app"))
    assert relayed.tls
    assert not relayed.connect.HasField("proxy_to_broker_url")
    assert not relayed.connect.feature_flags.supports_auth_refresh


@pytest.mark.parametrize("data", [b"", b"not used"])
def test_a_certificate_cannot_be_shown_on_behalf_of_the_client(data: bytes) -> None:
    """The broker that serves would take the certificate of the `[client]` table, which the relay presents, for the client's."""
    waiting = secured()
    (connected,) = waiting.join(tls=True, certificate="app", auth_method_name="tls", auth_data=data)
    assert connected.type == pb.CONNECTED
    (answer,) = waiting.tell(partitions())
    assert answer.partitionMetadataResponse.error == ErrorCode.METADATA
    assert answer.partitionMetadataResponse.message == (
        f"{STATE}; a client that is authenticated by its certificate has to connect there"
    )
    (answer,) = waiting.tell(look_up())
    assert answer.lookupTopicResponse.brokerServiceUrlTls == A.pulsar_tls


def test_a_certificate_that_gives_no_role_does_not_stop_the_relay() -> None:
    """With a token the client is relayed: the serving broker checks the token, and no certificate."""
    waiting = secured()
    waiting.join(tls=True, certificate="app", auth_method_name="token", auth_data=token("app"))
    assert waiting.tell(partitions()) == []
    assert len(waiting.relay.asked) == 1
