"""All commands, in the order in which `magnetar --help` shows them.

The modules here import nothing heavy at their top: `--help` and `magnetar broker` must not wait for Spark or an HTTP
client that they do not use.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from magnetar import FORM, __version__
from magnetar.cli.commands import (
    broker,
    drain,
    failover,
    links,
    metadata,
    namespaces,
    permissions,
    recover,
    replicate,
    restore,
    schemas,
    status,
    subscriptions,
    tenants,
    tokens,
    topics,
    up,
    verify,
)
from magnetar.cli.shared.credentials import Chosen
from magnetar.cli.shared.group import SETTINGS
from magnetar.cli.source_tree import bench, demo

ORDER: Final = (
    "up",
    "broker",
    "replicate",
    "status",
    "failover",
    "verify",
    "links",
    "restore",
    "drain",
    "recover",
    "demo",
    "bench",
    "tenants",
    "namespaces",
    "topics",
    "subscriptions",
    "schemas",
    "metadata",
    "permissions",
    "tokens",
)


class Ordered(TyperGroup):
    """Shows commands and groups together, in `ORDER`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in order."""
        return [name for name in ORDER if name in self.commands]


app = typer.Typer(
    cls=Ordered,
    no_args_is_help=True,
    context_settings=SETTINGS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help="A geo-replicated, Pulsar-compatible message broker whose pipeline between clusters runs on Apache Spark.",
    epilog="Example: magnetar up",
)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"magnetar {__version__} ({FORM})")
        raise typer.Exit


@app.callback()
def magnetar(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token to present to brokers; default: $MAGNETAR_TOKEN, $MAGNETAR_TOKEN_FILE, [client].",
        ),
    ] = None,
) -> None:
    """The options of all commands."""
    Chosen.token_file = token_file


for module in (up, broker, replicate, status, failover, verify, restore, drain, recover, demo, bench):
    name = module.__name__.rpartition(".")[2]
    settings = getattr(module, "CONTEXT", SETTINGS)
    app.command(name, epilog=f"Example: {module.EXAMPLE}", context_settings=settings)(getattr(module, name))
for module in (links, tenants, namespaces, topics, subscriptions, schemas, metadata, permissions, tokens):
    app.add_typer(module.app.typer, name=module.__name__.rpartition(".")[2])
