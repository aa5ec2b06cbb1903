"""What it takes to start: seconds, and seconds of processor of all processes, until a broker and a pipeline do their work.

    python -m bench.starts [--rounds 5]

A broker, in an empty folder, until it is ready; `magnetar replicate` between two clusters (two queries) until
it has moved its first ten messages. Where the machine's host takes processor time, seconds of processor say more than seconds.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pulsar
from tests.support.brokers import World
from tests.support.pipelines import Pipeline

from bench.links import client_of
from bench.measuring import family
from bench.results import Figure, store

TOPIC = "persistent://public/default/starts"
MESSAGES = 10


def _processor(pid: int) -> Counter[str]:
    """Seconds of processor so far of a process and all below it, by what they are."""
    spent: Counter[str] = Counter()
    first = psutil.Process(pid)
    for one in family(first):
        try:
            words, times = one.cmdline(), one.cpu_times()
        except psutil.ZombieProcess:
            continue  # a helper that asked Java for its version, say: it has ended and is not waited for yet
        spent["started" if one is first else _kind(words)] += times.user + times.system
    return spent


def _kind(words: list[str]) -> str:
    """What Spark's driver started, by its command line."""
    if Path(words[0]).name == "java":
        return "java"
    if "magnetar.spark_session.fork_server" in words:
        return "python, imports"
    return "python, tasks" if "magnetar.spark_session.daemon" in words else "python, planning and committing"


def broker_start(world: World) -> dict[str, float]:
    """One start of cluster a."""
    began = time.perf_counter()
    broker = world["a"].start()
    seconds = time.perf_counter() - began
    assert broker.process is not None
    spent = _processor(broker.process.pid)
    return {"seconds": seconds, "processor": spent.total()}


def pipeline_start(world: World, before: int, name: str) -> dict[str, float]:
    """One start of a pipeline; `before` messages are in the topic already."""
    began = time.perf_counter()
    pipeline = Pipeline(world.config, name=name).start()
    ready = time.perf_counter() - began
    here, there = client_of(world["a"]), client_of(world["b"])
    try:
        producer = here.create_producer(TOPIC)
        for _ in range(MESSAGES):
            producer.send(b"x")
        reader = there.create_reader(TOPIC, pulsar.MessageId.earliest)
        for _ in range(before + MESSAGES):
            reader.read_next(60_000)
        moved = time.perf_counter() - began
        assert pipeline.process is not None
        spent = _processor(pipeline.process.pid)
    finally:
        here.close()
        there.close()
        pipeline.kill()
    return {"seconds": moved, "ready": ready, "processor": spent.total(), **spent}


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}


def main(arguments: list[str]) -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments[1:]).rounds
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ["a", "b"])
        try:
            brokers = []
            for _ in range(rounds):
                brokers.append(broker_start(world))
                world["a"].kill()
            world.start()
            pipelines = [pipeline_start(world, number * MESSAGES, f"p{number}") for number in range(rounds)]
        finally:
            world.close()
    broker, pipeline = _medians(brokers), _medians(pipelines)
    store(
        "starts",
        [
            Figure("broker: processor until it is ready", broker["processor"], "s", detail=broker),
            Figure("broker: until it is ready", broker["seconds"], "s"),
            Figure("pipeline: processor until ten messages are moved", pipeline["processor"], "s", detail=pipeline),
            Figure("pipeline: until ten messages are moved", pipeline["seconds"], "s"),
        ],
        arguments,
    )


if __name__ == "__main__":
    main(sys.argv)
