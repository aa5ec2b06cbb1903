"""The command: real flights through a cluster of two brokers on BookKeeper, while brokers, a bookie and Spark die."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from tests.support.apache_bookkeeper.kit import missing

from examples.cluster.story import Outcome, Story
from examples.cluster.world import CLUSTER, OTHER, World
from examples.demo import flights, report
from examples.demo.cast import TOPIC
from examples.demo.running import (
    FAST_FLIGHTS,
    FlightsOption,
    FolderOption,
    MasterOption,
    Options,
    PerSecondOption,
    run,
    verify,
)
from examples.demo.screen import screen
from magnetar.cli.shared.common import JsonOption, console, print_json, print_line, table
from magnetar.cli.shared.group import SETTINGS
from magnetar.core.errors import MagnetarError

app: Final = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
"""One command: `python -m examples.cluster`."""

PER_SECOND: Final = 1_000
"""How fast each cluster publishes: nine JVMs and Python processes share what may be two cores."""


@app.command(epilog="Example: python -m examples.cluster --fast", context_settings=SETTINGS)
def cluster(
    fast: Annotated[
        bool, typer.Option("--fast", help="The first three weeks of January only: about two minutes.")
    ] = False,
    count: FlightsOption = None,
    per_second: PerSecondOption = PER_SECOND,
    folder: FolderOption = None,
    master: MasterOption = "local[2,4]",
    as_json: JsonOption = False,
) -> None:
    """Kill brokers, a bookie and Spark under real flights; prove that none is lost."""
    if reason := missing():
        raise MagnetarError(reason)
    options = Options(count or (FAST_FLIGHTS if fast else None), fast, per_second, master, as_json)
    run(folder, "magnetar-cluster-", lambda path: play(path, options))


def play(path: Path, options: Options) -> dict[str, Any]:
    """The whole story in a folder; its result, already printed."""
    shown = screen(as_json=options.as_json)
    data = flights.source()
    world = World(path, options.master, brief=options.brief)
    try:
        shown.step(
            "starting ZooKeeper, four bookies, three brokers and the Spark pipeline (the first time: fetching them)"
        )
        world.open(shown.look)
        shown.step("reading the flights meanwhile")
        departures = flights.read(data, brief=options.brief, each_max=options.each_max)
        outcome = Story(world, {name: departures[name] for name in (CLUSTER, OTHER)}, options.per_second, shown).run()
        shown.step("comparing both clusters on Spark (magnetar verify)")
        verified = verify(TOPIC, path, world.config, world.environment)
        shown.close()
    except BaseException:
        shown.close()
        raise
    finally:
        world.close()
    result = summary(outcome, verified)
    if options.as_json:
        print_json(result)
        return result
    console().print(table([report.shown(row) for row in result["links"]], report.LINK_COLUMNS, title="replication"))
    console().print(table(verified["clusters"], report.VERIFY_COLUMNS, title="magnetar verify"))
    console().print(table(verdict(outcome), report.VERDICT_COLUMNS, title="the verdict"))
    if result["ok"]:
        print_line("both clusters hold every flight exactly once, in each origin's order")
    return result


def summary(outcome: Outcome, verified: dict[str, Any]) -> dict[str, Any]:
    """Everything, as JSON."""
    faults = outcome.faults() + report.verify_faults(sum(outcome.published.values()), verified)
    return {
        "published": outcome.published,
        "links": report.links(outcome.watchers),
        "consumer": {
            "flights": outcome.consumer.arrived,
            "delivered_twice": outcome.consumer.again,
            "delivered_twice_because": dict(outcome.consumer.reasons),
        },
        "pauses_s": outcome.pauses_s,
        "lost": lost(outcome),
        "verify": verified,
        "times_s": outcome.times,
        "faults": faults,
        "ok": not faults,
    }


def verdict(outcome: Outcome) -> list[dict[str, Any]]:
    """What the story is for, a row a figure."""
    rows: list[tuple[str, int | str]] = [
        ("messages published", sum(outcome.published.values())),
        ("messages lost", lost(outcome)),
        ("messages delivered twice", sum(one.again for one in (*outcome.watchers.values(), outcome.consumer))),
        *((f"of these, {reason}", count) for reason, count in outcome.consumer.reasons.items()),
        *((f"longest time without a confirmation, {what}", f"{s:.2f} s") for what, s in outcome.pauses_s.items()),
    ]
    return [dict(zip(report.VERDICT_COLUMNS, row, strict=True)) for row in rows]


def lost(outcome: Outcome) -> int:
    """Messages that a reader or the consumer never got."""
    return sum(tally.missing for tally in (*outcome.watchers.values(), outcome.consumer))
