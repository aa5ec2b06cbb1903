"""Cuts what is stored into transactions that every metadata store takes: cursors, all the time, and what is very much at once.

ZooKeeper refuses a request of 1 MiB whole, and would do so at every repetition: of thousands of cursors that are dirty at
once, none would ever be durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.effects.outbox import Outbox, Store

STORE_BYTES_MAX: Final = 300_000
"""Of one transaction, as `weight` counts: a third of what ZooKeeper takes (`runtime.stores.znodes.TRANSACTION_BYTES_MAX`)."""

STORE_KEYS_MAX: Final = 500
"""Of one transaction: some milliseconds of the store's time, which others wait for."""

WHOLE_BYTES_MAX: Final = 800_000
"""Of what ought to be one transaction although it is large: what ZooKeeper takes, less a little."""

CURSOR_BYTES_MAX: Final = 600_000
"""Of the acknowledgements out of order in a cursor in ZooKeeper, so that its transaction has room for what is stored with it. One
that is refused whole would be refused at every repetition, and no acknowledgement would be durable any more."""

_KEY_BYTES: Final = 60


class Piece(NamedTuple):
    """What has to be in one transaction.

    Attributes:
        names: for whoever cuts: what is stored with it.
        puts, deletes: keys.
    """

    names: tuple[str, ...]
    puts: Mapping[str, bytes]
    deletes: tuple[str, ...] = ()

    @property
    def keys(self) -> int:
        """How many it writes."""
        return len(self.puts) + len(self.deletes)

    @property
    def weight(self) -> int:
        """Its bytes in a request to ZooKeeper, where a key stands in a path, percent-encoded, and in a list."""
        size = sum(4 * len(key) + len(value) + _KEY_BYTES for key, value in self.puts.items())
        return size + sum(4 * len(key) + _KEY_BYTES for key in self.deletes)

    @property
    def fits(self) -> bool:
        """Whether one transaction takes it."""
        return self.keys <= STORE_KEYS_MAX and self.weight <= STORE_BYTES_MAX


def merged(pieces: Iterable[Piece]) -> Piece:
    """One piece of several; what one of them deletes is not put by another."""
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
    """Transactions out of pieces, in their order. A piece over the limits goes alone: it can hold up nobody else."""
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
    """What ought to be one transaction, as one if every store takes it, else as several; `last` is in the last."""
    whole = merged([last, *pieces])
    return [whole] if whole.weight <= WHOLE_BYTES_MAX else [*cut(pieces), last]


def store_in_turn(outbox: Outbox, batches: Sequence[Piece], then: Callable[[str, Sequence[Piece]], None]) -> None:
    """Store one batch after the other; `then` is told why one was refused, or "", and which ones are stored."""

    def store(at: int) -> None:
        def stored(error: str) -> None:
            if error or at + 1 == len(batches):
                then(error, batches[: at if error else at + 1])
            else:
                store(at + 1)

        outbox.put(Store(dict(batches[at].puts), batches[at].deletes, stored))

    store(0)
