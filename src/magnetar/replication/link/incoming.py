"""Checks the entries that come over a link, and makes them into entries of this cluster's log.

The destination broker, not the pipeline, states the origin of an entry: it appends `replicated_from` to the metadata and
recomputes the checksum. So no task parses metadata, and a client without the link token cannot forge an origin.

A schema version becomes the number that the schema has here (`replication.link.schemas`): where the two differ, that field
is appended too.

Bytes that fail their checksum were damaged on the way or at the source: they are never stored, and the topic stops there.
A request that only a broken or hostile peer sends (lists of different lengths, positions out of order, an entry that names
another origin, a wrong count of messages) ends the connection instead.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.core.ids import LEDGER_MAX, NONE, Position
from magnetar.replication.link.ports import DestinationTopic, KeysAhead
from magnetar.replication.link.schemas import AHEAD_MAX, WANTED_MAX, Translation
from magnetar.storage.entries import Append, EntryFlags, NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import INDEX_MAX
from magnetar.wire.idempotency_keys import Found
from magnetar.wire.limits import LINK_METADATA_FIELDS_MAX
from magnetar.wire.metadata import (
    MAGIC,
    ChecksumError,
    Inspected,
    MessageTooLargeError,
    build,
    field_bytes,
    inspect,
    parse_metadata,
    with_appended,
)
from magnetar.wire.positions import position_from_proto

ENTRIES_MAX: Final = 65_536
"""A ceiling on entries in one frame: their lists are some 3 MB then."""

ENTRY_MAX: Final = (1 << 62) - 1
"""A ceiling on entry ids, far above what a ledger holds."""

ENTRY_HEADER_BYTES: Final = 10
"""Magic, checksum and metadata size: not counted by the size limit, as in Pulsar."""

COPIED_BYTES_MAX: Final = 16 << 10
"""Up to here, copying an entry once more is cheaper than three more calls of the checksum."""

REPLICATED_FROM: Final = 5
_REPLICATED: Final = int(EntryFlags.REPLICATED)
_MARKER: Final = int(EntryFlags.MARKER)


class Sized(Protocol):
    """A request that is followed by entries."""

    @property
    def sizes(self) -> Sequence[int]:
        """Size of the entries, in bytes."""
        ...


class Stamp:
    """The fields that are appended to the metadata of every entry that comes from a cluster.

    Args:
        source: the cluster.
    """

    __slots__ = ("field", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.field = field_bytes(REPLICATED_FROM, source.encode())


def stamped(data: bytes, metadata_end: int, suffix: bytes) -> bytes:
    """`wire.metadata.with_appended` for an entry whose sizes were checked: one checksum call for small ones (half the time)."""
    if len(data) > COPIED_BYTES_MAX:
        return with_appended(data, suffix)
    size = (metadata_end - ENTRY_HEADER_BYTES + len(suffix)).to_bytes(4, "big")
    body = b"".join((size, data[ENTRY_HEADER_BYTES:metadata_end], suffix, data[metadata_end:]))
    return b"".join((MAGIC, crc32c(body).to_bytes(4, "big"), body))


def without_schema_version(seen: Inspected) -> bytes:
    """An entry without a number that its source cannot explain.

    A consumer that gets no number decodes with its own schema; with a foreign number it might decode with another one.
    """
    seen.metadata.ClearField("schema_version")
    return build(seen.metadata, seen.payload[seen.metadata_end :])


class BlockedEntry(NamedTuple):
    """The entry that stops its topic."""

    kind: str
    reason: str
    position: Position
    conflict: pb.GeoSchemaConflict | None = None


class Ahead:
    """The result of searching one entry of a request off the event loop.

    Attributes:
        found: None: nothing.
        at: the entry's position at its source.
    """

    __slots__ = ("at", "found")

    def __init__(self) -> None:
        self.found: Found | None = None
        self.at = NONE

    def split(self, keys: KeysAhead | None, entries: list[NewEntry]) -> tuple[list[NewEntry], NewEntry | None]:
        """The entries that can be stored now, and the next one, which has to be opened elsewhere first."""
        if keys is None or not entries:
            return entries, None
        if entries[0].source != self.at:
            self.found = None  # another task has brought that entry meanwhile
        at = keys.long_at(entries, self.found)
        return entries[:at], entries[at] if at < len(entries) else None


def append_ahead(
    topic: DestinationTopic,
    ahead: Ahead,
    entries: list[NewEntry],
    outcome: Callable[[Append, str], None],
    *,
    marker: bool = False,
) -> None:
    """Append entries, the first of which may have been opened before.

    Raises:
        BrokerError: it cannot be now.
    """
    found, ahead.found = ahead.found, None
    keys = topic.idempotency if found is not None else None
    if keys is not None:
        keys.known_ahead(found)
    try:
        topic.append(entries, outcome, durable=True, marker=marker)
    finally:
        if keys is not None:
            keys.known_ahead(None)


class UnknownSchemaVersion(NamedTuple):
    """The entry whose schema version means nothing here (yet).

    Attributes:
        at: which entry of its request.
        version: the number.
        offset: where its bytes begin.
    """

    at: int
    version: int
    offset: int


def translated(seen: Inspected, translation: Translation, stamp: bytes) -> bytes | int:
    """An entry of which the version is not known yet: without it, if its source cannot explain it; else its number."""
    number = translation.number(seen.metadata.schema_version)
    if number is not None:
        return number
    translation.dropped += 1
    return with_appended(without_schema_version(seen), stamp)


def refused(translation: Translation, number: int, position: Position) -> BlockedEntry:
    """The entry whose schema is not allowed here."""
    refusal = translation.refused[number]
    return BlockedEntry("schema", f"message {position} {refusal.reason}", position, refusal.conflict)


def markers_before(
    entries: list[NewEntry], obstacle: BlockedEntry | UnknownSchemaVersion | None, why: str
) -> tuple[list[NewEntry], BlockedEntry | UnknownSchemaVersion | None]:
    """The entries that a terminated topic takes: the markers before the first message, which stops the link."""
    for at, entry in enumerate(entries):
        if not entry.flags & _MARKER:
            reason = f"{why}: message {entry.source} cannot be stored there"
            return entries[:at], BlockedEntry("terminated", reason, entry.source)
    return entries, obstacle


def wanted(request: "Sized", payload: bytes, unknown: UnknownSchemaVersion, translation: Translation) -> set[int]:
    """The unknown version and others in later entries, so that they are asked for together."""
    found = {unknown.version}
    offset = unknown.offset
    for size in request.sizes[unknown.at : unknown.at + AHEAD_MAX]:
        try:
            seen = parse_metadata(payload[offset : offset + size])
        except ProtocolError:
            break
        offset += size
        if seen.HasField("schema_version") and seen.schema_version not in translation.suffixes:
            number = translation.number(seen.schema_version)
            if number is not None and number not in translation.refused:
                found.add(number)
        if len(found) >= WANTED_MAX:
            break
    return found


def check_lists(request: pb.CommandGeoAppend, payload_bytes: int) -> list[Position]:
    """The positions of a GEO_APPEND.

    Raises:
        ProtocolError: its lists, sizes or positions cannot be.
    """
    count = len(request.ledgers)
    lists = (request.entries, request.first_indexes, request.counts, request.sizes)
    if not 1 <= count <= ENTRIES_MAX or any(len(values) != count for values in lists):
        raise ProtocolError(f"GEO_APPEND with lists of {count}, {', '.join(str(len(v)) for v in lists)} entries")
    if sum(request.sizes) != payload_bytes:
        raise ProtocolError(f"GEO_APPEND of {sum(request.sizes)} bytes with {payload_bytes} bytes behind it")
    positions = list(map(Position, request.ledgers, request.entries))
    if min(request.ledgers) < 0 or min(request.entries) < 0:
        raise ProtocolError("GEO_APPEND with a negative position")
    if position_from_proto(request.p) >= positions[0] or any(a >= b for a, b in pairwise(positions)):
        raise ProtocolError("GEO_APPEND with positions that do not ascend")
    check_room("GEO_APPEND", request)
    return positions


def check_room(what: str, request: pb.CommandGeoAppend | pb.CommandGeoRestore) -> None:
    """Check that numbers leave room for the ones after them.

    Args:
        what: the command.
        request: its lists are not empty.

    Raises:
        ProtocolError: they do not.
    """
    ledger, index = max(request.ledgers), max(request.first_indexes)
    if ledger > LEDGER_MAX or request.incarnation > LEDGER_MAX:
        raise ProtocolError(
            f"{what} with ledger {ledger} of incarnation {request.incarnation}: {LEDGER_MAX} is the most"
        )
    entry, most = max(request.entries), INDEX_MAX - (1 << 32)
    if entry > ENTRY_MAX or index > most:
        raise ProtocolError(f"{what} with entry {entry} and origin index {index}: {ENTRY_MAX} and {most} are the most")


def prepare(
    request: pb.CommandGeoAppend,
    payload: bytes,
    positions: list[Position],
    first: int,
    stamp: Stamp,
    message_bytes_max: int,
    translation: Translation,
) -> tuple[list[NewEntry], BlockedEntry | UnknownSchemaVersion | None]:
    """Make the entries from index `first` on into entries of our own.

    Returns:
        The entries, up to the first that cannot be stored, and what is wrong with that one.

    Raises:
        ProtocolError: only a broken peer sends this.
    """
    sizes = request.sizes
    at = sum(sizes[:first])
    entries: list[NewEntry] = []
    source, incarnation, suffix = stamp.source, request.incarnation, stamp.field
    versions = translation.suffixes
    for size, position, count, first_index in zip(
        sizes[first:], positions[first:], request.counts[first:], request.first_indexes[first:], strict=True
    ):
        data = payload[at : at + size]
        at += size
        try:
            seen = inspect(data, message_bytes_max=message_bytes_max, fields_max=LINK_METADATA_FIELDS_MAX)
        except ChecksumError:
            reason = f"entry {position} of {source} fails its checksum"
            return entries, BlockedEntry("corrupt", reason, position)
        except MessageTooLargeError as error:
            return entries, BlockedEntry("size", error.message, position)
        except BrokerError as error:
            raise ProtocolError(f"entry {position} of {source}: {error.message}") from None
        flags = seen.flags
        if flags & _REPLICATED:
            raise ProtocolError(f"entry {position} of {source} came from {seen.metadata.replicated_from}: no relays")
        if count != seen.count or (first_index < 0) != bool(flags & _MARKER):
            raise ProtocolError(f"entry {position} of {source} has {seen.count} messages, not {count}")
        metadata = seen.metadata
        if metadata.HasField("schema_version"):
            known = versions.get(metadata.schema_version)
            if known is None:
                other = translated(seen, translation, suffix)
                if isinstance(other, int):
                    if other in translation.refused:
                        return entries, refused(translation, other, position)
                    return entries, UnknownSchemaVersion(first + len(entries), other, at - size)
                made = other
            else:
                made = stamped(seen.payload, seen.metadata_end, known)
        else:
            made = stamped(seen.payload, seen.metadata_end, suffix)
        entries.append(
            NewEntry(made, flags | _REPLICATED, count, seen.publish_time, source, incarnation, first_index, position)
        )
    return entries, None
