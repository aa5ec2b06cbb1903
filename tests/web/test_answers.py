"""What the answers hold."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from magnetar.admin.http.reference import markdown, openapi
from magnetar.admin.http.server import GROUPS, ROUTES
from magnetar.admin.metrics.page import TOPICS_PER_TURN
from magnetar.admin.routes import page as page_module
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import NamespaceName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
from tests.web.conftest import INFO, LEDGER, UNWRITABLE, Tell, World, described

A = "/admin/v2"
P = f"{A}/persistent/public/default"
FULL = "persistent://public/default"
THIRD = Position(LEDGER, 3)
RATES_MS = 60_000
"""After so long a broker has counted rates."""


def with_batches(world: World, *subscriptions: str) -> None:
    """A topic with entries 0 to 4 of four messages each."""
    world.create(f"{FULL}/t", subscriptions=subscriptions)
    world.node.publish(*(b"%d" % number for number in range(5)), batch=4, topic=f"{FULL}/t")


def test_topics_are_listed_by_domain_and_without_the_brokers_own(tell: Tell) -> None:
    async def story(world: World) -> None:
        for name in (f"{FULL}/b", f"{FULL}/a", f"{FULL}/__own", "non-persistent://public/default/n"):
            world.create(name)
        await world.have(("PUT", f"{P}/p/partitions", "2"))
        parts = [f"{FULL}/p-partition-0", f"{FULL}/p-partition-1"]
        assert (await world.ask("GET", P)).json == [f"{FULL}/a", f"{FULL}/b", *parts]
        assert f"{FULL}/__own" in (await world.ask("GET", f"{P}?includeSystemTopic=true")).json
        assert (await world.ask("GET", f"{P}/partitioned")).json == [f"{FULL}/p"]
        every = f"{A}/namespaces/public/default/topics"
        assert (await world.ask("GET", f"{every}?mode=NON_PERSISTENT")).json == ["non-persistent://public/default/n"]
        assert len((await world.ask("GET", f"{every}?mode=ALL")).json) == 5
        assert (await world.ask("GET", every)).json == [f"{FULL}/a", f"{FULL}/b", *parts]
        assert (await world.ask("GET", f"{P}/p/partitions")).json == {
            "partitions": 2,
            "deleted": False,
            "properties": {},
        }
        assert (await world.ask("GET", f"{P}/a/partitions")).json["partitions"] == 0

    tell(story)


def test_statistics_of_partitions_are_summed(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/p/partitions", "2"), ("PUT", f"{P}/p/subscription/s", None))
        for number, messages in enumerate(([b"12"], [b"123", b"1"])):
            world.node.publish(*messages, topic=f"{FULL}/p-partition-{number}")
        world.advance_to(world.now_ms + RATES_MS)
        stats = (await world.ask("GET", f"{P}/p/partitioned-stats")).json
        size = sum(
            world.control.statistics.topic(f"{FULL}/p-partition-{number}")["bytesInCounter"] for number in range(2)
        )
        assert (stats["msgInCounter"], stats["bytesInCounter"]) == (3, size)
        assert stats["averageMsgSize"] == pytest.approx(size / 3)
        assert stats["subscriptions"]["s"]["msgBacklog"] == 3
        assert stats["subscriptions"]["s"]["isDurable"] is True
        assert stats["metadata"]["partitions"] == 2
        assert sorted(stats["partitions"]) == [f"{FULL}/p-partition-0", f"{FULL}/p-partition-1"]
        short = (await world.ask("GET", f"{P}/p/partitioned-stats?perPartition=false&excludeConsumers=true")).json
        assert short["partitions"] == {}

    tell(story)


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (None, LATEST),
        ('{"ledgerId": -1, "entryId": -1, "partitionIndex": -1}', Position(-1, -1)),
        (f'{{"ledgerId": {LEDGER}, "entryId": 3, "partitionIndex": -1, "batchIndex": 0}}', THIRD),
        (json.dumps({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}), LATEST),
    ],
)
def test_a_subscription_begins_where_the_body_says(tell: Tell, body: str | None, position: Position) -> None:
    async def story(world: World) -> None:
        with_batches(world)
        calls = world.watch(world.control.subscriptions, "create")
        await world.have(("PUT", f"{P}/t/subscription/a%2Fb%20c?replicated=true", body))
        assert [call[:5] for call in calls] == [(f"{FULL}/t", "a/b c", position, True, {})]

    tell(story)


def test_a_subscription_brings_its_topic_where_clients_may(tell: Tell) -> None:
    async def kind(world: World) -> None:
        await world.have(("PUT", f"{P}/new/subscription/s", '{"ledgerId": -1, "entryId": -1}'))
        assert world.topics() == [f"{FULL}/new"]
        assert world.control.subscriptions.names(f"{FULL}/new") == ["s"]
        await asyncio.gather(*(world.have(("PUT", f"{P}/both/subscription/{name}", None)) for name in "ab"))
        assert world.control.subscriptions.names(f"{FULL}/both") == ["a", "b"]
        world.delete(f"{FULL}/both")
        for refused in (f"{P}/a-partition-0/subscription/s", f"{A}/persistent/public/none/new/subscription/s"):
            assert (await world.ask("PUT", refused)).status == 404
        wrong = json.dumps({"ledgerId": -1, "entryId": -1, "properties": {"k": "v" * 100_000}})
        assert (await world.ask("PUT", f"{P}/other/subscription/s", wrong)).status == 400
        assert world.topics() == [f"{FULL}/new"]

    async def strict(world: World) -> None:
        assert (await world.ask("PUT", f"{P}/new/subscription/s")).status == 404
        assert world.topics() == []

    tell(kind)
    tell(strict, info=INFO._replace(topic_auto_creation=False))


@pytest.mark.parametrize(
    ("more", "exclusive", "index"),
    [("", False, -1), (', "batchIndex": 2', False, 2), (', "batchIndex": null, "excluded": true', True, -1)],
)
def test_a_subscription_is_moved_into_a_batch(tell: Tell, more: str, exclusive: bool, index: int) -> None:
    async def story(world: World) -> None:
        with_batches(world, "s")
        calls = world.watch(world.control.subscriptions, "reset_cursor")
        await world.have(("POST", f"{P}/t/subscription/s/resetcursor", f'{{"ledgerId": {LEDGER}, "entryId": 3{more}}}'))
        assert calls == [(f"{FULL}/t", "s", THIRD, exclusive, index)]

    tell(story)


@pytest.mark.parametrize(
    ("body", "position", "within"),
    [
        (None, LATEST, None),
        ("null", LATEST, None),
        ('"latest"', LATEST, None),
        ('"earliest"', EARLIEST, None),
        ('{"ledgerId": 9223372036854775807, "entryId": 9223372036854775807}', LATEST, None),
        ('{"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "isExcluded": false}', EARLIEST, None),
        (f'"{THIRD}"', THIRD, None),
        (f'"{THIRD}:-1"', THIRD, None),
        (f'"{THIRD}:-1:2"', THIRD, (False, 2)),
        (f'{{"ledgerId": {LEDGER}, "entryId": 3, "batchIndex": 2, "excluded": true}}', THIRD, (True, 2)),
        (f'{{"ledgerId": "{LEDGER}", "entryId": "3", "properties": null, "unknown": [1]}}', THIRD, None),
    ],
)
def test_where_a_new_subscription_begins(
    tell: Tell, body: str | None, position: Position, within: tuple[bool, int] | None
) -> None:
    async def story(world: World) -> None:
        with_batches(world)
        calls = world.watch(world.control.subscriptions, "create")
        await world.have(("PUT", f"{P}/t/subscription/s?replicated=true", body))
        assert [call[:5] for call in calls] == [(f"{FULL}/t", "s", position, True, {})]
        exclusive, index = calls[0][5:]
        assert (exclusive, max(0, index)) == (within or (False, 0))

    tell(story)


@pytest.mark.parametrize(
    "text", ["", "Latest!", "7", "7:", "7:3:", "7:x", "99999999999999999999:1", "9223372036854775808:0"]
)
def test_a_text_that_is_no_place(tell: Tell, text: str) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/t", None), ("PUT", f"{P}/t/subscription/s", None))
        for method, path in (("PUT", "new"), ("POST", "s/resetcursor"), ("POST", "s/expireMessages")):
            answer = await world.ask(method, f"{P}/t/subscription/{path}", json.dumps(text))
            assert answer.status == 400
            assert "write latest, earliest or ledger:entry" in answer.reason

    tell(story)


def test_a_text_names_a_place_in_every_request(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/many/partitions", "2"))
        made = world.watch(world.control.subscriptions, "create")
        moved = world.watch(world.control.subscriptions, "reset_cursor")
        await world.have(("PUT", f"{P}/many/subscription/s", '"earliest"'))
        assert [call[:3] for call in made] == [(f"{FULL}/many-partition-{n}", "s", EARLIEST) for n in (0, 1)]
        await world.have(("POST", f"{P}/many/subscription/s/resetcursor", '"latest"'))
        assert moved[-1] == (f"{FULL}/many-partition-1", "s", LATEST, False, -1)
        answer = await world.ask("PUT", f"{P}/many/subscription/other", '"7:3"')
        assert answer.status == 405
        await world.have(
            ("PUT", f"{P}/many/subscription/with", '{"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}')
        )
        assert made[-1][4] == {"a": "b"}

    tell(story)


@pytest.mark.parametrize("at", [f"{A}/namespaces/public/default", f"{P}/t"], ids=["namespace", "topic"])
@pytest.mark.parametrize(
    ("body", "size"),
    [
        ('{"limit": 1048576, "policy": "producer_exception"}', 1 << 20),
        ('{"limit": 1048576, "limitSize": 2097152}', 2 << 20),
        ('{"limit": 1048576, "limitSize": null}', 1 << 20),
        ('{"policy": "producer_exception"}', -1),
    ],
)
def test_a_quota_may_be_written_as_older_tools_do(tell: Tell, at: str, body: str, size: int) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/t", None), ("POST", f"{at}/backlogQuota", body))
        quota = (await world.ask("GET", f"{at}/backlogQuotaMap")).json["destination_storage"]
        policy = json.loads(body).get("policy", "producer_request_hold")
        assert quota == {"limitSize": size, "limitTime": -1, "policy": policy}

    tell(story)


def test_peek_shows_the_payload_and_its_headers(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/t", None), ("PUT", f"{P}/t/subscription/s", None))
        data = described(
            3,
            b"<script>alert(1)</script>",
            producer_name="p\r\nSet-Cookie: x",
            partition_key="schlüssel",
            replicated_from="us-east",
            num_messages_in_batch=2,
            properties={"k": "v\r\n", "ü": "1"},
        )
        position = world.store(f"{FULL}/t", data, 2)
        answer = await world.ask("GET", f"{P}/t/subscription/s/position/1")
        assert answer.status == 200
        assert answer.data == b"<script>alert(1)</script>"
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["X-Pulsar-Message-ID"] == str(position)
        assert answer.headers["X-Pulsar-producer-name"] == "p%0D%0ASet-Cookie: x"
        assert answer.headers["X-Pulsar-partition-key"] == "schl%C3%BCssel"
        assert answer.headers["X-Pulsar-replicated-from"] == "us-east"
        assert answer.headers["X-Pulsar-num-batch-message"] == "2"
        assert answer.headers["X-Pulsar-publish-time"] == "2023-11-14T22:13:20.000Z"
        assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"k": "v\r\n", "ü": "1"}
        assert "Set-Cookie" not in answer.headers

    tell(story)


def test_peek_leaves_out_headers_that_no_client_takes(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/t", None), ("PUT", f"{P}/t/subscription/s", None))
        world.store(f"{FULL}/t", described(0, b"x", properties={"k": "v" * 100_000}))
        answer = await world.ask("GET", f"{P}/t/subscription/s/position/1")
        assert answer.status == 200 and answer.headers["X-Magnetar-Left-Out"] == "X-Pulsar-PROPERTY"
        position = world.store(f"{FULL}/t", b"nonsense")
        broken = await world.ask("GET", f"{P}/t/subscription/s/position/2")
        assert broken.status == 500 and str(position) in broken.reason

    tell(story)


def test_lookup_names_this_broker_and_may_refuse_unknown_topics(tell: Tell) -> None:
    async def kind(world: World) -> None:
        answer = (await world.ask("GET", "/lookup/v2/topic/persistent/public/default/x")).json
        urls = {"brokerUrl": INFO.service_url, "nativeUrl": INFO.service_url, "brokerUrlTls": None}
        assert answer == urls | {"httpUrl": INFO.web_url}

    async def strict(world: World) -> None:
        assert (await world.ask("GET", "/lookup/v2/topic/persistent/public/default/x")).status == 404
        world.create(f"{FULL}/x")
        assert (await world.ask("GET", "/lookup/v2/topic/persistent/public/default/x")).status == 200

    tell(kind)
    tell(strict, info=INFO._replace(topic_auto_creation=False))


def test_a_pattern_is_looked_up_as_if_it_were_a_name(tell: Tell) -> None:
    """So do Java's clients, to find the broker that watches the list; by HTTP, too."""

    async def story(world: World) -> None:
        for pattern in (".*", "a-%5Cd+", "x" * 600):
            answer = await world.ask("GET", f"/lookup/v2/topic/persistent/public/default/{pattern}")
            assert (answer.status, answer.json["brokerUrl"]) == (200, INFO.service_url), pattern
        for topic in (
            "persistent/public/default/a%0A%5C",
            "non-persistent/public/default/a%5C",
            "persistent/public/de%20f/a%5C",
        ):
            assert (await world.ask("GET", f"/lookup/v2/topic/{topic}")).status == 412, topic
        assert (await world.ask("GET", "/lookup/v2/topic/persistent/public/nowhere/a%5C")).status == 404

    tell(story)


def test_a_listener_is_named_by_parameter_or_header(tell: Tell) -> None:
    path = "/lookup/v2/topic/persistent/public/default/x"
    urls = {"outside": ("pulsar://out:6650", ""), "other": ("pulsar://other:6650", "")}

    async def story(world: World) -> None:
        async def found(query: str, header: str) -> tuple[int, str | None]:
            answer = await world.ask("GET", path + query, headers={"X-Pulsar-ListenerName": header} if header else None)
            return answer.status, answer.json.get("brokerUrl")

        assert await found("", "") == (200, INFO.service_url)
        assert await found("?listenerName=outside", "") == (200, "pulsar://out:6650")
        assert await found("", "outside") == (200, "pulsar://out:6650")
        assert await found("?listenerName=other", "outside") == (200, "pulsar://other:6650")
        assert await found("", "unknown") == (404, None)

    tell(story, info=INFO._replace(listeners=urls))


def test_skip_gives_up_exactly_what_its_answer_says(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.create(f"{FULL}/t")
        world.node.publish(b"three messages", batch=3, topic=f"{FULL}/t")
        world.report("us-east", "too large", topic=f"{FULL}/t", blocked="size")
        skips = world.watch(world.control.links, "skip")
        preview = (await world.ask("POST", "/geo/v1/links/us-east/skip?preview=true")).json
        assert preview["messages"] == 3
        assert not skips
        assert (await world.ask("POST", "/geo/v1/links/us-east/skip")).json == preview
        assert skips == [("us-east", f"{FULL}/t", Position(LEDGER, 0))]
        assert (await world.ask("POST", "/geo/v1/links/us-east/skip")).status == 412, "there is nothing left"

    tell(story)


def test_the_replication_preview_tells_what_will_be_copied(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("POST", f"{A}/namespaces/public/default/replication", '["us-west"]'), ("PUT", f"{P}/t", None))
        world.node.publish(b"a", b"b", topic=f"{FULL}/t")
        stored = world.control.statistics.internal(f"{FULL}/t")["totalSize"]
        path = "/geo/v1/namespaces/public/default/replicationPreview?clusters=us-west,us-east"
        expected = {"added": ["us-east"], "removed": [], "topics": 1, "entries": 2, "bytes": stored}
        assert (await world.ask("GET", path)).json == expected
        await world.have(("POST", "/geo/v1/namespaces/public/default/replicationStart", '"latest"'))
        assert (await world.ask("GET", path)).json == expected | {"entries": 0, "bytes": 0}

    tell(story)


# -------------------------------------------------------------------------------------------------- page and metrics


HOSTILE = '<img src=x onerror=alert(1)>"&'


def test_the_page_escapes_names_and_loads_nothing(tell: Tell) -> None:
    async def story(world: World) -> None:
        topic = f"{FULL}/{HOSTILE}"
        world.create(topic, b"x")
        world.consume(topic, HOSTILE)
        world.report("us-east", HOSTILE, trouble="down", topic=topic, blocked="size")
        answer = await world.ask("GET", "/")
        text = answer.data.decode()
        assert "<img" not in text and "&lt;img src=x onerror=alert(1)&gt;&quot;&amp;" in text
        assert "<script" not in text and "http://127.0.0.1:8080" not in text.replace("pulsar://", "")
        assert "src=" not in text.replace("img src=x", "") and "@import" not in text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        for shown in ("us-east", "down", "Stopped topics", "90 s"):
            assert shown in text
        world.break_log()
        assert UNWRITABLE in (await world.ask("GET", "/")).data.decode()

    tell(story)


def test_the_page_is_short_however_many_topics_there_are(tell: Tell) -> None:
    async def story(world: World) -> None:
        for number in range(page_module.PAGE_ROWS_MAX + 50):
            world.create(f"{FULL}/t{number:04}")
        text = (await world.ask("GET", "/")).data.decode()
        assert "50 more" in text and text.count("<tr><td>") <= page_module.PAGE_ROWS_MAX + 5

    tell(story)


def test_a_scrape_gives_way_to_the_logs_thread_again_and_again(tell: Tell) -> None:
    given: list[None] = []

    async def story(world: World) -> None:
        counts = []
        for numbers in (range(20), range(20, 200)):
            for number in numbers:
                world.create(f"{FULL}/t{number}", b"12345")
            given.clear()
            await world.ask("GET", "/metrics")
            counts.append(len(given))
        assert counts[0] > 0 and counts[1] >= counts[0] + 180 // TOPICS_PER_TURN

    tell(story, give_way=lambda: given.append(None))


def test_metrics_are_bounded_and_their_sums_right(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.metrics.page.METRIC_TOPICS_MAX", 3)
    monkeypatch.setattr("magnetar.admin.metrics.page.METRIC_SUBSCRIPTIONS_MAX", 2)

    async def story(world: World) -> None:
        for number in range(10):
            world.create(f'{FULL}/t"{number}', b"12345", subscriptions=["s"])
            world.consume(f'{FULL}/t"{number}', "s", kind=1, count=2)
        size = world.control.statistics.topic(f'{FULL}/t"0')["bytesInCounter"]
        world.advance_to(world.now_ms + 1_500)
        world.report("us-east", "too large", topic=f'{FULL}/t"0', blocked="size")
        counters = {"markers_written": 4, "exact_subscriptions": 3, "exact_waiting": 1}
        told = {"mode": "exact", "counters": counters}
        monkeypatch.setattr(world.control.replicated, "metrics", lambda: told)
        answer = await world.ask("GET", "/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain")
        from prometheus_client.parser import text_string_to_metric_families

        families = {family.name: family for family in text_string_to_metric_families(answer.data.decode())}
        published = families["pulsar_in_bytes"].samples
        assert len(published) == 4 and sum(sample.value for sample in published) == 10 * size
        assert {sample.labels["cluster"] for sample in published} == {"us-west"}
        assert [s.value for s in published if s.labels["topic"] == "(other)"] == [7 * size]
        assert len(families["pulsar_subscription_back_log"].samples) == 3
        assert families["magnetar_metrics_topics_left_out"].samples[0].value == 7
        assert families["magnetar_link_lag_seconds"].samples[0].value == 1.5
        assert families["magnetar_link_blocked_topics"].samples[0].labels["reason"] == "size"
        (events,) = families["magnetar_replicated_subscriptions_events"].samples
        assert families["magnetar_replicated_subscriptions_events"].type == "counter"
        assert events.name == "magnetar_replicated_subscriptions_events_total"
        assert (events.labels["event"], events.value) == ("markers_written", 4)
        for name, value in (("", 3), ("_waiting", 1)):
            family = families[f"magnetar_replicated_subscriptions{name}"]
            assert (family.type, [sample.value for sample in family.samples]) == ("gauge", [value])
        samples = [s for s in families["magnetar_link_state"].samples if s.labels["remote_cluster"] == "us-east"]
        states = {s.labels["state"]: s.value for s in samples}
        assert states == {"up": 1, "down": 0, "paused": 0, "blocked": 0, "idle": 0}

    tell(story)


def test_counters_never_fall(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.metrics.page.METRIC_TOPICS_MAX", 3)
    monkeypatch.setattr("magnetar.admin.metrics.page.METRIC_SUBSCRIPTIONS_MAX", 2)

    async def story(world: World) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        before: dict[str, float] = {}

        async def scrape() -> dict[str, float]:
            """Counters by series; the (other) ones alone of topics that were deleted may not be less than before."""
            text = (await world.ask("GET", "/metrics")).data.decode()
            found = {
                f"{sample.name} {sorted(sample.labels.items())}": sample.value
                for family in text_string_to_metric_families(text)
                if family.type == "counter"
                for sample in family.samples
                if "topic" in sample.labels
            }
            assert [name for name, value in before.items() if found.get(name, value) < value] == []
            before.clear()
            before.update(found)
            return found

        for number in range(5, 15):
            world.create(f"{FULL}/t{number:02}", b"12345", subscriptions=["s"])
        await scrape()
        world.create(f"{FULL}/t00", b"1")  # before all others by name
        await scrape()
        for number in (14, 0, 5, 6, 7, 8):  # without a row, and with one
            world.delete(f"{FULL}/t{number:02}")
            found = await scrape()
            assert f"{FULL}/t{number:02}" not in str(found)
        for topic in world.topics():
            world.node.publish(b"67890", topic=topic)
        found = await scrape()
        own = sum(
            value for name, value in found.items() if name.startswith("pulsar_in_messages") and "(other)" not in name
        )
        assert own == 3, "a row that is given later begins at zero"

    tell(story)


def test_a_topic_deleted_during_a_scrape_does_no_harm(tell: Tell) -> None:
    async def story(world: World) -> None:
        for number in range(100):
            world.create(f"{FULL}/t{number}")

        async def delete() -> None:
            for number in range(100):
                world.delete(f"{FULL}/t{99 - number}")
                await asyncio.sleep(0)

        answer, _ = await asyncio.gather(world.ask("GET", "/metrics"), delete())
        assert answer.status == 200

    tell(story)


# ------------------------------------------------------------------------------------------------------ descriptions


def test_openapi_describes_every_route() -> None:
    described = openapi(GROUPS, "0.1.0")
    assert {(path, method.upper()) for path, item in described["paths"].items() for method in item} == {
        (route.path, route.method) for route in ROUTES
    }
    assert "ClusterData" in described["components"]["schemas"]
    text = json.dumps(described)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in described["components"]["schemas"]
    names = [operation["operationId"] for item in described["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
    assert page.read_text(encoding="utf-8") == markdown(GROUPS), "run: python tools/generate_rest_reference.py"


def test_no_two_routes_are_the_same() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("fails", [False, True])
def test_a_change_waits_for_somebody_elses_of_the_same_and_is_validated_against_it(
    tell: Tell, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Synchronisation stores an event while an administrator changes the same namespace: no 409, and neither is lost."""
    path, namespace = "/admin/v2/namespaces/public/default", NamespaceName("public", "default")

    async def story(world: World) -> None:
        other = world.resources.change_policies(namespace, max_consumers_per_topic=7)
        world.resources.begin(other)
        begin, refused = world.resources.begin, asyncio.Event()

        def watched(change: Change) -> None:
            try:
                begin(change)
            except InFlight:
                refused.set()
                raise

        monkeypatch.setattr(world.resources, "begin", watched)
        asked = asyncio.create_task(world.ask("POST", f"{path}/messageTTL", "60"))
        await refused.wait()
        assert not asked.done()
        (world.resources.abort if fails else world.resources.apply)(other)
        assert (await asked).status == 204
        policies = (await world.ask("GET", path)).json
        assert policies["message_ttl_in_seconds"] == 60
        assert policies.get("max_consumers_per_topic") == (None if fails else 7)

    tell(story)


def test_a_change_that_never_ends_is_said_so(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.http.call.BUSY_TIMEOUT_S", 0.01)

    async def story(world: World) -> None:
        world.resources.begin(
            world.resources.change_policies(NamespaceName("public", "default"), message_ttl_in_seconds=1)
        )
        answer = await world.ask("POST", "/admin/v2/namespaces/public/default/messageTTL", "60")
        assert answer.status == 409
        assert answer.reason == "namespaces/public/default is being changed by another request; try again"

    tell(story)


def test_subscriptions_of_the_partitions_that_are_there(tell: Tell) -> None:
    """One may be lost; those that store nothing come with their first client."""

    async def story(world: World) -> None:
        for domain in ("persistent", "non-persistent"):
            base = f"{A}/{domain}/public/default"
            await world.have(("PUT", f"{base}/gap/partitions", "3"))
            named = f"{domain}://public/default/gap-partition-"
            if domain == "persistent":
                world.delete(named + "1")
            world.consume(named + "2", "s")
            assert (await world.ask("GET", f"{base}/gap/subscriptions")).json == ["s"]
            assert (await world.ask("DELETE", f"{base}/gap/subscription/none")).status == 404
            assert (await world.ask("DELETE", f"{base}/gap/subscription/s?force=true")).status == 204
            assert (await world.ask("GET", f"{base}/gap/subscriptions")).json == []
            assert (await world.ask("GET", f"{base}/gap-partition-1/subscriptions")).status == 404

    tell(story)


def test_two_who_change_a_tenant_both_succeed(tell: Tell) -> None:
    async def story(world: World) -> None:
        there, own = f"{A}/tenants/acme", "/geo/v1/tenants/acme"
        await world.have(("PUT", there, '{"allowedClusters": ["us-west"], "adminRoles": ["one"]}'))
        bodies = ['{"adminRoles": ["two"]}', '{"allowedClusters": ["us-west", "us-east"]}']
        answers = await asyncio.gather(*(world.ask("POST", own, body) for body in bodies))
        assert [answer.status for answer in answers] == [204, 204]
        changed = {"adminRoles": ["two"], "allowedClusters": ["us-east", "us-west"]}
        assert (await world.ask("GET", there)).json == changed
        await world.have(("POST", own, "{}"))
        assert (await world.ask("GET", there)).json == changed
        await world.have(("POST", own, '{"adminRoles": []}'))
        assert (await world.ask("GET", there)).json == changed | {"adminRoles": []}

    tell(story)


def test_the_last_message_of_a_batch_has_its_index(tell: Tell) -> None:
    async def story(world: World) -> None:
        for topic, batches, index in (("t", (1, 3), {"batchIndex": 2}), ("u", (3, 1), {})):
            world.create(f"{FULL}/{topic}")
            for batch in batches:
                (last,) = world.node.publish(b"x", batch=batch, topic=f"{FULL}/{topic}")
            shown = (await world.ask("GET", f"{P}/{topic}/lastMessageId")).json
            assert shown == {"ledgerId": last.ledger, "entryId": 1, "partitionIndex": -1} | index

    tell(story)


def test_whether_a_topic_is_deduplicated_that_says_nothing_of_its_own(tell: Tell) -> None:
    async def story(world: World) -> None:
        own, shared = f"{P}/t/deduplicationEnabled", f"{A}/namespaces/public/default/deduplication"
        await world.have(("PUT", f"{P}/t", None))

        async def told() -> tuple[int, object]:
            return (await world.ask("GET", own)).status, (await world.ask("GET", f"{own}?applied=true")).json

        assert await told() == (204, False)
        await world.have(("POST", shared, "true"))
        assert await told() == (204, True)
        await world.have(("POST", own, "false"))
        assert await told() == (200, False)

    tell(story)
