"""Idempotency keys as they are stored: so that a start need not read the log of a whole window again.

    idempotency/<topic>             what is covered: a position of the log, the first and the next key number
    idempotency-block/<topic>/<n>   the keys of one block of the ring

Keys come at the end of the ring, so that a snapshot writes the last blocks and the record in one transaction, and deletes
blocks that left the ring. A block is written again until it is full. What does not fit together (damage, another life of the
topic, another property) is not used: the log is read instead.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from magnetar.broker.idempotency import BLOCK_SHIFT, Fingerprint, KeyTable
from magnetar.core.ids import Position

PREFIX: Final = "idempotency/"
BLOCK_PREFIX: Final = "idempotency-block/"
_COLUMNS: Final = ("Q", "Q", "Q", "Q", "I")
"""Fingerprint (two halves), broker time in ms, ledger, entry."""


class Record(msgspec.Struct, kw_only=True):
    """What a snapshot covers.

    Attributes:
        incarnation: of the topic.
        name: of the property whose values are the keys.
        ledger, entry: everything up to here is covered.
        head, tail: first key number, and the one behind the last.
    """

    incarnation: int
    name: str
    ledger: int
    entry: int
    head: int
    tail: int

    @property
    def covered(self) -> Position:
        """Everything at or below."""
        return Position(self.ledger, self.entry)


def record_key(topic: str) -> str:
    """Where the record of a topic is stored."""
    return PREFIX + topic


def block_key(topic: str, block: int) -> str:
    """Where a block is stored."""
    return f"{BLOCK_PREFIX}{topic}/{block:x}"


def encode_block(table: KeyTable, block: int, tail: int, now_ms: int) -> bytes:
    """The keys of a block below a number."""
    first = max(table.head, block << BLOCK_SHIFT)
    end = min(tail, block + 1 << BLOCK_SHIFT)
    columns = [array(kind) for kind in _COLUMNS]
    for number in range(first, end):
        key, time_ms = table.key(number, now_ms)
        position = table.position(number)
        for column, value in zip(columns, (*key, time_ms, *position), strict=True):
            column.append(value)
    return first.to_bytes(8, "little") + b"".join(column.tobytes() for column in columns)


def decode_block(data: bytes) -> Iterator[tuple[int, Fingerprint, int, Position]]:
    """(number, fingerprint, time, position) of each key of a block.

    Raises:
        ValueError: it is damaged.
    """
    size = sum(array(kind).itemsize for kind in _COLUMNS)
    count, rest = divmod(len(data) - 8, size)
    if rest or count < 0:
        raise ValueError("a block of odd size")
    first, at = int.from_bytes(data[:8], "little"), 8
    columns = []
    for kind in _COLUMNS:
        column = array(kind)
        end = at + count * column.itemsize
        column.frombytes(data[at:end])
        columns.append(column)
        at = end
    for offset, (high, low, time_ms, ledger, entry) in enumerate(zip(*columns, strict=True)):
        yield first + offset, Fingerprint(high, low), time_ms, Position(ledger, entry)


class Stored:
    """The snapshot of one topic, found at start.

    Args:
        topic: full name.
        stored: everything in the metadata store.

    Raises:
        ValueError: what is there does not fit together.
    """

    def __init__(self, topic: str, stored: Mapping[str, bytes]) -> None:
        try:
            self.record = msgspec.json.decode(stored[record_key(topic)], type=Record)
            last = self.record.tail - 1 >> BLOCK_SHIFT if self.record.tail > self.record.head else -1
            first = self.record.head >> BLOCK_SHIFT
            self.keys = [record_key(topic), *(block_key(topic, block) for block in range(first, last + 1))]
            self.blocks = [stored[key] for key in self.keys[1:]]
        except (KeyError, msgspec.DecodeError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from None


def load_block(table: KeyTable, data: bytes, tail: int, now_ms: int) -> None:
    """Take the keys of a stored block.

    Raises:
        ValueError: it is damaged, or not the next one.
    """
    for number, key, time_ms, position in decode_block(data):
        if number >= tail:
            return
        if not len(table):
            if now_ms - time_ms >= table.window_ms:
                continue  # too old by now
            table.begin(number)
        if number != table.tail:
            raise ValueError(f"key {number} follows {table.tail - 1}")
        table.place(table.push(key, time_ms), position)
