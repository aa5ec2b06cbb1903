"""What publisher deduplication costs: broker CPU per message with and without, and how long a topic takes to come back.

    python -m bench.deduplication [--quick]

Both halves of the comparison run in one broker, in turns, so that their ratio says more than either figure.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tests.support.brokers import World, eventually

from bench.broker import load
from bench.links import busy, client_of
from bench.results import Figure, store

ON = "[deduplication]\nsnapshot_entries = 10000000\nsnapshot_s = 0\n"
"""No snapshots of their own: the recovery has everything to replay."""


def per_message(world: World, count: int, rounds: int) -> dict[str, Any]:
    """CPU microseconds of the broker per message, with deduplication off and on, in turns."""
    broker = world["solo"]
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * rounds):
        on = bool(turn % 2)
        topic = f"cost-{count}-{turn}"
        path = f"/admin/v2/persistent/public/default/{topic}"
        broker.rest("PUT", path)
        broker.rest("POST", path + "/deduplicationEnabled", on)
        before = busy(process)
        load(f"127.0.0.1:{broker.pulsar_port}", topic, "--messages", str(count), "--size", "1024")
        spent[on].append((busy(process) - before) / count * 1e6)
    off, on_ = (statistics.median(spent[kind]) for kind in (False, True))
    return {"off_us": off, "on_us": on_, "ratio": on_ / off, "all_off_us": spent[False], "all_on_us": spent[True]}


def recovery(world: World, entries: int) -> dict[str, Any]:
    """Kill the broker with so many entries behind the last snapshot; how long until a producer is let in again."""
    broker = world["solo"]
    topic = "recovering"
    path = f"/admin/v2/persistent/public/default/{topic}"
    broker.rest("PUT", path)
    broker.rest("POST", path + "/deduplicationEnabled", True)
    load(f"127.0.0.1:{broker.pulsar_port}", topic, "--messages", str(entries), "--size", "100", "--window", "2000")
    broker.kill()
    started = time.perf_counter()
    broker.start()
    up = time.perf_counter() - started
    client = client_of(broker)
    client.create_producer(topic)
    ready = time.perf_counter() - started
    stats = eventually(lambda: broker.rest("GET", path + "/stats"))
    client.close()
    return {
        "entries": entries,
        "broker_up_s": up,
        "producer_ready_s": ready,
        "replay_s": ready - up,
        "status": stats["deduplicationStatus"],
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages")
    options = parser.parse_args()
    scale = 4 if options.quick else 1
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), ["solo"], ON).start()
        try:
            per_message(world, 20_000, 1)
            cost = per_message(world, 200_000 // scale, 5)
            back = recovery(world, 1_000_000 // scale)
        finally:
            world.close()
    store(
        "deduplication",
        [
            Figure("broker CPU per message, deduplication on / off", cost["ratio"], "ratio", "<= 1.03", cost),
            Figure("replay of entries behind the last snapshot", back["replay_s"], "s", f"< {5 / scale:g}", back),
        ],
        sys.argv,
    )


if __name__ == "__main__":
    main()
