"""The Spark format `pulsar-entries`: raw entries between clusters, in pure Python.

Streaming read and write are the two ends of the replication query; both are thin: planning and commits are the
coordinator's, moving bytes is done in `pipeline.tasks` and `pipeline.long`, which only tasks import (see `columns`).

Options: `coordinator` (path of its socket), `query` (`TAIL`, `BULK` or one of `LONG` of the planner, or
`ALL` of `link_state`), and for reading `columns` (further columns that filters name) and `filtered` (numbers of the links with a
filter; those of the others are read by the process that writes them, `pipeline.tasks.direct`).
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from magnetar.pipeline import offsets, rpc
from magnetar.pipeline.columns import spark_schema
from magnetar.pipeline.planner import LONG
from magnetar.spark_session.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

FORMAT = "pulsar-entries"

WAIT_MS = 20_000
"""How long `latestOffset` waits for work before Spark gets its turn; `stop` does not wait for it."""


def register(spark: "SparkSession") -> None:
    """Make Magnetar's formats known to a session."""
    spark.dataSource.register(PulsarEntries)


class TaskPartition(InputPartition):
    """The packed `messages.Task` of one Spark task."""

    def __init__(self, packed: bytes) -> None:
        self.value = packed

    def __repr__(self) -> str:
        return f"TaskPartition({len(self.value)} bytes)"


class Committed(WriterCommitMessage):
    """The packed `messages.TaskReport` of one sink task."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


class PulsarEntries(DataSource):
    """The format; see the module's text for its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        settle()
        self._columns = tuple(name for name in options.get("columns", "").split(",") if name)
        self._filtered = frozenset(int(number) for number in options.get("filtered", "").split(",") if number)

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The schema of the rows."""
        return spark_schema(self._columns)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """The source of the replication query."""
        return EntriesReader(self._given("coordinator"), self._given("query"), self._columns, self._filtered)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The sink of the replication query."""
        return EntriesWriter(self._given("coordinator"), self._given("query"))

    def _given(self, option: str) -> str:
        value = self.options.get(option)
        if not value:
            raise ValueError(f"{FORMAT}: option '{option}' is missing; streams are made by magnetar.pipeline.replicate")
        return value


class EntriesReader(DataSourceStreamReader):
    """Plans on the driver's machine by asking the coordinator; reads in tasks.

    The token goes to the tasks within this object, which Spark pickles: not in options, arguments or settings.
    """

    def __init__(self, coordinator: str, query: str, columns: Sequence[str], filtered: frozenset[int]) -> None:
        self._coordinator, self._query, self._columns, self._filtered = coordinator, query, tuple(columns), filtered
        self._token: str = rpc.request(coordinator, "token")

    def initialOffset(self) -> offsets.Offset:  # noqa: N802
        """Nothing was read yet."""
        return offsets.offset(0)

    def latestOffset(self, start: dict[str, Any], limit: "ReadLimit") -> offsets.Offset:  # noqa: N802
        """The same offset, or the next one if there is something to do; waits for it for a while."""
        if rpc.request(self._coordinator, "wait", self._query, WAIT_MS):
            return offsets.following(start)
        return offsets.offset(offsets.counter(start))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition per task, planned from the cursors as they are now."""
        if offsets.counter(start) == offsets.counter(end):
            return []
        return [TaskPartition(task) for task in rpc.request(self._coordinator, "plan", self._query)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one task."""
        from magnetar.pipeline import messages as m
        from magnetar.pipeline.tasks.direct import task_rows

        settle()
        task = m.decode_task(partition.value)
        if self._query in LONG:
            from magnetar.pipeline.long.fetch_read import fetch_task

            def read(part: m.Task) -> "Iterator[pa.RecordBatch]":
                return fetch_task(part, self._token, self._columns)
        else:
            from magnetar.pipeline.tasks.task_read import read_task

            def read(part: m.Task) -> "Iterator[pa.RecordBatch]":
                return read_task(part, self._token, self._columns)

        return task_rows(task, self._columns, self._filtered, read)


class EntriesWriter(DataSourceStreamArrowWriter):
    """Sends in tasks; reports to the coordinator how far the destinations confirmed."""

    def __init__(self, coordinator: str, query: str) -> None:
        self._coordinator, self._query = coordinator, query
        self._token: str = rpc.request(coordinator, "token")

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Send the rows of one task."""
        from magnetar.pipeline import messages as m
        from magnetar.pipeline.tasks.task_write import write_task

        settle()
        if self._query in LONG:
            from magnetar.pipeline.long.fetch_write import fetch_write

            return Committed(m.encode(fetch_write(iterator, self._token)))
        return Committed(m.encode(write_task(iterator, self._token)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give the reports of the tasks to the coordinator, which passes them to the sources."""
        settle()
        self._tell(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task failed for good; the confirmations of the others count all the same."""
        self._tell(messages)

    def _tell(self, messages: list[WriterCommitMessage | None]) -> None:
        packed = [message.packed for message in messages if isinstance(message, Committed)]
        rpc.request(self._coordinator, "committed", self._query, packed)
