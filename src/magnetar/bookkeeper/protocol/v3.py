"""Version 3 of the bookies' protocol: protobuf. Every request has a number, which its response repeats.

Both sides are here: a client encodes requests and decodes responses, a bookie (of tests and of the simulator) the reverse.

Source: docs/design/bookkeeper.md#v3.
"""

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.protocol import bookkeeper_pb2 as pb
from magnetar.bookkeeper.protocol.frames import LENGTH, Buffers, Frame, ProtocolError, checked
from magnetar.bookkeeper.protocol.messages import (
    AddEntry,
    Authenticate,
    Authenticated,
    BatchRead,
    BookieInfo,
    Code,
    EntryAdded,
    EntryRead,
    ForceLedger,
    GetBookieInfo,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadBatch,
    ReadEntry,
    ReadLac,
    Request,
    Response,
    StartTls,
    TlsStarted,
    WriteLac,
)
from magnetar.bookkeeper.protocol.varint import varint

VERSION = 3

UNKNOWN = -1
"""As a ledger or entry of a response: a bookie that refuses a request as a whole does not repeat its ids."""

_HIGH_PRIORITY = 100
"""Any number above 0 has this effect; Java's client sends this one."""

_DEFERRED_SYNC = 1
_TOTAL_AND_FREE = 3

_STATUS = {
    Code.OK: 0,
    Code.NO_LEDGER: 402,
    Code.NO_ENTRY: 403,
    Code.BAD_REQUEST: 404,
    Code.IO_ERROR: 501,
    Code.UNAUTHORISED: 502,
    Code.BAD_VERSION: 503,
    Code.FENCED: 504,
    Code.READ_ONLY: 505,
    Code.TOO_MANY: 506,
    Code.UNKNOWN_LEDGER_STATE: 507,
}
_CODES = {status: code for code, status in _STATUS.items()}


def _code(status: int) -> Code:
    """A status that this client does not know is a failure, too: the request is sent to another bookie."""
    return _CODES.get(status, Code.IO_ERROR)


def _framed(message: pb.Request | pb.Response) -> Buffers:
    encoded = message.SerializeToString()
    return (LENGTH.pack(checked(len(encoded))) + encoded,)


def encode_request(request: Request, number: int) -> Buffers:
    """The frame of a request.

    Args:
        request: any but `ReadBatch`, which only version 2 has.
        number: 0 to 2^64 - 1, of no other request in flight on the connection. One frame may go to several bookies.

    Raises:
        ValueError: version 3 cannot say this, or the frame is too long.
    """
    message = pb.Request()
    header = message.header
    header.version = VERSION
    header.number = number
    match request:
        case AddEntry():
            return _encode_add(message, request)
        case ReadEntry():
            header.operation = pb.READ_ENTRY
            _encode_read(message, request)
        case ForceLedger(ledger):
            header.operation = pb.FORCE_LEDGER
            message.force.ledger = ledger
        case ReadLac(ledger):
            header.operation = pb.READ_LAC
            message.read_lac.ledger = ledger
        case WriteLac(ledger, lac, key, body):
            header.operation = pb.WRITE_LAC
            message.write_lac.MergeFrom(pb.WriteLacRequest(ledger=ledger, lac=lac, master_key=key, body=body))
        case GetBookieInfo():
            header.operation = pb.GET_BOOKIE_INFO
            message.bookie_info.requested = _TOTAL_AND_FREE
        case Authenticate(plugin, payload):
            header.operation = pb.AUTH
            message.auth.MergeFrom(pb.AuthMessage(plugin=plugin.encode(), payload=payload))
        case StartTls():
            header.operation = pb.START_TLS
            message.start_tls.SetInParent()
        case ReadBatch():
            raise ValueError("version 3 of the protocol has no ReadBatch: use version 2")
    return _framed(message)


# Tags of fields with a length: the number of the field and wire type 2.
_ADD_TAG = varint(pb.Request.ADD_FIELD_NUMBER << 3 | 2)
_BODY_TAG = varint(pb.AddRequest.BODY_FIELD_NUMBER << 3 | 2)


def _encode_add(message: pb.Request, request: AddEntry) -> Buffers:
    """Protobuf allows any order of fields, so the body comes last, as a piece of its own: it is not copied."""
    message.header.operation = pb.ADD_ENTRY
    add = pb.AddRequest(ledger=request.ledger, entry=request.entry, master_key=request.master_key)
    if request.recovery:
        add.flag = pb.AddRequest.RECOVERY
    if request.deferred_sync:
        add.write_flags = _DEFERRED_SYNC
    if request.high_priority:
        message.header.priority = _HIGH_PRIORITY
    rest = add.SerializePartialToString() + _BODY_TAG + varint(len(request.body))
    head = message.SerializeToString() + _ADD_TAG + varint(len(rest) + len(request.body)) + rest
    return LENGTH.pack(checked(len(head) + len(request.body))) + head, request.body


def _encode_read(message: pb.Request, request: ReadEntry) -> None:
    read = message.read
    read.ledger = request.ledger
    read.entry = request.entry
    if request.fence and (request.piggyback or request.previous_lac is not None):
        raise ValueError("a long poll cannot fence")
    if request.fence:
        read.flag = pb.ReadRequest.FENCE
    if request.piggyback:
        read.flag = pb.ReadRequest.PIGGYBACK
    if request.master_key:
        read.master_key = request.master_key
    if request.previous_lac is not None:
        read.previous_lac = request.previous_lac
        read.timeout_ms = request.timeout_ms
    if request.high_priority:
        message.header.priority = _HIGH_PRIORITY


def decode_response(frame: Frame) -> tuple[int | None, Response]:
    """The number of the request, and the response. Where the bookie refused the request as a whole, its ids are `UNKNOWN`.

    Raises:
        ProtocolError: it is no response.
    """
    try:
        message = pb.Response.FromString(bytes(frame))
    except DecodeError:
        message = pb.Response()
    if not message.IsInitialized():
        raise ProtocolError(f"{len(frame)} bytes are no response of version 3")
    return message.header.number, _RESPONSES[message.header.operation](message)


def _entry_added(message: pb.Response) -> Response:
    if not message.HasField("add"):
        return EntryAdded(UNKNOWN, UNKNOWN, _refused(message))
    return EntryAdded(message.add.ledger, message.add.entry, _code(message.add.status))


def _entry_read(message: pb.Response) -> Response:
    if not message.HasField("read"):
        return EntryRead(UNKNOWN, UNKNOWN, _refused(message), None, None)
    read = message.read
    body = read.body if read.HasField("body") else None
    lac = read.max_lac if read.HasField("max_lac") else None
    return EntryRead(read.ledger, read.entry, _code(read.status), body, lac)


def _ledger_forced(message: pb.Response) -> Response:
    if not message.HasField("force"):
        return LedgerForced(UNKNOWN, _refused(message))
    return LedgerForced(message.force.ledger, _code(message.force.status))


def _lac_read(message: pb.Response) -> Response:
    if not message.HasField("read_lac"):
        return LacRead(UNKNOWN, _refused(message), None, None)
    read = message.read_lac
    lac = read.lac_body if read.HasField("lac_body") else None
    last = read.last_entry_body if read.HasField("last_entry_body") else None
    return LacRead(read.ledger, _code(read.status), lac, last)


def _lac_written(message: pb.Response) -> Response:
    if not message.HasField("write_lac"):
        return LacWritten(UNKNOWN, _refused(message))
    return LacWritten(message.write_lac.ledger, _code(message.write_lac.status))


def _bookie_info(message: pb.Response) -> Response:
    if not message.HasField("bookie_info"):
        return BookieInfo(_refused(message), 0, 0)
    info = message.bookie_info
    return BookieInfo(_code(info.status), info.total_bytes, info.free_bytes)


def _plugin(message: pb.AuthMessage) -> str:
    try:
        return message.plugin.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"the authentication plugin {message.plugin[:40]!r} is no UTF-8") from None


def _authenticated(message: pb.Response) -> Response:
    # A refusal has no message of the authentication.
    if not message.HasField("auth"):
        return Authenticated("", b"", _refused(message))
    return Authenticated(_plugin(message.auth), message.auth.payload, _code(message.status))


def _tls_started(message: pb.Response) -> Response:
    return TlsStarted(_code(message.status))


_RESPONSES = {
    pb.ADD_ENTRY: _entry_added,
    pb.READ_ENTRY: _entry_read,
    pb.FORCE_LEDGER: _ledger_forced,
    pb.READ_LAC: _lac_read,
    pb.WRITE_LAC: _lac_written,
    pb.GET_BOOKIE_INFO: _bookie_info,
    pb.AUTH: _authenticated,
    pb.START_TLS: _tls_started,
}


def _refused(message: pb.Response) -> Code:
    """The code of a response that has nothing but a header and a status.

    Raises:
        ProtocolError: the status is OK, so an answer is missing.
    """
    code = _code(message.status)
    if code is Code.OK:
        raise ProtocolError(f"a response to request {message.header.number} says OK without an answer")
    return code


def decode_request(frame: Frame) -> tuple[int | None, Request]:
    """The number of a request, and the request: what a bookie does.

    Raises:
        ProtocolError: it is no request.
    """
    try:
        message = pb.Request.FromString(bytes(frame))
    except DecodeError:
        message = pb.Request()
    if not message.IsInitialized():
        raise ProtocolError(f"{len(frame)} bytes are no request of version 3")
    operation, body = message.header.operation, _BODIES[message.header.operation]
    if body not in {field.name for field, _ in message.ListFields()}:
        raise ProtocolError(f"a request for {pb.Operation.Name(operation)} without its values")
    return message.header.number, _decode_body(message)


_BODIES = {
    pb.ADD_ENTRY: "add",
    pb.READ_ENTRY: "read",
    pb.FORCE_LEDGER: "force",
    pb.READ_LAC: "read_lac",
    pb.WRITE_LAC: "write_lac",
    pb.GET_BOOKIE_INFO: "bookie_info",
    pb.AUTH: "auth",
    pb.START_TLS: "start_tls",
}


def _decode_body(message: pb.Request) -> Request:
    high = message.header.priority > 0
    match message.header.operation:
        case pb.ADD_ENTRY:
            add = message.add
            deferred = bool(add.write_flags & _DEFERRED_SYNC)
            recovery = add.flag == pb.AddRequest.RECOVERY and add.HasField("flag")
            return AddEntry(add.ledger, add.entry, add.master_key, add.body, recovery, high, deferred)
        case pb.READ_ENTRY:
            read = message.read
            flag = read.flag if read.HasField("flag") else None
            previous = read.previous_lac if read.HasField("previous_lac") else None
            fence, piggyback = flag == pb.ReadRequest.FENCE, flag == pb.ReadRequest.PIGGYBACK
            return ReadEntry(
                read.ledger, read.entry, fence, read.master_key, high, previous, read.timeout_ms, piggyback
            )
        case pb.FORCE_LEDGER:
            return ForceLedger(message.force.ledger)
        case pb.READ_LAC:
            return ReadLac(message.read_lac.ledger)
        case pb.WRITE_LAC:
            lac = message.write_lac
            return WriteLac(lac.ledger, lac.lac, lac.master_key, lac.body)
        case pb.GET_BOOKIE_INFO:
            return GetBookieInfo()
        case pb.AUTH:
            return Authenticate(_plugin(message.auth), message.auth.payload)
        case _:
            return StartTls()


def encode_response(response: Response, number: int | None) -> Buffers:
    """The frame of a response: what a bookie does.

    Args:
        response: any but `BatchRead`, which only version 2 has.
        number: of the request.

    Raises:
        ValueError: version 3 cannot say this, or the frame is too long.
    """
    message = pb.Response()
    header = message.header
    header.version = VERSION
    header.number = number or 0
    match response:
        case EntryAdded(ledger, entry, code):
            header.operation = pb.ADD_ENTRY
            message.add.MergeFrom(pb.AddResponse(status=_STATUS[code], ledger=ledger, entry=entry))
        case EntryRead(ledger, entry, code, body, lac):
            header.operation = pb.READ_ENTRY
            read = pb.ReadResponse(status=_STATUS[code], ledger=ledger, entry=entry, body=body, max_lac=lac)
            message.read.MergeFrom(read)
        case LedgerForced(ledger, code):
            header.operation = pb.FORCE_LEDGER
            message.force.MergeFrom(pb.LedgerResponse(status=_STATUS[code], ledger=ledger))
        case LacRead(ledger, code, lac_body, last):
            header.operation = pb.READ_LAC
            answer = pb.ReadLacResponse(status=_STATUS[code], ledger=ledger, lac_body=lac_body, last_entry_body=last)
            message.read_lac.MergeFrom(answer)
        case LacWritten(ledger, code):
            header.operation = pb.WRITE_LAC
            message.write_lac.MergeFrom(pb.LedgerResponse(status=_STATUS[code], ledger=ledger))
        case BookieInfo(code, total, free):
            header.operation = pb.GET_BOOKIE_INFO
            info = pb.BookieInfoResponse(status=_STATUS[code], total_bytes=total, free_bytes=free)
            message.bookie_info.MergeFrom(info)
        case Authenticated(plugin, payload, code):
            header.operation = pb.AUTH
            if code is Code.OK:
                message.auth.MergeFrom(pb.AuthMessage(plugin=plugin.encode(), payload=payload))
        case TlsStarted(code):
            header.operation = pb.START_TLS
            message.start_tls.SetInParent()
        case BatchRead():
            raise ValueError("version 3 of the protocol has no BatchRead: use version 2")
    message.status = _STATUS[code]
    return _framed(message)
