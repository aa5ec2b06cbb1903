"""`magnetar verify`: check that every cluster holds every message of a topic once, in its origin's order."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from magnetar.cli.commands.verify_progress import Shown, shown
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    print_json,
    print_line,
    print_rows,
    read_config,
    with_spark,
)
from magnetar.core.config import Config
from magnetar.core.names import TopicName

if TYPE_CHECKING:
    from magnetar.jobs.verify import Example, Findings, VerifyResult

EXAMPLE = "magnetar verify persistent://public/default/flights"

SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",  # as many tasks as there is data, for jobs of unknown size (`magnetar restore`)
    "spark.ui.enabled": "false",
}
"""Settings of the session of a batch job."""

DIFFERENT: Final = 3
"""Exit code when clusters differ; 1 is for what could not be compared, as everywhere."""

COLUMNS = ("cluster", "messages", "missing", "duplicated", "reordered", "altered")


def verify(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Any form of the name; all partitions are compared.")],
    config: ConfigOption = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master; default: the configuration's.")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, max=10_000, metavar="N", help="Messages listed of each kind and cluster.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare a topic between all clusters, message by message.

    Exit codes: 0 no difference, 3 messages are missing, duplicated, reordered or altered, 1 the comparison failed.
    """
    chosen = read_config(config)
    name = TopicName.parse(topic)
    progress = shown(quiet=as_json)
    partitions = with_spark(lambda: ask(chosen, str(name)))
    try:
        progress.start()
        result = with_spark(lambda: compare(chosen, str(name), master, examples, progress, partitions))
    finally:
        progress.close()
    if as_json:
        print_json(as_document(result))
    else:
        # Not as the table's title, which is broken where the table ends.
        print_line(f"{result.topic}: {result.messages:,} different messages, compared in {result.seconds:.1f} s")
        print_rows(as_rows(result), COLUMNS, as_json=False)
        for line in lines(result):
            print_line(line)
    raise typer.Exit(0 if result.clean else DIFFERENT)


def ask(config: Config, topic: str) -> int:
    """The number of partitions of a topic; 0: it is not partitioned. Spark is not started for a topic that a cluster
    does not have.

    Raises:
        MagnetarError: a cluster does not answer, or does not have it.
    """
    from magnetar.jobs.verify import addresses_of, look_up

    return look_up(topic, addresses=addresses_of(config), token_file=config.replication.token_file)


def compare(
    config: Config, topic: str, master: str | None, examples: int, progress: Shown, partitions: int
) -> "VerifyResult":
    """Run the comparison in a Spark session of its own.

    Raises:
        MagnetarError: no Java, a cluster that does not answer, a topic that cannot be read.
    """
    from magnetar.jobs.verify import verify_config
    from magnetar.spark_session import session

    session.find_java()
    with tempfile.TemporaryDirectory(prefix="magnetar-verify-") as folder:
        log = Path(folder) / "spark.log"
        spark = session.build(
            app="magnetar verify",
            master=master or config.replication.master,
            log=log,
            settings=SETTINGS | config.replication.spark,
            lasting=False,
        )
        try:
            return verify_config(
                spark, config, topic, partitions=partitions, examples_max=examples, report=progress.tell
            )
        finally:
            with session.standard_error_to(log):
                spark.stop()


def as_rows(result: "VerifyResult") -> list[dict[str, Any]]:
    """One row a cluster."""
    from magnetar.jobs.verify import COUNTS

    return [
        {"cluster": name}
        | {count: getattr(findings, count) for count in COUNTS}
        | {"examples": {kind: [as_dict(one) for one in found] for kind, found in findings.examples.items()}}
        for name, findings in result.clusters.items()
    ]


def as_document(result: "VerifyResult") -> dict[str, Any]:
    """The document that `--json` prints."""
    return {
        "topic": result.topic,
        "partitions": result.partitions,
        "messages": result.messages,
        "clean": result.clean,
        "seconds": round(result.seconds, 3),
        "clusters": as_rows(result),
    }


def as_dict(one: "Example") -> dict[str, Any]:
    """An example as JSON; positions are `[ledger, entry]`."""
    made: dict[str, Any] = {
        "topic": one.topic,
        "origin": one.identity.cluster,
        "incarnation": one.identity.incarnation,
        "index": one.identity.index,
        "messages": one.messages,
    }
    if one.position is not None:
        made["position"] = list(one.position)
    if one.copy is not None:
        made["copy"] = {"cluster": one.copy[0], "position": list(one.copy[1])}
    return made


def lines(result: "VerifyResult") -> list[str]:
    """The errors in words, with the first messages of each kind and cluster."""
    found: list[str] = []
    for cluster, findings in result.clusters.items():
        found += _why_missing(cluster, findings)
        for kind, named in findings.examples.items():
            found += [f"{cluster}: {kind}: {_words(one)}" for one in named]
            rest = getattr(findings, kind) - sum(one.messages for one in named)
            if rest > 0:
                found.append(f"{cluster}: {kind}: {rest:,} more (--examples)")
    return found


def _why_missing(cluster: str, findings: "Findings") -> list[str]:
    found = []
    if findings.missing_before_first:
        found.append(
            f"{cluster}: {findings.missing_before_first:,} of the missing ones are older than all its messages of their origin: "
            "retention deleted them, or the cluster joined late"
        )
    if findings.missing_after_last:
        found.append(
            f"{cluster}: {findings.missing_after_last:,} of the missing ones are newer than all its messages of their origin: "
            "they have not arrived yet, or the link has stopped (magnetar links list)"
        )
    return found


def _words(one: "Example") -> str:
    """One message: its identity (origin/incarnation/index), where it is, and where the copy is that counts."""
    identity = f"{one.identity.cluster}/{one.identity.incarnation}/{one.identity.index}"
    batch = f" and {one.messages - 1:,} behind it in its entry" if one.messages > 1 else ""
    where = f" at {one.position.ledger}:{one.position.entry}" if one.position is not None else ""
    relation = "there is a copy" if one.position is None else "it differs from the copy"
    other = f"; {relation} in {one.copy[0]} at {one.copy[1].ledger}:{one.copy[1].entry}" if one.copy else ""
    return f"{one.topic} {identity}{batch}{where}{other}"
