"""Cutting writes to the metadata store into transactions of a size that every store accepts.

ZooKeeper refuses a request of 1 MiB as a whole, and would refuse every repetition: if thousands of cursors changed at
once, none would ever be durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.effects.outbox import Outbox, Store

STORE_BYTES_MAX: Final = 300_000
"""The most bytes of one transaction, counted by `weight`: a third of ZooKeeper's limit
(`runtime.stores.znodes.TRANSACTION_BYTES_MAX`).
"""

STORE_KEYS_MAX: Final = 500
"""The most keys of one transaction: some milliseconds of the store's time, for which other writes wait."""

WHOLE_BYTES_MAX: Final = 800_000
"""The most bytes of a large piece that still goes in one transaction: ZooKeeper's limit, less a little."""

CURSOR_BYTES_MAX: Final = 600_000
"""The most bytes of out-of-order acknowledgements of a cursor in ZooKeeper, so that its transaction has room for other
values. A larger cursor would be refused at every repetition, and no acknowledgement of it would be durable.
"""

_KEY_BYTES: Final = 60


class Piece(NamedTuple):
    """Writes that have to be in one transaction.

    Attributes:
        names: names for the caller of what is stored with it.
        puts, deletes: keys.
    """

    names: tuple[str, ...]
    puts: Mapping[str, bytes]
    deletes: tuple[str, ...] = ()

    @property
    def keys(self) -> int:
        """The number of keys that it writes."""
        return len(self.puts) + len(self.deletes)

    @property
    def weight(self) -> int:
        """Its bytes in a request to ZooKeeper, where a key is in a path, percent-encoded, and in a list."""
        size = sum(4 * len(key) + len(value) + _KEY_BYTES for key, value in self.puts.items())
        return size + sum(4 * len(key) + _KEY_BYTES for key in self.deletes)

    @property
    def fits(self) -> bool:
        """Whether one transaction takes it."""
        return self.keys <= STORE_KEYS_MAX and self.weight <= STORE_BYTES_MAX


def merged(pieces: Iterable[Piece]) -> Piece:
    """One piece from several; a key that one of them deletes is not put by another."""
    names: list[str] = []
    puts: dict[str, bytes] = {}
    deletes: dict[str, None] = {}
    for piece in pieces:
        names += piece.names
        puts |= piece.puts
        deletes |= dict.fromkeys(piece.deletes)
    for key in deletes:
        puts.pop(key, None)
    return Piece(tuple(names), puts, tuple(deletes))


def cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Transactions made of pieces, in their order. A piece over the limits is alone in its transaction: it can delay no
    other.
    """
    batch: list[Piece] = []
    keys = weight = 0
    for piece in pieces:
        more, heavier = piece.keys, piece.weight
        if batch and (keys + more > STORE_KEYS_MAX or weight + heavier > STORE_BYTES_MAX):
            yield merged(batch)
            batch, keys, weight = [], 0, 0
        batch.append(piece)
        keys, weight = keys + more, weight + heavier
    if batch:
        yield merged(batch)


def whole_or_cut(pieces: Sequence[Piece], last: Piece) -> list[Piece]:
    """Pieces that should be one transaction: as one if every store accepts it, else as several, the last of which has
    `last`.
    """
    whole = merged([last, *pieces])
    return [whole] if whole.weight <= WHOLE_BYTES_MAX else [*cut(pieces), last]


def store_in_turn(outbox: Outbox, batches: Sequence[Piece], then: Callable[[str, Sequence[Piece]], None]) -> None:
    """Store one batch after the other; `then` gets the error of a refusal, or "", and the batches that are stored."""

    def store(at: int) -> None:
        def stored(error: str) -> None:
            if error or at + 1 == len(batches):
                then(error, batches[: at if error else at + 1])
            else:
                store(at + 1)

        outbox.put(Store(dict(batches[at].puts), batches[at].deletes, stored))

    store(0)
