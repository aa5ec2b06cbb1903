"""What a WebSocket's client does when the broker closed its producer or consumer."""

import asyncio
from typing import cast

import pytest

from magnetar.admin.websocket import reopening
from magnetar.admin.websocket.client import BrokerClient
from magnetar.admin.websocket.reopening import REOPEN_S_MAX, open_again
from magnetar.core.errors import BrokerError, ErrorCode


class Refusing:
    """A broker that refuses some attempts, and the pauses between them.

    Args:
        refusals: how many.
        ends: the connection ends with the last of them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int, *, ends: bool = False) -> None:
        self.ended = asyncio.Event()
        self.attempts = 0
        self.pauses: list[float] = []
        self._refusals, self._ends = refusals, ends
        monkeypatch.setattr(reopening.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def attempt(self) -> None:
        self.attempts += 1
        if self.attempts <= self._refusals:
            if self._ends and self.attempts == self._refusals:
                self.ended.set()
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"not yet: {self.attempts}")

    def open(self, for_s: float = 1e9) -> bool:
        return asyncio.run(open_again(cast("BrokerClient", self), self.attempt, for_s=for_s))


def test_it_asks_again_after_pauses_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Refusing(monkeypatch, 9)
    assert broker.open()
    assert broker.attempts == 10
    assert broker.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, REOPEN_S_MAX, REOPEN_S_MAX])


def test_the_last_refusal_is_told_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Refusing(monkeypatch, 9)
    with pytest.raises(BrokerError, match="not yet: 1"):
        broker.open(for_s=-1.0)
    assert broker.pauses == []


def test_nothing_is_opened_over_a_connection_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Refusing(monkeypatch, 3, ends=True)
    assert not broker.open()
    assert broker.attempts == 3
