"""The driver plans only from what is confirmed: no commit settles an entry that the destination never got.

A range of which a filter leaves nothing needs no answer from the destination, so the chain cannot refuse it. Were it planned
behind a range that is still under way, its commit would settle that one's entries too. (The simulator's own pipeline once did.)
"""

import random

import pytest

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.pipeline.planner import BULK, TAIL
from magnetar.replication.link.chain import judge
from tests.unit.pipeline.worlds import at, outcome, ranges, ready, report, shake, state, told

ENTRIES = 60


class Destination:
    """Stores what continues the chain."""

    def __init__(self) -> None:
        self.stored: set[int] = set()
        self.watermark = at(-1)

    def append(self, p: Position, entries: list[int]) -> bool:
        verdict = judge(self.watermark, p, [at(one) for one in entries])
        if verdict.refused:
            return False
        if verdict.first_new is not None:
            self.stored |= set(entries[verdict.first_new :])
            self.watermark = at(entries[-1])
        return True


def _carry(rng: random.Random, part: m.Range, wanted: set[int], there: Destination) -> m.RangeReport | None:
    """What a task does with its range: all of it, a part, or nothing; a report may be lost."""
    end = rng.randint(part.after[1] + 1, part.up_to[1]) if part.after[1] < part.up_to[1] else part.up_to[1]
    entries = [one for one in range(part.after[1] + 1, end + 1) if one in wanted]
    reach = len(entries) if rng.random() < 0.6 else rng.randint(0, len(entries))
    p = m.position(part.s)
    if reach and not there.append(p, entries[:reach]):
        return outcome(part, trouble=m.REFUSED)
    if rng.random() < 0.2:
        return None
    if reach == len(entries):
        return outcome(part, c=end, s=entries[-1] if entries else None)
    if reach:
        return outcome(part, c=entries[reach - 1], s=entries[reach - 1], trouble=m.TARGET_DOWN)
    return outcome(part, trouble=m.RETRY)


def _settled(of: PipelineState, wanted: set[int], there: Destination) -> None:
    settled = of.links[0].topics["t"].cursor.c.entry
    lost = [one for one in wanted if one <= settled and one not in there.stored]
    assert not lost, f"settled up to {settled}, but the destination never got {lost}"


@pytest.mark.parametrize("seed", range(150))
def test_nothing_is_settled_that_the_destination_never_got(seed: int) -> None:
    rng = random.Random(seed)
    wanted = {one for one in range(ENTRIES) if rng.random() < rng.choice((0.1, 0.5, 0.9))}
    there = Destination()
    of = ready(states=(state(last=ENTRIES - 1),))
    waiting: list[tuple[str, m.Range]] = []
    now = 0
    for _ in range(60):
        now += 200_000
        query = rng.choice((TAIL, BULK))
        report(of, state(last=ENTRIES - 1, size=rng.choice((10, 2 << 20))), now=now)
        shake(of, w={"t": there.watermark.entry}, now=now)
        waiting += [(query, part) for part in ranges(of, query, now)]
        _settled(of, wanted, there)
        while waiting and rng.random() < 0.7:
            whose, part = waiting.pop(rng.randrange(len(waiting)))  # also one that was planned anew long ago
            done = _carry(rng, part, wanted, there)
            told(of, whose, *([done] if done is not None else []), now=now)
            _settled(of, wanted, there)
    assert there.stored, "nothing was carried at all"
