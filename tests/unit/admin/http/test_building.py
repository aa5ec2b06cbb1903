"""Answers that become large: the same JSON, made in turns, with a limit."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.admin.http import building as module
from magnetar.admin.http.answers import Answers
from magnetar.admin.http.building import ALONE_BYTES, Building
from magnetar.metadata.errors import PreconditionFailed

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=40,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 30))
def test_what_is_made_in_pieces_is_the_same(value: Any, light: int) -> None:
    async def story() -> bytes:
        building = Building(Answers())
        kept, module.LIGHT = module.LIGHT, light
        try:
            return await building.encoded(value)
        finally:
            module.LIGHT = kept
            building.end()

    assert json.loads(asyncio.run(story())) == json.loads(msgspec.json.encode(value))


async def turns_of(work: Awaitable[Any]) -> int:
    """How often the loop turned until some work was done."""
    turned = 0

    async def count() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        await work
    finally:
        counting.cancel()
    return turned


ROW = {"name": "x" * 20, "n": 1, "inner": {"a": [1, 2, 3]}}
SHAPES: dict[str, Callable[[int], Any]] = {
    "a list": lambda size: [ROW] * size,
    "objects in objects": lambda size: {"a": {f"k{number}": ROW for number in range(size)}},
    "a tuple of names": lambda size: ("persistent://public/default/topic",) * (5 * size),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_others_have_their_turn_and_the_more_often_the_larger_it_is(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.0)

    async def story() -> tuple[int, int]:
        small, large = Building(Answers()), Building(Answers())
        return (
            await turns_of(small.encoded(SHAPES[shape](1_000))),
            await turns_of(large.encoded(SHAPES[shape](8_000))),
        )

    small, large = asyncio.run(story())
    assert small > 100 and large > 6 * small


def test_the_logs_thread_has_its_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it does not get the interpreter before the answer is made, and a publish waits as long."""
    monkeypatch.setattr(module, "TURN_S", 0.0)

    async def story(size: int) -> int:
        given: list[None] = []
        building = Building(Answers(), lambda: given.append(None))
        await building.encoded(SHAPES["a list"](size))
        before = len(given)
        await building.end_turn()
        assert len(given) == before + 1
        return before

    assert asyncio.run(story(8_000)) > 6 * asyncio.run(story(1_000)) > 0


def test_names_are_sorted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.0)
    names = [f"persistent://public/default/{number * 7919 % 20_011}" for number in range(20_000)]
    found: list[str] = []

    async def story() -> int:
        async def sort() -> None:
            found.extend(await Building(Answers()).names(iter(names)))

        return await turns_of(sort())

    assert asyncio.run(story()) >= 20
    assert found == sorted(names)


def test_what_would_be_too_large_is_given_up_when_it_is_known() -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        for _ in range(1_000_000):
            taken += 1
            yield "x" * 1_000

    async def story() -> None:
        answers = Answers(answer_bytes_max=200_000)
        for work in (
            lambda building: building.listed(rows()),
            lambda building: building.encoded(["x" * 1_000] * 10_000),
        ):
            building = Building(answers)
            with pytest.raises(PreconditionFailed, match="http_answer_bytes_max"):
                await work(building)
            building.end()
        assert not answers.alone.locked()

    asyncio.run(story())
    assert taken < 210


def test_one_large_answer_is_made_at_a_time() -> None:
    async def story() -> None:
        answers = Answers()
        first, second, small = (Building(answers) for _ in range(3))
        value = ["x" * 1_000] * (ALONE_BYTES // 1_000 + 10)
        await first.encoded(value)
        waiting = asyncio.create_task(second.encoded(value))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert await small.encoded(["x" * 1_000] * 100)
        first.end()
        assert len(await waiting) > ALONE_BYTES
        second.end()
        assert not answers.alone.locked()

    asyncio.run(story())
