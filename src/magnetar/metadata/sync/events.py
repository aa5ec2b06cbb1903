"""The messages between clusters on the synchronisation topic: JSON, one object per message.

    {"magnetar": 1, "cluster": "a", "kind": "change", "sent_ms": ..., "digest": "9f..", "count": 12, "exclude": [...],
     "ahead": {"c": 3600000}, "part": 0, "last": true, "hello": false,
     "records": {"namespaces/acme/orders": {"c": [time, cluster], "f": {"field": [time, cluster, value]}}},
     "awaits": {"tenants/gone": ["b"]}}

An event carries whole records, with the stamps of their writers, never the publisher's
(docs/design/metadata.md#original-stamps). So any later event replaces a lost one, and a snapshot is the same for every
record.

Plain events of PIP-136 carry one whole value. They are accepted: every field gets the event's time.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX, TENANT_PREFIX
from magnetar.metadata.sync.documents import check_fields, check_path, to_fields
from magnetar.metadata.sync.records import Cell, Malformed, Record, from_wire
from magnetar.metadata.sync.stamps import TIME_US_MAX, US_PER_MS, Stamp

VERSION: Final = 1

RECORDS_MAX: Final = 10_000
"""A ceiling on the records of one event; far above what `EVENT_BYTES` lets into one."""

EVENT_BYTES: Final = 256 * 1024
"""The size of events: a few hundred documents, small compared with any useful `message_bytes_max`."""

EventKind = Literal["change", "snapshot", "beacon"]


class Header(NamedTuple):
    """The state of the sender that an event has.

    Attributes:
        cluster: the sender.
        kind: a change, a part of a snapshot, or nothing but this header.
        sent_ms: the sender's wall clock.
        digest: digest of all documents of the sender, see `Synchroniser.digest`.
        documents: number of its documents.
        exclude: patterns of documents that stay local there.
        ahead: clusters whose changes wait there because they are ahead of its clock -> by how many ms.
        part: number of this part of a snapshot.
        last: it is the last part.
        hello: the sender has just started and asks for the documents of the others.
    """

    cluster: str
    kind: EventKind
    sent_ms: int
    digest: int
    documents: int
    exclude: tuple[str, ...] = ()
    ahead: Mapping[str, int] = {}
    part: int = 0
    last: bool = True
    hello: bool = False


class Event(NamedTuple):
    """An event that was read.

    Attributes:
        header: the sender's state; None for a plain event of PIP-136.
        records: records by path, without impossible parts.
        awaits: clusters whose confirmation of a deletion the sender waits for, by path.
    """

    header: Header | None
    records: Mapping[str, Record]
    awaits: Mapping[str, tuple[str, ...]]


def encode(header: Header, records: Iterable[tuple[str, Any]], awaits: Mapping[str, tuple[str, ...]]) -> bytes:
    """An event of ours; `records` as `to_wire` or `encoded` gives them."""
    event = {
        "magnetar": VERSION,
        "cluster": header.cluster,
        "kind": header.kind,
        "sent_ms": header.sent_ms,
        "digest": f"{header.digest:016x}",
        "count": header.documents,
        "exclude": header.exclude,
        "ahead": header.ahead,
        "part": header.part,
        "last": header.last,
        "hello": header.hello,
        "records": dict(records),
        "awaits": awaits,
    }
    return msgspec.json.encode(event)


Known = Callable[[str], tuple[bytes, Record] | None]
"""Looks up a path in a cluster: the record, and its form as `encoded` writes it."""

_Raws = dict[str, msgspec.Raw]


class _RawEvent(msgspec.Struct):
    """An event whose records are not read yet; unknown keys are ignored."""

    magnetar: Any = msgspec.UNSET
    cluster: Any = msgspec.UNSET
    kind: Any = msgspec.UNSET
    sent_ms: Any = msgspec.UNSET
    digest: Any = msgspec.UNSET
    count: Any = msgspec.UNSET
    exclude: Any = msgspec.UNSET
    ahead: Any = msgspec.UNSET
    part: Any = msgspec.UNSET
    last: Any = msgspec.UNSET
    hello: Any = msgspec.UNSET
    awaits: Any = msgspec.UNSET
    path: Any = msgspec.UNSET
    value: Any = msgspec.UNSET
    type: Any = msgspec.UNSET
    lastUpdatedTimestamp: Any = msgspec.UNSET  # noqa: N815 - PIP-136's name
    sourceCluster: Any = msgspec.UNSET  # noqa: N815 - PIP-136's name
    records: msgspec.Raw = msgspec.Raw(b"{}")

    def given(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not msgspec.UNSET and name != "records"
        }


def decode(data: bytes, known: Known = lambda _path: None) -> Event:
    """Read an event of any sender. All of it is valid, or none of it is used.

    Args:
        data: the message.
        known: the records of the reader. A record that is equal to it byte for byte is not read again: that is most of
            every snapshot.

    Raises:
        Malformed: one line says what is wrong.
    """
    try:
        event = _json(data, _RawEvent)
    except msgspec.ValidationError:
        raise Malformed("no JSON object") from None
    given = event.given()
    if "magnetar" in given:
        return _native(given, _records(event.records, known))
    if "path" in given:
        return _plain(given)
    raise Malformed("neither an event of Magnetar nor one of PIP-136 (no path)")


def _json(data: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None


def _records(data: msgspec.Raw, known: Known) -> dict[str, Record]:
    try:
        given: _Raws = _json(data, _Raws)
    except msgspec.ValidationError:
        raise Malformed("records is missing or of a wrong type") from None
    if len(given) > RECORDS_MAX:
        raise Malformed(f"{len(given)} records in one event; at most {RECORDS_MAX}")
    records = {}
    for path, wire in given.items():
        here = known(path)
        if here is not None and here[0] == bytes(wire):
            records[path] = here[1]
            continue
        kind = check_path(path)
        try:
            record = from_wire(_json(wire, Any))
        except Malformed as error:
            raise Malformed(f"{path[:80]}: {error}") from None
        check_fields(path, kind, record)
        records[path] = record
    return records


def _get(given: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = given.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise Malformed(f"{key} is missing or of a wrong type")
    return value


def _native(given: dict[str, Any], records: dict[str, Record]) -> Event:
    if given["magnetar"] != VERSION:
        raise Malformed(f"version {given['magnetar']!r:.20} of events; this broker reads {VERSION}")
    kind = given.get("kind")
    if kind not in ("change", "snapshot", "beacon"):
        raise Malformed(f"kind {kind!r:.20} is not known")
    ahead = _get(given, "ahead", dict, {})
    exclude = _get(given, "exclude", list, [])
    if not all(isinstance(value, int) for value in ahead.values()) or not all(isinstance(one, str) for one in exclude):
        raise Malformed("ahead or exclude is of a wrong type")
    try:
        digest = int(_get(given, "digest", str, "0"), 16)
    except ValueError:
        raise Malformed("digest is not a hexadecimal number") from None
    header = Header(
        cluster=_get(given, "cluster", str),
        kind=kind,
        sent_ms=_get(given, "sent_ms", int, 0),
        digest=digest,
        documents=_get(given, "count", int, 0),
        exclude=tuple(exclude),
        ahead=ahead,
        part=_get(given, "part", int, 0),
        last=_get(given, "last", bool, True),
        hello=_get(given, "hello", bool, False),
    )
    awaits = {}
    for path, names in _get(given, "awaits", dict, {}).items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Malformed("awaits is of a wrong type")
        awaits[path] = tuple(names)
    return Event(header, records, awaits)


# --------------------------------------------------------------------------------------------------------- PIP-136

_CLUSTERS: Final = "/admin/clusters/"
_POLICIES: Final = "/admin/policies/"
_PARTITIONED: Final = "/admin/partitioned-topics/"


def _plain(event: dict[str, Any]) -> Event:
    """One whole value: `path`, `value` (bytes as base64, or the document itself; null: deleted), `lastUpdatedTimestamp`,
    `sourceCluster`, `type`.
    """
    path = plain_path(_get(event, "path", str))
    kind = check_path(path)
    time_ms = _get(event, "lastUpdatedTimestamp", int)
    source = _get(event, "sourceCluster", str)
    if not 0 <= time_ms <= TIME_US_MAX // US_PER_MS or not len(source) > 0:
        raise Malformed("lastUpdatedTimestamp or sourceCluster cannot be")
    stamp = Stamp(time_ms * US_PER_MS, source)
    value = event.get("value")
    if event.get("type") == "Deleted" or value is None:
        return Event(None, {path: Record(None, stamp, {})}, {})
    document = _document(value)
    given = to_fields(kind, document)
    fields = {name: Cell(stamp, data) for name, data in given.items()}
    # Fields that are missing in the whole value are removed by it, except a number that only grows.
    for name in kind.fields:
        if name not in kind.local | kind.grows | kind.maps and name not in fields:
            fields[name] = Cell(stamp, None)
    record = Record(stamp, None, fields)
    check_fields(path, kind, record)
    return Event(None, {path: record}, {})


def _document(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            raise Malformed("value is not base64 of JSON") from None
    if not isinstance(value, dict):
        raise Malformed("value is not a document")
    return value


def plain_path(path: str) -> str:
    """Our path of a path in Pulsar's metadata store.

    Raises:
        Malformed: of something that is not synchronised.
    """
    if path.startswith(_CLUSTERS):
        return CLUSTER_PREFIX + path.removeprefix(_CLUSTERS)
    if path.startswith(_POLICIES):
        name = path.removeprefix(_POLICIES)
        return (NAMESPACE_PREFIX if "/" in name else TENANT_PREFIX) + name
    if path.startswith(_PARTITIONED):
        tenant, namespace, domain, topic = (path.removeprefix(_PARTITIONED).split("/", 3) + [""] * 4)[:4]
        return f"{PARTITIONED_PREFIX}{domain}://{tenant}/{namespace}/{topic}"
    raise Malformed(f"{path[:60]!a} is not a path of tenants, namespaces, clusters or partitioned topics")
