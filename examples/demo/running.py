"""What the examples' commands share: their options, the folder that they work in, and the comparison at their end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from magnetar.core.errors import MagnetarError

FAST_FLIGHTS: Final = 7_000
"""Of each airport with `--fast`: three weeks, enough for every part of the story."""


VERIFY_S: Final = 900
"""A deadline for the comparison of everything."""

FlightsOption = Annotated[
    int | None, typer.Option("--flights", min=100, metavar="N", help="So many flights of each airport; default: all.")
]
PerSecondOption = Annotated[int, typer.Option(min=10, metavar="N", help="How fast each airport publishes.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where to work, and to leave everything; default: a temporary one."),
]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="Spark master.")]


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


def run(folder: Path | None, prefix: str, play: Callable[[Path], dict[str, Any]]) -> None:
    """Play a story in a folder. A temporary folder is deleted if all went well.

    Args:
        folder: new or empty; None: a temporary one.
        prefix: of a temporary folder's name.
        play: plays it there and prints its result; returns the result, which has `ok` and `faults`.

    Raises:
        MagnetarError: it could not be played to its end, or something was lost; the line names the folder.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix)) if folder is None else prepare(folder)
    with ended_by_sigterm():
        try:
            result = play(path)
        except MagnetarError as error:
            raise MagnetarError(f"{error}; logs are in {path}") from None
        except KeyboardInterrupt:
            if folder is None:
                shutil.rmtree(path, ignore_errors=True)
            raise
    if not result["ok"]:
        raise MagnetarError(f"{'; '.join(result['faults'])}; everything is left in {path}")
    if folder is None:
        shutil.rmtree(path, ignore_errors=True)


def prepare(folder: Path) -> Path:
    """A new or empty folder to work in.

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
