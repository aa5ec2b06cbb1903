"""How long acknowledgements are collected before they are told to other clusters."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.replicated_subscriptions.registry import INTERVAL_MS_MAX, ReplicatedSubscriptions
from magnetar.core.ids import Position

SHORTEST = 100
NOW = 1_000_000
MARKER = Position(5, 7)


def interval(*links: tuple[Position, int], written_ms: int) -> int:
    """With links that got so far and read last then."""
    topics = [SimpleNamespace(wanted=True, cursor=SimpleNamespace(c=c), read_ms=read_ms) for c, read_ms in links]
    sources = {str(number): SimpleNamespace(topics={"t": state}) for number, state in enumerate(topics)}
    registry = SimpleNamespace(
        context=SimpleNamespace(outbox=SimpleNamespace(now_ms=NOW)),
        links=SimpleNamespace(sources=sources),
        settings=SimpleNamespace(ack_sync_interval_ms=SHORTEST),
    )
    progress = SimpleNamespace(waiting_since=lambda carried: 0 if carried >= MARKER else written_ms)
    return ReplicatedSubscriptions.interval_ms(cast("Any", registry), "t", cast("Any", progress))


@pytest.mark.parametrize(
    ("links", "written_ms", "expected"),
    [
        # Nobody reads because there was nothing to read: as fast as ever. (It was collected for as long as the topic had
        # been idle, and acknowledgements were seconds late after every pause.)
        ([(Position(5, 6), NOW - 60_000)], NOW - 50, SHORTEST),
        # The marker before waits for a link that is down: collected for as long as it has been waiting.
        ([(Position(5, 6), NOW - 60_000)], NOW - 3_000, 3_000),
        ([(Position(5, 6), 0)], NOW - 60_000, INTERVAL_MS_MAX),
        # One that keeps up is enough.
        ([(Position(5, 6), 0), (MARKER, 0)], NOW - 60_000, SHORTEST),
        # It was read and is on its way.
        ([(Position(5, 6), NOW - 300)], NOW - 3_000, 300),
        ([], NOW - 3_000, SHORTEST),
    ],
)
def test_collected_for_as_long_as_nobody_reads(
    links: list[tuple[Position, int]], written_ms: int, expected: int
) -> None:
    assert interval(*links, written_ms=written_ms) == expected
