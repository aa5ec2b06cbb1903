"""`magnetar replicate`: the Spark pipeline between the clusters."""

from typing import Annotated

import typer

from magnetar.cli.shared.common import ConfigOption, print_line, read_config, with_spark

EXAMPLE = "magnetar replicate --link us-west:us-east --once"


def replicate(
    config: ConfigOption = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="A:B", help="A link of the configuration; may be repeated. Default: all."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master; default: the configuration's, else local[2,4].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Replicate everything that is there now, then stop.")] = False,
) -> None:
    """Replicate between the clusters on Spark, until Ctrl-C or SIGTERM."""
    chosen = read_config(config)
    links = tuple(str(chosen.link(text)) for text in link or ())

    def load() -> int:
        from magnetar.pipeline.replicate import ReplicateOptions, run

        return run(ReplicateOptions(config=chosen, links=links, master=master, once=once), print_line)

    raise typer.Exit(with_spark(load))
