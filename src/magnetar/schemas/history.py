"""All schemas of a topic that are in force, combined by field, to find those that a new schema is not compatible with.

A transitive strategy compares a new schema with every earlier one. One by one, that takes the library half a
millisecond each. Here the earlier ones are kept by field: the versions that have the field, by its type. So the work is
proportional to the number of different fields there ever were, not to the number of versions. The results are
*suspects*: versions that may be incompatible, the newest first. The caller asks the library about those, which also
gives the text of the refusal; a compatible schema has no suspects.
"""

from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap

from magnetar.schemas.shapes import Shape, Slot, reads
from magnetar.schemas.types import ALIKE, Definition, SchemaType

SLOT_BYTES: Final = 700
"""The memory of one field with one type in addition to its name and its type's text: slots of two dictionaries and a
bitmap.
"""


class History:
    """The schemas in force of one topic."""

    def __init__(self) -> None:
        self._types: dict[SchemaType, BitMap] = {}
        self._shaped: BitMap = BitMap()
        self._fields: dict[str, dict[Slot, BitMap]] = {}
        self._having: dict[str, int] = {}
        self.bytes = 0
        """Its memory, estimated."""

    def add(self, version: int, kind: SchemaType, shape: Shape | None) -> None:
        """A schema came into force."""
        self._types.setdefault(kind, BitMap()).add(version)
        if shape is None:
            return
        self._shaped.add(version)
        for name, slot in shape.items():
            there = self._fields.setdefault(name, {})
            versions = there.get(slot)
            if versions is None:
                versions = there[slot] = BitMap()
                self.bytes += SLOT_BYTES + len(name) + len(slot.type)
            versions.add(version)
            self._having[name] = self._having.get(name, 0) + 1

    def suspects(self, new: Definition, shape: Shape | None, *, backward: bool, forward: bool) -> Iterator[int]:
        """Versions that may be incompatible with a new schema, the newest first.

        Args:
            new: the new schema.
            shape: its shape, if it has one.
            backward: it must read them.
            forward: they must read it.
        """
        found: BitMap = BitMap()
        for kind, versions in self._types.items():
            if kind is not new.type:
                found |= versions
            elif kind not in ALIKE:
                found |= versions if shape is None else versions - self._shaped
        if shape is not None:
            mine = self._types.get(new.type, BitMap()) & self._shaped
            if backward:
                found |= self._unread(shape) & mine
            if forward:
                found |= self._unreading(shape) & mine
        return reversed(found.to_array())

    def _unread(self, shape: Shape) -> BitMap:
        """Versions whose data the new schema may not read."""
        found: BitMap = BitMap()
        for name, slot in shape.items():
            there = self._fields.get(name, {})
            if not slot.default and self._having.get(name, 0) < len(self._shaped):
                found |= self._shaped - BitMap().union(*there.values()) if there else self._shaped
            for other, versions in there.items():
                if other.type != slot.type and not reads(slot.type, other.type):
                    found |= versions
        return found

    def _unreading(self, shape: Shape) -> BitMap:
        """Versions that may not read data of the new schema."""
        found: BitMap = BitMap()
        for name, there in self._fields.items():
            mine = shape.get(name)
            for other, versions in there.items():
                if not other.default if mine is None else other.type != mine.type and not reads(other.type, mine.type):
                    found |= versions
        return found
