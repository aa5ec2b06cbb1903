"""Looking up the idempotency keys of an entry: which of its messages are stored already, and what is left to store."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnetar.broker.publish.idempotency.block import KEPT
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.storage.entries import EntryFlags
from magnetar.wire.idempotency_keys import (
    OPEN_BYTES_MAX,
    Found,
    KeyProperty,
    Message,
    Opened,
    open_entry,
    smaller,
)
from magnetar.wire.metadata import Inspected

if TYPE_CHECKING:
    from magnetar.broker.publish.idempotency.table import KeyTable

_BATCH: Final = int(EntryFlags.BATCH)
_CHUNK: Final = int(EntryFlags.CHUNK)
WHOLE_MASK: Final = 2**32 - 1
"""The bits of a publish time: `block.pack` returns just these for a message of this cluster that is in no batch."""

NEW: Final = -1
"""The number of an unknown key."""


class Counters:
    """Counters of all topics of a broker, for its metrics.

    Attributes:
        duplicates: messages answered as stored.
        withdrawn: messages that lost to another cluster's with the same key, and were withdrawn before any consumer
            received them.
        twice: messages that lost too, but had been dispatched already, or could not be withdrawn.
        unreadable: batches of links that cannot be opened; their keys are not known here.
        evicted, expired: keys forgotten because there were too many, or because of their age.
        replayed: entries read again.
    """

    __slots__ = ("duplicates", "evicted", "expired", "replayed", "twice", "unreadable", "withdrawn")

    def __init__(self) -> None:
        self.duplicates = 0
        self.twice = 0
        self.withdrawn = 0
        self.unreadable = 0
        self.evicted = 0
        self.expired = 0
        self.replayed = 0


class Keyed(NamedTuple):
    """The result of looking up an entry's keys.

    Attributes:
        data, count: the part of it to store.
        keys: keys to remember with it: fingerprint, and part number of the message (see `block.WHOLE`).
        repeated: messages that are stored already.
        first: if all its messages are stored already, the number of the first one's key; else -1.
    """

    data: bytes
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    keys: list[tuple[bytes, int]]
    first: int
    repeated: int = 0


def stats_of(status: str, policy: IdempotencyPolicy, table: "KeyTable") -> dict[str, Any]:
    """Figures of one topic's keys."""
    keys, index = table.memory()
    return {
        "status": str(status),
        "property": policy.property,
        "windowSeconds": policy.window_seconds,
        "keysMax": policy.keys_max,
        "keys": len(table),
        "keyBytes": keys,
        "indexBytes": index,
        "evicted": table.evicted,
        "expired": table.expired,
    }


def part_number(flags: int, at: int) -> int:
    """The part number of message number `at` of an entry, as `block.pack` expects it."""
    if flags & _CHUNK:
        return KEPT
    return min(at + 1, KEPT) if flags & _BATCH else 0


def numbered(table: "KeyTable", pending: Mapping[bytes, int], key: bytes, now_ms: int) -> int:
    """The number that a key has, or will have when what is pending is staged; -1: it is new."""
    if key in pending:
        return table.tail + list(pending).index(key)
    return table.find(key, now_ms)


def _all_new(
    table: "KeyTable", pending: Mapping[bytes, int], opened: Opened, now_ms: int
) -> list[tuple[bytes, int]] | None:
    """The keys of a batch with their part numbers, if each message has one and all are new, as nearly always."""
    keys = [key for key, _, _ in opened.messages if key is not None]
    if opened.batch is None or not len(opened.messages) == len(set(keys)) < KEPT:
        return None
    if pending and not pending.keys().isdisjoint(keys):
        return None
    return list(zip(keys, range(1, len(keys) + 1), strict=True)) if table.all_new(keys, now_ms) else None


def judge(
    table: "KeyTable",
    pending: Mapping[bytes, int],
    name: KeyProperty,
    seen: Inspected,
    now_ms: int,
    found: Found | None = None,
) -> Keyed | None:
    """Look up an entry's keys.

    Args:
        table: the topic's keys.
        pending: keys that are about to be staged.
        name: the property.
        seen: the entry.
        now_ms: the broker's clock.
        found: the result of opening it outside the event loop; None: it is opened here, which does not take long
            (`takes_long`).

    Returns:
        None: it has no key, and is stored as it is.

    Raises:
        BrokerError: NOT_ALLOWED: see `idempotency_keys.open_entry`.
    """
    if found is None:
        opened = open_entry(name, seen.flags, seen.metadata, seen.payload, seen.metadata_end, OPEN_BYTES_MAX)
    elif found.error is not None:
        raise found.error
    else:
        opened = found.opened
    if opened is None:
        return None
    new = _all_new(table, pending, opened, now_ms)
    if new is not None:
        return Keyed(seen.payload, seen.count, new, -1)
    kept: list[Message] = []
    keys: dict[bytes, int] = {}
    first = -1
    for message in opened.messages:
        key = message[0]
        if key is not None:
            if key in pending or key in keys or table.find(key, now_ms) >= 0:
                # The number is looked for once: of what is pending, that is a walk over it.
                first = numbered(table, pending, key, now_ms) if first < 0 else first
                continue
            if opened.complete:
                keys[key] = part_number(seen.flags, len(kept))
        kept.append(message)
    repeated = len(opened.messages) - len(kept)
    if not kept:
        return Keyed(b"", 0, [], first, repeated)
    data = seen.payload
    if repeated and opened.batch is not None:
        data = smaller(seen.metadata, opened.batch, kept)
    count = len(kept) if opened.batch is not None else seen.count
    return Keyed(data, count, list(keys.items()), -1, repeated)
