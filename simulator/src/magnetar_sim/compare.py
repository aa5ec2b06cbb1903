"""What the modes cost applications: messages that come twice, on the same seeds.

The worlds are plain ones (a mesh, no seeks, no lost disks), the consumer wanders between clusters, brokers die. A delivery
counts as *again* when a consumer somewhere had acknowledged the message before, and the broker had received that. At the end a
consumer is given what is left in every cluster, and acknowledges nothing. A seed is comparable when in both modes consumers
acknowledged something and every promise held.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.checkers.progress import Progress
from magnetar_sim.host.processes import in_pieces
from magnetar_sim.observers import Observer
from magnetar_sim.options import WorldOptions
from magnetar_sim.runner import steps_of
from magnetar_sim.world import World

MODES: Final = ("exact", "snapshot")

PIECE: Final = 4
"""Seeds for which a process lives through both worlds before it reports, at most."""


def plain_world(seed: int, mode: str, *more: Callable[[World], Observer]) -> World:
    """A world that both modes can be in, and `more` checkers in it, in front of the others."""
    # `Progress` has a consumer acknowledge everything in one cluster, in snapshot mode alone: that would be counted.
    checkers: list[Callable[[World], Observer]] = [*more, *(kind for kind in CHECKERS if kind is not Progress)]
    return World(seed, mode, options=WorldOptions(plain=True), checkers=checkers)


class Counts(NamedTuple):
    """What one world came to.

    Attributes:
        deliveries, again, acknowledged: messages given to consumers, those given again, and acknowledged ones.
        why: the broken promise, if one was.
    """

    deliveries: int
    again: int
    acknowledged: int
    why: str


def _piece(seeds: list[int]) -> list[tuple[int, dict[str, Counts]]]:
    return [(seed, {mode: _one(seed, mode) for mode in MODES}) for seed in seeds]


def _one(seed: int, mode: str) -> Counts:
    world = plain_world(seed, mode)
    why = ""
    try:
        world.run(steps_of(seed))
    except AssertionError as broken:
        why = str(broken)
    shared = world.acks.shared.values()
    return Counts(
        sum(one.deliveries for one in shared),
        sum(one.again for one in shared),
        sum(len(one.acked) for one in shared),
        why,
    )


def compare(seeds: range, cores: int) -> dict[str, Any]:
    """Deliveries, and those that came again, in each mode, over the comparable ones of some seeds."""
    ordered = sorted(in_pieces(_piece, seeds, cores, PIECE), key=itemgetter(0))
    broken = [f"{mode} {seed}: {one.why}" for seed, both in ordered for mode, one in both.items() if one.why]
    pairs = [both for _, both in ordered if all(one.acknowledged and not one.why for one in both.values())]
    differences = [both["snapshot"].again - both["exact"].again for both in pairs]
    return {
        "seeds": len(seeds),
        "first_seed": seeds.start,
        "broken": broken,
        "comparable": len(pairs),
        "more_in_snapshot": sum(one > 0 for one in differences),
        "equal": sum(one == 0 for one in differences),
        "more_in_exact": sum(one < 0 for one in differences),
        "modes": {mode: _sum([both[mode] for both in pairs]) for mode in MODES},
    }


def _sum(worlds: list[Counts]) -> dict[str, float]:
    acknowledged, again = sum(one.acknowledged for one in worlds), sum(one.again for one in worlds)
    rates = sorted(1000 * one.again / one.acknowledged for one in worlds)
    return {
        "deliveries": sum(one.deliveries for one in worlds),
        "acknowledged": acknowledged,
        "again": again,
        "again_per_1000_acknowledged": round(1000 * again / max(1, acknowledged), 1),
        "worlds_with_any": sum(one.again > 0 for one in worlds),
        "again_per_1000_acknowledged_p90_of_worlds": round(rates[9 * len(rates) // 10], 1) if rates else 0.0,
    }


def table(result: dict[str, Any]) -> str:
    """The same for people, as Markdown."""
    lines = [
        "| mode | deliveries | acknowledged | came again | per 1,000 acknowledged | worlds with any |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for mode, one in result["modes"].items():
        lines.append(
            f"| {mode} | {one['deliveries']:,} | {one['acknowledged']:,} | {one['again']:,} "
            f"| {one['again_per_1000_acknowledged']:.1f} | {one['worlds_with_any']} of {result['comparable']} |"
        )
    lines.append("")
    lines.append(
        f"{result['comparable']} comparable worlds of {result['seeds']} seeds: more came again in snapshot mode in "
        f"{result['more_in_snapshot']}, in exact mode in {result['more_in_exact']}, the same in {result['equal']}; "
        f"{len(result['broken'])} broken promises."
    )
    return "\n".join(lines)
