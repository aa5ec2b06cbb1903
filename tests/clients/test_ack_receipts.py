"""ACK with a request id, in raw frames: the official client of Python asks for no receipts, Java's and C++'s do."""

import pulsar
import pytest

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess
from tests.support.raw_client import Raw, metadata, open_producer, raw, send
from tests.support.receiving import WAIT_MS, drain, nothing_more

ACK_RESPONSE = 38
NOT_ALLOWED = 22
EXCLUSIVE, SHARED = 0, 1


def publish(client: Raw, count: int) -> list[pb.MessageIdData]:
    """Messages numbered from 0, of the open producer; their ids."""
    ids = []
    for number in range(count):
        answer = send(client, number, build(metadata(), b"%d" % number))
        assert answer is not None
        assert answer.type == 7
        ids.append(answer.send_receipt.message_id)
    return ids


def subscribe(client: Raw, topic: str, kind: int) -> None:
    """Consumer 5 of subscription s, from the beginning. Without permits: what it acknowledges need not have been sent."""
    command = pb.CommandSubscribe(
        topic=topic, subscription="s", subType=kind, consumer_id=5, request_id=2, initialPosition=1
    )
    client.send(pb.BaseCommand(type=4, subscribe=command))
    assert client.answer().type == 13  # type: ignore[union-attr]


def acknowledge(
    client: Raw, ids: list[pb.MessageIdData], request_id: int | None, *, consumer_id: int = 5, cumulative: bool = False
) -> None:
    """ACK, with a request id or without."""
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=int(cumulative), message_id=ids)
    if request_id is not None:
        command.request_id = request_id
    client.send(pb.BaseCommand(type=10, ack=command))


def receipt(client: Raw) -> pb.CommandAckResponse:
    """The next answer, which has to be an ACK_RESPONSE."""
    answer = client.answer()
    assert answer is not None
    assert answer.type == ACK_RESPONSE, answer
    return answer.ackResponse


def is_quiet(client: Raw) -> bool:
    """Whether nothing was answered to what was sent until now: the answer of a later question is the next."""
    question = pb.CommandLookupTopic(topic="persistent://public/default/any", request_id=999)
    client.send(pb.BaseCommand(type=23, lookupTopic=question))
    answer = client.answer()
    assert answer is not None
    return answer.type == 24 and answer.lookupTopicResponse.request_id == 999


def test_every_acknowledgement_with_a_request_id_is_answered_with_that_id(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        ids = publish(client, 6)
        subscribe(client, topic, SHARED)
        # All at once, and one more time what is acknowledged already: nobody may wait for ever for an answer.
        asked = [(41, ids[:1]), (44, ids[1:3]), (43, ids[:1]), (1 << 40, ids[3:4])]
        for request_id, some in asked:
            acknowledge(client, some, request_id)
        answers = [receipt(client) for _ in asked]
        assert {answer.request_id for answer in answers} == {request_id for request_id, _ in asked}
        assert all(answer.consumer_id == 5 for answer in answers)
        assert not any(answer.HasField("error") for answer in answers)
        acknowledge(client, ids[4:5], None)
        assert is_quiet(client)


def test_a_refused_acknowledgement_is_answered_with_the_error(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        ids = publish(client, 3)
        subscribe(client, topic, SHARED)
        acknowledge(client, ids[1:2], 51, cumulative=True)
        answer = receipt(client)
        assert (answer.request_id, answer.consumer_id, answer.error) == (51, 5, NOT_ALLOWED)
        assert "cumulatively" in answer.message
        # The connection and the consumer go on, and nothing was acknowledged by it.
        acknowledge(client, ids[2:], 52)
        good = receipt(client)
        assert (good.request_id, good.HasField("error")) == (52, False)
    other = connect(broker)
    consumer = other.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [message.data() for message in drain(consumer, 2)] == [b"0", b"1"]
    assert nothing_more(consumer)
    other.close()


def test_an_acknowledgement_of_an_unknown_consumer_does_nothing(broker: BrokerProcess, topic: str) -> None:
    # As Pulsar (ServerCnx.handleAck), without an answer: it comes late, after CLOSE_CONSUMER, and nobody waits for it.
    with raw(broker) as client:
        open_producer(client, topic)
        ids = publish(client, 2)
        subscribe(client, topic, SHARED)
        acknowledge(client, ids[:1], 61, consumer_id=6)
        assert is_quiet(client)
        acknowledge(client, ids[1:], 62)
        good = receipt(client)
        assert (good.request_id, good.HasField("error")) == (62, False)
    other = connect(broker)
    consumer = other.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [message.data() for message in drain(consumer, 1)] == [b"0"]
    assert nothing_more(consumer)
    other.close()


@pytest.mark.parametrize("receipts", [True, False], ids=["with-receipts", "without"])
@pytest.mark.parametrize(
    ("kind", "cumulative"),
    [(SHARED, False), (EXCLUSIVE, False), (EXCLUSIVE, True)],
    ids=["shared", "exclusive", "up-to"],
)
def test_acknowledgements_of_what_was_never_sent_mean_nothing(
    broker: BrokerProcess, topic: str, kind: int, cumulative: bool, receipts: bool
) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        ids = publish(client, 3)
        subscribe(client, topic, kind)
        last, most = ids[-1], (1 << 63) - 1
        future = [pb.MessageIdData(ledgerId=last.ledgerId, entryId=last.entryId + number) for number in (1, 2, 3)]
        elsewhere = [
            (last.ledgerId, 1 << 40),
            (last.ledgerId, most),
            (last.ledgerId + 1, 0),
            (1 << 40, 0),
            (most, most),
        ]
        # One at a time: whatever one of them does, no other may hide.
        asked = [[one] for one in future] + [[pb.MessageIdData(ledgerId=a, entryId=b)] for a, b in elsewhere]
        asked += [[pb.MessageIdData(ledgerId=one.ledgerId, entryId=one.entryId, batch_index=1)] for one in future]
        asked += [
            [pb.MessageIdData(ledgerId=one.ledgerId, entryId=one.entryId, batch_index=2, batch_size=4, ack_set=[3])]
            for one in (future[0], pb.MessageIdData(ledgerId=last.ledgerId + 1, entryId=0))
        ]
        if not cumulative:
            asked.append([each for some in asked for each in some])
        for number, some in enumerate(asked):
            acknowledge(client, some, 100 + number if receipts else None, cumulative=cumulative)
        if receipts:
            answers = [receipt(client) for _ in asked]
            assert [answer.request_id for answer in answers] == [100 + number for number in range(len(asked))]
            assert not any(answer.HasField("error") for answer in answers)
        else:
            assert is_quiet(client)
        path = f"/admin/v2/{topic.replace('://', '/')}/stats"
        assert broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 3
        later = [send(client, 10 + number, build(metadata(), b"%d" % (3 + number))) for number in range(3)]
        assert [answer.send_receipt.message_id for answer in later if answer is not None] == future
        assert broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 6
        client.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=5, request_id=3)))
        assert client.answer().type == 13  # type: ignore[union-attr]
    other = connect(broker)
    type_ = pulsar.ConsumerType.Shared if kind == SHARED else pulsar.ConsumerType.Exclusive
    consumer = other.subscribe(topic, "s", consumer_type=type_)
    assert [message.data() for message in drain(consumer, 6)] == [b"%d" % number for number in range(6)]
    assert nothing_more(consumer)
    other.close()


@pytest.mark.parametrize("cumulative", [False, True])
def test_what_is_answered_survives_a_kill_at_once(own_broker: BrokerProcess, topic: str, cumulative: bool) -> None:
    with raw(own_broker) as client:
        open_producer(client, topic)
        ids = publish(client, 10)
        subscribe(client, topic, EXCLUSIVE if cumulative else SHARED)
        acknowledge(client, [ids[6]] if cumulative else [*ids[:3], ids[4], ids[9]], 71, cumulative=cumulative)
        answer = receipt(client)
        assert (answer.request_id, answer.HasField("error")) == (71, False)
        own_broker.kill()
    own_broker.start()
    again = connect(own_broker)
    kind = pulsar.ConsumerType.Exclusive if cumulative else pulsar.ConsumerType.Shared
    consumer = again.subscribe(topic, "s", consumer_type=kind)
    left = [b"7", b"8", b"9"] if cumulative else [b"3", b"5", b"6", b"7", b"8"]
    assert [consumer.receive(WAIT_MS).data() for _ in left] == left
    assert nothing_more(consumer)
    again.close()
