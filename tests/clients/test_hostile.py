"""What a client must not do: forged internal fields, malformed bytes, names that are paths. Others are not disturbed."""

import struct
from collections.abc import Iterator

import pulsar
import pytest

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode, encode_with_payload
from magnetar.wire.metadata import build
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.raw_client import metadata, open_producer, raw, send


@pytest.fixture(scope="module")
def linked_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a link to a cluster that does not run."""
    extra = '[namespaces."public/default"]\nclusters = ["aa", "bb"]\n'
    world = World(tmp_path_factory.mktemp("linked"), ["aa", "bb"], extra)
    yield world["aa"].start()
    world.close()


def test_frames_are_small_before_connect_is_answered_and_as_large_as_configured_afterwards(
    broker: BrokerProcess, topic: str
) -> None:
    with raw(broker) as client:
        client.socket.settimeout(8)  # it is not the limit of time for CONNECT, of 10 s, that ends it
        client.socket.sendall(struct.pack(">II", 100_000, 100) + b"\x08\x02")
        assert client.answer() is None
    with raw(broker) as client:
        open_producer(client, topic)
        answer = send(client, 1, build(metadata(), b"m" * 4_000_000))
        assert answer is not None and answer.type == 7


def test_forged_markers_and_origins_are_refused_and_nothing_is_stored(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        forged = [
            (build(metadata(replicated_from="elsewhere"), b"x"), False),
            (build(metadata(marker_type=12), b"x"), False),
            (build(metadata(), b"x"), True),
        ]
        for sequence, (payload, marker) in enumerate(forged):
            answer = send(client, sequence, payload, marker=marker)
            assert answer is not None
            assert (answer.type, answer.send_error.error) == (8, 22), answer
        good = send(client, 9, build(metadata(), b"good"))
        assert good is not None
        assert good.type == 7
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert stats["msgInCounter"] == 1


def test_wrong_checksum_drops_that_message_only(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        payload = bytearray(build(metadata(), b"will be damaged"))
        payload[-1] ^= 1
        answer = send(client, 0, bytes(payload))
        assert answer is not None
        assert (answer.type, answer.send_error.error) == (8, 9)
        good = send(client, 1, build(metadata(), b"good"))
        assert good is not None
        assert good.type == 7


def test_link_commands_need_the_token(broker: BrokerProcess) -> None:
    with raw(broker) as client:
        assert client.handshake().type == 3  # type: ignore[union-attr]
        client.send(pb.BaseCommand(type=1000, geo_topics=pb.CommandGeoTopics(request_id=7, to="x", counter=0)))
        answer = client.answer()
        assert answer is not None
        assert (answer.type, answer.error.request_id, answer.error.error) == (14, 7, 22)


def test_wrong_link_token_is_refused_at_once(broker: BrokerProcess) -> None:
    with raw(broker) as client:
        answer = client.handshake(auth_method_name="magnetar-link", auth_data=b"guess")
        assert answer is not None
        assert (answer.type, answer.error.error) == (14, 3)
        assert client.answer() is None


def test_a_refused_link_command_with_another_command_in_its_frame(broker: BrokerProcess) -> None:
    (path,) = broker.config.parent.rglob("link.token")
    with raw(broker) as client:
        hello = client.handshake(auth_method_name="magnetar-link", auth_data=path.read_bytes().strip())
        assert hello is not None and hello.connected.HasField("geo")
        position = pb.GeoPosition(ledger=0, entry=0)
        topic = "persistent://public/default/x"
        read = pb.CommandGeoRead(request_id=7, topic=topic, to="nowhere", after=position, bytes_max=1)
        # The command that is refused is the one which the type says; the other's fields come first on the wire.
        for more in (
            pb.BaseCommand(ping=pb.CommandPing()),
            pb.BaseCommand(unsubscribe={"consumer_id": 1, "request_id": 9}),
        ):
            command = pb.BaseCommand(type=1002, geo_read=read)
            command.MergeFrom(more)
            client.send(command)
            answer = client.answer()
            assert answer is not None
            assert (answer.type, answer.error.request_id, answer.error.error) == (14, 7, 22)


@pytest.mark.parametrize("name", ["persistent://public", "", "x", "non-persistent://public/default/x", "a\nb"])
def test_a_link_that_reads_what_is_no_topic_ends_alone(linked_broker: BrokerProcess, name: str) -> None:
    (path,) = linked_broker.config.parent.rglob("link.token")
    position = pb.GeoPosition(ledger=0, entry=0)
    for to, origin in (("bb", "aa"), ("bb", ""), ("", "aa"), ("", "")):
        with raw(linked_broker) as client:
            hello = client.handshake(auth_method_name="magnetar-link", auth_data=path.read_bytes().strip())
            assert hello is not None and hello.connected.HasField("geo")
            read = pb.CommandGeoRead(request_id=7, topic=name, to=to, origin=origin, after=position, bytes_max=1)
            client.send(pb.BaseCommand(type=1002, geo_read=read))
            assert client.answer() is None
    assert len(linked_broker.rest("GET", "/admin/v2/clusters")) == 2
    assert "Traceback" not in linked_broker.log.read_text()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0xFFFFFFFF) + b"x" * 100,
        struct.pack(">II", 3, 3),
        struct.pack(">II", 100, 200) + b"x" * 96,
        struct.pack(">II", 20, 16) + b"\xff" * 16,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        encode(pb.BaseCommand(type=18, ping=pb.CommandPing())),
    ],
)
def test_malformed_bytes_end_this_connection_only(
    broker: BrokerProcess, client: pulsar.Client, topic: str, data: bytes
) -> None:
    producer = client.create_producer(topic)
    with raw(broker) as hostile:
        hostile.socket.sendall(data)
        assert hostile.answer() is None
    producer.send(b"undisturbed")


@pytest.mark.parametrize(
    "name",
    [
        "persistent://public/default/..",
        "persistent://public/../x",
        "persistent://public/default/a/b",
        "x" * 600,
        "a\x00b",
        "a\nb",
    ],
)
def test_names_that_are_paths_or_noise(broker: BrokerProcess, name: str) -> None:
    with raw(broker) as client:
        assert client.handshake().type == 3  # type: ignore[union-attr]
        full = name if "://" in name else f"persistent://public/default/{name}"
        client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=full, producer_id=1, request_id=1)))
        answer = client.answer()
        assert answer is not None
        assert (answer.type, answer.error.error) == (14, 17)
        assert "\n" not in answer.error.message


def test_reserved_subscription_names(client: pulsar.Client, topic: str) -> None:
    for name in ("pulsar.repl.b", "pulsar.dedup"):
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(topic, name)


def test_half_a_frame_and_gone(broker: BrokerProcess) -> None:
    for _ in range(50):
        with raw(broker) as client:
            client.socket.sendall(b"\x00\x00\x10\x00\x00")
    fine = connect(broker)
    fine.create_producer("after-half-frames").send(b"x")
    fine.close()
    eventually(lambda: broker.process is not None and broker.process.poll() is None)


def test_what_came_in_front_of_a_fault_is_handled_first(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        sends = [
            encode_with_payload(
                pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=number)),
                [build(metadata(), b"whole %d" % number)],
            )
            for number in range(3)
        ]
        question = encode(
            pb.BaseCommand(type=21, partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=topic, request_id=9))
        )
        # One write, so that the broker finds the fault in the read that also brought the whole frames.
        whole = b"".join(bytes(buffer) for buffers in sends for buffer in buffers)
        client.socket.sendall(whole + question + b"\xff\xff\xff\xff no frame is as large as that")
        answer = client.answer()
        assert answer is not None, "the question in front of the fault has no answer"
        while answer is not None and answer.type == 7:  # receipts, if the disk was faster
            answer = client.answer()
        assert answer is not None
        assert (answer.type, answer.partitionMetadataResponse.request_id) == (22, 9)
        while answer is not None:  # the fault still ends the connection
            answer = client.answer()
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    eventually(
        lambda: broker.rest("GET", path)["msgInCounter"] == 3, what="the messages in front of the fault are stored"
    )


def test_a_fault_behind_a_refused_request_is_told_once(own_broker: BrokerProcess, topic: str) -> None:
    # A broker of its own: one that was attacked a moment ago tells no more than 50 such lines in 10 s.
    with raw(own_broker) as client:
        # Whoever has not said CONNECT is closed for that; the fault behind it must neither help nor be told again.
        early = encode(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=1)))
        client.socket.sendall(early + b"\x00\x00\x00\x00")
        answers = list(iter(client.answer, None))
    assert [answer.type for answer in answers if answer is not None] in ([], [14])
    assert own_broker.log.read_text().count("closed the connection") == 1


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_permits_are_never_more_than_a_client_can_read(broker: BrokerProcess, topic: str, domain: str) -> None:
    topic = f"{domain}://{topic.partition('://')[2]}"
    most, huge = (1 << 31) - 1, (1 << 32) - 1
    with raw(broker) as client:
        open_producer(client, topic)
        client.send(
            pb.BaseCommand(
                type=4,
                subscribe=pb.CommandSubscribe(
                    topic=topic, subscription="s", subType=1, consumer_id=1, request_id=2, consumer_name="c"
                ),
            )
        )
        assert client.answer().type == 13  # type: ignore[union-attr]
        for _ in range(2):
            client.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=huge)))

        def told(request: int) -> int:
            ask = pb.CommandConsumerStats(request_id=request, consumer_id=1)
            client.send(pb.BaseCommand(type=25, consumerStats=ask))
            answer = client.answer()
            assert answer is not None
            return answer.consumerStatsResponse.availablePermits

        def shown() -> int:
            stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
            return int(stats["subscriptions"]["s"]["consumers"][0]["availablePermits"])

        assert (told(3), shown()) == (most, most)
        for sequence in range(3):
            payload = build(metadata(), b"%d" % sequence)
            client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence)), payload)
        kinds = [client.answer().type for _ in range(6)]  # type: ignore[union-attr]
        assert sorted(kinds) == [7, 7, 7, 9, 9, 9]
        assert (told(4), shown()) == (most - 3, most - 3)
