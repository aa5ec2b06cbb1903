"""The state of one replicated subscription, and how it is stored.

It is stored in one transaction with the cursor, so that the two never disagree. The cached snapshots are not stored: they are
markers in the log after mark-delete and are read again at start.
"""

import struct
from typing import Final

import msgspec
from crc32c import crc32c

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.marker_host import MarkerHost
from magnetar.replication.snapshots.cache import Cache, CachedSnapshot
from magnetar.replication.snapshots.message_runs import MessageRuns, going
from magnetar.storage.cursor import Cursor
from magnetar.wire.acksets import Epoch

VERSION: Final = 1

Seeks = dict[str, Epoch]
"""Per cluster its latest seek."""

SEEKS_MAX: Final = 128
"""A ceiling on the clusters whose seeks are kept: twice what a configuration may have. All are named in every update, which is
read with `wire.markers.CLUSTERS_MAX` at most."""

_Stored = list[tuple[str, int, list[tuple[int, int]]]]


def later(a: Epoch | None, b: Epoch) -> bool:
    """Whether `b` is a later seek of its cluster than `a`. Those of a new incarnation come after all of the one before."""
    return a is None or (b.incarnation, b.time_ms) > (a.incarnation, a.time_ms)


class State:
    """One replicated subscription.

    Attributes:
        cache: snapshots that it may still pass.
        reported: the local position of the last snapshot that an update reported as passed.
        news: the highest position acknowledged here, by a consumer or an operator, since the last seek.
        repeat_for: clusters to which everything is reported again: they are new, or forgot. To them only: what was reported
            before may undo a seek that others made since.
        announce: the subscription's existence has to be announced.
        base: messages that its starting point took for consumed although no consumer acknowledged them; never reported as such.
        based: whether `base` is known to be that, and can be reported to others.
        expired: messages that expiry passed; never reported as acknowledged either.
        claims: messages that others reported as acknowledged; applied to messages that come later.
        since: when a consumer or operator made it here, the end of the log then. Earlier reports of others were ignored, and are
            ignored again when the markers are read after a restart.
        seeks: per cluster its latest seek of a subscription of this name, as far as known here.
        sought: the latest seek that was made here of this subscription. `seeks` may have a later one, of a former subscription.
        epoch: the latest seek that it has taken in, when that was last checked; not stored.
        seek_unwritten: the seek that was made here has to be written (again); `writing_seek` while it is on its way.
        writing: the snapshot of the update that is being written.
        announcing: its announcement is being written.
        fresh: an update created it just now, and is being applied.
        turn: counts seeks, own and foreign: answers to what was written before mean nothing.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.reported = NONE
        self.news = NONE
        self.repeat_for: set[str] = set()
        self.announce = False
        self.base = MessageRuns()
        self.based = False
        self.expired = MessageRuns()
        self.claims = MessageRuns()
        self.since = NONE
        self.seeks: Seeks = {}
        self.sought: Epoch | None = None
        self.epoch: Epoch | None = None
        self.writing: CachedSnapshot | None = None
        self.announcing = False
        self.seek_unwritten = False
        self.writing_seek = False
        self.fresh = False
        self.turn = 0

    def learn_seek(self, seek: Epoch) -> bool:
        """A cluster sought, as it or another one says; whether that is news."""
        if not later(self.seeks.get(seek.cluster), seek):
            return False
        if seek.cluster not in self.seeks and len(self.seeks) >= SEEKS_MAX:
            return False
        self.seeks[seek.cluster] = seek
        return True

    def seeks_here(self, seek: Epoch) -> None:
        """This subscription was moved here, by this seek."""
        self.sought = seek
        if later(self.seeks.get(seek.cluster), seek):
            self.seeks[seek.cluster] = seek

    def restart(self) -> None:
        """The cursor was moved by a seek, or counts as moved by one: nothing from before is reported from now on."""
        self.cache.clear()
        self.reported = self.news = NONE
        self.repeat_for.clear()
        self.writing = None
        self.turn += 1

    def leave_to_retention(self, host: MarkerHost, cursor: Cursor) -> None:
        """The cursor was put somewhere, perhaps in front of messages that retention is deleting: none of them is reported,
        except those that a consumer still acknowledges (docs/design/snapshots.md#being-deleted).
        """
        if cursor.mark_delete.ledger < host.first_kept:
            self.expired.update(going(host.log, host.cluster, cursor, host.first_kept))
            self.expired.widen()

    @property
    def has_news(self) -> bool:
        """Whether the others have something to learn."""
        return self.news > self.reported

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.cache.validate()
        for held in (self.base, self.expired, self.claims):
            held.validate()
        assert all(seek.cluster == cluster and seek.kind == 1 for cluster, seek in self.seeks.items())
        assert self.sought is None or not later(self.seeks[self.sought.cluster], self.sought)
        assert self.sought is not None or not self.seek_unwritten


class Stored(msgspec.Struct, kw_only=True, array_like=False):
    """A state, as stored; unknown fields of newer versions are ignored.

    Attributes:
        deleted: the subscription was deleted here: others do not bring it back.
        sought: the seek that was made here, if any; None: an earlier version wrote this, and it is the one that `seeks` names.
        held: what the log has held, retained or not.
        newest: the local position of the newest own snapshot.
    """

    deleted: bool = False
    told: tuple[int, int] = NONE
    news: tuple[int, int] = NONE
    retell: list[str] = []
    announce: bool = False
    seek_untold: bool = False
    base: _Stored = []
    based: bool = False
    expired: _Stored = []
    claims: _Stored = []
    since: tuple[int, int] = NONE
    seeks: list[tuple[str, int, int]] = []
    sought: list[tuple[int, int]] | None = None
    held: _Stored = []
    newest: tuple[int, int] = NONE


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Stored)


def flat(held: MessageRuns) -> _Stored:
    """A set as it is stored."""
    return [(key.cluster, key.incarnation, runs) for key, runs in held.origins.items()]


def read_held(stored: _Stored) -> MessageRuns:
    """The reverse of `flat`.

    Raises:
        StorageError: it is not what `flat` gave.
    """
    held = MessageRuns({OriginKey(cluster, incarnation): runs for cluster, incarnation, runs in stored})
    try:
        held.validate()
    except AssertionError as error:
        raise StorageError(f"a stored set of messages is damaged: {error}") from None
    return held


def encode(stored: Stored) -> bytes:
    """Version, MessagePack, crc32c."""
    body = bytes([VERSION]) + _ENCODER.encode(stored)
    return body + struct.pack("<I", crc32c(body))


def decode(data: bytes) -> Stored:
    """Read what `encode` wrote.

    Raises:
        StorageError: damaged, or of another version.
    """
    if len(data) < 5 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise StorageError(f"a stored snapshot state of {len(data)} bytes is damaged: its checksum is wrong")
    if data[0] != VERSION:
        raise StorageError(f"a stored snapshot state has version {data[0]}; this broker reads {VERSION}")
    try:
        return _DECODER.decode(data[1:-4])
    except msgspec.DecodeError as error:
        raise StorageError(f"a stored snapshot state of {len(data)} bytes is damaged: {error}") from None


def store(state: State, held: MessageRuns, newest: Position) -> bytes:
    """A state as bytes."""
    return encode(
        Stored(
            told=state.reported,
            news=state.news,
            retell=sorted(state.repeat_for),
            announce=state.announce,
            seek_untold=state.seek_unwritten,
            base=flat(state.base),
            based=state.based,
            expired=flat(state.expired),
            claims=flat(state.claims),
            since=state.since,
            seeks=[(seek.cluster, seek.incarnation, seek.time_ms) for seek in state.seeks.values()],
            sought=[] if state.sought is None else [(state.sought.incarnation, state.sought.time_ms)],
            held=flat(held),
            newest=newest,
        )
    )


def restore(state: State, stored: Stored, here: OriginKey) -> None:
    """Fill in a state from what was stored; `here` is this cluster, with the incarnation of the topic.

    Raises:
        StorageError: damaged.
    """
    state.reported, state.news, state.since = Position(*stored.told), Position(*stored.news), Position(*stored.since)
    state.repeat_for, state.announce, state.based = set(stored.retell), stored.announce, stored.based
    state.base, state.expired, state.claims = map(read_held, (stored.base, stored.expired, stored.claims))
    for cluster, incarnation, time_ms in stored.seeks:
        state.seeks[cluster] = Epoch(1, time_ms, cluster, incarnation)
    named = state.seeks.get(here.cluster)
    if stored.sought is None and named is not None and named.incarnation == here.incarnation:
        state.sought = named
    for incarnation, time_ms in stored.sought or ():
        state.sought = Epoch(1, time_ms, here.cluster, incarnation)
    state.seek_unwritten = stored.seek_untold and state.sought is not None
