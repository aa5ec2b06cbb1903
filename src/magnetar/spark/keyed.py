"""Keyed deduplication: removing repetitions from a stream (docs/design/deduplication.md#keyed-on-spark)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"


def deduplicate(
    frame: "DataFrame", key: str | Sequence[str], watermark: str = "10 minutes", *, time: str = "__publishTime"
) -> "DataFrame":
    """The first row of each key; later ones within the watermark's delay are dropped.

    The keys seen are state of the query, on disk in RocksDB (set for the session here), so that it survives restarts
    and may be larger than memory. A key is forgotten when the newest time seen is `watermark` later than it: a
    repetition after that is not dropped. Guaranteed: repetitions whose times are less than `watermark` apart are
    dropped. In a batch query every repetition is.

    Args:
        frame: streaming or batch.
        key: columns that make two rows the same.
        watermark: longest distance of repetitions, as Spark writes intervals ("10 minutes", "1 day").
        time: column of the rows' time; the time of publishing by default.

    Raises:
        ConfigError: no such column.
    """
    keys = [key] if isinstance(key, str) else list(key)
    missing = [name for name in [*keys, time] if name not in frame.columns]
    if missing or not keys:
        raise ConfigError(
            f"deduplicate: column {missing[0] if missing else 'for the key'} is not there; columns are {', '.join(frame.columns)}"
        )
    if not frame.isStreaming:
        return frame.dropDuplicates(keys)
    frame.sparkSession.conf.set(_PROVIDER, ROCKSDB)
    return frame.withWatermark(time, watermark).dropDuplicatesWithinWatermark(keys)
