"""The framed bytes of the commands that a broker sends to a client; one small function per command.

Rules that clients insist on (docs/design/pulsar.md#traps): `server_version`, the `response` of lookups and the `message`
of errors are always there; ids of -1 travel as 2^64 - 1; commands that the C++ client does not know are never pushed to it.

Receipts and message headers are on the hot path: their bytes are put together by hand (`tests` compare them with what
protobuf makes).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import NO_REQUEST
from magnetar.wire.frames import encode
from magnetar.wire.varint import U64, varint
from magnetar.wire.versions import agreed

SERVER_VERSION: Final = "Magnetar"


def message_id(position: Position, partition: int = -1, batch_index: int = -1) -> pb.MessageIdData:
    """A position as it travels."""
    data = pb.MessageIdData(ledgerId=position.ledger & U64, entryId=position.entry & U64)
    if partition >= 0:
        data.partition = partition
    if batch_index >= 0:
        data.batch_index = batch_index
    return data


def connected(protocol_version: int, message_bytes_max: int, hello: pb.GeoHello | None = None) -> bytes:
    """CONNECTED; `hello` only to a link peer."""
    return encode(
        pb.BaseCommand(
            type=pb.CONNECTED,
            connected=pb.CommandConnected(
                server_version=SERVER_VERSION,
                protocol_version=agreed(protocol_version),
                max_message_size=message_bytes_max,
                feature_flags=pb.FeatureFlags(
                    supports_topic_watchers=True,
                    supports_get_partitioned_metadata_without_auto_creation=True,
                    supports_topic_watcher_reconcile=True,
                ),
                geo=hello,
            ),
        )
    )


def success(request_id: int) -> bytes:
    """SUCCESS."""
    return encode(pb.BaseCommand(type=pb.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))


def error(request_id: int, code: ErrorCode, message: str) -> bytes:
    """ERROR."""
    return encode(
        pb.BaseCommand(
            type=pb.ERROR,
            error=pb.CommandError(request_id=request_id, error=code, message=message),
        )
    )


def auth_challenge(protocol_version: int, method: str) -> bytes:
    """AUTH_CHALLENGE: authenticate again, because the credentials expire. The data is Pulsar's word for that."""
    return encode(
        pb.BaseCommand(
            type=pb.AUTH_CHALLENGE,
            authChallenge=pb.CommandAuthChallenge(
                server_version=SERVER_VERSION,
                challenge=pb.AuthData(auth_method_name=method, auth_data=b"PulsarAuthRefresh"),
                protocol_version=protocol_version,
            ),
        )
    )


_PING: Final = encode(pb.BaseCommand(type=pb.PING, ping=pb.CommandPing()))
_PONG: Final = encode(pb.BaseCommand(type=pb.PONG, pong=pb.CommandPong()))


def ping() -> bytes:
    """PING."""
    return _PING


def pong() -> bytes:
    """PONG."""
    return _PONG


def producer_success(
    request_id: int,
    name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    ready: bool = True,
    topic_epoch: int | None = None,
) -> bytes:
    """PRODUCER_SUCCESS; with `ready=False` the client waits for exclusive access."""
    return encode(
        pb.BaseCommand(
            type=pb.PRODUCER_SUCCESS,
            producer_success=pb.CommandProducerSuccess(
                request_id=request_id,
                producer_name=name,
                last_sequence_id=last_sequence_id,
                schema_version=schema_version,
                producer_ready=ready,
                topic_epoch=topic_epoch,
            ),
        )
    )


_NUMBER_BYTES_MAX: Final = 11
"""Bytes of a field that is a number: its tag, and ten bytes for 64 bits."""

_MESSAGE_ID_HEADS: Final = [b"\x1a" + bytes([size]) for size in range(2 * _NUMBER_BYTES_MAX + 1)]
"""The bytes in front of the message id of a receipt, by the size of the id: two numbers."""

_RECEIPT_HEADS: Final = [
    # BaseCommand: type = 7 (SEND_RECEIPT), field 7.
    (8 + size).to_bytes(4, "big") + (4 + size).to_bytes(4, "big") + b"\x08\x07\x3a" + bytes([size])
    for size in range(3 * _NUMBER_BYTES_MAX + 2 + len(_MESSAGE_ID_HEADS))
]
"""The bytes of a SEND_RECEIPT in front of its fields, by the size of these: three numbers and a message id."""


def receipts(producer_id: int, items: Iterable[tuple[int, int, int, int]]) -> bytes:
    """SEND_RECEIPTs of one producer, in order, in one buffer.

    Args:
        producer_id: the producer.
        items: (sequence id, highest sequence id, ledger, entry) of each; ledger and entry -1 for a duplicate.
    """
    producer = b"\x08" + varint(producer_id) + b"\x10"
    out: list[bytes] = []
    ledger_of = -2
    ledger_bytes = b""
    for sequence, highest, ledger, entry in items:
        if ledger != ledger_of:
            ledger_of = ledger
            ledger_bytes = b"\x08" + varint(ledger) + b"\x10"
        sequence_bytes, entry_bytes = varint(sequence), varint(entry)
        highest_bytes = b"\x20" + varint(highest) if highest else b""
        id_size = len(ledger_bytes) + len(entry_bytes)
        size = len(producer) + len(sequence_bytes) + 2 + id_size + len(highest_bytes)
        out += (
            _RECEIPT_HEADS[size],
            producer,
            sequence_bytes,
            _MESSAGE_ID_HEADS[id_size],
            ledger_bytes,
            entry_bytes,
            highest_bytes,
        )
    return b"".join(out)


def send_error(producer_id: int, sequence_id: int, code: ErrorCode, message: str) -> bytes:
    """SEND_ERROR."""
    return encode(
        pb.BaseCommand(
            type=pb.SEND_ERROR,
            send_error=pb.CommandSendError(
                producer_id=producer_id,
                sequence_id=sequence_id,
                error=code,
                message=message,
            ),
        )
    )


def message_header(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery: int,
    ack_set: Sequence[int] | None,
    epoch: int | None,
    payload_size: int,
) -> bytes:
    """The frame header and command of a MESSAGE; a payload of `payload_size` bytes follows it.

    Args:
        consumer_id: at its connection.
        ledger, entry: the position.
        partition: -1 for none.
        redelivery: how often it was delivered before.
        ack_set: signed 64-bit words, a bit 1 for each message of the batch that is still to be delivered; None for all.
        epoch: of the consumer; None when it has none.
        payload_size: bytes.
    """
    identity = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
    if partition >= 0:
        identity += b"\x18" + varint(partition)
    body = b"".join((b"\x08", varint(consumer_id), b"\x12", varint(len(identity)), identity))
    if redelivery:
        body += b"\x18" + varint(redelivery)
    if ack_set:
        body += b"".join([b"\x20" + varint(word) for word in ack_set])
    if epoch is not None:
        body += b"\x28" + varint(epoch)
    # BaseCommand: type = 9 (MESSAGE), field 9.
    size = varint(len(body))
    command = len(body) + len(size) + 3
    return b"".join(
        (
            (command + 4 + payload_size).to_bytes(4, "big"),
            command.to_bytes(4, "big"),
            b"\x08\x09\x4a",
            size,
            body,
        )
    )


def lookup_response(request_id: int, url: str, url_tls: str = "") -> bytes:
    """LOOKUP_RESPONSE: connect to `url` (`pulsar://host:port`), or by TLS to `url_tls` (`pulsar+ssl://host:port`)."""
    return encode(_looked_up(request_id, 1, url, url_tls))


def lookup_redirect(request_id: int, url: str, url_tls: str = "") -> bytes:
    """LOOKUP_RESPONSE: look up at another broker, which serves the topic; the addresses are as those of `lookup_response`."""
    return encode(_looked_up(request_id, 0, url or None, url_tls))


def _looked_up(request_id: int, response: int, url: str | None, url_tls: str) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.LOOKUP_RESPONSE,
        lookupTopicResponse=pb.CommandLookupTopicResponse(
            request_id=request_id,
            response=response,
            brokerServiceUrl=url,
            brokerServiceUrlTls=url_tls or None,
            authoritative=True,
        ),
    )


def lookup_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    """LOOKUP_RESPONSE: refused."""
    return encode(
        pb.BaseCommand(
            type=pb.LOOKUP_RESPONSE,
            lookupTopicResponse=pb.CommandLookupTopicResponse(
                request_id=request_id, response=2, error=code, message=message
            ),
        )
    )


def partitions_response(request_id: int, partitions: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE; 0 partitions: not partitioned."""
    return encode(
        pb.BaseCommand(
            type=pb.PARTITIONED_METADATA_RESPONSE,
            partitionMetadataResponse=pb.CommandPartitionedTopicMetadataResponse(
                request_id=request_id, response=0, partitions=partitions
            ),
        )
    )


def partitions_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    """PARTITIONED_METADATA_RESPONSE: refused."""
    return encode(
        pb.BaseCommand(
            type=pb.PARTITIONED_METADATA_RESPONSE,
            partitionMetadataResponse=pb.CommandPartitionedTopicMetadataResponse(
                request_id=request_id, response=1, error=code, message=message
            ),
        )
    )


def topics_of_namespace(request_id: int, topics: Sequence[str]) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE, unfiltered."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_TOPICS_OF_NAMESPACE_RESPONSE,
            getTopicsOfNamespaceResponse=pb.CommandGetTopicsOfNamespaceResponse(
                request_id=request_id, topics=topics, filtered=False, changed=True
            ),
        )
    )


def watch_topic_list_success(request_id: int, watcher_id: int, topics: Sequence[str], topics_hash: str) -> bytes:
    """WATCH_TOPIC_LIST_SUCCESS: all names that match; none when the client's hash says that it has them."""
    return encode(
        pb.BaseCommand(
            type=pb.WATCH_TOPIC_LIST_SUCCESS,
            watchTopicListSuccess=pb.CommandWatchTopicListSuccess(
                request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
            ),
        )
    )


def watch_topic_update(watcher_id: int, new: Sequence[str], gone: Sequence[str], topics_hash: str) -> bytes:
    """WATCH_TOPIC_UPDATE, only for clients that sent WATCH_TOPIC_LIST: they leave the topics that are gone first, then
    open the new ones.
    """
    return encode(
        pb.BaseCommand(
            type=pb.WATCH_TOPIC_UPDATE,
            watchTopicUpdate=pb.CommandWatchTopicUpdate(
                watcher_id=watcher_id, new_topics=new, deleted_topics=gone, topics_hash=topics_hash
            ),
        )
    )


def close_producer(producer_id: int) -> bytes:
    """CLOSE_PRODUCER from the broker: the client looks the topic up again and reconnects."""
    return encode(
        pb.BaseCommand(
            type=pb.CLOSE_PRODUCER,
            close_producer=pb.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST),
        )
    )


def close_consumer(consumer_id: int, url: str | None = None, url_tls: str = "") -> bytes:
    """CLOSE_CONSUMER from the broker: the client looks the topic up again and reconnects; with `url`, it connects there
    at once.
    """
    return encode(
        pb.BaseCommand(
            type=pb.CLOSE_CONSUMER,
            close_consumer=pb.CommandCloseConsumer(
                consumer_id=consumer_id,
                request_id=NO_REQUEST,
                assignedBrokerServiceUrl=url,
                assignedBrokerServiceUrlTls=url_tls or None,
            ),
        )
    )


def consumer_migrated(consumer_id: int, url: str, url_tls: str = "", *, named: bool) -> tuple[bytes, ...]:
    """The commands that move one consumer to another cluster.

    CLOSE_CONSUMER makes a client reconnect to the assigned address at once, without a backoff. TOPIC_MIGRATED makes it
    remember the address for its later connections.

    Args:
        consumer_id: the consumer.
        url, url_tls: the new address, and the new address by TLS.
        named: whether the client can be sent TOPIC_MIGRATED.
    """
    close = close_consumer(consumer_id, url, url_tls)
    return (topic_migrated(consumer_id, 1, url, url_tls), close) if named else (close,)


def ack_response(consumer_id: int, request_id: int, code: ErrorCode | None = None, message: str = "") -> bytes:
    """ACK_RESPONSE; without a code it succeeded."""
    answer = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if code is not None:
        answer.error = code
        answer.message = message
    return encode(pb.BaseCommand(type=pb.ACK_RESPONSE, ackResponse=answer))


def last_message_id(
    request_id: int,
    last: Position,
    *,
    batch_index: int,
    partition: int,
    mark_delete: Position,
) -> bytes:
    """GET_LAST_MESSAGE_ID_RESPONSE, always with the mark-delete position (clients compare with it)."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_LAST_MESSAGE_ID_RESPONSE,
            getLastMessageIdResponse=pb.CommandGetLastMessageIdResponse(
                request_id=request_id,
                last_message_id=message_id(last, partition, batch_index),
                consumer_mark_delete_position=message_id(mark_delete),
            ),
        )
    )


def active_consumer_change(consumer_id: int, active: bool) -> bytes:
    """ACTIVE_CONSUMER_CHANGE, to clients from protocol version 12 on."""
    return encode(
        pb.BaseCommand(
            type=pb.ACTIVE_CONSUMER_CHANGE,
            active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active),
        )
    )


def reached_end_of_topic(consumer_id: int) -> bytes:
    """REACHED_END_OF_TOPIC: the topic is terminated, and everything in it is acknowledged."""
    return encode(
        pb.BaseCommand(
            type=pb.REACHED_END_OF_TOPIC, reachedEndOfTopic=pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
        ),
    )


def topic_migrated(resource_id: int, resource_type: int, url: str, url_tls: str = "") -> bytes:
    """TOPIC_MIGRATED (protocol version 20): type 0 is a producer, 1 a consumer."""
    return encode(
        pb.BaseCommand(
            type=pb.TOPIC_MIGRATED,
            topicMigrated=pb.CommandTopicMigrated(
                resource_id=resource_id,
                resource_type=resource_type,
                brokerServiceUrl=url,
                brokerServiceUrlTls=url_tls or None,
            ),
        )
    )


def consumer_stats(request_id: int, stats: dict[str, Any]) -> bytes:
    """CONSUMER_STATS_RESPONSE; `stats` has the field names of the command."""
    return encode(
        pb.BaseCommand(
            type=pb.CONSUMER_STATS_RESPONSE,
            consumerStatsResponse=pb.CommandConsumerStatsResponse(request_id=request_id, **stats),
        )
    )


def consumer_stats_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    """CONSUMER_STATS_RESPONSE: refused."""
    return encode(
        pb.BaseCommand(
            type=pb.CONSUMER_STATS_RESPONSE,
            consumerStatsResponse=pb.CommandConsumerStatsResponse(
                request_id=request_id, error_code=code, error_message=message
            ),
        )
    )


def get_schema(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    """GET_SCHEMA_RESPONSE."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_SCHEMA_RESPONSE,
            getSchemaResponse=pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=version),
        )
    )


def get_or_create_schema(request_id: int, version: bytes) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_OR_CREATE_SCHEMA_RESPONSE,
            getOrCreateSchemaResponse=pb.CommandGetOrCreateSchemaResponse(
                request_id=request_id, schema_version=version
            ),
        )
    )


def get_schema_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    """GET_SCHEMA_RESPONSE: refused."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_SCHEMA_RESPONSE,
            getSchemaResponse=pb.CommandGetSchemaResponse(
                request_id=request_id, error_code=code, error_message=message
            ),
        )
    )


def get_or_create_schema_failed(request_id: int, code: ErrorCode, message: str) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE: refused."""
    return encode(
        pb.BaseCommand(
            type=pb.GET_OR_CREATE_SCHEMA_RESPONSE,
            getOrCreateSchemaResponse=pb.CommandGetOrCreateSchemaResponse(
                request_id=request_id, error_code=code, error_message=message
            ),
        )
    )
