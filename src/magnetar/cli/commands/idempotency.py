"""The common part of `magnetar namespaces set-idempotency` and `magnetar topics set-idempotency`."""

from typing import Annotated, Any

import typer

from magnetar.admin.client import AdminClient
from magnetar.core.errors import MagnetarError

PropertyArgument = Annotated[
    str, typer.Argument(metavar="[PROPERTY]", help="Name of the message property that holds the key.")
]
WindowOption = Annotated[int, typer.Option(min=1, max=604_800, help="Seconds for which a key is remembered.")]
KeysOption = Annotated[int, typer.Option(min=1, help="Keys remembered per topic or partition; about 40 bytes each.")]
OffOption = Annotated[bool, typer.Option("--off", help="No keys, whatever a higher level sets.")]
DefaultOption = Annotated[bool, typer.Option("--default", help="Remove the setting.")]


def setter(path: str, name: str, window: int, keys: int, *, off: bool, default: bool) -> tuple[Any, str]:
    """The action for each cluster, and the line to print after it.

    Raises:
        MagnetarError: not exactly one of a property, --off and --default.
    """
    if bool(name) + off + default != 1:
        raise MagnetarError("say one of: the name of a property, --off, --default")
    body: dict[str, Any] = {"enabled": False}
    if name:
        body = {"property": name, "windowSeconds": window, "keysMax": keys}

    def act(client: AdminClient) -> None:
        if default:
            client.delete(path)
        else:
            client.post(path, body)

    return act, f"keys in property {name!r}, {window} s" if name else "no idempotency keys" if off else "default"
