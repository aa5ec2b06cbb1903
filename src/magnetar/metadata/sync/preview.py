"""The effects of a change of a document, field by field, before it is made."""

from typing import Any, NamedTuple

import msgspec

from magnetar.metadata.sync.documents import kind_of, to_fields
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.stamps import FOUND_US, US_PER_MS


class FieldChange(NamedTuple):
    """One field of a preview.

    Attributes:
        field: its name; for a map's entry, with the map's name.
        now, then: the values before and after; None: not set.
        set_by: the cluster that set the present value; "" if none did.
        set_ms: when it was set there; 0 if it never was.
        local: it stays as it is, because it is local here.
    """

    field: str
    now: Any
    then: Any
    set_by: str = ""
    set_ms: int = 0
    local: bool = False


def preview(path: str, before: bytes | None, after: bytes, machine: Synchroniser | None) -> list[FieldChange]:
    """The fields that differ between two versions of a document, by name.

    Args:
        path: of the document.
        before, after: as stored, and as it would be.
        machine: knows who set what; None: synchronisation is off.
    """
    kind = kind_of(path)
    assert kind is not None
    old = to_fields(kind, kind.read(before)) if before is not None else {}
    new = to_fields(kind, kind.read(after))
    view = machine.view(path) if machine is not None else {}
    found = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        stamp = view[name][1] if name in view else None
        was_set = stamp is not None and stamp.time_us > FOUND_US
        found.append(
            FieldChange(
                name,
                _value(old.get(name)),
                _value(new.get(name)),
                stamp.cluster if stamp is not None and was_set else "",
                stamp.time_us // US_PER_MS if stamp is not None and was_set else 0,
                machine is not None and machine.exclusions.field(path, name),
            )
        )
    return found


def _value(data: bytes | None) -> Any:
    return None if data is None else msgspec.json.decode(data)
