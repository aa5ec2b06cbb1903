"""Shared parts of all commands: options, the configuration that they select, tables and JSON."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from magnetar.cli.shared.credentials import present_as
from magnetar.core import config as configuration
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.metadata.policies.defaults import defaults_of

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help=f"Configuration; default: {configuration.FILE_NAME} of this folder, else three clusters on this machine.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_config(path: Path | None) -> Config:
    """The configuration a command means: the file named, else the folder's, else the built-in one.

    Raises:
        ConfigError: the file is wrong.
    """
    config = load(path or found_file())
    present_as(config)
    return config


def load(path: Path | None) -> Config:
    """`core.config.load`, with `[policies]` checked.

    Raises:
        ConfigError: the file is wrong.
    """
    config = configuration.load(path)
    try:
        defaults_of(config.policies)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from None
    return config


def found_file() -> Path | None:
    """clusters.toml of the working folder, if there is one."""
    path = Path(configuration.FILE_NAME)
    return path if path.exists() else None


def console(*, stderr: bool = False) -> "Console":
    """The console for tables: as wide as its content needs if no terminal sets the width."""
    from rich.console import Console

    plain = Console(stderr=stderr)
    return plain if plain.is_terminal else Console(stderr=stderr, width=200)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_line(text: str) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool, title: str = "") -> None:
    """Print dicts as a table of some of their keys, or as JSON of all of them."""
    if as_json:
        print_json(list(rows))
        return
    console().print(table(rows, columns, title=title))


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, title: str = "") -> Any:
    """A Rich table; numbers are aligned to the right. Texts are shown unchanged, never as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        made.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell(row.get(column))) for column in columns))
    return made


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    # Names may contain any character that is not a control character; other texts may contain control characters too.
    return "".join(character if character.isprintable() else " " for character in str(value))


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(milliseconds: float) -> str:
    """Milliseconds for people."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def with_spark(load: Callable[[], _T]) -> _T:
    """Import a part that needs PySpark.

    Raises:
        MagnetarError: PySpark is not installed; says how to install it.
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in {"pyspark", "pyarrow", "py4j"}:
            raise MagnetarError(
                f'this command needs PySpark ({error.name} is not installed): pip install "magnetar[spark]"'
            ) from None
        raise


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal only `--yes` is accepted.

    Raises:
        MagnetarError: the answer is no, or there is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise MagnetarError(f"{question} Say --yes to do it without being asked.")
    if not typer.confirm(question, err=True):  # standard output may be a file, or JSON
        raise MagnetarError("nothing was changed")
