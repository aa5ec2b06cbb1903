"""What the modes cost applications: messages that come twice, on the same seeds.

The worlds are plain ones (a mesh, no seeks, no lost disks), the consumer wanders between clusters, brokers die. A delivery
counts as *again* when a consumer somewhere had acknowledged the message before, and the broker had heard that.
"""

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

from magnetar.sim.runner import steps_of
from magnetar.sim.world import World


class PlainWorld(World):
    """A world that both modes can live in."""

    plain = True


def _one(work: tuple[int, str]) -> tuple[str, int, int, int, str]:
    seed, mode = work
    world = PlainWorld(seed, mode)
    why = ""
    try:
        world.run(steps_of(seed))
    except AssertionError as broken:
        why = str(broken)
    shared = world.acks.shared.values()
    return (
        mode,
        sum(one.deliveries for one in shared),
        sum(one.again for one in shared),
        sum(len(one.acked) for one in shared),
        why,
    )


def compare(seeds: range, cores: int) -> dict[str, Any]:
    """Deliveries, and those that came again, in each mode."""
    found: dict[str, dict[str, int]] = {
        mode: {"deliveries": 0, "acknowledged": 0, "again": 0, "worlds_with_any": 0, "broken": 0}
        for mode in ("exact", "snapshot")
    }
    for mode, deliveries, again, acked, why in _all(seeds, cores):
        one = found[mode]
        one["deliveries"] += deliveries
        one["acknowledged"] += acked
        one["again"] += again
        one["worlds_with_any"] += again > 0
        one["broken"] += bool(why)
    return {"seeds": len(seeds), "first_seed": seeds.start, "modes": found}


def _all(seeds: range, cores: int) -> Iterator[tuple[str, int, int, int, str]]:
    work = [(seed, mode) for seed in seeds for mode in ("exact", "snapshot")]
    with get_context("fork").Pool(cores) as pool:
        yield from pool.imap_unordered(_one, work, chunksize=4)


def table(result: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{'mode':10}{'deliveries':>12}{'acknowledged':>14}{'came again':>12}{'per 1,000 acks':>16}{'worlds':>8}"]
    for mode, one in result["modes"].items():
        rate = 1000 * one["again"] / max(1, one["acknowledged"])
        lines.append(
            f"{mode:10}{one['deliveries']:>12}{one['acknowledged']:>14}{one['again']:>12}{rate:>16.1f}"
            f"{one['worlds_with_any']:>8}"
        )
    return "\n".join(lines)
