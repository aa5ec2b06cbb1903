"""Every permission route: its success and each of its refusals."""

from tests.web.conftest import World

A = "/admin/v2"
N = f"{A}/namespaces/public/default/permissions"
NS404 = "public/missing"
BAD = "%20me"
ACTIONS = '["produce", "consume"]'

CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", N, None, 200),
    ("GET", f"{A}/namespaces/{NS404}/permissions", None, 404),
    ("GET", f"{A}/namespaces/a%20b/c/permissions", None, 412),
    ("POST", f"{N}/app", ACTIONS, 204),
    ("POST", f"{N}/cn%3Dapp%2Fsecond", '["replicate"]', 204),
    ("POST", f"{N}/boss", '["admin"]', 204),
    ("POST", f"{N}/app", '["functions", "sources", "sinks", "packages"]', 204),
    ("POST", f"{N}/app", '["everything"]', 400),
    ("POST", f"{N}/app", "[]", 412),
    ("POST", f"{N}/{BAD}", ACTIONS, 412),
    ("POST", f"{A}/namespaces/{NS404}/permissions/app", ACTIONS, 404),
    ("DELETE", f"{N}/app", None, 204),
    ("DELETE", f"{N}/{BAD}", None, 412),
    ("DELETE", f"{A}/namespaces/{NS404}/permissions/app", None, 404),
]

_S = f"{N}/subscription"
CASES += [
    ("GET", _S, None, 200),
    ("GET", f"{A}/namespaces/{NS404}/permissions/subscription", None, 404),
    ("GET", f"{A}/namespaces/a%20b/c/permissions/subscription", None, 412),
    ("POST", f"{_S}/billing", '["app", "cn=app/second"]', 204),
    ("POST", f"{_S}/billing", "[]", 204),
    ("POST", f"{_S}/billing", '"app"', 400),
    ("POST", f"{_S}/billing", '[" me"]', 412),
    ("POST", f"{_S}/a%0Ab", '["app"]', 412),
    ("POST", f"{A}/namespaces/{NS404}/permissions/subscription/billing", '["app"]', 404),
    ("DELETE", f"{N}/billing/app", None, 204),
    ("DELETE", f"{N}/billing/nobody", None, 412),
    ("DELETE", f"{A}/namespaces/{NS404}/permissions/billing/app", None, 404),
]

for _domain in ("persistent", "non-persistent"):
    _topic = f"{A}/{_domain}/public/default/guarded/permissions"
    CASES += [
        ("GET", _topic, None, 200),
        ("GET", f"{A}/{_domain}/{NS404}/t/permissions", None, 404),
        ("GET", f"{A}/{_domain}/a%20b/c/t/permissions", None, 412),
        ("POST", f"{_topic}/app", ACTIONS, 204),
        ("POST", f"{_topic}/app", "[]", 412),
        ("POST", f"{A}/{_domain}/{NS404}/t/permissions/app", ACTIONS, 404),
        ("DELETE", f"{_topic}/app", None, 204),
        ("DELETE", f"{_topic}/nobody", None, 412),
        ("DELETE", f"{A}/{_domain}/{NS404}/t/permissions/app", None, 404),
    ]


async def prepare(world: World, method: str, path: str) -> None:
    """What a success of taking back needs."""
    if method == "DELETE" and path.endswith("/guarded/permissions/app"):
        await world.have(("POST", path, ACTIONS))
    if method == "DELETE" and path.endswith("/billing/app"):
        await world.have(("POST", f"{_S}/billing", '["app"]'))
