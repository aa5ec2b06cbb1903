"""`links` and `status`: what they ask, what they show, and that nothing is skipped unasked."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli.commands.links import rate_of
from magnetar.cli.shared.common import cell, duration, size
from magnetar.core.errors import MagnetarError
from tests.support.broker_status import TOPIC, link, status
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]
Pair = tuple[Path, FakeBroker, FakeBroker]
QUOTED = "persistent%3A%2F%2Fpublic%2Fdefault%2Ft"


def test_pause_and_resume_at_the_source(pair: Pair, run: Run) -> None:
    path, a, b = pair
    b.answer("POST /geo/v1/links/a/pause")
    b.answer(f"POST /geo/v1/links/a/resume?topic={QUOTED}")
    assert run("links", "pause", "b:a", "-c", path).out == "paused b:a\n"
    assert run("links", "resume", "b:a", "--topic", "t", "-c", path).code == 0
    assert len(b.changes) == 2
    assert a.requests == []


def test_throttle(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("POST /geo/v1/links/b/throttle")
    assert run("links", "throttle", "a:b", "10MB", "-c", path).out == "a:b sends at most 10.0 MB/s\n"
    assert run("links", "throttle", "a:b", "off", "-c", path).out == "a:b sends without a limit\n"
    assert [body for _, body in a.changes] == [{"bytes_per_s": 10_000_000}, {}]


@pytest.mark.parametrize(
    ("text", "rate"), [("1", 1), ("500kB", 500_000), ("2 GB/s", 2 * 10**9), ("10m", 10**7), ("off", None)]
)
def test_rates(text: str, rate: int | None) -> None:
    assert rate_of(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.5MB", "k", "9" * 20, "9" * 5_000, "1TB"])
def test_no_rates(text: str) -> None:
    with pytest.raises(MagnetarError, match="is not a rate"):
        rate_of(text)


def test_skip_says_what_is_lost_and_asks(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    part = {"topic": TOPIC, "through": "7:9", "messages": 1234, "entries": 5, "bytes": 900}
    a.answer("POST /geo/v1/links/b/skip?through=blocked&preview=true", {"messages": 1234, "topics": [part]})
    answer = run("links", "skip", "a:b", "-c", path)
    assert "Lose 1,234 messages on a:b?" in one_line(answer)
    assert "7:9" in answer.out
    assert len(a.changes) == 1  # the preview alone
    a.answer(f"POST /geo/v1/links/b/skip?topic={QUOTED}&through=7%3A9", {"messages": 1234, "topics": [part]})
    answer = run("links", "skip", "a:b", "-c", path, "--yes")
    assert "skipped 1,234 messages on a:b" in answer.out
    assert run("links", "skip", "a:b", "-c", path, "--yes", "--json").json["messages"] == 1234


def test_the_question_is_no_part_of_the_json(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path, a, _ = pair
    part = {"topic": TOPIC, "through": "7:9", "messages": 3, "entries": 3, "bytes": 9}
    a.answer("POST /geo/v1/links/b/skip?through=blocked&preview=true", {"messages": 3, "topics": [part]})
    a.answer(f"POST /geo/v1/links/b/skip?topic={QUOTED}&through=7%3A9", {"messages": 3, "topics": [part]})
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    answer = run("links", "skip", "a:b", "-c", path, "--json")
    assert answer.code == 0 and answer.json["messages"] == 3
    assert "Lose 3 messages on a:b?" in answer.err


def test_a_skip_that_stops_half_way_says_what_is_lost(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    parts = [{"topic": f"{TOPIC}{n}", "through": "7:9", "messages": 3, "entries": 3, "bytes": 9} for n in range(3)]
    a.answer("POST /geo/v1/links/b/skip?through=blocked&preview=true", {"messages": 9, "topics": parts})
    asked = [f"POST /geo/v1/links/b/skip?topic={QUOTED}{n}&through=7%3A9" for n in range(3)]
    a.answer(asked[0], {"messages": 3, "topics": parts[:1]})
    a.answer(asked[1], {"reason": "the disk is full"}, 503)
    answer = run("links", "skip", "a:b", "-c", path, "--yes")
    assert one_line(answer) == (
        f"{TOPIC}1: the disk is full; 3 messages of 1 other topics are skipped, 2 topics are not: run the command again"
    )


def test_nothing_to_skip(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("POST /geo/v1/links/b/skip?through=latest&preview=true", {"messages": 0, "topics": []})
    assert "nothing to skip" in one_line(run("links", "skip", "a:b", "--through", "latest", "-c", path))


def test_list_of_links_when_one_cluster_is_down(pair: Pair, run: Run) -> None:
    path, a, b = pair
    a.answer("GET /geo/v1/links", [link()])
    b.answer("GET /geo/v1/links", {"reason": "starting"}, 503)
    answer = run("links", "list", "-c", path)
    assert "a:b" in answer.out
    assert "5.6 s" in answer.out
    assert one_line(answer) == "b: starting"


def test_status_shows_the_cluster_that_is_down_and_is_no_failure(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/status", status())
    answer = run("status", "-c", path)
    assert (answer.code, answer.err) == (0, "")
    first, second = (line for line in answer.out.splitlines() if line.split()[:1] in (["a"], ["b"]))
    assert first.split()[:2] == ["a", "up"]
    assert "60.0 s" in first
    assert second.split()[:2] == ["b", "down"]
    assert "pulsar://127.0.0.1:2" in second


def test_status_when_nobody_answers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text('[clusters.a]\npulsar = "127.0.0.1:2"\nhttp = "127.0.0.1:1"\n')
    answer = run("status")
    assert "connection refused" in answer.out
    assert "magnetar up" in one_line(answer)


def test_status_names_every_trouble(pair: Pair, run: Run) -> None:
    path, a, b = pair
    blocked = {"target": "b", "topic": TOPIC, "blocked": "size", "blocked_detail": "too big", "blocked_since_ms": 1_000}
    topics = [
        {"topic": "t1", "orphan": True, "paused": False, "blocked": ""},
        {"topic": "t2", "orphan": False, "paused": True, "blocked": "", "gap_messages": 1500},
    ]
    incoming = {"b": {"uuid": "u", "blocked": "identity", "detail": "two uuids"}}
    a.answer("GET /geo/v1/status", status(blocked=[blocked], links=[link(topics=topics)], incoming=incoming))
    b.answer("GET /geo/v1/status", status(links=[], unlinked={"public/default": ["c", "d"]}))
    shown = " ".join(run("status", "-c", path).out.split())
    assert f"a:b {TOPIC} blocked: size for 60.0 s: too big" in shown
    assert "b:a blocked: identity: two uuids" in shown
    assert "a:b t1: its link or policy is gone" in shown
    assert "a:b t2: 1,500 messages were deleted before they could be sent" in shown
    assert "a:b t2: paused" in shown
    assert "b: namespace public/default names c, d, but no link leads there: nothing is sent or kept" in shown
    assert "magnetar namespaces set-clusters public/default" in shown


def test_status_names_what_a_data_folder_lost(pair: Pair, run: Run) -> None:
    path, a, b = pair
    a.answer("GET /geo/v1/status", status(broker={**status()["broker"], "unknownTopics": 2}))
    b.answer("GET /geo/v1/status", status(broker={**status()["broker"], "lostEntries": 1_500}))
    shown = " ".join(run("status", "-c", path).out.split())
    assert "a: 2 topics are in the log and not in the metadata store" in shown
    assert "b: 1,500 stored entries are not in the log: stop the broker, and magnetar recover b" in shown


def test_status_as_json(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/status", status())
    answer = run("status", "--json", "-c", path).json
    assert answer["a"]["links"][0]["lag_messages"] == 12
    assert "no answer planned" in answer["b"]["error"]
    assert "leave --json out" in one_line(run("status", "--json", "--watch", "-c", path))


def test_texts_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_500_000, 2 * 10**12)] == ["0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 TB"]
    assert [duration(n) for n in (5, 1500, 180_000, 3_600_000 * 5, 3_600_000 * 72)] == [
        "5 ms",
        "1.5 s",
        "3 min",
        "5 h",
        "3 days",
    ]
    assert [cell(v) for v in (None, True, 1234, 1.25, ["a", 1], "x\x1b[31m\n")] == [
        "",
        "yes",
        "1,234",
        "1.2",
        "a, 1",
        "x [31m ",
    ]
