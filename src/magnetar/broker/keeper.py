"""Keeps cursors durable, in batches.

Acknowledging marks a cursor dirty; a short while later all dirty cursors of the broker are stored in one transaction.
An acknowledgement that asked for an answer is answered when its cursor is durable, so within `cursor_flush_ms` plus one
sync. A crash forgets at most what was acknowledged in that time: those messages come again, none is lost.

Retention asks for the *durable* mark-delete position, never for the one in memory (FINDINGS A7).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol

from magnetar.broker.effects import Note, Outbox, Store, Timer
from magnetar.core.ids import Position

RETRY_MS: Final = 500
"""After a failed commit."""


class Durable(Protocol):
    """What the keeper keeps: a subscription, or the cursor of a link."""

    durable_mark_delete: Position

    @property
    def mark_delete(self) -> Position:
        """Everything at or below is acknowledged."""

    def encode(self) -> bytes:
        """The cursor as stored."""


class Beside(NamedTuple):
    """What a transaction holds besides cursors.

    Attributes:
        puts, deletes: keys; they win over what a cursor of the same key says.
        stored: told the outcome before anybody who waits for a cursor.
    """

    puts: Mapping[str, bytes]
    deletes: tuple[str, ...]
    stored: Callable[[str], None]


def _nothing_beside(_keys: Collection[str]) -> Beside | None:
    return None


class CursorKeeper:
    """Stores dirty cursors together.

    Attributes:
        beside: asked for what belongs into the same transaction as the cursors of these keys (the state of replicated
            subscriptions).

    Args:
        outbox: the broker's.
        flush_ms: from the first change to the commit (`cursor_flush_ms`). Pulsar users know 1 s and the loss of
            acknowledgements that comes with it.
    """

    def __init__(self, outbox: Outbox, flush_ms: int) -> None:
        self._outbox = outbox
        self._flush_ms = flush_ms
        self._dirty: dict[str, Durable] = {}
        self._waiting: dict[str, list[Callable[[str], None]]] = {}
        self._scheduled = False
        self._storing: set[str] = set()
        self._gone: set[str] = set()
        """Of those under way: forgotten since, so that a commit that fails is not tried again."""
        self.beside: Callable[[Collection[str]], Beside | None] = _nothing_beside

    def dirty(self, key: str, cursor: Durable) -> None:
        """This cursor changed; it is stored soon."""
        self._dirty[key] = cursor
        self._schedule(self._flush_ms)

    def when_durable(self, key: str, cursor: Durable, then: Callable[[str], None]) -> None:
        """Call `then` with "" when the cursor as it is now is durable, or with what went wrong."""
        self._waiting.setdefault(key, []).append(then)
        self.dirty(key, cursor)

    def forget(self, key: str) -> None:
        """The cursor is gone; nobody may bring it back by a late store, nor by trying again what is under way now."""
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
        """Store what is dirty now, without waiting for the interval (shut-down)."""
        self._store()

    def _flush(self, now_ms: int) -> None:
        self._scheduled = False
        self._store()

    def _store(self) -> None:
        # A cursor whose previous version is still on its way waits: two commits of one key in flight could be
        # confirmed in one order and judged in another.
        ready = {key: cursor for key, cursor in self._dirty.items() if key not in self._storing}
        if not ready:
            return
        for key in ready:
            del self._dirty[key]
        self._storing |= ready.keys()
        positions = {key: cursor.mark_delete for key, cursor in ready.items()}
        waiting = {key: self._waiting.pop(key) for key in ready if key in self._waiting}
        puts = {key: cursor.encode() for key, cursor in ready.items()}
        beside = self.beside(ready.keys())
        deletes: tuple[str, ...] = ()
        if beside is not None:
            deletes = beside.deletes
            puts |= beside.puts
            for key in deletes:
                puts.pop(key, None)

        def stored(error: str) -> None:
            self._storing -= ready.keys()
            gone = self._gone & ready.keys()
            self._gone -= gone
            if beside is not None:
                beside.stored(error)
            if error:
                self._outbox.put(
                    Note(
                        "error",
                        f"cannot store {len(ready)} cursors: {error}; trying again",
                    )
                )
                for key, cursor in ready.items():
                    # What was forgotten meanwhile would be stored behind its deletion. One of the same name that was made
                    # since is dirty by itself.
                    if key not in gone:
                        self._dirty.setdefault(key, cursor)
            else:
                for key, cursor in ready.items():
                    cursor.durable_mark_delete = positions[key]
            for callbacks in waiting.values():
                for then in callbacks:
                    then(error)
            if self._dirty:
                self._schedule(RETRY_MS if error else self._flush_ms)

        self._outbox.put(Store(puts, deletes, stored))
