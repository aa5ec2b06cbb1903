"""Bodies of the markers of exact mode: acknowledged sets (110), a sought epoch (111), a request for full states (112).

`replication.acked_sets` uses them; this module checks them: after `parse_body` every name is valid, every number is in
its range and every bitmap is whole. The messages are in pulsar.proto (GeoAckedSets, GeoSoughtEpoch, GeoStateRequest);
the marker types are Magnetar's own; Apache Pulsar ignores types that it does not know.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from pyroaring import BitMap64

from magnetar.core.errors import NameNotValid, ProtocolError
from magnetar.core.ids import OriginKey, Position
from magnetar.core.names import check_cluster, check_subscription
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.text import text_is_valid

ACKED_SETS: Final = 110
SOUGHT_EPOCH: Final = 111
STATE_REQUEST: Final = 112

EXACT_KINDS: Final = frozenset((ACKED_SETS, STATE_REQUEST))
"""The marker types that only exact mode uses; snapshot mode ignores them."""

ACK_MARKER_BYTES_MAX: Final = 8 << 20
"""A ceiling on what is read, above the largest message that links carry (5 MiB by default) with room for other settings."""

CLUSTERS_MAX: Final = 256
"""A ceiling on the clusters that one marker names: more than any mesh has."""

ORIGINS_MAX: Final = 4096
"""A ceiling on the (origin, incarnation) pairs of one set: 256 clusters that each created their topic again 16 times.
"""

SETS_MAX: Final = 10_000
"""A ceiling on the subscriptions of one marker, far above what a topic has."""

INDEX_MAX: Final = (1 << 62) - 1
"""The highest origin index: enough for a million messages per second for 146,000 years."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""No clock gives epochs with a time after the year 9999."""

BELIEVED_MS_MAX: Final = TIME_MS_MAX - (1 << 40)
"""A later time from another cluster, within 34 years of the highest possible time, is accepted only if it follows
closely on known times. Reason: the next seek or failover here has to exceed every accepted time, and all clusters must
be able to read the result.
"""

STEPS_MAX: Final = 1000
"""The distance to the known time that is accepted then: the number of seeks or failovers that this cluster may not have
seen yet.
"""

STAGE_BYTES_MAX: Final = 64
"""A ceiling on the name of a failover's stage, a word."""


class Epoch(NamedTuple):
    """The order of the starting points of a subscription: all creations share the lowest epoch, and the later of two
    seeks wins.

    Attributes:
        kind: 0 by creation (the rest is 0 or ""), 1 by a seek.
        time_ms: hybrid time of the cluster in which the seek was made.
        cluster: the cluster in which the seek was made.
        incarnation: of its topic. A clock that was lost with a disk may repeat a time; an incarnation is never
            repeated.
    """

    kind: int
    time_ms: int
    cluster: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.time_ms}@{self.cluster}" if self.kind else "creation"


CREATION: Final = Epoch(0, 0, "", 0)


def believable(time_ms: int, known_ms: int) -> bool:
    """Whether another cluster's time of a seek or failover leaves room for later times.

    Args:
        time_ms: hybrid.
        known_ms: the latest time that is known here.
    """
    return time_ms <= max(BELIEVED_MS_MAX, known_ms + STEPS_MAX)


class Mark(NamedTuple):
    """A point in the sequence of one origin's messages; those before it are "below"."""

    cluster: str
    incarnation: int
    index: int  # type: ignore[assignment]  # the field's name; tuple.index is never used on it


class LowWater(NamedTuple):
    """The messages of which a cluster retains none, see GeoLowWater; `(incarnation, position)` is its version."""

    cluster: str
    incarnation: int
    position: Position
    marks: tuple[Mark, ...]


class FenceToken(NamedTuple):
    """A stage of a planned failover, carried by a full state; ordered by time, then cluster, target, stage."""

    time_ms: int
    cluster: str
    target: str
    stage: str


Indexes = Mapping[OriginKey, BitMap64]


class AckedSet(NamedTuple):
    """One subscription's part of a marker.

    Attributes:
        subscription, epoch: the state that this is a part of.
        full: whether all parts together have the whole state; otherwise they have only what is new.
        part, parts: numbered from 1. The acks of all parts are one union; the first has base and floor.
        acks: acknowledged since the epoch began.
        base: what the epoch's starting point counts as consumed; None: not included.
        floor: per cluster, below which `base` states nothing; about clusters not named it states nothing at all.
        fence: the latest stage of a failover that the writer knows.
    """

    subscription: str
    epoch: Epoch
    full: bool
    part: int
    parts: int
    acks: Indexes
    base: Indexes | None
    floor: tuple[Mark, ...]
    fence: FenceToken | None


class AckedSetsMarker(NamedTuple):
    """A marker of type 110.

    Attributes:
        writer, incarnation: the cluster that wrote it, and the incarnation of its topic.
        next_index: one above the highest origin index that the writer gave. At the marker's position in the log, all
            messages with lower indexes that will ever arrive have arrived.
        low: low-water marks: the writer's own and those that it received.
        own: per origin the first own index that it retains, as the writer knows it.
        sets: by subscription.
    """

    writer: str
    incarnation: int
    next_index: int
    low: tuple[LowWater, ...]
    own: tuple[Mark, ...]
    sets: tuple[AckedSet, ...]


class SoughtEpoch(NamedTuple):
    """A marker of type 111: a seek in snapshot mode; updates of lower epochs are void from here on."""

    writer: str
    subscription: str
    epoch: Epoch


class StateRequest(NamedTuple):
    """A marker of type 112: clusters that have these subscriptions are asked to write their full states."""

    writer: str
    subscriptions: tuple[str, ...]


AckMarker = AckedSetsMarker | SoughtEpoch | StateRequest


# ------------------------------------------------------------------------------------------------------------- writing


def indexes_message(indexes: Indexes) -> list[pb.GeoIndexes]:
    """A set as it is written; ascending, so that equal sets give equal bytes."""
    return [
        pb.GeoIndexes(cluster=key.cluster, incarnation=key.incarnation, indexes=bitmap.serialize())
        for key, bitmap in sorted(indexes.items())
    ]


def marks_message(marks: Iterable[Mark]) -> list[pb.GeoMark]:
    """Marks as they are written, ascending."""
    return [pb.GeoMark(cluster=m.cluster, incarnation=m.incarnation, index=m.index) for m in sorted(marks)]


def low_message(low: Iterable[LowWater]) -> list[pb.GeoLowWater]:
    """Low-water marks as they are written, by cluster."""
    return [
        pb.GeoLowWater(
            cluster=mark.cluster,
            incarnation=mark.incarnation,
            position=pb.GeoPosition(ledger=mark.position.ledger, entry=mark.position.entry),
            marks=marks_message(mark.marks),
        )
        for mark in sorted(low)
    ]


def _epoch_message(epoch: Epoch) -> pb.GeoEpoch:
    if not epoch.kind and epoch == CREATION:
        return pb.GeoEpoch(kind=0)
    return pb.GeoEpoch(kind=epoch.kind, time_ms=epoch.time_ms, cluster=epoch.cluster, incarnation=epoch.incarnation)


def set_message(acked: AckedSet) -> pb.GeoAckedSet:
    """One subscription's part, as it is written."""
    message = pb.GeoAckedSet(
        subscription=acked.subscription, epoch=_epoch_message(acked.epoch), acks=indexes_message(acked.acks)
    )
    if acked.full:
        message.full = True
    if acked.parts != 1:
        message.part, message.parts = acked.part, acked.parts
    if acked.base is not None:
        message.based = True
        message.base.extend(indexes_message(acked.base))
        message.floor.extend(marks_message(acked.floor))
    if acked.fence is not None:
        time_ms, cluster, target, stage = acked.fence
        message.fence.CopyFrom(pb.GeoFenceToken(time_ms=time_ms, cluster=cluster, target=target, stage=stage))
    return message


def encode_body(marker: AckMarker) -> tuple[int, bytes]:
    """Marker type and body."""
    match marker:
        case AckedSetsMarker(writer, incarnation, next_index, low, own, sets):
            body = pb.GeoAckedSets(
                writer=writer,
                incarnation=incarnation,
                next_index=next_index,
                low=low_message(low),
                own=marks_message(own),
                sets=map(set_message, sets),
            )
            return ACKED_SETS, body.SerializeToString()
        case SoughtEpoch(writer, subscription, epoch):
            sought = pb.GeoSoughtEpoch(writer=writer, subscription=subscription, epoch=_epoch_message(epoch))
            return SOUGHT_EPOCH, sought.SerializeToString()
        case StateRequest(writer, subscriptions):
            return STATE_REQUEST, pb.GeoStateRequest(writer=writer, subscriptions=subscriptions).SerializeToString()


# ------------------------------------------------------------------------------------------------------------- reading


def parse_body(marker_type: int, body: bytes) -> AckMarker | None:
    """Decode the body of a marker of these types; None for other types.

    Raises:
        ProtocolError: too large, or not what the type asks for.
    """
    if marker_type not in {ACKED_SETS, SOUGHT_EPOCH, STATE_REQUEST}:
        return None
    if len(body) > ACK_MARKER_BYTES_MAX:
        raise ProtocolError(f"a marker of {len(body)} bytes: at most {ACK_MARKER_BYTES_MAX} are accepted")
    try:
        if marker_type == ACKED_SETS:
            return _acked_sets(pb.GeoAckedSets.FromString(body))
        if marker_type == SOUGHT_EPOCH:
            sought = pb.GeoSoughtEpoch.FromString(body)
            _complete(sought)
            return SoughtEpoch(read_cluster(sought.writer), _subscription(sought.subscription), _epoch(sought.epoch))
        request = pb.GeoStateRequest.FromString(body)
        _complete(request)
        _at_most(request.subscriptions, SETS_MAX, "subscriptions")
        return StateRequest(read_cluster(request.writer), tuple(map(_subscription, request.subscriptions)))
    except DecodeError:
        raise ProtocolError(f"the body of a marker of type {marker_type} cannot be decoded") from None


def _acked_sets(body: pb.GeoAckedSets) -> AckedSetsMarker:
    _complete(body)
    _at_most(body.sets, SETS_MAX, "subscriptions")
    return AckedSetsMarker(
        read_cluster(body.writer),
        _number(body.incarnation, "incarnation"),
        _number(body.next_index, "origin index"),
        read_low(body.low),
        read_marks(body.own),
        tuple(map(read_set, body.sets)),
    )


def read_set(message: pb.GeoAckedSet) -> AckedSet:
    """One subscription's part; the message is complete and its text is text.

    Raises:
        ProtocolError: it says what cannot be.
    """
    if not 1 <= message.part <= message.parts:
        raise ProtocolError(f"an acknowledged set is part {message.part} of {message.parts}")
    if not message.based and (message.base or message.floor):
        raise ProtocolError("an acknowledged set has a base and says that it has none")
    fence = None
    if message.HasField("fence"):
        sent = message.fence
        if len(sent.stage) > STAGE_BYTES_MAX:
            raise ProtocolError(f"the stage of a failover has {len(sent.stage)} letters: at most {STAGE_BYTES_MAX}")
        fence = FenceToken(_time(sent.time_ms), read_cluster(sent.cluster), read_cluster(sent.target), sent.stage)
    return AckedSet(
        _subscription(message.subscription),
        _epoch(message.epoch),
        message.full,
        message.part,
        message.parts,
        read_indexes(message.acks),
        read_indexes(message.base) if message.based else None,
        read_marks(message.floor),
        fence,
    )


def read_indexes(messages: Collection[pb.GeoIndexes]) -> dict[OriginKey, BitMap64]:
    """A set by origin, without empty bitmaps.

    Raises:
        ProtocolError: a bitmap is damaged, or says what cannot be.
    """
    _at_most(messages, ORIGINS_MAX, "origins")
    found: dict[OriginKey, BitMap64] = {}
    for message in messages:
        key = OriginKey(read_cluster(message.cluster), _number(message.incarnation, "incarnation"))
        if key in found:
            raise ProtocolError(f"an acknowledged set names {key.cluster} {key.incarnation} twice")
        bitmap = _bitmap(message.indexes)
        if bitmap:
            found[key] = bitmap
    return found


def _bitmap(data: bytes) -> BitMap64:
    """Decode a bitmap. The deserializer checks the structure but ignores bytes after it; those are refused here."""
    try:
        bitmap = BitMap64.deserialize(data) if data else BitMap64()
    except (ValueError, IndexError):
        raise ProtocolError(f"a bitmap of {len(data)} bytes is damaged") from None
    if data and len(bitmap.serialize()) != len(data):
        raise ProtocolError(f"a bitmap of {len(data)} bytes has {len(data) - len(bitmap.serialize())} too many")
    if bitmap and bitmap.max() > INDEX_MAX:
        raise ProtocolError(f"an acknowledged set has the origin index {bitmap.max()}: at most {INDEX_MAX}")
    return bitmap


def read_marks(messages: Collection[pb.GeoMark]) -> tuple[Mark, ...]:
    """Marks, at most one a cluster.

    Raises:
        ProtocolError: too many, or what cannot be.
    """
    _at_most(messages, CLUSTERS_MAX, "clusters")
    marks = tuple(
        Mark(read_cluster(mark.cluster), _number(mark.incarnation, "incarnation"), _number(mark.index, "origin index"))
        for mark in messages
    )
    if len({mark.cluster for mark in marks}) != len(marks):
        raise ProtocolError("a marker has two marks of one cluster")
    return marks


def read_low(messages: Collection[pb.GeoLowWater]) -> tuple[LowWater, ...]:
    """Low-water marks, at most one list a cluster.

    Raises:
        ProtocolError: too many, or what cannot be.
    """
    _at_most(messages, CLUSTERS_MAX, "clusters")
    low = tuple(
        LowWater(
            read_cluster(message.cluster),
            _number(message.incarnation, "incarnation"),
            Position(message.position.ledger, message.position.entry),
            read_marks(message.marks),
        )
        for message in messages
    )
    if len({mark.cluster for mark in low}) != len(low):
        raise ProtocolError("a marker has low-water marks of one cluster twice")
    return low


def _epoch(message: pb.GeoEpoch) -> Epoch:
    if message.kind == 0:
        if message.time_ms or message.cluster or message.incarnation:
            raise ProtocolError("the epoch of a creation has a time, a cluster or an incarnation")
        return CREATION
    if message.kind != 1:
        raise ProtocolError(f"an epoch of kind {message.kind}: 0 (creation) and 1 (seek) are known")
    return Epoch(1, _time(message.time_ms), read_cluster(message.cluster), _number(message.incarnation, "incarnation"))


def _time(time_ms: int) -> int:
    if not 0 < time_ms <= TIME_MS_MAX:
        raise ProtocolError(f"an epoch of the time {time_ms}: 1 to {TIME_MS_MAX} ms are accepted")
    return time_ms


def _number(value: int, what: str) -> int:
    if not 0 <= value <= INDEX_MAX:
        raise ProtocolError(f"a marker has the {what} {value}: 0 to {INDEX_MAX} are accepted")
    return value


def read_cluster(text: str) -> str:
    """A cluster's name.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        return check_cluster(text)
    except NameNotValid as error:
        raise ProtocolError(f"a marker names a cluster: {error}") from None


def _subscription(text: str) -> str:
    try:
        return check_subscription(text)
    except NameNotValid as error:
        raise ProtocolError(f"a marker names a subscription: {error}") from None


def _complete(message: pb.GeoAckedSets | pb.GeoSoughtEpoch | pb.GeoStateRequest) -> None:
    if not message.IsInitialized() or not text_is_valid(message):
        raise ProtocolError(f"a marker lacks required fields of {message.DESCRIPTOR.name}, or its text is not UTF-8")


def _at_most(messages: Collection[object], most: int, what: str) -> None:
    if len(messages) > most:
        raise ProtocolError(f"a marker names {len(messages)} {what}: at most {most} are accepted")
