"""The rule by which ledgers of a topic are deleted: Pulsar's rule, as a pure function.

A ledger may be deleted when all durable cursors have passed everything in it (docs/design/links.md#durable-cursor), and
it is older than the retention time or the topic is larger than the retention size. The oldest ledgers are deleted
first. The last ledger stays, except when nothing can be stored: a full disk may be full of last ledgers. Then the end
position of the topic is stored instead, so that a topic never forgets it.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from magnetar.core.ids import NONE, Position
from magnetar.storage.ledger import Ledger


class Retention(NamedTuple):
    """The time and size for which acknowledged messages stay, until *either* is exceeded; -1 is for ever, 0 is not at
    all (Pulsar's rule).
    """

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
    """The ids of the ledgers that may be deleted.

    Args:
        closed: all closed ledgers, ascending.
        size_bytes: size of the whole topic.
        keep_after: everything after this durable position is needed; None: nothing is needed.
        now_ms: the clock.
        retention: how long entries stay that are not needed.
    """
    # Later entries were stored later, whatever a wrong clock said: one ledger with a time in the future must not keep
    # all others.
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
