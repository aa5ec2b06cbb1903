"""Protobuf's variable-length numbers, for the few messages that are encoded by hand."""

from typing import Final

U64: Final = (1 << 64) - 1
"""Also how -1 travels in an unsigned field."""


def signed(value: int) -> int:
    """A number of 64 bits that travelled as unsigned, as who wrote it meant it."""
    return value - (1 << 64) if value >> 63 else value


_ONE_BYTE: Final = tuple(bytes([value]) for value in range(128))


def varint(value: int) -> bytes:
    """A protobuf varint of a number; negative ones travel as unsigned 64 bit."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if 0 <= value < 1 << 21:  # sequence ids and entry ids: there are two in each receipt
        if value < 1 << 14:
            return bytes((value & 0x7F | 0x80, value >> 7))
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    value &= U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(raw: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset after it.

    Raises:
        IndexError: it does not end.
    """
    value = shift = 0
    while raw[at] > 0x7F:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1
