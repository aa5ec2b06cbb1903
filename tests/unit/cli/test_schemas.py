"""`magnetar schemas`: which request each command makes, and how answers come out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Answer, FakeBroker
from tests.unit.cli.test_commands import one_line

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


def test_check_says_why_not(fake: FakeBroker, run: Run, file: str) -> None:
    ask = ("schemas", "check", "t", file, "--admin-url", fake.url)
    fake.answer(f"POST {AT}/compatibility", {"compatibility": True, "schemaCompatibilityStrategy": "FULL"})
    assert run(*ask).out == "compatible (FULL)\n"
    answer = {"compatibility": False, "schemaCompatibilityStrategy": "FULL", "reason": "the type is JSON, not AVRO"}
    fake.answer(f"POST {AT}/compatibility", answer)
    assert one_line(run(*ask)) == "not compatible: the type is JSON, not AVRO"


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
