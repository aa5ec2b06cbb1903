"""Between events the event loop's thread lets the log's thread by: when it waits, for as long as it waits, and rarely in vain."""

import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from magnetar.runtime.interpreter.gil_yield import (
    PATIENCE_GROWTH,
    PATIENCE_S,
    PAUSES_MAX,
    PAUSES_PER_S,
    GiveWay,
    ThreadState,
)


class Other:
    """A thread that works, and the time.

    Attributes:
        wants: it wants the interpreter, and has it after so many pauses.
    """

    def __init__(self) -> None:
        self.busy = False
        self.steps = 0
        self.wants = 0
        self.now_s = 100.0
        self.pauses: list[float] = []
        self.way = GiveWay(self, lambda: self.now_s, self.pause)

    def waits(self) -> bool:
        return self.wants > 0

    def pause(self) -> None:
        self.pauses.append(self.now_s)
        if self.wants:
            self.wants -= 1
            self.steps += not self.wants

    def events(self, seconds: float, every_s: float = 1e-5) -> None:
        """This thread has events to handle."""
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += every_s
            self.way.look()


def test_nobody_waits() -> None:
    other = Other()
    other.wants = 1  # an idle thread looks as if it did
    other.events(0.1)
    assert other.pauses == []


def test_whoever_wants_the_interpreter_gets_it_at_once() -> None:
    other = Other()
    other.busy = True
    other.events(1e-5)
    other.wants = 3
    other.events(1e-5)
    assert len(other.pauses) == 3
    assert not other.wants
    other.events(PATIENCE_S / 2)
    assert len(other.pauses) == 3, "it has come on: the next pause is its next step's"


def test_whoever_is_done_is_waited_for_no_longer() -> None:
    other = Other()
    other.busy = True
    other.wants = 5

    def done() -> None:
        Other.pause(other)
        other.busy = False

    other.way = GiveWay(other, lambda: other.now_s, done)
    other.events(0.1)
    assert len(other.pauses) == 1


def test_whoever_always_waits_costs_little() -> None:
    """A log that is given as much as it can take, and comes on by each pause."""
    other = Other()
    other.busy = True
    other.wants = 1_000_000
    other.events(PATIENCE_S / 2)
    assert len(other.pauses) == PAUSES_MAX
    other.pauses.clear()
    while other.now_s < 101.0:
        other.steps += 1
        other.events(PATIENCE_S / 2)
    assert 0.9 * PAUSES_PER_S < len(other.pauses) <= PAUSES_PER_S + PAUSES_MAX
    assert len(other.pauses) * 60e-6 < 0.07


def test_a_pause_comes_soon_whatever_it_waits_for() -> None:
    other = Other()
    other.events(0.01)
    other.busy = True
    other.events(1.5 * PATIENCE_S)
    assert len(other.pauses) == 1
    assert PATIENCE_S <= other.pauses[0] - 100.01 < 1.2 * PATIENCE_S


def test_whoever_comes_on_by_itself_needs_no_pause() -> None:
    other = Other()
    other.busy = True
    for _ in range(100):
        other.events(PATIENCE_S / 2)
        other.steps += 1
    assert other.pauses == []


def test_pauses_in_vain_become_rarer_until_it_comes_on() -> None:
    other = Other()
    other.busy = True
    other.events(0.1)
    gaps = [later - before for before, later in pairwise(other.pauses)]
    assert len(gaps) > 20
    assert all(later > 1.04 * before for before, later in zip(gaps, gaps[3:], strict=False))
    assert len(other.pauses) * 60e-6 < 0.04 * 0.1, "with a disk that hangs they cost next to nothing"
    other.steps += 1
    before = len(other.pauses)
    other.events(PATIENCE_S * (1 + PATIENCE_GROWTH) + 1e-4)
    assert len(other.pauses) == before + 2


class Watched(threading.Thread):
    """A thread that makes its state known and then runs without a pause, or waits for another one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.made = threading.Event()
        self.end = threading.Event()
        self.spin = False

    def run(self) -> None:
        self.state = ThreadState()
        self.made.set()
        while self.spin and not self.end.is_set():
            pass
        self.end.wait(60)


@pytest.mark.skipif(
    not Path("/proc/thread-self/syscall").exists() or sys.platform != "linux", reason="no system that tells"
)
@pytest.mark.parametrize("spin", [True, False])
def test_a_thread_that_runs_or_waits_for_another_one_waits(spin: bool) -> None:
    watched = Watched()
    watched.spin = spin
    watched.start()
    watched.made.wait(20)
    if watched.state._descriptor < 0:
        pytest.skip("no machine whose numbers are known")
    assert all(watched.state.waits() for _ in range(100))
    watched.state.close()
    assert not watched.state.waits()
    watched.end.set()
    watched.join()


def test_a_thread_in_another_call_of_the_system_does_not_wait(tmp_path: Path) -> None:
    told = tmp_path / "syscall"
    for text, waits in [
        (b"328 0x3 0x7f", False),
        (b"202 0x7f00 0x189", True),
        (b"2021 0x7f00", False),
        (b"running\n", True),
        (b"98 0x7f", False),
        (b"", False),
    ]:
        told.write_bytes(text)
        state = ThreadState("x86_64", str(told))
        assert state.waits() == waits, text
        state.close()


@pytest.mark.parametrize("machine", ["x86_64", "vax"])
def test_where_nobody_can_tell_nobody_waits(tmp_path: Path, machine: str) -> None:
    state = ThreadState(machine, str(tmp_path / "not there"))
    assert not state.waits()
    state.close()
    folder = ThreadState(machine, str(tmp_path))  # can be opened, and not be read
    assert not folder.waits()
    assert not folder.waits()
