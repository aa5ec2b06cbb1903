"""Plain rows go through Arrow as they are, whatever slices Spark makes of their batches."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.columns import ANSWER, ENTRY, FILLER, ROUTE
from magnetar.pipeline.long.plain_rows import ROWS_MAX, PlainRows, plain_rows
from magnetar.pipeline.rows import Assembler, arrow_schema

KINDS = frozenset((ANSWER, ROUTE, FILLER))
ROW = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 1000), st.binary(max_size=40), st.binary(max_size=40))


@given(st.lists(ROW, min_size=1, max_size=ROWS_MAX), st.booleans(), st.data())
def test_rows_come_out_as_they_went_in(
    rows: list[tuple[int, int, bytes, bytes]], narrow: bool, data: st.DataObject
) -> None:
    gathered = PlainRows(narrow=narrow)
    for kind, link, lists, body in rows:
        gathered.add(kind, link, memoryview(body), lists)
    batch = gathered.flush()
    assert batch.schema.equals(arrow_schema(narrow=narrow))
    batch.validate(full=True)
    assert len(gathered) == 0
    begin = data.draw(st.integers(0, len(rows) - 1))
    found = plain_rows(batch.slice(begin), KINDS)
    assert found is not None
    assert [(kind, link, bytes(lists), bytes(body)) for kind, link, lists, body in found] == rows[begin:]


def test_large_binary_columns_as_spark_may_have_them() -> None:
    gathered = PlainRows(narrow=True)
    gathered.add(ANSWER, 3, b"data", b"lists")
    batch = gathered.flush()
    columns = [
        column.cast(pa.large_binary()) if pa.types.is_binary(column.type) else column for column in batch.columns
    ]
    found = plain_rows(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), KINDS)
    assert found is not None
    assert [(kind, link, bytes(lists), bytes(body)) for kind, link, lists, body in found] == [(7, 3, b"lists", b"data")]


def test_a_batch_with_entries_is_none_of_these() -> None:
    mixed = Assembler()
    mixed.row(ANSWER, 0, 0, b"x")
    mixed.row(ENTRY, 0, 0, b"x")
    [batch] = mixed.flush()
    assert plain_rows(batch, KINDS) is None
