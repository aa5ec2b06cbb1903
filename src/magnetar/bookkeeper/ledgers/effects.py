"""The data by which the machines of a ledger ask the outside world for something, or report something.

A machine (`LedgerWriter`, `LedgerReader`, `LedgerRecovery`) never waits and never calls back. Each of its methods returns
effects, in the order in which they have to be carried out. The shell carries them out and brings what comes back:

    Send             -> `answered` or `failed`, once for each of its bookies; a time-out or a lost connection is a failure
    UpdateMetadata   -> `metadata_written` if it was done. If it was refused, or if the answer was lost, the shell reads the
                        metadata and calls `metadata_read`.
    ReadMetadata     -> `metadata_read`
    the others       report progress; nothing comes back

At `wake_at` (seconds of a monotonic clock) the shell calls `tick`. Machines that have finished ignore everything.

Source: docs/design/bookkeeper.md#machines.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias

from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, Versioned
from magnetar.bookkeeper.protocol.messages import Request


class Send(NamedTuple):
    """Send the same request to some bookies.

    Attributes:
        bookies: in the order in which they were chosen; at least one.
        number: names the request in `answered` and `failed`, together with the bookie. The number of an added entry is the
            entry's id, so a protocol without request numbers (v2) can be used for adding.
        request: the same object for all of them, so that it is encoded once.
    """

    bookies: tuple[BookieId, ...]
    number: int
    request: Request


class UpdateMetadata(NamedTuple):
    """Write the ledger's metadata, if the stored version is still this one.

    Attributes:
        metadata: the new metadata.
        version: of the stored metadata that it replaces.
    """

    metadata: LedgerMetadata
    version: int


class ReadMetadata(NamedTuple):
    """Read the ledger's metadata."""


class Confirmed(NamedTuple):
    """All entries up to this one are safe: a recovery finds them.

    Attributes:
        last: an entry id; it only rises.
    """

    last: int


class Ending(Enum):
    """The reasons why a machine has finished."""

    CLOSED = "the ledger is closed"
    FENCED = "another client recovers the ledger, or has recovered it"
    UNAUTHORISED = "a bookie has another password for the ledger"
    NO_BOOKIES = "too few bookies can be reached or chosen"
    CONFLICT = "another client has changed the last segment of the ledger"
    TOO_MANY_SEGMENTS = "the ledger has changed its bookies too often"
    UNDECIDABLE = "bookies that may have the next entry do not answer"
    NO_SUCH_LEDGER = "the ledger was deleted"


class Finished(NamedTuple):
    """The machine has finished.

    Attributes:
        ending: why. Entries of a writer that are not confirmed by then are neither lost nor safe: a recovery decides.
        metadata: the last known metadata; those of the closed ledger if the ending is `Ending.CLOSED`.
    """

    ending: Ending
    metadata: Versioned


class LastConfirmed(NamedTuple):
    """A reader has learned that entries up to this one can be read.

    Attributes:
        last: an entry id; it only rises.
        closed: no entries will follow.
    """

    last: int
    closed: bool


class EntriesRead(NamedTuple):
    """Successive entries of one read, in order.

    Attributes:
        read: the number of the read.
        first: the id of the first entry.
        payloads: without header and digest.
        lengths: bytes of the payloads of all entries of the ledger up to each of these, and with it.
        done: the read is complete.
    """

    read: int
    first: int
    payloads: tuple[bytes, ...]
    lengths: tuple[int, ...]
    done: bool


class ReadProblem(Enum):
    """The reasons why an entry could not be read. Only `UNAVAILABLE` may end by itself."""

    MISSING = "no bookie that should have the entry has it"
    UNAVAILABLE = "bookies that may have the entry do not answer"
    DAMAGED = "all copies of the entry are damaged or missing"


class ReadFailed(NamedTuple):
    """A read has ended without its remaining entries.

    Attributes:
        read: the number of the read.
        entry: the first entry that could not be read.
        problem: see `ReadProblem`.
    """

    read: int
    entry: int
    problem: ReadProblem


Effect: TypeAlias = (
    Send | UpdateMetadata | ReadMetadata | Confirmed | Finished | LastConfirmed | EntriesRead | ReadFailed
)
