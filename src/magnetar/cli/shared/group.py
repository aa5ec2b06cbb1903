"""Registration of commands: in the order of their definition, each with an example in its help."""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

_F = TypeVar("_F", bound=Callable[..., Any])

SETTINGS = {"help_option_names": ["--help", "-h"]}


_NUMBER: Final = re.compile(r"-\d+")


class Command(TyperCommand):
    """A command to which a negative number is a value: no option is called so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words after the command's name."""
        ctx.ignore_unknown_options = any(map(_NUMBER.fullmatch, args))
        return super().parse_args(ctx, args)


class Group:
    """The commands of one noun.

    Args:
        help_text: one line for `magnetar --help`.
    """

    def __init__(self, help_text: str) -> None:
        self.typer = typer.Typer(
            help=help_text,
            no_args_is_help=True,
            context_settings=SETTINGS,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            add_completion=False,
        )

    def add(self, name: str, *, example: str) -> Callable[[_F], _F]:
        """Decorate the function that runs `name`; its docstring is the help."""

        def register(function: _F) -> _F:
            added = self.typer.command(name, cls=Command, epilog=f"Example: {example}", context_settings=SETTINGS)
            added(function)
            return function

        return register
