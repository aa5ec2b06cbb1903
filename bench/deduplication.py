"""What publisher deduplication costs: broker CPU per message with and without, and how long a topic takes to come back.

    python -m bench.deduplication [--quick]

Both halves of the comparison run in one broker, in turns, so that their ratio says more than either figure.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tests.support.brokers import World, eventually

from bench.broker import load
from bench.links import client_of
from bench.measuring import cpu_s
from bench.results import Figure, store

ON = "[deduplication]\nsnapshot_entries = 10000000\nsnapshot_s = 0\n"
"""No snapshots of their own: the recovery has everything to replay."""


def compare(turn: Callable[[bool, int], float], rounds: int) -> dict[str, Any]:
    """Something costly, off and on in turns; the ratio of the quiet quarters.

    On a machine that others use, too, their work can only add to a figure (caches, memory), so that the lower quartile of many
    short turns says more than the median of a few long ones. Every turn is kept.

    Args:
        turn: (whether on, number of the turn) -> microseconds of processor time a message.
        rounds: turns of each kind.
    """
    spent: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        on = number % 4 in (1, 2)  # off on on off: a machine that grows faster or slower does not count for either
        spent[on].append(turn(on, number))
    off, on_ = (statistics.quantiles(spent[kind], n=4)[0] for kind in (False, True))
    medians = {f"median_{name}_us": statistics.median(spent[kind]) for name, kind in (("off", False), ("on", True))}
    rounded = {
        f"all_{name}_us": [round(one, 1) for one in spent[kind]] for name, kind in (("off", False), ("on", True))
    }
    return {"off_us": off, "on_us": on_, "ratio": on_ / off} | medians | rounded


def per_message(world: World, count: int, rounds: int) -> dict[str, Any]:
    """CPU microseconds of the broker per message, with deduplication off and on, in turns."""
    broker = world["solo"]
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)

    def turn(on: bool, number: int) -> float:
        topic = f"cost-{count}-{number}"
        path = f"/admin/v2/persistent/public/default/{topic}"
        broker.rest("PUT", path)
        broker.rest("POST", path + "/deduplicationEnabled", on)
        before = cpu_s(process)
        load(f"127.0.0.1:{broker.pulsar_port}", topic, "--messages", str(count), "--size", "1024")
        spent = (cpu_s(process) - before) / count * 1e6
        broker.rest("DELETE", path + "?force=true")
        return spent

    return compare(turn, rounds)


def recovery(world: World, entries: int) -> dict[str, Any]:
    """Kill the broker with so many entries behind the last snapshot; how long until a producer is let in again."""
    broker = world["solo"]
    topic = "recovering"
    path = f"/admin/v2/persistent/public/default/{topic}"
    address = f"127.0.0.1:{broker.pulsar_port}"
    # A recovery stores a snapshot when the stored one is of an empty topic. This one is behind the first message.
    load(address, topic, "--messages", "1", "--size", "100")
    broker.rest("POST", path + "/deduplicationEnabled", True)
    eventually(
        lambda: broker.rest("GET", path + "/internalStats")["cursors"]["pulsar.dedup"]["markDeletePosition"] != "-1:-1",
        what="the snapshot",
    )
    load(address, topic, "--messages", str(entries), "--size", "100", "--window", "2000")
    rounds = []
    for _ in range(3):  # no snapshot comes in between: each has the same to replay
        broker.kill()
        started = time.perf_counter()
        broker.start()
        up = time.perf_counter() - started
        assert broker.process is not None
        process = psutil.Process(broker.process.pid)
        before = cpu_s(process)
        client = client_of(broker)
        client.create_producer(topic)
        ready = time.perf_counter() - started
        used = cpu_s(process) - before
        client.close()
        rounds.append(
            {
                "broker_up_s": up,
                "producer_ready_s": ready,
                "replay_s": ready - up,
                "replay_cpu_s": used,
                "up_cpu_s": before,
            }
        )
        replayed = broker.rest("GET", "/geo/v1/status")["broker"]["deduplication"]["replayedEntries"]
        assert replayed == entries, f"{replayed} entries were replayed"
    stats = eventually(lambda: broker.rest("GET", path + "/stats"))
    best = min(rounds, key=lambda one: one["replay_s"])
    return {"entries": entries, **best, "status": stats["deduplicationStatus"], "rounds": rounds}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages in the comparison")
    options = parser.parse_args()
    scale = 4 if options.quick else 1
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), ["solo"], ON).start()
        try:
            per_message(world, 20_000, 2)  # warms up
            cost = per_message(world, 50_000, 24 // scale)
            back = recovery(world, 1_000_000)
        finally:
            world.close()
    store(
        "deduplication",
        [
            Figure("broker CPU per message, deduplication on / off", cost["ratio"], "ratio", "<= 1.03", cost),
            Figure("replay of entries behind the last snapshot", back["replay_s"], "s", "< 5", back),
            Figure("processor time of that replay", back["replay_cpu_s"], "s", "", {}),
        ],
        sys.argv,
    )


if __name__ == "__main__":
    main()
