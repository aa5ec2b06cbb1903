"""One shape for every error, whatever goes wrong, and nothing of the inside in it."""

import asyncio
import re

import pytest

from magnetar.admin.http import call as call_module
from magnetar.admin.http.replies import STATUS_OF_CODE
from magnetar.admin.http.server import ROUTES
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.errors import BrokerError, ErrorCode
from tests.support.path_values import PATH_VALUES
from tests.web.conftest import INFO, UNWRITABLE, Tell, World, planted_bug

A = "/admin/v2"
P = f"{A}/persistent/public/default"


def _filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: PATH_VALUES[match[1]], path)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_refuses_in_one_shape(tell: Tell, route: object) -> None:
    """Each route meets a wrong body, a wrong method and another site's page; every answer has the shape."""
    found = next(one for one in ROUTES if one is route)

    async def story(world: World) -> None:
        path = _filled(found.path)
        wrong_method = await world.ask("PATCH", path)
        assert wrong_method.status == 405 and found.method in wrong_method.headers["Allow"]
        assert wrong_method.reason
        if found.changes:
            stranger = await world.ask(found.method, path, headers={"Origin": "http://evil.example"})
            assert stranger.status == 403 and stranger.reason
        if found.body is not None:
            for body in ("{", "[[[", "\x00", '{"a": ' * 3000, "nope", b"\xff\xfe"):
                answer = await world.ask(found.method, path, body)
                assert 400 <= answer.status < 500, (body[:20], answer.status)
                assert answer.reason

    tell(story)


def test_a_bug_is_500_in_one_line_and_in_the_log(tell: Tell, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        with planted_bug(world):
            answer = await world.ask("GET", f"{P}/t/stats")
        assert answer.status == 500
        assert "planted" not in answer.reason and "Traceback" not in answer.reason

    tell(story)
    assert "planted" in caplog.text and "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("code", list(ErrorCode))
def test_broker_errors_have_statuses(tell: Tell, code: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_subscription: Subscription) -> None:
        raise BrokerError(code, "why\nit\tfailed \x1b[31m")

    monkeypatch.setattr(Subscription, "skip_all", refuse)

    async def story(world: World) -> None:
        world.create("persistent://public/default/t", subscriptions=["s"])
        answer = await world.ask("POST", f"{P}/t/subscription/s/skip_all")
        assert answer.status == STATUS_OF_CODE.get(code, 500)
        assert answer.reason == "why it failed [31m"

    tell(story)


def test_a_store_that_fails_changes_nothing(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.node.store_error = "the disk is full"
        answer = await world.ask("POST", f"{A}/namespaces/public/default/replication", '["us-west"]')
        assert (answer.status, answer.reason) == (500, "the metadata store refused: the disk is full")
        world.node.store_error = ""
        clusters = await world.ask("GET", f"{A}/namespaces/public/default/replication")
        assert clusters.json == ["eu-central", "us-east", "us-west"]
        await world.have(("POST", f"{A}/namespaces/public/default/replication", '["us-west"]'))

    tell(story)


def test_a_disk_that_hangs_is_told(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "CHANGE_TIMEOUT_S", 0.01)

    async def story(world: World) -> None:
        world.node.hold_stores = True
        answer = await world.ask("PUT", f"{P}/new")
        assert answer.status == 504 and "may still happen" in answer.reason
        world.node.hold_stores = False
        world.work()
        assert (await world.ask("GET", f"{P}/new/stats")).status == 200, "it did, and whom it was for is gone"

    tell(story)


def test_not_ready_is_503_with_the_reason(tell: Tell) -> None:
    async def story(world: World) -> None:
        world.break_log()
        for name in ("health", "ready"):
            answer = await world.ask("GET", f"{A}/brokers/{name}")
            assert (answer.status, answer.reason) == (503, UNWRITABLE)

    tell(story)


def test_what_does_not_exist(tell: Tell) -> None:
    async def story(world: World) -> None:
        for path in (
            f"{A}/functions/public/default",
            f"{A}/namespaces/public/default/scanOffloadedLedgers",
            "/admin/v3/transactions/coordinators",
            "/admin",
            "/lookup/v2/namespace/public/default",
        ):
            answer = await world.ask("GET", path)
            assert answer.status == 501 and answer.reason, path
        for path in ("/nothing", "/administrator", "/geo/v1", "/geo/v2/links", "/favicon.ico", "//", "/../etc/passwd"):
            answer = await world.ask("GET", path)
            assert answer.status == 404 and answer.reason, path

    tell(story)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("functions/public/default", "Functions"),
        ("namespaces/public/default/scanOffloadedLedgers", "tiered"),
        ("loadbalance/x", "one broker"),
        ("something/of/a/later/version", "/openapi.json"),
    ],
)
def test_known_paths_of_pulsar_that_are_not_built_say_why(tell: Tell, path: str, why: str) -> None:
    async def story(world: World) -> None:
        for method in ("GET", "POST"):
            answer = await world.ask(method, f"{A}/{path}")
            assert answer.status == 501 and why in answer.reason, answer.reason

    tell(story)


def test_topics_beyond_the_brokers_limit_are_412(tell: Tell) -> None:
    """As those beyond a namespace's; a client is refused with NotAllowed, which would be 405."""

    async def story(world: World) -> None:
        await world.have(("PUT", f"{P}/t", None), ("PUT", f"{P}/parts/partitions", "1"))
        for method, path, body in (
            ("PUT", f"{P}/new", None),
            ("PUT", f"{A}/non-persistent/public/default/new", None),
            ("PUT", f"{P}/new/partitions", "2"),
            ("POST", f"{P}/parts/partitions", "2"),
            ("POST", "/geo/v1/persistent/public/default/t/adoptPartitions", "2"),
        ):
            answer = await world.ask(method, path, body)
            assert (answer.status, answer.reason) == (412, "more than 2 topics (topics_max)"), path
        await world.have(("PUT", f"{A}/non-persistent/public/default/new/partitions", "2"))

    tell(story, limits={"topics_max": 2})


def test_a_body_over_the_limit(tell: Tell) -> None:
    async def story(world: World) -> None:
        body = '{"a": "' + "x" * 2000 + '"}'
        answer = await world.ask("PUT", f"{P}/new", body)
        assert answer.status == 413 and "1000 bytes" in answer.reason
        assert (await world.ask("PUT", f"{P}/new", '{"a": "b"}')).status == 204

    tell(story, body_bytes_max=1000)


def test_concurrent_changes_of_one_namespace_all_last(tell: Tell) -> None:
    """Each is validated against what the one before left, none writes over another."""

    async def story(world: World) -> None:
        namespace = f"{A}/namespaces/public/default"
        answers = await asyncio.gather(
            world.ask("POST", f"{namespace}/messageTTL", "60"),
            world.ask("POST", f"{namespace}/replication", '["us-west", "us-east"]'),
            world.ask("POST", f"{namespace}/retention", '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}'),
        )
        assert [answer.status for answer in answers] == [204, 204, 204]
        policies = (await world.ask("GET", namespace)).json
        assert policies["message_ttl_in_seconds"] == 60
        assert policies["replication_clusters"] == ["us-east", "us-west"]
        assert policies["retention_policies"] == {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}

    tell(story)


# ----------------------------------------------------------------------------------------------- other sites' pages


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Origin": "http://{here}"}, 204),
        ({"Origin": "http://{here}", "Sec-Fetch-Site": "same-origin"}, 204),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "[broken"}, 403),
    ],
)
def test_changes_from_other_sites_are_refused(tell: Tell, headers: dict[str, str], status: int) -> None:
    async def story(world: World) -> None:
        sent = {name: value.replace("{here}", world.url.removeprefix("http://")) for name, value in headers.items()}
        answer = await world.ask("PUT", f"{P}/new", headers=sent)
        assert answer.status == status
        assert ("persistent://public/default/new" in world.topics()) == (status == 204)

    tell(story)


def test_reading_under_a_strange_name_is_refused_on_loopback_only(tell: Tell) -> None:
    async def loopback(world: World) -> None:
        assert (await world.ask("GET", f"{A}/clusters", headers={"Host": "evil.example"})).status == 403
        assert (await world.ask("GET", f"{A}/clusters", headers={"Host": "localhost:1"})).status == 200
        assert (await world.ask("GET", f"{A}/clusters", headers={"Host": "[::1]:1"})).status == 200

    async def exposed(world: World) -> None:
        assert (await world.ask("GET", f"{A}/clusters", headers={"Host": "broker.example"})).status == 200

    tell(loopback)
    tell(exposed, info=INFO._replace(web_url="http://broker.example:8080"))
    tell(exposed, info=INFO._replace(web_url_tls="https://broker.example:8443"))


def test_answers_are_not_cached_framed_or_sniffed(tell: Tell) -> None:
    async def story(world: World) -> None:
        for path in ("/", f"{A}/clusters", "/nothing", "/metrics"):
            headers = (await world.ask("GET", path)).headers
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"

    tell(story)
