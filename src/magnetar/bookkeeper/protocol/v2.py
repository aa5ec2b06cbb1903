"""Version 2 of the bookies' protocol: fixed binary layouts. The fastest one; a response carries no number of its request.

Both sides are here: a client encodes requests and decodes responses, a bookie (of tests and of the simulator) the reverse.
A response names ledger and entry, so two requests for the same entry cannot be distinguished.

Source: docs/design/bookkeeper.md#v2.
"""

import struct
from struct import Struct

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.protocol.bookkeeper_pb2 import AuthMessage
from magnetar.bookkeeper.protocol.digests import MASTER_KEY_BYTES
from magnetar.bookkeeper.protocol.frames import Buffers, Frame, ProtocolError, checked
from magnetar.bookkeeper.protocol.messages import (
    AddEntry,
    Authenticate,
    Authenticated,
    BatchRead,
    Code,
    EntryAdded,
    EntryRead,
    ReadBatch,
    ReadEntry,
    Request,
    Response,
)

VERSION = 2

_ADD, _READ, _AUTH, _BATCH_READ = 1, 2, 3, 7
_FENCE, _RECOVERY, _HIGH_PRIORITY = 1, 2, 4

_CODES = {int(code): code for code in Code}

# Each begins with the length of the frame and a header: version, operation, flags.
_HEAD = Struct(">IBBH")
_ADD_REQUEST = Struct(">IBBH20s")
_READ_REQUEST = Struct(">IBBHqq")
_BATCH_REQUEST = Struct(">IBBHqqqiq")
_RESPONSE = Struct(">IBBHiqq")

# The same without the length, for decoding.
_HEADER = Struct(">BBH")
_READ_BODY = Struct(">qq")
_BATCH_BODY = Struct(">qqqiq")
_RESPONSE_BODY = Struct(">BBHiqq")
_NUMBER = Struct(">q")
_SIZE = Struct(">I")


def _key(key: bytes) -> bytes:
    if len(key) != MASTER_KEY_BYTES:
        raise ValueError(f"a master key of {len(key)} bytes: it has {MASTER_KEY_BYTES}")
    return key


def encode_request(request: Request, number: int = 0) -> Buffers:
    """The frame of a request.

    Args:
        request: `AddEntry`, `ReadEntry`, `ReadBatch` or `Authenticate`; version 2 has no others.
        number: comes back with the answer to `ReadBatch`; other requests do not carry it.

    Raises:
        ValueError: version 2 cannot say this, or the frame is too long.
    """
    match request:
        case AddEntry():
            if request.deferred_sync:
                raise ValueError("version 2 of the protocol has no deferred sync: use version 3")
            flags = (_RECOVERY if request.recovery else 0) | (_HIGH_PRIORITY if request.high_priority else 0)
            size = checked(24 + len(request.body))
            return _ADD_REQUEST.pack(size, VERSION, _ADD, flags, _key(request.master_key)), request.body
        case ReadEntry():
            if request.previous_lac is not None or request.piggyback:
                raise ValueError("version 2 of the protocol has no long poll: use version 3")
            flags = (_FENCE if request.fence else 0) | (_HIGH_PRIORITY if request.high_priority else 0)
            key = _key(request.master_key) if request.fence else b""
            head = _READ_REQUEST.pack(20 + len(key), VERSION, _READ, flags, request.ledger, request.entry)
            return (head + key,)
        case ReadBatch():
            ledger, first, entries, size = request.ledger, request.first, request.entries_max, request.bytes_max
            return (_BATCH_REQUEST.pack(40, VERSION, _BATCH_READ, 0, ledger, first, number, entries, size),)
        case Authenticate():
            return _authentication(request.plugin, request.payload)
        case _:
            raise ValueError(f"version 2 of the protocol has no {type(request).__name__}: use version 3")


def decode_response(frame: Frame) -> tuple[int | None, Response]:
    """The number of a request, if the response carries it, and the response. Only `BatchRead` has a number.

    Raises:
        ProtocolError: it is no response.
    """
    try:
        version, operation, _, code, ledger, entry = _RESPONSE_BODY.unpack_from(frame)
    except struct.error:
        return None, _decode_authenticated(frame)
    if version != VERSION:
        raise ProtocolError(f"a response of version {version} of the protocol: expected {VERSION}")
    # A code that this client does not know is a failure, too: the request is sent to another bookie.
    answer = _CODES.get(code, Code.IO_ERROR)
    if operation == _ADD:
        if len(frame) != _RESPONSE_BODY.size:
            raise ProtocolError(f"an answer to an add of {len(frame)} bytes: it has {_RESPONSE_BODY.size}")
        return None, EntryAdded(ledger, entry, answer)
    if operation == _READ:
        body = bytes(memoryview(frame)[_RESPONSE_BODY.size :]) if answer is Code.OK else None
        return None, EntryRead(ledger, entry, answer, body, None)
    if operation == _BATCH_READ:
        number, bodies = _decode_bodies(frame)
        return number, BatchRead(ledger, entry, answer, bodies)
    return None, _decode_authenticated(frame)


def _decode_bodies(frame: Frame) -> tuple[int, tuple[bytes, ...]]:
    """The number of the request and the entries of a batch."""
    view = memoryview(frame)
    at = _RESPONSE_BODY.size + _NUMBER.size
    bodies = []
    try:
        (number,) = _NUMBER.unpack_from(frame, _RESPONSE_BODY.size)
        while at < len(frame):
            (size,) = _SIZE.unpack_from(frame, at)
            at += _SIZE.size
            if size > len(frame) - at:
                raise ProtocolError(f"an entry of {size} bytes in a batch: the frame has {len(frame) - at} more")
            bodies.append(bytes(view[at : at + size]))
            at += size
    except struct.error:
        raise ProtocolError(f"an answer to a batch read of {len(frame)} bytes is cut off") from None
    return number, tuple(bodies)


def _decode_authenticated(frame: Frame) -> Authenticated:
    return Authenticated(*_decode_authentication(frame))


def _authentication(plugin: str, payload: bytes) -> Buffers:
    message = AuthMessage(plugin=plugin.encode(), payload=payload).SerializeToString()
    return _HEAD.pack(checked(_HEADER.size + len(message)), VERSION, _AUTH, 0), message


def _decode_authentication(frame: Frame) -> tuple[str, bytes]:
    """Plugin and payload of a frame that is none of the fixed layouts."""
    if len(frame) < _HEADER.size or frame[0] != VERSION or frame[1] != _AUTH:
        raise ProtocolError(f"{len(frame)} bytes beginning with {frame[:4].hex()}: no message of version 2")
    try:
        message = AuthMessage.FromString(bytes(memoryview(frame)[_HEADER.size :]))
        if message.IsInitialized():
            return message.plugin.decode(), message.payload
    except (DecodeError, UnicodeDecodeError):
        pass
    raise ProtocolError(f"{len(frame)} bytes are no message of an authentication")


def decode_request(frame: Frame) -> tuple[int | None, Request]:
    """The number of a request, which only `ReadBatch` has, and the request: what a bookie does.

    Raises:
        ProtocolError: it is no request.
    """
    try:
        version, operation, flags = _HEADER.unpack_from(frame)
        if version != VERSION:
            raise ProtocolError(f"a request of version {version} of the protocol: expected {VERSION}")
        high = bool(flags & _HIGH_PRIORITY)
        if operation == _ADD:
            body = bytes(memoryview(frame)[24:])
            ledger, entry = _READ_BODY.unpack_from(body)
            return None, AddEntry(ledger, entry, bytes(frame[4:24]), body, bool(flags & _RECOVERY), high)
        if operation == _READ:
            ledger, entry = _READ_BODY.unpack_from(frame, 4)
            fence = bool(flags & _FENCE)
            key = bytes(frame[20:40]) if fence else b""
            if len(frame) != 20 + (MASTER_KEY_BYTES if fence else 0):
                raise ProtocolError(f"a read of {len(frame)} bytes has the wrong size")
            return None, ReadEntry(ledger, entry, fence, key, high)
        if operation == _BATCH_READ:
            ledger, first, number, entries, size = _BATCH_BODY.unpack_from(frame, 4)
            return number, ReadBatch(ledger, first, entries, size)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes is cut off") from None
    return None, Authenticate(*_decode_authentication(frame))


def encode_response(response: Response, number: int | None = None) -> Buffers:
    """The frame of a response: what a bookie does.

    Args:
        response: `EntryAdded`, `EntryRead`, `BatchRead` or `Authenticated`.
        number: of the request; only `BatchRead` carries it.

    Raises:
        ValueError: version 2 cannot say this, or the frame is too long.
    """
    size = _RESPONSE_BODY.size
    match response:
        case EntryAdded(ledger, entry, code):
            return (_RESPONSE.pack(size, VERSION, _ADD, 0, code, ledger, entry),)
        case EntryRead(ledger, entry, code, body, _):
            stored = body or b""
            return _RESPONSE.pack(checked(size + len(stored)), VERSION, _READ, 0, code, ledger, entry), stored
        case BatchRead(ledger, first, code, bodies):
            pieces = [piece for stored in bodies for piece in (_SIZE.pack(len(stored)), stored)]
            size = checked(size + _NUMBER.size + sum(map(len, pieces)))
            head = _RESPONSE.pack(size, VERSION, _BATCH_READ, 0, code, ledger, first)
            return head, _NUMBER.pack(number or 0), *pieces
        case Authenticated(plugin, payload, Code.OK):
            return _authentication(plugin, payload)
        case _:
            raise ValueError(f"version 2 of the protocol has no {response}: use version 3")
