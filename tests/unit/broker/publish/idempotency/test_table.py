"""Idempotency keys: the table against a dumb twin, what is read of messages, what is left of batches."""

import random
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from magnetar.broker.publish.idempotency import table as idempotency_table
from magnetar.broker.publish.idempotency.block import BLOCK_SHIFT, fingerprint
from magnetar.broker.publish.idempotency.judging import judge
from magnetar.broker.publish.idempotency.snapshot import (
    VERSION,
    Record,
    Stored,
    block_key,
    encode_block,
    load_block,
    record_key,
)
from magnetar.broker.publish.idempotency.table import KeyTable
from magnetar.core.errors import BrokerError
from magnetar.core.ids import NONE, Position
from magnetar.wire.batches import decode_batch, encode_batch
from magnetar.wire.idempotency_keys import BATCH_BYTES_MAX, KEY_BYTES_MAX, KeyProperty, open_entry, smaller
from magnetar.wire.metadata import build, inspect, parse_metadata, split
from magnetar.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

LARGE = 1 << 30


class Twin:
    """The same, the slow way: a list of (key, time, position), oldest first."""

    def __init__(self, window_ms: int, keys_max: int) -> None:
        self.window_ms, self.keys_max = window_ms, keys_max
        self.held: list[tuple[bytes, int, Position]] = []

    def find(self, key: bytes, now_ms: int) -> Position | None:
        return next((p for k, t, p in self.held if k == key and abs(now_ms - t) < self.window_ms), None)

    def push(self, key: bytes, now_ms: int, position: Position) -> None:
        self.held = [*self.held[-(self.keys_max - 1) :], (key, now_ms, position)] if self.keys_max > 1 else []
        if self.keys_max == 1:
            self.held = [(key, now_ms, position)]

    def expire(self, now_ms: int) -> None:
        while self.held and now_ms - self.held[0][1] >= self.window_ms:
            self.held.pop(0)


@pytest.mark.parametrize("seed", range(24))
def test_the_table_is_its_dumb_twin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks, so that they are closed and opened again, and the index moves to larger tables."""
    monkeypatch.setattr(idempotency_table, "BLOCK_SHIFT", seed % 3 * 2)
    rng = random.Random(seed)
    window, most = rng.choice((50, 500, 5000)), rng.choice((1, 7, 300, 100_000))
    table, twin = KeyTable(window_ms=window, keys_max=most), Twin(window, most)
    # The time is near the end of the 32 bits that a key keeps of it.
    now, ledger, entry = 2**32 - 700, 5, 0
    keys = [fingerprint(b"%d" % n) for n in range(rng.choice((20, 600)))]
    for _ in range(1500):
        what = rng.random()
        now += rng.choice((0, 0, 1, 3))
        key = rng.choice(keys)
        if what < 0.6:
            number, expected = table.find(key, now), twin.find(key, now)
            some = rng.sample(keys, 12)
            assert table.find_all(some, now) == [table.find(one, now) for one in some]
            assert (table.position(number) if number >= 0 else None) == expected
            if number < 0:
                ledger, entry = (ledger + 1, 0) if rng.random() < 0.02 else (ledger, entry + 1)
                table.set_position(table.push(key, now), Position(ledger, entry))
                twin.push(key, now, Position(ledger, entry))
        elif what < 0.7:
            # A failed append takes its keys back.
            back = rng.randint(0, min(6, len(table)))
            table.truncate(table.tail - back)
            if back:
                del twin.held[-back:]
        elif what < 0.8:
            table.expire(now, LARGE)
            twin.expire(now)
        elif what < 0.802:
            now += window
        assert len(table) == len(twin.held)
        table.validate()


def test_many_keys_in_few_bytes() -> None:
    table = KeyTable(window_ms=1000, keys_max=LARGE)
    keys = [fingerprint(b"%d" % n) for n in range(60_000)]
    for n, key in enumerate(keys):
        assert table.find(key, 5) < 0
        table.set_position(table.push(key, 5), Position(1 + n // 1000, n % 1000))
    assert [table.position(table.find(keys[n], 5)) for n in (0, 999, 1000, 59_999)] == [
        Position(1, 0),
        Position(1, 999),
        Position(2, 0),
        Position(60, 999),
    ]
    ring, index = table.memory()
    assert ring == 24 * len(keys)
    assert index < 30 * len(keys)  # two tables while one takes over from the other
    # All of them grow old, others come: the room is used again.
    table.expire(2000, 40_000)
    assert len(table) == 20_000
    for n in range(200_000, 240_000):
        table.push(fingerprint(b"%d" % n), 2000)
    ring, index = table.memory()
    assert ring <= 24 * (60_000 + (1 << BLOCK_SHIFT))
    assert index < 30 * 60_000
    table.expire(4000, LARGE)
    assert (len(table), table.memory()[1] <= 6 * 64, table.expired) == (0, True, 100_000)
    assert table.position(table.tail) == NONE


def test_keys_made_to_fall_together_are_all_kept() -> None:
    """ints that agree in all bits that place them: the table becomes slow, not wrong."""
    table = KeyTable(window_ms=1000, keys_max=LARGE)
    keys = [bytes((7, *bytes(7), n)) for n in range(256)]
    for key in keys:
        table.push(key, 1)
    assert [table.find(key, 1) for key in keys] == list(range(len(keys)))


def test_a_clock_that_is_put_back() -> None:
    table = KeyTable(window_ms=1000, keys_max=10)
    key = fingerprint(b"k")
    table.push(key, 100_000)
    assert table.find(key, 99_500) == 0
    assert table.find(key, 98_000) < 0  # far ahead counts as unknown: rather twice than never
    table.expire(98_000, 10)
    assert len(table) == 1


def stored(keys: int, *, keep: int = 0) -> tuple[KeyTable, dict[str, bytes]]:
    """A table, and what is stored of it: all but `keep` of the newest keys."""
    table = KeyTable(window_ms=10_000, keys_max=LARGE)
    for n in range(keys):
        table.set_position(table.push(fingerprint(b"%d" % n), n), Position(1 + n // 3000, n % 3000))
    table.expire(10_699, 700)
    tail = table.tail - keep
    record = Record(
        incarnation=7,
        name="k",
        ledger=9,
        entry=9,
        head=table.head,
        tail=tail,
        newest_ms=table.newest_ms,
        version=VERSION,
    )
    blocks = range(table.head >> BLOCK_SHIFT, (tail - 1 >> BLOCK_SHIFT) + 1)
    found = {block_key("t", block): encode_block(table, block, tail) for block in blocks}
    return table, {record_key("t"): msgspec.json.encode(record), **found}


def loaded(found: dict[str, bytes]) -> KeyTable:
    snapshot = Stored("t", found)
    table = KeyTable(window_ms=10_000, keys_max=LARGE)
    for block in snapshot.blocks:
        load_block(table, block, snapshot.record.tail)
    return table


def test_stored_keys_come_back() -> None:
    table, found = stored(9_000, keep=100)
    snapshot = Stored("t", found)
    assert (snapshot.record.covered, len(snapshot.blocks)) == (Position(9, 9), 3)
    again = loaded(found)
    assert (again.head, again.tail) == (table.head, table.tail - 100) == (700, 8_900)
    for n in (700, 701, 4_095, 4_096, 8_899):
        key = fingerprint(b"%d" % n)
        assert again.position(again.find(key, 10_699)) == table.position(table.find(key, 10_699)) != NONE
    assert again.find(fingerprint(b"8900"), 10_699) < 0
    again.validate()
    # Much later, also after so long that the times in the table have come round.
    late = loaded(found)
    late.newest_ms = snapshot.record.newest_ms
    late.expire(13_000, LARGE)
    assert (late.head, late.tail) == (3_001, 8_900)
    late.expire(8_999 + 2**32, LARGE)
    assert len(late) == 0


@pytest.mark.parametrize("damage", ["a block is missing", "no json", "odd size", "another block"])
def test_stored_keys_that_are_damaged(damage: str) -> None:
    _, found = stored(9_000)
    block = block_key("t", 1)
    if damage == "a block is missing":
        del found[block]
    elif damage == "no json":
        found[record_key("t")] = b"{"
    elif damage == "odd size":
        found[block] = found[block][:-3]
    else:
        found[block] = found[block_key("t", 2)]
    with pytest.raises(ValueError):
        loaded(found)


# ------------------------------------------------------------------------------------------------------------- messages


def entry(payload: bytes = b"x", **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1)
    for name, value in fields.items():
        if name == "key":
            metadata.properties.add(key="other", value="o")
            metadata.properties.add(key="k", value=str(value))
        elif name == "encrypted":
            metadata.encryption_keys.add(key="a", value=b"b")
        else:
            setattr(metadata, name, value)
    return build(metadata, payload)


def batch(keys: list[str | None]) -> bytes:
    messages = []
    for n, key in enumerate(keys):
        one = SingleMessageMetadata(payload_size=0, sequence_id=5 + n)
        if key is not None:
            one.properties.add(key="k", value=key)
        messages.append((one, b"m%d" % n))
    return encode_batch(messages)


def opened(data: bytes) -> Any:
    seen = inspect(data, message_bytes_max=5 << 20)
    return open_entry(KeyProperty("k"), seen.flags, seen.metadata, seen.payload, seen.metadata_end)


def test_the_key_of_one_message() -> None:
    assert opened(entry()) is None
    assert opened(entry(key="")) is None
    found = opened(entry(key="größe", compression=1))
    assert [key for key, _, _ in found.messages] == [fingerprint("größe".encode())]
    assert found.batch is None and found.complete


def test_a_key_of_a_megabyte() -> None:
    with pytest.raises(BrokerError, match="idempotency key of 1000000 bytes .*'k'.* over the limit of 1024 bytes"):
        opened(entry(key="k" * 1_000_000))
    assert opened(entry(key="k" * KEY_BYTES_MAX)) is not None


def test_a_chunk_counts_with_the_last_one() -> None:
    parts = [opened(entry(key="a", uuid="u", num_chunks_from_msg=3, chunk_id=n)) for n in range(3)]
    assert [one.complete for one in parts] == [False, False, True]


@pytest.mark.parametrize("compression", [0, 2])
def test_a_batch_loses_what_was_seen(compression: int) -> None:
    plain = batch(["a", None, "b", "c"])
    payload = zlib.compress(plain) if compression else plain
    data = entry(payload, num_messages_in_batch=4, compression=compression, uncompressed_size=len(plain))
    found = opened(data)
    assert [key for key, _, _ in found.messages] == [fingerprint(b"a"), None, fingerprint(b"b"), fingerprint(b"c")]
    left = smaller(parse_metadata(data), found.batch, [found.messages[n] for n in (1, 3)])
    seen = inspect(left, message_bytes_max=5 << 20)
    assert (seen.count, seen.metadata.sequence_id, seen.metadata.highest_sequence_id) == (2, 5, 8)
    messages = decode_batch(left[split(left) :], 2)
    assert [(one.sequence_id, data) for one, data in messages] == [(6, b"m1"), (8, b"m3")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"compression": 1}, "compressed with LZ4"),
        ({"compression": 4}, "compressed with Snappy"),
        ({"compression": 9}, "compressed with 9"),
        ({"compression": 2}, "no zlib stream"),
        ({"encrypted": True}, "encrypted"),
        ({"num_messages_in_batch": 3}, "ends behind"),
    ],
)
def test_a_batch_that_cannot_be_opened(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BrokerError, match=words) as raised:
        opened(entry(batch(["a", "b"]), **{"num_messages_in_batch": 2, **fields}))
    assert "\n" not in str(raised.value)


def test_a_batch_that_swells() -> None:
    bomb = zlib.compress(bytes(BATCH_BYTES_MAX + 10))
    with pytest.raises(BrokerError, match=f"over {BATCH_BYTES_MAX} bytes"):
        opened(entry(bomb, num_messages_in_batch=1, compression=2))


def test_a_batch_that_is_pending_already_is_judged_in_one_look() -> None:
    """A place among what is pending is found by walking over it: once, not for each of thousands of messages."""

    class Pending(dict[bytes, int]):
        walks = 0

        def __iter__(self) -> Iterator[bytes]:
            self.walks += 1
            return super().__iter__()

    keys = [f"k{number}" for number in range(500)]
    data = entry(batch([*keys]), num_messages_in_batch=500)
    table = KeyTable(window_ms=1000, keys_max=1000)
    pending = Pending({fingerprint(key.encode()): 0 for key in ["other", *keys]})
    keyed = judge(table, pending, KeyProperty("k"), inspect(data, message_bytes_max=5 << 20), 1)
    assert keyed is not None
    assert (keyed.count, keyed.repeated, keyed.first) == (0, 500, table.tail + 1)
    assert pending.walks <= 1
