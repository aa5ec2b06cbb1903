"""Frames: every message follows its length, a big-endian unsigned 32-bit number that does not count itself.

Source: docs/design/bookkeeper.md#framing.
"""

from struct import Struct
from typing import TypeAlias

LENGTH = Struct(">I")

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Bytes of a frame, its length included: `nettyMaxFrameSizeBytes` of a bookie is 5 MiB by default. A bookie discards a larger
frame and ends the connection."""

Frame: TypeAlias = bytes | bytearray
"""A received message without its length. One that came in several pieces is a bytearray, which saves a copy."""

Buffers: TypeAlias = tuple[bytes, ...]
"""A frame to send, length included: the pieces in order. A stored entry is a piece of its own and is not copied."""


class ProtocolError(Exception):
    """The other side sent bytes that the protocol does not allow. The connection is of no further use."""


def checked(size: int) -> int:
    """The size of a message that is to be sent, without its length.

    Raises:
        ValueError: the other side would end the connection.
    """
    if size > FRAME_BYTES_MAX - LENGTH.size:
        raise ValueError(f"a message of {size} bytes is too long for a frame: at most {FRAME_BYTES_MAX - LENGTH.size}")
    return size


class FrameReader:
    """Cuts what arrives on one connection into frames. It copies each byte at most twice, however the stream is cut."""

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        """Begin a connection.

        Args:
            limit: bytes of a frame, length included. It bounds what this object holds.
        """
        self._limit = limit
        self._prefix = b""  # of a frame whose length is not complete
        self._partial: bytearray | None = None  # a frame that is not complete, already at its full size
        self._filled = 0

    @property
    def idle(self) -> bool:
        """No frame has begun: here a connection may end."""
        return self._partial is None and not self._prefix

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now, in order.

        Raises:
            ProtocolError: a frame is longer than the limit.
        """
        at = 0
        frames: list[Frame] = []
        if self._partial is not None:
            at = min(len(data), len(self._partial) - self._filled)
            self._partial[self._filled : self._filled + at] = data[:at] if at < len(data) else data
            self._filled += at
            if self._filled < len(self._partial):
                return frames
            frames.append(self._partial)
            self._partial = None
        elif self._prefix:
            data = self._prefix + data
            self._prefix = b""
        end = len(data)
        while end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size
            if size > self._limit - LENGTH.size:
                raise ProtocolError(f"a frame of {size} bytes: at most {self._limit - LENGTH.size} are allowed")
            if size > end - at:
                self._partial = bytearray(size)
                self._filled = end - at
                self._partial[: self._filled] = data[at:]
                return frames
            frames.append(data[at : at + size])
            at += size
        self._prefix = data[at:]
        return frames
