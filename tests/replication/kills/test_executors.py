"""SIGKILL at random moments: executors (tests/support/random_kills.py), of a pipeline with a filter and schemas."""

import json
import random
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
from pulsar.schema import Integer, JsonSchema, Record

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually
from tests.support.pipelines import Pipeline
from tests.support.random_kills import MARKS, ROUNDS, a_moment, all_arrive, kill_one
from tests.support.traffic import Flow
from tests.support.workers import below, is_executor

pytestmark = MARKS


class First(Record):
    number = Integer()


class Second(Record):
    number = Integer()
    more = Integer(required_default=True)


@pytest.fixture
def on_executors(filtered: Path, run_pipeline: Any) -> Pipeline:
    """A pipeline on a cluster of executors, which leaves out messages with the key "here" from a to b."""
    # Two tasks for each: the turns of long batches need two at once, also while one of the executors is gone.
    pipeline: Pipeline = run_pipeline("--master", "local-cluster[2,2,1024]", name="local-cluster", config=filtered)
    return pipeline


def test_filtered_entries_with_schemas_through_executors(mesh: Mesh, on_executors: Pipeline) -> None:
    """A filter sees each entry, the destination asks for schemas in the middle of a batch, C moves over what is left out."""
    topic = f"persistent://public/default/filtered-{uuid.uuid4().hex[:8]}"
    expected = []
    for record in (First, Second):
        producer = mesh.client("a").create_producer(topic, schema=JsonSchema(record), batching_enabled=False)
        for number in range(10):
            kept = number % 3 == 0
            producer.send(record(number=number), partition_key="there" if kept else "here")
            expected += [number] if kept else []
        producer.close()
    messages = mesh.read_all("b", topic, len(expected))
    assert [json.loads(one.data())["number"] for one in messages] == expected
    assert [one._message.int_schema_version() for one in messages] == [0] * 4 + [1] * 4
    eventually(
        lambda: mesh["a"].rest("GET", "/geo/v1/links/b")["lag_messages"] == 0, what="C is behind what was left out"
    )
    assert not mesh.extra("b", topic, len(expected))


def test_sigterm_in_the_middle_of_leases(
    on_executors: Pipeline, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random
) -> None:
    """A clean stop confirms what was stored: the next pipeline begins there, and nothing comes twice."""
    all_arrive(flows)
    a_moment(chance, flows)
    executors = below(on_executors, is_executor)
    assert executors
    assert on_executors.stop() == 0
    _, left = psutil.wait_procs(executors, timeout=20)
    assert not left, "executors outlive the driver"
    assert "Traceback" not in on_executors.output()
    run_pipeline(*on_executors.arguments, name="local-cluster", config=on_executors.config)
    all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)


def test_kills_of_executors(on_executors: Pipeline, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        kill_one(on_executors, chance, lambda: below(on_executors, is_executor), "an executor")
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)
