"""How commands are registered: in the order of their definition, each with an example in its help."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer

_F = TypeVar("_F", bound=Callable[..., Any])

SETTINGS = {"help_option_names": ["--help", "-h"]}


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
            self.typer.command(name, epilog=f"Example: {example}", context_settings=SETTINGS)(function)
            return function

        return register
