"""`magnetar verify`: check that every cluster holds every message of a topic once, in its origin's order and unaltered.

A batch job of two stages. The first reads every entry of every partition in every cluster, in parts (`verify_planning`,
`verify_listing`): identity, position and checksum. The second compares (`verify_comparing`) by the identity of
messages, `(origin cluster, topic incarnation, origin index)`: a full outer join of the clusters.

A cluster should hold its own entries, and those of each origin with a link to it, unless the publisher restricted them
to other clusters. Markers have no identity and are left out. Messages that are published while the job runs are not
checked. Messages that were on their way to a cluster when the job began count as missing there, after the last one that
it holds.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

from magnetar.admin.client import AdminClient, topic_path
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NONE, Identity, Position
from magnetar.core.names import TopicName
from magnetar.jobs import verify_comparing as comparing
from magnetar.jobs.verify_listing import ANSWER_S, Key, Packed, Part, list_parts
from magnetar.jobs.verify_planning import Ledger, Wanted, expected, parts
from magnetar.pipeline.tasks.link_channel import LinkChannel, call
from magnetar.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

EXAMPLES_MAX: Final = 20
"""Messages listed of each kind and cluster, unless the caller says otherwise; the counts are complete."""

EXAMPLES_CEILING: Final = 10_000
"""A ceiling on what may be asked for: the driver holds them all, for each kind, cluster and 65,536 indexes."""

ADMIN_S: Final = 10.0
"""The timeout for asking for a topic's ledgers."""

LOOK_S: Final = 0.1
"""Between two looks at the job's counters."""

STRETCHES_PER_TASK: Final = 8
"""Comparisons of 65,536 indexes in a task of the second stage, some milliseconds each."""

TASKS_MAX: Final = 1024
"""A ceiling on the second stage's tasks."""

KINDS: Final = (comparing.MISSING, comparing.DUPLICATED, comparing.REORDERED, comparing.ALTERED)
COUNTS: Final = (
    "messages", comparing.MISSING, comparing.MISSING_BEFORE_FIRST, comparing.MISSING_AFTER_LAST, comparing.DUPLICATED,
    comparing.REORDERED, comparing.ALTERED,
)  # fmt: skip
"""The counts of `Findings`, as its attributes are called."""


@dataclass(frozen=True, slots=True)
class Example:
    """A message that is wrong in a cluster.

    Attributes:
        topic: partition.
        identity: of the first message in its entry.
        messages: in its entry.
        position: its position in the cluster that is at fault; None: missing.
        copy: the cluster and position of the copy that counts, for a missing or altered message.
    """

    topic: str
    identity: Identity
    messages: int
    position: Position | None
    copy: tuple[str, Position] | None


@dataclass(slots=True)
class Findings:
    """The errors in one cluster; counts are messages.

    Attributes:
        messages: held, duplicates included.
        missing: they should be here and are not.
        missing_before_first: of these, older than anything this cluster holds of their origin (trimmed, or never sent
            because it joined late): the same loss to a reader, another cause.
        missing_after_last: of these, newer than anything it holds: still on their way, unless the link is stopped.
        duplicated: copies beyond the first.
        reordered: they come after a later message of the same origin; second copies are not counted again.
        altered: their bytes differ from their origin's copy (or, where that is gone, from the other clusters').
    """

    messages: int = 0
    missing: int = 0
    missing_before_first: int = 0
    missing_after_last: int = 0
    duplicated: int = 0
    reordered: int = 0
    altered: int = 0
    examples: dict[str, list[Example]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.duplicated or self.reordered or self.altered)


@dataclass(slots=True)
class VerifyResult:
    """The outcome, by cluster.

    Attributes:
        topic: the compared topic, with all its partitions.
        partitions: 0: not partitioned.
        messages: number of different messages in all clusters together.
        clusters: the errors by cluster.
        seconds: duration of the job, without the start of Spark.
    """

    topic: str
    partitions: int
    messages: int
    clusters: dict[str, Findings]
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether all clusters hold what they should, once, in order, unaltered."""
        return all(findings.clean for findings in self.clusters.values())


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of the job, by counters of its tasks.

    Attributes:
        step: "reading" or "comparing".
        done, total: entries read, or stretches of indexes compared; total None: not known.
        messages, bytes: read so far.
    """

    step: str
    done: int
    total: int | None
    messages: int
    bytes: int


ReportProgress = Callable[[VerifyProgress], None]
LedgersOf = Callable[[str, str], Sequence[Ledger] | None]
"""Gives the ledgers of a topic in a cluster; None: not known."""


def partitions_of(address: str, topic: str, token: str) -> int:
    """The number of partitions of a topic in a cluster; 0: it is not partitioned.

    Raises:
        MagnetarError: the cluster does not answer or does not know.
    """
    channel = LinkChannel(address, token)
    try:
        command = pb.BaseCommand(type=pb.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic
        answer = call(channel, command, ANSWER_S).partitionMetadataResponse
        if answer.HasField("error"):
            raise MagnetarError(f"{topic} at {channel.address}: {answer.message}")
        return answer.partitions
    finally:
        channel.close()


def look_up(topic: str, *, addresses: Mapping[str, str], token_file: Path) -> int:
    """Ask every cluster for a topic, which costs some milliseconds; Spark takes seconds to start.

    Args:
        topic: any form of the name, without partition for all of its partitions.
        addresses: of each cluster (`BrokerAddresses.parse`).
        token_file: secret of the links.

    Returns:
        How many partitions it has, the largest answer counts; 0: it is not partitioned, or one partition is named.

    Raises:
        MagnetarError: a cluster does not answer, or does not have the topic or one of its partitions; one line.
    """
    name, token = TopicName.parse(topic), _token(token_file)
    partitions = 0
    if name.partition < 0:
        partitions = max(partitions_of(address, str(name), token) for address in addresses.values())
    failures: list[str] = []
    for cluster, address in sorted(addresses.items()):
        try:
            _check_there(address, _topics(name, partitions), token)
        except MagnetarError as error:
            failures.append(f"{cluster}: {error}")
    if failures:
        raise MagnetarError(
            f"{name} cannot be compared, which takes every cluster and the topic in each: {'; '.join(failures)}"
        )
    return partitions


def _check_there(address: str, topics: Iterable[str], token: str) -> None:
    """Refuse unless a cluster has these topics: they are read up to their beginning."""
    channel = LinkChannel(address, token)
    try:
        for topic in topics:
            command = pb.BaseCommand(type=pb.GEO_READ)
            ask = command.geo_read
            ask.topic, ask.bytes_max = topic, 1
            ask.after.ledger, ask.after.entry = NONE
            ask.up_to.ledger, ask.up_to.entry = NONE
            read = call(channel, command, ANSWER_S).geo_read_response
            if read.HasField("error") or read.blocked:
                raise MagnetarError(read.message or read.blocked)
    finally:
        channel.close()


def _topics(name: TopicName, partitions: int) -> list[str]:
    return [str(name.with_partition(number)) for number in range(partitions)] or [str(name)]


def _token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise MagnetarError(f"link token {file}: {error.strerror}") from None


def ledgers_by_rest(config: Config) -> LedgersOf:
    """Asks the clusters' REST interfaces. One that does not answer only costs parallel work: its topics are one part each."""

    def ledgers(cluster: str, topic: str) -> list[Ledger] | None:
        try:
            client = AdminClient(config.clusters[cluster].admin_urls, timeout_s=ADMIN_S)
            stats = client.get(topic_path(topic, "internalStats"))
            return [Ledger(one["ledgerId"], one["entries"], one["size"]) for one in stats["ledgers"]]
        except (MagnetarError, KeyError, TypeError):
            return None

    return ledgers


def verify(
    spark: "SparkSession",
    topic: str,
    *,
    addresses: Mapping[str, str],
    links: Iterable[tuple[str, str]],
    token_file: Path,
    partitions: int | None = None,
    ledgers: LedgersOf = lambda _cluster, _topic: None,
    examples_max: int = EXAMPLES_MAX,
    report: ReportProgress = lambda _progress: None,
) -> VerifyResult:
    """Compare a topic between clusters.

    Args:
        spark: a session.
        topic: any form of the name, without partition for all of its partitions.
        addresses: of each cluster to compare (`BrokerAddresses.parse`).
        links: (source, target) of the existing links: they decide which messages each cluster should hold.
        token_file: secret of the links.
        partitions: number of partitions; None: ask the clusters (`look_up`).
        ledgers: gives a topic's ledgers, so that several tasks can read it.
        examples_max: most listed messages of each kind and cluster.
        report: called with the progress, from another thread, about ten times per second.

    Raises:
        MagnetarError: a name is wrong, a cluster does not answer, or a topic cannot be read; one line.
    """
    from pyspark.errors import PySparkException

    from magnetar.spark_session.session import first_line

    began = time.monotonic()
    name = TopicName.parse(topic)
    token = _token(token_file)
    if name.partition >= 0:
        partitions = 0
    elif partitions is None:
        partitions = look_up(topic, addresses=addresses, token_file=token_file)
    topics = _topics(name, partitions)
    clusters = sorted(addresses)
    plan = parts([
        Wanted(number, topic_number, addresses[cluster], one, ledgers(cluster, one))
        for number, cluster in enumerate(clusters)
        for topic_number, one in enumerate(topics)
    ])  # fmt: skip
    result = VerifyResult(str(name), partitions, 0, {cluster: Findings() for cluster in clusters})
    job = _Job(spark, plan, clusters, frozenset(links), topics, min(examples_max, EXAMPLES_CEILING))
    try:
        with job.watched(report):
            job.run(token, result)
    except PySparkException as error:
        raise MagnetarError(f"verify {name}: {first_line(error)}") from None
    result.seconds = time.monotonic() - began
    return result


def addresses_of(config: Config) -> dict[str, str]:
    """The addresses of the clusters of a configuration for links."""
    return {name: str(config.link_addresses(name)) for name in config.clusters}


def verify_config(
    spark: "SparkSession",
    config: Config,
    topic: str,
    *,
    partitions: int | None = None,
    examples_max: int = EXAMPLES_MAX,
    report: ReportProgress = lambda _progress: None,
) -> VerifyResult:
    """Compare a topic between all clusters of a configuration; see `verify`."""
    return verify(
        spark,
        topic,
        addresses=addresses_of(config),
        partitions=partitions,
        links=[(link.source, link.target) for link in config.links],
        token_file=config.replication.token_file,
        ledgers=ledgers_by_rest(config),
        examples_max=examples_max,
        report=report,
    )


class _Watched:
    """Reports the progress until the job is over."""

    def __init__(self, look: Callable[[], VerifyProgress], report: ReportProgress) -> None:
        self._look, self._report = look, report
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="magnetar-verify-progress", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._report(self._look())

    def __enter__(self) -> None:
        self._report(self._look())
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._report(self._look())


class _Job:
    """One comparison on Spark, and its counters."""

    def __init__(
        self,
        spark: "SparkSession",
        plan: Sequence[Part],
        clusters: Sequence[str],
        links: frozenset[tuple[str, str]],
        topics: Sequence[str],
        examples_max: int,
    ) -> None:
        self._spark, self._plan, self._clusters, self._links, self._topics = spark, plan, clusters, links, topics
        self._examples_max = examples_max
        context = spark.sparkContext
        self._entries, self._messages, self._bytes = (context.accumulator(0) for _ in range(3))
        self._compared = context.accumulator(0)
        self._stretches: int | None = None
        self._expected = expected(plan)

    def watched(self, report: ReportProgress) -> _Watched:
        """While in this context, progress is reported."""
        return _Watched(self._look, report)

    def _look(self) -> VerifyProgress:
        messages, size = self._messages.value, self._bytes.value
        if self._stretches is None:
            # A task that failed and ran again has counted twice.
            done = self._entries.value if self._expected is None else min(self._entries.value, self._expected)
            return VerifyProgress("reading", done, self._expected, messages, size)
        return VerifyProgress("comparing", min(self._compared.value, self._stretches), self._stretches, messages, size)

    def run(self, token: str, result: VerifyResult) -> None:
        """Read, compare, and note what is wrong."""
        from pyspark import StorageLevel

        entries, messages, size = self._entries, self._messages, self._bytes

        def report(more_entries: int, more_messages: int, more_bytes: int) -> None:
            entries.add(more_entries)
            messages.add(more_messages)
            size.add(more_bytes)

        # Rows of the lower interface: these are a few large ones, and the other one's maps over Arrow want pandas.
        numbers = self._spark.sparkContext.parallelize(range(len(self._plan)), len(self._plan))
        listed = numbers.mapPartitions(list_parts(self._plan, token, report)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._compare(listed, result)
        finally:
            listed.unpersist()

    def _compare(self, listed: "RDD[Packed]", result: VerifyResult) -> None:
        heads = listed.map(lambda packed: packed._replace(entries=b"", limits=())).collect()
        for head in heads:
            result.clusters[self._clusters[head.cluster]].messages += head.messages
        stretches = len({head.stretch for head in heads})
        self._stretches = stretches
        if not stretches:
            return
        terms = comparing.Terms(tuple(self._clusters), self._links, _before(heads), _reach(heads), self._examples_max)
        tasks = min(TASKS_MAX, -(-stretches // STRETCHES_PER_TASK))
        together = listed.keyBy(lambda packed: packed.stretch).groupByKey(
            tasks, lambda stretch: crc32(repr(stretch).encode())
        )
        self._note(together.mapPartitions(comparing.compare_with(terms, self._compared.add)).collect(), result)

    def _note(self, found: Sequence[comparing.Found], result: VerifyResult) -> None:
        examples: dict[tuple[int, str], list[comparing.Example]] = {}
        for one in found:
            if one.cluster < 0:
                result.messages += one.messages
                continue
            findings = result.clusters[self._clusters[one.cluster]]
            setattr(findings, one.kind, getattr(findings, one.kind) + one.messages)
            examples.setdefault((one.cluster, one.kind), []).extend(one.examples)
        for cluster, name in enumerate(self._clusters):
            for kind in KINDS:
                shown = sorted(examples.get((cluster, kind), ()))[: self._examples_max]
                if shown:
                    result.clusters[name].examples[kind] = [self._example(one) for one in shown]

    def _example(self, one: comparing.Example) -> Example:
        return Example(
            self._topics[one.topic],
            Identity(one.origin, one.incarnation, one.first),
            one.messages,
            Position(one.ledger, one.entry) if one.ledger >= 0 else None,
            (self._clusters[one.copy_cluster], Position(one.copy_ledger, one.copy_entry))
            if one.copy_cluster >= 0
            else None,
        )


def _before(heads: Sequence[Packed]) -> dict[tuple[int, int, int], dict[Key, int]]:
    """For each part, by key: the highest index in the parts of its topic and cluster before it."""
    highest: dict[tuple[int, int, int], dict[Key, int]] = {}
    for head in heads:
        of_part = highest.setdefault((head.cluster, head.topic, head.part), {})
        key = (head.origin, head.incarnation)
        of_part[key] = max(of_part.get(key, -1), head.last)
    result: dict[tuple[int, int, int], dict[Key, int]] = {}
    so_far: dict[tuple[int, int], dict[Key, int]] = {}
    for cluster, topic, part in sorted(highest):
        running = so_far.setdefault((cluster, topic), {})
        result[cluster, topic, part] = {key: running[key] for key in highest[cluster, topic, part] if key in running}
        for key, last in highest[cluster, topic, part].items():
            running[key] = max(running.get(key, -1), last)
    return result


def _reach(heads: Sequence[Packed]) -> dict[tuple[int, int], dict[Key, tuple[int, int]]]:
    """For each cluster and topic, by key: the lowest and the highest index held."""
    result: dict[tuple[int, int], dict[Key, tuple[int, int]]] = {}
    for head in heads:
        held = result.setdefault((head.cluster, head.topic), {})
        key = (head.origin, head.incarnation)
        first, last = held.get(key, (head.first, head.last))
        held[key] = min(first, head.first), max(last, head.last)
    return result
