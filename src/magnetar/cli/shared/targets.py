"""The brokers that an administration command talks to, and the handling of several."""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from magnetar.admin.client import TIMEOUT_S, AdminClient
from magnetar.cli.shared.common import found_file, print_line, print_rows, read_config
from magnetar.cli.shared.credentials import present_as
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError, MagnetarError

_T = TypeVar("_T")

PARALLEL_MAX: Final = 16
"""Questions asked at the same time: more threads would only wait for each other's output."""

URL_VARIABLE: Final = "MAGNETAR_ADMIN_URL"

AdminUrlOption = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        metavar="URL",
        help="REST interface of a broker; default: $MAGNETAR_ADMIN_URL, else the first cluster of this machine.",
    ),
]
EverywhereOption = Annotated[
    bool, typer.Option("--everywhere", help="Do it in every cluster of the configuration, one after the other.")
]


class Target(NamedTuple):
    """A broker, or the brokers of a cluster, to speak to; `cluster` is "" when only its URL is known."""

    cluster: str
    client: AdminClient


def targets(config: Path | None, admin_url: str | None, everywhere: bool) -> list[Target]:
    """The brokers that the options of a command name.

    Raises:
        ConfigError: options that contradict each other, or anything wrong in the file.
    """
    if everywhere:
        if admin_url is not None:
            raise ConfigError("--everywhere speaks to all clusters of the configuration: leave --admin-url out")
        return of_config(read_config(config))
    where = ""
    if admin_url is None and not config and (admin_url := os.environ.get(URL_VARIABLE) or None):
        where = f"{URL_VARIABLE}: "
    if admin_url is not None:  # "" is no URL: a variable of the user's that is empty must not mean another broker
        present_as(read_config(config) if config or found_file() else None)
        try:
            return [Target("", AdminClient(admin_url))]
        except MagnetarError as error:
            raise ConfigError(f"{where}{error}") from None
    chosen = read_config(config)
    first = (chosen.local_clusters() or list(chosen.clusters.values()))[0]
    return [Target(first.name, client_of(chosen, first.name))]


def of_config(config: Config, *, timeout_s: float = TIMEOUT_S) -> list[Target]:
    """Every cluster of a configuration."""
    return [Target(name, client_of(config, name, timeout_s=timeout_s)) for name in config.clusters]


def client_of(config: Config, cluster: str, *, timeout_s: float = TIMEOUT_S) -> AdminClient:
    """A client of a cluster, which waits while another broker takes over, and says so in one line.

    Raises:
        ConfigError: there is no such cluster.
    """

    def say(line: str) -> None:
        sys.stderr.write(f"magnetar: {cluster}: {' '.join(line.split())}\n")

    return AdminClient(config.cluster(cluster).admin_urls, timeout_s=timeout_s, waits=say)


def at_once(found: Sequence[Target], ask: Callable[[AdminClient], _T]) -> list[_T | MagnetarError]:
    """Ask several brokers at the same time; answers or errors in their order."""
    return answers_of([partial(ask, target.client) for target in found])


def answers_of(questions: Sequence[Callable[[], _T]]) -> list[_T | MagnetarError]:
    """Ask several questions at the same time; answers or errors in their order."""

    def one(question: Callable[[], _T]) -> _T | MagnetarError:
        try:
            return question()
        except MagnetarError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(PARALLEL_MAX, max(1, len(questions)))) as pool:
        return list(pool.map(one, questions))


def change(found: Sequence[Target], act: Callable[[AdminClient], object], done: str) -> None:
    """Do something to each broker and report it; after a failure the others are done all the same.

    Raises:
        MagnetarError: the failure, with the cluster's name if there are several.
    """
    failures: list[str] = []
    for target in found:
        where = f"{target.cluster}: " if len(found) > 1 else ""
        try:
            act(target.client)
        except MagnetarError as error:
            failures.append(f"{where}{error}")
        else:
            print_line(f"{where}{done}")
    if failures:
        raise MagnetarError("; ".join(failures))


def show(
    found: Sequence[Target],
    ask: Callable[[AdminClient], list[dict[str, Any]]],
    columns: Sequence[str],
    *,
    as_json: bool,
    none: str = "",
) -> None:
    """Print rows of each broker, with a column for the cluster when there are several.

    Args:
        found: the brokers.
        ask: the rows of one.
        columns: columns of the table.
        as_json: print a list instead.
        none: printed instead of a table without rows; "": an empty table is printed.

    Raises:
        MagnetarError: a broker refused; the answers of the others are printed before.
    """
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    several = len(found) > 1
    for target, answer in zip(found, at_once(found, ask), strict=True):
        if isinstance(answer, MagnetarError):
            failures.append(f"{target.cluster}: {answer}" if several else str(answer))
        else:
            rows += [{"cluster": target.cluster} | row if several else row for row in answer]
    if none and not (rows or failures or as_json):
        print_line(none)
    elif rows or not failures:
        print_rows(rows, (["cluster"] if several else []) + list(columns), as_json=as_json)
    if failures:
        raise MagnetarError("; ".join(failures))
