"""`magnetar metadata`: what is compared, and how it is said."""

from typing import Any

import pytest

from magnetar.cli.commands.metadata import compare, differences, differing, remarks, rows_of, said, unequal
from magnetar.cli.shared.targets import Target
from magnetar.core.errors import MagnetarError


class Client:
    """A cluster's answers."""

    def __init__(self, documents: dict[str, dict[str, Any]], exclude: tuple[str, ...] = ()) -> None:
        self.documents, self.exclude = documents, exclude

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        if path.endswith("fingerprints"):
            prints = {name: repr(sorted(fields.items())) for name, fields in self.documents.items()}
            return {"documents": prints, "exclude": list(self.exclude)}
        assert query is not None
        if query["path"] not in self.documents:
            raise MagnetarError("there is no document")
        return [{"field": name, "value": value} for name, value in self.documents[query["path"]].items()]


def targets(**clients: Client) -> list[Target]:
    return [Target(name, client) for name, client in clients.items()]  # type: ignore[arg-type]


def test_differences_are_told_field_by_field() -> None:
    found = targets(
        a=Client({"tenants/t": {"x": 1}, "namespaces/t/n": {"ttl": 5, "same": 1}}),
        b=Client({"tenants/t": {"x": 1}, "namespaces/t/n": {"ttl": 6, "same": 1}, "tenants/u": {"x": 2}}),
    )
    assert differences(found) == [
        {"document": "namespaces/t/n", "field": "ttl", "a": 5, "b": 6},
        {"document": "tenants/u", "field": "(exists)", "a": False, "b": True},
    ]


def test_what_is_local_somewhere_does_not_differ() -> None:
    found = targets(
        a=Client({"namespaces/t/n": {"ttl": 5}}, ("namespaces/*:ttl", "tenants/u")),
        b=Client({"namespaces/t/n": {"ttl": 6}, "tenants/u": {"x": 2}}),
    )
    assert differences(found) == []
    states = {name: {"enabled": True, "digest": name} for name in "ab"}
    assert differing(states) == {"b"}, "as far as digests tell"
    compare(found, states)
    assert differing(states) == set()
    assert unequal(states) == []


def test_a_status_page_says_what_differs() -> None:
    documents = {f"namespaces/t/n{number}": {"ttl": 5} for number in range(7)}
    other = {name: {"ttl": 6} for name in documents}
    found = targets(
        a=Client(documents),
        b=Client(other),
        c=Client(documents),
        d=Client({"namespaces/t/n0": {}}, ("namespaces/*:ttl",)),
    )
    found[3].client.documents = {name: {"x": 1} for name in documents}  # type: ignore[attr-defined]
    states: dict[str, dict[str, Any]] = {name: {"enabled": True, "digest": name} for name in "abcd"} | {
        "e": {"error": "x"}
    }
    compare(found, states)
    assert differing(states) == {"b", "d"}
    assert states["d"]["differs"][0] == {"document": "namespaces/t/n0", "field": "x", "here": 1, "elsewhere": None}
    states["d"]["differs"] = []
    assert unequal(states) == [
        *(f"b: namespaces/t/n{number} ttl is 6, elsewhere 5" for number in range(5)),
        "2 more fields differ: magnetar metadata diff",
    ]


def test_a_status_page_goes_on_when_a_cluster_goes_down_meanwhile() -> None:
    class Down:
        def get(self, path: str, query: Any = None) -> Any:
            raise MagnetarError("connection refused")

    states: dict[str, dict[str, Any]] = {name: {"enabled": True, "digest": name} for name in "ab"}
    compare([*targets(a=Client({})), Target("b", Down())], states)  # type: ignore[arg-type]
    assert differing(states) == {"b"}
    states["b"]["exclude"] = ["x"]
    assert differing(states) == set()


def test_a_cluster_that_does_not_answer_is_named() -> None:
    class Down:
        def get(self, path: str, query: Any = None) -> Any:
            raise MagnetarError("connection refused")

    with pytest.raises(MagnetarError, match="b: connection refused"):
        differences([*targets(a=Client({})), Target("b", Down())])  # type: ignore[arg-type]


def test_rows_and_remarks() -> None:
    states = {
        "a": {
            "enabled": True, "digest": "1", "documents": 5, "clusters": {"b": {"heard_ms": None}, "c": {"heard_ms": 5}},
            "waiting": {"tenants/t": 3_600_000}, "kept": {"namespaces/t/n": "3 topics"}, "stuck": {"partitioned/x": "why"},
            "refused": ["metadata event 1:2 of b is refused: not JSON"], "counters": {"refused": 1},
        },
        "b": {"enabled": False},
        "c": {"error": "down"},
    }  # fmt: skip
    rows = {row["cluster"]: row for row in rows_of(states, {"a"})}
    assert (rows["a"]["state"], rows["a"]["heard"], rows["a"]["waiting"]) == ("differs", "nothing of b", 1)
    assert rows["b"]["state"] == "off"
    assert (rows["c"]["state"], rows["c"]["detail"]) == ("unknown", "down")
    lines = remarks(states)
    assert [
        word
        for word in ("clock", "kept here for 3 topics", "cannot be made", "refused")
        if not any(word in x for x in lines)
    ] == []


def test_previews_in_words() -> None:
    row = {"field": "ttl", "now": 5, "then": None, "set_by": "b", "set_ms": 1_700_000_000_000, "local": False}
    assert said(row) == "ttl: 5 (set by b, 2023-11-14 22:13:20 UTC) -> not set"
    assert said(row | {"local": True, "set_by": ""}).endswith("it is local here")
