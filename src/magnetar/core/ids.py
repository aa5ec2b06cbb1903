"""Positions in one cluster's log, and the identity of a message in all clusters.

A `Position` means something only within one cluster and one topic; positions of different clusters are never compared.
The name of a message in all clusters, for ever, is `(origin cluster, topic incarnation, origin index)`.
"""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """The position of an entry in one cluster's log of one topic; ordered by ledger, then entry.

    `(L, -1)` is legal and comes before the first entry of ledger L (as a mark-delete position).
    """

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


NONE: Final = Position(-1, -1)
"""No position: before everything. Also Pulsar's "earliest"."""

EARLIEST: Final = NONE
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""Pulsar's "latest": after every entry."""


LEDGER_MAX: Final = 253_402_300_799_999
"""The highest ledger id, and so incarnation, that another cluster may name: the year 9999 in ms. Ids follow the clock
and continue from the highest known id, so an unlimited id from elsewhere would leave no room for later ones.
"""

LEDGER_BELIEVED_MAX: Final = LEDGER_MAX - (1 << 40)
"""The highest ledger id up to which a cluster skips ids that other clusters hold under its name: a trillion more
ledgers fit below `LEDGER_MAX`.
"""


class OriginKey(NamedTuple):
    """The log in which a message was first published: origin cluster and topic incarnation.

    The incarnation is the ledger id that was reserved when the topic was created in its origin cluster, normally that of its
    first ledger. Ledger ids of a cluster grow, so incarnations are ordered. The exception is a cluster that lost its disk while
    its clock was behind: it may give a lower one (docs/decisions/0020-incarnations-that-no-cluster-remembers.md).
    """

    cluster: str
    incarnation: int


class Identity(NamedTuple):
    """The name of one message in every cluster."""

    cluster: str
    incarnation: int
    index: int  # type: ignore[assignment]  # the field's name; tuple.index is never used on it


class LinkCursor(NamedTuple):
    """The durable cursor of a link in one topic of its source. It is always read and written as a whole
    (docs/design/links.md#chain-rule).

    Attributes:
        c: everything at or below is settled: sent and confirmed, filtered out, or trimmed.
        s: the last position at or below `c` that was *sent* to the destination. The next entry is sent "after s".
        gen: the generation; a commit of any other generation is ignored.
    """

    c: Position
    s: Position
    gen: int
