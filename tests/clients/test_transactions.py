"""What a client with transactions says to a real broker: each is refused by its own answer, and the connection goes on."""

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.brokers import BrokerProcess
from tests.support.raw_client import Raw, metadata, open_producer, raw, send


def ask(client: Raw, command: pb.BaseCommand, payload: bytes | None = None) -> pb.BaseCommand:
    """A command and its answer; the connection is still there."""
    client.send(command, payload)
    answer = client.answer()
    assert answer is not None, f"type {command.type} closed the connection"
    return answer


def test_a_connection_survives_everything_about_transactions(broker: BrokerProcess, topic: str) -> None:
    with raw(broker) as client:
        open_producer(client, topic)
        subscribe = pb.CommandSubscribe(topic=topic, subscription="s", subType=1, consumer_id=1, request_id=2)
        subscribe.subscription_properties.add(key="owner", value="billing")
        assert ask(client, pb.BaseCommand(type=4, subscribe=subscribe)).type == 13

        txn = pb.CommandTxn(request_id=5, txnid_least_bits=2, txnid_most_bits=1)
        asked = [
            pb.BaseCommand(type=62, tcClientConnectRequest=pb.CommandTcClientConnectRequest(request_id=5)),
            pb.BaseCommand(type=50, newTxn=pb.CommandNewTxn(request_id=5, tc_id=1)),
            pb.BaseCommand(type=52, addPartitionToTxn=txn),
            pb.BaseCommand(type=54, addSubscriptionToTxn=txn),
            pb.BaseCommand(type=56, endTxn=txn),
            pb.BaseCommand(type=58, endTxnOnPartition=txn),
            pb.BaseCommand(type=60, endTxnOnSubscription=txn),
        ]
        for command in asked:
            answer = ask(client, command)
            assert answer.type == command.type + 1
            body = answer.ListFields()[1][1]
            assert (body.request_id, body.error) == (5, 22)  # type: ignore[attr-defined]

        within = pb.CommandSend(producer_id=1, sequence_id=0, txnid_least_bits=2, txnid_most_bits=1)
        refused = ask(client, pb.BaseCommand(type=6, send=within), build(metadata(), b"in a transaction"))
        assert (refused.type, refused.send_error.sequence_id, refused.send_error.error) == (8, 0, 22)

        stored = send(client, 1, build(metadata(), b"plain"))
        assert stored is not None
        assert stored.type == 7
        client.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=10)))
        got = client.answer()
        assert got is not None
        assert got.type == 9
        assert got.message.message_id == stored.send_receipt.message_id

        ack = pb.CommandAck(consumer_id=1, ack_type=0, request_id=6, txnid_least_bits=2, txnid_most_bits=1)
        ack.message_id.append(got.message.message_id)
        answer = ask(client, pb.BaseCommand(type=10, ack=ack))
        assert (answer.type, answer.ackResponse.request_id, answer.ackResponse.error) == (38, 6, 22)

        path = f"/admin/v2/{topic.replace('://', '/')}/stats"
        seen = broker.rest("GET", path)
        assert (seen["msgInCounter"], seen["subscriptions"]["s"]["msgBacklog"]) == (1, 1)
        assert seen["subscriptions"]["s"]["subscriptionProperties"] == {"owner": "billing"}

        for name in ("txnid_least_bits", "txnid_most_bits"):
            ack.ClearField(name)
        answer = ask(client, pb.BaseCommand(type=10, ack=ack))
        assert (answer.type, answer.ackResponse.HasField("error")) == (38, False)
        assert broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 0
