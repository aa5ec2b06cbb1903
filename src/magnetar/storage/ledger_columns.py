"""The entries of one ledger as columns: about 33 bytes per entry, without an object for each.

The *origin index map* (docs/design/links.md#origin-index-map) is kept as runs: consecutive entries of one origin whose
indexes follow each other extend a run; inside a run an index is the run's first plus the messages in between.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from magnetar.core.ids import OriginKey

MESSAGES_AT: Final = 8
"""Bytes of an entry in front of the column `messages` in the packed form."""

_ENTRY_BYTES: Final = 8 + 8 + 8 + 4 + 1
"""Bytes of an entry in the packed form: location, messages, publish time, size, flags."""

_RUN_BYTES: Final = 8 + 4
"""Bytes of a run: the index of its first message, its first entry. Its origin is not among them."""


def packed(
    locations: "array[int]",
    messages: "array[int]",
    publish_times: "array[int]",
    run_firsts: "array[int]",
    sizes: "array[int]",
    run_entries: "array[int]",
    markers: "array[int]",
    flags: bytearray,
) -> bytes:
    """Columns in one value, for `Columns.unpacked`."""
    return b"".join((locations, messages, publish_times, run_firsts, sizes, run_entries, markers, flags))


def packed_markers(data: bytes, entries: int, runs: int) -> int:
    """How many markers are among packed entries."""
    return (len(data) - entries * _ENTRY_BYTES - runs * _RUN_BYTES) // 4


class Columns:
    """The confirmed entries 0..n-1 of one ledger.

    Attributes:
        locations: location of each record, see `storage.ledger`.
        sizes: size of each record, bytes.
        flags: flags of each entry.
        messages: messages in the ledger up to and with each entry.
        publish_times: publish time of each entry, ms.
        markers: entry ids of markers, ascending.
        run_entries, run_origins, run_firsts: of each run, its first entry, its origin (None: no indexes) and the index of its
            first message.
        origins: the runs of each origin, ascending.
        disordered: the indexes of an origin do not ascend.
    """

    __slots__ = (
        "disordered",
        "flags",
        "locations",
        "markers",
        "messages",
        "origins",
        "publish_times",
        "run_entries",
        "run_firsts",
        "run_origins",
        "sizes",
    )

    def __init__(self) -> None:
        self.locations: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.flags = bytearray()
        self.messages: array[int] = array("Q")
        self.publish_times: array[int] = array("q")
        self.markers: array[int] = array("I")
        self.run_entries: array[int] = array("I")
        self.run_firsts: array[int] = array("q")
        self.run_origins: list[OriginKey | None] = []
        self.origins: dict[OriginKey, array[int]] = {}
        self.disordered = False

    # --------------------------------------------------------------------------------------------------------- packing

    def pack(self) -> bytes:
        """All columns but the origins of runs in one value, for `unpacked`."""
        return packed(
            self.locations,
            self.messages,
            self.publish_times,
            self.run_firsts,
            self.sizes,
            self.run_entries,
            self.markers,
            self.flags,
        )

    @classmethod
    def unpacked(cls, data: bytes, entries: int, origins: Sequence[OriginKey | None]) -> "Columns":
        """The columns that were packed.

        Args:
            data: by `pack`.
            entries: how many.
            origins: `run_origins`.
        """
        columns = cls()
        view = memoryview(data)
        runs = len(origins)
        firsts: array[int] = array("q")
        starts: array[int] = array("I")
        at = 0
        parts = (
            (columns.locations, 8 * entries),
            (columns.messages, 8 * entries),
            (columns.publish_times, 8 * entries),
            (firsts, 8 * runs),
            (columns.sizes, 4 * entries),
            (starts, 4 * runs),
            (columns.markers, 4 * packed_markers(data, entries, runs)),
        )
        for values, size in parts:
            values.frombytes(view[at : at + size])
            at += size
        columns.flags += view[at:]
        for start, origin, first in zip(starts, origins, firsts, strict=True):
            columns.begin_run(start, origin, first)
        return columns

    # --------------------------------------------------------------------------------------------------------- adding

    def begin_run(self, entry: int, origin: OriginKey | None, first_index: int) -> None:
        """Count origin indexes from `first_index` beginning with the entry `entry`; `origin` None: no indexes."""
        self.run_entries.append(entry)
        self.run_origins.append(origin)
        self.run_firsts.append(first_index)
        if origin is not None:
            runs = self.origins.get(origin)
            if runs is None:
                runs = self.origins[origin] = array("I")
            elif self.run_firsts[runs[-1]] > first_index:
                # A link keeps its origin's order; restoring a wiped cluster from several peers need not.
                self.disordered = True
            runs.append(len(self.run_origins) - 1)
