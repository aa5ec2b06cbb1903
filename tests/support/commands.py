"""The command line as tests see it: every command there is, and what an error looks like."""

import io
from typing import Any

import typer

from magnetar.cli.commands.all import app
from tests.unit.cli.conftest import Answer


def leaves(words: list[str], command: Any) -> list[list[str]]:
    below = getattr(command, "commands", {})
    return [leaf for name, one in below.items() for leaf in leaves([*words, name], one)] if below else [words]


LEAVES = leaves([], typer.main.get_command(app))


def one_line(answer: Answer) -> str:
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("magnetar: ")
    assert "Traceback" not in answer.err
    return answer.err.removeprefix("magnetar: ").strip()


class Terminal(io.StringIO):
    """Somebody who says yes."""

    def isatty(self) -> bool:
        return True
