"""The collector's policy: what survived is walked through no more, and circles in it are found all the same."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from magnetar.runtime.interpreter.garbage import CALM_S, CHECK_S, COMPLETE_S, GROWN_BYTES, URGENT_BYTES, Collector
from magnetar.runtime.interpreter.memory import resident_bytes


class World:
    """Time and memory in the test's hands."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.bytes = 100 << 20
        self.received = 0
        self.per_s = 0
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.collector = Collector(self.later, lambda: self.received, lambda: self.bytes, lambda: self.now_s)

    def later(self, seconds: float, then: Callable[[], None]) -> None:
        self.waiting.append((self.now_s + seconds, then))

    def advance(self, seconds: float) -> None:
        """Time passes; what is due is called."""
        end = self.now_s + seconds
        while self.waiting and self.waiting[0][0] <= end:
            self._pass(self.waiting[0][0])
            _, then = self.waiting.pop(0)
            then()
        self._pass(end)

    def _pass(self, now_s: float) -> None:
        self.received += round((now_s - self.now_s) * self.per_s)
        self.now_s = now_s


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.collector.start()
    yield made
    made.collector.stop()
    # As before: `tests/conftest.py` froze what all tests share.
    gc.freeze()


def old_circle() -> "weakref.ref[Circle]":
    """A circle that survived a full look while somebody needed it, and that nobody needs now."""
    circle = Circle()
    gc.collect()
    return weakref.ref(circle)


def test_what_survived_a_look_is_set_aside(world: World) -> None:
    kept = [Circle() for _ in range(100)]
    before = gc.get_freeze_count()
    gc.collect(0)
    assert gc.get_freeze_count() >= before + 100
    assert not any(one is kept[0] for one in gc.get_objects())


@pytest.mark.parametrize("there", [0, 400_000])
def test_looks_stay_short_however_much_there_is(there: int) -> None:
    """What is new is looked at while it is warm, once. Left to itself Python walks through all of it again and again."""
    walked: list[int] = []

    def looked(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(len(gc.get_objects()))

    kept = [[] for _ in range(there)]  # type: ignore[var-annotated]
    made = World()
    made.collector.start()
    gc.callbacks.append(looked)
    try:
        kept += [[] for _ in range(200_000)]
    finally:
        gc.callbacks.remove(looked)
        made.collector.stop()
    assert len(kept) == there + 200_000
    assert len(walked) > 10, "what is new is never looked at"
    assert max(walked) < 5_000, f"a look at {max(walked):,} containers"


def test_what_nobody_refers_to_goes_at_once_though_it_is_set_aside(world: World) -> None:
    one = [Circle()]
    gc.collect()
    reference = weakref.ref(one[0])
    one[0].me = None  # type: ignore[assignment]
    one.clear()
    assert reference() is None


def test_new_circles_are_found_as_ever(world: World) -> None:
    reference = weakref.ref(Circle())
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("why", ["memory", "time"])
def test_old_circles_are_found_when_the_process_grew_or_after_an_hour(world: World, why: str) -> None:
    reference = old_circle()
    world.advance(10 * CHECK_S)
    gc.collect()
    assert reference() is not None, "else this test shows nothing"
    if why == "memory":
        world.bytes += GROWN_BYTES + (100 << 20) // 4 + 1
        world.advance(CHECK_S + CALM_S)
    else:
        world.advance(COMPLETE_S + CHECK_S)
    assert reference() is None
    assert gc.get_freeze_count() > 0, "and what survived is set aside again"


def test_a_look_waits_for_a_calm_moment_unless_it_is_urgent(world: World) -> None:
    references = [old_circle() for _ in range(2)]
    world.per_s = 1_000
    world.bytes += 200 << 20
    world.advance(100 * CHECK_S)
    assert all(one() is not None for one in references), "clients would notice it"
    world.per_s = 10
    world.advance(CHECK_S + CALM_S)
    assert all(one() is None for one in references)
    reference = old_circle()
    world.per_s = 1_000
    world.bytes += world.bytes + URGENT_BYTES + 1
    world.advance(CHECK_S)
    assert reference() is None, "memory is worth more than a pause"


def test_afterwards_all_is_as_before() -> None:
    world = World()
    callbacks, thresholds = list(gc.callbacks), gc.get_threshold()
    world.collector.start()
    world.collector.stop()
    world.collector.stop()
    assert gc.callbacks == callbacks
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
    world.advance(2 * CHECK_S)
    assert world.waiting == [], "and nothing keeps watch"


def test_the_memory_of_this_process_is_known() -> None:
    assert resident_bytes() > 1 << 20
