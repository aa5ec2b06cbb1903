"""The demo's command: real flights through three clusters, while brokers and Spark die."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

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
from magnetar.cli.shared.common import JsonOption, console, print_json, print_line, table
from magnetar.cli.shared.group import SETTINGS

app: Final = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
"""One command: `magnetar demo`, `python -m examples.demo`."""

PER_SECOND: Final = 2_500
"""How fast each airport publishes: three publishers, four readers and three brokers share what may be two cores."""


@app.command(epilog="Example: magnetar demo --fast", context_settings=SETTINGS)
def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="The first three weeks of January only: about a minute.")
    ] = False,
    flights: FlightsOption = None,
    per_second: PerSecondOption = PER_SECOND,
    folder: FolderOption = None,
    master: MasterOption = "local[2,4]",
    as_json: JsonOption = False,
) -> None:
    """Send 336,776 real flights through three clusters, while brokers and Spark are killed; prove that none is lost."""
    options = Options(flights or (FAST_FLIGHTS if fast else None), fast, per_second, master, as_json)
    run(folder, "magnetar-demo-", lambda path: play(path, options))


def play(path: Path, options: Options) -> dict[str, Any]:
    """The whole demo in a folder; its result, already printed."""
    from examples.demo import flights, report
    from examples.demo.cast import TOPIC
    from examples.demo.screen import screen
    from examples.demo.script import Story
    from examples.demo.world import World

    shown = screen(as_json=options.as_json)
    data = flights.source()
    world = World(path, flights.AIRPORTS, options.master, brief=options.brief)
    try:
        shown.step("starting three brokers and the Spark pipeline")
        world.open(shown.look)
        shown.step("reading the flights meanwhile")
        departures = flights.read(data, brief=options.brief, each_max=options.each_max)
        outcome = Story(world, departures, options.per_second, shown).run()
        shown.step("comparing all three clusters on Spark (magnetar verify)")
        verified = verify(TOPIC, path, world.config, world.environment)
        shown.close()
    except BaseException:
        shown.close()
        raise
    finally:
        world.close()
    result = report.summary(outcome, verified)
    if options.as_json:
        print_json(result)
        return result
    console().print(table([report.shown(row) for row in result["links"]], report.LINK_COLUMNS, title="replication"))
    rows = [report.shown_schema(row) for row in result["schemas"]]
    console().print(table(rows, report.SCHEMA_COLUMNS, title="schemas: one was evolved on the way"))
    console().print(table(verified["clusters"], report.VERIFY_COLUMNS, title="magnetar verify"))
    console().print(table(report.verdict(outcome), report.VERDICT_COLUMNS, title="the verdict"))
    for line in report.sentences(outcome):
        print_line(line)
    if result["ok"]:
        print_line("all three clusters hold every flight exactly once, in each origin's order, and decoded every one")
    return result
