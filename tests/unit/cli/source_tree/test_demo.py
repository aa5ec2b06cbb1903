"""`magnetar demo`: the door to the example, and what its command refuses."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from examples.demo import command
from examples.demo.running import Options

from magnetar.cli.source_tree import tree as source_tree
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer

ROOT = Path(__file__).resolve().parents[4]


def test_a_folder_that_holds_something_is_not_touched(run: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert "is not empty" in one_line(run("demo", "--folder", tmp_path))


def test_a_demo_that_lost_something_fails(
    run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "play", lambda *_: {"ok": False, "faults": ["3 lost", "1 twice"]})
    line = one_line(run("demo", "--folder", tmp_path / "new"))
    assert line == f"3 lost; 1 twice; everything is left in {tmp_path / 'new'}"
    monkeypatch.setattr(command, "play", lambda *_: {"ok": True, "faults": []})
    assert run("demo").code == 0


def test_every_word_goes_to_the_example(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def play(_: Path, options: Options) -> dict[str, object]:
        seen.append(options)
        return {"ok": True, "faults": []}

    monkeypatch.setattr(command, "play", play)
    assert run("demo", "--fast", "--flights", "1000", "--json").code == 0
    assert run("demo").code == 0
    assert [(one.each_max, one.brief, one.as_json) for one in seen] == [(1000, True, True), (None, False, False)]


def test_help_is_the_examples(run: Callable[..., Answer]) -> None:
    for word in ("--help", "-h"):
        answer = run("demo", word)
        assert answer.code == 0
        assert "--per-second" in answer.out
        assert "Example: magnetar demo --fast" in answer.out


def test_a_wrong_option_is_wrong_usage(run: Callable[..., Answer]) -> None:
    answer = run("demo", "--fats")
    assert answer.code == 2
    assert "No such option: --fats" in answer.err


def test_a_package_without_sources(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source_tree, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "tree.py"))
    for words in ((), ("--fast",), ("--help",)):
        assert "part of the source tree (examples/demo)" in one_line(run("demo", *words))


def test_the_module_is_the_same_command() -> None:
    words = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(
        [*words, "--flights", "1"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: magnetar demo [OPTIONS]")


def test_the_module_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    words = [sys.executable, "-m", "examples.demo", "--folder", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert done.stderr == f"magnetar: {tmp_path} is not empty: name a new folder for the demo\n"
