"""The records of links in the metadata store: JSON under `cursors/<topic>/pulsar.repl.<to>`, `links/<to>`, `peers/<cluster>`."""

from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.ids import LinkCursor, Position
from magnetar.core.names import link_cursor_name
from magnetar.metadata.topic_records import CURSOR_PREFIX, cursor_key, split_cursor_key

LINK_PREFIX: Final = "links/"
PEER_PREFIX: Final = "peers/"
_CURSOR_NAME: Final = link_cursor_name("")

Pair = tuple[int, int]


class _Record(msgspec.Struct, kw_only=True):
    """Unknown fields of newer versions are ignored, missing ones take their defaults."""

    def encode(self) -> bytes:
        """The bytes that are stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            StorageError: the record under `key` is damaged.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored record {key} is damaged: {error}") from error


class LinkTopicRecord(_Record, kw_only=True):
    """The cursor of a link in one topic, named as Pulsar's replicators name theirs.

    Attributes:
        incarnation: of the topic; a record of another incarnation is ignored.
        c, s, gen: the cursor, see `replication.link.chain`.
        start: where the link began; nothing at or below is sent.
        index: origin index of the first message after c.
        marks: (ledger, entry, index after it) of some earlier positions, ascending. They give the number of messages that are
            missing when the destination falls back to a position that is no longer retained.
        gap: messages that were deleted here before they could be sent.
        skipped: messages that an operator gave up.
        paused: by an operator.
        orphan_since_ms: when the link or the policy went away; 0 while it is there.
    """

    incarnation: int
    c: Pair
    s: Pair
    gen: int
    start: Pair = (-1, -1)
    index: int = 0
    marks: list[tuple[int, int, int]] = []
    gap: int = 0
    skipped: int = 0
    paused: bool = False
    orphan_since_ms: int = 0

    @property
    def cursor(self) -> LinkCursor:
        """(C, S, gen)."""
        return LinkCursor(Position(*self.c), Position(*self.s), self.gen)


class LinkRecord(_Record, kw_only=True):
    """The settings of an operator for a whole link.

    Attributes:
        paused: nothing is sent.
        throttle_bytes_per_s: 0 for no limit.
    """

    paused: bool = False
    throttle_bytes_per_s: int = 0


class PeerRecord(_Record, kw_only=True):
    """The identity of the cluster that has a name.

    Attributes:
        uuid: of its data folder.
        since_ms: when it was believed.
        former: uuids that had the name before, oldest first; they are refused.
    """

    uuid: str
    since_ms: int = 0
    former: list[str] = []


def link_cursor_key(topic: str, to: str) -> str:
    """Where the cursor of the link to a cluster is stored for a topic."""
    return cursor_key(topic, link_cursor_name(to))


def link_cursors(stored: Mapping[str, bytes], to: str) -> Iterable[tuple[str, LinkTopicRecord]]:
    """All stored cursors of the link to a cluster, by topic.

    Raises:
        StorageError: one is damaged.
    """
    for key, data in stored.items():
        if key.startswith(CURSOR_PREFIX):
            topic, name = split_cursor_key(key)
            if name == link_cursor_name(to):
                yield topic, LinkTopicRecord.decode(key, data)


def targets_stored(stored: Iterable[str]) -> set[str]:
    """Clusters to which some stored cursor leads, whether or not a link is configured (orphans)."""
    names = (split_cursor_key(key)[1] for key in stored if key.startswith(CURSOR_PREFIX))
    return {name.removeprefix(_CURSOR_NAME) for name in names if name.startswith(_CURSOR_NAME)}
