"""The stored states of a topic's replicated subscriptions, and the checkpoint: the position up to which all of them
contain the topic's markers.

A state goes into the transaction of its cursor. A state without a cursor (unsubscribed here) and the checkpoint are
stored with the next write. The checkpoint moves when a flush of the cursors holds every state that changed since, and
no earlier flush is in flight: in that flush's transaction; or in the next flush, if it took several transactions and
all of them are durable by then.
"""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import NONE, Position
from magnetar.effects.store_batches import Piece
from magnetar.metadata.topic_records import cursor_key, replicated_key

CHECKPOINT_MARKERS: Final = 100
"""The checkpoint is stored again when this many markers are after it: at most as many are read again after a crash, in
a few milliseconds.
"""

_DIGITS: Final = 20


def encode_checkpoint(position: Position) -> bytes:
    """The checkpoint as stored: `ledger:entry`."""
    return str(position).encode()


def decode_checkpoint(data: bytes) -> Position:
    """Read what `encode_checkpoint` wrote; NONE for anything else, which only means a longer replay."""
    ledger, separator, entry = data.decode(errors="replace").partition(":")
    numbers = [part.removeprefix("-") for part in (ledger, entry)]
    if not separator or not all(part.isascii() and part.isdigit() and len(part) < _DIGITS for part in numbers):
        return NONE
    return Position(int(ledger), int(entry))


def encode_state(exact: bytes, snapshot: bytes) -> bytes:
    """The states of both machines as stored; b"" when there is nothing to keep."""
    return msgspec.msgpack.encode((exact, snapshot)) if exact or snapshot else b""


def decode_state(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Read what `encode_state` wrote; None for a machine that had nothing to keep.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    exact, snapshot = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
    return exact or None, snapshot or None


class _NoCursor:
    """Takes the part of a cursor if only what `StateTransaction` supplies is stored."""

    durable_mark_delete = NONE
    mark_delete = NONE

    def encode(self) -> bytes:
        """Nothing of its own."""
        return b""


_NO_CURSOR: Final = _NoCursor()


class StateHost(Protocol):
    """Has the states that are stored (`broker.replicated_subscriptions.topic.ReplicatedTopic`).

    Attributes:
        ready: loading and replay are over.
        closed: the topic is gone.
    """

    ready: bool
    closed: bool

    def catch_up(self) -> None:
        """Report to the machines what was acknowledged so far."""

    def encode_state(self, subscription: str) -> bytes:
        """The states of both machines; b"" when there is nothing to keep."""


class StateStore:
    """Stores the states of one topic's replicated subscriptions with their cursors, and the checkpoint.

    Args:
        topic: the topic.
        flusher: stores the broker's cursors.
        host: has the states.
        checkpoint: the stored one.

    Attributes:
        known: subscriptions of which the machines hold a state, also those that were deleted here.
        dirty_names: subscriptions whose state changed since it was last handed to the store.
        checkpoint: the durable one.
        reached: all states that are stored contain the markers up to here; the checkpoint does not say so yet.
        storing: flushes in flight with states of this topic.
    """

    def __init__(self, topic: Topic, flusher: CursorFlusher, host: StateHost, checkpoint: Position) -> None:
        self._topic, self._flusher, self._host = topic, flusher, host
        self._log = topic.log
        self.checkpoint = self.reached = checkpoint
        self.known: set[str] = set()
        self.dirty_names: set[str] = set()
        self.storing = 0
        self._wants_checkpoint = False
        self._handing = False

    @property
    def _may_store(self) -> bool:
        """Not before everything is loaded, and nothing after the topic's deletion."""
        return self._host.ready and not self._host.closed and not self._topic.deleting

    def dirty(self, subscription: str) -> None:
        """The machines' state changed: it is stored soon, with the cursor."""
        self.known.add(subscription)
        self.dirty_names.add(subscription)
        if not self._may_store or self._handing:
            return
        found = self._topic.subscriptions.get(subscription)
        if found is not None and found.durable:
            self._flusher.dirty(cursor_key(self._topic.text, subscription), found)
        else:
            self._flusher.dirty(replicated_key(self._topic.text, subscription), _NO_CURSOR)

    def dirty_again(self, names: Collection[str]) -> None:
        """Store states that could not be stored when they changed: before the start was over, or while the topic was deleted."""
        for name in sorted(names):
            self.dirty(name)

    def take(self, subscription: str) -> tuple[str, bytes]:
        """Hand a subscription's state over to a transaction: its key and what to store there (b"": delete it)."""
        self._handing = True  # acknowledgements that the machines get here are dirty at the flusher already
        self._host.catch_up()
        self._handing = False
        self.dirty_names.discard(subscription)
        data = self._host.encode_state(subscription)
        if data:
            self.known.add(subscription)
        else:
            self.known.discard(subscription)
        return replicated_key(self._topic.text, subscription), data

    def begin(self) -> Position | None:
        """A flush took states; returns the checkpoint that may be stored with, or after, them. None: the old one is
        sufficient.
        """
        alone = self.storing == 0
        self.storing += 1
        if not self._host.ready or self.dirty_names or not alone:
            return None
        behind = self._log.markers_between(self.checkpoint, self._log.last)
        if not behind or (behind < CHECKPOINT_MARKERS and not self._wants_checkpoint):
            return None
        self._wants_checkpoint = False
        return self._log.last

    def checkpoint_stored(self, checkpoint: Position) -> None:
        """A checkpoint is durable."""
        self.checkpoint = max(self.checkpoint, checkpoint)

    def end(self, reached: Position | None, *, split: bool) -> None:
        """All transactions of a flush have an outcome.

        Args:
            reached: up to where all states that are stored contain the markers; None: no further than before.
            split: there were several, so that the checkpoint is not stored yet.
        """
        self.storing -= 1
        if reached is not None:
            self.reached = max(self.reached, reached)
            if split:
                self.want_checkpoint()
            else:
                self.checkpoint_stored(reached)

    def want_checkpoint(self) -> None:
        """Store the checkpoint soon, if there is any marker after it."""
        if self._may_store and self._log.markers_between(self.checkpoint, self._log.last):
            self._wants_checkpoint = True
            self._flusher.dirty(replicated_key(self._topic.text), _NO_CURSOR)

    def durable_low(self) -> Position | None:
        """Retention may delete up to here as far as markers go; None: everything."""
        if not self._log.markers_between(self.checkpoint, self._log.last):
            return None
        self.want_checkpoint()
        return self.checkpoint

    def transaction(self, names: Mapping[str, str]) -> "StateTransaction":
        """The writes of one flush for this topic.

        Args:
            names: by the flusher's key: a subscription, or "" for the checkpoint.
        """
        return StateTransaction(self, replicated_key(self._topic.text), names, ready=self._host.ready)


class StateTransaction:
    """The writes of one flush of the cursors for one topic, in addition to them (`cursor_flusher.Share`).

    Args:
        store: the topic's store.
        own: the key of its checkpoint.
        names: see `StateStore.transaction`.
        ready: loading and replay are over.
    """

    def __init__(self, store: StateStore, own: str, names: Mapping[str, str], *, ready: bool) -> None:
        self._store, self._own, self._names, self._ready = store, own, names, ready
        self._left = set(names)
        self._split = True
        self._failed = False
        self._checkpoint: Position | None = None
        self._reached = store.reached
        if not ready:
            # A state before the end of the replay would claim to contain markers that it has not taken in.
            self.parts = {key: Piece((), {}, () if name else (own,)) for key, name in names.items()}
            return
        self.parts = {key: self._part(name) for key, name in names.items()}
        self._checkpoint = store.begin()

    def _part(self, name: str) -> Piece:
        if not name:
            return Piece((), {self._own: encode_checkpoint(self._reached)})
        key, data = self._store.take(name)
        return Piece((), {key: data}) if data else Piece((), {}, (key,))

    def whole(self) -> Mapping[str, bytes]:
        """All is in one transaction, so that the checkpoint may be, too."""
        self._split = False
        return {} if self._checkpoint is None else {self._own: encode_checkpoint(self._checkpoint)}

    def stored(self, keys: Collection[str], error: str) -> None:
        """The outcome for some of the parts."""
        store = self._store
        if not self._ready:
            return
        self._left.difference_update(keys)
        names = [self._names[key] for key in keys]
        if error:
            self._failed = True
            for name in filter(None, names):
                store.dirty(name)
        elif "" in names:
            store.checkpoint_stored(self._reached)
        if not self._left:
            store.end(None if self._failed else self._checkpoint, split=self._split)


class Leftover:
    """A key of ours whose topic is gone, or what was to be kept of it (`cursor_flusher.Share`)."""

    def __init__(self, key: str) -> None:
        self.parts = {key: Piece((), {}, (key,))}

    def whole(self) -> Mapping[str, bytes]:
        """Nothing else."""
        return {}

    def stored(self, keys: Collection[str], error: str) -> None:
        """The flusher tries again."""
