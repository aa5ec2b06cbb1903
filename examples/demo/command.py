"""The demo's command: real flights through three clusters, while brokers and Spark die."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from magnetar.cli.shared.common import JsonOption, console, print_json, print_line, table
from magnetar.cli.shared.group import SETTINGS
from magnetar.core.errors import MagnetarError

app: Final = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
"""One command: `magnetar demo`, `python -m examples.demo`."""

FAST_FLIGHTS: Final = 7_000
"""Of each airport with `--fast`: three weeks, enough for every part of the story."""

PER_SECOND: Final = 2_500
"""How fast each airport publishes: three publishers, four readers and three brokers share what may be two cores."""

VERIFY_S: Final = 900
"""A deadline for the comparison of everything."""


@app.command(epilog="Example: magnetar demo --fast", context_settings=SETTINGS)
def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="The first three weeks of January only: about a minute.")
    ] = False,
    flights: Annotated[
        int | None, typer.Option(min=100, metavar="N", help="So many flights of each airport; default: all.")
    ] = None,
    per_second: Annotated[int, typer.Option(min=10, metavar="N", help="How fast each airport publishes.")] = PER_SECOND,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to work, and to leave everything; default: a temporary one."),
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master.")] = "local[2,4]",
    as_json: JsonOption = False,
) -> None:
    """Send 336,776 real flights through three clusters, while brokers and Spark are killed; prove that none is lost."""
    own = folder is None
    path = Path(tempfile.mkdtemp(prefix="magnetar-demo-")) if folder is None else prepare(folder)
    with ended_by_sigterm():
        try:
            options = Options(flights or (FAST_FLIGHTS if fast else None), fast, per_second, master, as_json)
            result = play(path, options)
        except MagnetarError as error:
            raise MagnetarError(f"{error}; logs are in {path}") from None
        except KeyboardInterrupt:
            if own:
                shutil.rmtree(path, ignore_errors=True)
            raise
    if own and result["ok"]:
        shutil.rmtree(path, ignore_errors=True)
    elif not result["ok"]:
        raise MagnetarError(f"{'; '.join(result['faults'])}; everything is left in {path}")


def prepare(folder: Path) -> Path:
    """A folder to work in.

    Raises:
        MagnetarError: it holds something already, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise MagnetarError(f"{folder} is not empty: name a new folder for the demo")
    except OSError as error:
        raise MagnetarError(f"{folder} cannot be used: {error.strerror}; name another folder") from None
    return folder.absolute()


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        each_max: flights of each airport; None: all.
        brief: only January is read, and Java starts with settings for a short run.
        per_second: flights that each airport publishes.
        master: Spark master URL.
        as_json: JSON instead of tables and progress.
    """

    each_max: int | None
    brief: bool
    per_second: int
    master: str
    as_json: bool


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
        read = flights.rows(data)
        departures = flights.departures(flights.january(read) if options.brief else read, options.each_max)
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


def verify(topic: str, folder: Path, config: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run `magnetar verify` as a user does; its JSON.

    Args:
        topic: what to compare.
        folder: for its log.
        config: clusters.toml.
        environment: added to ours.

    Raises:
        MagnetarError: it could not compare.
    """
    command = [sys.executable, "-m", "magnetar", "verify", topic, "-c", str(config), "--json"]
    log = folder / "verify.log"
    with log.open("ab") as errors:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
                timeout=VERIFY_S,
                env=os.environ | dict(environment),
            )
        except subprocess.TimeoutExpired:
            raise MagnetarError(f"magnetar verify took longer than {VERIFY_S} s") from None
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise MagnetarError(
            f"magnetar verify ended with {done.returncode}: {lines[-1] if lines else 'no line'}"
        ) from None


class ended_by_sigterm:  # noqa: N801 - reads as what it does
    """SIGTERM ends the program as Ctrl-C does, so that its children end too."""

    def __enter__(self) -> None:
        self._kept = None
        if threading.current_thread() is threading.main_thread():
            self._kept = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        if self._kept is not None:
            signal.signal(signal.SIGTERM, self._kept)
