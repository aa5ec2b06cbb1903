"""Recognises *plain* messages by their bytes: one message alone, with nothing in its metadata but what every message has.

Clients that do not batch send almost nothing else. To decode command and metadata takes a third of the time that a broker has for
such a message, and the objects would say only what the shape of the bytes says.

    command     type SEND; producer id, sequence id, and perhaps `num_messages` 1, in this order
    metadata    producer name, sequence id, publish time, in this order; the name is that of the producer that sends it

What is recognised is accepted by the usual decoders as well (`wire.frames`, `wire.metadata`), with the same meaning:
`tests/property/test_plain_sends.py` compares them. What is not recognised may be valid too; the usual decoders decide.
"""

import re
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from magnetar.core.ids import NONE
from magnetar.storage.entries import NewEntry
from magnetar.wire.varint import read_varint, varint

COMMAND_BYTES_MAX: Final = 26
"""The largest plain command."""

_NUMBER: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
"""A number of up to 63 bits. Larger ones are for the usual decoders: some are negative, and some too long."""

_COMMAND: Final = re.compile(
    rb"\x08\x06"  # BaseCommand.type: SEND
    rb"\x32([\x04-\x16])"  # BaseCommand.send, and its size
    rb"\x08" + _NUMBER +  # CommandSend.producer_id
    rb"\x10" + _NUMBER +  # CommandSend.sequence_id
    rb"(?:\x18\x01)?",  # CommandSend.num_messages
    re.DOTALL,
).fullmatch  # fmt: skip

_NUMBERS: Final = re.compile(
    _NUMBER +  # MessageMetadata.sequence_id, whose tag is part of the prefix
    rb"\x18" + _NUMBER,  # MessageMetadata.publish_time
    re.DOTALL,
).fullmatch  # fmt: skip

_HEAD_BYTES: Final = 4
"""Bytes of a plain command in front of CommandSend."""

_METADATA_AT: Final = 10
"""Offset of the metadata in a payload: after the magic, the checksum and their size (`wire.metadata`)."""

_new = tuple.__new__


def plain_command(data: bytes | bytearray, start: int, end: int) -> tuple[int, int] | None:
    """Producer id and sequence id of the command in `data[start:end]`; None if it is not plain."""
    seen = _COMMAND(data, start, end)
    if seen is None:
        return None
    size, producer, sequence = seen.groups()
    if size[0] != end - start - _HEAD_BYTES:
        return None
    return producer[0] if len(producer) == 1 else _number(producer), _number(sequence)


def _number(encoded: bytes) -> int:
    """The value of a number as protobuf writes it."""
    size = len(encoded)
    if size == 3:
        return encoded[0] & 0x7F | (encoded[1] & 0x7F) << 7 | encoded[2] << 14
    if size == 2:
        return encoded[0] & 0x7F | encoded[1] << 7
    value = shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value


class PlainMessages:
    """Recognises the plain messages of one producer.

    Args:
        name: of the producer.
    """

    __slots__ = ("_numbers_at", "_prefix", "_time", "_time_bytes")

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self._prefix = b"\x0a" + varint(len(encoded)) + encoded + b"\x10"
        self._numbers_at = _METADATA_AT + len(self._prefix)
        # Many messages have the time of the one before.
        self._time_bytes, self._time = b"\x00", 0

    def entries(self, payloads: Iterable[bytes], bytes_max: int) -> list[NewEntry]:
        """The entries of the leading messages, up to one that is not plain, too large or damaged.

        Args:
            payloads: what followed the plain commands.
            bytes_max: the largest payload.
        """
        prefix, at = self._prefix, self._numbers_at
        found: list[NewEntry] = []
        for payload in payloads:
            if not payload.startswith(prefix, _METADATA_AT) or payload[0] != 0x0E or payload[1] != 0x01:
                break
            end = _METADATA_AT + int.from_bytes(payload[6:10], "big")
            if not end <= len(payload) <= bytes_max:
                break
            seen = _NUMBERS(payload, at, end)
            if seen is None or crc32c(memoryview(payload)[6:]) != int.from_bytes(payload[2:6], "big"):
                break
            time = seen[2]
            if time != self._time_bytes:
                self._time_bytes, self._time = time, _number(time)
            found.append(_new(NewEntry, (payload, 0, 1, self._time, "", 0, -1, NONE)))
        return found

    def sequence_ids(self, entries: Iterable[NewEntry]) -> list[int]:
        """The sequence ids in the metadata of entries that `entries` found."""
        at = self._numbers_at
        return [read_varint(entry.data, at)[0] for entry in entries]
