"""Which ledgers of a topic may be deleted. Pulsar's rule, as a pure function.

A ledger may go when everything in it is behind the slowest *durable* cursor (docs/design/links.md#durable-cursor), and
then when it is older than the retention time or the topic is larger than the retention size. Ledgers go from the oldest
on; the last one stays, but where nothing can be stored: a full disk may be full of last ledgers. Then the end of the
topic is stored in its place, so that a topic never forgets where it ends.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from magnetar.core.ids import NONE, Position
from magnetar.storage.ledger import Ledger


class Retention(NamedTuple):
    """How long acknowledged messages stay: until *either* is exceeded; -1 is for ever, 0 at once (Pulsar's rule)."""

    time_ms: int
    size_bytes: int


class Trim(NamedTuple):
    """Ledgers that may go, and what must be durable elsewhere before they do; `end` is NONE while one stays."""

    ledgers: list[int]
    first_ledger: int
    next_index: int
    watermarks: dict[str, Position]
    end: Position = NONE


def deletable(
    closed: Sequence[Ledger], size_bytes: int, keep_after: Position | None, now_ms: int, retention: Retention
) -> list[int]:
    """Ids of the ledgers that may go.

    Args:
        closed: all ledgers to which nothing is added any more, ascending.
        size_bytes: of the whole topic.
        keep_after: somebody needs everything behind this durable position; None: nobody needs anything.
        now_ms: the clock.
        retention: how long what nobody needs stays all the same.
    """
    # What follows was stored later, whatever a clock said that was wrong: one ledger of the future must not keep all others.
    newest = list(accumulate((ledger.newest_ms for ledger in reversed(closed)), min))[::-1]
    going: list[int] = []
    for ledger, newest_ms in zip(closed, newest, strict=True):
        if keep_after is not None and Position(ledger.ledger, ledger.entries - 1) > keep_after:
            break
        too_old = retention.time_ms >= 0 and now_ms - newest_ms >= retention.time_ms
        too_much = retention.size_bytes >= 0 and size_bytes > retention.size_bytes
        if not (too_old or too_much):
            break
        going.append(ledger.ledger)
        size_bytes -= ledger.bytes
    return going
