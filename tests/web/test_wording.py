"""Refusals in the words that Pulsar's tools look for, each met by a request; and in ours for who asks for them."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from magnetar.admin.client import OWN_WORDS, WORDS_HEADER
from magnetar.admin.http import wording
from tests.web.conftest import Tell, World
from tests.web.message_cases import FIRST
from tests.web.starts import USUAL

A = "/admin/v2"
T, C, N = f"{A}/tenants", f"{A}/clusters", f"{A}/namespaces"
P, NP = f"{A}/persistent/public/default", f"{A}/non-persistent/public/default"
FULL = "persistent://public/default"
KEPT = f"{N}/acme/kept"
NO = f"{N}/public/missing"
QUOTA = '{"limitSize": 99999999999}'
MORE = ": ..."
"""Ours follow."""

CASES: list[tuple[str, str, str | None, int, str]] = [
    # compared as a whole by pulsarctl's tests, by the operator or by Terraform's provider
    ("PUT", f"{T}/public", '{"allowedClusters": ["us-west"]}', 409, "Tenant already exist"),
    ("GET", f"{T}/nobody", None, 404, "Tenant does not exist"),
    ("POST", f"{T}/nobody", '{"allowedClusters": ["us-west"]}', 404, "Tenant does not exist"),
    ("PUT", f"{N}/nobody/new", None, 404, "Tenant does not exist"),
    ("GET", f"{N}/nobody", None, 404, "Tenant not found"),
    ("PUT", f"{C}/us-west", "{}", 409, "Cluster already exists"),
    ("GET", f"{C}/nowhere", None, 404, "Cluster does not exist"),
    ("POST", f"{C}/nowhere", "{}", 404, "Cluster does not exist"),
    ("PUT", f"{N}/public/default", None, 409, "Namespace already exists"),
    ("DELETE", NO, None, 404, "Namespace public/missing does not exist."),
    ("GET", f"{NO}/replicatorDispatchRate", None, 404, "Namespace policies does not exist"),
    ("POST", f"{NO}/replicatorDispatchRate", "{}", 404, "Namespace does not exist"),
    ("GET", f"{NO}/retention", None, 404, "Namespace does not exist"),
    ("POST", f"{NO}/antiAffinity", "g", 404, "Namespace does not exist"),
    ("POST", f"{NO}/offloadPolicies", '{"a": 1}', 404, "Namespace does not exist"),
    ("POST", f"{NO}/0x00000000_0xffffffff/clearBacklog", None, 404, "Namespace does not exist"),
    ("GET", f"{A}/persistent/public/missing", None, 404, "Namespace does not exist"),
    ("PUT", f"{A}/persistent/public/missing/t", None, 404, "Namespace does not exist"),
    ("POST", f"{N}/public/default/replication", '["invalid"]', 403, "Invalid cluster id: invalid"),
    ("POST", f"{P}/t/replication", '["invalid"]', 403, "Invalid cluster id: invalid"),
    (
        "POST",
        f"{N}/acme/ns/replication",
        '["eu-central"]',
        403,
        "Cluster [eu-central] is not in the list of allowed clusters list for tenant [acme]",
    ),
    (
        "POST",
        f"{N}/acme/narrow/replication",
        '["us-east"]',
        400,
        "Cluster [us-east] is not in the list of allowed clusters list for namespace [acme/narrow]",
    ),
    ("PUT", f"{P}/t", None, 409, "This topic already exists"),
    ("PUT", f"{P}/many", None, 409, "This topic already exists"),
    ("PUT", f"{P}/many/partitions", "3", 409, "This topic already exists"),
    ("POST", f"{P}/t/partitions", "3", 409, "Topic is not partitioned topic"),
    ("POST", f"{P}/new/partitions", "3", 409, "Topic is not partitioned topic"),
    ("DELETE", f"{P}/missing/partitions", None, 404, "Topic persistent://public/default/missing not found"),
    ("GET", f"{P}/new/stats", None, 404, f"Topic {FULL}/new not found"),
    ("GET", f"{NP}/new/stats", None, 404, "Topic non-persistent://public/default/new not found"),
    ("GET", f"{P}/new/retention", None, 404, f"Topic {FULL}/new not found"),
    ("PUT", f"{P}/new/shadowTopics", "[1]", 404, f"Topic {FULL}/new not found"),
    ("GET", f"{P}/many/stats", None, 404, f"Topic {FULL}/many not found: it is partitioned; ask its partitioned-stats"),
    ("GET", f"{P}/many/internalStats", None, 404, f"Topic {FULL}/many not found" + MORE),
    ("GET", f"{P}/new/partitioned-stats", None, 404, f"Partitioned Topic not found: {FULL}/new"),
    ("GET", f"{NP}/t/lastMessageId", None, 405, "GetLastMessageId on a non-persistent topic is not allowed"),
    ("POST", f"{NP}/t/terminate", None, 405, "Termination of a non-persistent topic is not allowed"),
    ("POST", f"{P}/many/terminate", None, 405, "Termination of a partitioned topic is not allowed"),
    ("GET", f"{NP}/t/subscription/s/position/1", None, 405, "Peek messages on a non-persistent topic is not allowed"),
    ("GET", f"{NP}/t/examinemessage", None, 405, "Examine messages on a non-persistent topic is not allowed"),
    (
        "POST",
        f"{NP}/t/subscription/s/expireMessages/5",
        None,
        405,
        "Expire messages on a non-persistent topic is not allowed",
    ),
    ("POST", f"{NP}/t/trim", None, 405, "Trim on a non-persistent topic is not allowed"),
    ("DELETE", f"{P}/t/permissions/app", None, 412, "Permissions are not set at the topic level"),
    ("POST", f"{P}/t/subscription/new/skip_all", None, 404, f"Subscription new not found for topic {FULL}/t"),
    ("PUT", f"{P}/t/subscription/s", None, 409, "Subscription already exists for topic"),
    ("POST", f"{N}/public/default/messageTTL", "-1", 412, "Invalid value for message TTL, message TTL must >= 0"),
    ("POST", f"{P}/t/messageTTL?messageTTL=-1", None, 412, "Invalid value for message TTL"),
    (
        "POST",
        f"{N}/public/default/subscriptionExpirationTime",
        "-1",
        412,
        "Invalid value for subscription expiration time",
    ),
    ("POST", f"{P}/t/maxProducers", "-1", 412, "maxProducers must be 0 or more"),
    ("POST", f"{P}/t/maxConsumers", "-1", 412, "maxConsumers must be 0 or more"),
    ("POST", f"{P}/t/maxSubscriptionsPerTopic", "-1", 412, "maxSubscriptionsPerTopic must be 0 or more"),
    ("POST", f"{P}/t/maxUnackedMessagesOnConsumer", "-1", 412, "maxUnackedNum must be 0 or more"),
    ("POST", f"{P}/t/maxUnackedMessagesOnSubscription", "-1", 412, "maxUnackedNum must be 0 or more"),
    ("POST", f"{P}/t/maxConsumersPerSubscription", "-1", 412, "Invalid value for maxConsumersPerSubscription"),
    ("POST", f"{P}/t/compactionThreshold", "-1", 412, "Invalid value for compactionThreshold"),
    *(
        ("POST", f"{N}/public/default/{name}", "-1", 412, f"{name} must be 0 or more")
        for name in (
            "maxTopicsPerNamespace",
            "maxProducersPerTopic",
            "maxConsumersPerTopic",
            "maxConsumersPerSubscription",
            "maxSubscriptionsPerTopic",
            "maxUnackedMessagesPerConsumer",
            "maxUnackedMessagesPerSubscription",
        )
    ),
    ("PUT", f"{N}/public/default/compactionThreshold", "-1", 412, "compactionThreshold must be 0 or more"),
    # begun so
    ("DELETE", f"{T}/acme", None, 409, "The tenant still has active namespaces" + MORE),
    ("PUT", f"{T}/new", "{}", 412, "Clusters can not be empty" + MORE),
    ("PUT", f"{T}/new", '{"allowedClusters": ["nowhere"]}', 412, "Clusters do not exist" + MORE),
    (
        "PUT",
        f"{T}/new",
        '{"allowedClusters": ["us-west"], "adminRoles": [" me"]}',
        412,
        "AdminRoles contains whitespace in the beginning or end" + MORE,
    ),
    ("DELETE", f"{C}/us-east", None, 412, "Cluster not empty" + MORE),
    ("DELETE", f"{N}/public/default", None, 409, "Cannot delete non empty namespace" + MORE),
    ("POST", f"{N}/public/default/replication", "[]", 412, "ClusterIds should not be null or empty" + MORE),
    ("POST", f"{P}/t/replication", "[]", 412, "ClusterIds should not be null or empty" + MORE),
    ("DELETE", f"{P}/t", None, 412, "Topic has active producers/subscriptions" + MORE),
    ("DELETE", f"{P}/t/subscription/busy", None, 412, "Subscription has active connected consumers" + MORE),
    (
        "GET",
        f"{P}/many/subscription/s/position/1",
        None,
        405,
        "Peek messages on a partitioned topic is not allowed" + MORE,
    ),
    (
        "POST",
        f"{P}/many/subscription/s/skip/1",
        None,
        405,
        "Skip messages on a partitioned topic is not allowed" + MORE,
    ),
    ("GET", f"{P}/many/examinemessage", None, 405, "Examine messages on a partitioned topic is not allowed" + MORE),
    (
        "POST",
        f"{P}/many/subscription/s/analyzeBacklog",
        None,
        405,
        "Analyze backlog on a partitioned topic is not allowed" + MORE,
    ),
    (
        "POST",
        f"{P}/many/subscription/s/resetcursor",
        FIRST,
        405,
        "Reset-cursor at position is not allowed for partitioned-topic" + MORE,
    ),
    (
        "POST",
        f"{P}/many/subscription/s/expireMessages",
        FIRST,
        405,
        "Expire message at position is not supported for partitioned-topic" + MORE,
    ),
    (
        "PUT",
        f"{P}/many/backlogSize",
        FIRST,
        405,
        "calculate backlog size is not allowed for partitioned-topic" + MORE,
    ),
    (
        "POST",
        f"{KEPT}/backlogQuota",
        QUOTA,
        412,
        "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry"
        + MORE,
    ),
    (
        "POST",
        f"{P}/kept/backlogQuota",
        QUOTA,
        412,
        "Backlog Quota exceeds configured retention quota for topic. Please increase retention quota and retry" + MORE,
    ),
    (
        "POST",
        f"{N}/acme/limited/retention",
        '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}',
        412,
        "Retention Quota must exceed configured backlog quota for namespace" + MORE,
    ),
    (
        "POST",
        f"{P}/limited/retention",
        '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}',
        412,
        "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota and retry"
        + MORE,
    ),
    (
        "POST",
        f"{P}/t/retention",
        '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 0}',
        412,
        "Invalid retention policy" + MORE,
    ),
    ("GET", f"{A}/schemas/public/default/t/schema", None, 404, "Schema not found" + MORE),
    ("GET", f"{A}/schemas/public/default/t/schema/3", None, 404, "Schema not found" + MORE),
]


@pytest.fixture(scope="module")
def still() -> Iterator[Tell]:
    """Run stories over one world: nothing but refusals."""
    meanwhile = AsyncExitStack()
    USUAL.saved()  # made in a loop of its own
    with asyncio.Runner() as runner:
        world = runner.run(USUAL.world())
        runner.run(meanwhile.enter_async_context(world.serving()))
        kept = '{"retentionTimeInMinutes": 5, "retentionSizeInMB": 9}'
        runner.run(
            world.have(
                ("PUT", f"{N}/acme/limited", None),
                ("POST", f"{N}/acme/limited/backlogQuota", QUOTA),
                ("PUT", f"{P}/limited", None),
                ("POST", f"{P}/limited/backlogQuota", QUOTA),
                ("PUT", f"{P}/kept", None),
                ("POST", f"{P}/kept/retention", kept),
            )
        )
        yield lambda story: runner.run(story(world))
        runner.run(meanwhile.aclose())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]} {case[2] or ''}")
def test_refusals_are_in_the_words_that_tools_look_for(
    still: Tell, case: tuple[str, str, str | None, int, str]
) -> None:
    method, path, body, status, words = case

    async def story(world: World) -> None:
        answer = await world.ask(method, path, body)
        assert answer.status == status, (answer.status, answer.data)
        own = await world.ask(method, path, body, headers={WORDS_HEADER: OWN_WORDS})
        assert own.status == status
        begun = words.removesuffix(MORE)
        if begun == words:
            assert answer.reason == words
            assert own.reason not in {words, ""}
        else:
            assert answer.reason.startswith(begun + ": ")
            assert begun not in own.reason

    still(story)


def test_no_row_is_dead(still: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is the first that fits one of the requests: a message that changes is missed here."""
    met: set[int] = set()
    plain = wording._COMPILED

    def seen(method: str, path: str, said: str) -> str:
        for number, (where, pattern, _words) in enumerate(plain):
            if pattern.fullmatch(said) is not None and where.search(f"{method} {path}"):
                met.add(number)
                break
        return said

    monkeypatch.setattr(wording, "in_pulsars_words", seen)

    async def story(world: World) -> None:
        await world.have(("POST", f"{C}/us-west/peers", '["us-east"]'))
        await world.ask("POST", f"{N}/acme/peers/replication", '["us-west", "us-east"]')
        await world.have(("POST", f"{C}/us-west/peers", "[]"))
        for method, path, body, _status, _words in CASES:
            await world.ask(method, path, body)

    still(story)
    assert [row for number, row in enumerate(wording.ROWS) if number not in met] == []


def test_beyond_pulsars_paths_nothing_is_said_otherwise(tell: Tell) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("GET", "/geo/v1/namespaces/public/missing/subscriptionMode")
        assert (answer.status, answer.reason) == (404, "namespace public/missing does not exist")

    tell(story)
