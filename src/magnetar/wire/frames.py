"""Frames of Pulsar's binary protocol: bytes in, commands out, for any split of the bytes.

A frame is `total size (4) | command size (4) | BaseCommand | payload`, big-endian; the total does not count itself
(docs/design/pulsar.md#frames). The payload follows the command: for SEND and MESSAGE it starts at `0x0e01`, for
GEO_APPEND and the GEO_READ response it is entries one after the other. This file never looks into it.

The decoder guarantees:

- the frames that come out do not depend on how the bytes were split;
- a payload is copied once, out of the receive buffer;
- memory is taken for bytes that came, not for sizes that a peer declared;
- the only exception is `FrameError` (a `ProtocolError`); whole frames before the fault are in its `frames`;
- a command that comes out has its type, and the part that its type names. That part has every required field, and text where
  the protocol says text. An unknown type comes out too: what to do with it is the caller's matter;
- a command may hold other parts as well. They are not checked, so nothing may read them, and no command that came in is
  written out again (`tests/unit/broker/session/test_other_parts.py`);
- a broker's decoder (`FrameDecoder.limit`) decodes no command that breaks a limit of `wire.limits`: it comes out as
  `Refused`, and decoding continues with the next frame. Long lists of message ids come out in portions
  (`wire.dividing`).
"""

import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.dividing import names_ids, portions
from magnetar.wire.frame import Frame, PlainSend, Refused
from magnetar.wire.limits import FIELDS_MAX, FREE_BYTES, FREE_IDS_BYTES, heads, why_refused
from magnetar.wire.plain_sends import COMMAND_BYTES_MAX, plain_command
from magnetar.wire.text import missing_fields, text_is_valid

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Pulsar's default `maxMessageSize`: metadata and payload of one entry."""

FRAME_PADDING_BYTES: Final = 10 * 1024
"""The allowance in a frame for the command, in addition to the message. The same as Pulsar's."""

FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
"""A ceiling for an ordinary client's frames."""

BUFFER_BYTES_MIN: Final = 16 * 1024
"""A new connection's receive buffer: thousands of idle connections must cost little."""

BUFFER_BYTES_BUSY: Final = 256 * 1024
"""The size to which the receive buffer of a busy connection grows; measured: more per system call gains nothing."""

READ_BYTES_MIN: Final = 4 * 1024
"""Less room than this is not worth a system call: the rest of a frame is moved to the buffer's front first."""

_HEADER: Final = struct.Struct(">II")
_HEADER_BYTES: Final = 8

_FIELD_OF_TYPE: Final[dict[int, str]] = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.name != "type"
}

_NO_TEXT: Final = frozenset((pb.SEND, pb.SEND_RECEIPT, pb.MESSAGE, pb.FLOW, pb.PING, pb.PONG))
"""Commands without text fields. The hot ones are not searched for any."""


class FrameError(ProtocolError):
    """The bytes are not Pulsar's protocol; the connection cannot continue.

    Attributes:
        frames: the whole frames before the fault in the same call. They are valid and may be handled.
    """

    def __init__(self, message: str, frames: Sequence[Frame] = ()) -> None:
        super().__init__(message)
        self.frames: list[Frame] = list(frames)


class FrameDecoder:
    """Takes bytes, gives frames.

    Two doors to the same thing: `feed`, and `get_buffer` / `buffer_updated` for `asyncio.BufferedProtocol` and
    `socket.recv_into`, which let the kernel write where the decoder reads.

    Attributes:
        frame_bytes_max: the largest total size accepted; may be changed at any time, counts from the next frame on.
        more: the last call gave as many frames as it was asked for; there may be more of them here.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.more = False
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._fault = ""
        self._command_bytes_max = 0
        self._fields_max = 0
        self._portions: Iterator[bytes] | None = None

    def limit(self, command_bytes_max: int, fields_max: int = FIELDS_MAX) -> None:
        """From the next frame on check commands for the limits of `wire.limits`.

        Args:
            command_bytes_max: largest size of a command, without its payload.
            fields_max: most fields of a command.
        """
        self._command_bytes_max, self._fields_max = command_bytes_max, fields_max

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end - self._start

    def head(self, count: int) -> bytes:
        """The first bytes of an incomplete or invalid frame, to identify it."""
        return bytes(self._view[self._start : min(self._end, self._start + count)])

    @property
    def capacity_bytes(self) -> int:
        """Size of the receive buffer."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take bytes, return the frames that they complete.

        Raises:
            FrameError: malformed; raised again by every later call.
        """
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer(len(rest))
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            try:
                frames += self.buffer_updated(count)
            except FrameError as error:
                error.frames[:0] = frames
                raise
        return frames

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """The buffer for the next received bytes; never empty. Valid until the next call of any method."""
        if len(self._buffer) - self._end < READ_BYTES_MIN:
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, count: int, frames_max: int = sys.maxsize) -> list[Frame]:
        """Bytes were written into the start of the buffer last handed out: the frames that they complete.

        Args:
            count: how many bytes.
            frames_max: how many frames; when there are more, `more` is set, and a call with 0 bytes gives the next ones.

        Raises:
            FrameError: malformed; raised again by every later call.
        """
        if self._fault:
            raise FrameError(self._fault)
        filled = count and self._end + count == len(self._buffer)
        self._end += count
        frames: list[Frame] = []
        try:
            self._take(frames, frames_max)
        except FrameError as error:
            error.frames = frames
            self._fault = str(error)  # not the error: its traceback refers to this decoder
            raise
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES_BUSY:
                self._resize(BUFFER_BYTES_BUSY)  # a large frame is through: give its room back
        if filled and len(self._buffer) < BUFFER_BYTES_BUSY:
            self._resize(2 * len(self._buffer))
        return frames

    def _take(self, frames: list[Frame], frames_max: int) -> None:
        """Append the complete frames in the buffer to `frames`."""
        self.more = False
        if self._portion(frames):
            self.more = True
            return
        buffer, view, start, end = self._buffer, self._view, self._start, self._end
        unpack, parse, new = _HEADER.unpack_from, pb.BaseCommand.FromString, tuple.__new__
        free, plain_max = (FREE_BYTES, COMMAND_BYTES_MAX) if self._fields_max else (sys.maxsize, 0)
        try:
            while end - start >= _HEADER_BYTES:
                if len(frames) >= frames_max:
                    self.more = True
                    break
                total, size = unpack(view, start)
                if total > self.frame_bytes_max or size > total - 4 or not size:
                    raise bad_sizes(total, size, self.frame_bytes_max)
                stop = start + 4 + total
                if stop > end:
                    break
                behind = start + _HEADER_BYTES + size
                if size <= plain_max and buffer[start + _HEADER_BYTES + 1] == _SEND:
                    plain = plain_command(buffer, start + _HEADER_BYTES, behind)
                    if plain is not None:
                        frames.append(new(PlainSend, (None, view[behind:stop].tobytes(), *plain)))
                        start = stop
                        continue
                raw = view[start + _HEADER_BYTES : behind].tobytes()
                if size > free and (instead := self._checked(raw)) is not None:
                    frames += instead
                    start = stop
                    if self._portions is not None:
                        break
                    continue
                command = parse(raw)
                check_command(command, raw)
                frames.append(Frame(command, view[behind:stop].tobytes() if behind != stop else b""))
                start = stop
            else:
                # Impossible sizes are reported as soon as the first four bytes are there, for any split of the bytes.
                if end - start >= 4:
                    (total,) = _TOTAL.unpack_from(view, start)
                    if not FRAME_BYTES_LEAST <= total <= self.frame_bytes_max:
                        raise bad_sizes(total, 1, self.frame_bytes_max)
        except DecodeError:
            raise FrameError("command is not a protobuf BaseCommand") from None
        finally:
            self._start = start

    def _checked(self, raw: bytes) -> list[Frame] | None:
        """The frames that replace a command that breaks a limit or is taken in portions; None: decode it as usual."""
        if names_ids(raw):
            if len(raw) <= FREE_IDS_BYTES:
                return None
            self._portions, self.more = portions(raw), True
            return []
        reason = why_refused(raw, self._command_bytes_max, self._fields_max)
        return [_refused(raw, reason)] if reason else None

    def _portion(self, frames: list[Frame]) -> bool:
        """The next portion of a long list of message ids; whether there was one, or a pause."""
        if self._portions is None:
            return False
        raw = next(self._portions, None)
        if raw is None:
            self._portions = None
            return False
        if not raw:
            return True
        if len(raw) > FREE_IDS_BYTES and (reason := why_refused(raw, self._command_bytes_max, self._fields_max)):
            frames.append(_refused(raw, reason))
            return True
        try:
            command = pb.BaseCommand.FromString(raw)
        except DecodeError:
            raise FrameError("command is not a protobuf BaseCommand") from None
        check_command(command, raw)
        frames.append(Frame(command, b""))
        return True

    def _make_room(self) -> None:
        """Move what is left of a frame to the front; if it fills the buffer, take a larger one.

        Doubling up to the declared size, not the declared size at once: a peer that announces 5 MiB and then says
        nothing holds no more than twice what it sent.
        """
        left = self._end - self._start
        capacity = len(self._buffer)
        if capacity - left >= READ_BYTES_MIN and (left <= capacity // 2 or capacity >= self._wanted()):
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left
        else:
            self._resize(max(min(2 * capacity, self._wanted()), left + READ_BYTES_MIN))

    def _wanted(self) -> int:
        """Room for the current frame and one read after it, and never less than a busy connection's buffer."""
        if self._end - self._start < 4:
            return BUFFER_BYTES_BUSY
        (total,) = _TOTAL.unpack_from(self._view, self._start)
        return max(BUFFER_BYTES_BUSY, 4 + int(total) + READ_BYTES_MIN)

    def _resize(self, capacity: int) -> None:
        # A new buffer, never `bytearray.extend`: the old one may still be exported to the event loop.
        left = self._end - self._start
        fresh = bytearray(capacity)
        fresh[:left] = self._view[self._start : self._end]
        self._buffer, self._view = fresh, memoryview(fresh)
        self._start, self._end = 0, left


def _refused(raw: bytes, reason: str) -> Refused:
    """A `Refused` for a command that breaks a limit.

    Raises:
        FrameError: the command has no answer, so the refusal could not be reported to the client.
    """
    command = heads(raw)
    kind = command.type if command is not None else 0
    part = getattr(command, _FIELD_OF_TYPE[kind]) if kind in _FIELD_OF_TYPE else None
    answered = part is not None and "request_id" in part.DESCRIPTOR.fields_by_name and part.HasField("request_id")
    if command is None or not (answered or kind == _CONNECT):
        raise FrameError(f"command{f' of type {kind}' if kind else ''} that is refused: {reason}")
    return Refused(command, reason.encode())


_CONNECT: Final = pb.CONNECT
_SEND: Final = 6

_TOTAL: Final = struct.Struct(">I")

FRAME_BYTES_LEAST: Final = 5
"""A command size, and a command that is not empty."""


def bad_sizes(total: int, size: int, most: int) -> FrameError:
    """The error of a frame whose sizes cannot be right.

    Args:
        total: the frame's declared size in bytes.
        size: its command's.
        most: the largest frame that is accepted.
    """
    if total > most:
        return FrameError(f"frame of {total} bytes: at most {most} are accepted")
    if total < FRAME_BYTES_LEAST:
        return FrameError(f"frame of {total} bytes: the least is {FRAME_BYTES_LEAST}")
    return FrameError(f"command of {size} bytes in a frame of {total}")


def check_command(command: pb.BaseCommand, raw: bytes) -> None:
    """Check the part that the type of a command names; the others are not looked at: to ask for all of them costs 1 us.

    Args:
        command: what `raw` holds.
        raw: its bytes.

    Raises:
        FrameError: the type or its part is missing, the part lacks a required field, or holds text that is not UTF-8.
    """
    kind = command.type
    field = _FIELD_OF_TYPE.get(kind)
    if field is None:
        if not command.HasField("type"):
            raise FrameError(f"command of type {kind} lacks {missing_fields(command)}")
        return
    if not command.HasField(field):  # type: ignore[arg-type]
        raise FrameError(f"command of type {kind} without its '{field}' part")
    part = getattr(command, field)
    if not part.IsInitialized():
        raise FrameError(f"command of type {kind} lacks {missing_fields(part, f'{field}.')}")
    if kind not in _NO_TEXT and not raw.isascii() and not text_is_valid(part):
        raise FrameError(f"command of type {kind} holds text that is not UTF-8")


def encode(command: pb.BaseCommand) -> bytes:
    """One frame without payload."""
    body = command.SerializeToString()
    return _HEADER.pack(4 + len(body), len(body)) + body


def encode_head(command: pb.BaseCommand, payload_bytes: int) -> bytes:
    """Header and command of a frame; `payload_bytes` bytes must follow on the wire."""
    body = command.SerializeToString()
    return _HEADER.pack(4 + len(body) + payload_bytes, len(body)) + body


def encode_with_payload(command: pb.BaseCommand, payload: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """One frame as buffers to be written one after the other: header and command, then `payload` as it is, not copied.

    Args:
        command: the command.
        payload: byte buffers (a memoryview must be of format "B", so that its length is in bytes).
    """
    return [encode_head(command, sum(map(len, payload))), *payload]
