"""What tools of other people rely on beyond the paths: what they send that means nothing here, and how they read answers."""

import gzip
import json
from zlib import crc32

import pytest
from aiohttp import ClientSession

from magnetar.admin.http.answers import Answers
from magnetar.admin.http.zipped import ZIP_BYTES_MIN, wants_gzip
from tests.web.conftest import UNWRITABLE, Tell, World

A = "/admin/v2"
N = f"{A}/namespaces/public/default"
FULL = "persistent://public/default"
WHOLE = "0x00000000_0xffffffff"


def test_permissions_for_what_is_not_built_are_kept_and_shown(tell: Tell) -> None:
    every = ["consume", "functions", "packages", "produce", "sinks", "sources"]

    async def story(world: World) -> None:
        for place in (f"{N}/permissions", f"{A}/persistent/public/default/t/permissions"):
            await world.have(("POST", f"{place}/app", '["produce","consume","functions","sources","sinks","packages"]'))
            assert (await world.ask("GET", place)).json == {"app": every}
        shown = (await world.ask("GET", N)).json["auth_policies"]
        assert shown["namespace_auth"] == {"app": every}
        body = json.dumps({"auth_policies": shown | {"destination_auth": {}}})
        await world.have(("PUT", f"{A}/namespaces/public/same", body))
        assert (await world.ask("GET", f"{A}/namespaces/public/same/permissions")).json == {"app": every}

    tell(story)


def test_a_cluster_may_name_peers_that_are_not_known_yet(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/clusters/one", '{"serviceUrl": "http://h:1", "peerClusterNames": ["", "two"]}'))
        assert (await world.ask("GET", f"{A}/clusters/one/peers")).json == ["two"]
        assert (await world.ask("GET", f"{A}/clusters/one")).json["peerClusterNames"] == ["two"]
        refused = await world.ask("POST", f"{A}/clusters/one/peers", '["three"]')
        assert (refused.status, refused.reason) == (412, "Peer cluster three does not exist")
        for none in (None, "null", "[]", '[""]'):
            await world.have(
                ("POST", f"{A}/clusters/one/peers", '["us-east"]'), ("POST", f"{A}/clusters/one/peers", none)
            )
            assert (await world.ask("GET", f"{A}/clusters/one/peers")).json == []

    tell(story)


def test_a_namespace_is_one_bundle_wherever_tools_ask(tell: Tell) -> None:
    async def story(world: World) -> None:
        bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
        assert (await world.ask("GET", N)).json["bundles"] == bundles
        assert (await world.ask("GET", f"{N}/bundles")).json == bundles
        world.create(f"{FULL}/t", b"1", subscriptions=["s", "other"])
        calls = world.watch(world.control.subscriptions, "skip_all")
        for path in ("clearBacklog", "clearBacklog/s", "unsubscribe/s"):
            calls.clear()
            await world.have(("POST", f"{N}/{WHOLE}/{path}", None))
            of_bundle = list(calls)
            calls.clear()
            if path != "unsubscribe/s":
                await world.have(("POST", f"{N}/{path}", None))
                assert of_bundle == calls and of_bundle
        assert world.control.subscriptions.names(f"{FULL}/t") == ["other"]
        positions = (await world.ask("GET", f"{N}/{WHOLE}/topicHashPositions?topics={FULL}/t,{FULL}/none")).json
        assert positions == {
            "namespace": "public/default",
            "bundle": WHOLE,
            "topicHashPositions": {f"{FULL}/t": crc32(f"{FULL}/t".encode())},
        }

    tell(story)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("GZIP ; q=0.1", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, deflate", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        (";;,,q=", False),
    ],
)
def test_what_accept_encoding_says_of_gzip(header: str, wanted: bool) -> None:
    assert wants_gzip(header) is wanted


def test_metrics_are_compressed_for_who_takes_them_so(tell: Tell) -> None:
    async def story(world: World) -> None:
        async with ClientSession(auto_decompress=False) as session:
            plain, packed = [
                await session.get(f"{world.url}/metrics{slash}", headers={"Accept-Encoding": accepted})
                for slash, accepted in (("/", "identity"), ("", "gzip"))
            ]
            text, data = await plain.read(), await packed.read()
        assert "Content-Encoding" not in plain.headers and packed.headers["Content-Encoding"] == "gzip"
        assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"
        assert plain.headers["Content-Type"] == packed.headers["Content-Type"]
        unpacked = gzip.decompress(data)
        assert len(unpacked) > ZIP_BYTES_MIN and len(data) < len(unpacked) // 4

        def names(page: bytes) -> list[bytes]:
            return [line.partition(b" ")[0] for line in page.splitlines() if not line.startswith(b"#")]

        assert names(unpacked) == names(text)

    tell(story)


def test_the_page_for_load_balancers_tells_whether_it_serves(tell: Tell) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("GET", "/status.html")
        assert (answer.status, answer.data) == (200, b"OK")
        world.break_log()
        answer = await world.ask("GET", "/status.html")
        assert (answer.status, answer.reason) == (503, UNWRITABLE)

    tell(story)


def test_a_group_of_anti_affinity_is_read_as_it_was_sent(tell: Tell) -> None:
    """Java's tools send bare text, Go's JSON; it means nothing here, and every namespace of Terraform's provider has one."""

    async def story(world: World) -> None:
        await world.have(("PUT", f"{A}/namespaces/public/other", '{"antiAffinityGroup": "g"}'))
        for sent in ("g", '"g"'):
            await world.have(("POST", f"{N}/antiAffinity", sent))
            assert (await world.ask("GET", f"{N}/antiAffinity")).data == sent.encode()
            assert (await world.ask("GET", N)).json["antiAffinityGroup"] == sent
            found = await world.ask("GET", f"{A}/namespaces/us-west/antiAffinity/g?tenant=public")
            assert found.json == ["public/default", "public/other"]
        assert (await world.ask("GET", f"{A}/namespaces/us-west/antiAffinity/g?tenant=acme")).json == []
        for none in ("", '""', "null"):
            await world.have(("POST", f"{N}/antiAffinity", "g"), ("POST", f"{N}/antiAffinity", none))
            answer = await world.ask("GET", f"{N}/antiAffinity")
            assert (answer.status, answer.data) == (204, b"")

    tell(story)


def test_asking_by_http_makes_a_partitioned_topic_where_the_policy_says_so(tell: Tell) -> None:
    """Clients that look topics up by HTTP ask so before they open one."""
    topic = f"{A}/persistent/public/default/t/partitions"

    async def story(world: World) -> None:
        policy = '{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 3}'
        await world.have(("POST", f"{N}/autoTopicCreation", policy))
        assert (await world.ask("GET", topic)).status == 404
        assert (await world.ask("GET", f"{topic}?checkAllowAutoCreation=true")).json["partitions"] == 3
        assert (await world.ask("GET", topic)).json["partitions"] == 3
        assert f"{FULL}/t-partition-2" in world.topics()
        await world.have(("DELETE", f"{N}/autoTopicCreation", None))
        other = topic.replace("/t/", "/other/")
        assert (await world.ask("GET", f"{other}?checkAllowAutoCreation=true")).json["partitions"] == 0
        assert f"{FULL}/other" not in world.topics()

    tell(story)


def test_go_tools_switch_automatic_creation_off_with_an_empty_type(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("POST", f"{N}/autoTopicCreation", '{"allowAutoTopicCreation": false, "topicType": ""}'))
        answer = await world.ask("GET", f"{N}/autoTopicCreation")
        assert (answer.json["allowAutoTopicCreation"], answer.json["topicType"]) == (False, None)

    tell(story)


def test_statistics_of_the_broker_are_as_pulsar_manager_reads_them(tell: Tell) -> None:
    async def story(world: World) -> None:
        lost = "non-persistent://public/default/n"
        world.create(f"{FULL}/t", *(b"%d" % number for number in range(2 * 60)), subscriptions=["s"])
        world.consume(f"{FULL}/t", "s", kind=1, count=2)
        world.produce(f"{FULL}/t", 3)
        world.create(lost)
        world.advance_to(world.now_ms + 60_000)  # after so long a broker has counted rates
        found = (await world.ask("GET", f"{A}/broker-stats/topics")).json
        assert found == (await world.ask("GET", f"{A}/broker-stats/destinations")).json
        assert list(found) == ["public/default"] and list(found["public/default"]) == [WHOLE]
        domains = found["public/default"][WHOLE]
        assert {domain: list(topics) for domain, topics in domains.items()} == {
            "persistent": [f"{FULL}/t"],
            "non-persistent": [lost],
        }
        topic = domains["persistent"][f"{FULL}/t"]
        assert (topic["producerCount"], topic["msgInCount"], topic["msgRateIn"]) == (3, 120, 2.0)
        assert len(topic["subscriptions"]["s"]["consumers"]) == 2
        whole, metrics = (await world.ask("GET", f"{A}/broker-stats/metrics")).json
        assert whole["dimensions"] == {"cluster": "us-west"}
        assert whole["metrics"]["brk_ml_count"] == 2
        assert metrics["dimensions"] == {"cluster": "us-west", "namespace": "public/default"}
        told = {
            key: metrics["metrics"][f"brk_{key}"]
            for key in ("in_rate", "no_of_topics", "no_of_consumers", "msg_backlog")
        }
        assert told == {"in_rate": 2.0, "no_of_topics": 2, "no_of_consumers": 2, "msg_backlog": 120}
        report = (await world.ask("GET", f"{A}/broker-stats/load-report")).json
        assert report["loadReportType"] == "LocalBrokerData"
        assert report["msgRateIn"] == 2.0 and report["numTopics"] == 2
        for resource in ("cpu", "memory", "bandwidthIn", "bandwidthOut", "directMemory"):
            assert set(report[resource]) == {"usage", "limit"}
        assert report["memory"]["limit"] >= report["memory"]["usage"] > 0
        assert report["bundles"] == [f"public/default/{WHOLE}"] == list(report["bundleStats"])

    tell(story)


def test_functions_and_io_are_asked_for_before_they_are_made(tell: Tell) -> None:
    async def story(world: World) -> None:
        for kind, word in (
            ("functions", "Function"),
            ("sources", "Source"),
            ("sinks", "Sink"),
            ("source", "Source"),
            ("sink", "Sink"),
        ):
            path = f"/admin/v3/{kind}/public/default"
            assert (await world.ask("GET", path)).json == []
            for method in ("GET", "DELETE"):
                answer = await world.ask(method, f"{path}/f")
                assert (answer.status, answer.reason) == (404, f"{word} f doesn't exist")
            assert (await world.ask("POST", f"{path}/f", "{}")).status == 501

    tell(story)


def test_statistics_of_all_topics_have_a_limit(tell: Tell) -> None:
    async def story(world: World) -> None:
        for number in range(20):
            world.create(f"{FULL}/t{number}")
        for part in ("topics", "destinations"):
            answer = await world.ask("GET", f"{A}/broker-stats/{part}")
            assert answer.status == 412 and "http_answer_bytes_max" in answer.reason

    tell(story, answers=Answers(answer_bytes_max=5_000))
