"""`magnetar up`: all clusters of this machine and the pipeline between them."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from magnetar import FORM
from magnetar.cli.processes.supervisor import Child, Spec, Supervisor
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    console,
    found_file,
    load,
    print_json,
    print_line,
    table,
)
from magnetar.core import config as configuration
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError

EXAMPLE = "magnetar up -c clusters.toml"

BROKER_READY: Final = " ready pulsar://"
BROKER_WAITS: Final = " waits pulsar://"
PIPELINE_READY: Final = "replicating "

STATES: Final = {"ready": "serves", "standby": "waits"}
"""States of a broker in words of its cluster."""

FILE_HEAD: Final = """\
# The clusters of a Magnetar installation; docs/configuration.md explains every key.

[magnetar]
data_dir = "data"                 # relative to this file
"""

FILE_TAIL: Final = """
# [[links]]                       # without any [[links]]: every cluster to every other one
# from = "us-west"
# to = "us-east"

[namespaces."public/default"]     # applied at a broker's first start
clusters = "all"                  # replicated out of the box

[replication]
master = "local[2,4]"             # any Spark master URL
"""


def up(
    config: ConfigOption = None,
    init: Annotated[
        bool, typer.Option("--init", help=f"First write the built-in configuration to {configuration.FILE_NAME}.")
    ] = False,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Do not restart a process that dies.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the brokers of this machine and the pipeline between the clusters, until Ctrl-C."""
    path = config or found_file()
    say = _aside if as_json else print_line
    if init:
        path = write_default(config or Path(configuration.FILE_NAME))
        say(f"wrote {path}")
    chosen = load(path)
    specs = specs_of(chosen, path, say)
    supervisor = Supervisor(
        specs,
        say,
        on_ready=lambda children: show(chosen, children, as_json),
        restart=not no_restart,
    )
    raise typer.Exit(supervisor.run())


def _aside(line: str) -> None:
    """A line that is not part of the JSON."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def write_default(path: Path) -> Path:
    """Write the built-in configuration as a file to start from.

    Raises:
        ConfigError: there is one already, or it cannot be written.
    """
    tables = [
        f'\n[clusters.{cluster.name}]\npulsar = "{broker.pulsar}"\nhttp = "{broker.http}"\n'
        for cluster in configuration.builtin(Path("data")).clusters.values()
        for broker in cluster.brokers
    ]
    try:
        with path.open("x") as file:
            file.write(FILE_HEAD + "".join(tables) + FILE_TAIL)
    except FileExistsError:
        raise ConfigError(f"{path} exists already: leave --init out to use it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return path


def specs_of(config: Config, path: Path | None, say: Callable[[str], None] = print_line) -> list[Spec]:
    """The children: the brokers of this machine, and the pipeline where there is one to run.

    Args:
        config: which clusters there are.
        path: its file, for the children.
        say: called with the reason if there is no pipeline.

    Raises:
        ConfigError: no cluster of the file is on this machine.
    """
    local = config.local_clusters()
    if not local:
        raise ConfigError(f"{config.source}: every cluster has here = false: there is nothing to run on this machine")
    program = [sys.executable, "-m", "magnetar"]
    file = ["-c", str(path)] if path else []
    titles = [cluster.title(broker) for cluster in local for broker in cluster.local_brokers()]
    specs = [
        Spec(f"broker {title}", [*program, "broker", title, *file], BROKER_READY, standby=BROKER_WAITS)
        for title in titles
    ]
    if not config.links:
        return specs
    if importlib.util.find_spec("pyspark") is None:
        say('no pipeline: PySpark is not installed; pip install "magnetar[spark]" brings it')
        return specs
    replicate = [*program, "replicate", *file]
    # Not essential: brokers serve their clusters without it, and what keeps Spark from running may be mended meanwhile.
    specs.append(Spec("pipeline", replicate, PIPELINE_READY, group=1, prefix="pipeline: ", essential=False))
    return specs


def show(config: Config, children: list[Child], as_json: bool) -> None:
    """Print where everything is."""
    states = {child.spec.name: STATES.get(child.state, child.state) for child in children}
    rows: list[dict[str, Any]] = []
    for cluster in config.local_clusters():
        for broker in cluster.local_brokers():
            row = {"cluster": cluster.name, "pulsar": broker.service_url, "http": broker.admin_url}
            if len(cluster.brokers) > 1:
                row |= {"broker": broker.name, "state": states.get(f"broker {cluster.title(broker)}", "")}
            rows.append(row)
    if as_json:
        print_json(rows)
    else:
        several = any("broker" in row for row in rows)
        console().print(
            table(rows, ("cluster", "broker", "state", "pulsar", "http") if several else ("cluster", "pulsar", "http"))
        )
        pipeline = any(child.spec.group for child in children)
        print_line(
            f"ready ({FORM.name})" + ("; the pipeline is starting" if pipeline else "") + "; Ctrl-C stops everything"
        )
    sys.stdout.flush()
