"""The stored form of idempotency keys, so that a start need not read the log of a whole window again.

    idempotency/<topic>             the covered part: a position of the log, the first and the next key number
    idempotency-block/<topic>/<n>   the keys of one block of the ring

Keys are added at the end of the ring, so a snapshot writes the last blocks and the record in one transaction, and
deletes blocks that left the ring. A block is written again until it is full. Stored parts that do not match (damage,
another incarnation, another property, an older layout) are not used: the log is read instead.
"""

from collections.abc import Mapping
from struct import Struct, error
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.broker.publish.idempotency.block import BLOCK_SHIFT, Block
from magnetar.core.ids import NONE, Position
from magnetar.storage.topiclog import TopicLog

if TYPE_CHECKING:
    from magnetar.broker.publish.idempotency.table import KeyTable

PREFIX: Final = "idempotency/"
BLOCK_PREFIX: Final = "idempotency-block/"
VERSION: Final = 3
"""The version of the layout. 1 had no publish times and origins; 2 had fingerprints without a secret."""

_HEAD: Final = Struct("<QII")
"""Number of the first key, keys, ledgers."""

_LEDGER: Final = Struct("<Qq")
"""First key number, ledger."""


class Record(msgspec.Struct, kw_only=True):
    """The part of the log that a snapshot covers.

    Attributes:
        incarnation: the topic's incarnation.
        name: the property whose values are the keys.
        ledger, entry: everything up to here is covered.
        head, tail: first key number, and the one after the last.
        newest_ms: time of the newest key.
        origins: clusters by number.
        secret: secret of the fingerprints.
        version: version of the layout.
    """

    incarnation: int
    name: str
    ledger: int = 0
    entry: int = 0
    head: int = 0
    tail: int = 0
    newest_ms: int = 0
    origins: list[str] = []
    secret: bytes = b""
    version: int = 1

    @property
    def covered(self) -> Position:
        """Everything at or below."""
        return Position(self.ledger, self.entry)


def record_key(topic: str) -> str:
    """The key of a topic's record."""
    return PREFIX + topic


def block_key(topic: str, block: int) -> str:
    """The key of a block."""
    return f"{BLOCK_PREFIX}{topic}/{block:x}"


def encode_block(table: "KeyTable", block: int, tail: int) -> bytes:
    """The keys of a block below a number."""
    first = max(table.head, block << BLOCK_SHIFT)
    end = min(tail, block + 1 << BLOCK_SHIFT)
    start = block << BLOCK_SHIFT
    ledgers = table.ledgers(first, end)
    parts = [_HEAD.pack(first, end - first, len(ledgers)), *(_LEDGER.pack(*pair) for pair in ledgers)]
    parts += [column[first - start : end - start].tobytes() for column in table.columns(first).columns()]
    return b"".join(parts)


def load_block(table: "KeyTable", data: bytes, tail: int) -> None:
    """Take the keys of a stored block, below a number.

    Raises:
        ValueError: it is damaged, or not the next one.
    """
    try:
        first, keys, count = _HEAD.unpack_from(data)
        at = _HEAD.size + count * _LEDGER.size
        ledgers = list(_LEDGER.iter_unpack(data[_HEAD.size : at]))
    except error as problem:
        raise ValueError(f"a block of odd size: {problem}") from None
    block = Block()
    for column in block.columns():
        size = keys * column.itemsize
        column.frombytes(data[at : at + size])
        if len(column) != keys:
            raise ValueError("a block of odd size")
        del column[max(tail - first, 0) :]
        at += size
    if at != len(data):
        raise ValueError("a block of odd size")
    if block.low:
        table.take_block(first, block, [pair for pair in ledgers if pair[0] < tail])


class Stored:
    """The snapshot of one topic, found at start.

    Args:
        topic: full name.
        stored: everything in the metadata store.

    Raises:
        ValueError: the stored parts do not match.
    """

    def __init__(self, topic: str, stored: Mapping[str, bytes]) -> None:
        try:
            self.record = msgspec.json.decode(stored[record_key(topic)], type=Record)
            last = self.record.tail - 1 >> BLOCK_SHIFT if self.record.tail > self.record.head else -1
            first = self.record.head >> BLOCK_SHIFT
            self.keys = [record_key(topic), *(block_key(topic, block) for block in range(first, last + 1))]
            self.blocks = [stored[key] for key in self.keys[1:]]
        except (KeyError, msgspec.DecodeError) as problem:
            raise ValueError(f"{type(problem).__name__} {problem}") from None


def before(log: TopicLog, since_ms: int) -> Position:
    """A position of a log after which all entries are that are not older than a time."""
    start = NONE
    for ledger in log.ledger_infos():
        if ledger.newest_ms >= since_ms:
            break
        start = Position(ledger.ledger, ledger.entries - 1)
    return start
