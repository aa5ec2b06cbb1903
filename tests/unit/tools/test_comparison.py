"""Tables of the comparison with Apache Pulsar are what the files of figures give."""

import json
from pathlib import Path

import pytest
from tools import generate_comparison as made

MACHINE = {"command": "python -m bench.x", "when": "2026-01-01 00:00 UTC", "commit": "abc", "machine": {"cpus": 2}}


def kept(folder: Path, name: str, figures: list[dict[str, object]]) -> None:
    """A file of figures."""
    (folder / f"{name}.json").write_text(json.dumps({**MACHINE, "figures": figures}))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A link that is twice as fast and costs three times as much, a broker with half the rate, and a move."""
    monkeypatch.setattr(made, "RESULTS", tmp_path)
    plain = {"aim": "", "detail": {}}
    link = [("p50", 5.0, 10.0, "ms"), ("processor", 30.0, 10.0, "us/message")]
    figures = []
    for shown, ours, theirs, unit in link:
        figures += [
            {"name": f"1 topic: {shown}, magnetar", "value": ours, "unit": unit, **plain},
            {"name": f"1 topic: {shown}, pulsar", "value": theirs, "unit": unit, **plain},
            {"name": f"1 topic: {shown}, magnetar / pulsar", "value": ours / theirs, "unit": "ratio", **plain},
        ]
    kept(tmp_path, "links_pulsar", figures)
    rounds = {"magnetar": [{"value": 500.0}], "pulsar": [{"value": 1000.0}]}
    kept(
        tmp_path,
        "peers_pulsar",
        [
            {"name": "publish", "value": 500.0, "unit": "messages/s", "aim": "", "detail": {"rounds": rounds}},
            {"name": "publish: beside pulsar", "value": 0.5, "unit": "ratio", **plain},
        ],
    )
    repeated = {"rounds": [{"acknowledged": 2000, "repeated": 7}, {"acknowledged": 2001, "repeated": 9}]}
    kept(tmp_path, "moves", [{"name": "pulsar: at once", "value": 8, "unit": "of 2000", "aim": "", "detail": repeated}])
    return tmp_path


def test_a_lower_time_and_a_higher_rate_are_ahead(results: Path) -> None:
    ahead, behind, alike = (made.TABLES[name]() for name in ("ahead", "behind", "alike"))
    assert "| link: 1 topic: p50 | 5 ms | 10 ms | 0.50 |" in ahead
    assert "| link: 1 topic: processor | 30 us/message | 10 us/message | 3.00 |" in behind
    assert "| broker: publish | 500 messages/s | 1,000 messages/s | 0.50 |" in behind
    assert ahead.count("\n| link") + behind.count("\n| link") == 2
    assert alike == "\nNone.\n"


def test_every_round_of_a_move_is_shown(results: Path) -> None:
    assert "| at once |  | 7 / 9 of 2,000 |" in made.TABLES["moves"]()


def test_what_was_not_measured_names_its_command(results: Path) -> None:
    assert "`python -m bench.links --peer pulsar --one-way 0.04`" in made.TABLES["links_pulsar_far"]()


def test_latencies_are_next_to_their_goals(results: Path) -> None:
    figures = [
        {"name": "positions: staleness p50", "value": 14.2, "unit": "ms", "aim": "< 20"},
        {"name": "positions: staleness p99", "value": 61.0, "unit": "ms", "aim": "< 60"},
    ]
    kept(results, "follow_positions", figures)
    text = made.TABLES["follow"]()
    assert "| positions: staleness | 14.2 ms (goal: < 20) | missed: 61 ms (goal: < 60) |" in text
    assert f"`{MACHINE['command']}`, 2026-01-01 00:00 UTC" in text
    assert "Not measured yet: `python -m bench.follow metadata`" in text


def test_a_link_has_a_line_for_each_case_and_each_figure_of_the_whole(results: Path) -> None:
    case = [("p50", 6.8, "ms"), ("p99", 14.3, "ms"), ("processor", 6.15, "ms/message")]
    figures = [{"name": "idle", "value": 1.5, "unit": "% of a core", "aim": "< 2"}]
    figures += [
        {"name": f"1 topic, 50/s: {what}", "value": value, "unit": unit, "aim": ""} for what, value, unit in case
    ]
    kept(results, "link_latency", figures)
    text = made.TABLES["link_latency"]()
    assert "| 1 topic, 50/s | 6.8 ms | 14.3 ms | 6.15 ms/message |" in text
    assert "| idle | 1.5 % of a core (goal: < 2) |" in text


def test_only_blocks_change(results: Path) -> None:
    text = "before\n<!-- figures: moves -->\nold\n<!-- end of figures -->\nafter\n"
    once = made.page(text)
    assert once.startswith("before\n<!-- figures: moves -->\n")
    assert once.endswith("<!-- end of figures -->\nafter\n")
    assert "old" not in once
    assert made.page(once) == once


def test_the_pages_are_current() -> None:
    for path in made.PAGES:
        text = path.read_text(encoding="utf-8")
        assert "<!-- figures: " in text
        assert made.page(text) == text, f"{path.name}: run `make docs`"
