"""The `avro` library's rules of which schema can read which, with a bound on the work.

The library remembers compared pairs in a dictionary whose hash is the exclusive or of two addresses. The types of one
schema are at regular distances in memory, so most pairs may have the same hash as others: then ten thousand pairs take
half a minute instead of 50 ms on the broker's thread, depending on the addresses. Here pairs are remembered by both
addresses.
"""

from typing import Final

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityResult, SchemaCompatibilityType
from avro.errors import AvroException

PAIRS_MAX: Final = 10_000
"""A ceiling on pairs of types that are compared: unions are compared branch by branch with each other, so that two schemas of a
few thousand types could take minutes. Any two schemas without large unions stay below."""

Schema = avro.schema.Schema


class TooManyPairs(AvroException):
    """A comparison that would take too long."""


class Checker(ReaderWriterCompatibilityChecker):
    """The library's checker; for one comparison."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[tuple[int, int], tuple[SchemaCompatibilityResult, Schema, Schema]] = {}
        """The values have the schemas themselves: an address is unique only as long as its object exists."""
        self._pairs = 0

    def get_compatibility(
        self,
        reader: Schema,
        writer: Schema,
        reference_token: str = ReaderWriterCompatibilityChecker.ROOT_REFERENCE_TOKEN,
        location: list[str] | None = None,
    ) -> SchemaCompatibilityResult:
        """Whether data of one schema is read with another, and where not.

        Raises:
            TooManyPairs.
        """
        self._pairs += 1
        if self._pairs > PAIRS_MAX:
            raise TooManyPairs(f"comparing them takes more than {PAIRS_MAX} steps: their unions are too large")
        key = (id(reader), id(writer))
        known = self._known.get(key)
        if known is not None:
            result = known[0]
            if result.compatibility is SchemaCompatibilityType.recursion_in_progress:
                return SchemaCompatibilityResult(SchemaCompatibilityType.compatible)
            return result
        self._known[key] = SchemaCompatibilityResult(), reader, writer
        result = self.calculate_compatibility(reader, writer, [*(location or ()), reference_token])
        self._known[key] = result, reader, writer
        return result
