"""`magnetar status`: replicated subscriptions, for whom they wait, and what is not shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.commands.status import differing_modes, subscription_rows, trouble
from tests.support.broker_status import TOPIC, status
from tests.unit.cli.conftest import Answer, FakeBroker

NOW_MS = 61_000


def state(**more: Any) -> dict[str, Any]:
    """A replicated subscription as a broker in exact mode tells it."""
    return {
        "topic": TOPIC, "subscription": "s", "markDeletePosition": "7:1", "backlog": 0, "backlogMessages": 0, "consumers": 1,
        "mode": "exact", "stalled": "", "pending": 0, "heldBy": [], "lastReceivedMs": {},
        "towards": {"b": {"lagMessages": 0, "lagMs": 0, "stalled": ""}},
    } | more  # fmt: skip


def snapshot(**more: Any) -> dict[str, Any]:
    """One in snapshot mode."""
    nothing: dict[str, Any] = {"missing": {}, "waitingFor": [], "pendingSince": 0, "droppedAt": 0, "dropped": 0}
    return state(mode="snapshot", **(nothing | more))


def detail(one: dict[str, Any]) -> str:
    (row,) = subscription_rows({"a": {"replicated": [one], "now_ms": NOW_MS}})
    return str(row["detail"])


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (state(), ""),
        (snapshot(), ""),
        (snapshot(missing={"c": 1_000}), "c has not answered a snapshot for 60.0 s"),
        (snapshot(waitingFor=["b", "c"], pendingSince=59_000), "a snapshot waits for b, c for 2.0 s"),
        (snapshot(droppedAt=31_000, dropped=2), "the last snapshot was dropped 30.0 s ago"),
        (
            snapshot(missing={"b": 1_000}, droppedAt=31_000, dropped=1, stalled="b is silent"),
            "b is silent",
        ),
        (
            snapshot(missing={"b": 1_000}, droppedAt=31_000, dropped=1),
            "b has not answered a snapshot for 60.0 s; the last snapshot was dropped 30.0 s ago",
        ),
        (
            state(heldBy=["b", "c"], lastReceivedMs={"b": 1_000}),
            "old acknowledgements are kept for b (last heard of 60.0 s ago), c (nothing heard of it since the start)",
        ),
        (state(heldBy=["b"], lastReceivedMs={"b": 1_001}), ""),
        (
            state(stalled="fenced", towards={"b": {"lagMessages": 1, "lagMs": 5, "stalled": "paused"}}, heldBy=["c"]),
            "fenced; b: paused; old acknowledgements are kept for c (nothing heard of it since the start)",
        ),
    ],
)
def test_for_whom_a_subscription_waits(one: dict[str, Any], shown: str) -> None:
    assert detail(one) == shown


def test_a_broker_that_tells_less_is_shown_all_the_same() -> None:
    old = state()
    del old["heldBy"], old["lastReceivedMs"]
    assert detail(old) == ""


def test_modes_that_differ_between_clusters() -> None:
    seen = {
        "a": {"replicated": [state(), state(subscription="t")]},
        "b": {"replicated": [snapshot(), state(subscription="t")]},
        "c": {"replicated": [state()]},
        "d": {"error": "down"},
    }
    (line,) = differing_modes(seen)
    assert line.startswith(f"subscription s of {TOPIC} is in exact mode in a, c and in snapshot mode in b: ")
    assert "magnetar namespaces set-subscription-mode" in line
    seen["b"] = {"replicated": [state()]}
    assert differing_modes(seen) == []


def test_subscriptions_that_are_consumed_in_several_clusters() -> None:
    seen = {
        "a": {"replicated": [state(consumers=2), state(subscription="t", consumers=1)]},
        "b": {"replicated": [state(consumers=1), state(subscription="t", consumers=0)]},
        "c": {"replicated": [state(consumers=0)]},
        "d": {"error": "down"},
    }
    (line,) = trouble(seen)
    assert line.startswith(f"subscription s of {TOPIC} has consumers in a and in b at once: each is sent most messages")
    seen["b"] = {"replicated": [state(consumers=0)]}
    assert trouble(seen) == []


def test_the_command_tells_of_differing_modes_and_of_what_it_does_not_show(
    pair: tuple[Path, FakeBroker, FakeBroker], run: Callable[..., Answer]
) -> None:
    path, a, b = pair
    a.answer("GET /geo/v1/status", status(replicated=[state(heldBy=["c"])], replicated_more=1_234))
    b.answer("GET /geo/v1/status", status(links=[], replicated=[snapshot()], replicated_more=0))
    shown = " ".join(run("status", "-c", path).out.split())
    assert "is in exact mode in a and in snapshot mode in b" in shown
    assert "a: 1,234 more replicated subscriptions are not shown; GET /geo/v1/subscriptions has all" in shown
    assert "b: 0 more" not in shown


def test_nothing_is_said_of_a_complete_list() -> None:
    there = state(consumers=0)
    assert trouble({"a": {"replicated": [state()], "replicated_more": 0}, "b": {"replicated": [there]}}) == []
