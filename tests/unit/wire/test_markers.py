"""Markers by hand: the fields that Pulsar writes, and what is refused."""

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
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
    with pytest.raises(ProtocolError, match="no marker"):
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
