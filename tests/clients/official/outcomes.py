"""What came of somebody's tests, and the page that says so."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

Reasons = Sequence[tuple[str, str]]
"""What is known of tests that do not pass: pattern of the name, why. A test that is not named here failed by our fault."""


class Outcome(NamedTuple):
    """One test: passed, failed or skipped, and the line that says why."""

    name: str
    state: str
    line: str


def reason(outcome: Outcome, reasons: Reasons) -> str:
    """Why a test did not pass, as far as it is known."""
    for pattern, why in reasons:
        if re.search(pattern, outcome.name):
            return why
    return f"open: {outcome.line}" if outcome.state == "failed" else outcome.line


def is_open(outcomes: Sequence[Outcome], reasons: Reasons) -> bool:
    """Whether one of them failed for a reason that is not known."""
    return any(reason(one, reasons).startswith("open:") for one in outcomes if one.state != "passed")


def told(outcome: Outcome, reasons: Reasons) -> str:
    """An outcome in one line."""
    why = "" if outcome.state == "passed" else f"  {reason(outcome, reasons)}"
    return f"{outcome.state:8}{outcome.name}{why}"


def table(outcomes: Sequence[Outcome], reasons: Reasons) -> list[str]:
    """How many pass, and the others with their reasons, as lines of a page."""
    missed = [outcome for outcome in outcomes if outcome.state != "passed"]
    lines = [f"**{len(outcomes) - len(missed)} of {len(outcomes)} pass.**", ""]
    if missed:
        lines += ["| not passed | why |", "| --- | --- |"]
        lines += [f"| `{one.name}` | {reason(one, reasons).replace('|', '/')} |" for one in missed]
        lines.append("")
    return lines


def every(outcomes: Sequence[Outcome]) -> list[str]:
    """All of them, as lines of a page."""
    return [
        "## Every test",
        "",
        "| test | |",
        "| --- | --- |",
        *(f"| `{one.name}` | {one.state} |" for one in outcomes),
    ]


def commit_of(checkout: Path) -> str:
    """The checkout's commit; "unknown" when it is no repository, or only lies in one."""
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    inside = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False
    )
    if done.returncode or inside.returncode or Path(inside.stdout.strip()).resolve() != checkout.resolve():
        return "unknown"
    return done.stdout.strip()
