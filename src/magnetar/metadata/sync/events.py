"""What travels between clusters on the synchronisation topic: JSON, one object per message.

    {"magnetar": 1, "cluster": "a", "kind": "change", "sent_ms": ..., "digest": "9f..", "count": 12, "exclude": [...],
     "ahead": {"c": 3600000}, "part": 0, "last": true, "hello": false,
     "records": {"namespaces/acme/orders": {"c": [time, cluster], "f": {"field": [time, cluster, value]}}},
     "awaits": {"tenants/gone": ["b"]}}

A record is always told whole, with the stamps of its writers, never the publisher's
(docs/design/metadata.md#original-stamps): an event that is lost is made good by any later one, and a snapshot is the
same thing for everything.

Plain events of PIP-136 carry one whole value. They are understood: every field gets the event's time.
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
"""How large events are made: a few hundred documents, small beside the smallest `message_bytes_max` anybody sets."""

EventKind = Literal["change", "snapshot", "beacon"]


class Header(NamedTuple):
    """What an event says of its sender.

    Attributes:
        cluster: who.
        kind: a change, a part of a snapshot, or nothing but this header.
        sent_ms: the sender's wall clock.
        digest: of everything that exists for the sender, see `Synchroniser.digest`.
        documents: how many exist for it.
        exclude: patterns of what stays local there.
        ahead: clusters whose changes wait there because they are ahead of its clock -> by how many ms.
        part: number of this part of a snapshot.
        last: it is the last part.
        hello: the sender has just started and asks for what others have.
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
        header: of its sender; None for a plain one of PIP-136.
        records: by path; what of a record could not be is not there.
        awaits: clusters whose word on a deletion the sender waits for, by path.
    """

    header: Header | None
    records: Mapping[str, Record]
    awaits: Mapping[str, tuple[str, ...]]


def encode(header: Header, records: Iterable[tuple[str, Any]], awaits: Mapping[str, tuple[str, ...]]) -> bytes:
    """An event of ours; `records` as `to_wire` or `encoded` gives them."""
    told = {
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
    return msgspec.json.encode(told)


Known = Callable[[str], tuple[bytes, Record] | None]
"""What a cluster has of a path: the record, and how `encoded` writes it."""

_Raws = dict[str, msgspec.Raw]


class _Told(msgspec.Struct):
    """An event whose records are not read yet; what else somebody may have written is passed over."""

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
        """What is there, by name."""
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not msgspec.UNSET and name != "records"
        }


def decode(data: bytes, known: Known = lambda _path: None) -> Event:
    """Read an event, whoever sent it. All of it is possible, or none of it is taken.

    Args:
        data: the message.
        known: what the reader has. A record that comes byte for byte as it is there is that one, and not read again: that is most
            of every snapshot.

    Raises:
        Malformed: one line says what is wrong.
    """
    try:
        event = _json(data, _Told)
    except msgspec.ValidationError:
        raise Malformed("no JSON object") from None
    told = event.given()
    if "magnetar" in told:
        return _native(told, _records(event.records, known))
    if "path" in told:
        return _plain(told)
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


def _get(told: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = told.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise Malformed(f"{key} is missing or of a wrong type")
    return value


def _native(told: dict[str, Any], records: dict[str, Record]) -> Event:
    if told["magnetar"] != VERSION:
        raise Malformed(f"version {told['magnetar']!r:.20} of events; this broker reads {VERSION}")
    kind = told.get("kind")
    if kind not in ("change", "snapshot", "beacon"):
        raise Malformed(f"kind {kind!r:.20} is not known")
    ahead = _get(told, "ahead", dict, {})
    exclude = _get(told, "exclude", list, [])
    if not all(isinstance(value, int) for value in ahead.values()) or not all(isinstance(one, str) for one in exclude):
        raise Malformed("ahead or exclude is of a wrong type")
    try:
        digest = int(_get(told, "digest", str, "0"), 16)
    except ValueError:
        raise Malformed("digest is no hexadecimal number") from None
    header = Header(
        cluster=_get(told, "cluster", str),
        kind=kind,
        sent_ms=_get(told, "sent_ms", int, 0),
        digest=digest,
        documents=_get(told, "count", int, 0),
        exclude=tuple(exclude),
        ahead=ahead,
        part=_get(told, "part", int, 0),
        last=_get(told, "last", bool, True),
        hello=_get(told, "hello", bool, False),
    )
    awaits = {}
    for path, names in _get(told, "awaits", dict, {}).items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Malformed("awaits is of a wrong type")
        awaits[path] = tuple(names)
    return Event(header, records, awaits)


# --------------------------------------------------------------------------------------------------------- PIP-136

_CLUSTERS: Final = "/admin/clusters/"
_POLICIES: Final = "/admin/policies/"
_PARTITIONED: Final = "/admin/partitioned-topics/"


def _plain(told: dict[str, Any]) -> Event:
    """One whole value: `path`, `value` (bytes as base64, or the document itself; null: deleted), `lastUpdatedTimestamp`,
    `sourceCluster`, `type`.
    """
    path = plain_path(_get(told, "path", str))
    kind = check_path(path)
    time_ms = _get(told, "lastUpdatedTimestamp", int)
    source = _get(told, "sourceCluster", str)
    if not 0 <= time_ms <= TIME_US_MAX // US_PER_MS or not len(source) > 0:
        raise Malformed("lastUpdatedTimestamp or sourceCluster cannot be")
    stamp = Stamp(time_ms * US_PER_MS, source)
    value = told.get("value")
    if told.get("type") == "Deleted" or value is None:
        return Event(None, {path: Record(None, stamp, {})}, {})
    document = _document(value)
    given = to_fields(kind, document)
    fields = {name: Cell(stamp, data) for name, data in given.items()}
    # What the whole value does not hold is taken back by it; a number that only grows is not.
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
            raise Malformed("value is no base64 of JSON") from None
    if not isinstance(value, dict):
        raise Malformed("value is no document")
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
    raise Malformed(f"{path[:60]!a} is no path of tenants, namespaces, clusters or partitioned topics")
