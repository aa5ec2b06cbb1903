"""Permissions finer than a tenant's: administrators of one namespace or topic, and subscriptions reserved for roles."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from tests.support.brokers import eventually
from tests.support.secured import NAMESPACE, Secured, as_role, closing, token

TENANT = {"allowedClusters": ["solo"], "adminRoles": ["boss"]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A secured broker with a tenant `shop` and its namespaces `orders` and `bills`."""
    made = Secured(tmp_path_factory.mktemp("permissions"))
    made.world.start()
    try:
        made.broker.rest("PUT", "/admin/v2/tenants/shop", TENANT)
        for name in ("orders", "bills"):
            made.broker.rest("PUT", f"/admin/v2/namespaces/shop/{name}")
        yield made
    finally:
        made.world.close()


ORDERS, BILLS = "/admin/v2/namespaces/shop/orders", "/admin/v2/namespaces/shop/bills"


def of(secured: Secured, role: str) -> Any:
    """A client with the token of a role."""
    return closing(secured.client(pulsar.AuthenticationToken(token(role))))


def test_an_administrator_of_a_namespace_administers_it_alone(secured: Secured) -> None:
    secured.grant("keeper", "admin", place=ORDERS)
    ask = as_role(secured, "keeper")
    assert ask("POST", f"{ORDERS}/messageTTL", 60) == 204
    assert ask("PUT", "/admin/v2/persistent/shop/orders/made") == 204
    assert ask("POST", "/admin/v2/persistent/shop/orders/made/maxConsumers", 5) == 204
    assert ask("POST", f"{ORDERS}/permissions/app", ["produce"]) == 204
    assert ask("DELETE", "/admin/v2/persistent/shop/orders/made") == 204
    assert ask("GET", ORDERS) == 200
    for method, path, body in (
        ("POST", f"{BILLS}/messageTTL", 60),
        ("DELETE", ORDERS, None),
        ("PUT", "/admin/v2/namespaces/shop/more", None),
        ("GET", "/admin/v2/tenants/shop", None),
        ("POST", "/admin/v2/tenants/shop", TENANT | {"adminRoles": ["keeper"]}),
        ("POST", f"{ORDERS}/permissions/keeper", ["admin", "replicate"]),
    ):
        assert ask(method, path, body) == 403, path
    with of(secured, "keeper") as client:
        client.create_producer("persistent://shop/orders/t").send(b"it may use what it administers")
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("persistent://shop/bills/t")
    secured.broker.rest("DELETE", f"{ORDERS}/permissions/keeper")
    assert ask("POST", f"{ORDERS}/messageTTL", 60) == 403


def test_an_administrator_of_a_topic_administers_it_alone(secured: Secured) -> None:
    topic, other = "/admin/v2/persistent/shop/orders/mine", "/admin/v2/persistent/shop/orders/yours"
    for path in (topic, other):
        secured.broker.rest("PUT", f"{path}/partitions", 2)
    secured.grant("owner", "admin", place=topic)
    ask = as_role(secured, "owner")
    assert ask("POST", f"{topic}/publishRate", {"publishThrottlingRateInMsg": 100}) == 204
    assert ask("POST", f"{topic}/partitions", 3) == 204
    assert ask("GET", f"{topic}/partitioned-stats") == 200
    assert ask("PUT", f"{topic}-partition-1/unload") == 204
    assert ask("POST", f"{topic}/permissions/app", ["consume"]) == 204
    assert [ask("POST", f"{path}/maxConsumers", 5) for path in (other, topic)] == [403, 204]
    assert ask("POST", f"{ORDERS}/messageTTL", 60) == 403
    assert ask("POST", f"{topic}/permissions/owner", ["replicate"]) == 403


def test_only_a_superuser_makes_links(secured: Secured) -> None:
    """An administrator who could would write under other clusters' names, or let somebody do it."""
    boss = as_role(secured, "boss")
    for place in (ORDERS, "/admin/v2/persistent/shop/orders/t", "/admin/v2/non-persistent/shop/orders/t"):
        assert boss("POST", f"{place}/permissions/link", ["consume", "replicate"]) == 403
        assert "link" not in secured.broker.rest("GET", f"{place}/permissions")
        secured.grant("link", "replicate", place=place)
        assert boss("POST", f"{place}/permissions/link", ["consume", "replicate"]) == 204, "it has that already"
        assert boss("DELETE", f"{place}/permissions/link") == 204
    assert boss("POST", f"{NAMESPACE}/permissions/link", ["consume"]) == 403


def refusal(secured: Secured, role: str, method: str, path: str) -> tuple[int, str]:
    """Status and reason of a request that is refused."""
    request = urllib.request.Request(
        secured.broker.web + path, method=method, headers={"Authorization": f"Bearer {token(role)}"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    return caught.value.code, json.loads(caught.value.read())["reason"]


def consumers(secured: Secured, topic: str, subscription: str) -> int:
    """How many a subscription has."""
    stats = secured.broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    return len(stats["subscriptions"].get(subscription, {"consumers": []})["consumers"])


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_reserved_subscription_closes_others_and_refuses_them(secured: Secured, domain: str) -> None:
    topic = f"{domain}://shop/orders/reserved"
    for role in ("billing", "app"):
        secured.grant(role, "consume", "produce", place=ORDERS)
    with of(secured, "app") as app, of(secured, "billing") as billing:
        app.subscribe(topic, "bills", pulsar.ConsumerType.Shared)
        billing.subscribe(topic, "bills", pulsar.ConsumerType.Shared)
        app.subscribe(topic, "others")
        secured.broker.rest("POST", f"{ORDERS}/permissions/subscription/bills", ["billing"])
        assert secured.broker.rest("GET", f"{ORDERS}/permissions/subscription") == {"bills": ["billing"]}
        assert consumers(secured, topic, "bills") == 1 and consumers(secured, topic, "others") == 1
        with pytest.raises(pulsar.AuthorizationError):
            app.subscribe(topic, "bills", pulsar.ConsumerType.Shared)
        assert consumers(secured, topic, "bills") == 1, "whose client tries again by itself is refused as well"
        if domain == "persistent":
            path = "/admin/v2/persistent/shop/orders/reserved"
            assert as_role(secured, "billing")("POST", f"{path}/subscription/bills/skip_all") == 204
            assert refusal(secured, "app", "POST", f"{path}/subscription/bills/skip_all") == (
                403,
                "role app may not use subscription bills of shop/orders, which is reserved for other roles",
            )
            for way in ("all_subscription/expireMessages/1", "truncate"):
                method = "DELETE" if way == "truncate" else "POST"
                assert refusal(secured, "app", method, f"{path}/{way}")[0] == 403, "nor with all others together"
        with of(secured, "boss") as boss:
            boss.subscribe(topic, "bills", pulsar.ConsumerType.Shared).close()
        secured.broker.rest("DELETE", f"{ORDERS}/permissions/bills/billing")
        app.subscribe(topic, "bills", pulsar.ConsumerType.Shared)


def test_subscriptions_named_after_roles_are_a_policy_that_live_consumers_meet(secured: Secured) -> None:
    topic = "persistent://shop/bills/prefixed"
    secured.grant("app", "consume", "produce", place=BILLS)
    with of(secured, "app") as client:
        client.subscribe(topic, "free")
        client.subscribe(topic, "app-1")
        secured.broker.rest("POST", f"{BILLS}/subscriptionAuthMode", "Prefix")
        assert secured.broker.rest("GET", f"{BILLS}/subscriptionAuthMode") == "Prefix"
        assert (consumers(secured, topic, "free"), consumers(secured, topic, "app-1")) == (0, 1)
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(topic, "another")
        client.create_reader(topic, pulsar.MessageId.earliest, subscription_role_prefix="app").close()
        secured.broker.rest("POST", f"{BILLS}/subscriptionAuthMode", "None")
        client.subscribe(topic, "another")
    eventually(lambda: consumers(secured, topic, "another") == 0)


def test_what_is_reserved_is_so_after_a_restart(secured: Secured) -> None:
    secured.grant("app", "consume", place=BILLS)
    secured.broker.rest("POST", f"{BILLS}/permissions/subscription/a%2Fb%20c", ["nobody"])
    secured.broker.stop()
    secured.broker.start()
    assert secured.broker.rest("GET", f"{BILLS}/permissions/subscription") == {"a/b c": ["nobody"]}
    refused: Callable[..., int] = as_role(secured, "app")
    assert refused("PUT", "/admin/v2/persistent/shop/bills/t/subscription/a%2Fb%20c") == 403
