"""`magnetar replicate`: the pipeline between the clusters, from start to stop.

There is one Spark session, one coordinator, and a few streaming queries: one or, with long batches, two for topics without a
large backlog, and one for topics with a large backlog. A query that ends (a task failed four times, the disk of the checkpoint
is full) is started again after a pause: progress is in the cursors, so nothing is lost with the query.
"""

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.core.backoff import pause
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError
from magnetar.core.secret_file import read_link_token
from magnetar.pipeline import offsets
from magnetar.pipeline.columns import decoded_columns, keep, spark_schema
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import ALL, Link
from magnetar.pipeline.link_token import LOOK_MS, LinkToken
from magnetar.pipeline.metrics_file import MetricsFile
from magnetar.pipeline.once import Once
from magnetar.pipeline.planner import BULK, LONG, TAIL
from magnetar.pipeline.shared_state import Pipeline
from magnetar.pipeline.tasks.task_write import SENT_COLUMNS
from magnetar.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT_FILE: Final = "magnetar-format"
"""File in the checkpoint folder that names the offset format of its files."""

FORMAT: Final = f"entries {offsets.VERSION} spark 4"

STOP_MS: Final = 10_000
"""How long a batch may take to end after SIGTERM; then it is abandoned, which is harmless."""

RESTART_MS_MIN: Final = 1_000
RESTART_MS_MAX: Final = 10_000
"""The first and the longest pause before a failed query is started again."""

ONCE_FAILURES_MAX: Final = 3
"""With `once`: a query that ended so often, each time after Spark's own attempts, does not work here."""

LONG_SLOTS: Final = 4
"""Tasks at once with long batches: two for the turns, and two for topics with a large backlog. All share the processors."""

LONG_SETTINGS: Final = {
    # Rows are passed on one by one, not when a batch or a buffer is full (docs/design/pipeline.md#long-batches). A batch is full
    # with its first row, also with one of few bytes: `READY`, or the end of an answer whose entries a filter left out.
    "spark.sql.execution.arrow.maxBytesPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "256",
}
"""Spark's settings for the queries of long batches alone."""

METRICS_MS: Final = 1_000
"""Time between two lines of the metrics file."""


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """The arguments of `magnetar replicate`.

    Attributes:
        config: of all clusters and links.
        links: `source:target` of the links to serve; empty: all.
        master: Spark master URL; None: the configuration's.
        once: replicate what is there, then stop.
        checkpoint: folder for Spark's offsets; None: the configuration's.
        queries: `(ALL,)` is one query, `(TAIL, BULK)` is two; `once` always takes one. None: as the configuration says.
        name: of this pipeline, in leases; None: made from the host and process.
        metrics: file for JSON lines about the pipeline, rotated; None: `pipeline.jsonl` next to the checkpoint.
    """

    config: Config
    links: tuple[str, ...] = ()
    master: str | None = None
    once: bool = False
    checkpoint: Path | None = None
    queries: tuple[str, ...] | None = None
    name: str | None = None
    metrics: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event)


def queries_of(options: ReplicateOptions, on_line: Callable[[str], None]) -> tuple[str, ...]:
    """The names of the queries."""
    if options.once:
        return (ALL,)  # a run that ends has no tail to protect: one query starts faster than two
    if options.queries is not None:
        return options.queries
    if options.config.replication.tail == "long-batches":
        if missing := session.flush_missing():
            on_line(f"long batches are not possible with {missing}: topics at their end are carried by short ones")
        else:
            return (*LONG, BULK)
    return (TAIL, BULK)


def pipeline_of(options: ReplicateOptions, queries: tuple[str, ...] = (TAIL, BULK)) -> Pipeline:
    """The links, addresses and token that the options name.

    Raises:
        ConfigError: an unknown link, no link at all, or no token.
    """
    config = options.config
    chosen = [config.link(text) for text in options.links] if options.links else list(config.links)
    if not chosen:
        raise ConfigError(f"{config.source}: there is no link to replicate; name two clusters or add [[links]]")
    links = tuple(Link(number, link.source, link.target, link.filter) for number, link in enumerate(chosen))
    names = sorted({name for link in links for name in (link.source, link.target)})
    addresses = {name: str(config.link_addresses(name)) for name in names}
    long = set(LONG) <= set(queries)
    master = master_of(options, long=long)
    name = options.name or f"{socket.gethostname()}-{os.getpid()}"
    token = read_link_token(config.replication.token_file)
    limits = config.replication.limits
    return Pipeline(links, addresses, token, session.cores_of(master), name, limits, long=long)


def master_of(options: ReplicateOptions, *, long: bool) -> str:
    """The Spark master; a local one has the tasks that long batches need."""
    master = options.master or options.config.replication.master
    return session.with_slots(master, LONG_SLOTS) if long else master


def prepare_checkpoint(folder: Path) -> None:
    """Throw away a checkpoint of another format, or one that cannot be read; it costs nothing.

    Raises:
        ConfigError: the folder cannot be written.
    """
    marker = folder / FORMAT_FILE
    try:
        if folder.exists() and (not marker.exists() or marker.read_text().strip() != FORMAT):
            _refuse_foreign(folder)
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(FORMAT + "\n")
    except OSError as error:
        raise ConfigError(f"checkpoint folder {folder}: {error.strerror}; name one that can be written") from None


def _refuse_foreign(folder: Path) -> None:
    """A folder that never was a checkpoint is not ours to delete."""
    known = {FORMAT_FILE, TAIL, BULK, ALL, *LONG, "offsets", "commits", "metadata", "sources", "state"}
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in known)
    if foreign:
        raise ConfigError(
            f"checkpoint folder {folder} holds {foreign[0]!r}: it is not a checkpoint; name an empty folder"
        )


def start_query(
    spark: "SparkSession", coordinator: PipelineCoordinator, name: str, checkpoint: Path
) -> "StreamingQuery":
    """Start a streaming query."""
    from magnetar.pipeline.datasource import FORMAT as ENTRIES
    from magnetar.pipeline.datasource import register

    session.activate(spark)
    register(spark)
    filters = {link.number: link.filter for link in coordinator.pipeline.links if link.filter}
    ends = {"coordinator": coordinator.socket_path, "query": name}
    columns = ",".join(decoded_columns(list(filters.values())))
    filtered = ",".join(map(str, sorted(filters)))
    frame = spark.readStream.format(ENTRIES).options(**ends, columns=columns, filtered=filtered).load()
    condition = keep(filters)
    if condition:
        frame = frame.where(condition)
        frame = frame.select(*(("link", *SENT_COLUMNS) if name in LONG else SENT_COLUMNS))
    writer = (
        frame.writeStream.format(ENTRIES)
        .options(**ends)
        .option("checkpointLocation", str(checkpoint / name))
        .queryName(f"magnetar-{name}")
    )
    with session.settings(spark, LONG_SETTINGS if name in LONG else {}):  # a query keeps what is set when it starts
        return writer.start()


def begin_query(
    spark: "SparkSession", coordinator: PipelineCoordinator, name: str, checkpoint: Path
) -> "StreamingQuery":
    """Start a query; a second time, with a new checkpoint, if that fails.

    A kill in the wrong moment leaves a checkpoint that Spark takes for damaged, for ever; it is not needed anyway. And
    the first try after a killed Python daemon only finds out that it is gone.

    Raises:
        ConfigError: it does not start with a new one either; one line.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return start_query(spark, coordinator, name, checkpoint)
    except (PySparkException, Py4JError):
        shutil.rmtree(checkpoint / name, ignore_errors=True)
    try:
        return start_query(spark, coordinator, name, checkpoint)
    except (PySparkException, Py4JError) as error:
        raise ConfigError(f"query {name} with checkpoint folder {checkpoint}: {session.first_line(error)}") from None


def check_filters(spark: "SparkSession", pipeline: Pipeline) -> None:
    """Analyse every link's filter on its own, so that the error names the link.

    Raises:
        ConfigError: a filter is not an SQL condition over the columns of an entry.
    """
    from pyspark.errors import PySparkException

    for link in pipeline.links:
        if link.filter:
            empty = spark.createDataFrame([], spark_schema(decoded_columns([link.filter])))
            try:
                kind = empty.selectExpr(f"({link.filter}) as wanted").schema["wanted"].dataType.simpleString()
            except PySparkException as error:
                raise ConfigError(f"filter of link {link}: {session.first_line(error)}") from None
            if kind != "boolean":
                raise ConfigError(f"filter of link {link} is of type {kind}: it should be a condition, true or false")


class Queries:
    """All queries, started again when they end.

    Args:
        spark: the session.
        coordinator: started.
        names: of the queries.
        checkpoint: prepared folder.
        on_line: for the operator.
    """

    def __init__(
        self,
        spark: "SparkSession",
        coordinator: PipelineCoordinator,
        names: tuple[str, ...],
        checkpoint: Path,
        on_line: Callable[[str], None],
    ) -> None:
        self._spark, self._coordinator, self._checkpoint, self._say = spark, coordinator, checkpoint, on_line
        self._failures = dict.fromkeys(names, 0)
        self._again_at = dict.fromkeys(names, 0.0)
        self.running = {name: begin_query(spark, coordinator, name, checkpoint) for name in names}

    @property
    def failures(self) -> int:
        """How often the query that fails most has ended."""
        return max(self._failures.values())

    def tend(self) -> None:
        """Look after the queries: one that ended is started again after a pause."""
        now = time.monotonic()
        for name, query in list(self.running.items()):
            if query.isActive:
                continue
            if self._again_at[name] == 0.0:
                self._coordinator.query_ended(name)
                error = query.exception()
                self._pause(name, f"ended: {session.first_line(error) if error else 'no reason'}; restarting")
            elif now >= self._again_at[name]:
                self._again_at[name] = 0.0
                # The checkpoint is not needed, so it is deleted whatever was wrong with it.
                shutil.rmtree(self._checkpoint / name, ignore_errors=True)
                try:
                    self.running[name] = begin_query(self._spark, self._coordinator, name, self._checkpoint)
                except ConfigError as error:
                    self._pause(name, f"does not start: {error}")

    def _pause(self, name: str, what: str) -> None:
        """A query is to be started again, later each time."""
        self._failures[name] += 1
        self._again_at[name] = time.monotonic() + pause(self._failures[name], RESTART_MS_MIN, RESTART_MS_MAX) / 1000
        self._say(f"query {name} {what}")

    def renew(self) -> None:
        """Stop all queries and start them again; the coordinator has let the batches end."""
        for name, query in list(self.running.items()):
            query.stop()
            self._coordinator.query_ended(name)  # a batch that did not end in time is abandoned
            try:
                self.running[name] = begin_query(self._spark, self._coordinator, name, self._checkpoint)
            except ConfigError as error:
                self._pause(name, f"does not start: {error}")

    def stop(self) -> None:
        """Stop the queries; the coordinator has let the batches end."""
        for query in self.running.values():
            query.stop()


def run(options: ReplicateOptions, on_line: Callable[[str], None]) -> int:
    """Run the pipeline until it is stopped, or until everything is there.

    Args:
        options: the arguments of the command.
        on_line: gets one line for the user at a time.

    Returns:
        The exit code: 0, or 1 when `once` could not replicate everything.

    Raises:
        ConfigError: options, configuration, Java or Spark are not usable; one line.
    """
    config = options.config
    names = queries_of(options, on_line)
    pipeline = pipeline_of(options, names)
    session.find_java()
    checkpoint = options.checkpoint or config.replication.checkpoint_dir
    prepare_checkpoint(checkpoint)
    beside = checkpoint.parent
    with signals(options.stop):
        coordinator = PipelineCoordinator(pipeline, on_line).start()
        try:
            spark = session.build(
                app="magnetar replicate",
                master=master_of(options, long=pipeline.long),
                log=beside / "spark.log",
                settings=config.replication.spark,
            )
            try:
                check_filters(spark, pipeline)
                coordinator.warm(names)
                queries = Queries(spark, coordinator, names, checkpoint, on_line)
                while not (coordinator.warmed() or options.stop.wait(0.05)):
                    queries.tend()
                ui = f"; Spark UI at {spark.sparkContext.uiWebUrl}" if spark.sparkContext.uiWebUrl else ""
                on_line(f"replicating {len(pipeline.links)} link(s){ui}")
                code = _watch(options, coordinator, queries, options.metrics or beside / "pipeline.jsonl", on_line)
                if not coordinator.drain(STOP_MS):
                    on_line("a batch did not end in time and is abandoned; it will be sent again")
                queries.stop()
            finally:
                coordinator.settle(2_000)
                session.stop(spark, beside / "spark.log")
        finally:
            coordinator.stop()
    return code


def _watch(
    options: ReplicateOptions,
    coordinator: PipelineCoordinator,
    queries: Queries,
    metrics: Path,
    on_line: Callable[[str], None],
) -> int:
    """Supervise the queries until `options.stop`; with `once`, until everything that is there is replicated."""
    once = Once(coordinator) if options.once else None
    token = LinkToken(options.config.replication.token_file, coordinator.pipeline.token, on_line)
    written = looked = 0.0

    def measure() -> None:
        file.write({"at_ms": time.time_ns() // 1_000_000, **coordinator.status()})

    with closing(MetricsFile(metrics, on_line)) as file, ExitStack() as at_end:
        at_end.callback(measure)
        while not options.stop.wait(0.05 if once else 0.2):
            queries.tend()
            if time.monotonic() - looked >= LOOK_MS / 1000:
                looked = time.monotonic()
                if token.changed():
                    coordinator.present(token.value)
                    if not coordinator.drain(STOP_MS):
                        on_line("a batch did not end in time and is abandoned; it will be sent again")
                    queries.renew()
                    coordinator.resume()
            if time.monotonic() - written >= METRICS_MS / 1000:
                written = time.monotonic()
                measure()
            if once is not None:
                if queries.failures >= ONCE_FAILURES_MAX:
                    on_line(f"given up: the query ended {queries.failures} times; what Spark says is in its log")
                    return 1
                left = once.left()
                if left is not None:
                    for line in left:
                        on_line(line)
                    return 1 if left else 0
    return 0


@contextmanager
def signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event; only in the main thread, where Python allows it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in kept:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


__all__ = ["Once", "Queries", "ReplicateOptions", "run"]
