"""`magnetar verify`: does every cluster hold every message of a topic once, in its origin's order, unaltered?

Every entry of every partition is listed in every cluster (`listing`), then compared by what names a message everywhere:
`(origin cluster, topic incarnation, origin index)`. A batch job: one Spark task a partition and cluster, one shuffle of
some 100 bytes an entry.

What a cluster should hold of an origin: its own entries, and those of each origin with a link to it, unless the publisher
restricted them to other clusters. Markers have no identity and are left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Identity
from magnetar.core.names import TopicName
from magnetar.spark import link as wire
from magnetar.spark.listing import ANSWER_S
from magnetar.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES_MAX: Final = 20
"""Identities listed of each kind and cluster; the counts are complete."""

PARTITIONED_METADATA: Final = 21
PARTITIONED_METADATA_RESPONSE: Final = 22


@dataclass(slots=True)
class Findings:
    """What is wrong in one cluster; counts are messages, examples are `(topic, identity)`.

    Attributes:
        messages: held, duplicates included.
        missing: should be here and are not.
        missing_before_first: of these, older than anything this cluster holds of their origin (trimmed, or never sent
            because it joined late): the same loss to a reader, another cause.
        duplicated: copies beyond the first.
        reordered: stand behind a later message of the same origin.
        altered: their bytes differ from their origin's copy (or, where that is gone, from the other clusters').
    """

    messages: int = 0
    missing: int = 0
    missing_before_first: int = 0
    duplicated: int = 0
    reordered: int = 0
    altered: int = 0
    examples: dict[str, list[tuple[str, Identity]]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.duplicated or self.reordered or self.altered)


@dataclass(slots=True)
class VerifyResult:
    """The outcome, by cluster.

    Attributes:
        topic: that was compared, with all its partitions.
        partitions: 0: not partitioned.
        messages: different ones in all clusters together.
        clusters: what is wrong where.
    """

    topic: str
    partitions: int
    messages: int
    clusters: dict[str, Findings]

    @property
    def clean(self) -> bool:
        """Whether all clusters hold what they should, once, in order, unaltered."""
        return all(findings.clean for findings in self.clusters.values())


def partitions_of(address: str, topic: str, token: str) -> int:
    """How many partitions a topic has in a cluster; 0: it is not partitioned.

    Raises:
        MagnetarError: the cluster does not answer or does not know.
    """
    channel = wire.Channel(address, token)
    try:
        command = pb.BaseCommand(type=PARTITIONED_METADATA)
        command.partitionMetadata.topic, command.partitionMetadata.request_id = topic, 1
        answer = wire.call(channel, command, ANSWER_S).command.partitionMetadataResponse
        if answer.HasField("error"):
            raise MagnetarError(f"{topic} at {address}: {answer.message}")
        return answer.partitions
    finally:
        channel.close()


def verify(
    spark: "SparkSession",
    topic: str,
    *,
    addresses: Mapping[str, str],
    links: Iterable[tuple[str, str]],
    token_file: Path,
    partitions: int | None = None,
) -> VerifyResult:
    """Compare a topic between clusters.

    Args:
        spark: a session.
        topic: any form of the name, without partition for all of its partitions.
        addresses: `host:port` of each cluster to compare.
        links: (source, target) of the links there are: they tell which cluster should hold what.
        token_file: secret of the links.
        partitions: of the topic; None: ask the clusters, the largest answer counts.

    Raises:
        MagnetarError: a name is wrong, a cluster does not answer, or a topic cannot be read; one line.
    """
    from pyspark.errors import PySparkException

    from magnetar.spark import register
    from magnetar.spark.session import first_line

    name = TopicName.parse(topic)
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise MagnetarError(f"link token {token_file}: {error.strerror}") from None
    if partitions is None:
        partitions = max(partitions_of(address, str(name), token) for address in addresses.values())
    topics = [str(name.with_partition(number)) for number in range(partitions)] or [str(name)]
    register(spark)
    wanted = [[cluster, address, one] for cluster, address in addresses.items() for one in topics]
    listed = (
        spark.read.format("pulsar-entries").options(topics=json.dumps(wanted), token_file=str(token_file)).load()
    )  # fmt: skip
    try:
        return _compare(listed, str(name), partitions, sorted(addresses), set(links))
    except PySparkException as error:
        raise MagnetarError(f"verify {name}: {first_line(error)}") from None


def verify_config(spark: "SparkSession", config: Config, topic: str) -> VerifyResult:
    """Compare a topic between all clusters of a configuration; see `verify`."""
    return verify(
        spark,
        topic,
        addresses={name: cluster.advertised for name, cluster in config.clusters.items()},
        links=[(link.source, link.target) for link in config.links],
        token_file=config.replication.token_file,
    )


def _compare(
    listed: "DataFrame", name: str, partitions: int, clusters: Sequence[str], links: set[tuple[str, str]]
) -> VerifyResult:
    from pyspark.sql import functions as f

    entries = listed.where("first_index >= 0").drop("data").cache()
    try:
        # One row an identity: what each cluster has of it.
        per_cluster = entries.groupBy("topic", "origin", "incarnation", "first_index", "cluster").agg(
            f.max("message_count").alias("count"),
            f.count("*").alias("copies"),
            f.sum(f.col("disorder").cast("int")).alias("disorders"),
            f.collect_set("checksum").alias("sums"),
            f.max("only_for").alias("only_for"),
        )
        held = f.struct("count", "copies", "disorders", "sums")
        identities = (
            per_cluster.groupBy("topic", "origin", "incarnation", "first_index")
            .pivot("cluster", list(clusters))
            .agg(f.first(held))
            .join(
                per_cluster.groupBy("topic", "origin", "incarnation", "first_index").agg(
                    f.max("count").alias("n"), f.max("only_for").alias("only_for")
                ),
                ["topic", "origin", "incarnation", "first_index"],
            )
        )
        firsts = {
            (row["topic"], row["origin"], row["incarnation"], row["cluster"]): row["first"]
            for row in entries.groupBy("topic", "origin", "incarnation", "cluster")
            .agg(f.min("first_index").alias("first"))
            .collect()
        }
        total = identities.agg(f.sum("n")).collect()[0][0] or 0
        result = VerifyResult(name, partitions, total, {cluster: Findings() for cluster in clusters})
        for cluster, messages in (
            entries.groupBy("cluster").agg(f.sum("message_count").alias("m")).collect()
        ):  # fmt: skip
            result.clusters[cluster].messages = messages
        # Only what is suspicious comes to the driver, streamed.
        for row in identities.where(_suspicious(clusters, links)).toLocalIterator():
            _judge(row.asDict(recursive=True), result, links, firsts)
    finally:
        entries.unpersist()
    return result


def _expected_sql(cluster: str, links: set[tuple[str, str]]) -> str:
    """SQL: whether an identity should be in a cluster."""
    origins = sorted({cluster} | {source for source, target in links if target == cluster})
    names = ", ".join(f"'{origin}'" for origin in origins)
    open_to = f"only_for is null or array_contains(split(only_for, ','), '{cluster}')"
    return f"(origin in ({names}) and (origin = '{cluster}' or {open_to}))"


def _suspicious(clusters: Sequence[str], links: set[tuple[str, str]]) -> str:
    """SQL: whether anything about an identity is wrong anywhere."""
    parts = []
    for cluster in clusters:
        here = f"`{cluster}`"
        parts.append(f"({here} is null and {_expected_sql(cluster, links)})")
        parts.append(f"{here}.copies > 1 or {here}.disorders > 0 or size({here}.sums) > 1")
    sums = ", ".join(f"coalesce(`{cluster}`.sums, array())" for cluster in clusters)
    parts.append(f"size(array_distinct(concat({sums}))) > 1")
    return " or ".join(f"coalesce({part}, false)" for part in parts)


def _judge(
    row: dict[str, Any],
    result: VerifyResult,
    links: set[tuple[str, str]],
    firsts: Mapping[tuple[str, str, int, str], int],
) -> None:
    """Note what is wrong with one identity in each cluster."""
    identity = Identity(row["origin"], row["incarnation"], row["first_index"])
    true_sum = _true_sum(row, result.clusters)
    only_for = row["only_for"].split(",") if row["only_for"] is not None else None
    for cluster, findings in result.clusters.items():
        here = row[cluster]
        if here is None:
            linked = (identity.cluster, cluster) in links and (only_for is None or cluster in only_for)
            if identity.cluster == cluster or linked:
                _note(findings, "missing", row, identity, row["n"])
                first = firsts.get((row["topic"], identity.cluster, identity.incarnation, cluster))
                if first is not None and identity.index < first:
                    findings.missing_before_first += row["n"]
            continue
        if here["copies"] > 1:
            _note(findings, "duplicated", row, identity, row["n"] * (here["copies"] - 1))
        if here["disorders"]:
            _note(findings, "reordered", row, identity, row["n"] * here["disorders"])
        if any(one != true_sum for one in here["sums"]):
            _note(findings, "altered", row, identity, row["n"])


def _true_sum(row: dict[str, Any], clusters: Iterable[str]) -> int:
    """The checksum of the origin's own copy; where that is gone, the most frequent one (the smallest of equals)."""
    own = row.get(row["origin"])
    if isinstance(own, dict) and own["sums"]:
        return int(min(own["sums"]))
    sums = [one for cluster in clusters if row[cluster] for one in row[cluster]["sums"]]
    return int(max(sorted(set(sums)), key=sums.count))


def _note(findings: Findings, kind: str, row: dict[str, Any], identity: Identity, messages: int) -> None:
    setattr(findings, kind, getattr(findings, kind) + messages)
    examples = findings.examples.setdefault(kind, [])
    if len(examples) < EXAMPLES_MAX:
        examples.append((row["topic"], identity))
