"""Cases of what is not built: it can be read and taken back, for it was never set."""

from magnetar.admin.neverset import TABLE

A = "/admin/v2"
BAD = "a%20b"
BUNDLE = "0x00000000_0xffffffff"

Case = tuple[str, str, str | None, int]


def _refused(method: str, path: str, missing: str, wrong: str) -> list[Case]:
    return [(method, path.replace("PLACE", missing), None, 404), (method, path.replace("PLACE", wrong), None, 412)]


def _of_namespaces() -> list[Case]:
    cases: list[Case] = []
    for row in TABLE:
        read, removed = row.namespace, "" if row.removes == "-" else row.removes or row.namespace
        for method, part, ok in (("GET", read, 204 if row.unset is None else 200), ("DELETE", removed, 204)):
            if part:
                path = f"{A}/namespaces/PLACE/{part}"
                cases += [(method, path.replace("PLACE", "public/default"), None, ok)]
                cases += _refused(method, path, "public/missing", f"x/{BAD}")
    return cases


def _of_topics() -> list[Case]:
    cases: list[Case] = []
    rows = [(row.topic, 204 if row.applied is None else 200) for row in TABLE if row.topic]
    for domain in ("persistent", "non-persistent"):
        for part, applied in rows:
            path = f"{A}/{domain}/public/default/PLACE/{part}"
            there = path.replace("PLACE", "t")
            cases += [
                ("GET", there, None, 204),
                ("GET", f"{there}?applied=true", None, applied),
                ("GET", f"{there}?applied=maybe", None, 400),
                ("DELETE", there, None, 204),
            ]
            for method in ("GET", "DELETE"):
                cases += _refused(method, path, "missing", "a%5Cb")
    return cases


_C = f"{A}/clusters/us-west"
_Q = f"{A}/resource-quotas"

CASES: list[Case] = [
    *_of_namespaces(),
    *_of_topics(),
    *(
        ("GET", f"{A}/clusters/{cluster}/{part}", None, status)
        for part in ("migrate", "failureDomains", "namespaceIsolationPolicies", "namespaceIsolationPolicies/brokers")
        for cluster, status in (("us-west", 200), ("nowhere", 404))
    ),
    ("GET", f"{_C}/namespaceIsolationPolicies/brokers/127.0.0.1:8080", None, 200),
    ("GET", f"{A}/clusters/nowhere/namespaceIsolationPolicies/brokers/x", None, 404),
    *(
        (method, f"{A}/{path}", None, 404)
        for method in ("GET", "DELETE")
        for path in (
            "clusters/us-west/failureDomains/d",
            "clusters/us-west/namespaceIsolationPolicies/p",
            "resourcegroups/g",
            "bookies/racks-info/127.0.0.1:3181",
        )
    ),
    ("GET", f"{A}/namespaces/us-west/antiAffinity/g", None, 200),
    ("GET", f"{A}/namespaces/nowhere/antiAffinity/g", None, 404),
    ("GET", f"{A}/resourcegroups", None, 200),
    ("GET", f"{A}/bookies/all", None, 200),
    ("GET", f"{A}/bookies/racks-info", None, 200),
    ("GET", _Q, None, 200),
    *(
        (method, f"{_Q}/{place}/{BUNDLE}", None, status)
        for method, ok in (("GET", 200), ("DELETE", 204))
        for place, status in (("public/default", ok), ("public/missing", 404), (f"x/{BAD}", 412))
    ),
]
