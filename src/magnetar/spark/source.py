"""The readers of the format `pulsar`: the batch reader and the stream reader, as Spark's interfaces."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from magnetar.core.errors import ConfigError
from magnetar.spark import offsets
from magnetar.spark import topics as t
from magnetar.spark.client import Client, Reader, take
from magnetar.spark.columns import Columns
from magnetar.spark.offsets import EARLIEST, MessagePosition, Positions
from magnetar.spark.options import ReadOptions
from magnetar.spark.planning import ENTRIES_PER_TASK_MIN, Pending, admit, behind, cut
from magnetar.spark.reading import DataLost, Stretch, Task
from magnetar.spark_session.worker import settle

logger: Final = logging.getLogger("magnetar.spark")

PEEK_BYTES: Final = 1 << 20
"""The bytes of each topic that are requested ahead when entries are counted for admission: only their sizes are
needed.
"""

PEEK_QUIET_S: Final = 0.5


class StretchPartition(InputPartition):
    """One task's stretch."""

    def __init__(self, stretch: Stretch) -> None:
        self.value = stretch


def read_stretch(
    options: ReadOptions, columns: Sequence[str], typed: Columns | None, partition: InputPartition, fail: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    settle()
    client = take(options.access)
    timeout_s = options.poll_timeout_ms / 1000
    return Task(client, partition.value, columns, typed, fail_on_data_loss=fail, timeout_s=timeout_s).batches()


class BatchReader(DataSourceReader):
    """Reads from the beginning (or where the options say) to what is the end when the query is planned."""

    def __init__(self, options: ReadOptions, columns: Sequence[str], typed: Columns | None = None) -> None:
        self._options, self._columns, self._typed = options, tuple(columns), typed
        self._topics: frozenset[str] | None = None
        self._keys: frozenset[bytes | None] | None = None
        self._from_ms: int | None = None
        self._until_ms: int | None = options.ending_ms

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Note what need not be read; Spark applies all of them again, so noting too little is not a mistake."""
        for one in filters:
            self._note(one)
        return filters

    def _note(self, one: Filter) -> None:
        column = getattr(one, "attribute", ("",))[0]
        if isinstance(one, EqualTo | In):
            values = one.value if isinstance(one, In) else (one.value,)
            if column == "__topic":
                wanted = frozenset(str(value) for value in values)
                self._topics = wanted if self._topics is None else self._topics & wanted
            elif column == "__key":
                keys = frozenset(bytes(value) for value in values if isinstance(value, bytes | bytearray))
                self._keys = keys if self._keys is None else self._keys & keys
        if column == "__publishTime" and isinstance(getattr(one, "value", None), datetime):
            try:
                ms = int(one.value.timestamp() * 1000)  # type: ignore[attr-defined]
            except (ValueError, OverflowError, OSError):
                return  # the first day of all, as queries have it that mean "any time"
            if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
                self._from_ms = max(self._from_ms or 0, ms)
            if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
                self._until_ms = ms if self._until_ms is None else min(self._until_ms, ms)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks' stretches: big topics are cut into several."""
        options = self._options
        client = take(options.access)
        names = t.found(client, options)
        ends = t.Ends(client)
        try:
            last = ends.last(names)
        finally:
            ends.close()
        gone = [name for name in names if name not in last]
        if gone:
            raise DataLost(f"topic {gone[0]} does not exist; a batch query reads all of its topics or none")
        first = t.starting(client, options, names, last)
        end = t.ending(options, names, last)
        tasks = options.tasks_min or os.cpu_count() or 1
        least = 1 if options.tasks_min else ENTRIES_PER_TASK_MIN
        result: list[InputPartition] = []
        for topic in names:
            if self._topics is not None and topic not in self._topics:
                continue
            known = t.spans(options, topic)
            for after, up_to in cut(first[topic], end[topic], known, -(-tasks // len(names)), least):
                stretch = Stretch(topic, after, up_to, False, self._from_ms, self._until_ms, self._keys)
                result.append(StretchPartition(stretch))
        return result or [StretchPartition(Stretch("", EARLIEST, EARLIEST))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if not partition.value.topic:
            return iter(())
        return read_stretch(self._options, self._columns, self._typed, partition, True)


class Peek:
    """Counts the messages of entries ahead of a query, for admission."""

    def __init__(self, client: Client, topic: str, after: MessagePosition) -> None:
        self._reader = Reader(client, topic, after, ahead_bytes=PEEK_BYTES)
        self._seen: deque[Pending] = deque()
        self.after = after

    def pending(self, after: MessagePosition, up_to: MessagePosition) -> Iterator[Pending]:
        """Entries in after < p <= up_to. Returned entries stay here until a later call's `after` is past them."""
        while self._seen and self._seen[0].position.reach <= after.reach:
            self._seen.popleft()
        self.after = after
        number = 0
        while True:
            if number == len(self._seen):
                if self._seen and self._seen[-1].position.reach >= up_to.reach:
                    return
                if not self._more(after, up_to):
                    return
            entry = self._seen[number]
            if entry.position.reach > up_to.reach:
                return
            number += 1
            if (entry.position.ledger, entry.position.entry) == (after.ledger, after.entry):
                entry = Pending(entry.position, after.index + 1, entry.count, entry.bytes, entry.batch)
            yield entry

    def _more(self, after: MessagePosition, up_to: MessagePosition) -> bool:
        for entry in self._reader.entries(PEEK_QUIET_S):
            position = MessagePosition(entry.ledger, entry.entry)
            if position.reach <= after.reach or entry.metadata.HasField("marker_type"):
                continue
            batch = entry.metadata.HasField("num_messages_in_batch")
            self._seen.append(Pending(position, 0, entry.count, len(entry.body), batch))
            return True
        return False

    def close(self) -> None:
        """End its subscription."""
        self._reader.close()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver's machine, in one process for the duration of the query; reads in tasks."""

    def __init__(self, options: ReadOptions, columns: Sequence[str], typed: Columns | None = None) -> None:
        self._options, self._columns, self._typed = options, tuple(columns), typed
        self._client: Client | None = None
        self._ends: t.Ends | None = None
        self._peeks: dict[str, Peek] = {}
        self._topics: list[str] = []
        self._looked_at = -1e9
        self._target: Positions | None = None
        self._last: Positions = {}
        self._at: Positions = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state that a task gets: only the options."""
        return {"_options": self._options, "_columns": self._columns, "_typed": self._typed}

    # ---------------------------------------------------------------------------------------------------------- driver

    def _see(self, *, anew: bool = False) -> Positions:
        """The topics, and the newest message of each."""
        settle()
        if self._client is None or self._ends is None:
            self._client = Client(self._options.access)
            self._ends = t.Ends(self._client)
        if anew or (time.monotonic() - self._looked_at) * 1000 >= self._options.discovery_ms:
            self._topics = self._found(self._client)
            self._looked_at = time.monotonic()
        self._last = self._ends.last(self._topics)
        return self._last

    def _found(self, client: Client) -> list[str]:
        try:
            return t.found(client, self._options)
        except ConfigError:
            if not self._topics:
                raise
            return self._topics  # it was there before: see `_gone`

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of a query without a checkpoint."""
        last = self._see(anew=True)
        assert self._client is not None
        return offsets.encode(t.starting(self._client, self._options, list(last), last))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of one micro-batch; if both are set, both apply."""
        if self._options.messages_max:
            return ReadMaxRows(self._options.messages_max)
        return ReadMaxBytes(self._options.bytes_max) if self._options.bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends with what is there now."""
        self._target = dict(self._see(anew=True))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch."""
        begin = offsets.decode(start)
        last = self._see()
        self._same_topics(begin, last)
        end: Positions = {}
        for topic, newest in last.items():
            position = newest
            if self._target is not None:
                if topic not in self._target and topic not in begin:
                    continue
                position = min(position, self._target.get(topic, begin.get(topic, EARLIEST)), key=lambda one: one.reach)
            end[topic] = self._not_back(topic, begin.get(topic, EARLIEST), position)
        if not isinstance(limit, ReadAllAvailable) and (self._options.messages_max or self._options.bytes_max):
            end = self._admitted(begin, end)
        self._at = end
        return offsets.encode(end)

    def _same_topics(self, begin: Positions, last: Positions) -> None:
        gone = sorted(set(begin) - set(last))
        if not gone:
            return
        if len(gone) == len(begin) and last:
            raise ConfigError(
                f"the checkpoint is of topic {gone[0]}, and the query reads {min(last)}: give it a checkpointLocation of its own"
            )
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"topic {gone[0]} was deleted, or is no longer read; its messages that this query had not read are lost. "
                "To continue without it set failOnDataLoss=false"
            )
        logger.warning("topic %s was deleted (failOnDataLoss=false: continuing without it)", gone[0])

    def _not_back(self, topic: str, begin: MessagePosition, end: MessagePosition) -> MessagePosition:
        """The end, unless the topic is shorter than what was read of it."""
        if end.reach >= begin.reach or (begin.ledger, begin.entry) == (end.ledger, end.entry):
            return max(begin, end, key=lambda position: position.reach)
        if self._target is not None and end == self._target.get(topic):
            return begin  # the target of AvailableNow is before the end that an earlier run had planned
        if end == EARLIEST:
            return begin  # it is empty now; new messages will have a later ledger
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{topic} ends at {end.ledger}:{end.entry}, and this query has read it up to {begin.ledger}:{begin.entry}: "
                "it was deleted and created again. To read it from its beginning set failOnDataLoss=false"
            )
        return end

    def _admitted(self, begin: Positions, end: Positions) -> Positions:
        """The end that the limits allow, found by looking at the entries."""
        assert self._client is not None
        start = {topic: begin.get(topic, EARLIEST) for topic in end}
        waiting: dict[str, Iterator[Pending]] = {}
        for topic, position in end.items():
            if position.reach <= start[topic].reach:
                continue
            peek = self._peeks.get(topic)
            if peek is None or peek.after.reach > start[topic].reach:
                if peek is not None:
                    peek.close()
                peek = self._peeks[topic] = Peek(self._client, topic, start[topic])
            waiting[topic] = peek.pending(start[topic], position)
        positions = admit(start, waiting, self._options.messages_max, self._options.bytes_max)
        # Entries that went away between: nothing can be counted, so that nothing must hold the query up.
        if positions == start and all(next(entries, None) is None for entries in waiting.values()):
            return end
        return positions

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest messages, and for each topic the number of entries up to them: the lag in the query's progress."""
        if not self._last:
            return None
        lag = behind(self._at, self._last)
        return {**offsets.encode(self._last), "entriesBehind": lag, "entriesBehindInAll": sum(lag.values())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task a topic that has something, in the order of their names: the same ones whenever the batch is run again."""
        begin, until = offsets.decode(start), offsets.decode(end)
        result: list[InputPartition] = []
        for topic in sorted(until):
            after, up_to = begin.get(topic, EARLIEST), until[topic]
            if up_to in {after, EARLIEST}:
                continue
            again = up_to.reach < after.reach  # created again, see _not_back
            result.append(StretchPartition(Stretch(topic, EARLIEST if again else after, up_to, not again)))
        return result

    def commit(self, end: dict[str, Any]) -> None:
        """Progress is in the checkpoint."""

    def stop(self) -> None:
        """The query ended."""
        if self._client is not None:
            self._client.close()

    # ----------------------------------------------------------------------------------------------------------- tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_stretch(self._options, self._columns, self._typed, partition, self._options.fail_on_data_loss)
