"""A file of figures names the command that made it."""

import json
from pathlib import Path

import pytest
from bench import results


@pytest.mark.parametrize(
    ("suite", "command", "written"),
    [
        ("follow_positions", ["/tree/bench/follow.py", "positions"], "python -m bench.follow positions"),
        (
            "links_pulsar_far",
            ["/tree/bench/links.py", "--peer", "pulsar", "--topics", ""],
            "python -m bench.links --peer pulsar --topics ''",
        ),
    ],
)
def test_it_is_the_program_that_ran(
    suite: str, command: list[str], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.store(suite, [results.Figure("a", 1.0, "s")], command)
    assert json.loads((tmp_path / f"{suite}.json").read_text())["command"] == written
