"""Protobuf's variable-length numbers. This package imports nothing of Magnetar, so it does not use `wire/varint.py`."""


def varint(value: int) -> bytes:
    """A number of 0 or more: seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
