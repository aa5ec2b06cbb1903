"""How long the 1,001st schema of a topic takes: to be judged, and to be registered with a broker that makes it durable.

    python -m bench.schemas_registry [--quick]

Each version adds a field of its own, so that the history is as varied as it can be. "judged" is the registry alone, on the
broker's thread; "registered" is a REST request to a real broker, with the check, the disk (SQLite, synchronous) and HTTP.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.brokers import BrokerProcess, World

from bench.results import Figure, store
from magnetar.schemas.compatibility import Strategy
from magnetar.schemas.errors import SchemaIncompatible
from magnetar.schemas.keyvalue import put_together
from magnetar.schemas.registry import Registry
from magnetar.schemas.types import Definition, SchemaType

MEASURED = 50
"""Schemas that are added to the history, one after the other."""


def text(number: int, fields: int, salt: str = "") -> str:
    """A record with so many fields that all versions have, and one of its own; the salt makes it new to all caches."""
    same = [{"name": f"field_{n}", "type": ["null", "int"], "default": None} for n in range(fields)]
    own = {"name": f"own_{salt}{number}", "type": ["null", "string"], "default": None}
    return json.dumps({"type": "record", "name": "Measured", "fields": [*same, own]})


def definition(number: int, fields: int, kind: SchemaType, salt: str) -> Definition:
    """The n-th schema of a topic."""
    data = text(number, fields, salt).encode()
    if kind is not SchemaType.KEY_VALUE:
        return Definition(kind, data)
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"}
    return Definition(kind, put_together(b"", data), properties)


def judged(versions: int, fields: int, strategy: Strategy, kind: SchemaType = SchemaType.AVRO) -> list[float]:
    """Milliseconds to judge a new schema behind so many others."""
    registry = Registry()

    def add(number: int, by: Strategy) -> None:
        addition = registry.prepare("t", definition(number, fields, kind, f"{strategy}{kind}"), by, now_ms=0)
        assert not isinstance(addition, int)
        registry.apply(addition)

    for number in range(versions):
        add(number, Strategy.ALWAYS_COMPATIBLE)
    spent = []
    for number in range(versions, versions + MEASURED + 1):
        began = time.perf_counter()
        add(number, strategy)
        spent.append((time.perf_counter() - began) * 1000)
    return spent[1:]  # the first one folds the history, which a broker does at its start


def refused(versions: int, fields: int) -> list[float]:
    """Milliseconds to refuse a schema because of the very first version."""
    registry = Registry()
    for number in range(versions):
        known = definition(number, fields, SchemaType.AVRO, "refused")
        addition = registry.prepare("t", known, Strategy.ALWAYS_COMPATIBLE, now_ms=0)
        assert not isinstance(addition, int)
        registry.apply(addition)
    spent = []
    for number in range(MEASURED + 1):
        wrong = json.loads(text(0, fields, "refused"))
        wrong["fields"][-1] |= {"type": ["null", "int"]}
        wrong["fields"].append({"name": f"other_{number}", "type": ["null", "int"], "default": None})
        data = json.dumps(wrong).encode()
        began = time.perf_counter()
        try:
            registry.prepare("t", Definition(SchemaType.AVRO, data), Strategy.FULL_TRANSITIVE, now_ms=0)
        except SchemaIncompatible as error:
            spent.append((time.perf_counter() - began) * 1000)
            words = str(error)
        else:
            words = "accepted"
        if "version 0" not in words:
            raise RuntimeError(f"version 0 should be in the way, not: {words}")
    return spent[1:]


class Uploads:
    """One connection to a broker's admin interface."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = HTTPConnection("127.0.0.1", broker.http_port)

    def ask(self, method: str, path: str, body: Any) -> float:
        """Milliseconds until the answer."""
        began = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        told = answer.read()
        assert answer.status < 300, told
        return (time.perf_counter() - began) * 1000


def registered(world: World, versions: int, fields: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of uploads behind so many versions, under FULL and FULL_TRANSITIVE; seconds of the next start."""
    broker = world["solo"]
    uploads = Uploads(broker)
    path = "/admin/v2/schemas/public/default/measured/schema"
    policy = "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"

    def upload(number: int) -> float:
        return uploads.ask("POST", path, {"type": "AVRO", "schema": text(number, fields)})

    for number in range(versions):
        upload(number)
    full = [upload(number) for number in range(versions, versions + MEASURED)]
    uploads.ask("PUT", policy, "FULL_TRANSITIVE")
    upload(versions + MEASURED)
    transitive = [upload(number) for number in range(versions + MEASURED + 1, versions + 2 * MEASURED + 1)]
    broker.kill()
    began = time.perf_counter()
    broker.start()
    return full, transitive, time.perf_counter() - began


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="100 versions instead of 1,000")
    versions = 100 if parser.parse_args().quick else 1000
    figures: list[Figure] = []

    def figure(name: str, spent: list[float], aim: str = "< 10") -> None:
        detail = {"max_ms": max(spent), "versions": versions}
        figures.append(Figure(f"{name}, p50 of {len(spent)}", statistics.median(spent), "ms", aim, detail))

    for strategy in (Strategy.FULL, Strategy.FULL_TRANSITIVE):
        figure(f"judged, {strategy}, 20 fields, {versions} versions", judged(versions, 20, strategy))
    figure(f"judged, FULL_TRANSITIVE, 200 fields, {versions} versions", judged(versions, 200, Strategy.FULL_TRANSITIVE))
    pairs = judged(versions, 20, Strategy.FULL_TRANSITIVE, SchemaType.KEY_VALUE)
    figure(f"judged, FULL_TRANSITIVE, key-value, {versions} versions", pairs)
    figure(f"refused, FULL_TRANSITIVE, 20 fields, {versions} versions", refused(versions, 20))
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ["solo"]).start()
        try:
            full, transitive, start_s = registered(world, versions, 20)
        finally:
            world.close()
    figure(f"registered, FULL, 20 fields, {versions} versions", full)
    figure(f"registered, FULL_TRANSITIVE, 20 fields, {versions} versions", transitive)
    figures.append(Figure(f"start of a broker with {versions + 2 * MEASURED} versions", start_s, "s"))
    store("schemas_registry", figures, sys.argv)


if __name__ == "__main__":
    main()
