"""`restore`: the plan, what it says, how it fails. What moves the messages is tested elsewhere, over whole brokers."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from magnetar.cli.commands import restore
from magnetar.core.config import load
from magnetar.jobs.restore import Restored, with_task_attempts
from magnetar.jobs.restore_plan import chosen_by, compare
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]
Pair = tuple[Path, FakeBroker, FakeBroker]
TOPIC = "persistent://public/default/t"
HELD = "GET /geo/v1/held/a"


def held(incarnation: int, *lives: tuple[int, list[list[int]]], topic: str = TOPIC, **more: Any) -> dict[str, Any]:
    told = [
        {"incarnation": life, "runs": runs, "messages": sum(e - f for f, e in runs), "entries": len(runs), "bytes": 9}
        for life, runs in lives
    ]
    return {"topic": topic, "partitions": 0, "incarnation": incarnation, "lives": told, "deleted": []} | more


@pytest.fixture
def sides(pair: Pair) -> Pair:
    (pair[0].parent / "data").mkdir()
    file = pair[0].parent / "data" / "link.token"
    file.touch(0o600)
    file.write_text("secret\n")
    for broker, name in ((pair[1], "a"), (pair[2], "b")):
        broker.answer("GET /geo/v1/status", {"cluster": name, "restored": {"messages": 0, "bytes": 0}})
    pair[2].answer("GET /geo/v1/drain", {"links": []})
    pair[1].answer(HELD, [])
    return pair


def test_the_plan_leaves_out_this_life_and_what_is_here_or_was() -> None:
    theirs = [held(1, (3, [[0, 4], [6, 10]]), (9, [[0, 5]])), held(1, (9, [[0, 5]]), topic=TOPIC + "2")]
    ours = [held(9, (3, [[0, 2]]), (9, [[0, 7]]), deleted=[[3, 2, 3]]), held(9, topic=TOPIC + "2")]
    (planned,) = compare(theirs, ours, chosen_by(()))
    assert (planned.topic, planned.held, planned.missing, planned.gaps) == (TOPIC, 8, 5, 2)
    assert planned.ours() == [(3, 0, 3)]
    assert compare(theirs, ours, chosen_by([TOPIC + "2"])) == []
    (missing_here,) = compare(theirs[1:], [], chosen_by(()))
    assert missing_here.missing == 5


def test_a_partitioned_topics_name_means_its_partitions() -> None:
    chosen = chosen_by([TOPIC])
    assert chosen(TOPIC) and chosen(TOPIC + "-partition-3") and not chosen(TOPIC + "2")


def test_all_states_are_waited_for_also_those_of_topics_that_are_not_named(
    sides: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer names a hundred; a cluster that lost its disk is behind in all. The rest was given messages again."""

    class Client:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        @staticmethod
        def topics(_to: str, *_counter: int, **_more: int) -> Any:
            return SimpleNamespace(counter=1, boot=1)

    monkeypatch.setattr("magnetar.runtime.network.link_client.LinkClient", SimpleNamespace(connect=lambda *_: Client()))
    told = iter([(["t", "u"], 2), (["v", "w"], 0), (["w", "busy"], 0), (["busy"], 0)])
    looked: list[list[str]] = []

    def drain(*_: object) -> Any:
        names, more = next(told)
        looked.append(names)
        topics = [{"topic": name} for name in names]
        other = {"target": "c", "topics": [{"topic": "x"}], "topics_waiting": 9}
        return {"links": [other, {"target": "a", "topics": topics, "topics_waiting": len(names) + more}]}

    both = restore.Sides(load(sides[0]), "a", "b", [])
    monkeypatch.setattr(both, "_there", SimpleNamespace(get=drain))
    said: list[str] = []
    both.wait_for_states(said.append)
    assert looked[-1] == ["busy"] and len(looked) == 4
    assert said == ["waiting for the link b:a to bring the subscriptions' states first"]


def test_dry_run_changes_nothing(sides: Pair, run: Run) -> None:
    path, a, b = sides
    b.answer(HELD, [held(1, (3, [[0, 1000], [1002, 1234]]))])
    answer = run("restore", "a", "--from", "b", "--dry-run", "-c", path)
    assert answer.code == 0, answer.err
    assert "1,232 messages would come back" in answer.out
    (row,) = run("restore", "a", "--from", "b", "--dry-run", "-c", path, "--json").json
    assert (row["to_restore"], row["gaps"]) == (1232, 2)
    assert a.changes == b.changes == []


def test_a_topic_that_the_peer_does_not_hold_is_named(sides: Pair, run: Run) -> None:
    """It may be misspelt."""
    path, _, b = sides
    b.answer(HELD, [held(1, (3, [[0, 4]]), topic=f"{TOPIC}-partition-1")])
    words = ("restore", "a", "--from", "b", "-c", path, "--dry-run", "--topic", TOPIC, "--topic", "misspelt")
    answer = run(*words)
    notes = [line for line in answer.out.splitlines() if line.startswith("note: ")]
    assert notes == ["note: b holds nothing of persistent://public/default/misspelt from before a lost its disk"]
    assert len(run(*words, "--json").json) == 1


def test_nothing_to_restore_needs_no_spark(sides: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, b = sides
    monkeypatch.setattr(restore, "_run", lambda *_: pytest.fail("Spark was started"))
    b.answer(HELD, [held(1, (3, [[0, 4]]))])
    a.answer(HELD, [held(9, (3, [[0, 4]]))])
    assert "a got 0 messages back from b" in run("restore", "a", "--from", "b", "-c", path).out


def test_what_came_back_and_what_is_nowhere(sides: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, b = sides
    b.answer(HELD, [held(1, (3, [[1, 5]]))])

    def job(_config: Any, _sides: Any, plan: Any, _master: Any) -> list[Restored]:
        a.answer(HELD, [held(9, (3, [[1, 5]]))])
        return [Restored(one.topic, stored=one.missing) for one in plan]

    monkeypatch.setattr(restore, "_run", job)
    answer = run("restore", "a", "--from", "b", "-c", path)
    assert answer.code == 0, answer.err
    assert "restoring 4 messages of a from b" in answer.out and "a got 4 messages back from b" in answer.out
    assert "1 messages are not in b" in answer.out
    assert "does not report the position of its link" in answer.out, "nobody listens at the Pulsar port of the pair"


def test_a_blocked_topic_fails_in_one_line(sides: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, b = sides
    b.answer(HELD, [held(1, (3, [[0, 4]]))])
    reason = "namespace public/default does not exist in a: magnetar namespaces create ..."
    monkeypatch.setattr(restore, "_run", lambda *_: [Restored(TOPIC, blocked="policy", reason=reason)])
    answer = run("restore", "a", "--from", "b", "-c", path, "--json")
    assert one_line(answer).endswith(f"4 messages that b holds did not come back: {TOPIC} blocked: policy: {reason}")
    assert (answer.code, answer.json["missing"]) == (1, 4)


def test_wrong_use(sides: Pair, run: Run) -> None:
    path, a, _ = sides
    assert "from itself" in one_line(run("restore", "a", "--from", "a", "-c", path))
    assert "nowhere" in one_line(run("restore", "a", "--from", "nowhere", "-c", path))
    assert run("restore", "a", "-c", path).code == 2
    a.answer("GET /geo/v1/status", {"cluster": "c"})
    assert "answers as cluster c, not a: check the configuration" in one_line(
        run("restore", "a", "--from", "b", "-c", path)
    )


@pytest.mark.parametrize(
    ("master", "made"),
    [
        ("local[2,4]", "local[2,2]"),
        ("local[*]", "local[*,2]"),
        ("local", "local"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_local_masters_repeat_once(master: str, made: str) -> None:
    assert with_task_attempts(master) == made
