"""The `magnetar` command, with one module per noun; `main` turns every failure into one line and an exit code.

Exit codes: 0 done, 1 a failure that is explained in one line on stderr, 2 wrong usage. They are the same when the
output is not read (`| head`): see `cli.shared.output`.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

DEBUG_VARIABLE: Final = "MAGNETAR_DEBUG"
"""Set to 1, unexpected errors show their traceback."""


def main() -> None:
    """Run the command line; never returns."""
    end_with(lambda: run(sys.argv[1:]))


def end_with(program: Callable[[], int]) -> NoReturn:
    """Run a program of the command line and end the process with its exit code."""
    from magnetar.cli.shared.output import install

    output = install()
    sys.exit(output.end(program()))


def run(arguments: list[str]) -> int:
    """Run one command.

    Args:
        arguments: without the program's name.

    Returns:
        The exit code.
    """

    def program() -> None:
        from magnetar.core.errors import ConfigError
        from magnetar.runtime.interpreter.compiled import problem

        if wrong := problem():
            raise ConfigError(wrong)
        from magnetar.cli.commands.all import app

        app(args=arguments, prog_name="magnetar")

    return explained(program)


def explained(program: Callable[[], None]) -> int:
    """Run a program and return its exit code. An exception becomes one line on stderr."""
    from magnetar.core.errors import MagnetarError

    try:
        program()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except MagnetarError as error:
        return _explain(str(error) or type(error).__name__, error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback reaches a user
        where = "" if os.environ.get(DEBUG_VARIABLE) == "1" else f"; details in {_keep(error)}"
        return _explain(f"unexpected {type(error).__name__}: {error}{where}", error)


def _explain(text: str, error: Exception) -> int:
    """Say in one line on stderr what went wrong."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    line = " ".join(text.split())
    sys.stderr.write(f"magnetar: {line}\n")
    return 1


def _keep(error: Exception) -> str:
    """Write the traceback of an unexpected error to a file of its own; the file's name."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="magnetar-error-", suffix=".log")
        with os.fdopen(descriptor, "w") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"a run with {DEBUG_VARIABLE}=1"
    return name
