"""Pulsar Functions, IO and packages, which are not supported: creating one is refused (501), so there is none to read
or delete.

Tools ask whether one exists before they create it, and delete it before they create it again.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.metadata.errors import NotFound

no_io = Routes("Functions and IO, which are not supported", "/admin/v3")

KINDS: Final = {"functions": "Function", "sources": "Source", "sinks": "Sink", "source": "Source", "sink": "Sink"}
"""Java's tools write the last two, Go's the plural."""

NAMESPACE: Final = "/{tenant}/{namespace}"
PACKAGES: Final = "/packages/{type}" + NAMESPACE
VERSION: Final = PACKAGES + "/{name}/{version}"


async def _none(call: Call) -> Any:
    call.existing_namespace()
    return []


async def _nothing_built_in(call: Call) -> Any:
    return []


def _missing(said: Callable[[Call], str]) -> Callable[[Call], Any]:
    async def refuse(call: Call) -> Any:
        call.existing_namespace()
        raise NotFound(said(call))

    return refuse


def _add(kind: str, what: str) -> None:
    refuse = _missing(lambda call: f"{what} {call.name('name')} doesn't exist")
    no_io.add("GET", f"/{kind}{NAMESPACE}", f"{what}s of a namespace: none.", errors=(404, 412), reply="[]")(_none)
    for method, more in (("GET", ""), ("DELETE", ""), ("GET", "/status"), ("GET", "/stats")):
        no_io.add(
            method,
            f"/{kind}{NAMESPACE}/{{name}}{more}",
            f"{what}: none exists.",
            ok=404,
            errors=(412,),
            reply="always",
        )(refuse)


for _kind, _what in KINDS.items():
    _add(_kind, _what)
BUILT_IN: Final = (
    "/functions/connectors",
    "/functions/builtins",
    *(f"/{kind}/builtin{kind.removesuffix('s')}s" for kind in ("sinks", "sink", "sources", "source")),
)
for _path in BUILT_IN:
    no_io.add("GET", _path, "Built-in ones: none.", reply="[]")(_nothing_built_in)
for _path, _text in ((PACKAGES, "Packages of a namespace"), (PACKAGES + "/{name}", "Versions of a package")):
    no_io.add("GET", _path, f"{_text}: none.", errors=(404, 412), reply="[]")(_none)
for _method, _path in (("GET", VERSION), ("DELETE", VERSION), ("GET", VERSION + "/metadata")):
    no_io.add(_method, _path, "A package: none exists.", ok=404, errors=(412,), reply="always")(
        _missing(lambda call: f"Package {call.name('name')}@{call.name('version')} does not exist")
    )
