"""The documents of topics in the metadata store: JSON under `topics/...` and `deleted/...`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position

TOPIC_PREFIX: Final = "topics/"
DELETED_PREFIX: Final = "deleted/"
CURSOR_PREFIX: Final = "cursors/"
REPLICATED_PREFIX: Final = "replicated/"
LAST_LEDGER_KEY: Final = "broker/last_ledger"
"""The highest ledger id that was given to a topic as its incarnation, in decimal."""


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""An empty mapping of a record, one object for all topics: most have nothing there. To change a mapping is to replace it."""


class TopicRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """The durable facts of one topic that its log no longer has once old ledgers are deleted.

    See docs/design/links.md#saved-before-deletion.

    Attributes:
        incarnation: the id that was reserved when it was created, normally that of its first ledger; its identity together with
            the cluster.
        created_ms: when it was created here.
        first_ledger: the oldest ledger that retention has left: ledgers below it were deleted. At first it is the
            incarnation; then it grows, and the incarnation stays.
        next_index: the lowest possible origin index of the next local message.
        watermarks: source cluster -> (ledger, entry) in that cluster, at least.
        properties: set by the administrator.
        terminated: no more publishing.
        restored: (incarnation, first, end) of messages from an earlier data folder of this cluster, which were restored
            from a peer and whose ledgers were deleted since: they must not be restored again.
        topic_epoch: the last epoch of a producer with exclusive access.
        end: (ledger, entry) of the newest entry, if all ledgers were deleted last.
        stored_as: the topic name of its older ledgers in the log, see `broker.catalog.adoption`; unset: its own name.
    """

    incarnation: int
    created_ms: int
    first_ledger: int = 0
    next_index: int = 0
    watermarks: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=lambda: NOTHING)
    properties: Mapping[str, str] = msgspec.field(default_factory=lambda: NOTHING)
    terminated: bool = False
    restored: tuple[tuple[int, int, int], ...] = ()
    topic_epoch: int = 0
    end: tuple[int, int] = (-1, -1)
    stored_as: str | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        """The stored form."""
        return msgspec.json.encode(self, enc_hook=dict)  # of `NOTHING`

    @classmethod
    def decode(cls, name: str, data: bytes) -> "TopicRecord":
        """Read what `encode` wrote.

        Raises:
            StorageError: the record of topic `name` is damaged.
        """
        try:
            record = _RECORDS.decode(data)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored record of topic {name} is damaged: {error}") from error
        if not record.watermarks:
            record.watermarks = NOTHING
        if not record.properties:
            record.properties = NOTHING
        return record

    def watermark_positions(self) -> dict[str, Position]:
        """The saved watermarks as positions."""
        return {source: Position(*pair) for source, pair in self.watermarks.items()}

    def end_position(self) -> Position:
        """The saved end as a position."""
        return Position(*self.end)


_RECORDS: Final = msgspec.json.Decoder(TopicRecord)


class DeletedMark(msgspec.Struct, omit_defaults=True):
    """The record that remains after a replicated topic was deleted, see `broker.catalog.deletion_marks`.

    Attributes:
        deleted_ms: when, by this cluster's clock.
        incarnations: source cluster -> the highest ledger id of the topic there that was known here: its incarnation, or
            a later ledger of that incarnation. The stored name is `lives`.
        partitions: number of partitions, if it is the mark of a partitioned topic.
    """

    deleted_ms: int
    incarnations: dict[str, int] = msgspec.field(default_factory=dict, name="lives")
    partitions: int = 0

    def encode(self) -> bytes:
        """The stored form."""
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
    """The key of a subscription's cursor."""
    return f"{CURSOR_PREFIX}{topic}/{quote(subscription)}"


def split_cursor_key(key: str) -> tuple[str, str]:
    """Topic and subscription of a `cursors/...` key."""
    topic, _, subscription = key.removeprefix(CURSOR_PREFIX).rpartition("/")
    return topic, unquote(subscription)


def replicated_key(topic: str, subscription: str = "") -> str:
    """The key of the state of a replicated subscription; without a subscription, the key of the position up to which
    the states of all subscriptions contain the topic's markers.
    """
    return f"{REPLICATED_PREFIX}{topic}/{quote(subscription)}"


def split_replicated_key(key: str) -> tuple[str, str]:
    """Topic and subscription of a `replicated/...` key."""
    topic, _, subscription = key.removeprefix(REPLICATED_PREFIX).rpartition("/")
    return topic, unquote(subscription)
