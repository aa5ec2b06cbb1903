"""What each route of REST needs: every route has a rule, and those that change things are nobody's by accident."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from magnetar.admin.http.gate import IDENTITY, RULES, Gate, operation_of
from magnetar.admin.http.server import ROUTES
from magnetar.broker.security.authorization import Operation
from magnetar.core.names import TopicName

P = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
N = "/admin/v2/namespaces/{tenant}/{namespace}"

EXAMPLES = {
    ("GET", "/admin/v2/brokers/health"): Operation.IDENTIFIED,
    ("GET", "/admin/v2/brokers/{cluster}"): Operation.MONITOR,
    ("GET", "/admin/v2/brokers/configuration/runtime"): Operation.MONITOR,
    ("GET", "/admin/v2/clusters"): Operation.IDENTIFIED,
    ("PUT", "/admin/v2/clusters/{cluster}"): Operation.SUPER,
    ("GET", "/admin/v2/tenants"): Operation.SUPER,
    ("GET", "/admin/v2/tenants/{tenant}"): Operation.TENANT,
    ("POST", "/admin/v2/tenants/{tenant}"): Operation.SUPER,
    ("POST", "/geo/v1/tenants/{tenant}"): Operation.SUPER,
    ("PUT", N): Operation.TENANT,
    ("DELETE", N): Operation.TENANT,
    ("GET", N): Operation.ADMIN,
    ("GET", f"{N}/permissions"): Operation.ADMIN,
    ("POST", f"{N}/permissions/{{role}}"): Operation.ADMIN,
    ("POST", f"{N}/permissions/subscription/{{subscription}}"): Operation.ADMIN,
    ("GET", f"{N}/topics"): Operation.LOOK,
    ("PUT", P): Operation.ADMIN,
    ("DELETE", P): Operation.ADMIN,
    ("GET", f"{P}/partitions"): Operation.LOOK,
    ("PUT", f"{P}/partitions"): Operation.ADMIN,
    ("GET", f"{P}/stats"): Operation.LOOK,
    ("POST", f"{P}/subscription/{{subscription}}/skip_all"): Operation.CONSUME,
    ("POST", f"{P}/subscription/{{subscription}}/expireMessages"): Operation.CONSUME,
    ("PUT", f"{P}/subscription/{{subscription}}/properties"): Operation.CONSUME,
    ("POST", f"{P}/subscription/{{subscription}}/dispatchRate"): Operation.ADMIN,
    ("POST", f"{P}/{{subscription}}/dispatchRate"): Operation.ADMIN,
    ("GET", f"{P}/ledger/{{ledger}}/entry/{{entry}}"): Operation.CONSUME,
    ("GET", f"{P}/examinemessage"): Operation.CONSUME,
    ("GET", f"{P}/messageid/{{timestamp}}"): Operation.CONSUME,
    ("PUT", f"{P}/backlogSize"): Operation.CONSUME,
    ("GET", f"{P}/internal-info"): Operation.LOOK,
    ("GET", f"{P}/properties"): Operation.LOOK,
    ("PUT", f"{P}/properties"): Operation.ADMIN,
    ("DELETE", f"{P}/properties"): Operation.ADMIN,
    ("POST", f"{P}/trim"): Operation.ADMIN,
    ("POST", f"{P}/terminate"): Operation.ADMIN,
    ("POST", f"{P}/all_subscription/expireMessages/{{seconds}}"): Operation.ADMIN,
    ("POST", f"{P}/permissions/{{role}}"): Operation.ADMIN,
    ("POST", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema"): Operation.PRODUCE,
    ("DELETE", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema"): Operation.ADMIN,
    ("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"): Operation.LOOK,
    ("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle"): Operation.LOOK,
    ("GET", "/geo/v1/links"): Operation.MONITOR,
    ("POST", "/geo/v1/links/{target}/skip"): Operation.SUPER,
    ("GET", "/metrics"): Operation.MONITOR,
    ("GET", "/"): Operation.MONITOR,
    ("GET", "/openapi.json"): Operation.IDENTIFIED,
    ("POST", "/"): Operation.SUPER,
    ("GET", "/something/new"): Operation.SUPER,
}


@pytest.mark.parametrize("route", EXAMPLES, ids=" ".join)
def test_examples(route: tuple[str, str]) -> None:
    assert operation_of(*route) is EXAMPLES[route]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_for_somebody_on_purpose(route: object) -> None:
    found = next(one for one in ROUTES if one is route)
    operation = operation_of(found.method, found.path)
    if found.changes:
        assert operation not in {Operation.IDENTIFIED, Operation.MONITOR, Operation.LOOK} or found.path.endswith(
            ("/compatibility", "/version")
        )
    if operation in {Operation.LOOK, Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN, Operation.TENANT}:
        assert "{tenant}" in found.path
    if operation is Operation.SUPER:
        whole = r"clusters|tenants|brokers|bookies|resource-quotas|resourcegroups|namespaces/\{cluster\}"
        assert re.match(rf"/admin/v2/({whole})(/|$)|/geo/v1/", found.path)


def test_no_rule_is_dead() -> None:
    """Each rule decides for a route that exists."""
    import magnetar.admin.http.gate as gate

    decided = set()
    for route in ROUTES:
        for number, (method, pattern, _operation) in enumerate(gate._COMPILED):
            if method in {"*", route.method} and pattern.fullmatch(route.path):
                decided.add(number)
                break
    dead = [RULES[number] for number in range(len(RULES)) if number not in decided]
    assert dead == []


def test_who_may_is_asked_about_the_names_that_are_meant() -> None:
    """A plus in a path of Pulsar's is a space for the gate, as it is for what stands behind it."""
    asked: list[Any] = []
    access: Any = SimpleNamespace(
        enabled=True, config=SimpleNamespace(methods=()), check=lambda *what: asked.append(what)
    )
    gate = Gate(access, lambda *_: None)
    (route,) = (route for route in ROUTES if route.name == f"POST {P}/subscription/{{subscription}}/skip_all")
    names = {"tenant": "t", "namespace": "n", "topic": "a+b+", "subscription": "s+1"}

    class Request(dict[Any, Any]):
        match_info = names
        rel_url = URL("/admin/v2/persistent/t/n/a+b%2B/subscription/s+1/skip_all", encoded=True)

    gate.check(Request({IDENTITY: "who"}), route)  # type: ignore[arg-type]
    assert asked == [("who", Operation.CONSUME, TopicName("persistent", "t", "n", "a b+"), "s 1")]
