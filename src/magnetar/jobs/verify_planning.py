"""Cutting the topics that `verify` reads into parts: pure arithmetic over the ledgers that brokers report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.jobs.verify_listing import Part

PART_BYTES: Final = 64 << 20
"""A part should be about this large: a second of work or less, so that progress has steps and all cores end together..."""

PART_ENTRIES: Final = 50_000
"""...and have at most about this many entries: the default size of a ledger."""

PARTS_MAX: Final = 4096
"""A ceiling on a job's tasks: with more data parts grow instead, for each costs the driver some kilobytes."""


@dataclass(frozen=True)
class Ledger:
    """One ledger of a topic in a cluster."""

    ledger: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class Wanted:
    """One topic of one cluster.

    Attributes:
        cluster, topic: numbers of both in the job.
        address: `host:port` of the broker.
        name: name of the topic (one partition).
        ledgers: its ledgers, oldest first; None: not known, then it is one part.
    """

    cluster: int
    topic: int
    address: str
    name: str
    ledgers: Sequence[Ledger] | None


def parts(wanted: Sequence[Wanted], *, parts_max: int = PARTS_MAX) -> list[Part]:
    """All parts, big ones of different clusters in turns, so that no broker has to serve all tasks.

    Parts end at the end of the topic when its ledgers were listed: later messages are not read.
    """
    known = [ledger for one in wanted for ledger in one.ledgers or ()]
    room = max(1, parts_max - len(wanted))
    part_bytes = max(PART_BYTES, -(-sum(ledger.bytes for ledger in known) // room))
    part_entries = max(PART_ENTRIES, -(-sum(ledger.entries for ledger in known) // room))
    pieces: list[tuple[int, int, Wanted, Position, Position | None, int]] = []
    for one in wanted:
        cuts = [(NONE, None, 0)] if one.ledgers is None else _cut(one.ledgers, part_bytes, part_entries)
        pieces += [(cut_number, one.cluster, one, *cut) for cut_number, cut in enumerate(cuts)]
    pieces.sort(key=lambda piece: (piece[0], piece[2].topic, piece[1]))
    return [
        Part(cut_number, one.cluster, one.topic, one.address, one.name, after, up_to, entries)
        for cut_number, _, one, after, up_to, entries in pieces
    ]


def _cut(ledgers: Sequence[Ledger], part_bytes: int, part_entries: int) -> list[tuple[Position, Position, int]]:
    """Stretches (after, up_to] and their entries; small ledgers share one, large ones are cut evenly."""
    result: list[tuple[Position, Position, int]] = []
    begin, last, held, size = NONE, NONE, 0, 0
    for ledger in ledgers:
        if not ledger.entries:
            continue
        if held and (held + ledger.entries > part_entries or size + ledger.bytes > part_bytes):
            result.append((begin, last, held))
            begin, held, size = last, 0, 0
        pieces = min(ledger.entries, max(1, -(-ledger.entries // part_entries), -(-ledger.bytes // part_bytes)))
        done = 0
        for piece in range(1, pieces):  # of a ledger that is cut nothing else is held
            past = ledger.entries * piece // pieces
            last = Position(ledger.ledger, past - 1)
            result.append((begin, last, past - done))
            begin, done = last, past
        held += ledger.entries - done
        size += ledger.bytes * (ledger.entries - done) // ledger.entries
        last = Position(ledger.ledger, ledger.entries - 1)
    if held:
        result.append((begin, last, held))
    return result


def expected(parts: Sequence[Part]) -> int | None:
    """Entries of all parts together, for progress; None when a topic's are not known."""
    return None if any(part.up_to is None for part in parts) else sum(part.entries for part in parts)
