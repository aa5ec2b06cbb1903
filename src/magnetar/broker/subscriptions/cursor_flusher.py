"""Storing cursors, in batches.

Acknowledging marks a cursor dirty; a short while later all dirty cursors of the broker are stored, in as few
transactions as every store accepts (`effects.store_batches`). One that cannot be stored delays at most those of its own
transaction. An acknowledgement that asked for an answer is answered when its cursor is durable, so within
`cursor_flush_ms` plus one sync. A crash loses at most the acknowledgements of that time: those messages are delivered
again, and none is lost.

Retention asks for the *durable* mark-delete position, never for the one in memory
(docs/design/links.md#durable-cursor).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Outbox, Store, Timer
from magnetar.effects.store_batches import Piece, cut, merged

RETRY_MS: Final = 500
"""The pause after a failed commit."""


class Durable(Protocol):
    """An object that the flusher stores.

    It is a subscription, or the deduplication numbers of a topic, or (without a cursor) a state of a replicated subscription that
    has no durable cursor here, or a topic's checkpoint. Cursors of links are stored by `replication.link.cursor_store`.
    """

    durable_mark_delete: Position

    @property
    def mark_delete(self) -> Position:
        """Everything at or below is acknowledged."""

    def encode(self) -> bytes:
        """The stored form of the cursor; b"": there is nothing to store except its parts of shares."""


class Share(Protocol):
    """Additional content of some cursors' transactions: states of one topic.

    It is stored in one transaction if it fits, else each part with its own cursor.
    """

    @property
    def parts(self) -> Mapping[str, Piece]:
        """By the flusher's key, the writes to store with it; they override those of a cursor with the same key."""

    def whole(self) -> Mapping[str, bytes]:
        """All parts are stored in one transaction: the additional writes for it."""

    def stored(self, keys: Collection[str], error: str) -> None:
        """The result for some of the parts, reported before the results of the cursors."""


class CursorFlusher:
    """Stores dirty cursors together.

    Args:
        outbox: the broker's.
        companions: gives what belongs into the same transactions as the cursors of these keys (the state of replicated
            subscriptions); no key is in two shares.
        flush_ms: from the first change to the commit (`cursor_flush_ms`). Pulsar users know 1 s and the loss of
            acknowledgements that comes with it.
    """

    def __init__(self, outbox: Outbox, flush_ms: int, companions: Callable[[Collection[str]], Sequence[Share]]) -> None:
        self._outbox = outbox
        self._companions = companions
        self._flush_ms = flush_ms
        self._dirty: dict[str, Durable] = {}
        self._waiting: dict[str, list[Callable[[str], None]]] = {}
        self._scheduled = False
        self._storing: set[str] = set()
        self._gone: set[str] = set()
        """Keys in flight that were forgotten since, so that a failed commit is not repeated for them."""

    def dirty(self, key: str, cursor: Durable) -> None:
        """This cursor changed; store it soon."""
        self._dirty[key] = cursor
        self._schedule(self._flush_ms)

    def when_durable(self, key: str, cursor: Durable, then: Callable[[str], None]) -> None:
        """Call `then` with "" when the cursor as it is now is durable, or with what went wrong."""
        self._waiting.setdefault(key, []).append(then)
        self.dirty(key, cursor)

    def forget(self, key: str) -> None:
        """The cursor is deleted: neither a late store nor a repetition of the one in flight may restore it."""
        self._dirty.pop(key, None)
        if key in self._storing:
            self._gone.add(key)
        for then in self._waiting.pop(key, []):
            then("the subscription is gone")

    def _schedule(self, delay_ms: int) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._outbox.put(Timer(self._outbox.now_ms + delay_ms, self._flush))

    def flush(self) -> None:
        """Store all dirty cursors now, without waiting for the interval, or for a version in flight (shut-down): the
        result is no longer needed, and the store commits in order.
        """
        self._store(dict(self._dirty))

    def _flush(self, now_ms: int) -> None:
        self._scheduled = False
        # A cursor whose previous version is still on its way waits: two commits of one key in flight could be
        # confirmed in one order and judged in another.
        self._store({key: cursor for key, cursor in self._dirty.items() if key not in self._storing})

    def _store(self, ready: Mapping[str, Durable]) -> None:
        if not ready:
            return
        for key in ready:
            del self._dirty[key]
        self._storing |= ready.keys()
        # Encoded before the states stored with them: a cursor must not contain more than its state does.
        versions = {key: _Version(cursor, cursor.mark_delete, cursor.encode()) for key, cursor in ready.items()}
        shares = self._companions(ready.keys())
        owners = {key: share for share in shares for key in share.parts}
        for batch in cut(_pieces(versions, shares, owners)):
            self._commit(batch, versions, owners)

    def _commit(self, batch: Piece, versions: Mapping[str, "_Version"], owners: Mapping[str, Share]) -> None:
        """Store some of what is ready, in one transaction."""
        cursors = {key: versions[key] for key in batch.names}
        waiting = {key: self._waiting.pop(key) for key in cursors if key in self._waiting}
        shared: dict[Share, list[str]] = {}
        for key in cursors:
            if key in owners:
                shared.setdefault(owners[key], []).append(key)

        def stored(error: str) -> None:
            self._storing -= cursors.keys()
            gone = self._gone & cursors.keys()
            self._gone -= gone
            for share, keys in shared.items():
                share.stored(keys, error)
            if error:
                text = f"cannot store {len(cursors)} cursors: {error}; trying again"
                self._outbox.put(Note("error", text))
                for key, version in cursors.items():
                    # A cursor that was forgotten in the meantime would be stored after its deletion. One of the same
                    # name that was created since is dirty already.
                    if key not in gone:
                        self._dirty.setdefault(key, version.cursor)
            else:
                for version in cursors.values():
                    version.cursor.durable_mark_delete = version.mark_delete
            for callbacks in waiting.values():
                for then in callbacks:
                    then(error)
            if self._dirty:
                self._schedule(RETRY_MS if error else self._flush_ms)

        self._outbox.put(Store(dict(batch.puts), batch.deletes, stored))


class _Version(NamedTuple):
    """A cursor as it was at its flush."""

    cursor: Durable
    mark_delete: Position
    data: bytes


def _pieces(versions: Mapping[str, _Version], shares: Sequence[Share], owners: Collection[str]) -> Iterator[Piece]:
    """The writes that have to be stored together for these cursors and their shares."""
    pieces = {key: Piece((key,), {key: version.data} if version.data else {}) for key, version in versions.items()}
    for key, piece in pieces.items():
        if key not in owners:
            yield piece
    for share in shares:
        parts = [merged((pieces[key], part)) for key, part in share.parts.items()]
        together = merged(parts)
        if together.fits:
            yield together._replace(puts={**together.puts, **share.whole()})
        else:
            yield from parts
