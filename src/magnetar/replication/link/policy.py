"""Decides which entries of which topics are sent to which clusters.

    topic   its effective clusters are its own, if its policy names some, else those of its namespace
    link    a cluster gets a topic when it is an effective cluster, is not this one, and a link leads there
    entry   | published here, no `replicate_to`        | is sent
            | published here, `replicate_to` has names | is sent to those clusters; no cluster has the name `__local__`
            | has `replicated_from`                    | is never sent: every message comes directly from its origin
            | marker                                   | like a message; a marker for this cluster alone names this cluster
            | metadata cannot be parsed                | is sent: the destination reports the error

So the lists of clusters decide whether replication between two clusters is two-way, one-way or absent, and a mesh has no loops.
"""

from collections.abc import Collection, Iterable
from typing import Final

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
from magnetar.storage.entries import EntryFlags
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.metadata import parse_metadata

LOCAL_ONLY: Final = "__local__"
"""The name that clients write into `replicate_to` for "do not replicate"; no cluster can have it."""

_STAYS: Final = int(EntryFlags.REPLICATED)
_RESTRICTED: Final = int(EntryFlags.RESTRICTED)


def targets(local: str, effective: Collection[str], linked: Iterable[str]) -> frozenset[str]:
    """Clusters that a topic's entries are sent to from here.

    Args:
        local: this cluster. If it is not among `effective`, messages published here all the same go out (Pulsar deletes
            such topics; losing messages by a policy is not ours to choose).
        effective: of the topic.
        linked: clusters that a configured link leads to.
    """
    return (frozenset(linked) & frozenset(effective)) - {local}


def unlinked(local: str, effective: Collection[str], linked: Iterable[str]) -> frozenset[str]:
    """Clusters that a policy names but no link leads to: nothing is sent there nor kept for them, and `status` warns."""
    return frozenset(effective) - frozenset(linked) - {local}


def may_go(flags: int) -> bool:
    """Whether an entry can go over a link at all, by its flags alone. For a restricted one `goes_to` says where to."""
    return not flags & _STAYS


def goes_to(flags: int, data: bytes, target: str) -> bool:
    """Whether an entry goes to a cluster: by its flags and, if it is restricted, by its own list of clusters.

    An entry whose metadata cannot be parsed goes: the destination checks every entry, and says what is wrong with it.

    Args:
        flags: of the entry (`EntryFlags`).
        data: its bytes.
        target: the cluster.
    """
    if flags & _STAYS:
        return False
    if not flags & _RESTRICTED:
        return True
    try:
        return target in parse_metadata(data).replicate_to
    except ProtocolError:
        return True


MAY_GO: Final = bytes(int(may_go(flags)) for flags in range(256))
"""`may_go` for every flags byte, for `bytes.translate`."""

assert int(max(EntryFlags)) < 256, "entry flags no longer fit the index's byte"


def local_messages(log: TopicLog, after: Position, up_to: Position) -> int:
    """Messages that this cluster published in a topic with after < position <= up_to (markers and replicated ones not)."""
    total = 0
    if up_to <= after:
        return 0
    for ledger in log.ledger_infos():
        if not after[0] <= ledger.ledger <= up_to[0]:
            continue
        first = max(after[1] + 1, 0) if ledger.ledger == after[0] else 0
        end = min(up_to[1] + 1, ledger.entries) if ledger.ledger == up_to[0] else ledger.entries
        while first < end:
            # Runs of one kind are counted in one subtraction: a log is made of long runs.
            segment = ledger.flags[first:end].translate(MAY_GO)
            kind = segment[0]
            run = segment.find(1 - kind)
            run = len(segment) if run < 0 else run
            if kind:
                total += ledger.messages_in(first, first + run)
            first += run
            if run < 8 and first < end:  # short runs: one look each is cheaper than a new segment each
                segment = segment[run:]
                total += sum(ledger.count(first + at) for at, goes in enumerate(segment) if goes)
                first = end
    return total


def index_after(log: TopicLog, position: Position) -> int:
    """The origin index of the first message published here after a position that is retained or below all retained ones."""
    return log.next_index - local_messages(log, position, log.last)
