"""SIGKILL at random moments: brokers, and the Python processes of a pipeline (tests/support/random_kills.py)."""

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually
from tests.support.random_kills import MARKS, ROUNDS, a_moment, all_arrive, kill_one
from tests.support.traffic import Flow
from tests.support.workers import readers, workers, writers

pytestmark = MARKS

LONG_BATCH_MS: Final = 600_000
"""The turn of long batches would move C, too: it comes after the end of this test."""


def test_kills_of_brokers(mesh: Mesh, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    run_pipeline(name="local")
    kills = {"a": 0, "b": 0}
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        victims = chance.choice([["a"], ["b"], ["a", "b"]])
        for name in victims:
            mesh[name].kill()
            kills[name] += 1
        for name in victims:
            mesh[name].start()
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=kills[flow.origin.cluster])


def test_the_last_row_of_an_answer_does_not_wait_for_another_answer(
    mesh: Mesh, run_pipeline: Any, filtered: Path
) -> None:
    """C moves over what a filter left out, although nothing comes after it: the row that says so has only a few bytes."""
    config = filtered.with_name("long.toml")
    config.write_text(filtered.read_text() + f"[replication.limits]\nlong_batch_ms = {LONG_BATCH_MS}\n")
    run_pipeline(name="long", config=config)
    topic = f"persistent://public/default/left-out-{uuid.uuid4().hex[:8]}"
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"", partition_key="there")
    assert len(mesh.read_all("b", topic, 1)) == 1
    producer.send(b"", partition_key="here")
    eventually(lambda: mesh["a"].rest("GET", "/geo/v1/links/b")["lag_messages"] == 0, what="C moves")
    producer.close()


def test_kills_of_python_workers(
    mesh: Mesh, run_pipeline: Any, filtered: Path, flows: tuple[Flow, Flow], chance: random.Random
) -> None:
    pipeline = run_pipeline(name="filtered", config=filtered)
    ports = {mesh[name].pulsar_port for name in "ab"}
    # Workers of tasks, those of the driver that plan and commit, and the daemons that fork them.
    kinds: list[tuple[str, Callable[[], list[psutil.Process]]]] = [
        ("the reader of a long batch", lambda: readers(pipeline, ports)),
        ("the writer of a long batch", lambda: writers(pipeline, ports)),
        ("a Python worker", lambda: workers(pipeline)),
    ]
    for number in range(ROUNDS):
        a_moment(chance, flows)
        what, wanted = kinds[number % len(kinds)]
        kill_one(pipeline, chance, wanted, what)
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)
