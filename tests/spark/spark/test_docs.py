"""The pipeline of docs/spark.md and examples/flights_delays.py, run as they stand: two clusters, a topic and Parquet."""

import itertools
import json
import re
import runpy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from examples.demo import flights

from magnetar.spark import register
from tests.clients.conftest import connect
from tests.support.brokers import World

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "spark.md"
EXAMPLE = ROOT / "examples" / "flights_delays.py"
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


def january() -> dict[str, list[bytes]]:
    """The first flights of each airport, as JSON."""
    lines = flights.rows(flights.source())
    columns = next(lines)
    found: dict[str, list[bytes]] = {"EWR": [], "JFK": [], "LGA": []}
    for number, line in enumerate(lines):
        row = flights.flight(number, dict(zip(columns, line, strict=True)))
        if len(found[str(row["origin"])]) < EACH:
            found[str(row["origin"])].append(json.dumps(row).encode())
        elif all(len(several) == EACH for several in found.values()):
            break
    return found


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
    ewr, jfk, lga = january().values()
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
        message = reader.read_next(60_000)
        written.append((json.loads(message.data()), message.partition_key()))
    client.close()
    assert len(written) == len(expected)
    assert sum(row["flights"] for row, _ in written) == 3 * EACH
    assert {key for _, key in written} == {"EWR", "JFK", "LGA"}


def utc(spark: Any, rows: list[Any]) -> list[dict[str, Any]]:
    """Rows with their hour in UTC, whatever the session's zone."""
    from datetime import UTC

    return [row.asDict() | {"hour": row["hour"].astimezone(UTC)} for row in rows]


def test_the_example(spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 900
    for name, value in {
        "WEST": world["west"].url, "EAST": world["east"].url, "OUT": str(tmp_path / "out"), "FLIGHTS": str(count)
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    zone = spark.conf.get("spark.sql.session.timeZone")
    expected: dict[tuple[str, str], list[Any]] = defaultdict(list)
    lines = flights.rows(flights.source())
    columns = next(lines)
    for line in itertools.islice(lines, count):
        row = dict(zip(columns, line, strict=True))
        expected[row["time_hour"], row["origin"]].append(row["dep_delay"])
    register(spark)
    try:
        for _ in range(2):  # again: nothing is new, nothing is added
            found = runpy.run_path(str(EXAMPLE))
            got = {(row["hour"], row["origin"]): row for row in utc(spark, found["newest"].collect())}
            assert {(hour.strftime("%Y-%m-%dT%H:%M:%SZ"), origin) for hour, origin in got} == set(expected)
            for (hour, origin), row in got.items():
                known = [int(text) for text in expected[hour.strftime("%Y-%m-%dT%H:%M:%SZ"), origin] if text != "NA"]
                wanted = (len(expected[hour.strftime("%Y-%m-%dT%H:%M:%SZ"), origin]), len(known), sum(known))
                assert (row["flights"], row["departed"], row["minutes"] or 0) == wanted
            assert found["in_topic"].count() == len(expected)
            assert found["written"].count() == found["hours"].count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
