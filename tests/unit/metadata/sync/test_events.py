"""Events: what is understood, and what is refused with one line that says why."""

import base64
import json
from typing import Any

import msgspec
import pytest

from magnetar.metadata.sync.documents import KINDS, check_path, kind_of, parent_of, to_document, to_fields
from magnetar.metadata.sync.events import Header, decode, encode
from magnetar.metadata.sync.patterns import Exclusions
from magnetar.metadata.sync.records import EMPTY, Cell, Malformed, Record, encoded
from magnetar.metadata.sync.stamps import Stamp

NS = "namespaces/t/n"


def native(**more: Any) -> bytes:
    return json.dumps({"magnetar": 1, "cluster": "a", "kind": "change", "records": {}} | more).encode()


def plain(**more: Any) -> bytes:
    told = {"path": "/admin/policies/t/n", "value": {}, "lastUpdatedTimestamp": 5, "sourceCluster": "p"} | more
    return json.dumps(told).encode()


def one(field: str, value: Any, path: str = NS) -> bytes:
    return native(records={path: {"c": [5, "a"], "f": {field: [5, "a", value]}}})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\x00", "not JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "no path"),
        (native(magnetar=2), "version 2"),
        (native(kind="song"), "kind"),
        (native(cluster=5), "cluster"),
        (native(digest="xyz"), "digest"),
        (native(ahead={"a": "b"}), "ahead"),
        (native(exclude=[5]), "exclude"),
        (native(awaits={"x": "y"}), "awaits"),
        (native(records={"topics/x": {}}), "not a path"),
        (native(records={"tenants/../x": {}}), "tenants/../x"),
        (native(records={"namespaces/t": {}}), "namespaces/t"),
        (native(records={"partitioned/persistent://t/n/x-partition-0": {}}), "full name"),
        (native(records={"permissions/everything": {}}), "not a namespace or topic"),
        (native(records={NS: 5}), "not an object"),
        (native(records=[]), "records is missing or of a wrong type"),
        (
            b'{"magnetar": 1, "cluster": "a", "kind": "change", "records": {"' + NS.encode() + b'": {"f": "\xff"}}}',
            "not JSON",
        ),
        (b'{"magnetar": 1, "records": ' + b"[" * 100_000, "not JSON"),
        (one("message_ttl_in_seconds", -5), "-5"),
        (one("message_ttl_in_seconds", "long"), "int"),
        (one("backlog_quota_map/size", {}), "backlog_quota_map"),
        (one("partitions/0", True, "partitioned/persistent://t/n/x"), "partitions"),
        (one("partitions/5000", True, "partitioned/persistent://t/n/x"), "5000"),
        (one("partitions/11", True, "partitioned/persistent://t/n/" + "x" * 483), "at most 512 bytes"),
        (one("partitions/1", True, "partitioned/non-persistent://t/n/" + "x" * 480), "at most 512 bytes"),
        (one("partitions/many", True, "partitioned/persistent://t/n/x"), "partitions"),
        (one("actions", "all", "permissions/namespaces/t/n/r"), "actions"),
        (plain(path="/loadbalance/x"), "not a path"),
        (plain(lastUpdatedTimestamp="now"), "lastUpdatedTimestamp"),
        (plain(lastUpdatedTimestamp=-5), "lastUpdatedTimestamp"),
        (plain(value="!!"), "base64"),
        (plain(value=5), "not a document"),
        (plain(value={"retention_policies": 5}), "retention_policies"),
    ],
)
def test_what_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why) as refused:
        decode(data)
    assert "\n" not in str(refused.value)


def test_a_whole_value_sets_and_takes_back_every_field() -> None:
    value = base64.b64encode(b'{"message_ttl_in_seconds": 5, "bundles": {}}').decode()
    event = decode(plain(value=value))
    record = event.records[NS]
    assert event.header is None
    assert record.created == Stamp(5000, "p")
    assert record.fields["message_ttl_in_seconds"] == Cell(Stamp(5000, "p"), b"5")
    assert record.fields["retention_policies"] == Cell(Stamp(5000, "p"), None)
    assert decode(plain(value=None)).records[NS] == Record(None, Stamp(5000, "p"), {})
    assert decode(plain(path="/admin/policies/t", value={"adminRoles": []})).records.keys() == {"tenants/t"}
    assert decode(plain(path="/admin/clusters/c")).records.keys() == {"clusters/c"}
    topic = decode(plain(path="/admin/partitioned-topics/t/n/persistent/x", value={"partitions": 3}))
    assert topic.records["partitioned/persistent://t/n/x"].fields["partitions/3"].value == b"true"


def test_a_record_that_is_known_is_not_read_again() -> None:
    data = one("message_ttl_in_seconds", 5)
    record = decode(data).records[NS]
    assert decode(data, lambda path: (encoded(record), record) if path == NS else None).records[NS] is not record
    told = encode(Header("a", "change", 0, 0, 1), [(NS, msgspec.Raw(encoded(record)))], {})
    assert decode(told, lambda path: (encoded(record), record) if path == NS else None).records[NS] is record
    assert decode(told, lambda path: (b"{}", EMPTY)).records[NS] == record


def test_fields_that_a_newer_version_knows_are_carried_on() -> None:
    record = decode(one("colour", {"r": 1})).records[NS]
    assert record.values() == {"colour": b'{"r":1}'}
    kind = kind_of(NS)
    assert kind is not None
    assert to_document(kind, record.values()) == {}


def test_documents_and_fields() -> None:
    kind = kind_of(NS)
    assert kind is not None
    document = {
        "replication_clusters": ["a"],
        "backlog_quota_map": {"message_age": {"limitTime": 1}, "destination_storage": {"limitSize": 2}},
    }
    fields = to_fields(kind, document)
    assert set(fields) == {
        "replication_clusters",
        "backlog_quota_map/message_age",
        "backlog_quota_map/destination_storage",
    }
    assert to_document(kind, fields) == document
    topics = kind_of("partitioned/persistent://t/n/x")
    assert topics is not None
    assert to_document(topics, {"partitions/3": b"true", "partitions/12": b"true"}) == {"partitions": 12}
    clusters = kind_of("clusters/c")
    assert clusters is not None
    assert to_fields(clusters, {"serviceUrl": "http://x", "peerClusterNames": ["d"]}) == {"peerClusterNames": b'["d"]'}
    roles = kind_of("permissions/namespaces/t/n/r")
    assert roles is not None
    assert roles.write(roles.read(b'["produce"]')) == b'["produce"]'


def test_parents() -> None:
    assert parent_of("tenants/t") == ""
    assert parent_of(NS) == "tenants/t"
    for path in (
        "partitioned/persistent://t/n/x", "topicpolicies/persistent://t/n/x", "permissions/namespaces/t/n/r",
        "permissions/topics/persistent/t/n/x/r",
    ):  # fmt: skip
        assert parent_of(path) == NS
        assert check_path(path) in KINDS


def test_patterns() -> None:
    local = Exclusions(
        [
            "namespaces/acme/*",
            "namespaces/*:retention_policies",
            "partitioned/persistent://t/n/*",
            "*:backlog_quota_map",
        ]
    )
    assert local.path("namespaces/acme/x")
    assert local.path("partitioned/persistent://t/n/x")
    assert not local.path(NS)
    assert local.field(NS, "retention_policies")
    assert local.field(NS, "backlog_quota_map/message_age")
    assert not local.field(NS, "message_ttl_in_seconds")
    stamp = Stamp(5, "a")
    record = Record(stamp, None, {"retention_policies": Cell(stamp, b"1"), "message_ttl_in_seconds": Cell(stamp, b"1")})
    assert set(local.shared(NS, record).fields) == {"message_ttl_in_seconds"}
    assert local.shared("namespaces/acme/x", record) == Record(None, None, {})
    assert Exclusions().shared(NS, record) is record
