"""`magnetar verify` as a Spark job: 1,000,000 messages of a topic in two clusters, with planted faults that it has to find.

    python -m bench.verify                       messages of 1 KB, 100 in an entry, and of 100 bytes, one in an entry
    python -m bench.verify --quick               a tenth of it

The copy in the second cluster is written over the links' own protocol with 10 faults of each kind (tests.support.planting). A run
counts only if exactly these are found. The rate is different messages a second, each read, checked and compared in both
clusters; brokers, JVM and workers share the machine's cores. The start of Spark (once, 5 s) is not in it.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.brokers import World
from tests.support.planting import KINDS, LyingLink, Planted

from bench.broker import load
from bench.results import Figure, store
from magnetar.core import config as configuration
from magnetar.jobs.verify import Progress, VerifyResult, verify_config
from magnetar.spark_session import session

AIM = 200_000
EACH = 10
ROUNDS = 3


def filled(world: World, topic: str, messages: int, size: int, batch: int) -> Planted:
    """Publish in one cluster, copy to the other with faults."""
    load(
        f"127.0.0.1:{world['west'].pulsar_port}", topic, "--messages", str(messages), "--size", str(size),
        "--batch", str(batch),
    )  # fmt: skip
    (token,) = world.folder.rglob("link.token")
    link = LyingLink(world["west"], world["east"], token)
    try:
        return link.copy(topic, messages // batch, each=EACH)
    finally:
        link.close()


def check(result: VerifyResult, planted: Planted, messages: int) -> None:
    """Exactly what was planted was found.

    Raises:
        AssertionError: it was not.
    """
    assert result.messages == messages, result.messages
    assert result.clusters["west"].clean, result.clusters["west"]
    east = result.clusters["east"]
    for kind in KINDS:
        shown = [one.identity.index for one in east.examples[kind]]
        assert getattr(east, kind) == planted.messages[kind], (kind, getattr(east, kind), planted.messages[kind])
        assert shown == sorted(planted.indexes[kind]), (kind, shown, planted.indexes[kind])


def measured(world: World, spark: Any, messages: int, size: int, batch: int) -> Figure:
    """The best of some runs, with how often progress moved."""
    topic = f"persistent://public/default/verify-{batch}"
    planted = filled(world, topic, messages, size, batch)
    config = configuration.load(world.config)
    seconds = []
    for _ in range(ROUNDS):
        steps: list[Progress] = []
        result = verify_config(spark, config, topic, report=steps.append)
        check(result, planted, messages)
        seconds.append(result.seconds)
    reading = [step.done for step in steps if step.step == "reading"]
    best = min(seconds)
    detail = {
        "seconds": seconds, "messages": messages, "bytes": size, "messages_per_entry": batch, "clusters": 2,
        "entries_per_s": planted.entries / best, "mb_per_s": 2 * messages * size / best / 1e6,
        "planted_and_found": planted.messages, "steps_of_progress": len(set(reading)),
    }  # fmt: skip
    return Figure(f"verify, {batch} messages in an entry", messages / best, "messages/s", f"{AIM:,}", detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    messages = options.messages // 10 if options.quick else options.messages
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        world = World(folder, ["west", "east"]).start()
        spark = session.build(app="bench", master="local[2]", log=folder / "spark.log")
        try:
            figures = []
            for size, batch in ((1024, 100), (100, 1)):
                began = time.perf_counter()
                figures.append(measured(world, spark, messages, size, batch))
                sys.stderr.write(f"{figures[-1]} after {time.perf_counter() - began:.0f} s\n")
            store("verify", figures, sys.argv)
        finally:
            session.stop(spark, folder / "spark.log")
            world.close()


if __name__ == "__main__":
    main()
