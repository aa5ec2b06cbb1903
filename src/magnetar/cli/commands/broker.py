"""`magnetar broker`: one broker in the foreground."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from magnetar.cli.shared.common import found_file, load
from magnetar.core import config as configuration
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError
from magnetar.core.settings import ONLY_BROKER, Address, BrokerEndpoints, ClusterConfig

OneClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help=f"Configuration; default: {configuration.FILE_NAME} of this folder. Without one: a cluster of the built-in three, "
        "or one of any other name, without links.",
    ),
]
EXAMPLE = "magnetar broker us-west -c clusters.toml"


def broker(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER[/BROKER]",
            help="The cluster of the configuration to run, with the name of the broker if it has several.",
        ),
    ],
    config: OneClusterOption = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Without a configuration file: the folder for data.")
    ] = None,
    pulsar_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", help="Without a configuration file: port of the Pulsar protocol."
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Without a configuration file: port of REST and metrics."),
    ] = None,
    fsync: Annotated[
        Literal["always", "interval", "never"] | None,
        typer.Option(help="When a publish is answered: once it is on disk (always), or earlier, with a risk of loss."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept connections from other machines without authentication.")
    ] = False,
) -> None:
    """Run one broker in the foreground, until Ctrl-C or SIGTERM."""
    chosen = choose(config, name, data_dir, pulsar_port, http_port)
    chosen.named_broker(name)
    if fsync is not None:
        chosen = msgspec.structs.replace(chosen, broker=msgspec.structs.replace(chosen.broker, fsync=fsync))
    from magnetar.app import run_broker

    raise typer.Exit(run_broker(chosen, name, insecure))


def choose(
    path: Path | None, name: str, data_dir: Path | None, pulsar_port: int | None, http_port: int | None
) -> Config:
    """The configuration of one broker from its file or its options.

    Raises:
        ConfigError: options in addition to a file, or a mistake in the file.
    """
    options = {"--data-dir": data_dir, "--pulsar-port": pulsar_port, "--http-port": http_port}
    given = [name for name, value in options.items() if value is not None]
    path = path or (None if given else found_file())
    if path is not None:
        if given:
            raise ConfigError(f"{given[0]} is for a broker without a file; {path} says it: leave the option or -c out")
        return load(path)
    return _without_file(name, data_dir or Path("data"), pulsar_port, http_port)


def _without_file(name: str, data_dir: Path, pulsar_port: int | None, http_port: int | None) -> Config:
    """One of the built-in three, or a cluster of any other name on its own."""
    built_in = configuration.builtin(data_dir)
    cluster = name.removesuffix(f"/{ONLY_BROKER}")
    if cluster not in built_in.clusters:
        return configuration.single(
            cluster,
            data_dir,
            pulsar_port or configuration.BUILTIN_PULSAR_PORT,
            http_port or configuration.BUILTIN_HTTP_PORT,
        )
    (known,) = built_in.clusters[cluster].brokers
    pulsar = Address(known.pulsar.host, pulsar_port or known.pulsar.port)
    http = Address(known.http.host, http_port or known.http.port)
    broker = BrokerEndpoints(name=known.name, pulsar=pulsar, http=http, advertised=str(pulsar))
    own = ClusterConfig(name=cluster, brokers=(broker,))
    return msgspec.structs.replace(built_in, clusters=built_in.clusters | {cluster: own})
