"""Stored entries as the messages that applications sent: decompressed, taken out of their batch, and assembled from
chunks.
"""

import base64
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from magnetar.admin.http.answers import Held
from magnetar.admin.routes.decompression import Undecompressible, claimed, decompress
from magnetar.core.errors import MagnetarError, ProtocolError
from magnetar.core.times import iso_time
from magnetar.storage.cursor import bits_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import walk_batch
from magnetar.wire.metadata import parse_metadata, readable, split

CHUNKED_MAX: Final = 10
"""Messages in chunks that are being put together at a time; beyond it the oldest waits for another time, as at clients."""

CHUNKED_BYTES_MAX: Final = 32 << 20
"""The same in bytes."""

CHUNK_EXPIRES_MS: Final = 60_000
"""A chunk without those before it is given up when it is so old (Pulsar's expireTimeOfIncompleteChunkedMessage)."""

BESIDE_BYTES: Final = 64 * 1024
"""Larger payloads are decompressed on a thread of their own."""

LARGE_BYTES: Final = 1 << 20
"""A payload that holds more, or says so, is taken apart when there is memory for it, which all answers share."""

TIMES_HELD: Final = 4
"""Such a payload is there as bytes, in base64, in JSON and as a text on its way."""

Beside = Callable[..., Coroutine[Any, Any, bytes]]

Hold = Callable[[int], Coroutine[Any, Any, Held]]
"""Holds memory (`Answers.hold`)."""


class Unreadable(MagnetarError):
    """A stored entry cannot be taken apart; the reason in one line."""


class Unpacked(NamedTuple):
    """One message.

    Attributes:
        shown: the JSON for the WebSocket, without the number of redeliveries.
        id: its message id.
        others: ids that are acknowledged with it: the chunks before its last one.
        payload: its payload.
        metadata: its key, properties and event time, for publishing it again.
    """

    shown: dict[str, Any]
    id: pb.MessageIdData
    others: tuple[pb.MessageIdData, ...]
    payload: bytes
    metadata: pb.MessageMetadata


class Unpacker:
    """Unpacks the entries of one partition.

    Args:
        partition: its number, -1 when the topic has none.
        beside: runs heavy work on another thread (`Answers.beside`).
        hold: holds memory for large payloads; None: no limit.

    Attributes:
        holding: memory of unpacked messages; released by the sender.
        given_up: chunks of messages that will never be whole; emptied by the consumer, which acknowledges them.
        put_back: chunks that may be completed later or by another consumer; emptied by the consumer, which requests
            redelivery.
    """

    def __init__(self, partition: int, beside: Beside, hold: Hold | None = None) -> None:
        self._partition, self._beside, self._hold = partition, beside, hold
        self.holding: list[Held] = []
        self._chunked: dict[str, tuple[list[bytes], list[pb.MessageIdData]]] = {}
        self.given_up: list[pb.MessageIdData] = []
        self.put_back: list[pb.MessageIdData] = []

    def forget(self) -> None:
        """The broker will send again what was not acknowledged: chunks that are held are of no use."""
        self._chunked.clear()

    async def messages(self, command: pb.CommandMessage, data: bytes) -> list[Unpacked]:
        """The messages of an entry; none for a chunk that is not the last.

        Raises:
            Unreadable: it cannot be taken apart. MagnetarError: it can, and not here and now: a codec or memory is missing.
        """
        try:
            metadata = parse_metadata(data)
            payload = data[split(data) :]
        except ProtocolError as error:
            raise Unreadable(str(error)) from None
        own = pb.MessageIdData(ledgerId=command.message_id.ledgerId, entryId=command.message_id.entryId)
        if self._partition >= 0:
            own.partition = self._partition
        if metadata.encryption_keys:
            return [self._one(metadata, payload, own)]
        others: tuple[pb.MessageIdData, ...] = ()
        if metadata.num_chunks_from_msg > 1:
            whole = self._chunk(metadata, payload, own)
            if whole is None:
                return []
            payload, others = whole
        if metadata.compression:
            payload = await self._plain(metadata, payload)
        else:
            await self._hold_for(len(payload))
        if metadata.HasField("num_messages_in_batch"):
            return self._batch(metadata, payload, own, command)
        return [self._one(metadata, payload, own, others)]

    async def _hold_for(self, size: int) -> None:
        if self._hold is not None and size > LARGE_BYTES:
            self.holding.append(await self._hold(TIMES_HELD * size))

    async def _plain(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        wanted = (metadata.compression, metadata.uncompressed_size, payload)
        try:
            claimed(metadata.compression, metadata.uncompressed_size, len(payload))
        except Undecompressible as error:
            raise Unreadable(str(error)) from None
        await self._hold_for(metadata.uncompressed_size)
        try:
            if max(len(payload), metadata.uncompressed_size) > BESIDE_BYTES:
                return await self._beside(decompress, *wanted)
            return decompress(*wanted)
        except Undecompressible as error:
            raise Unreadable(str(error)) from None

    def _batch(
        self, metadata: pb.MessageMetadata, payload: bytes, own: pb.MessageIdData, command: pb.CommandMessage
    ) -> list[Unpacked]:
        count = metadata.num_messages_in_batch
        left = bits_of(command.ack_set) if command.ack_set else -1
        found = []
        try:
            for index, (single, _, start, end) in enumerate(walk_batch(payload, count)):
                if not left >> index & 1 or single.compacted_out:
                    continue
                at = pb.MessageIdData()
                at.CopyFrom(own)
                at.batch_index, at.batch_size = index, count
                found.append(self._one(_of_single(metadata, single), payload[start:end], at))
        except ProtocolError as error:
            raise Unreadable(str(error)) from None
        return found

    def _chunk(
        self, metadata: pb.MessageMetadata, payload: bytes, own: pb.MessageIdData
    ) -> tuple[bytes, tuple[pb.MessageIdData, ...]] | None:
        uuid, place = metadata.uuid, (own.ledgerId, own.entryId)
        held = self._chunked.get(uuid)
        if held is not None and place <= (held[1][-1].ledgerId, held[1][-1].entryId):
            # The broker sends it again. It stays unacknowledged until the whole message is acknowledged.
            if metadata.chunk_id > 0:
                return None
            del self._chunked[uuid]
            held = None
        if metadata.chunk_id == 0:
            if held is not None:  # its producer began again
                self.given_up += self._chunked.pop(uuid)[1]
            held = self._chunked[uuid] = ([], [])
        if held is None or len(held[0]) != metadata.chunk_id:
            self._put_back(uuid)
            old = metadata.publish_time + CHUNK_EXPIRES_MS < time.time_ns() // 1_000_000
            (self.given_up if old else self.put_back).append(own)
            return None
        held[0].append(payload)
        held[1].append(own)
        if metadata.chunk_id + 1 == metadata.num_chunks_from_msg:
            del self._chunked[uuid]
            return b"".join(held[0]), tuple(held[1][:-1])
        while len(self._chunked) > CHUNKED_MAX or self._bytes() > CHUNKED_BYTES_MAX:
            self._put_back(next(iter(self._chunked)))
        return None

    def _bytes(self) -> int:
        return sum(len(part) for parts, _ in self._chunked.values() for part in parts)

    def _put_back(self, uuid: str) -> None:
        parts = self._chunked.pop(uuid, None)
        if parts is not None:
            self.put_back += parts[1]

    def _one(
        self,
        metadata: pb.MessageMetadata,
        payload: bytes,
        own: pb.MessageIdData,
        others: tuple[pb.MessageIdData, ...] = (),
    ) -> Unpacked:
        shown: dict[str, Any] = {
            "messageId": base64.b64encode(own.SerializeToString()).decode(),
            "payload": base64.b64encode(payload).decode(),
            "properties": {readable(pair.key): readable(pair.value) for pair in metadata.properties},
            "publishTime": iso_time(metadata.publish_time),
        }
        if metadata.HasField("partition_key"):
            shown["key"] = readable(metadata.partition_key)
        if metadata.event_time:
            shown["eventTime"] = iso_time(metadata.event_time)
        if metadata.encryption_keys:
            shown["encryptionContext"] = _encryption(metadata)
        return Unpacked(shown, own, others, payload, metadata)


def _of_single(batch: pb.MessageMetadata, single: pb.SingleMessageMetadata) -> pb.MessageMetadata:
    """The own properties of a message in a batch, in the form of a single message's metadata."""
    found = pb.MessageMetadata(
        producer_name=batch.producer_name, sequence_id=single.sequence_id, publish_time=batch.publish_time
    )
    found.properties.extend(single.properties)
    if single.HasField("partition_key"):
        found.partition_key = single.partition_key
        found.partition_key_b64_encoded = single.partition_key_b64_encoded
    if single.event_time:
        found.event_time = single.event_time
    return found


def _encryption(metadata: pb.MessageMetadata) -> dict[str, Any]:
    """The information with which a consumer can decrypt a payload itself (Pulsar's EncryptionContext)."""
    found: dict[str, Any] = {
        "keys": {
            readable(key.key): {
                "keyValue": base64.b64encode(key.value).decode(),
                "metadata": {readable(pair.key): readable(pair.value) for pair in key.metadata},
            }
            for key in metadata.encryption_keys
        },
        "param": base64.b64encode(metadata.encryption_param).decode(),
        "algorithm": readable(metadata.encryption_algo),
    }
    if metadata.compression:
        found["compressionType"] = {1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}.get(metadata.compression, "NONE")
        found["uncompressedMessageSize"] = metadata.uncompressed_size
    if metadata.HasField("num_messages_in_batch"):
        found["batchSize"] = metadata.num_messages_in_batch
    return found
