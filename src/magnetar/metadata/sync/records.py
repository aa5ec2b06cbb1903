"""A document with a stamp for each of its fields, and the one rule by which two versions become one.

    created, deleted    the newest stamp of each; the document is there if `created` wins over `deleted`
    fields              name -> newest value and its stamp; an unset field keeps its stamp
    pruned              values older than `deleted` are removed: nothing from before the deletion comes back

So a deletion wins over every change that did not create the document again, whatever the clocks said, and two people who
change different fields both keep their change.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from magnetar.metadata.sync.stamps import TIME_US_MAX, Stamp, beats, later

NULL: Final = b"null"

FIELDS_MAX: Final = 1_000
"""A ceiling on the fields of one document: a hundred policies, and the entries of their maps."""

FIELD_CHARACTERS_MAX: Final = 512
"""A ceiling on one field's name."""

CLUSTER_CHARACTERS_MAX: Final = 256
"""A ceiling on a cluster's name in a stamp, far above what names may have."""


class Cell(NamedTuple):
    """A field's newest value.

    Attributes:
        stamp: the cluster that set it, and the time.
        value: canonical JSON; None: it was removed.
    """

    stamp: Stamp
    value: bytes | None


class Record(NamedTuple):
    """One document as far as it is known; immutable (`fields` is not changed either)."""

    created: Stamp | None
    deleted: Stamp | None
    fields: Mapping[str, Cell]

    @property
    def exists(self) -> bool:
        """Whether it was created and not deleted since."""
        return beats(self.created, self.deleted)

    @property
    def any_value(self) -> bool:
        """Whether any field has a value."""
        return any(cell.value is not None for cell in self.fields.values())

    def values(self) -> dict[str, bytes]:
        """Fields that have a value."""
        return {name: cell.value for name, cell in self.fields.items() if cell.value is not None}

    def stamps(self) -> Iterable[Stamp]:
        """All there are."""
        if self.created is not None:
            yield self.created
        if self.deleted is not None:
            yield self.deleted
        for cell in self.fields.values():
            yield cell.stamp

    @property
    def latest(self) -> Stamp | None:
        """The newest stamp of all."""
        newest: Stamp | None = None
        for stamp in self.stamps():
            newest = later(newest, stamp)
        return newest


EMPTY: Final = Record(None, None, {})
"""Nothing is known."""


def _wins(one: Cell, other: Cell) -> bool:
    """Equal stamps with different values come from a forger or from two data folders of one cluster: any rule that is the same
    everywhere will do.
    """
    if one.stamp != other.stamp:
        return beats(one.stamp, other.stamp)
    return (one.value or b"") > (other.value or b"")


def pruned(record: Record) -> Record:
    """The record without values that are older than its deletion."""
    if record.deleted is None:
        return record
    kept = {name: cell for name, cell in record.fields.items() if beats(cell.stamp, record.deleted)}
    return record if len(kept) == len(record.fields) else record._replace(fields=kept)


def merged(one: Record, other: Record) -> Record:
    """The join of both; `one` itself when `other` has nothing new."""
    created, deleted = later(one.created, other.created), later(one.deleted, other.deleted)
    fields: dict[str, Cell] | None = None
    for name, cell in other.fields.items():
        mine = one.fields.get(name)
        if (mine is None or _wins(cell, mine)) and (deleted is None or beats(cell.stamp, deleted)):
            if fields is None:
                fields = dict(one.fields)
            fields[name] = cell
    if fields is None and created == one.created and deleted == one.deleted:
        return one
    return pruned(Record(created, deleted, one.fields if fields is None else fields))


def covers(one: Record, other: Record) -> bool:
    """Whether `one` holds everything that `other` does."""
    return merged(one, other) is one


def split(record: Record, limit_us: int) -> tuple[Record, Record]:
    """The part of a record that is stamped up to a time, and the part that is ahead of it.

    A document whose deletion is ahead waits together with that deletion: otherwise a cluster would now see a document without its
    fields, which the deletion removed.
    """
    if all(stamp.time_us <= limit_us for stamp in record.stamps()):
        return record, EMPTY
    deleted_ahead = record.deleted is not None and record.deleted.time_us > limit_us
    created_ahead = record.created is not None and (
        record.created.time_us > limit_us or (deleted_ahead and beats(record.deleted, record.created))
    )
    ahead = {name: cell for name, cell in record.fields.items() if cell.stamp.time_us > limit_us}
    return (
        Record(
            None if created_ahead else record.created,
            None if deleted_ahead else record.deleted,
            {name: cell for name, cell in record.fields.items() if name not in ahead},
        ),
        Record(record.created if created_ahead else None, record.deleted if deleted_ahead else None, ahead),
    )


def ready_us(record: Record) -> int:
    """The first time at which `split` has something of a record, which is not empty, to come into force."""
    ended = record.created is not None and beats(record.deleted, record.created)
    return min(stamp.time_us for stamp in (record._replace(created=None) if ended else record).stamps())


# ------------------------------------------------------------------------------------------------------------------ JSON


class Malformed(ValueError):
    """Bytes that are not a record or event; one line says why."""


def canonical(value: Any) -> bytes:
    """A value as every cluster writes it: equal values are equal bytes."""
    return msgspec.json.encode(value, order="deterministic")


def to_wire(record: Record) -> dict[str, Any]:
    """The form on the wire and in the store: {"c": [time, cluster], "d": [...], "f": {field: [time, cluster,
    value]}}.
    """
    wire: dict[str, Any] = {}
    if record.created is not None:
        wire["c"] = record.created
    if record.deleted is not None:
        wire["d"] = record.deleted
    if record.fields:
        wire["f"] = {
            name: (*cell.stamp, None if cell.value is None else msgspec.Raw(cell.value))
            for name, cell in sorted(record.fields.items())
        }
    return wire


def _stamp(value: Any, what: str) -> Stamp:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Malformed(f"{what} is no stamp")
    time_us, cluster = value
    if not isinstance(time_us, int) or isinstance(time_us, bool) or not 0 <= time_us <= TIME_US_MAX:
        raise Malformed(f"the time of {what} is not a number from 0 to {TIME_US_MAX}")
    if not isinstance(cluster, str) or not 0 < len(cluster) <= CLUSTER_CHARACTERS_MAX:
        raise Malformed(f"{what} names no cluster")
    return Stamp(time_us, cluster)


def from_wire(wire: Any) -> Record:
    """Read what `to_wire` wrote, of any sender.

    Raises:
        Malformed.
    """
    if not isinstance(wire, dict):
        raise Malformed("a record is not an object")
    created = _stamp(wire["c"], "c") if wire.get("c") is not None else None
    deleted = _stamp(wire["d"], "d") if wire.get("d") is not None else None
    given = wire.get("f", {})
    if not isinstance(given, dict) or len(given) > FIELDS_MAX:
        raise Malformed(f"the fields of a record are not an object, or more than {FIELDS_MAX}")
    fields: dict[str, Cell] = {}
    for name, cell in given.items():
        if not isinstance(cell, list | tuple) or len(cell) != 3 or not 0 < len(name) <= FIELD_CHARACTERS_MAX:
            raise Malformed(f"field {name[:40]!a} is not a triple of time, cluster and value")
        fields[name] = Cell(_stamp(cell[:2], f"field {name[:40]!a}"), None if cell[2] is None else canonical(cell[2]))
    return pruned(Record(created, deleted, fields))


def fingerprint(path: str, record: Record) -> int:
    """64 bits of a document and its path; a digest of many is the sum of theirs, in any order."""
    return print_of(path, encoded(record))


def encoded(record: Record) -> bytes:
    """`to_wire` as bytes: equal records are equal bytes."""
    return msgspec.json.encode(to_wire(record))


def print_of(path: str, data: bytes) -> int:
    """`fingerprint` of a record that is encoded already."""
    data = path.encode() + b"\0" + data
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


DIGEST_MODULUS: Final = 1 << 64
