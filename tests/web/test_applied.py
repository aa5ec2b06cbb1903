"""`?applied=true` answers with the value that holds: of every policy, on every level, for both kinds of topics; never nothing."""

import msgspec
import pytest

from magnetar.metadata.policies.table import TABLE, Policy
from tests.web.conftest import Tell, World
from tests.web.policy_cases import json, value

A, G = "/admin/v2", "/geo/v1"
N = "namespaces/public/default"

NAMESPACES = [policy for policy in TABLE if policy.namespace and not policy.kind_query]
NAMESPACES = [policy for policy in NAMESPACES if policy.name not in {"replication-start", "subscription-mode"}]
TOPICS = [policy for policy in TABLE if policy.topic and not policy.kind_query]


def _namespace_path(policy: Policy) -> str:
    return f"{G if policy.own else A}/{N}/{policy.namespace_path}"


def _topic_path(policy: Policy, domain: str = "persistent", topic: str = "t") -> str:
    return f"{G if policy.own_topic else A}/{domain}/public/default/{topic}/{policy.topic_path}"


async def _topics(world: World) -> None:
    for name in ("persistent://public/default/t", "non-persistent://public/default/t"):
        world.create(name)


@pytest.mark.parametrize("policy", NAMESPACES, ids=lambda policy: policy.name)
def test_of_a_namespace_something_holds_always(tell: Tell, policy: Policy) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("GET", f"{_namespace_path(policy)}?applied=true")
        assert answer.status == 200 and answer.json is not None
        msgspec.convert(answer.json, policy.kind)

    tell(story)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("policy", TOPICS, ids=lambda policy: policy.name)
def test_of_a_topic_something_holds_always(tell: Tell, policy: Policy, domain: str) -> None:
    if policy.own_topic and domain != "persistent":
        return

    async def story(world: World) -> None:
        await _topics(world)
        answer = await world.ask("GET", f"{_topic_path(policy, domain)}?applied=true")
        assert answer.status == 200 and answer.json is not None
        msgspec.convert(answer.json, policy.kind)
        # Its own value is another question.
        own = await world.ask("GET", _topic_path(policy, domain))
        assert own.status == (200 if policy.name == "schema-validation" else 204)
        assert (await world.ask("DELETE", _topic_path(policy, domain))).status == 204

    tell(story)


@pytest.mark.parametrize("policy", [policy for policy in TOPICS if policy.namespace], ids=lambda policy: policy.name)
def test_a_topic_has_what_its_namespace_has_until_it_has_its_own(tell: Tell, policy: Policy) -> None:
    shared = value(policy)

    async def story(world: World) -> None:
        await _topics(world)
        topic, other = _topic_path(policy), _topic_path(policy, "non-persistent")
        before = (await world.ask("GET", f"{topic}?applied=true")).json
        await world.have((policy.namespace_method, _namespace_path(policy), json(shared)))
        held = (await world.ask("GET", f"{topic}?applied=true")).json
        assert msgspec.convert(held, policy.kind) == msgspec.convert(shared, policy.kind)
        assert held == (await world.ask("GET", f"{_namespace_path(policy)}?applied=true")).json
        if not policy.own_topic:
            assert held == (await world.ask("GET", f"{other}?applied=true")).json
        await world.have((policy.topic_method, topic, json(before)))
        assert (await world.ask("GET", f"{topic}?applied=true")).json == before
        await world.have(("DELETE", topic, None))
        assert (await world.ask("GET", f"{topic}?applied=true")).json == held

    tell(story)


def test_policies_that_follow_others(tell: Tell) -> None:
    async def story(world: World) -> None:
        over_links = f"{G}/{N}/isAllowAutoUpdateSchemaWithReplicator?applied=true"
        assert (await world.ask("GET", over_links)).json is True
        await world.have(("POST", f"{A}/{N}/isAllowAutoUpdateSchema", "false"))
        assert (await world.ask("GET", over_links)).json is False
        clusters = (await world.ask("GET", f"{A}/{N}/replication")).json
        assert (await world.ask("GET", f"{A}/{N}/allowedClusters?applied=true")).json == clusters

    tell(story)


@pytest.mark.parametrize("place", [N, "persistent/public/default/t", "non-persistent/public/default/t"])
def test_backlog_quotas_that_hold_are_of_both_kinds(tell: Tell, place: str) -> None:
    none = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}

    async def story(world: World) -> None:
        await _topics(world)
        path = f"{A}/{place}/backlogQuotaMap"
        assert (await world.ask("GET", path)).json == {}
        assert (await world.ask("GET", f"{path}?applied=true")).json == {
            "destination_storage": none,
            "message_age": none,
        }
        await world.have(("POST", f"{A}/{N}/backlogQuota", '{"limitSize": 100, "policy": "producer_exception"}'))
        held = (await world.ask("GET", f"{path}?applied=true")).json
        assert held["message_age"] == none
        assert held["destination_storage"] == none | {"limitSize": 100, "policy": "producer_exception"}
        await world.have(("DELETE", f"{A}/{place}/backlogQuota", None))

    tell(story)


def test_a_subscription_has_the_rate_of_its_topic_until_it_has_its_own(tell: Tell) -> None:
    mine, shared = {"dispatchThrottlingRateInMsg": 3}, {"dispatchThrottlingRateInMsg": 7}

    async def story(world: World) -> None:
        await _topics(world)
        topic = f"{A}/persistent/public/default/t"
        path = f"{topic}/s/dispatchRate"

        async def rate(question: str) -> object:
            answer = await world.ask("GET", path + question)
            return answer.json["dispatchThrottlingRateInMsg"] if answer.status == 200 else None

        await world.have(("POST", f"{topic}/subscriptionDispatchRate", json(shared)))
        assert (await rate(""), await rate("?applied=true")) == (None, 7)
        await world.have(("POST", path, json(mine)))
        assert (await rate(""), await rate("?applied=true")) == (3, 3)
        assert (await world.ask("GET", f"{topic}/other/dispatchRate")).status == 204
        await world.have(("DELETE", path, None))
        assert (await rate(""), await rate("?applied=true")) == (None, 7)

    tell(story)
