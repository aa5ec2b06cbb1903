"""Chunked messages on a Shared subscription: one consumer gets all chunks of a message, because only then it can
assemble them.

    a chunk of a message without an owner -> the consumer that gets it becomes the owner
    a chunk of a message with an owner    -> the owner; if it cannot receive now, the chunk waits, and other messages continue
    the last chunk                        -> the message has no owner from then on
    the owner leaves                      -> its waiting chunks, and its messages, may go to any consumer

This is as in Pulsar since 2.11 (apache/pulsar #16202), with one difference: a chunk whose first chunks went to no
present consumer (they are acknowledged, or their consumer is gone) delays nothing: it may go to any consumer.
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
"""A ceiling on messages of one subscription of which some chunks were sent and some were not: some 300 bytes each, and
producers that end in the middle leave theirs. Above it the oldest loses its owner.
"""


class Chunk(NamedTuple):
    """The metadata of a chunk.

    Attributes:
        producer, uuid: of the message; together they are unique.
        last: it is the last chunk.
    """

    producer: str
    uuid: str
    last: bool


NAME_BYTES_MAX: Final = 512
"""Names and uuids of chunked messages are kept while some chunks are missing; of a longer one, only its digest."""


def _kept(text: str | bytes) -> str:
    """A text, or its digest if it is long or not UTF-8: then protobuf gives bytes, which a compiled module refuses."""
    if isinstance(text, str) and len(text) <= NAME_BYTES_MAX:
        return text
    return blake2b(text_bytes(text)).hexdigest()


def chunk_of(entry: StoredEntry) -> Chunk | None:
    """The metadata of an entry that is flagged as a chunk; None: it does not name a message."""
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
        """The number of waiting chunks."""
        return sum(map(len, self.waiting.values()))

    def __contains__(self, position: Position) -> bool:
        return any(position in positions for positions in self.waiting.values())

    def owner(self, entry: StoredEntry, consumer: Consumer) -> Consumer:
        """The consumer that gets a chunk: the owner of its message, or `consumer`, which becomes the owner if there is
        none.
        """
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
        """Remove waiting chunks at or below mark-delete, and return them."""
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
        """Consumers other than these are gone: their messages lose their owner. Returns the chunks that waited for
        them.
        """
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
