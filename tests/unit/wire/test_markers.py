"""Markers by hand: the fields that Pulsar writes, and what is refused."""

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import OriginKey, Position
from magnetar.wire import markers, metadata
from magnetar.wire import pulsar_pb2 as pb


def test_the_envelope_is_pulsars():
    entry = markers.build_marker(markers.SnapshotResponse("id", "eu", Position(3, 4)), 99, ["us"])
    seen = metadata.inspect(entry, message_bytes_max=1000).metadata
    assert (seen.producer_name, seen.sequence_id, seen.publish_time, seen.marker_type) == ("pulsar.marker", 0, 99, 11)
    assert list(seen.replicate_to) == ["us"]
    body = pb.ReplicatedSubscriptionsSnapshotResponse.FromString(entry[metadata.split(entry) :])
    assert (body.snapshot_id, body.cluster.cluster, body.cluster.message_id.entry_id) == ("id", "eu", 4)


def test_an_ordinary_message_is_no_marker():
    entry = metadata.build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0), b"")
    with pytest.raises(ProtocolError, match="not a marker"):
        markers.parse_marker(entry)


@pytest.mark.parametrize("kind", [0, 20, 21, 22, 99])
def test_kinds_without_a_body_here(kind):
    assert markers.parse_body(kind, b"whatever") is None


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (10, b"", "lacks required fields"),
        (10, b"\x0a\x01\xff", "not UTF-8"),
        (11, b"\x0a\x01i", "names no position"),
        (11, b"\x0a\x01i\x12\x03\x0a\x01c", "lacks required fields"),
        (12, b"\x0a\x01i", "names no local position"),
        (13, b"\xff", "cannot be decoded"),
        (13, bytes(markers.MARKER_BYTES_MAX + 1), "at most 262144"),
    ],
)
def test_bodies_that_are_refused(kind, body, text):
    with pytest.raises(ProtocolError, match=text):
        markers.parse_body(kind, body)


def test_clusters_have_a_ceiling():
    many = {f"c{number}": Position(1, number) for number in range(markers.CLUSTERS_MAX + 1)}
    with pytest.raises(ValueError, match="at most 256"):
        markers.build_marker(markers.Update("s", many), 0)
    update = pb.ReplicatedSubscriptionsUpdate(subscription_name="s")
    for _ in range(markers.CLUSTERS_MAX + 1):
        update.clusters.add(cluster="c", message_id=pb.MarkersMessageIdData(ledger_id=1, entry_id=1))
    with pytest.raises(ProtocolError, match="at most 256"):
        markers.parse_body(13, update.SerializeToString())


A, B = OriginKey("a", 7), OriginKey("b", 300)
SEEK = markers.Epoch(1, 1000, "a", 7)
GOLDEN = [
    (markers.SnapshotRequest("id", "eu"), "0a02696412026575"),
    (markers.SnapshotRequest("id", "eu", 2), "0a0269641202657" + "5c03e02"),
    (markers.SnapshotResponse("id", "eu", Position(3, 4), 1), "0a026964120a0a0265751204080310" + "04c03e01"),
    (
        markers.Snapshot("id", Position(3, 4), {"eu": Position(5, 6)}, {A: [(0, 5), (7, 300)]}),
        "0a026964120408031004" + "1a0a0a0265751204080510" + "06" + "c23e0c0a01611007" + "1a050005" + "02a502",
    ),
    (
        markers.Update("s", {}, markers.Claim({B: [(0, 1)]}, {A: [(2, 3)]}, (SEEK,), True)),
        "0a0173c23e270a0a0a016210ac021a02000112090a016110071a0202011801220a080110e8071a016120072801",
    ),
    (markers.Update("s", {}, markers.Claim({})), "0a0173c23e00"),
]
"""Never edited, only added: what an older broker wrote has to be read."""


@pytest.mark.parametrize(("marker", "body"), GOLDEN, ids=lambda item: type(item).__name__)
def test_golden_bodies(marker, body):
    entry = markers.build_marker(marker, 0)
    assert entry[metadata.split(entry) :].hex() == body
    assert markers.parse_marker(entry) == marker


def test_a_pulsar_peer_reads_what_it_knows():
    """Without our fields the bodies are Pulsar's, byte for byte in front of them."""
    bare = markers.build_marker(markers.Update("s", {"eu": Position(1, 2)}), 0)
    ours = markers.build_marker(markers.Update("s", {"eu": Position(1, 2)}, markers.Claim({A: [(0, 1)]})), 0)
    assert ours[metadata.split(ours) :].startswith(bare[metadata.split(bare) :])


def _held(**fields):
    return pb.GeoHeld(**{"cluster": "a", "incarnation": 1, "ranges": [0, 1]} | fields)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([_held(ranges=[1])], "without an end"),
        ([_held(ranges=[0, 0])], "do not ascend"),
        ([_held(ranges=[0, 1, 0, 1])], "do not ascend"),
        ([_held(ranges=[0, 1 << 63])], "end above"),
        ([_held(), _held()], "twice"),
        ([_held(cluster="")], "names a cluster"),
        ([_held(cluster="no cluster!")], "names a cluster"),
        ([_held(incarnation=1 << 63)], "incarnation"),
        ([_held(ranges=[1, 1] * (markers.RANGES_MAX + 1))], "more than"),
        ([_held(cluster=f"c{number}") for number in range(markers.ORIGINS_MAX + 1)], "more than"),
    ],
)
def test_held_messages_that_cannot_be(held, text):
    snapshot = pb.ReplicatedSubscriptionsSnapshot(
        snapshot_id="i", local_message_id=pb.MarkersMessageIdData(ledger_id=1, entry_id=1), held=held
    )
    update = pb.ReplicatedSubscriptionsUpdate(subscription_name="s", claim=pb.GeoClaim(acked=held))
    for kind, body in ((12, snapshot), (13, update)):
        with pytest.raises(ProtocolError, match=text):
            markers.parse_body(kind, body.SerializeToString())


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (pb.GeoClaim(base=[_held()]), "says that it has none"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=0)]), "that is none"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=1, time_ms=0, cluster="a", incarnation=1)]), "that is none"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=1, time_ms=5, incarnation=1)]), "names a cluster"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=1, time_ms=5, cluster="A/b", incarnation=1)]), "names a cluster"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=1, time_ms=5, cluster="a", incarnation=-1)]), "that is none"),
        (pb.GeoClaim(seeks=[pb.GeoEpoch(kind=1, time_ms=5, cluster="a")] * 257), "at most 256"),
    ],
)
def test_claims_that_cannot_be(claim, text):
    update = pb.ReplicatedSubscriptionsUpdate(subscription_name="s", claim=claim)
    with pytest.raises(ProtocolError, match=text):
        markers.parse_body(13, update.SerializeToString())


def test_too_much_is_not_written():
    many = {A: [(2 * number, 2 * number + 1) for number in range(markers.RANGES_MAX + 1)]}
    with pytest.raises(ValueError, match="more than 8192 ranges"):
        markers.build_marker(markers.Update("s", {}, markers.Claim(many)), 0)
