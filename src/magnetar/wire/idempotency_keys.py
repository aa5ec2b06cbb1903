"""Reading the idempotency keys of an entry, and removing known messages from a batch.

    one message     the key is a property of its metadata
    a batch         every message has its own; the ones that were seen are taken out, the others are stored as a smaller batch
    a chunk         all chunks of a message carry its key; it counts as stored with the last one, so that a message whose
                    sending broke off can be sent again

A batch has to be opened for this. It can be opened if it is not encrypted and is uncompressed or compressed with zlib.
A large batch takes long and is opened outside the event loop (`takes_long`, `broker.publish.opening`).
"""

import zlib
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.storage.entries import EntryFlags, NewEntry, StoredEntry
from magnetar.wire.metadata import Inspected, build, parse_metadata, span, split
from magnetar.wire.pulsar_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata
from magnetar.wire.varint import varint

FINGERPRINT_BYTES: Final = 9
"""72 bits of BLAKE2b with a secret key: among 10 million keys a new one is taken for a known one once in some 10^14
times.
"""

KEY_BYTES_MAX: Final = 1024
"""A ceiling on one key. The identifier of a request is far shorter; a document as a key is a mistake."""

BATCH_BYTES_MAX: Final = 16 << 20
"""A ceiling on a batch that is decompressed in the broker: three times the largest message that clients may send."""

OPEN_BYTES_MAX: Final = 256 << 10
"""Batches over this size, compressed or not, are not decompressed on the event loop: this size takes 0.6 ms. Clients
make batches of 128 KiB unless they are configured otherwise.
"""

OPEN_MESSAGES_MAX: Final = 2_000
"""Batches of more messages are not opened on the event loop: walking over that many takes 4 ms. Clients put 1,000 into one unless
they are configured otherwise."""

ENTRY_HEADER_BYTES: Final = 10
"""Magic, checksum, size: the metadata begins after them."""

_PROPERTIES: Final = 4 << 3 | 2
_SIZE_BYTES: Final = 4
_PROPERTIES_IN_BATCH: Final = 1 << 3 | 2
from_bytes = int.from_bytes
SPECIAL: Final = int(EntryFlags.MARKER | EntryFlags.BATCH | EntryFlags.CHUNK)
"""Entries that are not simply one message."""

_BATCH: Final = int(EntryFlags.BATCH)
_CHUNK: Final = int(EntryFlags.CHUNK)
_MARKER: Final = int(EntryFlags.MARKER)
_NONE, _ZLIB = 0, 2
_COMPRESSIONS: Final = {1: "LZ4", 3: "ZSTD", 4: "Snappy"}


class KeyRefused(BrokerError):
    """One message cannot be taken because of its key, however often it is sent; others can."""


Message = tuple[bytes | None, int, int]
"""One message of an entry: its key, or None; where it begins and ends in the opened batch. No class: it is made for every one."""


class Opened(NamedTuple):
    """An entry's messages.

    Attributes:
        messages: in order.
        batch: the uncompressed payload of a batch; None: it is not a batch.
        complete: false for a chunk after which others follow.
    """

    messages: list[Message]
    batch: memoryview | None
    complete: bool = True


def key_in(properties: Iterable[KeyValue], name: str) -> bytes | None:
    """The key among a message's properties; None: it has none.

    Raises:
        BrokerError: NOT_ALLOWED: it is too long.
    """
    found: str | bytes = ""
    for pair in properties:
        if pair.key == name:
            found = pair.value
    if not found:
        return None
    key = found if isinstance(found, bytes) else found.encode("utf-8", "surrogatepass")
    if len(key) > KEY_BYTES_MAX:
        raise KeyRefused(
            ErrorCode.NOT_ALLOWED,
            f"an idempotency key of {len(key)} bytes (property {name!r}) is over the limit of {KEY_BYTES_MAX} bytes",
        )
    return key


class KeyProperty:
    """The property that holds the key.

    Args:
        name: its name.
        secret: of the fingerprints, see `idempotency_block.fingerprint`.
    """

    __slots__ = ("_copy", "_size", "_start", "name")

    def __init__(self, name: str, secret: bytes = b"") -> None:
        self.name = name
        self._copy = blake2b(secret, digest_size=FINGERPRINT_BYTES).copy
        text = name.encode()
        self._start = b"".join((b"\x0a", varint(len(text)), text, b"\x12"))
        self._size = len(self._start)

    def fingerprint(self, key: bytes | None) -> bytes | None:
        """The fingerprint of a key, if there is one."""
        if key is None:
            return None
        state = self._copy()
        state.update(key)
        return state.digest()

    def easily(self, entries: Iterable[tuple[bytes, int]]) -> list[bytes | None]:
        """The fingerprints of the keys of single messages; None: none is easily found.

        Every client writes name and value of a property one after the other, so that the pair is found by its bytes. A
        client that hides such a pair within another field has sent that key.

        Args:
            entries: the bytes of each, and the offset at which its metadata ends.
        """
        start, room, copy = self._start, self._size + 1, self._copy
        found: list[bytes | None] = []
        for data, end in entries:
            at = data.rfind(start, ENTRY_HEADER_BYTES, end)
            if at > 0:
                begin = at + room
                size = data[begin - 1]
                past = begin + size
                # Both sizes in one byte, the pair itself a whole `properties` field.
                if size and data[at - 1] == past - at < 0x80 and data[at - 2] == _PROPERTIES:
                    state = copy()
                    state.update(data[begin:past])
                    found.append(state.digest())
                    continue
            found.append(None)
        return found

    def of_batch(self, batch: bytes, count: int) -> list[Message]:
        """The messages of a batch: the fingerprint of each one's key, and where it is.

        As `wire.batches.walk_batch`, with as little as possible for one message: all of a batch's are looked at.

        Args:
            batch: uncompressed.
            count: how many messages it has.

        Raises:
            BrokerError: NOT_ALLOWED: a key is too long.
            ProtocolError: not exactly `count` messages, or a size that does not fit.
        """
        parse, copy = SingleMessageMetadata.FromString, self._copy
        start, room, limit = self._start, self._size + 1, len(batch)
        found: list[Message] = []
        at = 0
        for number in range(count):
            body = at + _SIZE_BYTES
            end = body + from_bytes(batch[at:body], "big")
            head = batch[body:end]
            try:
                one = parse(head)
            except DecodeError:
                raise ProtocolError(f"message {number} of {count} has metadata that is not protobuf") from None
            past = end + one.payload_size
            if past > limit or past < end or not one.IsInitialized():
                raise ProtocolError(f"message {number} of {count} has no size, or ends behind the {limit} bytes")
            key = None
            at_key = head.rfind(start)
            if at_key > 1:
                begin = at_key + room
                key_end = begin + head[begin - 1]
                # Both sizes in one byte, the pair itself a whole `properties` field.
                if (
                    begin < key_end
                    and head[at_key - 1] == key_end - at_key < 0x80
                    and head[at_key - 2] == _PROPERTIES_IN_BATCH
                ):
                    state = copy()
                    state.update(head[begin:key_end])
                    key = state.digest()
            if key is None and one.properties:
                key = self.fingerprint(key_in(one.properties, self.name))
            found.append((key, at, past))
            at = past
        if at != limit:
            raise ProtocolError(f"{limit - at} bytes are left behind a batch of {count} messages")
        return found

    def of_single(self, data: bytes, end: int, metadata: MessageMetadata | None = None) -> bytes | None:
        """The fingerprint of a single message's key; None: it has none.

        Args:
            data: the entry.
            end: of its metadata.
            metadata: parsed, if it is.

        Raises:
            BrokerError: NOT_ALLOWED: it is too long.
        """
        (key,) = self.easily(((data, end),))
        if key is not None:
            return key
        if metadata is None:
            metadata = parse_metadata(data)
        return self.fingerprint(key_in(metadata.properties, self.name)) if metadata.properties else None


def takes_long(count: int, metadata: MessageMetadata, payload_bytes: int) -> bool:
    """Whether a batch is too large to be opened on the event loop. One that cannot be opened is not.

    Args:
        count, metadata: of the batch.
        payload_bytes: size of the part after its metadata, as stored.
    """
    compression = metadata.compression
    if count > OPEN_MESSAGES_MAX:
        return compression in {_NONE, _ZLIB} and not metadata.encryption_keys
    if compression != _ZLIB or metadata.encryption_keys:
        return False
    # Official clients say how large it is. Of another one it may be anything.
    says = metadata.uncompressed_size or BATCH_BYTES_MAX
    return max(says, payload_bytes) > OPEN_BYTES_MAX


def stored_takes_long(entry: StoredEntry | NewEntry) -> bool:
    """The same for an entry that is in the log, or arrives over a link."""
    if entry.flags & (_BATCH | _MARKER) != _BATCH:
        return False
    try:
        end = split(entry.data)
        return takes_long(entry.count, parse_metadata(entry.data), len(entry.data) - end)
    except (BrokerError, ProtocolError):
        return False  # it cannot be opened


def uncompressed(metadata: MessageMetadata, payload: memoryview, bytes_max: int = BATCH_BYTES_MAX) -> memoryview:
    """The payload of a batch.

    Args:
        metadata, payload: of the entry.
        bytes_max: largest decompressed size.

    Raises:
        BrokerError: NOT_ALLOWED: it cannot be opened here.
    """
    reason = ""
    if metadata.encryption_keys:
        reason = "is encrypted"
    elif metadata.compression == _NONE:
        return payload
    elif metadata.compression == _ZLIB:
        engine = zlib.decompressobj()
        try:
            plain = engine.decompress(payload, bytes_max)
        except zlib.error:
            reason = "is no zlib stream"
        else:
            if engine.eof:
                return memoryview(plain)
            reason = f"is cut off or has over {bytes_max} bytes uncompressed"
            if bytes_max < BATCH_BYTES_MAX:
                reason += f" although it says {metadata.uncompressed_size}"
    else:
        reason = f"is compressed with {_COMPRESSIONS.get(metadata.compression, str(metadata.compression))}"
    raise KeyRefused(
        ErrorCode.NOT_ALLOWED,
        f"a batch that {reason} cannot be searched for idempotency keys: compress with zlib or not at all, or do not batch",
    )


def open_entry(
    name: KeyProperty,
    flags: int,
    metadata: MessageMetadata,
    data: bytes,
    metadata_end: int,
    bytes_max: int = BATCH_BYTES_MAX,
) -> Opened | None:
    """The messages of an entry with their keys; None when none has one.

    Args:
        name: the property.
        flags, metadata: of the entry.
        data: its bytes.
        metadata_end: the offset at which the metadata ends.
        bytes_max: largest decompressed size of a batch.

    Raises:
        BrokerError: NOT_ALLOWED: a key is too long, or a batch cannot be opened.
    """
    if flags & _MARKER:
        return None
    if not flags & _BATCH:
        key = name.of_single(data, metadata_end, metadata)
        if key is None:
            return None
        complete = not flags & _CHUNK or metadata.chunk_id >= metadata.num_chunks_from_msg - 1
        return Opened([(key, 0, 0)], None, complete)
    batch = uncompressed(metadata, memoryview(data)[metadata_end:], bytes_max)
    try:
        messages = name.of_batch(bytes(batch), metadata.num_messages_in_batch)
    except ProtocolError as error:
        raise KeyRefused(ErrorCode.NOT_ALLOWED, f"a batch cannot be searched for idempotency keys: {error}") from None
    return Opened(messages, batch) if any(one[0] is not None for one in messages) else None


class Found(NamedTuple):
    """The result of opening an entry outside the event loop.

    Attributes:
        name: the property that was looked for.
        opened: see `open_entry`.
        error: why it cannot be opened.
    """

    name: KeyProperty
    opened: Opened | None
    error: BrokerError | ProtocolError | None


def find(name: KeyProperty, seen: Inspected) -> Found:
    """`open_entry` for `effects.outbox.Compute`."""
    try:
        return Found(name, open_entry(name, seen.flags, seen.metadata, seen.payload, seen.metadata_end), None)
    except BrokerError as error:
        return Found(name, None, error)


def find_stored(name: KeyProperty, entry: StoredEntry | NewEntry) -> Found:
    """`open_stored` for `effects.outbox.Compute`."""
    try:
        return Found(name, open_stored(name, entry), None)
    except (BrokerError, ProtocolError) as error:
        return Found(name, None, error)


def open_stored(name: KeyProperty, entry: StoredEntry | NewEntry) -> Opened | None:
    """The same of an entry that is in the log."""
    end = split(entry.data)
    if not entry.flags & SPECIAL:
        key = name.of_single(entry.data, end)
        return None if key is None else Opened([(key, 0, 0)], None)
    return open_entry(name, entry.flags, parse_metadata(entry.data), entry.data, end)


def smaller(metadata: MessageMetadata, batch: memoryview, kept: list[Message]) -> bytes:
    """An entry with some messages of a batch.

    Its sequence ids still span what the producer sent, so that deduplication by number sees the same as in the whole one.
    """
    payload = b"".join(batch[start:end] for _, start, end in kept)
    own = MessageMetadata()
    own.CopyFrom(metadata)
    own.num_messages_in_batch = len(kept)
    own.highest_sequence_id = span(metadata)[1]
    own.ClearField("compression")
    own.uncompressed_size = len(payload)
    return build(own, payload)
