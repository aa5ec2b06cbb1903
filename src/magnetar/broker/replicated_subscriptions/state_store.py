"""What is stored of a topic's replicated subscriptions, and the cover: how far all of it has taken in the topic's markers.

A state goes into the transaction of its cursor; one without a cursor (unsubscribed here) and the cover itself go with whatever
is stored next. The cover moves when a flush of the `CursorFlusher` holds every state that changed since, and none is under way
before it: in that flush's transaction; or in the next flush, if it took several transactions and all of them are durable by then.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from magnetar.broker.replicated_subscriptions.ack_collector import AckCollector
from magnetar.broker.replicated_subscriptions.machine_host import ExactMachine, SnapshotMachine
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import NONE, Position
from magnetar.effects.store_batches import Piece
from magnetar.metadata.topic_records import cursor_key, replicated_key
from magnetar.replication.marker_host import Acked

COVER_MARKERS: Final = 100
"""The cover is stored again when so many markers lie behind it: as many are read again at most after a crash, in a few
milliseconds."""

_DIGITS: Final = 20


def encode_cover(position: Position) -> bytes:
    """The cover as stored: `ledger:entry`."""
    return str(position).encode()


def decode_cover(data: bytes) -> Position:
    """Read what `encode_cover` wrote; NONE for anything else, which only means a longer replay."""
    ledger, separator, entry = data.decode(errors="replace").partition(":")
    numbers = [part.removeprefix("-") for part in (ledger, entry)]
    if not separator or not all(part.isascii() and part.isdigit() and len(part) < _DIGITS for part in numbers):
        return NONE
    return Position(int(ledger), int(entry))


class _Beside:
    """A key of ours in the cursors' transactions, whose value `TopicShare` supplies."""

    durable_mark_delete = NONE
    mark_delete = NONE

    def encode(self) -> bytes:
        """Nothing by itself."""
        return b""


_BESIDE: Final = _Beside()


class StoredStates:
    """The storing half of `broker.replicated_subscriptions.topic.ReplicatedTopic`.

    Args:
        topic: whose.
        flusher: the broker's.
        covered: the stored cover.

    Attributes:
        reached: all states are stored that have taken in the markers up to here, but not yet that they have.
        storing: flushes with states of this topic that are under way.
    """

    def __init__(self, topic: Topic, flusher: CursorFlusher, covered: Position) -> None:
        self._topic = topic
        self._flusher = flusher
        self.log = topic.log
        self.covered = self.reached = covered
        self.ready = False
        self.closed = False
        self.known: set[str] = set()
        self.dirty_names: set[str] = set()
        self.storing = 0
        self._wants_cover = False
        self._handing = False
        self._acks = AckCollector(self._tell)

    @property
    def exact(self) -> ExactMachine:
        """The machine of exact mode."""
        raise NotImplementedError

    @property
    def snapshot(self) -> SnapshotMachine:
        """The machine of snapshot mode."""
        raise NotImplementedError

    def note(self, level: str, text: str) -> None:
        """One line for the broker's log."""
        raise NotImplementedError

    def _tell(self, name: str, acked: Acked) -> None:
        """Tell the machines of an acknowledgement."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """The machines are told of all acknowledgements so far."""
        if self._acks:
            self._acks.flush()

    @property
    def _may_store(self) -> bool:
        """Not before everything is loaded, and nothing behind the topic's deletion."""
        return self.ready and not self.closed and not self._topic.deleting

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
            self._flusher.dirty(replicated_key(self._topic.text, subscription), _BESIDE)

    def deletion_failed(self) -> None:
        """The topic's deletion failed: what was not stored meanwhile, or was forgotten for its sake, is stored soon."""
        for name in sorted(self.known):
            self.dirty(name)

    def state(self, subscription: str) -> bytes:
        """Both machines' state of a subscription; b"" when there is nothing to keep."""
        pair = (self.exact.encode(subscription), self.snapshot.encode(subscription))
        return msgspec.msgpack.encode(pair) if any(pair) else b""

    def _decode(self, name: str, data: bytes | None) -> tuple[bytes | None, bytes | None]:
        if data is None:
            return None, None
        try:
            exact, snapshot = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
        except msgspec.DecodeError as error:
            self.note("error", f"the stored state of subscription {name} of {self._topic.text} is damaged: {error}")
            return None, None
        return exact or None, snapshot or None

    def taken(self, subscription: str) -> tuple[str, bytes]:
        """Hand a subscription's state over to a transaction: its key and what to store there (b"": delete it)."""
        self._handing = True  # whatever the machines have yet to be told of is dirty at the flusher already
        self.catch_up()
        self._handing = False
        self.dirty_names.discard(subscription)
        data = self.state(subscription)
        if data:
            self.known.add(subscription)
        else:
            self.known.discard(subscription)
        return replicated_key(self._topic.text, subscription), data

    def cover_now(self, *, alone: bool) -> Position | None:
        """The cover that may be stored with, or behind, every state that was dirty; None: the old one will do.

        Args:
            alone: no earlier transaction of this topic's states is under way.
        """
        if not self.ready or self.dirty_names or not alone:
            return None
        behind = self.log.markers_between(self.covered, self.log.last)
        if not behind or (behind < COVER_MARKERS and not self._wants_cover):
            return None
        self._wants_cover = False
        return self.log.last

    def want_cover(self) -> None:
        """Let the cover be stored soon, if there is any marker behind it."""
        if self._may_store and self.log.markers_between(self.covered, self.log.last):
            self._wants_cover = True
            self._flusher.dirty(replicated_key(self._topic.text), _BESIDE)

    def durable_low(self) -> Position | None:
        """Retention may delete up to here as far as markers go; None: everything."""
        if not self.log.markers_between(self.covered, self.log.last):
            return None
        self.want_cover()
        return self.covered


class TopicShare:
    """What one flush stores of one topic in addition to its cursors (`cursor_flusher.Share`).

    Args:
        host: of the topic.
        names: by the flusher's key: a subscription, or "" for the cover.
    """

    def __init__(self, host: StoredStates, names: Mapping[str, str]) -> None:
        self._host = host
        self._names = names
        self._own = replicated_key(host.log.name)
        self._left = set(names)
        self._split = True
        self._failed = False
        self._cover: Position | None = None
        self._reached = host.reached
        self._ready = host.ready
        if not self._ready:
            # A state before the end of the replay would claim to cover markers that it has not taken in.
            self.parts = {key: Piece((), {}, () if name else (self._own,)) for key, name in names.items()}
            return
        self.parts = {key: self._part(name) for key, name in names.items()}
        self._cover = host.cover_now(alone=host.storing == 0)
        host.storing += 1

    def _part(self, name: str) -> Piece:
        if not name:
            return Piece((), {self._own: encode_cover(self._reached)})
        key, data = self._host.taken(name)
        return Piece((), {key: data}) if data else Piece((), {}, (key,))

    def whole(self) -> Mapping[str, bytes]:
        """All is in one transaction, so that the cover may be, too."""
        self._split = False
        return {} if self._cover is None else {self._own: encode_cover(self._cover)}

    def stored(self, keys: Collection[str], error: str) -> None:
        """The outcome for some of the parts."""
        host = self._host
        if not self._ready:
            return
        self._left.difference_update(keys)
        names = [self._names[key] for key in keys]
        if error:
            self._failed = True
            for name in filter(None, names):
                host.dirty(name)
        elif "" in names:
            host.covered = max(host.covered, self._reached)
        if self._left:
            return
        host.storing -= 1
        if self._cover is not None and not self._failed:
            host.reached = max(host.reached, self._cover)
            if self._split:
                host.want_cover()
            else:
                host.covered = max(host.covered, self._cover)


class Leftover:
    """A key of ours whose topic is gone, or what was to be kept of it (`cursor_flusher.Share`)."""

    def __init__(self, key: str) -> None:
        self.parts = {key: Piece((), {}, (key,))}

    def whole(self) -> Mapping[str, bytes]:
        """Nothing else."""
        return {}

    def stored(self, keys: Collection[str], error: str) -> None:
        """The flusher tries again."""
