"""Which links of a task are read by its writer, and which are rows."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import FILLER, TASK
from magnetar.pipeline.rows import Assembler, arrow_schema
from magnetar.pipeline.tasks.direct import divided, task_rows

TASK_OF_THREE = m.Task(
    tuple(m.Route(link, "a", name, "a:1", f"{name}:1", "u") for link, name in enumerate("bcd")),
    tuple(m.Range(number, number % 3, "t", 1, 0, (-1, -1), (-1, -1), (1, 5), 100) for number in range(6)),
)


def links_of(task: m.Task | None) -> tuple[set[int], set[int]]:
    """Of its routes, and of its ranges."""
    return ({route.link for route in task.routes}, {part.link for part in task.ranges}) if task else (set(), set())


@pytest.mark.parametrize("filtered", [frozenset[int](), frozenset({1}), frozenset({0, 1, 2})])
def test_a_filter_decides_who_reads_a_link(filtered: frozenset[int]) -> None:
    direct, rows = divided(TASK_OF_THREE, filtered)
    assert links_of(rows) == (filtered, filtered)
    assert links_of(direct) == (others := set(range(3)) - filtered, others)


def test_a_long_batch_stays_one_in_both_parts() -> None:
    long = m.LongBatch(7, 1_000, "p", 1 << 20)
    for part in divided(m.Task(TASK_OF_THREE.routes, (), long), frozenset({1})):
        assert part is not None
        assert part.long == long


def test_an_empty_task_has_no_rows() -> None:
    assert list(task_rows(m.Task((), ()), (), frozenset(), lambda _part: iter(()))) == []


@pytest.mark.parametrize("decoded", [(), ("key",)])
def test_the_part_of_the_writer_is_a_row_before_the_rows_of_the_others(decoded: tuple[str, ...]) -> None:
    def read(part: m.Task) -> Iterator[pa.RecordBatch]:
        assert links_of(part)[0] == {1}
        assembler = Assembler(decoded)
        assembler.row(5, 1, 0, b"x")
        yield from assembler.flush()

    first, second = task_rows(TASK_OF_THREE, decoded, frozenset({1}), read)
    assert first.schema == second.schema == arrow_schema(decoded)
    assert [row["kind"] for row in first.to_pylist()] == [TASK, FILLER]
    assert links_of(m.decode_task(first.to_pylist()[0]["data"]))[0] == {0, 2}
