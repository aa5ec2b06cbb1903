"""The pipeline of docs/spark.md, run as it stands: two clusters, flights of which some are in both, a topic and Parquet."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.cli.demo import flights
from magnetar.spark import register
from tests.clients.conftest import connect
from tests.support.brokers import World

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
EACH = 400


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two clusters; nothing is replicated, so that what is in both was published twice."""
    world = World(tmp_path, ["west", "east"], "[deduplication]\nenabled = true\n").start()
    yield world
    world.close()


def publish(world: World, cluster: str, payloads: list[bytes]) -> None:
    client = connect(world[cluster])
    producer = client.create_producer("flights", batching_enabled=True, block_if_queue_full=True)
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    client.close()


def delays(payloads: list[bytes]) -> dict[tuple[str, str], tuple[int, float | None]]:
    """What the pipeline should find: flights and mean delay by hour and origin."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for flight in map(json.loads, payloads):
        found[flight["time_hour"], flight["origin"]].append(flight["dep_delay"])
    result: dict[tuple[str, str], tuple[int, float | None]] = {}
    for key, values in found.items():
        known = [value for value in values if value is not None]
        result[key] = len(values), sum(known) / len(known) if known else None
    return result


def test_the_pipeline(spark: Any, world: World, tmp_path: Path) -> None:
    all_flights = flights.departures(flights.january(flights.rows(flights.source())), EACH)
    ewr, jfk, lga = (all_flights[name].payloads for name in ("ewr", "jfk", "lga"))
    publish(world, "west", ewr + jfk + jfk[:50])
    publish(world, "east", jfk[100:] + lga)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 1
    source = (
        blocks[0]
        .replace("pulsar://127.0.0.1:6650", world["west"].url)
        .replace("pulsar://127.0.0.1:6651", world["east"].url)
    )
    source = source.replace("/var/lib/delays", str(tmp_path / "out"))
    register(spark)
    expected = delays(ewr + jfk + lga)
    for _ in range(2):  # again: nothing is new, nothing is added
        exec(source, {})
        rows = spark.read.parquet(str(tmp_path / "out" / "hours")).collect()
        got = {(row["hour"].strftime("%Y-%m-%dT%H:%M:%SZ"), row["origin"]): row for row in utc(spark, rows)}
        assert {key: row["flights"] for key, row in got.items()} == {key: count for key, (count, _) in expected.items()}
        for key, (_, mean) in expected.items():
            assert got[key]["delay"] == (None if mean is None else pytest.approx(mean))
    client = connect(world["west"])
    reader = client.create_reader("delays", pulsar.MessageId.earliest)
    written = []
    while reader.has_message_available():
        message = reader.read_next(5_000)
        written.append((json.loads(message.data()), message.partition_key()))
    client.close()
    assert len(written) == len(expected)
    assert sum(row["flights"] for row, _ in written) == 3 * EACH
    assert {key for _, key in written} == {"EWR", "JFK", "LGA"}


def utc(spark: Any, rows: list[Any]) -> list[dict[str, Any]]:
    """Rows with their hour in UTC, whatever the session's zone."""
    from datetime import UTC

    return [row.asDict() | {"hour": row["hour"].astimezone(UTC)} for row in rows]
