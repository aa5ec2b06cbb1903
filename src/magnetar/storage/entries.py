"""The types of a stored entry, and of the request to store entries.

The client's bytes (`data`) start at the checksum magic `0x0e01` and are kept verbatim. Everything else that the broker
knows about an entry is in the header of Magnetar's own log record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, NamedTuple

import msgspec

from magnetar.core.ids import NONE, Position


class EntryFlags(IntFlag):
    """The facts about an entry that a reader needs without decoding it."""

    REPLICATED = 1
    """Has `replicated_from`: it came over a link and is never sent on."""
    RESTRICTED = 2
    """Has `replicate_to`: a link must look at the names."""
    MARKER = 4
    """Internal: never delivered, has no origin index."""
    BATCH = 8
    """`num_messages_in_batch` is present (even when it is 1)."""
    CHUNK = 16
    """One chunk of a larger message."""
    KEYED = 32
    """Has a partition or ordering key in its metadata."""
    DELAYED = 64
    """Has `deliver_at_time`."""


class NewEntry(NamedTuple):
    """An entry on its way into a topic's log; the topic's log gives it a position and, if local, its origin index.

    Attributes:
        data: the client's bytes from `0x0e01` on (already with `replicated_from` when it came over a link).
        flags: an `EntryFlags` value as int.
        count: messages in the entry, 1..65,536; 0 for markers.
        publish_time: the client's clock, ms.
        origin: origin cluster; "" for this cluster.
        incarnation: of the topic in its origin; 0 for local entries, which have that of the topic.
        first_index: origin index of the first message; -1 for local entries (assigned at staging) and markers.
        source: position in the source cluster's log; NONE for local entries.
    """

    data: bytes
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    publish_time: int
    origin: str = ""
    incarnation: int = 0
    first_index: int = -1
    source: Position = NONE


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry as read back from the log or from the cache of recent entries.

    For entries first published in this cluster `origin` is "" and `incarnation` 0: it is that of the topic.

    It is not a tuple: the cache holds hundreds of thousands, and Python's garbage collector would scan all of them
    again and again, 50 ms at a time, in which the broker answers no client. The collector does not see these objects
    (`gc=False`: they refer to nothing that could refer back).
    """

    ledger: int
    entry: int
    flags: int
    count: int
    publish_time: int
    broker_time: int
    origin: str
    incarnation: int
    first_index: int
    source: Position
    data: bytes

    @property
    def position(self) -> Position:
        """The entry's position in this cluster's log."""
        return Position(self.ledger, self.entry)

    def _replace(self, **changes: Any) -> "StoredEntry":
        """A copy with other fields, as a named tuple gives it."""
        return msgspec.structs.replace(self, **changes)


class Location(NamedTuple):
    """The location of a record on disk: segment number and offset of its first byte."""

    segment: int
    offset: int


@dataclass(slots=True, eq=False)
class Append:
    """One batch of entries of one topic on its way to the log; the unit of confirmation.

    Made by `TopicLog.stage`; the log answers with exactly one of appended / failed, in the order of submission.

    Attributes:
        topic: name of the topic, for the log's answers.
        records: buffers to be written one after the other.
        sizes: bytes of each record (a record may be several buffers); records that are not entries come first.
        entries: the entries with the positions that they will have.
        preamble: number of the `sizes` that do not belong to entries (a ledger's opening).
        durable: the answer must wait for the sync, whatever the broker's `fsync` setting says.
        token: opaque to storage; names the client that the broker has to answer.
        connection, client_bytes: opaque to storage; for a client's messages, the number of its connection and their
            bytes, which count until the append is answered.
        behind: opaque to storage; what the broker answers directly after the answer to this append, if the log stored
            it.
        answered: opaque to storage; what the broker does after all these answers, for any result.
        write_epoch: number of the period between two write failures of the topic in which it was staged. An append that
            was staged before its topic learned of a failure must not be written after it: its positions and origin indexes
            are void.
        asked_s: opaque to storage; when the broker asked for it, by its monotonic clock.
        large: whether it goes to the lane of large appends, if the log has one.
        next_index: the topic's next origin index after it.
    """

    topic: str
    records: list[bytes]
    sizes: list[int]
    entries: list[StoredEntry]
    preamble: int = 0
    durable: bool = True
    token: Any = None
    bytes_total: int = 0
    connection: int = -1
    client_bytes: int = 0
    behind: list[Callable[[], None]] | None = None
    answered: list[Callable[[], None]] | None = None
    write_epoch: int = 0
    asked_s: float = 0.0
    large: bool = False
    next_index: int = 0
