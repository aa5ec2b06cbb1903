"""The format of the log's records on disk.

A segment starts with a magic, which contains the format version. Records follow it:

    length (4) | crc32c (4) | type (1) | body (length - 1)

little-endian; the checksum covers the length, the type and the body. Types:

    1 entry published here      ledger 8, entry 4, flags 1, count 4, publish time 8, broker time 8, first index 8, data
    2 entry from a link         as 1, then incarnation 8, source ledger 8, source entry 8, origin (1 + n), data
    3 opening of a ledger       ledger 8, incarnation 8, created 8, topic (2 + n)
    4 seal                      segment 8, good offset 8: the bytes after that offset in that segment do not count
    5 start                     segment 8, salt 8, highest ledger id so far 8: the first record of a segment
    6 check                     salt 8, offset 8: everything before that offset was durable when this was written

A segment's magic, start and seals are durable before anything is written after them. Each cycle of writing begins with
a check, so that recovery can distinguish a torn tail (after the last check) from damage (before it). The salt is random
and secret: bytes of a client that look like a check are not one. Recovery skips a *damaged* stretch by the length in
its record if a whole record follows there, else it continues at the next check. It never guesses.

Times are ms. An entry's data are the client's bytes from the checksum magic on, verbatim.
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import StoredEntry

SEGMENT_MAGIC: Final = b"MAGNETAR\x00\x00\x00\x01"
LARGE_MAGIC: Final = b"MAGNETAR\x00\x00\x00\x02"
"""Version 2 is a segment of the lane of large appends (`storage.log`), and otherwise as version 1. A broker that does
not know lanes refuses it: after a crash the last segments of both lanes may be torn, and such a broker would report one
of them as damaged.
"""
PREFIX_BYTES: Final = 8
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A ceiling far above any message: a length beyond it is damage."""

LOCAL: Final = 1
REPLICATED: Final = 2
LEDGER: Final = 3
SEAL: Final = 4
START: Final = 5
CHECK: Final = 6
SALT_BYTES: Final = 8

_PREFIX: Final = struct.Struct("<II")
_LOCAL: Final = struct.Struct("<BQIBIqqq")
_SOURCE: Final = struct.Struct("<Qqq")
_LEDGER: Final = struct.Struct("<BQQqH")
_SEAL: Final = struct.Struct("<BQQ")
_START: Final = struct.Struct("<BQ8sq")
_CHECK: Final = struct.Struct("<B8sQ")
_LOCAL_LENGTH: Final = struct.Struct("<IBQIBIqqq")
LOCAL_RECORD: Final = struct.Struct("<IIBQIBIqqq")
"""Prefix and header of record 1: length, checksum, type, ledger, entry, flags, count, publish and broker time, index."""
LOCAL_HEADER_BYTES: Final = PREFIX_BYTES + _LOCAL.size
_REPLICATED_LENGTH: Final = struct.Struct("<IBQIBIqqqQqqB")
"""Length and header of record 2, up to the size of the origin's name."""
START_RECORD_BYTES: Final = PREFIX_BYTES + _START.size
SEAL_RECORD_BYTES: Final = PREFIX_BYTES + _SEAL.size
CHECK_RECORD_BYTES: Final = PREFIX_BYTES + _CHECK.size


class LedgerOpened(NamedTuple):
    """Record 3."""

    ledger: int
    incarnation: int
    created_ms: int
    topic: str


class Sealed(NamedTuple):
    """Record 4."""

    segment: int
    offset: int


class Started(NamedTuple):
    """Record 5."""

    segment: int
    salt: bytes
    ledger_high: int


class Checked(NamedTuple):
    """Record 6."""

    salt: bytes
    offset: int


class EntryHead(NamedTuple):
    """The head of an entry without its data, as recovery needs it."""

    ledger: int
    entry: int
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    publish_time: int
    broker_time: int
    origin: str
    incarnation: int
    first_index: int
    source: Position
    data_offset: int


def _framed(head: bytes, data: bytes | memoryview = b"") -> bytes:
    """Prefix and head of a record whose data follow it."""
    length = (len(head) + len(data)).to_bytes(4, "little")
    checksum = crc32c(data, crc32c(head, crc32c(length)))
    return length + checksum.to_bytes(4, "little") + head


def pack_entry_head(entry: StoredEntry) -> bytes:
    """Everything of an entry's record but its data, which must follow it verbatim."""
    origin, data = entry.origin, entry.data
    if not origin:
        # The hot path: one pack for length and header, and the checksum put in between.
        length = LOCAL_HEADER_BYTES - PREFIX_BYTES + len(data)
        packed = _LOCAL_LENGTH.pack(
            length, LOCAL, entry.ledger, entry.entry, entry.flags, entry.count, entry.publish_time, entry.broker_time,
            entry.first_index,
        )  # fmt: skip
        return packed[:4] + crc32c(data, crc32c(packed)).to_bytes(4, "little") + packed[4:]
    name = origin.encode()
    length = _REPLICATED_LENGTH.size - 4 + len(name) + len(data)
    packed = _REPLICATED_LENGTH.pack(
        length, REPLICATED, entry.ledger, entry.entry, entry.flags, entry.count, entry.publish_time, entry.broker_time,
        entry.first_index, entry.incarnation, *entry.source, len(name),
    )  # fmt: skip
    packed += name
    return packed[:4] + crc32c(data, crc32c(packed)).to_bytes(4, "little") + packed[4:]


def pack_ledger(ledger: int, incarnation: int, created_ms: int, topic: str) -> bytes:
    """A ledger's opening."""
    name = topic.encode()
    return _framed(_LEDGER.pack(LEDGER, ledger, incarnation, created_ms, len(name)) + name)


def pack_seal(segment: int, offset: int) -> bytes:
    """A seal."""
    return _framed(_SEAL.pack(SEAL, segment, offset))


def pack_start(segment: int, salt: bytes, ledger_high: int) -> bytes:
    """A segment's first record."""
    return _framed(_START.pack(START, segment, salt, ledger_high))


def pack_check(salt: bytes, offset: int) -> bytes:
    """A check."""
    return _framed(_CHECK.pack(CHECK, salt, offset))


def check_pattern(salt: bytes) -> bytes:
    """The bytes of a check of a segment after its prefix, for finding one among damage."""
    return bytes([CHECK]) + salt


def whole(buffer: memoryview, at: int, *, check: bool) -> int:
    """The size of the record that starts at `at`, prefix included; 0 when it is torn or damaged.

    Args:
        buffer: a segment, or the rest of one.
        at: where the record starts.
        check: also compare the checksum.
    """
    if at + PREFIX_BYTES > len(buffer):
        return 0
    length, checksum = _PREFIX.unpack_from(buffer, at)
    end = at + PREFIX_BYTES + length
    if not 1 <= length <= RECORD_BYTES_MAX or end > len(buffer):
        return 0
    if check and crc32c(buffer[at + PREFIX_BYTES : end], crc32c(buffer[at : at + 4])) != checksum:
        return 0
    return int(end - at)


def read_head(buffer: memoryview, at: int) -> EntryHead | LedgerOpened | Sealed | Started | Checked:
    """The record that starts at `at` and is whole, without an entry's data.

    Raises:
        StorageError: a type that this version does not know.
    """
    body = at + PREFIX_BYTES
    kind = buffer[body]
    if kind in (LOCAL, REPLICATED):
        _, ledger, entry, flags, count, publish, broker, first = _LOCAL.unpack_from(buffer, body)
        offset = body + _LOCAL.size
        if kind == LOCAL:
            return EntryHead(ledger, entry, flags, count, publish, broker, "", 0, first, NONE, offset)
        incarnation, source_ledger, source_entry = _SOURCE.unpack_from(buffer, offset)
        offset += _SOURCE.size
        size = buffer[offset]
        origin = bytes(buffer[offset + 1 : offset + 1 + size]).decode()
        source = Position(source_ledger, source_entry)
        return EntryHead(
            ledger, entry, flags, count, publish, broker, origin, incarnation, first, source, offset + 1 + size
        )
    if kind == LEDGER:
        _, ledger, incarnation, created_ms, size = _LEDGER.unpack_from(buffer, body)
        name = bytes(buffer[body + _LEDGER.size : body + _LEDGER.size + size]).decode()
        return LedgerOpened(ledger, incarnation, created_ms, name)
    if kind == SEAL:
        _, segment, offset = _SEAL.unpack_from(buffer, body)
        return Sealed(segment, offset)
    if kind == START:
        _, segment, salt, high = _START.unpack_from(buffer, body)
        return Started(segment, salt, high)
    if kind == CHECK:
        _, salt, offset = _CHECK.unpack_from(buffer, body)
        return Checked(salt, offset)
    raise StorageError(f"a record of unknown type {kind}: written by a newer version?")


def read_entry(buffer: memoryview, at: int, size: int) -> StoredEntry | None:
    """The entry in the record of `size` bytes at `at`; None when it is damaged or no entry."""
    if size > LOCAL_HEADER_BYTES and at + size <= len(buffer) and buffer[at + PREFIX_BYTES] == LOCAL:
        # The hot path: one unpack for the whole head.
        length, checksum, _, ledger, entry, flags, count, publish, broker, first = LOCAL_RECORD.unpack_from(buffer, at)
        end = at + size
        if (
            length != size - PREFIX_BYTES
            or crc32c(buffer[at + PREFIX_BYTES : end], crc32c(buffer[at : at + 4])) != checksum
        ):
            return None
        data = buffer[at + LOCAL_HEADER_BYTES : end].tobytes()
        return StoredEntry(ledger, entry, flags, count, publish, broker, "", 0, first, NONE, data)
    if whole(buffer[at : at + size], 0, check=True) != size:
        return None
    head = read_head(buffer, at)
    if not isinstance(head, EntryHead):
        return None
    data = bytes(buffer[head.data_offset : at + size])
    return StoredEntry(*head[:10], data)
