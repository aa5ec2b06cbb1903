"""`bench`: which suites there are, and how a failing one is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli.source_tree import bench
from magnetar.cli.source_tree import tree as source_tree
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer

Run = Callable[..., Answer]
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tree" / "bench"
    (folder / "results").mkdir(parents=True)
    good = 'import json, sys\ndef main(): pass\n# store("good"\n'
    good += 'open("bench/results/good.json", "w").write(json.dumps({"quick": "--quick" in sys.argv}))\n'
    (folder / "good.py").write_text(good)
    (folder / "bad.py").write_text('def main(): pass\n# store("bad"\nraise SystemExit(3)\n')
    (folder / "helper.py").write_text("def main(): pass\n")
    (folder / "__init__.py").touch()
    monkeypatch.setattr(bench, "source_tree", lambda *_: folder.parent)
    return folder.parent


def test_the_suites_of_this_tree() -> None:
    assert {"bookkeeper_pulsar", "broker", "links", "links_pulsar", "moves", "peers_pulsar", "storage"} <= set(
        bench.suites_of(ROOT / "bench")
    )
    assert "loadgen" not in bench.suites_of(ROOT / "bench")


def test_a_suite_runs(tree: Path, run: Run) -> None:
    assert run("bench", "good", "--quick", "--json").json == {"good": {"quick": True}}
    assert "kept in" in run("bench", "good").out


def test_a_suite_that_keeps_nothing(tree: Path, run: Run) -> None:
    (tree / "bench" / "peer.py").write_text('def main(): pass\n# store("peer"\nprint("skipped: there is no `java`")\n')
    assert run("bench", "peer", "--json").json == {"peer": None}


def test_a_suite_that_fails(tree: Path, run: Run) -> None:
    assert "benchmark bad ended with exit code 3" in one_line(run("bench"))


def test_an_unknown_suite(tree: Path, run: Run) -> None:
    assert "did you mean good? there is bad, good" in one_line(run("bench", "goods"))


def test_a_package_without_sources(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source_tree, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "tree.py"))
    assert "part of the source tree" in one_line(run("bench"))


def test_the_tree_is_found() -> None:
    assert source_tree.source_tree("bench/results.py", "") == ROOT
    assert (ROOT / "bench" / "results.py").exists()
