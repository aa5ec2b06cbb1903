"""Plans of the format `pulsar`: pages of pairs, and a dumb twin for admission."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.spark.offsets import EARLIEST
from magnetar.spark.offsets import MessagePosition as At
from magnetar.spark.planning import Pending, Span, admit, behind, cut

SPANS = [Span(3, 10), Span(5, 20), Span(9, 10)]


@pytest.mark.parametrize(
    ("first", "last", "spans", "tasks", "expected"),
    [
        (EARLIEST, EARLIEST, None, 4, []),
        (At(3, 4), At(3, 4), None, 4, []),
        (EARLIEST, At(7, 9), None, 1, [(EARLIEST, At(7, 9))]),
        (EARLIEST, At(7, 9), None, 2, [(EARLIEST, At(7, 4)), (At(7, 4), At(7, 9))]),
        (At(7, 4), At(7, 9), None, 5, [(At(7, n), At(7, n + 1)) for n in range(4, 9)]),
        (At(7, 4, 3), At(7, 6), None, 9, [(At(7, 4, 3), At(7, 5)), (At(7, 5), At(7, 6))]),
        (At(3, 4), At(9, 9), None, 5, [(At(3, 4), At(9, 9))]),
        (EARLIEST, At(9, 9), SPANS, 2, [(EARLIEST, At(5, 9)), (At(5, 9), At(9, 9))]),
        (At(3, 9), At(9, 4), SPANS, 5, [
            (At(3, 9), At(5, 4)), (At(5, 4), At(5, 9)), (At(5, 9), At(5, 14)),
            (At(5, 14), At(5, 19)), (At(5, 19), At(9, 4)),
        ]),
    ],
)  # fmt: skip
def test_cutting(
    first: At,
    last: At,
    spans: list[Span] | None,
    tasks: int,
    expected: list[tuple[At, At]],
) -> None:
    assert cut(first, last, spans, tasks, 1) == expected


def test_small_topics_are_not_cut() -> None:
    assert len(cut(EARLIEST, At(7, 998), None, 8)) == 1
    assert len(cut(EARLIEST, At(7, 1999), None, 8)) == 4


@given(
    entries=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    tasks=st.integers(1, 9),
    begin=st.integers(0, 100),
)
def test_pieces_are_all_and_nothing_twice(entries: list[int], tasks: int, begin: int) -> None:
    spans = [Span(2 * number, count) for number, count in enumerate(entries)]
    positions = [At(span.ledger, entry) for span in spans for entry in range(span.entries)]
    first = positions[begin] if begin < len(positions) - 1 else EARLIEST
    pieces = cut(first, positions[-1], spans, tasks, 1)
    for position in positions:
        held = sum(a.reach < position.reach <= b.reach for a, b in pieces)
        assert held == (position.reach > first.reach)


def entries_of(counts: list[tuple[int, int]]) -> list[Pending]:
    return [Pending(At(1, number), 0, count, size, True) for number, (count, size) in enumerate(counts)]


def twin(start: dict[str, At], waiting: dict[str, list[Pending]], messages_max: int) -> int:
    """How many messages a limit of messages admits: as many as there are, up to the limit."""
    return min(messages_max, sum(entry.count for entries in waiting.values() for entry in entries))


def admitted(positions: dict[str, At], waiting: dict[str, list[Pending]]) -> int:
    total = 0
    for topic, entries in waiting.items():
        for entry in entries:
            at = positions[topic]
            if entry.position.reach <= at.reach:
                total += entry.count
            elif (entry.position.ledger, entry.position.entry) == (at.ledger, at.entry):
                total += at.index + 1
    return total


WAITING = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 100)), max_size=8),
    max_size=3,
)


@given(waiting=WAITING, messages_max=st.integers(1, 300))
def test_as_many_messages_as_are_allowed(waiting: dict[str, list[tuple[int, int]]], messages_max: int) -> None:
    held = {topic: entries_of(counts) for topic, counts in waiting.items()}
    start = dict.fromkeys(held, EARLIEST)
    positions = admit(start, {topic: iter(entries) for topic, entries in held.items()}, messages_max, 0)
    assert admitted(positions, held) == twin(start, held, messages_max)


@given(waiting=WAITING, bytes_max=st.integers(1, 300))
def test_bytes_are_bounded_and_there_is_progress(waiting: dict[str, list[tuple[int, int]]], bytes_max: int) -> None:
    held = {topic: entries_of(counts) for topic, counts in waiting.items()}
    positions = admit(dict.fromkeys(held, EARLIEST), {topic: iter(one) for topic, one in held.items()}, 0, bytes_max)
    taken = [
        entry for topic, entries in held.items() for entry in entries if entry.position.reach <= positions[topic].reach
    ]
    assert bool(taken) == any(held.values())
    assert len(taken) == 1 or sum(entry.bytes for entry in taken) <= bytes_max


def test_topics_take_turns() -> None:
    held = {"a": entries_of([(1, 1)] * 10), "b": entries_of([(1, 1)] * 10)}
    waiting: dict[str, Iterator[Pending]] = {topic: iter(entries) for topic, entries in held.items()}
    assert admit(dict.fromkeys(held, EARLIEST), waiting, 6, 0) == {
        "a": At(1, 2),
        "b": At(1, 2),
    }


def test_lag() -> None:
    last = {"a": At(1, 9), "b": At(4, 3), "c": EARLIEST, "d": At(1, 1)}
    positions = {"a": At(1, 4, 2), "b": At(3, 7), "d": At(1, 1)}
    assert behind(positions, last) == {"a": 6, "b": 4}
