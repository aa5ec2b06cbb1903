"""Why snapshot mode tells of a backlog late: where its snapshots lie in the log while the backlog is worked off.

    python -m bench.snapshot_backlog [--keep]

Two whole brokers in one process, with time in the script's hands (`tests.support.geoworld`): the trace is the same in every
run, however busy the machine is. A consumer in A acknowledges 100 messages a second, in order; every 100 ms it is written
down how many A has acknowledged, how many B takes for acknowledged, and behind which message each snapshot of A's log lies.
`bench.subscriptions` has the figure of real brokers that this explains ("snapshot mode, a backlog").
"""

import argparse
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tests.support.geoworld import Node, World

from bench.results import RESULTS
from magnetar.core.ids import EARLIEST, NONE, Position
from magnetar.storage.entries import EntryFlags
from magnetar.wire.markers import Snapshot, parse_marker

MESSAGES: Final = 1_000
STEP_MS: Final = 100
EACH: Final = 10
"""Messages a step: 100 a second."""

CACHE_BYTES: Final = 1 << 26
"""The whole log stays in memory, to be looked at."""


class Look(NamedTuple):
    """What both brokers say at one moment of virtual time.

    Attributes:
        at_ms: since the first acknowledgement.
        here, there: messages that A has acknowledged, and that B takes for acknowledged.
        snapshots: by snapshot in A's log, how many messages lie in front of it.
    """

    at_ms: int
    here: int
    there: int
    snapshots: list[int]


def snapshots(node: Node) -> list[int]:
    """How many messages of a cluster's log lie in front of each of its own snapshots."""
    log = node.topic.log
    both = EntryFlags.MARKER | EntryFlags.REPLICATED
    own = [entry for entry in log.cached(EARLIEST, 1 << 30, CACHE_BYTES) if entry.flags & both == EntryFlags.MARKER]
    markers = (parse_marker(entry.data) for entry in own)
    return [log.messages_between(NONE, one.local) for one in markers if isinstance(one, Snapshot)]


def acknowledged(node: Node) -> int:
    """Of the messages in a cluster."""
    log = node.topic.log
    return log.messages_between(NONE, log.last) - node.topic.subscriptions["s"].cursor.backlog_messages()


def trace(mode: str, publishing: Callable[[int], int], ahead_ms: int) -> list[Look]:
    """Publish for a while, then acknowledge all.

    Args:
        mode: of the subscription.
        publishing: how many messages are to be published by so many ms after the start.
        ahead_ms: when the consumer begins.
    """
    world = World("ab", mode=mode, cache_bytes=CACHE_BYTES)
    a, b = world["a"], world["b"]
    a.create()
    world.settle()
    client = a.client()
    number = client.subscribe("s")
    world.settle()
    client.flow(number, MESSAGES)
    world.advance(3_000)
    positions: list[Position] = []
    looks: list[Look] = []
    begin = world.now_ms + ahead_ms
    start = world.now_ms
    done = 0
    while done < MESSAGES or looks[-1].there < MESSAGES:
        wanted = min(MESSAGES, publishing(world.now_ms - start))
        if wanted > len(positions):
            positions += a.publish(*(b"x" for _ in range(wanted - len(positions))))
            world.settle()
        if world.now_ms >= begin:
            if done < min(MESSAGES, len(positions)):
                done = min(done + EACH, len(positions))
                client.ack(number, positions[done - 1], cumulative=True)
            looks.append(Look(world.now_ms - begin, acknowledged(a), acknowledged(b), snapshots(a)))
        world.advance(STEP_MS)
        assert not looks or looks[-1].at_ms < 100_000, "B never hears of it"
    return looks


def staleness(looks: list[Look]) -> tuple[int, int]:
    """p50 and p99 of the time from an acknowledgement in A until B shows it, ms."""
    found = []
    for number in range(1, MESSAGES + 1):
        here = next(look.at_ms for look in looks if look.here >= number)
        there = next(look.at_ms for look in looks if look.there >= number)
        found.append(there - here)
    found.sort()
    return found[len(found) // 2], found[len(found) * 99 // 100]


def rows(looks: list[Look]) -> Iterable[str]:
    """One line a second."""
    yield f"{'s':>4}  {'acknowledged in A':>17}  {'in B':>5}  snapshots in A's log lie behind message"
    for look in [*looks[::10], looks[-1]] if (len(looks) - 1) % 10 else looks[::10]:
        places = sorted(set(look.snapshots))
        shown = (
            ", ".join(map(str, places)) if len(places) <= 14 else f"{', '.join(map(str, places[:6]))}, ... {places[-1]}"
        )
        yield f"{look.at_ms / 1000:4.0f}  {look.here:17,}  {look.there:5,}  {shown or 'none'}"


def at_once(_ms: int) -> int:
    return MESSAGES


def steadily(ms: int) -> int:
    return (ms // STEP_MS + 1) * EACH


CASES: Final[tuple[tuple[str, str, Callable[[int], int], int], ...]] = (
    ("snapshot mode, a backlog that was published at once", "snapshot", at_once, 5_000),
    ("snapshot mode, a backlog that grew for 10 s", "snapshot", steadily, 11_000),
    ("snapshot mode, beside publishing", "snapshot", steadily, 0),
    ("exact mode, a backlog that was published at once", "exact", at_once, 5_000),
)

CONCLUSION: Final = """\
A snapshot names the end of the log at the moment when it is taken (PIP-33): other clusters answer with the ends of theirs,
and one can say "up to here, and there up to there" about these positions only. What is consumed of a backlog lies in front of
the snapshots that were taken after it was published; until the consumer gets to one, there is no pair of positions to tell.
So the staleness of a backlog that was published at once is the time that it takes to work it off, whatever the interval.
Where the log grew slowly, snapshots lie in between, at most `max_cached_snapshots` (30) of them, and B follows in as many
steps. Exact mode tells what was acknowledged itself.
"""


def main() -> None:
    """Print the trace; keep it with --keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write bench/results/profile-snapshot-backlog.txt")
    keep = parser.parse_args().keep
    lines = [
        "Where snapshots lie while a backlog is worked off (bench.snapshot_backlog; virtual time, the same in every run)",
        "",
        f"{MESSAGES:,} messages, {EACH * 1000 // STEP_MS} acknowledged a second in A, in order; snapshot_interval_ms = 1000.",
    ]
    for title, mode, publishing, ahead_ms in CASES:
        looks = trace(mode, publishing, ahead_ms)
        p50, p99 = staleness(looks)
        lines += ["", f"{title}: staleness p50 {p50:,} ms, p99 {p99:,} ms", "", *rows(looks)]
    text = "\n".join([*lines, "", CONCLUSION])
    print(text)
    if keep:
        (RESULTS / "profile-snapshot-backlog.txt").write_text(text)


if __name__ == "__main__":
    main()
