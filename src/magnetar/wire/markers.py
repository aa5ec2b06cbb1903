"""Markers: internal entries that clusters write into a topic to agree on positions (PIP-33; docs/design/pulsar.md#markers).

A marker is an entry whose metadata has a `marker_type`. It is never delivered, has no origin index, and travels over a
link like any entry. This module builds and parses them; the replicated subscriptions act on them.

The bodies of types 10 to 13 are Apache Pulsar's. Magnetar adds fields from 1000 up, which name messages by identity
instead of position and which Pulsar ignores (`round`, `held`, `Claim`). Types 110 to 112 are in `wire.acksets`.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import OriginKey, Position
from magnetar.wire import acksets
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import (
    INDEX_MAX,
    TIME_MS_MAX,
    AckedSetsMarker,
    AckMarker,
    Epoch,
    SoughtEpoch,
    StateRequest,
    read_cluster,
)
from magnetar.wire.metadata import build, parse_metadata, split
from magnetar.wire.text import text_is_valid
from magnetar.wire.varint import signed

MARKER_PRODUCER: Final = "pulsar.marker"
"""The producer name in a marker's metadata, as Pulsar writes it."""

MARKER_BYTES_MAX: Final = 256 * 1024
"""A ceiling: a position for each cluster is a few KB at most; `RANGES_MAX` ranges, twice, are some 60 KB when holes are small."""

RANGES_MAX: Final = 8192
"""A ceiling on the ranges of one `Held`. A range ends where a message never came (restricted, filtered, deleted too
early): usually there is one range an origin."""

ORIGINS_MAX: Final = 1024
"""A ceiling on the origins of one `Held`: 256 clusters that created their topic again four times."""

CLUSTERS_MAX: Final = 256
"""A ceiling on the clusters that one marker names: more than any mesh has."""


class MarkerType(IntEnum):
    """`marker_type` of the metadata. The text of PIP-33 says field 18; clients write field 20."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    SNAPSHOT = 12
    UPDATE = 13
    TXN_COMMITTING = 20
    TXN_COMMIT = 21
    TXN_ABORT = 22
    ACKED_SETS = 110
    SOUGHT_EPOCH = 111
    STATE_REQUEST = 112


SNAPSHOT_KINDS: Final = frozenset(
    (MarkerType.SNAPSHOT_REQUEST, MarkerType.SNAPSHOT_RESPONSE, MarkerType.SNAPSHOT, MarkerType.UPDATE)
)
"""The marker types that only snapshot mode uses; exact mode ignores them."""


Held = Mapping[OriginKey, Sequence[tuple[int, int]]]
"""Messages by identity: per origin its indexes as runs (first, end), end exclusive, ascending, apart."""


class Claim(NamedTuple):
    """The part of an update that names messages by identity (GeoClaim).

    Attributes:
        acked: acknowledged in the writer's cluster: by its consumers, by operators, or by updates of other clusters.
        base: messages that the subscription's starting point counts as consumed without an acknowledgement; None: not
            included.
        seeks: the latest seek in each cluster that the writer has heard of.
        created: the subscription was created here, and it has passed no snapshot yet.
    """

    acked: Held
    base: Held | None = None
    seeks: tuple[Epoch, ...] = ()
    created: bool = False


class SnapshotRequest(NamedTuple):
    """The request for the positions of all other clusters, from the cluster that takes a snapshot.

    `round` counts from 1; it is 0 from a peer that does not know `Claim` (Apache Pulsar).
    """

    snapshot_id: str
    source_cluster: str
    round: int = 0


class SnapshotResponse(NamedTuple):
    """The answering cluster's newest position when it met the request; `round` is the request's, 0 from Apache Pulsar."""

    snapshot_id: str
    cluster: str
    position: Position
    round: int = 0


class Snapshot(NamedTuple):
    """A snapshot that is complete: positions of one moment, and what the log held then. Stays in the cluster that took it."""

    snapshot_id: str
    local: Position
    clusters: dict[str, Position]
    held: Mapping[OriginKey, Sequence[tuple[int, int]]] = {}


class Update(NamedTuple):
    """A subscription has passed a snapshot: the messages that each cluster may take as acknowledged.

    With `claim` None it comes from a peer that only knows positions (Apache Pulsar).
    """

    subscription: str
    clusters: dict[str, Position]
    claim: Claim | None = None


Marker = SnapshotRequest | SnapshotResponse | Snapshot | Update | AckMarker


def _position(position: Position) -> pb.MarkersMessageIdData:
    return pb.MarkersMessageIdData(ledger_id=position.ledger & (2**64 - 1), entry_id=position.entry & (2**64 - 1))


def _read_position(data: pb.MarkersMessageIdData) -> Position:
    return Position(signed(data.ledger_id), signed(data.entry_id))


def _clusters(clusters: Mapping[str, Position]) -> list[pb.ClusterMessageId]:
    return [
        pb.ClusterMessageId(cluster=name, message_id=_position(position)) for name, position in sorted(clusters.items())
    ]


def _held(held: Held) -> list[pb.GeoHeld]:
    if sum(map(len, held.values())) > RANGES_MAX or len(held) > ORIGINS_MAX:
        raise ValueError(f"a marker names more than {RANGES_MAX} ranges or {ORIGINS_MAX} origins")
    found = []
    for key, runs in sorted(held.items(), key=lambda item: item[0]):
        last = 0
        ranges: list[int] = []
        for first, end in runs:
            ranges += (first - last, end - first)
            last = end
        found.append(pb.GeoHeld(cluster=key.cluster, incarnation=key.incarnation, ranges=ranges))
    return found


def _claim(claim: Claim) -> pb.GeoClaim:
    seeks = [
        pb.GeoEpoch(kind=seek.kind, time_ms=seek.time_ms, cluster=seek.cluster, incarnation=seek.incarnation)
        for seek in sorted(claim.seeks, key=lambda seek: seek.cluster)
    ]
    message = pb.GeoClaim(acked=_held(claim.acked), seeks=seeks)
    if claim.base is not None:
        message.based = True
        message.base.extend(_held(claim.base))
    if claim.created:
        message.created = True
    return message


def _payload(marker: Marker) -> tuple[int, bytes]:
    match marker:
        case AckedSetsMarker() | SoughtEpoch() | StateRequest():
            return acksets.encode_body(marker)
        case SnapshotRequest(snapshot_id, source, number):
            request = pb.ReplicatedSubscriptionsSnapshotRequest(snapshot_id=snapshot_id, source_cluster=source)
            if number:
                request.round = number
            return MarkerType.SNAPSHOT_REQUEST, request.SerializeToString()
        case SnapshotResponse(snapshot_id, cluster, position, number):
            answer = pb.ClusterMessageId(cluster=cluster, message_id=_position(position))
            response = pb.ReplicatedSubscriptionsSnapshotResponse(snapshot_id=snapshot_id, cluster=answer)
            if number:
                response.round = number
            return MarkerType.SNAPSHOT_RESPONSE, response.SerializeToString()
        case Snapshot(snapshot_id, local, clusters, held):
            snapshot = pb.ReplicatedSubscriptionsSnapshot(
                snapshot_id=snapshot_id,
                local_message_id=_position(local),
                clusters=_clusters(clusters),
                held=_held(held),
            )
            return MarkerType.SNAPSHOT, snapshot.SerializeToString()
        case Update(subscription, clusters, claim):
            update = pb.ReplicatedSubscriptionsUpdate(subscription_name=subscription, clusters=_clusters(clusters))
            if claim is not None:
                update.claim.CopyFrom(_claim(claim))
            return MarkerType.UPDATE, update.SerializeToString()


def build_marker(marker: Marker, publish_time_ms: int, replicate_to: Sequence[str] = ()) -> bytes:
    """The bytes of a marker's entry, beginning with the magic.

    Args:
        marker: its content.
        publish_time_ms: now.
        replicate_to: clusters that a link may carry it to; empty: all. (A REQUEST and an UPDATE go to all, a RESPONSE
            to the asker, a SNAPSHOT to none: it names its own cluster.)

    Raises:
        ValueError: it names more than `CLUSTERS_MAX` clusters, `RANGES_MAX` ranges or `ORIGINS_MAX` origins.
    """
    if isinstance(marker, Snapshot | Update) and len(marker.clusters) > CLUSTERS_MAX:
        raise ValueError(f"a marker names {len(marker.clusters)} clusters; at most {CLUSTERS_MAX}")
    kind, body = _payload(marker)
    metadata = pb.MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=0,
        publish_time=publish_time_ms,
        marker_type=kind,
        replicate_to=replicate_to,
    )
    return build(metadata, body)


def parse_marker(payload: bytes, without: Container[int] = ()) -> Marker | None:
    """Decode a marker's entry; None for a kind that has no body here (transactions, unknown ones).

    Args:
        payload: the entry from the magic on; its checksum was checked when it came in.
        without: kinds whose bodies the caller does not want; they give None, as unknown kinds do.

    Raises:
        ProtocolError: not a marker, too large, or a body that cannot be decoded.
    """
    metadata = parse_metadata(payload)
    if not metadata.HasField("marker_type"):
        raise ProtocolError("an entry without a marker type is not a marker")
    if metadata.marker_type in without:
        return None
    return parse_body(metadata.marker_type, payload[split(payload) :])


def parse_body(marker_type: int, body: bytes) -> Marker | None:
    """Decode a marker's payload, see `parse_marker`.

    Raises:
        ProtocolError: too large, or cannot be decoded.
    """
    acked = acksets.parse_body(marker_type, body)
    if acked is not None:
        return acked
    if len(body) > MARKER_BYTES_MAX:
        raise ProtocolError(f"a marker of {len(body)} bytes: at most {MARKER_BYTES_MAX} are accepted")
    try:
        return _parse(marker_type, body)
    except DecodeError:
        raise ProtocolError(f"the body of a marker of type {marker_type} cannot be decoded") from None


def _parse(marker_type: int, body: bytes) -> Marker | None:
    match marker_type:
        case MarkerType.SNAPSHOT_REQUEST:
            request = pb.ReplicatedSubscriptionsSnapshotRequest.FromString(body)
            _complete(request)
            return SnapshotRequest(request.snapshot_id, request.source_cluster, request.round)
        case MarkerType.SNAPSHOT_RESPONSE:
            response = pb.ReplicatedSubscriptionsSnapshotResponse.FromString(body)
            _complete(response)
            if not response.HasField("cluster"):
                raise ProtocolError("a snapshot response names no position")
            position = _read_position(response.cluster.message_id)
            return SnapshotResponse(response.snapshot_id, response.cluster.cluster, position, response.round)
        case MarkerType.SNAPSHOT:
            snapshot = pb.ReplicatedSubscriptionsSnapshot.FromString(body)
            _complete(snapshot)
            if not snapshot.HasField("local_message_id"):
                raise ProtocolError("a snapshot names no local position")
            local = _read_position(snapshot.local_message_id)
            held = _read_held(snapshot.held)
            return Snapshot(snapshot.snapshot_id, local, _read_clusters(snapshot.clusters), held)
        case MarkerType.UPDATE:
            update = pb.ReplicatedSubscriptionsUpdate.FromString(body)
            _complete(update)
            claim = _read_claim(update.claim) if update.HasField("claim") else None
            return Update(update.subscription_name, _read_clusters(update.clusters), claim)
        case _:
            return None


_Body = (
    pb.ReplicatedSubscriptionsSnapshotRequest
    | pb.ReplicatedSubscriptionsSnapshotResponse
    | pb.ReplicatedSubscriptionsSnapshot
    | pb.ReplicatedSubscriptionsUpdate
)


def _complete(message: _Body) -> None:
    if not message.IsInitialized() or not text_is_valid(message):
        raise ProtocolError(f"a marker lacks required fields of {message.DESCRIPTOR.name}, or its text is not UTF-8")


def _read_clusters(clusters: Sequence[pb.ClusterMessageId]) -> dict[str, Position]:
    if len(clusters) > CLUSTERS_MAX:
        raise ProtocolError(f"a marker names {len(clusters)} clusters: at most {CLUSTERS_MAX} are accepted")
    return {item.cluster: _read_position(item.message_id) for item in clusters}


def _read_claim(claim: pb.GeoClaim) -> Claim:
    if claim.base and not claim.based:
        raise ProtocolError("an update has a base and says that it has none")
    if len(claim.seeks) > CLUSTERS_MAX:
        raise ProtocolError(f"an update names {len(claim.seeks)} seeks: at most {CLUSTERS_MAX} are accepted")
    base = _read_held(claim.base) if claim.based else None
    return Claim(_read_held(claim.acked), base, tuple(map(_read_seek, claim.seeks)), claim.created)


def _read_seek(seek: pb.GeoEpoch) -> Epoch:
    if seek.kind != 1 or not 0 < seek.time_ms <= TIME_MS_MAX or not 0 <= seek.incarnation <= INDEX_MAX:
        raise ProtocolError(
            f"an update names a seek of kind {seek.kind} at {seek.time_ms}@{seek.cluster}: that is none"
        )
    return Epoch(1, seek.time_ms, read_cluster(seek.cluster), seek.incarnation)


def _read_held(items: Collection[pb.GeoHeld]) -> dict[OriginKey, list[tuple[int, int]]]:
    if len(items) > ORIGINS_MAX or sum(len(item.ranges) for item in items) > 2 * RANGES_MAX:
        raise ProtocolError(f"a marker names more than {RANGES_MAX} ranges or {ORIGINS_MAX} origins")
    found: dict[OriginKey, list[tuple[int, int]]] = {}
    for item in items:
        key = OriginKey(read_cluster(item.cluster), item.incarnation)
        if key in found:
            raise ProtocolError(f"a marker names the origin {key.cluster} {key.incarnation} twice")
        if item.incarnation > INDEX_MAX:
            raise ProtocolError(f"a marker has the incarnation {item.incarnation}: at most {INDEX_MAX} is accepted")
        found[key] = _read_ranges(item.ranges)
    return found


def _read_ranges(ranges: Sequence[int]) -> list[tuple[int, int]]:
    if len(ranges) % 2:
        raise ProtocolError("a marker has a range of origin indexes without an end")
    runs: list[tuple[int, int]] = []
    at = 0
    for number in range(0, len(ranges), 2):
        first = at + ranges[number]
        at = first + ranges[number + 1]
        if at > INDEX_MAX or at == first or (runs and first == runs[-1][1]):
            raise ProtocolError(f"a marker has ranges of origin indexes that do not ascend, or end above {INDEX_MAX}")
        runs.append((first, at))
    return runs
