"""The chain rule: exactly once and in order over a link, whatever happens to the task that carries the entries.

A link A -> B carries the entries of a topic in the order of A's log. A Spark task carries them from one broker to the other. It
may die half way, run twice, or continue long after it was replaced. Three pure functions are the whole rule; both brokers and
the property tests use these and nothing else.

The source keeps, durably and as one, the cursor (C, S, gen):

    C    every entry at or below is settled: sent and confirmed, or filtered out, or skipped, or trimmed
    S    the last position at or below C that was *sent* to this destination
    gen  number of the attempt; every rewind raises it

Every entry that is sent names its predecessor p, the position *sent* before it: the first entry of a range names S, each later
one names the entry before it. An entry that is left out on the way moves C and never S or p. So an entry that a filter drops
makes no gap in the chain (docs/design/links.md#sent-position).

The destination keeps, per topic and source cluster, the watermark in two versions: *pushed* (given to storage) and
*persisted* (durable). An entry at `position` with predecessor p is

    stored      if p <= pushed < position       the chain continues
    a duplicate if position <= pushed           not stored again; answered once *persisted* covers it
                                                (docs/design/links.md#persisted-answers)
    refused     if pushed < p                   an entry in between never came here, or was lost

A failed append sets pushed back to persisted. A refusal, and the handshake that starts every link, report *persisted* (W): if
W < S, the destination lost entries that it had, and the source rewinds to W (docs/design/links.md#handshake). A task that
started before the rewind carries the old generation; its confirmation is ignored (docs/design/links.md#generation).

Why a task may run twice with two different filters (docs/design/links.md#two-filters): the destination takes each
position once, from whichever task sends it first, and refuses an entry that does not continue its chain. The other task
has sent duplicates or is refused.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.core.ids import NONE, LinkCursor, Position


class Verdict(NamedTuple):
    """The decision of a destination about a run of entries.

    Attributes:
        first_new: index of the first entry to store, and all later ones are stored too; None when there is none.
        duplicates: how many, from the beginning, are here already or on their way to the disk.
        refused: the chain is broken: nothing of this run may be stored.
    """

    first_new: int | None
    duplicates: int
    refused: bool


def judge(pushed: Position, p: Position, positions: Sequence[Position]) -> Verdict:
    """Judge a run of entries against the chain.

    Args:
        pushed: the watermark of what was given to storage.
        p: the position sent before the first of the run.
        positions: of the entries, strictly ascending, all above p, not empty; each is the p of the next.
    """
    duplicates = bisect_right(positions, pushed)
    if duplicates == len(positions):
        return Verdict(None, duplicates, False)
    # With a duplicate in front, the p of the first new entry is that duplicate's position, which is at most `pushed`.
    if duplicates == 0 and p > pushed:
        return Verdict(None, 0, True)
    return Verdict(duplicates, duplicates, False)


def advance(cursor: LinkCursor, commit: LinkCursor) -> LinkCursor | None:
    """The cursor after a confirmation, or None when the confirmation says nothing new or is of another generation.

    S goes with C but never back: a skip moves C alone, and what a task had sent before it stays sent.
    """
    if commit.gen != cursor.gen or commit.c <= cursor.c or commit.s > commit.c:
        return None
    return LinkCursor(commit.c, max(commit.s, cursor.s), cursor.gen)


def learn(cursor: LinkCursor, watermark: Position, start: Position = NONE) -> LinkCursor | None:
    """The cursor after hearing the destination's *persisted* watermark, or None when the destination has all of S.

    Args:
        cursor: as it is.
        watermark: W.
        start: where the link began (a link may begin at the newest entry); nothing before is sent, also not again.
    """
    if watermark >= cursor.s:
        return None
    return LinkCursor(max(watermark, start), watermark, cursor.gen + 1)
