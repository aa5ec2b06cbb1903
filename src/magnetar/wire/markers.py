"""Markers: internal entries that clusters write into a topic to agree on positions (PIP-33; pulsar-facts B).

A marker is an entry whose metadata has a `marker_type`. It is never delivered, has no origin index, and travels over a
link like any entry. Building and parsing is here; what they mean is the replicated subscriptions' matter (geo).
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
from magnetar.wire import acksets
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import AckedSetsMarker, AckMarker, SoughtEpoch, StateRequest
from magnetar.wire.metadata import build, parse_metadata, split
from magnetar.wire.text import text_is_valid

MARKER_PRODUCER: Final = "pulsar.marker"
"""The producer name in a marker's metadata, as Pulsar writes it."""

MARKER_BYTES_MAX: Final = 64 * 1024
"""A ceiling: the largest marker of the protocol names a position for each cluster, a few KB at most."""

CLUSTERS_MAX: Final = 256
"""A ceiling on the clusters that one marker names: more than any mesh has."""


class MarkerType(IntEnum):
    """`marker_type` of the metadata (the text of PIP-33 says field 18; what clients write is field 20)."""

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


class SnapshotRequest(NamedTuple):
    """The question where everybody is, from the cluster that takes a snapshot to all others."""

    snapshot_id: str
    source_cluster: str


class SnapshotResponse(NamedTuple):
    """The answering cluster's newest position when it met the request."""

    snapshot_id: str
    cluster: str
    position: Position


class Snapshot(NamedTuple):
    """A snapshot that is complete: positions of one moment. Stays in the cluster that took it."""

    snapshot_id: str
    local: Position
    clusters: dict[str, Position]


class Update(NamedTuple):
    """A subscription got past a snapshot: what each cluster may take as acknowledged."""

    subscription: str
    clusters: dict[str, Position]


Marker = SnapshotRequest | SnapshotResponse | Snapshot | Update | AckMarker


def _position(position: Position) -> pb.MarkersMessageIdData:
    return pb.MarkersMessageIdData(ledger_id=position.ledger & (2**64 - 1), entry_id=position.entry & (2**64 - 1))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _read_position(data: pb.MarkersMessageIdData) -> Position:
    return Position(_signed(data.ledger_id), _signed(data.entry_id))


def _clusters(clusters: Mapping[str, Position]) -> list[pb.ClusterMessageId]:
    return [
        pb.ClusterMessageId(cluster=name, message_id=_position(position)) for name, position in sorted(clusters.items())
    ]


def _payload(marker: Marker) -> tuple[int, bytes]:
    match marker:
        case AckedSetsMarker() | SoughtEpoch() | StateRequest():
            return acksets.encode_body(marker)
        case SnapshotRequest(snapshot_id, source):
            kind = MarkerType.SNAPSHOT_REQUEST
            body = pb.ReplicatedSubscriptionsSnapshotRequest(snapshot_id=snapshot_id, source_cluster=source)
            return kind, body.SerializeToString()
        case SnapshotResponse(snapshot_id, cluster, position):
            answer = pb.ClusterMessageId(cluster=cluster, message_id=_position(position))
            response = pb.ReplicatedSubscriptionsSnapshotResponse(snapshot_id=snapshot_id, cluster=answer)
            return MarkerType.SNAPSHOT_RESPONSE, response.SerializeToString()
        case Snapshot(snapshot_id, local, clusters):
            snapshot = pb.ReplicatedSubscriptionsSnapshot(
                snapshot_id=snapshot_id, local_message_id=_position(local), clusters=_clusters(clusters)
            )
            return MarkerType.SNAPSHOT, snapshot.SerializeToString()
        case Update(subscription, clusters):
            update = pb.ReplicatedSubscriptionsUpdate(subscription_name=subscription, clusters=_clusters(clusters))
            return MarkerType.UPDATE, update.SerializeToString()


def build_marker(marker: Marker, publish_time_ms: int, replicate_to: Sequence[str] = ()) -> bytes:
    """A marker's entry, from the magic on.

    Args:
        marker: what it says.
        publish_time_ms: now.
        replicate_to: clusters that a link may carry it to; empty: all. (A REQUEST and an UPDATE go to all, a RESPONSE
            to the asker, a SNAPSHOT to nobody: it names its own cluster.)

    Raises:
        ValueError: it names more than `CLUSTERS_MAX` clusters.
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


def parse_marker(payload: bytes) -> Marker | None:
    """What a marker's entry says; None if it is of a kind that has no body here (transactions, unknown ones).

    Args:
        payload: the entry from the magic on; its checksum was checked when it came in.

    Raises:
        ProtocolError: not a marker, too large, or a body that cannot be decoded.
    """
    metadata = parse_metadata(payload)
    if not metadata.HasField("marker_type"):
        raise ProtocolError("an entry without a marker type is no marker")
    return parse_body(metadata.marker_type, payload[split(payload) :])


def parse_body(marker_type: int, body: bytes) -> Marker | None:
    """What a marker's payload says, see `parse_marker`.

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
            return SnapshotRequest(request.snapshot_id, request.source_cluster)
        case MarkerType.SNAPSHOT_RESPONSE:
            response = pb.ReplicatedSubscriptionsSnapshotResponse.FromString(body)
            _complete(response)
            if not response.HasField("cluster"):
                raise ProtocolError("a snapshot response names no position")
            position = _read_position(response.cluster.message_id)
            return SnapshotResponse(response.snapshot_id, response.cluster.cluster, position)
        case MarkerType.SNAPSHOT:
            snapshot = pb.ReplicatedSubscriptionsSnapshot.FromString(body)
            _complete(snapshot)
            if not snapshot.HasField("local_message_id"):
                raise ProtocolError("a snapshot names no local position")
            local = _read_position(snapshot.local_message_id)
            return Snapshot(snapshot.snapshot_id, local, _read_clusters(snapshot.clusters))
        case MarkerType.UPDATE:
            update = pb.ReplicatedSubscriptionsUpdate.FromString(body)
            _complete(update)
            return Update(update.subscription_name, _read_clusters(update.clusters))
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
