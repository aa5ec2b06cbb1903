"""`magnetar bench`: the benchmark suite of the source tree."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar.cli.shared.common import JsonOption, print_json, print_line
from magnetar.cli.source_tree.tree import source_tree
from magnetar.core.errors import MagnetarError
from magnetar.core.tables import nearest

EXAMPLE = "magnetar bench broker --quick"

MARK = "def main("
"""A module of `bench/` with this text is a suite, if it also stores figures."""

QUICK = "--quick"

NOT_HERE = "the benchmarks are part of the source tree: clone the repository and run `make bench` there"


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(metavar="[SUITE]...", help="Default: all.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option(QUICK, help="Less work, with rough figures.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure, print tables, and keep the figures in bench/results/."""
    root = source_tree("bench/results.py", NOT_HERE)
    known = suites_of(root / "bench")
    chosen = suites or known
    for name in chosen:
        if name not in known:
            near = nearest(name, known)
            guess = f"did you mean {near}? " if near else ""
            raise MagnetarError(f"no benchmark suite {name!r}: {guess}there is {', '.join(known)}")
    results: dict[str, Any] = {}
    for name in chosen:
        command = [sys.executable, "-m", f"bench.{name}", *([QUICK] if quick and takes_quick(root, name) else [])]
        done = subprocess.run(command, cwd=root, check=False, stdout=sys.stderr if as_json else None)
        if done.returncode != 0:
            raise MagnetarError(f"benchmark {name} ended with exit code {done.returncode}; its lines above say why")
        figures = root / "bench" / "results" / f"{name}.json"
        # A suite that needs a program which is not here says so and keeps nothing.
        results[name] = json.loads(figures.read_text()) if figures.exists() else None
    if as_json:
        print_json(results)
    else:
        print_line(f"kept in {root / 'bench' / 'results'}")


def takes_quick(root: Path, name: str) -> bool:
    """Whether a suite has a short form; the others are short."""
    return QUICK in (root / "bench" / f"{name}.py").read_text()


def suites_of(folder: Path) -> list[str]:
    """Modules that measure and store figures, by name."""
    return sorted(
        path.stem
        for path in folder.glob("*.py")
        if MARK in (text := path.read_text()) and f'store("{path.stem}"' in text
    )
