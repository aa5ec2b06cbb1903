"""`magnetar verify`: proof that every cluster holds every message of a topic once, in its origin's order."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from magnetar.cli.common import ConfigOption, JsonOption, print_json, print_line, print_rows, read_config, with_spark
from magnetar.core.config import Config
from magnetar.core.names import TopicName

if TYPE_CHECKING:
    from magnetar.spark.verify import VerifyResult

EXAMPLE = "magnetar verify persistent://public/default/flights"

SETTINGS: Final = {
    # A batch job of unknown size: Spark shall fit the number of tasks to the data, which the pipeline's small batches
    # have no use for. Without it each shuffle has 200 tasks, and a small topic takes three times as long.
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.enabled": "false",
}

COLUMNS = ("cluster", "messages", "missing", "duplicated", "reordered", "altered")


def verify(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Any form of the name; all partitions are compared.")],
    config: ConfigOption = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master; default: the configuration's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a topic between all clusters, message by message; exit code 1 when anything differs."""
    chosen = read_config(config)
    name = TopicName.parse(topic)
    result = with_spark(lambda: compare(chosen, str(name), master))
    rows = as_rows(result)
    if as_json:
        print_json({"topic": result.topic, "messages": result.messages, "clean": result.clean, "clusters": rows})
    else:
        print_rows(rows, COLUMNS, as_json=False, title=f"{result.topic}: {result.messages:,} different messages")
        for line in examples(result):
            print_line(line)
    raise typer.Exit(0 if result.clean else 1)


def compare(config: Config, topic: str, master: str | None) -> "VerifyResult":
    """Run the comparison in a Spark session of its own.

    Raises:
        MagnetarError: no Java, a cluster that does not answer, a topic that cannot be read.
    """
    from magnetar.spark import session
    from magnetar.spark.verify import verify_config

    session.find_java()
    with tempfile.TemporaryDirectory(prefix="magnetar-verify-") as folder:
        log = Path(folder) / "spark.log"
        spark = session.build(
            app="magnetar verify",
            master=master or config.replication.master,
            log=log,
            settings=SETTINGS | config.replication.spark,
        )
        try:
            return verify_config(spark, config, topic)
        finally:
            with session.standard_error_to(log):
                spark.stop()


def as_rows(result: "VerifyResult") -> list[dict[str, Any]]:
    """One row a cluster."""
    return [{"cluster": name} | asdict(findings) for name, findings in result.clusters.items()]


def examples(result: "VerifyResult") -> list[str]:
    """A line for each message that is named as an example of what is wrong."""
    return [
        f"{cluster}: {kind}: {topic} {identity[0]}/{identity[1]}/{identity[2]}"
        for cluster, findings in result.clusters.items()
        for kind, found in findings.examples.items()
        for topic, identity in found
    ]
