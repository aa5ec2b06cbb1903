"""Messages in chunks on a Shared subscription: one consumer gets all chunks of a message, for it alone can put them together.

    a chunk of a message that nobody owns -> whoever is given it is the owner
    a chunk of one that somebody owns     -> the owner; if it cannot take it now, the chunk waits for it, and the others go on
    the last chunk                        -> nobody owns the message any more
    the owner goes                        -> what waited for it is for anybody, and so are its messages

As Pulsar does since 2.11 (apache/pulsar #16202), but that a chunk whose first ones went to nobody here (they are acknowledged, or
were given to somebody who is gone) holds up nothing: it goes to anybody.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.wire.metadata import parse_metadata, text_bytes

OWNERS_MAX: Final = 10_000
"""A ceiling on messages of one subscription of which some chunks are given and some are not: some 300 bytes each, and producers
that end in the middle leave theirs behind. Beyond it the oldest has no owner any more."""


class Chunk(NamedTuple):
    """What a chunk's metadata tells.

    Attributes:
        producer, uuid: of the message; together they are nobody else's.
        last: no more of it follow.
    """

    producer: str
    uuid: str
    last: bool


NAME_BYTES_MAX: Final = 512
"""Names and uuids of messages in chunks are kept as long as some chunks are missing; of a longer one its digest is."""


def _kept(text: str) -> str:
    """A text, or what stands for it."""
    if len(text) <= NAME_BYTES_MAX:
        return text
    return blake2b(text_bytes(text)).hexdigest()


def chunk_of(entry: StoredEntry) -> Chunk | None:
    """What an entry that is flagged as a chunk tells; None: it does not say of which message."""
    try:
        metadata = parse_metadata(entry.data)
    except ProtocolError:
        return None
    if not metadata.uuid:
        return None
    return Chunk(
        _kept(metadata.producer_name), _kept(metadata.uuid), metadata.chunk_id >= metadata.num_chunks_from_msg - 1
    )


class Chunks:
    """Owners of messages in chunks, and the chunks that wait for theirs.

    Attributes:
        waiting: by owner, ascending; no empty ones.
    """

    def __init__(self) -> None:
        self.waiting: dict[Consumer, PositionSet] = {}
        self._owners: dict[tuple[str, str], Consumer] = {}

    def __len__(self) -> int:
        """How many chunks wait."""
        return sum(map(len, self.waiting.values()))

    def __contains__(self, position: Position) -> bool:
        return any(position in positions for positions in self.waiting.values())

    def owner(self, entry: StoredEntry, consumer: Consumer) -> Consumer:
        """Who gets a chunk: the owner of its message, which `consumer` is from now on if it has none."""
        chunk = chunk_of(entry)
        if chunk is None:
            return consumer
        message = chunk.producer, chunk.uuid
        found = self._owners.get(message)
        if chunk.last:
            self._owners.pop(message, None)
        elif found is None:
            if len(self._owners) >= OWNERS_MAX:
                del self._owners[next(iter(self._owners))]
            self._owners[message] = consumer
        return found or consumer

    def wait(self, owner: Consumer, position: Position) -> None:
        """A chunk waits for the owner of its message."""
        self.waiting.setdefault(owner, PositionSet()).add(*position)

    def no_more(self, owner: Consumer, position: Position) -> None:
        """A chunk that waits for this owner does so no longer."""
        positions = self.waiting[owner]
        positions.discard(*position)
        if not positions:
            del self.waiting[owner]

    def discard(self, position: Position) -> None:
        """It does not wait, if it did."""
        for owner in [owner for owner, positions in self.waiting.items() if position in positions]:
            self.no_more(owner, position)

    def take_up_to(self, mark_delete: Position) -> Iterable[Position]:
        """Nothing at or below mark-delete waits any more; what did."""
        taken = []
        for owner, positions in list(self.waiting.items()):
            taken += [
                Position(ledger, entry)
                for ledger, entries in positions.take_up_to(mark_delete).items()
                for entry in entries
            ]
            if not positions:
                del self.waiting[owner]
        return taken

    def take_of_gone(self, consumers: Collection[Consumer]) -> list[Position]:
        """Those who are not among these are gone: their messages have no owner any more, and what waited for them does not."""
        self._owners = {message: owner for message, owner in self._owners.items() if owner in consumers}
        gone = [owner for owner in self.waiting if owner not in consumers]
        return [position for owner in gone for position in self.waiting.pop(owner)]

    def clear(self) -> None:
        """Forget everything."""
        self.waiting.clear()
        self._owners.clear()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert all(self.waiting.values()), "an empty set of waiting chunks was left behind"
        assert len(self._owners) <= OWNERS_MAX, "too many owners of messages in chunks"
