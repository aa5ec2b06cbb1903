"""Rows from Spark, for a loop that waits for connections."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from magnetar.pipeline.long.row_queue import RowQueue
from magnetar.pipeline.tasks.channel_poll import ChannelPoll

ROWS = pa.record_batch({"kind": [1]})
DEADLINE_S = 60.0


def test_it_wakes_the_loop_for_rows_and_at_the_end() -> None:
    rows, poll = RowQueue([ROWS, ROWS]), ChannelPoll[RowQueue]()
    taken = 0
    while not rows.over:
        assert poll.wait([rows], DEADLINE_S), "woken"
        rows.drain()
        taken += len(list(rows.taken()))
    assert taken == 2
    poll.close()
    rows.close()


def test_what_the_stream_raised_comes_after_its_rows() -> None:
    def stream() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise ValueError("the task was killed")

    rows = RowQueue(stream())
    rows._thread.join(DEADLINE_S)
    taken = rows.taken()
    assert next(taken) == ROWS
    with pytest.raises(ValueError, match="was killed"):
        next(taken)
    rows.close()
