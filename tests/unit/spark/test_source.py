"""What a batch query is spared by its filters."""

from datetime import datetime

import pytest
from pyspark.sql.datasource import Filter, GreaterThan, LessThan

from magnetar.spark.options import read_options
from magnetar.spark.source import BatchReader

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 250_000)


@pytest.mark.parametrize(
    ("filters", "from_ms", "until_ms"),
    [
        ([GreaterThan(("__publishTime",), MOMENT)], int(MOMENT.timestamp() * 1000), None),
        ([LessThan(("__publishTime",), MOMENT)], None, int(MOMENT.timestamp() * 1000)),
        ([GreaterThan(("__publishTime",), datetime.min)], None, None),  # Python has no number for it
        ([LessThan(("__publishTime",), datetime(9999, 1, 1))], None, int(datetime(9999, 1, 1).timestamp() * 1000)),
    ],
)
def test_publish_times(filters: list[Filter], from_ms: int | None, until_ms: int | None) -> None:
    reader = BatchReader(
        read_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"}, streaming=False), ["value"]
    )
    assert list(reader.pushFilters(filters)) == filters
    assert (reader._from_ms, reader._until_ms) == (from_ms, until_ms)
