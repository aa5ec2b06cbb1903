"""A start waits for bookies that are not registered yet."""

import logging
import threading

import pytest

from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.enough_bookies import EnoughBookies
from magnetar.runtime.broker_storage import GivenUp


class Waiting:
    """A wait on a thread of its own."""

    def __init__(self, bookies: int, lost: str = "", **times: float) -> None:
        self.bookies = bookies
        self.lost = lost
        self.error: Exception | None = None
        self.looked = threading.Event()
        self.enough = EnoughBookies(3, lambda: self.lost, **times)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def outcome(self) -> Exception | None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.error

    def _wait(self) -> None:
        try:
            self.enough.wait(self._count, lambda number: f"{number} bookies take entries")
        except (StorageError, GivenUp) as error:
            self.error = error

    def _count(self) -> int:
        self.looked.set()
        return self.bookies


def test_enough_are_no_reason_to_wait() -> None:
    assert Waiting(3, bookies_s=0, lost="gone").outcome() is None


def test_it_goes_on_when_they_are_there(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        waiting = Waiting(2, patience_s=0)
        assert waiting.looked.wait(30)
        waiting.bookies = 3
        waiting.enough.changed()
        assert waiting.outcome() is None
    # The line is there once, whatever the number of looks, unless the bookies were there before the first look.
    assert {record.getMessage() for record in caplog.records} <= {"2 bookies take entries; the broker waits for 30 s"}


def test_what_is_missing_is_said_soon_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        waiting = Waiting(2, bookies_s=0.2, patience_s=0)
        for _ in range(5):
            waiting.enough.changed()
        assert str(waiting.outcome()) == "2 bookies take entries"
    assert [record.getMessage() for record in caplog.records] == ["2 bookies take entries; the broker waits for 0.2 s"]


def test_it_can_be_given_up() -> None:
    waiting = Waiting(2)
    assert waiting.looked.wait(30)
    waiting.enough.give_up()
    assert isinstance(waiting.outcome(), GivenUp)


def test_another_broker_may_serve_meanwhile() -> None:
    waiting = Waiting(2)
    assert waiting.looked.wait(30)
    waiting.lost = "the lease is over"
    waiting.enough.changed()
    assert str(waiting.outcome()) == "the lease is over"
