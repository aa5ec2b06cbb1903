"""What schemas cost a link: an entry whose version is known, and a link that meets one new schema after the other.

    python -m bench.schemas [--quick]

"known": entries of 1 KB through the destination's preparation (checksums, metadata, stamp), with and without a version; what
the version adds is the difference. "new": a topic with so many messages, each of another schema, waits in a; the link is
resumed; real brokers (SQLite, synchronous), the real pipeline, both registries check by FULL; the time is that from the
resumption to the last confirmation that a has, batch by batch.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pulsar
from pulsar.schema import AvroSchema
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline

from bench.links import client_of, full_name
from bench.results import Figure, store
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.replication.link.incoming import Stamp, prepare
from magnetar.replication.link.schemas import Translation
from magnetar.schemas.versions import encode_version
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build, field_bytes

ENTRIES = 100
ROUNDS = 1_001
BYTES = 1_024
TOPIC = "persistent://public/default/t"


def entries(versions: list[int]) -> tuple[pb.CommandGeoAppend, bytes, list[Position]]:
    """A GEO_APPEND of entries with these versions in turn; without any, of entries without one."""
    data = []
    for number in range(ENTRIES):
        metadata = pb.MessageMetadata(producer_name="bench", sequence_id=number, publish_time=1_700_000_000_000)
        if versions:
            metadata.schema_version = encode_version(versions[number % len(versions)])
        data.append(build(metadata, bytes(BYTES)))
    request = pb.CommandGeoAppend(
        request_id=1, topic=TOPIC, source="a", uuid="u", incarnation=1, gen=1, p=pb.GeoPosition(ledger=-1, entry=-1),
        ledgers=[1] * ENTRIES, entries=range(ENTRIES), first_indexes=range(ENTRIES), counts=[1] * ENTRIES,
        sizes=[len(one) for one in data],
    )  # fmt: skip
    return request, b"".join(data), [Position(1, number) for number in range(ENTRIES)]


def known() -> list[Figure]:
    """Microseconds that a known version adds to an entry."""
    stamp = Stamp("a")
    translation = Translation((TOPIC, "a"), "u", TopicName.parse(TOPIC), 1)
    for there in range(50):
        here = field_bytes(16, encode_version(there + 1)) if there % 2 else b""
        translation.suffixes[encode_version(there)] = here + stamp.field
    kinds = {
        "none": entries([]),
        "same number": entries(list(range(0, 50, 2))),
        "other number": entries(list(range(1, 50, 2))),
    }
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, (request, payload, positions) in kinds.items():  # in turn: a busy machine is busy for all
            began = time.perf_counter()
            made, obstacle = prepare(request, payload, positions, 0, stamp, 5 << 20, translation)
            spent[kind].append((time.perf_counter() - began) * 1e6 / ENTRIES)
            assert (len(made), obstacle) == (ENTRIES, None)
    base = min(spent["none"])  # the least: what others do on the machine only adds
    detail = {"entries": ENTRIES, "rounds": ROUNDS, "p50": statistics.median(spent["none"])}
    figures = [Figure("an entry without a version", base, "us", "", detail)]
    for kind in ("same number", "other number"):
        detail = {"p50": statistics.median(spent[kind]) - statistics.median(spent["none"])}
        figures.append(
            Figure(f"a known version adds, {kind} at the destination", min(spent[kind]) - base, "us", "< 2", detail)
        )
    return figures


def definition(number: int) -> dict[str, Any]:
    """The n-th schema of the topic: each has a field of its own, all with defaults."""
    fields = [
        {"name": name, "type": ["null", "string"], "default": None} for name in ("carrier", "gate", f"own_{number}")
    ]
    return {"type": "record", "name": "Measured", "fields": fields}


def lag(world: World, topic: str) -> int:
    """Messages of a topic that a has not seen confirmed."""
    return sum(
        state["lag_messages"]
        for link in world["a"].rest("GET", "/geo/v1/links")
        for state in link["topics"]
        if state["topic"] == topic
    )


def new(count: int) -> list[Figure]:
    """New schemas a second."""
    topic = full_name("new-schemas")
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ["a", "b"]).start()
        pipeline = Pipeline(world.config)
        try:
            client = client_of(world["a"])
            client.create_producer(topic).send(b"first")
            world["a"].rest("POST", f"/geo/v1/links/b/pause?topic={topic}")
            for number in range(count):
                producer = client.create_producer(topic, schema=AvroSchema(None, definition(number)))
                producer.send({"carrier": "A", "gate": None, f"own_{number}": "x"})
                producer.close()
            other = full_name("warm")
            client.create_producer(other).send(b"warm")
            pipeline.start()
            eventually(lambda: lag(world, other) == 0, within_s=120)
            began = time.perf_counter()
            world["a"].rest("POST", f"/geo/v1/links/b/resume?topic={topic}")
            eventually(lambda: lag(world, topic) == 0, within_s=240, every_s=0.01)
            seconds = time.perf_counter() - began
            there = world["b"].rest("GET", f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schemas")
            assert len(there["getSchemaResponses"]) == count
            reader = client_of(world["b"]).create_reader(
                topic, pulsar.MessageId.earliest, schema=AvroSchema(None, definition(0))
            )
            values = [reader.read_next(20_000) for _ in range(count + 1)]
            reader.close()
            assert json.dumps(values[-1].value()) == json.dumps({"carrier": "A", "gate": None, "own_0": None})
            assert Position(values[-1].message_id().ledger_id(), values[-1].message_id().entry_id()) > NONE
            client.close()
        finally:
            pipeline.kill()
            world.close()
    detail = {"schemas": count, "seconds": seconds}
    return [Figure("new schemas in a row on a link", count / seconds, "/s", ">= 100", detail)]


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="200 new schemas instead of 1,000")
    count = 200 if parser.parse_args().quick else 1_000
    store("schemas", known() + new(count), sys.argv)


if __name__ == "__main__":
    main()
