"""What the answers of partitions, permissions and peeking hold."""

import base64
import json
import sys
import zlib

import pytest

from magnetar.broker.failover.final_state import ASKED_RUNS_MAX
from magnetar.wire.metadata import build, parse_metadata
from tests.web.conftest import Tell, World, described

A = "/admin/v2"
N = f"{A}/namespaces/public/default"
P = f"{A}/persistent/public/default"
FULL = "persistent://public/default"
PEEK = f"{P}/t/subscription/s/position/1"


def test_internal_statistics_of_partitions_are_by_name(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/p/partitions", "2"))
        world.node.publish(b"1", b"2", topic=f"{FULL}/p-partition-1")
        answer = (await world.ask("GET", f"{P}/p/partitioned-internalStats")).json
        assert answer["metadata"]["partitions"] == 2
        found = {name: stats["numberOfEntries"] for name, stats in answer["partitions"].items()}
        assert found == {f"{FULL}/p-partition-0": 0, f"{FULL}/p-partition-1": 2}

    tell(story)


def test_missed_partitions_are_created_and_nothing_else(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/p/partitions", "3"))
        world.delete(f"{FULL}/p-partition-1")
        calls = world.watch(world.control.topics, "create")
        await world.have(("POST", f"{P}/p/createMissedPartitions", None))
        assert calls == [(f"{FULL}/p-partition-1", None, {})]
        assert f"{FULL}/p-partition-1" in world.topics()
        await world.have(("POST", f"{P}/p/createMissedPartitions", None))
        assert len(calls) == 1

    tell(story)


def test_partitions_are_terminated_with_their_last_ids(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/p/partitions", "2"))
        (_, last) = world.node.publish(b"1", b"2", topic=f"{FULL}/p-partition-1")
        assert (await world.ask("POST", f"{P}/p/terminate/partitions")).json == {
            "0": {"ledgerId": -1, "entryId": -1, "partitionIndex": 0},
            "1": {"ledgerId": last.ledger, "entryId": 1, "partitionIndex": 1},
        }
        assert all(world.broker.topics[f"{FULL}/p-partition-{number}"].terminated for number in range(2))

    tell(story)


def test_times_of_partitions_are_the_first_or_the_last(tell: Tell) -> None:
    async def story(world: World) -> None:
        start = world.now_ms
        await world.have(("PUT", f"{P}/p/partitions", "2"), ("PUT", f"{P}/p/subscription/s", None))
        for partition, at_ms in ((1, 500), (0, 700)):
            world.advance_to(start + at_ms)
            world.node.publish(b"x", topic=f"{FULL}/p-partition-{partition}")
        await world.have(("POST", f"{P}/p/partitions", "3"))
        answer = (await world.ask("GET", f"{P}/p/partitioned-stats")).json
        assert answer["earliestMsgPublishTimeInBacklogs"] == start + 500
        assert answer["topicCreationTimeStamp"] == start
        assert answer["lastPublishTimeStamp"] == start + 700

    tell(story)


def test_policies_of_a_namespace_tell_what_was_granted(tell: Tell) -> None:
    async def story(world: World) -> None:
        empty = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
        assert (await world.ask("GET", N)).json["auth_policies"] == empty
        await world.have(
            ("POST", f"{N}/permissions/app", '["produce", "consume", "replicate"]'),
            ("POST", f"{P}/t/permissions/reader", '["consume"]'),
            ("POST", f"{N}/permissions/subscription/s", '["app"]'),
        )
        # `replicate` is no word of Pulsar's, whose tools would refuse the answer.
        assert (await world.ask("GET", N)).json["auth_policies"] == {
            "namespace_auth": {"app": ["consume", "produce"]},
            "destination_auth": {f"{FULL}/t": {"reader": ["consume"]}},
            "subscription_auth_roles": {"s": ["app"]},
        }

    tell(story)


def test_peek_decompresses_unless_encrypted(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        plain, packed = b"payload" * 100, zlib.compress(b"payload" * 100)
        data = described(0, packed, compression=2, uncompressed_size=len(plain), num_messages_in_batch=3)
        world.store(f"{FULL}/t", data, 3)
        answer = await world.ask("GET", PEEK)
        assert (answer.status, answer.data) == (200, plain)
        assert answer.headers["X-Pulsar-Is-Encrypted"] == "false"
        assert answer.headers["X-Pulsar-num-batch-message"] == "3"
        locked = parse_metadata(data)
        locked.encryption_keys.add(key="k", value=b"secret")
        world.store(f"{FULL}/t", build(locked, packed), 3)
        answer = await world.ask("GET", f"{PEEK[:-1]}2")
        assert (answer.status, answer.data) == (200, packed)
        assert answer.headers["X-Pulsar-Is-Encrypted"] == "true"
        assert "X-Magnetar-Still-Compressed" not in answer.headers

    tell(story)


def test_peek_tells_everything_that_a_message_says_of_itself(tell: Tell) -> None:
    """Java's tools read times as texts, and fail altogether over a number."""

    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        data = described(
            0,
            b"x",
            deliver_at_time=1_700_000_000_123,
            ordering_key=b"\x00o",
            highest_sequence_id=9,
            null_value=True,
            null_partition_key=True,
            encryption_algo="RSA",
            encryption_param=b"\x01p",
            schema_version=b"\x00\x07",
            uuid="p-0",
            num_chunks_from_msg=3,
            total_chunk_msg_size=15,
            chunk_id=1,
        )
        metadata = parse_metadata(data)
        metadata.replicate_to.extend(["us-east", "us-west"])
        for key in ("one", "two"):
            metadata.encryption_keys.add(key=key, value=b"secret")
        world.store(f"{FULL}/t", build(metadata, b"x"))
        headers = (await world.ask("GET", PEEK)).headers
        told = {
            "deliver-at-time": "2023-11-14T22:13:20.123Z",
            "Base64-ordering-key": "AG8=",
            "highest-sequence-id": "9",
            "null-value": "true",
            "null-partition-key": "true",
            "encryption-algo": "RSA",
            "Base64-encryption-param": "AXA=",
            "Base64-schema-version": "AAc=",
            "Base64-schema-version-b64encoded": "AAc=",
            "uuid": "p-0",
            "num-chunks-from-msg": "3",
            "total-chunk-msg-size": "15",
            "chunk-id": "1",
            "PROPERTY-TOTAL-CHUNKS": "3",
            "PROPERTY-CHUNK-ID": "1",
        }
        assert {name: headers.get(f"X-Pulsar-{name}") for name in told} == told
        assert headers.getall("X-Pulsar-replicated-to") == ["us-east", "us-west"]
        keys = [base64.b64decode(key) for key in headers.getall("X-Pulsar-Base64-encryption-keys")]
        assert keys == [key.SerializeToString() for key in metadata.encryption_keys]

    tell(story)


def test_peek_leaves_out_headers_that_are_too_many(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        metadata = parse_metadata(described(0, b"x"))
        metadata.replicate_to.extend(f"cluster-{number}" for number in range(1000))
        world.store(f"{FULL}/t", build(metadata, b"x"))
        answer = await world.ask("GET", PEEK)
        assert (answer.status, answer.headers["X-Magnetar-Left-Out"]) == (200, "X-Pulsar-replicated-to")
        assert "X-Pulsar-replicated-to" not in answer.headers

    tell(story)


@pytest.mark.parametrize(
    ("kind", "size", "why"), [(2, 4, "no ZLIB"), (2, 1 << 31, "at most"), (3, 4, "no ZSTD"), (1, 4, "no LZ4")]
)
def test_peek_gives_what_cannot_be_decompressed_as_it_is(tell: Tell, kind: int, size: int, why: str) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        data = described(0, b"\xffdamaged", compression=kind, uncompressed_size=size, num_messages_in_batch=3)
        world.store(f"{FULL}/t", data, 3)
        answer = await world.ask("GET", PEEK)
        assert (answer.status, answer.data) == (200, b"\xffdamaged")
        assert why in answer.headers["X-Magnetar-Still-Compressed"]
        # Clients would take the body apart as a batch.
        assert "X-Pulsar-num-batch-message" not in answer.headers

    tell(story)


def test_peek_says_what_has_to_be_installed(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        world.store(f"{FULL}/t", described(0, b"x", compression=3, uncompressed_size=4))
        answer = await world.ask("GET", PEEK)
        assert answer.status == 412
        assert "ZSTD" in answer.reason and "magnetar[spark]" in answer.reason

    tell(story)


def test_runs_of_messages_are_limited(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        path = "/geo/v1/failover/persistent/public/default/t/s/acknowledged"
        for number, status in ((ASKED_RUNS_MAX, 200), (ASKED_RUNS_MAX + 1, 400)):
            answer = await world.ask("POST", path, json.dumps({"runs": [["us-west", 5, 0, 9]] * number}))
            assert answer.status == status, answer.data
        assert f"at most {ASKED_RUNS_MAX}" in answer.reason

    tell(story)


ENDLESS = "0000000001" + "9" * 5_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/geo/v1/subscriptions?limit={ENDLESS}", None),
        ("GET", "/geo/v1/subscriptions?limit=00000000019999999", None),
        ("GET", f"/geo/v1/failover/persistent/public/default/t/s/wait?since={ENDLESS}", None),
        ("POST", f"{P}/t/subscription/s/skip/{ENDLESS}", None),
        ("POST", f"{P}/t/subscription/s/resetcursor/{2**63}", None),
        (
            "POST",
            "/geo/v1/failover/persistent/public/default/t/s/activate",
            json.dumps({"tokens": {f"{FULL}/t": f"{ENDLESS}{'9' * 5}@us-east"}}),
        ),
    ],
    ids=["a limit", "a limit with zeros", "a version", "a count", "a time", "a token"],
)
def test_numbers_that_are_none_are_refused(tell: Tell, method: str, path: str, body: str | None) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t", subscriptions=["s"])
        answer = await world.ask(method, path, body)
        assert answer.status == 400, (answer.status, answer.data[:200])
        assert answer.reason and len(answer.reason) < 200

    tell(story)
