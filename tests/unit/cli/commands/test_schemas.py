"""`magnetar schemas`: which request each command makes, and how answers come out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]
AT = "/admin/v2/schemas/public/default/t"
AVSC = '{"type": "record", "name": "R", "fields": []}'
BODY = {"type": "AVRO", "schema": AVSC, "properties": {}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "r.avsc"
    path.write_text(AVSC)
    return str(path)


def test_list_and_show(fake: FakeBroker, run: Run) -> None:
    row = {"topic": "persistent://public/default/t", "versions": 2, "version": 3, "type": "AVRO"}
    fake.answer("GET /geo/v1/schemas/public/default", [row])
    assert run("schemas", "list", "--json", "--admin-url", fake.url).json == [row]
    for words, path in (("", "schema"), ("--version 3", "schema/3"), ("--all", "schemas")):
        fake.answer(f"GET {AT}/{path}", {"asked": path})
        assert run("schemas", "show", "t", *words.split(), "--admin-url", fake.url).json == {"asked": path}


def test_upload(fake: FakeBroker, run: Run, file: str, tmp_path: Path) -> None:
    fake.answer(f"POST {AT}/schema", {"version": 0})
    assert run("schemas", "upload", "t", file, "--admin-url", fake.url).code == 0
    assert run("schemas", "upload", "t", file, "--type", "JSON", "--admin-url", fake.url).code == 0
    # The file that Pulsar's own tool takes.
    other = tmp_path / "pulsar.json"
    other.write_text(json.dumps({"type": "JSON", "schema": AVSC, "properties": {"a": "b"}}))
    assert run("schemas", "upload", "t", str(other), "--admin-url", fake.url).code == 0
    assert [body for _, body in fake.changes] == [
        BODY,
        BODY | {"type": "JSON"},
        {"type": "JSON", "schema": AVSC, "properties": {"a": "b"}},
    ]


def record(*fields: tuple[str, str]) -> str:
    listed = [{"name": name, "type": kind} | ({"default": 0} if name != "a" else {}) for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": listed})


A, AB, AC = record(("a", "int")), record(("a", "int"), ("b", "int")), record(("a", "int"), ("c", "int"))


def plan(broker: FakeBroker, *schemas: str, strategy: str = "FULL", ok: bool = True, reason: str = "") -> None:
    """A cluster that has these schemas, and answers a question about another."""
    told = {"compatibility": ok, "schemaCompatibilityStrategy": strategy} | ({"reason": reason} if reason else {})
    broker.answer(f"POST {AT}/compatibility", told)
    listed = [
        {"version": version, "type": "AVRO", "timestamp": 0, "data": data, "properties": {}}
        for version, data in enumerate(schemas)
    ]
    broker.answer("GET /geo/v1/schemas/public/default/t", [one | {"state": "in force"} for one in listed])
    broker.answer("GET /admin/v2/namespaces/public/default/replication", ["a", "b"])


def test_check_of_one_broker_says_why_not(fake: FakeBroker, run: Run, file: str) -> None:
    ask = ("schemas", "check", "t", file, "--admin-url", fake.url)
    plan(fake, A)
    assert run(*ask).out == "compatible (FULL)\n"
    plan(fake, AVSC)
    assert run(*ask).out == "registered already, version 0 (FULL)\n"
    plan(fake, A, ok=False, reason="the type is JSON, not AVRO")
    assert one_line(run(*ask)) == "not compatible: the type is JSON, not AVRO"


Pair = tuple[Path, FakeBroker, FakeBroker]


def write(tmp_path: Path, schema: str) -> Path:
    path = tmp_path / "new.avsc"
    path.write_text(schema)
    return path


def test_check_asks_every_cluster(pair: Pair, run: Run, tmp_path: Path) -> None:
    config, a, b = pair
    plan(a, A)
    plan(b, A, AC, strategy="BACKWARD")
    ask = ("schemas", "check", "t", write(tmp_path, AB), "-c", config)
    answer = run(*ask)
    assert answer.code == 0
    # Nothing in either direction is in the other's way, and what is still to come is said.
    assert answer.out == (
        "a: compatible (FULL)\nb: compatible (BACKWARD)\n"
        "version 1 of b, R(a, c), has not arrived in a yet; both fit there in either order\n"
    )
    told = run(*ask, "--json").json
    assert [row["compatible"] for row in told["clusters"]] == [True, True]
    assert [(one["from"], one["version"], one["to"], one["problem"]) for one in told["underway"]] == [("b", 1, "a", "")]
    plan(b, A, ok=False, reason="BACKWARD: no")
    answer = run(*ask)
    assert (answer.code, answer.out, answer.err) == (
        1,
        "a: compatible (FULL)\n",
        "magnetar: b: not compatible: BACKWARD: no\n",
    )


def test_check_knows_what_is_on_its_way(pair: Pair, run: Run, tmp_path: Path) -> None:
    config, a, b = pair
    changed = record(("a", "int"), ("b", "string"))
    # Each is compatible where it is registered; but the one that b has cannot follow the new one into a.
    plan(a, A)
    plan(b, A, changed)
    answer = run("schemas", "check", "t", write(tmp_path, AB), "-c", config)
    assert (answer.code, answer.out) == (1, "a: compatible (FULL)\nb: compatible (FULL)\n")
    assert answer.err.startswith(
        "magnetar: version 1 of b, R(a, b), has not arrived in a yet: it could not follow the new one: FULL: "
    )
    assert one_line(answer)
    plan(b, record(("a", "string")))
    assert "it is not accepted there as things are" in one_line(
        run("schemas", "check", "t", write(tmp_path, AB), "-c", config)
    )
    # A namespace that is not replicated has nothing on its way.
    plan(b, A, changed)
    b.answer("GET /admin/v2/namespaces/public/default/replication", ["b"])
    assert run("schemas", "check", "t", write(tmp_path, AB), "-c", config).code == 0


def test_a_cluster_that_is_away(pair: Pair, run: Run, tmp_path: Path) -> None:
    config, a, b = pair
    plan(a, A)
    b.answers.clear()
    config.write_text(config.read_text().replace(b.url.removeprefix("http://"), "127.0.0.1:9"))
    answer = run("schemas", "check", "t", write(tmp_path, AB), "-c", config)
    assert (answer.code, answer.out) == (1, "a: compatible (FULL)\n")
    assert one_line(answer).startswith("b: ")
    answer = run("schemas", "diff", "t", "-c", config)
    assert answer.code == 1 and "R(a)" in answer.out
    assert one_line(answer).startswith("b: ")


def test_diff_compares_by_content(pair: Pair, run: Run) -> None:
    config, a, b = pair
    plan(a, A, AB)
    plan(b, AB, A.replace(" ", "  "))
    answer = run("schemas", "diff", "t", "-c", config, "--json")
    assert answer.code == 0
    assert [row["versions"] for row in answer.json["schemas"]] == [{"a": 0, "b": 1}, {"a": 1, "b": 0}]
    plan(b, A, AC)
    answer = run("schemas", "diff", "t", "-c", config)
    assert answer.code == 1
    shown = [line.split() for line in answer.out.splitlines() if "AVRO" in line]
    assert sorted(line[-2:] for line in shown) == [["-", "1"], ["0", "0"], ["1", "-"]]
    assert one_line(answer) == "the clusters differ: R(a, c) is not in force in a, R(a, b) is not in force in b"
    plan(b, A)
    told = [{"version": 5, "type": "AVRO", "timestamp": 0, "data": AB, "properties": {}, "state": "foreign"}]
    b.answer("GET /geo/v1/schemas/public/default/t", b.answers["GET /geo/v1/schemas/public/default/t"][1] + told)
    answer = run("schemas", "diff", "t", "-c", config)
    assert "5 (foreign)" in answer.out
    assert one_line(answer) == "the clusters differ: R(a, b) is not in force in b"
    # What is in force nowhere any more is shown, and is no difference.
    for broker in (a, b):
        plan(broker)
        broker.answer("GET /geo/v1/schemas/public/default/t", [told[0] | {"state": "deleted"}])
    answer = run("schemas", "diff", "t", "-c", config)
    assert (answer.code, answer.err, answer.out.count("5 (deleted)")) == (0, "", 2)
    plan(a, *(record(("a", "int"), (f"x{n}", "int")) for n in range(5)))
    plan(b)
    assert one_line(run("schemas", "diff", "t", "-c", config)).endswith(", R(a, x2) is not in force in b, 2 more")
    for broker in (a, b):
        plan(broker)
    assert run("schemas", "diff", "t", "-c", config).out == "persistent://public/default/t has no schema in a, b\n"
    assert run("schemas", "diff").code == 2


def test_delete_asks_first(fake: FakeBroker, run: Run) -> None:
    assert "--yes" in one_line(run("schemas", "delete", "t", "--admin-url", fake.url))
    assert fake.changes == []
    for words, query in (((), ""), (("--force",), "?force=true")):
        fake.answer(f"DELETE {AT}/schema{query}", {"version": 1})
        assert run("schemas", "delete", "t", "--yes", *words, "--admin-url", fake.url).code == 0


def test_files_that_are_none(fake: FakeBroker, run: Run, tmp_path: Path) -> None:
    binary, large = tmp_path / "binary", tmp_path / "large"
    binary.write_bytes(b"\xff")
    large.write_bytes(b" " * (1 << 20) + b" ")
    for path, reason in ((tmp_path / "no", "cannot be read"), (binary, "not UTF-8"), (large, "at most")):
        assert reason in one_line(run("schemas", "upload", "t", str(path), "--admin-url", fake.url))
    assert fake.changes == []
