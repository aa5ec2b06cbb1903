"""`magnetar restore`: a Spark batch job that copies a cluster's own messages back from a peer after its disk was lost.

    driver   two inventories are compared (`restore_plan`): the topics, and the messages that are here already
    source   one partition per topic: GEO_READ by origin at the peer, in the order of its log
    sink     the same task, after the source (no shuffle, so the order stays): GEO_RESTORE, answered by the cluster's disk

The sink is stateless: the cluster decides by identity which messages are new (`replication.restore`). So a task may
fail, be repeated by Spark, or run next to a second job. Every row names the entry before it at the peer, also if that
one was left out.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NONE, Position
from magnetar.jobs.restore_plan import PlannedTopic
from magnetar.replication.holdings import Runs, covers
from magnetar.runtime.network.link_client import LinkClient, LinkDown
from magnetar.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "magnetar-restore"

READ_BYTES: Final = 4 << 20
"""One GEO_READ: a few milliseconds of either broker's time."""

SEND_BYTES: Final = 1 << 20
"""One GEO_RESTORE: large enough that the disk's sync is shared, small compared with what may be on its way to the disk."""

SEND_ENTRIES: Final = 4096

PATIENCE_S: Final = 30.0
"""The time for which a broker may be away or busy before its task, and with it the job, fails: enough for one restart
of a broker.
"""

TASK_FAILURES_MAX: Final = 2
"""A lost Python worker or executor is repeated once; tasks have their own patience with brokers, and four times that (Spark's
default) would keep an operator waiting for one line."""

PAUSE_S: Final = 0.5
"""Between two attempts."""

SCHEMA: Final = (
    "topic string not null, partitions int not null, incarnation bigint not null, ledger bigint not null, "
    "entry bigint not null, first_index bigint not null, message_count int not null, "
    "before_incarnation bigint not null, before_index bigint not null, schema_numbering bigint not null, "
    "data binary not null"
)
"""`before_*`: the entry before it at the peer, 0 and -1 for the first. `schema_numbering`: as GEO_READ's answer has it. A topic's
first row has incarnation 0: no entry."""

_TYPES: Final = (
    ("topic", pa.string()), ("partitions", pa.int32()), ("incarnation", pa.int64()), ("ledger", pa.int64()),
    ("entry", pa.int64()), ("first_index", pa.int64()), ("message_count", pa.int32()),
    ("before_incarnation", pa.int64()), ("before_index", pa.int64()), ("schema_numbering", pa.int64()), ("data", pa.binary()),
)  # fmt: skip
ARROW: Final = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _TYPES])

REPORT_SCHEMA: Final = "topic string, stored bigint, duplicates bigint, blocked string, reason string"
_REPORT_ARROW: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("stored", pa.int64()),
        pa.field("duplicates", pa.int64()),
        pa.field("blocked", pa.string()),
        pa.field("reason", pa.string()),
    ]
)


class RestoreFailed(MagnetarError):
    """A broker could not be reached, or its answer is invalid; the same command again continues from there."""


@dataclass(slots=True)
class Restored:
    """The result of one topic.

    Attributes:
        topic: full name.
        stored: messages that were restored now.
        duplicates: messages that were sent although they were here.
        blocked: why it stopped, as for links; "" if it did not.
        reason: one line.
    """

    topic: str
    stored: int = 0
    duplicates: int = 0
    blocked: str = ""
    reason: str = ""


class Work(msgspec.Struct, array_like=True):
    """One topic for one task; `ours` is (incarnation, first, end) of what is not to be read."""

    topic: str
    partitions: int
    ours: list[tuple[int, int, int]]


# ---------------------------------------------------------------------------------------------------------------- source


def read_topic(connect: Callable[[], LinkClient], work: Work, origin: str) -> Iterator[pa.RecordBatch]:
    """The rows of one topic, the first of which has no entry.

    Raises:
        MagnetarError: the peer refuses, or stays away.
    """
    yield _opening(work)
    ours: dict[int, Runs] = {}
    for incarnation, first, end in work.ours:
        ours.setdefault(incarnation, []).append((first, end))
    after, before = NONE, (0, -1)
    reading = Persistent(connect)
    try:
        while True:
            read, payload = reading.ask(
                lambda client, after=after: client.read(work.topic, after, origin=origin, bytes_max=READ_BYTES)  # type: ignore[misc]
            )
            if read.blocked:
                raise RestoreFailed(f"{work.topic}: {read.message}")
            batch, before = _rows(work, read, memoryview(payload), ours, before)
            if batch is not None:
                yield batch
            seen = Position(read.end.ledger, read.end.entry)
            if seen <= after:
                return
            after = seen
    finally:
        reading.close()


def _opening(work: Work) -> pa.RecordBatch:
    values = (work.topic, work.partitions, 0, -1, -1, -1, 0, 0, -1, 0, b"")
    return pa.RecordBatch.from_arrays(
        [pa.array([value], kind) for value, (_, kind) in zip(values, _TYPES, strict=True)], schema=ARROW
    )


def _rows(
    work: Work, read: pb.CommandGeoReadResponse, payload: memoryview, ours: dict[int, Runs], before: tuple[int, int]
) -> tuple[pa.RecordBatch | None, tuple[int, int]]:
    """The entries of one answer that are not here, and the last entry of it."""
    incarnations, indexes, counts = list(read.incarnations), list(read.first_indexes), list(read.counts)
    columns = (list(read.source_ledgers), list(read.source_entries), list(read.sizes))
    if any(len(column) != len(indexes) for column in (incarnations, counts, *columns)):
        raise RestoreFailed(
            f"{work.topic}: the peer's answer has lists that do not fit: is it older than this program?"
        )
    befores = [before, *zip(incarnations, indexes, strict=True)]
    keep = [
        row
        for row, (incarnation, first, number) in enumerate(zip(incarnations, indexes, counts, strict=True))
        if not covers(ours.get(incarnation, ()), first, first + number)
    ]
    if not keep:
        return None, befores[-1]
    ends = [0]
    for size in columns[2]:
        ends.append(ends[-1] + size)
    arrays = [
        pa.array([work.topic] * len(keep), pa.string()),
        pa.array([work.partitions] * len(keep), pa.int32()),
        pa.array([incarnations[row] for row in keep], pa.int64()),
        pa.array([columns[0][row] for row in keep], pa.int64()),
        pa.array([columns[1][row] for row in keep], pa.int64()),
        pa.array([indexes[row] for row in keep], pa.int64()),
        pa.array([counts[row] for row in keep], pa.int32()),
        pa.array([befores[row][0] for row in keep], pa.int64()),
        pa.array([befores[row][1] for row in keep], pa.int64()),
        pa.array([read.schema_numbering] * len(keep), pa.int64()),
        pa.array([bytes(payload[ends[row] : ends[row + 1]]) for row in keep], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW), befores[-1]


# ------------------------------------------------------------------------------------------------------------------ sink


def send_rows(
    batches: Iterator[pa.RecordBatch], connect: Callable[[], LinkClient], cluster: str, peer: str
) -> Iterator[pa.RecordBatch]:
    """Send the rows of one task to the cluster; yields one report a topic.

    Raises:
        MagnetarError: the cluster stays away, or lost again what it had: repeat the job.
    """
    sending = Persistent(connect)
    report: Restored | None = None
    try:
        for batch in batches:
            columns = batch.to_pydict()
            for first, end in _pieces(columns):
                if columns["incarnation"][first] == 0:
                    if report is not None:
                        yield _reported(report)
                    report = _open(sending, columns, first, cluster, peer)
                elif report is not None and not report.blocked:
                    _send(sending, columns, first, end, report, cluster, peer)
        if report is not None:
            yield _reported(report)
    finally:
        sending.close()


def _pieces(columns: dict[str, list[Any]]) -> Iterator[tuple[int, int]]:
    """Rows that go in one request: of one topic and incarnation, each the next of the one before, within the limits."""
    first, size = 0, 0
    rows = len(columns["topic"])
    for row in range(rows):
        more = len(columns["data"][row])
        if row > first:
            # The entries that were left out in between are here: the chain may skip them, but one request has one
            # `after`.
            chained = (columns["before_incarnation"][row], columns["before_index"][row]) == (
                columns["incarnation"][row - 1],
                columns["first_index"][row - 1],
            )
            same = all(
                columns[name][row] == columns[name][first] for name in ("topic", "incarnation", "schema_numbering")
            )
            if not (chained and same) or size + more > SEND_BYTES or row - first >= SEND_ENTRIES:
                yield first, row
                first, size = row, 0
        size += more
    if rows > first:
        yield first, rows


def _request(columns: dict[str, list[Any]], row: int, cluster: str, peer: str) -> pb.CommandGeoRestore:
    return pb.CommandGeoRestore(
        request_id=0, topic=columns["topic"][row], cluster=cluster, peer=peer, partitions=columns["partitions"][row]
    )


def _open(sending: "Persistent", columns: dict[str, list[Any]], row: int, cluster: str, peer: str) -> Restored:
    answer = sending.restore(_request(columns, row, cluster, peer), ())
    return Restored(columns["topic"][row], blocked=answer.blocked, reason=answer.reason)


def _send(
    sending: "Persistent",
    columns: dict[str, list[Any]],
    first: int,
    end: int,
    report: Restored,
    cluster: str,
    peer: str,
) -> None:
    request = _request(columns, first, cluster, peer)
    request.incarnation = columns["incarnation"][first]
    request.after_incarnation = columns["before_incarnation"][first]
    request.after_index = columns["before_index"][first]
    request.schema_numbering = columns["schema_numbering"][first]
    data = columns["data"][first:end]
    request.ledgers.extend(columns["ledger"][first:end])
    request.entries.extend(columns["entry"][first:end])
    request.first_indexes.extend(columns["first_index"][first:end])
    request.counts.extend(columns["message_count"][first:end])
    request.sizes.extend(map(len, data))
    answer = sending.restore(request, data)
    if answer.refused:
        raise RestoreFailed(f"{report.topic}: {answer.reason}; run the same command again to continue")
    report.stored += answer.stored
    report.duplicates += answer.duplicates
    if answer.blocked:
        report.blocked, report.reason = answer.blocked, answer.reason


def _reported(report: Restored) -> pa.RecordBatch:
    values = (report.topic, report.stored, report.duplicates, report.blocked, report.reason)
    arrays = [pa.array([value], kind.type) for value, kind in zip(values, _REPORT_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORT_ARROW)


class Persistent:
    """A connection that is opened again when it is lost, for as long as patience lasts.

    Args:
        connect: makes it.
        clock, sleep: of this process.
    """

    def __init__(
        self,
        connect: Callable[[], LinkClient],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._connect, self._clock, self._sleep = connect, clock, sleep
        self._client: LinkClient | None = None

    def ask(self, request: Callable[[LinkClient], Any]) -> Any:
        """Send a request, and repeat it while the broker is away; the request must be harmless to repeat.

        Raises:
            LinkDown: `PATIENCE_S` is over. LinkRefused: at once.
        """
        until = self._clock() + PATIENCE_S
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                return request(self._client)
            except LinkDown:
                self.close()
                if self._clock() >= until:
                    raise
                self._sleep(PAUSE_S)

    def restore(self, request: pb.CommandGeoRestore, data: Sequence[bytes]) -> pb.CommandGeoRestoreResponse:
        """One GEO_RESTORE, repeated while the cluster asks for a pause.

        Raises:
            RestoreFailed: its storage does not come back. LinkDown, LinkRefused: as `ask`.
        """
        until = self._clock() + PATIENCE_S
        while True:
            answer: pb.CommandGeoRestoreResponse = self.ask(lambda client: client.restore(request, data))
            if not answer.retry:
                return answer
            if self._clock() >= until:
                raise RestoreFailed(f"{request.topic}: {answer.reason}")
            self._sleep(answer.throttle_ms / 1000 or PAUSE_S)

    def close(self) -> None:
        """Give the connection up."""
        if self._client is not None:
            self._client.close()
            self._client = None


# ------------------------------------------------------------------------------------------------------------------- job


def with_task_attempts(master: str) -> str:
    """Add the limit of task attempts (`TASK_FAILURES_MAX`) to the URL of a local master; other masters are returned unchanged.

    For a local master Spark reads this limit from the URL only.
    """
    return re.sub(r"^local\[(\d+|\*)(,\d+)?\]$", rf"local[\1,{TASK_FAILURES_MAX}]", master)


def restore(
    spark: "SparkSession",
    plan: Sequence[PlannedTopic],
    *,
    cluster: str,
    address: str,
    peer: str,
    peer_address: str,
    token_file: Path,
) -> list[Restored]:
    """Run the job; one result per topic of the plan.

    Args:
        spark: a session.
        plan: the topics to restore (`restore_plan.compare`).
        cluster, address: the cluster to restore, and its addresses (`BrokerAddresses.parse`).
        peer, peer_address: the cluster that has the messages, and its addresses.
        token_file: secret of the links.

    Raises:
        MagnetarError: a broker stays away, or refuses; one line. Messages that were restored until then stay.
    """
    from pyspark.errors import PySparkException

    from magnetar.jobs.restore_source import register
    from magnetar.spark_session.session import first_line

    token = token_file.read_text().strip()
    register(spark)
    work = [Work(topic.topic, topic.partitions, topic.ours()) for topic in plan]
    rows = (
        spark.read.format(FORMAT)
        .options(
            work=msgspec.json.encode(work).decode(), origin=cluster, address=peer_address, token_file=str(token_file)
        )
        .load()
    )

    def sink(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here, there = BrokerAddresses.parse(address), BrokerAddresses.parse(peer_address)
        asking = Persistent(lambda: LinkClient.connect(there, token))

        def connect() -> LinkClient:
            client = LinkClient.connect(here, token)
            client.answer_schemas(
                lambda wanted: asking.ask(
                    lambda one: one.schemas(wanted.topic, wanted.schema_numbering, wanted.versions)
                )
            )
            return client

        try:
            yield from send_rows(batches, connect, cluster, peer)
        finally:
            asking.close()

    try:
        found = rows.mapInArrow(sink, REPORT_SCHEMA).collect()
    except PySparkException as error:
        raise MagnetarError(f"restore {cluster} from {peer}: {first_line(error)}") from None
    return [Restored(**row.asDict()) for row in found]
