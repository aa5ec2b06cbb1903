"""The types that the machine of one cluster and its host exchange."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.metadata.sync.events import Header
from magnetar.metadata.sync.records import Record

RECORD_PREFIX: Final = "metasync/record/"
"""The prefix of the keys of records; the documents themselves have keys of their own."""

AHEAD_PREFIX: Final = "metasync/ahead/"
"""The prefix of the keys of records that are ahead of the clock."""

BURIED_MAX: Final = 100_000
"""A ceiling on the deletions that are remembered after every cluster has confirmed them, so that documents from an old
backup are recognised as deleted. Above it the oldest are forgotten. Some 20 MB.
"""

PEERS_MAX: Final = 64
"""A ceiling, as for clusters of one file."""


@dataclass(slots=True)
class Update:
    """Writes that have to be stored, all or nothing, and the state of the machine after them.

    Attributes:
        records: new states, by path.
        ahead: new states of records that wait for the clock; EMPTY: no part of it waits.
        puts, deletes: documents of `Resources`.
        due: partitioned topics that have to be created or grown (`topic`).
        to_publish: paths of the local changes, which are published when they are stored.
        buried: deletions that no cluster can contradict.
        forgotten: buried deletions above the ceiling.
        headers: headers of the events in it.
        listings: records in snapshots of others, as (cluster, path, record).
        awaited: paths of deletions that another cluster waits for this one to confirm.
        projected: paths whose document exists afterwards because of a local change.
    """

    records: dict[str, Record] = field(default_factory=dict)
    ahead: dict[str, Record] = field(default_factory=dict)
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    due: set[str] = field(default_factory=set)
    to_publish: list[str] = field(default_factory=list)
    buried: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    headers: list[Header] = field(default_factory=list)
    listings: list[tuple[str, str, Record]] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    projected: set[str] = field(default_factory=set)

    def pieces(self, documents_max: int) -> Iterator["Update"]:
        """The same update, a few documents at a time. The reports of other clusters are in the last part, when
        everything that depends on them is stored.
        """
        paths = self.paths
        for at in range(0, len(paths), documents_max):
            some = set(paths[at : at + documents_max])
            piece = Update(
                records={path: record for path, record in self.records.items() if path in some},
                ahead={path: record for path, record in self.ahead.items() if path in some},
                puts={path: data for path, data in self.puts.items() if path in some},
                deletes=[path for path in self.deletes if path in some],
                due=self.due & some,
                to_publish=[path for path in self.to_publish if path in some],
                buried=[path for path in self.buried if path in some],
                forgotten=[path for path in self.forgotten if path in some],
                projected=self.projected & some,
            )
            if at + documents_max >= len(paths):
                piece.headers, piece.listings, piece.awaited = self.headers, self.listings, self.awaited
            yield piece

    @property
    def paths(self) -> list[str]:
        """The paths of its documents, sorted."""
        kept = self.records.keys() | self.ahead.keys() | self.puts.keys()
        return sorted(kept.union(self.deletes, self.buried, self.forgotten))

    @property
    def empty(self) -> bool:
        """Whether nothing has to be stored."""
        return not (self.records or self.ahead or self.puts or self.deletes or self.buried or self.forgotten)


@dataclass(slots=True)
class Batch:
    """Events that were read and are applied together."""

    records: dict[str, Record] = field(default_factory=dict)
    headers: list[Header] = field(default_factory=list)
    listings: list[tuple[str, str, Record]] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Peer:
    """The last reported state of another cluster.

    Attributes:
        header: header of its newest event.
        received_ms: when that arrived.
        changed_ms: when its digest changed last.
    """

    header: Header
    received_ms: int
    changed_ms: int = 0


class Snapshot(NamedTuple):
    """A snapshot to be published; `Synchroniser.listed` follows when all of it is durable.

    Attributes:
        messages: events, in order.
        records: the records in them.
    """

    messages: list[bytes]
    records: dict[str, Record]
