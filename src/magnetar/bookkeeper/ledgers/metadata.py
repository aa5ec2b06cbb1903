"""The values that ZooKeeper stores of a ledger. `LedgerMetadata` is immutable: a change makes another one.

Source: `DataFormats.proto` and `LedgerMetadata` of Apache BookKeeper 4.17.3; docs/design/bookkeeper.md#metadata.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import NewType

BookieId = NewType("BookieId", str)
"""The name under which a bookie is registered, by default `host:port`."""

NO_ENTRY = -1
"""As the last entry of a ledger: it has none."""


class LedgerState(IntEnum):
    """The values are those of the stored format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """The checksum of an entry. The values are those of the stored format."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries from `first` on are on these bookies, until the next segment begins.

    Attributes:
        first: an entry id.
        ensemble: `ensemble_size` bookies; the order counts, see `LedgerMetadata.write_set`.
    """

    first: int
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger as ZooKeeper knows it.

    Attributes:
        ensemble_size, write_quorum, ack_quorum: in bookies; ensemble_size >= write_quorum >= ack_quorum >= 1.
        state: see `LedgerState`.
        segments: at least one, by rising first entry; the first one begins with entry 0.
        digest: of all entries.
        password: the key that bookies compare is derived from it. It is stored in clear: it prevents mistakes, not attacks.
        last_entry: of a closed ledger, `NO_ENTRY` if that is empty; else `NO_ENTRY`.
        length: of a closed ledger: bytes of the payload of all entries; else 0.
        created_ms: milliseconds since 1970; -1: unknown.
        custom: values of the writer's own.
        token: a random number of the creator, so that a creation whose answer was lost is recognised; 0: none.
        format_version: of the stored bytes, 1 to 3; an update keeps it.

    Raises:
        ValueError: the quorums do not fit each other, or the segments do not rise from 0.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    state: LedgerState
    segments: tuple[Segment, ...]
    digest: DigestType
    password: bytes
    last_entry: int = NO_ENTRY
    length: int = 0
    created_ms: int = -1
    custom: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    token: int = 0
    format_version: int = 3

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"ensemble {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum {self.ack_quorum}: "
                "each must be at least as large as the next, and the last at least 1"
            )
        firsts = [segment.first for segment in self.segments]
        if firsts[:1] != [0] or sorted(set(firsts)) != firsts:
            raise ValueError(f"segments begin with the entries {firsts}: they must rise from 0")
        if any(len(segment.ensemble) != self.ensemble_size for segment in self.segments):
            raise ValueError(f"a segment has not {self.ensemble_size} bookies")

    def segment_of(self, entry: int) -> Segment:
        """The segment that has an entry, or that will have it."""
        return self.segments[bisect_right(self.segments, entry, key=lambda segment: segment.first) - 1]

    def write_set(self, entry: int) -> tuple[int, ...]:
        """The indexes in the ensemble of an entry's segment on which the entry is stored, in reading order.

        Source: RoundRobinDistributionSchedule.
        """
        return tuple((entry + offset) % self.ensemble_size for offset in range(self.write_quorum))

    def bookies_of(self, entry: int) -> Iterator[BookieId]:
        """The bookies that store an entry, in reading order."""
        ensemble = self.segment_of(entry).ensemble
        return (ensemble[index] for index in self.write_set(entry))


@dataclass(frozen=True, slots=True)
class Versioned:
    """Metadata as read.

    Attributes:
        metadata: of one ledger.
        version: of the node in ZooKeeper; an update names it and is refused if the node has another one by then.
    """

    metadata: LedgerMetadata
    version: int
