"""Effectively once: whatever a query runs on is killed, at every step of a micro-batch, and every message is there once.

Executors (JVMs of `local-cluster`), drivers and Spark's Python processes die at chosen steps (tests/support/killing.py), with
SIGKILL; once more Python processes and the broker die at random moments. Each of the three dies at each of the eight steps in
every run: at four of them at once, with four tasks at one each, or at one of those outside tasks. `MAGNETAR_KILL_ROUNDS` says how
often (10), and `make soak` says more.
"""

import json
import logging
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

from magnetar.spark import register
from tests.support.brokers import BrokerProcess, World
from tests.support.killing import BESIDE, Scene, Stage, all_tasks, beside
from tests.support.spark_format import numbered, publish

pytestmark = pytest.mark.spark

ROUNDS = int(os.environ.get("MAGNETAR_KILL_ROUNDS", "10"))
RANDOM_ROUNDS = max(2, ROUNDS // 10)
FIRST_SEED = int(os.environ.get("MAGNETAR_KILL_SEED", "0"))
ROOT = Path(__file__).parents[3]
LIFE_S = 900
"""A deadline for one life of a driver."""

MESSAGES = 1200
KILLS_MAX = 8
RESTARTS_MAX = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    world = World(tmp_path, ["solo"], "[deduplication]\nenabled = true\n").start()
    yield world["solo"]
    world.close()


def workers() -> list[psutil.Process]:
    """The Python processes that Spark started for this session, other than its daemons."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            parent = process.parent()
            if (
                parent is not None
                and "pyspark" in " ".join(process.cmdline())
                and "pyspark" in " ".join(parent.cmdline())
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Killer(threading.Thread):
    """Kills one process after another until told to stop."""

    def __init__(self, seed: int, broker: BrokerProcess | None) -> None:
        super().__init__(daemon=True)
        self._random, self._broker = random.Random(seed), broker
        self._over = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0.02, 0.5)) and self.kills < KILLS_MAX:
            if self._broker is not None and self._random.random() < 0.3:
                self._broker.kill()
                self._broker.start()
            elif alive := workers():
                self._random.choice(alive).kill()
            self.kills += 1

    def stop(self) -> None:
        self._over.set()
        self.join(60)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RANDOM_ROUNDS))
def test_every_message_once(spark: Any, broker: BrokerProcess, tmp_path: Path, seed: int) -> None:
    register(spark)
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.url, logger=logger)
    topics = ["persistent://public/default/in-a", "persistent://public/default/in-b"]
    for number, topic in enumerate(topics):
        publish(client, topic, numbered(MESSAGES, number * MESSAGES), batching_max_messages=37)
    client.close()
    killer = Killer(seed, broker)
    options = {"service.url": broker.url, "startingOffsets": "earliest", "maxMessagesPerTrigger": "1000"}
    target = "persistent://public/default/out"
    killer.start()
    restarts = 0
    try:
        while True:
            try:
                frame = spark.readStream.format("pulsar").options(topics=",".join(topics), **options).load()
                writer = frame.select("value").writeStream.format("pulsar").option("service.url", broker.url)
                query = writer.option("topic", target).option("checkpointLocation", str(tmp_path / "checkpoint"))
                query = query.option(
                    "pulsar.producer.batchingMaxMessages", "2"
                )  # so that most kills come between two of them
                query.trigger(availableNow=True).start().awaitTermination()
                break
            except Exception:  # noqa: BLE001 - whatever a killed process makes of it: the query is started again
                restarts += 1
                assert restarts < RESTARTS_MAX
    finally:
        killer.stop()
    assert killer.kills
    rows = (
        spark.read.format("pulsar")
        .option("service.url", broker.url)
        .option("topic", target)
        .load()
        .select("value")
        .collect()
    )
    counts = Counter(int(row.value) for row in rows)
    wrong = {value: count for value, count in counts.items() if count != 1}
    assert (len(counts), wrong) == (2 * MESSAGES, {}), f"{killer.kills} kills, {restarts} restarts"


def scenes(victim: str, count: int) -> list[Scene]:
    """So many: every other time four tasks stand at the four steps of tasks; between, the steps outside tasks take turns."""
    return [
        beside(BESIDE[number // 2 % len(BESIDE)], victim) if number % 2 else all_tasks(victim, number // 2)
        for number in range(count)
    ]


@pytest.mark.timeout(0 if ROUNDS > 10 else 900)  # every driver starts a JVM
@pytest.mark.parametrize(
    ("victim", "master", "count"),
    [
        ("worker", "local[5,8]", 2 * len(BESIDE)),
        ("executor", "local-cluster[1,4,1024]", max(ROUNDS, 2 * len(BESIDE))),
        ("driver", "local[5,8]", max(ROUNDS, 2 * len(BESIDE))),
    ],
)
def test_killed_at_every_step(broker: BrokerProcess, tmp_path: Path, victim: str, master: str, count: int) -> None:
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.url, logger=logger)
    messages = 10 * (count + 2)  # of each topic: a scene takes a batch or two, of five of each
    topics = [f"persistent://public/default/in-{number}" for number in range(4)]
    for number, topic in enumerate(topics):
        publish(client, topic, numbered(messages, number * messages), batching_max_messages=5)
    target = "persistent://public/default/out"
    stage = Stage.prepare(tmp_path / "scenes", scenes(victim, count))
    given = {"url": broker.url, "topics": topics, "target": target, "folder": str(tmp_path), "master": master}
    command = [sys.executable, "-m", "tests.support.killed_driver", json.dumps(given)]
    lives, failed = 0, ""
    while not failed:
        lives += 1
        with (tmp_path / "driver.log").open("ab") as log:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
                timeout=LIFE_S, check=False,
            )  # fmt: skip
        if done.returncode == 0:
            break
        if (done.returncode, victim) != (-9, "driver"):
            failed = (tmp_path / "driver.log").read_text()[-2000:]
    assert not failed, failed
    assert (stage.played, stage.killed) == (count, count)
    assert lives == (count + 1 if victim == "driver" else 1)
    reader = client.create_reader(target, pulsar.MessageId.earliest)
    found: list[int] = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    client.close()
    assert sorted(found) == list(range(4 * messages))
    for number in range(4):  # each task wrote its topic in order
        mine = [value for value in found if value // messages == number]
        assert mine == sorted(mine)
