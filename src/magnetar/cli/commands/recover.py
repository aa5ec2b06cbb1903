"""`magnetar recover`: repair a data folder whose parts do not match; its broker is stopped."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from magnetar.cli.commands.broker import OneClusterOption, choose
from magnetar.cli.shared.common import JsonOption, print_json, print_line
from magnetar.core.errors import ConfigError

EXAMPLE = "magnetar recover us-west --keep persistent://public/default/orders"


def recover(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="The cluster of the data folder; its broker must be stopped.")
    ],
    config: OneClusterOption = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Without a configuration file: the folder of all data.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Restore a topic that the log has and the metadata store lost; or all."),
    ] = None,
    discard: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Delete such a topic at the next start; or all."),
    ] = None,
    accept_store: Annotated[
        bool,
        typer.Option("--accept-store", help="Accept a metadata store that is older than the data, or another one."),
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Accept that entries of the log are missing.")
    ] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Copy the intact records of a damaged meta.sqlite into a new one.")
    ] = False,
    uuid: Annotated[bool, typer.Option("--uuid", help="Make the file uuid again from the metadata store.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a data folder has lost, and decide what to keep.

    Without options it only checks. Exit code 1: a decision is needed.
    """
    chosen = choose(config, cluster, data_dir, None, None)
    if chosen.cluster(cluster).storage != "local":
        raise ConfigError(
            f"{chosen.source}: the log of cluster {cluster} is on BookKeeper, whose own tools repair it; "
            '`magnetar recover` is for data folders (storage = "local")'
        )
    from magnetar.runtime.log.folder_check import Recovering

    done: list[str] = []
    folder = Recovering(chosen, cluster)
    try:
        if salvage:
            done.append(folder.salvage())
        if uuid:
            done.append(f"{folder.path / 'uuid'} holds {folder.write_uuid()} again")
        found = folder.look()
        if accept_store:
            folder.accept_store()
        if accept_loss:
            folder.accept_loss()
        folder.keep(keep or [])
        folder.discard(discard or [])
    finally:
        folder.close()
    found.done[:0] = done
    if as_json:
        print_json(msgspec.to_builtins(found) | {"clean": found.clean})
    else:
        for line in [*found.done, *filter(None, [found.store, found.log]), *found.lost, *found.damage]:
            print_line(line)
        for each in found.unknown:
            print_line(
                f"topic {each.topic} (incarnation {each.incarnation}, {each.messages} messages, {each.bytes} bytes) is in the "
                f"log and not in the metadata store: --keep {each.topic} brings it back, --discard {each.topic} deletes it"
            )
        if found.clean and not found.damage:
            print_line(f"{folder.path}: log and metadata store belong together")
    raise typer.Exit(0 if found.clean else 1)
