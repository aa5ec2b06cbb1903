"""A query that is killed at every step of its micro-batches, scene after scene: every message is there once.

Executors (JVMs of `local-cluster`), drivers and Spark's Python processes die with SIGKILL. Each of the three dies at each of the
eight steps in every run: at four of them at once, with four tasks at one each, or at one of those outside tasks.
`MAGNETAR_KILL_ROUNDS` says how often (10), and `make soak` says more. Scenes and steps are those of tests/support/killing.py.
"""

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pulsar

from tests.support.brokers import BrokerProcess
from tests.support.killing import BESIDE, Scene, Stage, all_tasks, beside
from tests.support.spark_format import numbered, publish

ROUNDS: Final = int(os.environ.get("MAGNETAR_KILL_ROUNDS", "10"))
STEP_KILLS: Final = max(ROUNDS, 2 * len(BESIDE))
"""Of one kind: twice at each step outside tasks, or more."""

KILLS_S: Final = 0 if ROUNDS > 10 else 900
"""A deadline for the kills of one kind, as every driver starts a JVM; 0: none."""

LIFE_S: Final = 900
"""A deadline for one life of a driver."""

ROOT: Final = Path(__file__).parents[2]


def scenes(victim: str, count: int) -> list[Scene]:
    """So many: every other time four tasks stand at the four steps of tasks; between, the steps outside tasks take turns."""
    return [
        beside(BESIDE[number // 2 % len(BESIDE)], victim) if number % 2 else all_tasks(victim, number // 2)
        for number in range(count)
    ]


def killed_at_every_step(broker: BrokerProcess, folder: Path, victim: str, master: str, count: int) -> None:
    """A query moves messages from four topics to one, and dies in scene after scene.

    Args:
        broker: holds the topics.
        folder: for checkpoint, scenes and logs.
        victim: "worker", "executor" or "driver".
        master: of Spark.
        count: of scenes.

    Raises:
        AssertionError: a message is lost, there twice or out of order; or not all scenes were played.
    """
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.url, logger=logger)
    messages = 10 * (count + 2)  # of each topic: a scene takes a batch or two, of five of each
    topics = [f"persistent://public/default/in-{number}" for number in range(4)]
    for number, topic in enumerate(topics):
        publish(client, topic, numbered(messages, number * messages), batching_max_messages=5)
    target = "persistent://public/default/out"
    stage = Stage.prepare(folder / "scenes", scenes(victim, count))
    given = {"url": broker.url, "topics": topics, "target": target, "folder": str(folder), "master": master}
    command = [sys.executable, "-m", "tests.support.killed_driver", json.dumps(given)]
    lives, failed = 0, ""
    while not failed:
        lives += 1
        with (folder / "driver.log").open("ab") as log:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
                timeout=LIFE_S, check=False,
            )  # fmt: skip
        if done.returncode == 0:
            break
        if (done.returncode, victim) != (-9, "driver"):
            failed = (folder / "driver.log").read_text()[-2000:]
    assert not failed, failed
    assert (stage.played, stage.killed) == (count, count), (
        f"of {count} scenes: {stage.played} played, {stage.killed} killed"
    )
    assert lives == (count + 1 if victim == "driver" else 1), f"{lives} lives of the driver"
    reader = client.create_reader(target, pulsar.MessageId.earliest)
    found: list[int] = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    client.close()
    counts = Counter(found)
    wrong = {value: counts[value] for value in range(4 * messages) if counts[value] != 1}
    assert sorted(found) == list(range(4 * messages)), f"not there once: {wrong}"
    for number in range(4):  # each task wrote its topic in order
        mine = [value for value in found if value // messages == number]
        assert mine == sorted(mine), f"topic {number} is out of order: {mine}"
