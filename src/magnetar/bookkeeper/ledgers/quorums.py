"""The arithmetic of quorums: which bookies have an entry, and which answers prove something.

E is the ensemble's size, Qw the write quorum, Qa the ack quorum. Source: docs/design/bookkeeper.md#quorums.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, LedgerState, Segment


def stores(metadata: LedgerMetadata, index: int, entry: int) -> bool:
    """Whether the bookie at an index of the ensemble is in the write set of an entry."""
    return (index - entry) % metadata.ensemble_size < metadata.write_quorum


def covered(metadata: LedgerMetadata, fenced: Collection[int]) -> bool:
    """Whether every possible ack quorum includes a fenced bookie, so that the writer cannot confirm anything.

    That is so when each write set has fewer than Qa bookies that are not fenced.

    Args:
        metadata: for the quorums.
        fenced: indexes in the ensemble.
    """
    return all(left < metadata.ack_quorum for left in _left(metadata, fenced))


def absences_needed(metadata: LedgerMetadata) -> int:
    """Bookies of a write set that prove an entry unconfirmed when they do not have it: Qw - Qa + 1.

    The rest of the write set is then smaller than an ack quorum.
    """
    return metadata.write_quorum - metadata.ack_quorum + 1


def writable_without(metadata: LedgerMetadata, missing: Collection[int]) -> bool:
    """Whether every write set still has an ack quorum without the bookies at these indexes."""
    return all(left >= metadata.ack_quorum for left in _left(metadata, missing))


def _left(metadata: LedgerMetadata, gone: Collection[int]) -> Iterator[int]:
    """How many bookies each write set has without those at these indexes. Write sets repeat after `ensemble_size` entries."""
    for entry in range(metadata.ensemble_size):
        yield sum(index not in gone for index in metadata.write_set(entry))


def with_ensemble(metadata: LedgerMetadata, first: int, ensemble: Iterable[BookieId]) -> LedgerMetadata:
    """The metadata with an ensemble for the entries from `first` on. It replaces the last segment if that begins there.

    Raises:
        ValueError: the last segment begins after `first`.
    """
    segments = metadata.segments
    if segments[-1].first == first:
        segments = segments[:-1]
    return replace(metadata, segments=(*segments, Segment(first, tuple(ensemble))))


def closed(metadata: LedgerMetadata, last_entry: int, length: int) -> LedgerMetadata:
    """The metadata of the ledger when it is closed."""
    return replace(metadata, state=LedgerState.CLOSED, last_entry=last_entry, length=length)
