"""`drain`: what it names, when it ends, how it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli import drain
from tests.unit.cli.conftest import Answer, FakeBroker
from tests.unit.cli.test_commands import one_line

Run = Callable[..., Answer]
Pair = tuple[Path, FakeBroker, FakeBroker]
TOPIC = "persistent://public/default/t"


def link(*topics: dict[str, Any]) -> dict[str, Any]:
    return {
        "target": "b", "state": "up", "detail": "", "topics_waiting": len(topics),
        "messages": sum(topic["messages"] for topic in topics), "entries": sum(topic["entries"] for topic in topics),
        "topics": list(topics),
    }  # fmt: skip


def waits(reason: str = "on its way", messages: int = 3, entries: int = 3) -> dict[str, Any]:
    return {"topic": TOPIC, "messages": messages, "entries": entries, "blocked": "", "reason": reason}


def state(**more: Any) -> dict[str, Any]:
    return {
        "cluster": "a", "uuid": "u", "safe": False, "links": [link()], "producers_connected": 0, "producers": [],
        "writes": 0, "subscriptions_waiting": 0, "subscriptions": [], "only_here_topics": 0, "only_here_messages": 0,
        "unlinked": {},
    } | more  # fmt: skip


@pytest.fixture
def token(pair: Pair) -> None:
    (pair[0].parent / "data").mkdir()
    file = pair[0].parent / "data" / "link.token"
    file.touch(0o600)
    file.write_text("secret\n")


@pytest.mark.usefixtures("token")
def test_what_waits_is_named_with_its_reason(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", state(links=[link(waits("paused: magnetar links resume a:b --topic t"))]))
    said = one_line(run("drain", "a", "--timeout", "0", "-c", path))
    assert "it is not safe to switch a off" in said
    assert f"a:b {TOPIC}: 3 messages not delivered, paused: magnetar links resume a:b" in said


@pytest.mark.usefixtures("token")
def test_producers_and_subscriptions_are_named(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    producer = {"topic": TOPIC, "producer": "p-1", "address": "127.0.0.1:5"}
    subscription = {"topic": TOPIC, "subscription": "s", "reason": "2 acknowledgements are not written yet"}
    found = state(producers=[producer], producers_connected=7, subscriptions=[subscription], subscriptions_waiting=1)
    a.answer("GET /geo/v1/drain", found)
    answer = run("drain", "a", "--timeout", "0", "-c", path, "--json")
    said = one_line(answer)
    assert answer.code == 1 and answer.json["safe"] is False and answer.json["producers"] == [producer]
    assert f"producer p-1 (127.0.0.1:5) is connected to {TOPIC}" in said
    assert "6 more producers are connected" in said
    assert "subscription s of" in said


@pytest.mark.usefixtures("token")
def test_safe_is_not_said_before_the_destination_was_asked(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", state(safe=True))
    answer = run("drain", "a", "--timeout", "0", "-c", path)  # nobody listens at the Pulsar ports of the pair
    assert answer.code == 1
    assert "what b has cannot be asked" in one_line(answer)


@pytest.mark.usefixtures("token")
def test_it_ends_when_it_is_safe(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "unconfirmed", lambda *_: [])
    monkeypatch.setattr(drain, "_listen", lambda *_: None)
    monkeypatch.setattr(drain, "LOOK_S", 0.01)
    monkeypatch.setattr(drain, "PAUSE_S", 0.0)
    answers = iter([state(links=[link(waits())]), state(producers_connected=1)])
    look = drain.look

    def next_look(*arguments: Any) -> dict[str, Any]:
        a.answer("GET /geo/v1/drain", next(answers, state(safe=True, only_here_messages=4, only_here_topics=2)))
        return look(*arguments)

    monkeypatch.setattr(drain, "look", next_look)
    answer = run("drain", "a", "-c", path)
    assert answer.code == 0, answer.err
    assert "waiting: 3 messages not delivered" in answer.out
    assert "note: 4 messages of 2 topics are in a alone" in answer.out
    assert answer.out.endswith("a can be switched off now: its links have delivered everything\n")
    a.answer("GET /geo/v1/drain", state(safe=True))
    assert run("drain", "a", "-c", path, "--json").json["safe"] is True


@pytest.mark.usefixtures("token")
def test_a_timeout_is_one_line(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "_listen", lambda *_: None)
    a.answer("GET /geo/v1/drain", state(links=[link(waits(messages=0, entries=2))], writes=1))
    answer = run("drain", "a", "--timeout", "0.2", "-c", path)
    assert answer.code == 1
    assert "2 markers of replicated subscriptions not delivered, on its way" in one_line(answer)


def test_without_token_or_cluster_it_says_what_would_be_right(pair: Pair, run: Run) -> None:
    path, _, _ = pair
    assert "set token_file" in one_line(run("drain", "a", "-c", path))
    assert "nowhere" in one_line(run("drain", "nowhere", "-c", path))


@pytest.mark.usefixtures("token")
def test_another_cluster_at_the_address_says_nothing_of_this_one(
    pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "unconfirmed", lambda *_: [])
    a.answer("GET /geo/v1/drain", state(cluster="b", safe=True))
    assert one_line(run("drain", "a", "--timeout", "0", "-c", path)) == f"{a.url} is b, not a: check the configuration"


@pytest.mark.usefixtures("token")
def test_a_dead_cluster_is_no_drained_one(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", {"reason": "starting"}, 503)
    assert "starting" in one_line(run("drain", "a", "-c", path))
