"""Synchronised metadata: whether it is the same in all clusters, the differences, and a preview of a change."""

from typing import Any

from msgspec import Struct

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.metadata.errors import BadRequest


class Preview(Struct):
    """Body of preview: policies by the names of Pulsar's JSON.

    Attributes:
        set: new values.
        unset: policies that are taken back.
    """

    set: dict[str, Any] = {}
    unset: list[str] = []


metadata = Routes("Metadata of all clusters", "/geo/v1", own=True)


@metadata.add(
    "GET",
    "/metadata",
    "Whether metadata is synchronised, the clusters that agree, and waiting, kept and refused changes.",
    reply="MetadataState",
)
async def state(call: Call) -> Any:
    """The digest is that of everything that exists; equal digests are equal metadata."""
    return call.control.metadata.state()


@metadata.add(
    "GET",
    "/metadata/fingerprints",
    "A fingerprint of every document, to find those that differ between two clusters.",
    errors=(412,),
    reply='{"documents": {"namespaces/public/default": "9f...", ...}, "exclude": []}',
)
async def fingerprints(call: Call) -> Any:
    """The data that `magnetar metadata diff` compares."""
    return call.control.metadata.fingerprints()


@metadata.add(
    "GET",
    "/metadata/document",
    "The fields of one document, with the cluster and time of each.",
    errors=(400, 404, 412),
    query={"path": "of the document, such as namespaces/public/default or tenants/public."},
    reply='[{"field": "message_ttl_in_seconds", "value": 60, "set_by": "us-west", "set_ms": 1700000000000}, ...]',
)
async def document(call: Call) -> Any:
    """A time of 0 means that no administrator set the value: it came from the file, or existed before
    synchronisation.
    """
    path = call.parameter("path")
    if path is None:
        raise BadRequest("parameter path is needed, such as namespaces/public/default")
    return call.control.metadata.document(path)


@metadata.add(
    "POST",
    "/metadata/snapshot",
    "Publish all metadata of this cluster; answered when it is durable here.",
    ok=204,
    errors=(412,),
)
async def snapshot(call: Call) -> None:
    """Other clusters get it and catch up. It also happens automatically."""
    await call.done(call.control.metadata.snapshot)


@metadata.add(
    "POST",
    "/namespaces/{tenant}/{namespace}/preview",
    "The effect of setting policies of a namespace here, field by field; changes nothing.",
    errors=(400, 403, 404, 409, 412),
    body=Preview,
    reply='[{"field": "message_ttl_in_seconds", "now": 60, "then": 30, "set_by": "us-west", "set_ms": 1700000000000, '
    '"local": false}, ...]',
)
async def preview(call: Call) -> Any:
    """This cluster's view only: ask each cluster for its own."""
    namespace = call.existing_namespace()
    body: Preview = await call.body()
    return call.control.metadata.preview(str(namespace), dict.fromkeys(body.unset) | body.set)
