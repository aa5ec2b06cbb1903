"""Figures, as printed and as kept in `bench/results/`."""

import json
import os
import platform
import shlex
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.support.machine import Taken

_TAKEN = Taken()
"""Since the program's start: with much of it figures say little."""

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured.
        value, unit: the number.
        aim: what it should be, as text; "" when there is no aim.
        detail: whatever explains it.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


def kept(suite: str, new: list[Figure]) -> list[Figure]:
    """Figures of earlier runs that this one has not taken."""
    path = RESULTS / f"{suite}.json"
    if not path.exists():
        return []
    old = json.loads(path.read_text())
    new_names = {figure.name for figure in new}
    figures = [Figure(**each) for each in old["figures"] if each["name"] not in new_names]
    for figure in figures:
        # The file's head tells of the last run; what was measured before it says so itself.
        for key in ("command", "commit", "when"):
            figure.detail.setdefault(key, old[key])
    return figures


def store(suite: str, figures: list[Figure], command: list[str]) -> None:
    """Print a table and write `bench/results/<suite>.json` (the last run) with the command and the machine.

    Args:
        suite: name of the file.
        figures: all that it shall have.
        command: `sys.argv` of the bench: the path of its program, and the arguments.
    """
    table = Table(title=f"bench: {suite}")
    for column in ("figure", "value", "unit", "aim"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:,.3g}" if figure.value < 1000 else f"{figure.value:,.0f}",
            figure.unit,
            figure.aim,
        )
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    content = {
        "suite": suite,
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", f"bench.{Path(command[0]).stem}", *command[1:]]),
        "commit": commit.stdout.strip(),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "taken_by_the_host": round(_TAKEN.share(), 4),
        },
        "figures": [asdict(figure) for figure in figures],
    }
    (RESULTS / f"{suite}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
