"""What the broker keeps in the metadata store about topics: JSON under `topics/...` and `deleted/...`."""

from typing import Final

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position

TOPIC_PREFIX: Final = "topics/"
DELETED_PREFIX: Final = "deleted/"
CURSOR_PREFIX: Final = "cursors/"
REPLICATED_PREFIX: Final = "replicated/"
LAST_LEDGER_KEY: Final = "broker/last_ledger"
"""The highest ledger id that was given to a topic as its incarnation, in decimal."""


class TopicRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """The durable facts of one topic that its log cannot tell any more once old ledgers are gone.

    See docs/design/links.md#saved-before-deletion.

    Attributes:
        incarnation: the id of the first ledger that the topic ever had; its identity together with the cluster.
        created_ms: when it was created here.
        first_ledger: where retention is: ledgers below were deleted. At first it is the incarnation; then it grows, and the
            incarnation stays.
        next_index: the origin index that the next local message gets at least.
        watermarks: source cluster -> (ledger, entry) in that cluster, at least.
        properties: of the administrator.
        terminated: no more publishing.
        restored: (incarnation, first, end) of messages of an earlier data folder of this cluster that came back from a peer
            and whose ledgers were deleted since: they must not come back once more.
        topic_epoch: the last one that a producer with exclusive access was given.
        end: (ledger, entry) of the newest entry, when all ledgers were deleted at last.
        stored_as: the name under which the log has its older ledgers, see `broker.catalog.adoption`; unset: its own.
    """

    incarnation: int
    created_ms: int
    first_ledger: int = 0
    next_index: int = 0
    watermarks: dict[str, tuple[int, int]] = {}
    properties: dict[str, str] = {}
    terminated: bool = False
    restored: list[tuple[int, int, int]] = []
    topic_epoch: int = 0
    end: tuple[int, int] = (-1, -1)
    stored_as: str | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        """As stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, name: str, data: bytes) -> "TopicRecord":
        """Read what `encode` wrote.

        Raises:
            StorageError: the record of topic `name` is damaged.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored record of topic {name} is damaged: {error}") from error

    def watermark_positions(self) -> dict[str, Position]:
        """The saved watermarks as positions."""
        return {source: Position(*pair) for source, pair in self.watermarks.items()}

    def end_position(self) -> Position:
        """The saved end as a position."""
        return Position(*self.end)


class DeletedMark(msgspec.Struct, omit_defaults=True):
    """Left by deleting a replicated topic, see `broker.catalog.deletion_marks`.

    Attributes:
        deleted_ms: when, by this cluster's clock.
        incarnations: source cluster -> the highest ledger id there that was known here of the topic: its incarnation, or a later
            ledger of it. The stored name is `lives`.
        partitions: of a partitioned topic's own mark, how many it had.
    """

    deleted_ms: int
    incarnations: dict[str, int] = msgspec.field(default_factory=dict, name="lives")
    partitions: int = 0

    def encode(self) -> bytes:
        """As stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, name: str, data: bytes) -> "DeletedMark":
        """Read what `encode` wrote.

        Raises:
            StorageError: the mark of topic `name` is damaged.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored mark of deleted topic {name} is damaged: {error}") from error


def quote(text: str) -> str:
    """A name as the last part of a key: without slashes."""
    return text.replace("%", "%25").replace("/", "%2F")


def unquote(text: str) -> str:
    """The reverse of `quote`."""
    return text.replace("%2F", "/").replace("%25", "%")


def cursor_key(topic: str, subscription: str) -> str:
    """Where a subscription's cursor is stored."""
    return f"{CURSOR_PREFIX}{topic}/{quote(subscription)}"


def split_cursor_key(key: str) -> tuple[str, str]:
    """Topic and subscription of a `cursors/...` key."""
    topic, _, subscription = key.removeprefix(CURSOR_PREFIX).rpartition("/")
    return topic, unquote(subscription)


def replicated_key(topic: str, subscription: str = "") -> str:
    """Where the state of a replicated subscription is stored; without a subscription, up to where all states of the topic
    cover its markers.
    """
    return f"{REPLICATED_PREFIX}{topic}/{quote(subscription)}"


def split_replicated_key(key: str) -> tuple[str, str]:
    """Topic and subscription of a `replicated/...` key."""
    topic, _, subscription = key.removeprefix(REPLICATED_PREFIX).rpartition("/")
    return topic, unquote(subscription)
