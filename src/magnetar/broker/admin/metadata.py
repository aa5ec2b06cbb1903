"""Synchronised metadata for administration; the rules are those of `broker.admin.controller`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.context import Done
from magnetar.broker.metadata_sync.sync import MetadataSync
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import BadRequest, NotFound, PreconditionFailed
from magnetar.metadata.keys import namespace_key
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.resources import Resources
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.preview import preview
from magnetar.metadata.sync.stamps import US_PER_MS

OFF = "metadata is not synchronised here: write metadata_sync_topic under [metadata] of clusters.toml"


class MetadataControl:
    """Metadata that is kept the same in several clusters.

    Args:
        metasync: of the broker.
        resources: tenants, namespaces, policies.
        events: how changes enter the broker.
    """

    def __init__(self, metasync: MetadataSync, resources: Resources, events: AdminEvents) -> None:
        self._metasync = metasync
        self._resources = resources
        self._events = events

    def _machine(self) -> Synchroniser:
        machine = self._metasync.machine
        if machine is None:
            raise PreconditionFailed(OFF)
        return machine

    def state(self) -> dict[str, Any]:
        """The state of synchronisation; `{"enabled": false}` when it is off."""
        return self._metasync.describe()

    def fingerprints(self) -> dict[str, Any]:
        """Fingerprints of all existing documents, to find differences between two clusters: `documents` and `exclude`.

        Raises:
            PreconditionFailed: it is off.
        """
        machine = self._machine()
        return {"documents": machine.fingerprints(), "exclude": list(machine.exclusions.patterns)}

    def document(self, path: str) -> list[dict[str, Any]]:
        """The fields of one document with who set them when.

        Raises:
            PreconditionFailed: it is off. NotFound: there is no such document.
        """
        fields = self._machine().view(path)
        if not fields:
            raise NotFound(f"there is no document {path[:200]!a}; a path is such as namespaces/public/default")
        return [
            {"field": name, "value": value, "set_by": stamp.cluster, "set_ms": stamp.time_us // US_PER_MS}
            for name, (value, stamp) in fields.items()
        ]

    def preview(self, namespace: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The effects here of setting fields of a namespace's policies (names of Pulsar's JSON; None: removed).

        Raises:
            NotFound: no such namespace. Refused: it would not be possible.
        """
        name = NamespaceName.parse(namespace)
        resources = self._resources
        key = namespace_key(name)
        after = resources.change_policies(name, **policy_fields(resources.policies(name), fields)).puts[key]
        found = preview(key, resources.document(key), after, self._metasync.machine)
        return [change._asdict() for change in found]

    def snapshot(self, done: Done) -> None:
        """Publish everything; `done` when it is durable here.

        Raises:
            PreconditionFailed: it is off.
        """
        self._machine()
        self._events.enter(lambda: self._metasync.snapshot(done))


def policy_fields(now: Policies, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Policies` by their own names, from those of JSON; `map/entry` is one entry of a map.

    Raises:
        BadRequest: a field is not known, or it cannot have this value.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(Policies)}
    found: dict[str, Any] = {}
    for path, given in fields.items():
        name, _, entry = path.partition("/")
        field, value = known.get(name), given
        if entry and field is not None:
            value = {**msgspec.to_builtins(found.get(field.name, getattr(now, field.name)) or {}), entry: given}
            value = {key: one for key, one in value.items() if one is not None}
        if field is None or name == "deleted":
            raise BadRequest(f"a namespace has no policy {name[:60]!a}; it has: {', '.join(sorted(known))}")
        if value is None:
            found[field.name] = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            continue
        try:
            found[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise BadRequest(f"{name}: {error}") from None
    return found
