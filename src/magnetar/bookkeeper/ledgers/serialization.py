"""The bytes of a ledger's metadata in ZooKeeper: formats 1, 2 and 3 of BookKeeper.

A line with the number of the format comes first. Format 3, the default, continues with a length and a protobuf message, format 2
with the text form of that message, format 1 with lines of text.

Source: `LedgerMetadataSerDe` of Apache BookKeeper 4.17.3; docs/design/bookkeeper.md#metadata.
"""

import re

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, BookieId, DigestType, LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.protocol.bookkeeper_pb2 import LedgerMetadataFormat
from magnetar.bookkeeper.protocol.varint import varint

METADATA_BYTES_MAX = 1024 * 1024 - 1
"""Limit of a node of ZooKeeper: the default of its `jute.maxbuffer`. It bounds the number of segments and the custom values."""

_VERSION = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")
_BOOKIE = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_NUMBER = re.compile(r"-?[0-9]{1,19}")

_CLOSED = "CLOSED"
_RECOVERING = -102
"""In place of the last entry, in format 1: the ledger is in recovery."""


class UnreadableMetadata(Exception):
    """The bytes are no metadata of a ledger. The message is one line that says why."""


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes of a ledger's node, in the format that `metadata.format_version` names.

    Format 2 has no token. Format 1 has neither token, time of creation, digest nor password.

    Raises:
        ValueError: the format does not exist or cannot say this, or the bytes exceed `METADATA_BYTES_MAX`.
    """
    for segment in metadata.segments:
        for bookie in segment.ensemble:
            _checked_bookie(bookie)
    match metadata.format_version:
        case 3:
            body = _message(metadata)
            body.cToken = metadata.token
            message = body.SerializeToString()
            encoded = varint(len(message)) + message
        case 2:
            encoded = text_format.MessageToString(_message(metadata)).encode()
        case 1:
            encoded = _lines(metadata).encode()
        case other:
            raise ValueError(f"metadata of a ledger in format {other}: there are 1, 2 and 3")
    encoded = b"BookieMetadataFormatVersion\t%d\n" % metadata.format_version + encoded
    if len(encoded) > METADATA_BYTES_MAX:
        raise ValueError(
            f"metadata of a ledger of {len(encoded)} bytes, {len(metadata.segments)} segments: "
            f"ZooKeeper stores at most {METADATA_BYTES_MAX}"
        )
    return encoded


def decode_metadata(encoded: bytes, *, digest: DigestType = DigestType.CRC32C, password: bytes = b"") -> LedgerMetadata:
    """Read the bytes of a ledger's node.

    Args:
        encoded: the data of the node.
        digest, password: of a ledger whose metadata does not have them, as in format 1.

    Raises:
        UnreadableMetadata: something is missing or contradicts itself, or the format is not known.
    """
    found = _VERSION.match(encoded)
    if found is None:
        raise UnreadableMetadata(f"metadata of a ledger begins with {encoded[:30]!r}: no format version")
    rest = encoded[found.end() :]
    version = int(found[1])
    try:
        match version:
            case 3:
                return _read_message(_binary(rest), 3, digest, password)
            case 2:
                return _read_message(_text(rest), 2, digest, password)
            case 1:
                return _read_lines(rest, digest, password)
            case _:
                raise UnreadableMetadata(f"metadata of a ledger in format {version}: this client knows 1, 2 and 3")
    except ValueError as error:
        # The check of the values themselves, and text that is no UTF-8.
        raise UnreadableMetadata(f"metadata of a ledger in format {version}: {error}") from None


def _checked_bookie(name: str) -> BookieId:
    if not _BOOKIE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a bookie")
    return BookieId(name)


# ---- formats 2 and 3 ----


def _message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    """Everything except the token, which format 2 does not have."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry,
        state=LedgerMetadataFormat.State.Value(metadata.state.name),
        digestType=LedgerMetadataFormat.DigestType.Value(metadata.digest.name),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
    )
    if metadata.created_ms >= 0:
        message.ctime = metadata.created_ms
    for segment in metadata.segments:
        members = [bookie.encode() for bookie in segment.ensemble]
        message.segment.add(ensembleMember=members, firstEntryId=segment.first)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key.encode(), value=value)
    return message


def _binary(rest: bytes) -> LedgerMetadataFormat:
    size = at = 0
    for at in range(min(5, len(rest))):
        size |= (rest[at] & 0x7F) << 7 * at
        if rest[at] < 0x80:
            break
    body = rest[at + 1 :]
    if size != len(body):
        raise UnreadableMetadata(f"metadata of a ledger in format 3: {size} bytes are announced, {len(body)} follow")
    try:
        return LedgerMetadataFormat.FromString(body)
    except DecodeError:
        raise UnreadableMetadata(f"metadata of a ledger in format 3: {size} bytes are no protobuf message") from None


def _text(rest: bytes) -> LedgerMetadataFormat:
    try:
        return text_format.Parse(rest.decode(), LedgerMetadataFormat())
    except text_format.ParseError as error:
        raise UnreadableMetadata(f"metadata of a ledger in format 2: {' '.join(str(error).split())}") from None


def _read_message(message: LedgerMetadataFormat, version: int, digest: DigestType, password: bytes) -> LedgerMetadata:
    if not message.IsInitialized():
        raise UnreadableMetadata(
            f"metadata of a ledger in format {version}: quorumSize, ensembleSize, length, state or firstEntryId is missing"
        )
    if message.HasField("password"):
        if not message.HasField("digestType"):
            raise UnreadableMetadata(f"metadata of a ledger in format {version}: digestType is missing or not known")
        digest, password = DigestType(message.digestType), message.password
    state = LedgerState(message.state)
    last_entry, length = NO_ENTRY, 0
    if state is LedgerState.CLOSED:
        if not message.HasField("lastEntryId"):
            raise UnreadableMetadata(f"metadata of a ledger in format {version}: it is closed and has no lastEntryId")
        last_entry, length = _checked_end(message.lastEntryId, message.length)
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        state=state,
        segments=tuple(
            Segment(segment.firstEntryId, tuple(_checked_bookie(name.decode()) for name in segment.ensembleMember))
            for segment in message.segment
        ),
        digest=digest,
        password=password,
        last_entry=last_entry,
        length=length,
        created_ms=message.ctime if message.HasField("ctime") else -1,
        custom={pair.key.decode(): pair.value for pair in message.customMetadata},
        token=message.cToken,
        format_version=version,
    )


def _checked_end(last_entry: int, length: int) -> tuple[int, int]:
    if last_entry < NO_ENTRY or length < 0:
        raise ValueError(f"the last entry is {last_entry} and the length {length}")
    return last_entry, length


# ---- format 1 ----


def _lines(metadata: LedgerMetadata) -> str:
    if metadata.ack_quorum != metadata.write_quorum or metadata.custom:
        raise ValueError("format 1 of a ledger's metadata has no ack quorum of its own and no custom values: use 3")
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(segment.first), *segment.ensemble)) for segment in metadata.segments]
    match metadata.state:
        case LedgerState.OPEN:
            lines.append("")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_RECOVERING}\t{_CLOSED}")
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry}\t{_CLOSED}")
    return "\n".join(lines)


def _read_lines(rest: bytes, digest: DigestType, password: bytes) -> LedgerMetadata:
    lines = rest.decode().split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 3:
        raise ValueError(f"{len(lines)} lines: write quorum, ensemble and length take three")
    write_quorum, ensemble, length = map(_number, lines[:3])
    state, last_entry = LedgerState.OPEN, NO_ENTRY
    segments = []
    for line in lines[3:]:
        if state is not LedgerState.OPEN:
            raise ValueError(f"{line!r} follows the line that closes the ledger")
        first, *bookies = line.split("\t")
        if bookies != [_CLOSED]:
            segments.append(Segment(_number(first), tuple(map(_checked_bookie, bookies))))
        elif (last_entry := _number(first)) == _RECOVERING:
            state, last_entry = LedgerState.IN_RECOVERY, NO_ENTRY
        else:
            state = LedgerState.CLOSED
            _checked_end(last_entry, length)
    return LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        state=state,
        segments=tuple(segments),
        digest=digest,
        password=password,
        last_entry=last_entry,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=1,
    )


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return int(text)
