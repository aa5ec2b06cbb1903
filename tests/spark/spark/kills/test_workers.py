"""Effectively once: Spark's Python processes are killed at every step of a micro-batch, and they and the broker at random."""

import logging
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

from magnetar.spark import register
from tests.support.brokers import BrokerProcess
from tests.support.killed_steps import KILLS_S, ROUNDS, killed_at_every_step
from tests.support.killing import BESIDE
from tests.support.spark_format import numbered, publish

pytestmark = pytest.mark.spark

RANDOM_ROUNDS = max(2, ROUNDS // 10)
FIRST_SEED = int(os.environ.get("MAGNETAR_KILL_SEED", "0"))
MESSAGES = 1200
KILLS_MAX = 8
RESTARTS_MAX = 40


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


@pytest.mark.timeout(KILLS_S)
def test_workers_are_killed_at_every_step(broker: BrokerProcess, tmp_path: Path) -> None:
    killed_at_every_step(broker, tmp_path, "worker", "local[5,8]", 2 * len(BESIDE))
