"""What waits until something is ready."""

import pytest

from magnetar.core.ready_gate import ReadyGate


def test_what_comes_early_is_called_in_order_at_the_release_and_what_comes_late_at_once() -> None:
    called: list[str] = []
    ready = False
    gate = ReadyGate(lambda: ready)
    gate.when_open(lambda: called.append("first"))
    gate.when_open(lambda: called.append("second"))
    gate.validate()
    assert called == []
    ready = True
    gate.when_open(lambda: called.append("late"))
    with pytest.raises(AssertionError, match="something waits at an open gate"):
        gate.validate()
    gate.release()
    gate.release()
    gate.validate()
    assert called == ["late", "first", "second"]


def test_what_waits_again_while_it_is_released_waits_for_the_next_release() -> None:
    called: list[int] = []
    gate = ReadyGate(lambda: False)

    def again() -> None:
        called.append(len(called))
        gate.when_open(again)

    gate.when_open(again)
    gate.release()
    assert called == [0]
    gate.release()
    assert called == [0, 1]
