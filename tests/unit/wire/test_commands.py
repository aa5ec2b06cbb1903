"""Every reply can be read back, and has what clients insist on."""

import inspect

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder

HELLO = pb.GeoHello(version=1, cluster="us", uuid="u")
REFUSED = (ErrorCode.TOPIC_NOT_FOUND, "no such topic")

REPLIES = {
    "connected": (commands.connected(19, 5 << 20, HELLO), 3),
    "success": (commands.success(1), 13),
    "error": (commands.error(1, *REFUSED), 14),
    "ping": (commands.ping(), 18),
    "pong": (commands.pong(), 19),
    "producer_success": (commands.producer_success(1, "p"), 17),
    "receipts": (commands.receipts(1, [(1, 0, 2, 3)]), 7),
    "send_error": (commands.send_error(1, 2, *REFUSED), 8),
    "message_header": (commands.message_header(1, 2, 3, -1, 0, None, None, 0), 9),
    "auth_challenge": (commands.auth_challenge(19, "token"), 36),
    "lookup_response": (commands.lookup_response(1, "pulsar://h:1"), 24),
    "lookup_redirect": (commands.lookup_redirect(1, "pulsar://h:1"), 24),
    "lookup_failed": (commands.lookup_failed(1, *REFUSED), 24),
    "partitions_response": (commands.partitions_response(1, 4), 22),
    "partitions_failed": (commands.partitions_failed(1, *REFUSED), 22),
    "topics_of_namespace": (commands.topics_of_namespace(1, ["b", "a"]), 33),
    "watch_topic_list_success": (commands.watch_topic_list_success(1, 2, ["b", "a"], "00000000"), 65),
    "watch_topic_update": (commands.watch_topic_update(2, ["a"], ["b"], "00000000"), 66),
    "close_producer": (commands.close_producer(1), 15),
    "close_consumer": (commands.close_consumer(1), 16),
    "ack_response": (commands.ack_response(1, 2), 38),
    "last_message_id": (
        commands.last_message_id(1, Position(3, 4), batch_index=2, partition=-1, mark_delete=NONE),
        30,
    ),
    "active_consumer_change": (commands.active_consumer_change(1, active=True), 31),
    "reached_end_of_topic": (commands.reached_end_of_topic(1), 27),
    "topic_migrated": (commands.topic_migrated(1, 0, "pulsar://h:1"), 68),
    "consumer_stats": (commands.consumer_stats(1, {"msgBacklog": 3}), 26),
    "consumer_stats_failed": (commands.consumer_stats_failed(1, *REFUSED), 26),
    "get_schema": (commands.get_schema(1, pb.Schema(name="t", type=1, schema_data=b""), b"\0" * 8), 35),
    "get_or_create_schema": (commands.get_or_create_schema(1, b"\0" * 8), 40),
    "get_schema_failed": (commands.get_schema_failed(1, *REFUSED), 35),
    "get_or_create_schema_failed": (commands.get_or_create_schema_failed(1, *REFUSED), 40),
}


def read(data: bytes) -> pb.BaseCommand:
    (frame,) = FrameDecoder().feed(data)
    assert frame.payload == b""
    return frame.command


@pytest.mark.parametrize("name", REPLIES)
def test_replies_can_be_read_back(name):
    data, kind = REPLIES[name]
    assert read(data).type == kind


def test_no_reply_is_left_out():
    built = {
        name
        for name, function in inspect.getmembers(commands, inspect.isfunction)
        if function.__module__ == commands.__name__ and function.__annotations__["return"] in (bytes, "bytes")
    }
    assert built == set(REPLIES)


def test_what_clients_insist_on():
    assert read(commands.connected(99, 5)).connected.server_version
    assert read(commands.connected(99, 5)).connected.protocol_version == 21
    assert not read(commands.connected(99, 5)).connected.HasField("geo")
    assert read(commands.lookup_response(1, "u")).lookupTopicResponse.response == 1
    assert read(commands.lookup_failed(1, *REFUSED)).lookupTopicResponse.response == 2
    assert read(commands.partitions_response(1, 0)).partitionMetadataResponse.HasField("response")
    assert read(commands.partitions_failed(1, *REFUSED)).partitionMetadataResponse.response == 1
    assert read(commands.send_error(1, 2, ErrorCode.UNKNOWN, "")).send_error.HasField("message")
    last = read(REPLIES["last_message_id"][0]).getLastMessageIdResponse
    assert last.HasField("consumer_mark_delete_position")
    assert (last.last_message_id.ledgerId, last.consumer_mark_delete_position.entryId) == (3, 2**64 - 1)
    assert not read(commands.ack_response(1, 2)).ackResponse.HasField("error")
    assert read(commands.ack_response(1, 2, *REFUSED)).ackResponse.error == 11
    assert read(commands.producer_success(1, "p")).producer_success.last_sequence_id == -1


def test_a_duplicate_receipt_says_minus_one():
    receipt = read(commands.receipts(1, [(5, 0, -1, -1)])).send_receipt
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (2**64 - 1, 2**64 - 1)


def test_no_receipts_no_bytes():
    assert commands.receipts(1, []) == b""
