"""Cases of what is not built: it can be read and taken back, for it was never set."""

from magnetar.admin.unsupported.never_set import TABLE, NeverSet

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
        if read and row.method:
            cases += _set(row, f"{A}/namespaces/PLACE/{read}", ("public/default", "public/missing", f"x/{BAD}"))
    return cases


def _set(row: NeverSet, path: str, places: tuple[str, str, str]) -> list[Case]:
    """What changes nothing is taken, everything else is not built; and what is not there is 404 before that."""
    method = row.method
    there, missing, wrong = (path.replace("PLACE", place) for place in places)
    return [
        (method, there, None, 204 if row.neutral(None) else 501),
        (method, there, "-1", 204 if row.neutral(-1) else 501),
        (method, there, '{"some": "thing"}', 501),
        (method, there, "7", 501),
        (method, there, "{", 400),
        (method, missing, "7", 404),
        (method, wrong, "7", 412),
    ]


def _of_topics() -> list[Case]:
    cases: list[Case] = []
    rows = [
        (row.topic, *(204 if value is None else 200 for value in (row.topic_unset, row.applied)), row)
        for row in TABLE
        if row.topic
    ]
    for domain in ("persistent", "non-persistent"):
        for part, unset, applied, row in rows:
            path = f"{A}/{domain}/public/default/PLACE/{part}"
            there = path.replace("PLACE", "t")
            cases += [
                ("GET", there, None, unset),
                ("GET", f"{there}?applied=true", None, applied),
                ("GET", f"{there}?applied=maybe", None, 400),
                ("DELETE", there, None, 204),
            ]
            for method in ("GET", "DELETE"):
                cases += _refused(method, path, "missing", "a%5Cb")
            cases += _set(row, path, ("t", "missing", "a%5Cb"))
    return cases


def _of_io(kind: str) -> list[tuple[str, str, int]]:
    """Method, the rest of a path, and what is answered."""
    if kind.startswith("packages"):
        version = [("GET", "/p/1.0", 404), ("DELETE", "/p/1.0", 404), ("GET", "/p/1.0/metadata", 404)]
        return [("GET", "", 200), ("GET", "/p", 200), *version]
    return [
        ("GET", "", 200),
        ("GET", "/f", 404),
        ("DELETE", "/f", 404),
        ("GET", "/f/status", 404),
        ("GET", "/f/stats", 404),
    ]


_C = f"{A}/clusters/us-west"
_Q = f"{A}/resource-quotas"

CASES: list[Case] = [
    *_of_namespaces(),
    *_of_topics(),
    *(
        ("POST", f"{A}/clusters/{cluster}/{path}", "{}", status)
        for path, missing in (("failureDomains/d", 412), ("namespaceIsolationPolicies/p", 412), ("migrate", 404))
        for cluster, status in (("us-west", 501), ("nowhere", missing))
    ),
    *(
        ("POST", f"{A}/namespaces/{place}/{path}", "{}", status)
        for path in ("resourcegroup/g", "migration")
        for place, status in (("public/default", 501), ("public/missing", 404), (f"x/{BAD}", 412))
    ),
    ("GET", f"{_C}/migrate", None, 200),
    ("GET", f"{A}/clusters/nowhere/migrate", None, 404),
    ("GET", f"{_C}/failureDomains", None, 200),
    ("GET", f"{A}/clusters/nowhere/failureDomains", None, 412),
    ("GET", f"{_C}/namespaceIsolationPolicies", None, 404),
    ("GET", f"{A}/clusters/nowhere/namespaceIsolationPolicies", None, 404),
    *(
        (method, f"{A}/clusters/{cluster}/{path}", None, status)
        for cluster, status in (("us-west", 404), ("nowhere", 412))
        for method, path in (
            ("GET", "failureDomains/d"),
            ("DELETE", "failureDomains/d"),
            ("GET", "namespaceIsolationPolicies/p"),
            ("DELETE", "namespaceIsolationPolicies/p"),
            ("GET", "namespaceIsolationPolicies/brokers"),
            ("GET", "namespaceIsolationPolicies/brokers/127.0.0.1:8080"),
        )
    ),
    *(
        (method, f"{A}/{path}", None, 404)
        for method in ("GET", "DELETE")
        for path in ("resourcegroups/g", "bookies/racks-info/127.0.0.1:3181")
    ),
    *(
        (method, f"{A}/namespaces/{place}/antiAffinity", body, status)
        for method, body, ok in (("GET", None, 204), ("POST", "", 204), ("DELETE", None, 204))
        for place, status in (("public/default", ok), ("public/missing", 404), (f"x/{BAD}", 412))
    ),
    *(
        ("POST", f"{A}/{place}/dispatcherPauseOnAckStatePersistent", "false", 204)
        for place in ("namespaces/public/default", "persistent/public/default/t", "non-persistent/public/default/t")
    ),
    ("POST", f"{A}/namespaces/public/default/antiAffinity", "x" * 1_025, 400),
    ("GET", f"{A}/namespaces/us-west/antiAffinity/g", None, 200),
    ("GET", f"{A}/namespaces/nowhere/antiAffinity/g", None, 404),
    ("GET", f"{A}/persistent/public/default/t/offload", None, 200),
    ("GET", f"{A}/persistent/public/default/missing/offload", None, 404),
    ("GET", f"{A}/persistent/public/default/a%5Cb/offload", None, 412),
    *(
        ("GET", f"/admin/v3/{path}", None, 200)
        for path in (
            "functions/connectors",
            "functions/builtins",
            "sinks/builtinsinks",
            "sink/builtinsinks",
            "sources/builtinsources",
            "source/builtinsources",
        )
    ),
    *(
        (method, f"/admin/v3/{kind}/{place}{more}", None, status)
        for kind in ("functions", "sources", "sinks", "source", "sink", "packages/function")
        for method, more, there in _of_io(kind)
        for place, status in (("public/default", there), ("public/missing", 404), (f"x/{BAD}", 412))
    ),
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
