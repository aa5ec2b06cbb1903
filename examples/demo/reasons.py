"""Why the consumer was given a flight twice: each second delivery has its reason, or it is a fault.

A flight comes twice for one of two reasons. Its first cluster was killed before the acknowledgement reached
the other one; or it had been sent to the consumer when the subscription was moved on purpose and was not acknowledged in
time, which the move reports. The message id names the cluster of a delivery: each cluster has ledgers of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

KILLED: Final = "killed"
MOVED: Final = "moved"

Flight = tuple[str, int]


class Delivery(NamedTuple):
    """A flight that was received and acknowledged.

    Attributes:
        order: how many different flights were acknowledged before this one.
        ledger: of its message id.
    """

    order: int
    ledger: int


class Again(NamedTuple):
    """A delivery that is not a flight's first."""

    before: Delivery
    ledger: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the second deliveries come from.

    Attributes:
        reasons: KILLED, MOVED -> how many.
        strange: those without a reason, by what is known of them.
    """

    reasons: Counter[str]
    strange: Counter[str]


def judge(
    again: Iterable[Again],
    acknowledged: Mapping[Flight, Delivery],
    holders: Callable[[int], frozenset[str]],
    *,
    first: str,
    second: str,
    replicated: int | None,
    redelivered: int,
) -> Verdict:
    """Find the reason of every second delivery.

    Args:
        again: the second deliveries.
        acknowledged: every flight's last delivery.
        holders: ledger -> the clusters that have one of that number. Rarely two have: then either may have been meant.
        first: the cluster where the consumer began, which was killed, and to which it was moved back.
        second: where it was in between.
        replicated: how many acknowledgements had reached `second` before the kill; None: no broker was killed.
        redelivered: how many the planned move reported as sent and not acknowledged.
    """
    # A flight that was acknowledged after the first one of `second` was not acknowledged to the dead broker.
    there = min((one.order for one in acknowledged.values() if holders(one.ledger) == {second}), default=None)
    reasons: Counter[str] = Counter()
    strange: Counter[str] = Counter()
    for before, ledger in again:
        came_from, came_to = holders(before.ledger), holders(ledger)
        if first in came_from and second in came_to:
            if replicated is None:
                strange[f"in {second} without any broker having been killed"] += 1
            elif before.order < replicated:
                strange[f"whose acknowledgement {second} had"] += 1
            elif there is not None and before.order > there:
                strange[f"in {second} after the way back"] += 1
            else:
                reasons[KILLED] += 1
        elif second in came_from and first in came_to:
            reasons[MOVED] += 1
        else:
            names = "/".join(sorted(came_from)), "/".join(sorted(came_to))
            strange[f"first in {names[0] or 'nowhere'} and again in {names[1] or 'nowhere'}"] += 1
    if reasons[MOVED] > redelivered:
        strange["more than the planned move reported"] += reasons[MOVED] - redelivered
        reasons[MOVED] = redelivered
    return Verdict(+reasons, strange)
