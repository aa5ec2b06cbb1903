"""What idempotency keys cost: broker CPU per message with and without, memory of ten million of them, and how they come back.

    python -m bench.idempotency [--quick]

Both halves of the comparison send the same messages, each with a unique key, to topics of one broker, in turns: their ratio says
more than either figure.
"""

import argparse
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
from tests.support.brokers import World, eventually

from bench.broker import load
from bench.deduplication import compare
from bench.measuring import cpu_s
from bench.results import Figure, store
from magnetar.broker.publish.idempotency.block import BLOCK_SHIFT
from magnetar.broker.publish.idempotency.judging import judge
from magnetar.broker.publish.idempotency.snapshot import encode_block, load_block
from magnetar.broker.publish.idempotency.table import KeyTable
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from magnetar.wire.idempotency_keys import FINGERPRINT_BYTES, KeyProperty
from magnetar.wire.metadata import build, inspect

KEY = "request"


def per_message(world: World, count: int, rounds: int) -> dict[str, Any]:
    """CPU microseconds of the broker per message, with keys off and on, in turns."""
    broker = world["solo"]
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)

    def turn(on: bool, number: int) -> float:
        topic = f"keys-{count}-{number}"
        path = f"/admin/v2/persistent/public/default/{topic}"
        broker.rest("PUT", path)
        if on:
            policy = {"property": KEY, "windowSeconds": 3600, "keysMax": 10_000_000}
            broker.rest("POST", f"/geo/v1/persistent/public/default/{topic}/idempotency", policy)
            eventually(lambda: broker.rest("GET", path + "/stats")["idempotency"]["status"] == "Enabled")
        before = cpu_s(process)
        sizes = ("--messages", str(count), "--size", "1024")
        load(f"127.0.0.1:{broker.pulsar_port}", topic, *sizes, "--key", KEY)
        spent = (cpu_s(process) - before) / count * 1e6
        broker.rest("DELETE", path + "?force=true")
        return spent

    return compare(turn, rounds)


def in_batches(batches: int, size: int) -> dict[str, Any]:
    """What looking up the keys of batches takes, a message; all are new, beside 100,000 others."""
    table = KeyTable(window_ms=3_600_000, keys_max=10_000_000)
    raw = os.urandom(100_000 * FINGERPRINT_BYTES)
    keys = [raw[at : at + FINGERPRINT_BYTES] for at in range(0, len(raw), FINGERPRINT_BYTES)]
    table.extend(keys, 1, [1] * len(keys), 1, range(len(keys)))
    seen = []
    for number in range(batches):
        messages = []
        for at in range(size):
            one = pb.SingleMessageMetadata(payload_size=0, sequence_id=at)
            one.properties.add(key=KEY, value=str(uuid.uuid4()))
            messages.append((one, bytes(1024)))
        about = pb.MessageMetadata(
            producer_name="p", sequence_id=number * size, publish_time=1, num_messages_in_batch=size
        )
        seen.append(inspect(build(about, encode_batch(messages)), message_bytes_max=5 << 20))
    name, spent = KeyProperty(KEY, os.urandom(32)), []
    for _ in range(9):
        began = time.process_time()
        for one in seen:
            found = judge(table, {}, name, one, 2)
            assert found is not None
            assert len(found.keys) == size
        spent.append((time.process_time() - began) / (batches * size) * 1e6)
    return {"messages_per_batch": size, "us_per_message": min(spent), "all_us": spent}


def table_of(keys: int) -> tuple[KeyTable, dict[str, Any]]:
    """So many keys in memory."""
    process = psutil.Process()
    before = process.memory_info().rss
    table = KeyTable(window_ms=3_600_000, keys_max=keys)
    started = time.process_time()
    step = 200
    worst = 0.0
    for first in range(0, keys, step):
        raw = os.urandom(step * FINGERPRINT_BYTES)
        some = [raw[at : at + FINGERPRINT_BYTES] for at in range(0, len(raw), FINGERPRINT_BYTES)]
        began = time.perf_counter()
        table.find_all(some, first // 1000)
        table.extend(some, first // 1000, [1] * step, 1 + first // 50_000, range(first % 50_000, first % 50_000 + step))
        worst = max(worst, time.perf_counter() - began)
    spent = time.process_time() - started
    ring, index = table.memory()
    return table, {
        "keys": keys,
        "ring_bytes_per_key": ring / keys,
        "index_bytes_per_key": index / keys,
        "rss_bytes_per_key": (process.memory_info().rss - before) / keys,
        "us_per_key": spent / keys * 1e6,
        "longest_step_ms": worst * 1000,
    }


def coming_back(table: KeyTable) -> dict[str, Any]:
    """Encode all blocks of a table, and load them into another."""
    blocks = range(table.head >> BLOCK_SHIFT, (table.tail - 1 >> BLOCK_SHIFT) + 1)
    began = time.perf_counter()
    stored = [encode_block(table, block, table.tail) for block in blocks]
    encoded = time.perf_counter() - began
    other = KeyTable(window_ms=table.window_ms, keys_max=table.keys_max)
    began = time.perf_counter()
    for block in stored:
        load_block(other, block, table.tail)
    loaded = time.perf_counter() - began
    assert len(other) == len(table)
    return {"keys": len(table), "stored_bytes": sum(map(len, stored)), "encode_s": encoded, "load_s": loaded}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages, a tenth of the keys")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), ["solo"]).start()
        try:
            per_message(world, 20_000, 2)  # warms up
            cost = per_message(world, 40_000, 6 if options.quick else 24)
        finally:
            world.close()
    batched = in_batches(200, 100)
    table, memory = table_of(1_000_000 if options.quick else 10_000_000)
    back = coming_back(table)
    store(
        "idempotency",
        [
            Figure("broker CPU per message, keys on / off", cost["ratio"], "ratio", "<= 1.10", cost),
            Figure("keys in batches of 100, for each message", batched["us_per_message"], "us", "<= 4", batched),
            Figure("bytes of a key beside the index", memory["ring_bytes_per_key"], "B", "<= 24", memory),
            Figure("bytes of the index per key", memory["index_bytes_per_key"], "B", "", {}),
            Figure("stored keys come back", back["load_s"], "s", "", back),
        ],
        sys.argv,
    )


if __name__ == "__main__":
    main()
