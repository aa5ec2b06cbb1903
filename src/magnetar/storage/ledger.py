"""One ledger of one topic, as an index in memory: about 33 bytes an entry, no object per entry.

The index is derived from the log. It answers where an entry lies and what kind it is without reading it; what a message
says is only in the log.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

SEGMENT_SHIFT = 40
"""A location is one number: segment number above, offset (up to 1 TiB) below."""

OFFSET_MASK = (1 << SEGMENT_SHIFT) - 1


class Ledger:
    """Entries 0..n-1 of one ledger, those that are confirmed.

    Attributes:
        ledger: its id.
        created_ms: when it was opened.
        closed: no entries are added any more.
        locations: of each record, see `SEGMENT_SHIFT`.
        sizes: of each record, bytes.
        flags: of each entry.
        messages: messages in the ledger up to and with each entry.
        publish_times: of each entry, ms.
        markers: entry ids of markers, ascending.
        bytes: of all records.
        newest_ms: broker time of the last entry.
    """

    __slots__ = (
        "bytes",
        "closed",
        "created_ms",
        "flags",
        "ledger",
        "locations",
        "markers",
        "messages",
        "newest_ms",
        "publish_times",
        "sizes",
    )

    def __init__(self, ledger: int, created_ms: int) -> None:
        self.ledger = ledger
        self.created_ms = created_ms
        self.closed = False
        self.locations: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.flags = bytearray()
        self.messages: array[int] = array("Q")
        self.publish_times: array[int] = array("q")
        self.markers: array[int] = array("I")
        self.bytes = 0
        self.newest_ms = created_ms

    @property
    def entries(self) -> int:
        """How many."""
        return len(self.flags)

    def add(
        self, location: int, size: int, flags: int, count: int, publish_time: int, broker_time: int, *, marker: bool
    ) -> None:
        """One more entry."""
        if marker:
            self.markers.append(len(self.flags))
        self.locations.append(location)
        self.sizes.append(size)
        self.flags.append(flags)
        self.messages.append((self.messages[-1] if self.messages else 0) + count)
        self.publish_times.append(publish_time)
        self.bytes += size
        if broker_time > self.newest_ms:
            self.newest_ms = broker_time

    def count(self, entry: int) -> int:
        """Messages in one entry."""
        return self.messages[entry] - (self.messages[entry - 1] if entry else 0)

    def messages_in(self, first: int, end: int) -> int:
        """Messages in entries first..end-1."""
        if end <= first:
            return 0
        return self.messages[end - 1] - (self.messages[first - 1] if first else 0)

    def markers_in(self, first: int, end: int) -> int:
        """Markers among entries first..end-1."""
        return max(0, bisect_left(self.markers, end) - bisect_left(self.markers, first))

    def bytes_in(self, first: int, end: int) -> int:
        """Bytes of the records of entries first..end-1."""
        if first <= 0 and end >= self.entries:
            return self.bytes
        return sum(self.sizes[first:end])

    def last_message(self) -> int:
        """The last entry that is no marker, or -1."""
        at = self.entries - 1
        marker = len(self.markers) - 1
        while marker >= 0 and self.markers[marker] == at:
            at -= 1
            marker -= 1
        return at


def find(ids: Sequence[int], ledger: int) -> int:
    """The place of a ledger in ascending ids, or of the first one above it."""
    return bisect_left(ids, ledger)


def find_after(ids: Sequence[int], ledger: int) -> int:
    """The place of the first ledger above."""
    return bisect_right(ids, ledger)
