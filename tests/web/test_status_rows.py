"""How many replicated subscriptions a status shows, and what it says of the others."""

from typing import Any

import pytest

from magnetar.admin.routes.geo import STATUS_SUBSCRIPTIONS_MAX
from tests.web.conftest import Tell, World


@pytest.mark.parametrize(
    ("subscriptions", "counted", "more"),
    [
        (STATUS_SUBSCRIPTIONS_MAX - 1, 0, 0),
        (STATUS_SUBSCRIPTIONS_MAX, STATUS_SUBSCRIPTIONS_MAX, 0),
        (STATUS_SUBSCRIPTIONS_MAX + 1, 0, 1),
        (STATUS_SUBSCRIPTIONS_MAX + 1, 5_000, 5_000 - STATUS_SUBSCRIPTIONS_MAX),
    ],
)
def test_what_is_left_out_is_counted(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, subscriptions: int, counted: int, more: int
) -> None:
    async def story(world: World) -> None:
        metrics: dict[str, Any] = {"mode": "exact", "counters": {"exact_subscriptions": counted}}
        monkeypatch.setattr(world.control.replicated, "metrics", lambda: metrics)
        for number in range(subscriptions):
            topic = f"persistent://public/default/t{number:04}"
            world.create(topic)
            world.call(lambda done, topic=topic: world.control.subscriptions.create(topic, "s", None, True, {}, done))  # type: ignore[misc]
        told = (await world.ask("GET", "/geo/v1/status")).json
        assert len(told["replicated"]) == min(subscriptions, STATUS_SUBSCRIPTIONS_MAX)
        assert told["replicated_more"] == more

    tell(story)
