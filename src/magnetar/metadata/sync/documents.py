"""The synchronised documents: their keys in the store, and their JSON as fields.

Nothing here depends on a single policy: fields come from the structs, so a field that is added there is merged by field
automatically. A map (Pulsar's `backlog_quota_map`) is synchronised entry by entry, as
`backlog_quota_map/destination_storage`. A number that only grows (`partitions`) is one field per value it ever had; the
largest counts, whatever the stamps.

A new kind of document needs a row in `KINDS`, its prefix in `metadata.tables.DOCUMENT_PREFIXES`, and its parent in `parent_of`.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from magnetar.core.errors import NameNotValid
from magnetar.core.names import NamespaceName, TopicName, check_cluster, check_tenant
from magnetar.metadata.errors import Refused
from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX, TENANT_PREFIX
from magnetar.metadata.partitions import check_names, check_partitions
from magnetar.metadata.permissions import PERMISSION_PREFIX
from magnetar.metadata.policies import checks as policychecks
from magnetar.metadata.policies.checks import anything
from magnetar.metadata.policies.namespace import ClusterData, PartitionedTopic, Policies, TenantInfo
from magnetar.metadata.policies.table import TABLE
from magnetar.metadata.policies.topic import TOPIC_POLICIES_PREFIX, TopicPolicies
from magnetar.metadata.sync.records import Malformed, Record, canonical

PATH_CHARACTERS_MAX: Final = 2_000
"""A ceiling on a path: longer than any topic's name."""


class Kind(NamedTuple):
    """One kind of document.

    Attributes:
        prefix: prefix of its keys.
        fields: known fields by their JSON name, with their types.
        implicit: it exists as soon as a field has a value, without being created.
        local: fields that never leave the cluster.
        grows: fields whose largest value counts.
        maps: fields that are synchronised entry by entry.
        checks: checks of a field's values in addition to its type.
        whole: the one field of a document that is not an object; "" for one that is.
    """

    prefix: str
    fields: Mapping[str, Any]
    implicit: bool
    local: frozenset[str]
    grows: frozenset[str]
    maps: frozenset[str]
    checks: Mapping[str, Callable[[Any], None]] = {}
    whole: str = ""

    def read(self, data: bytes) -> dict[str, Any]:
        """A stored document as fields and values."""
        value = msgspec.json.decode(data)
        return {self.whole: value} if self.whole else dict(value)

    def write(self, document: Mapping[str, Any]) -> bytes:
        """The reverse of `read`."""
        return msgspec.json.encode(document[self.whole] if self.whole else document)


def _partitions(number: int) -> None:
    check_partitions(number)


CHECKS: Final[Mapping[str, Mapping[str, Callable[[Any], None]]]] = {
    NAMESPACE_PREFIX: {policy.namespace: policy.check for policy in TABLE if policy.namespace}
    | {"backlog_quota_map": policychecks.quotas},
    TOPIC_POLICIES_PREFIX: {policy.topic: policy.check for policy in TABLE if policy.topic}
    | {"backlog_quota_map": policychecks.quotas},
    PARTITIONED_PREFIX: {"partitions": _partitions},
}


def _kind(
    prefix: str,
    struct: type[msgspec.Struct],
    *,
    implicit: bool = False,
    shared: tuple[str, ...] = (),
    grows: tuple[str, ...] = (),
) -> Kind:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    maps = frozenset(name for name, kind in fields.items() if _is_map(kind))
    local = frozenset(name for name in fields if shared and name not in shared)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    checks = {names[name]: check for name, check in CHECKS.get(prefix, {}).items()}
    return Kind(prefix, fields, implicit, local, frozenset(grows), maps, checks)


def _is_map(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in {typing.Annotated, typing.Union, types.UnionType}:
        return any(_is_map(inner) for inner in typing.get_args(kind))
    return origin is dict


KINDS: Final = (
    # Addresses differ per site (PIP-449, pulsar #25035): of a cluster's entry only its peers are shared.
    _kind(CLUSTER_PREFIX, ClusterData, shared=("peerClusterNames",)),
    _kind(TENANT_PREFIX, TenantInfo),
    _kind(NAMESPACE_PREFIX, Policies),
    _kind(PARTITIONED_PREFIX, PartitionedTopic, grows=("partitions",)),
    _kind(TOPIC_POLICIES_PREFIX, TopicPolicies, implicit=True),
    # One key for each role and scope: of two grants at the same time, both take effect.
    Kind(PERMISSION_PREFIX, {"actions": list[str]}, True, frozenset(), frozenset(), frozenset(), whole="actions"),
)


def kind_of(path: str) -> Kind | None:
    """The kind of a key of the store; None for one that is not synchronised."""
    for kind in KINDS:
        if path.startswith(kind.prefix):
            return kind
    return None


def check_path(path: str) -> Kind:
    """The kind of a path in an event.

    Raises:
        Malformed: it is not a path, or a name in it is not possible.
    """
    kind = kind_of(path) if isinstance(path, str) and len(path) <= PATH_CHARACTERS_MAX else None
    if kind is None:
        raise Malformed(f"{str(path)[:60]!a} is not a path that is synchronised")
    name = path.removeprefix(kind.prefix)
    try:
        if kind.prefix == CLUSTER_PREFIX:
            check_cluster(name)
        elif kind.prefix == TENANT_PREFIX:
            check_tenant(name)
        elif kind.prefix == NAMESPACE_PREFIX:
            NamespaceName.parse(name)
        elif kind.prefix == PERMISSION_PREFIX:
            _check_permission(name)
        elif str(TopicName.parse(name).base) != name:
            raise Malformed(f"{path[:60]!a} is not the full name of a topic")
    except NameNotValid as error:
        raise Malformed(f"{path[:60]!a}: {error}") from None
    return kind


def _check_permission(name: str) -> None:
    """Check `namespaces/T/N/role`, `topics/persistent/T/N/topic/role`, `subscriptions/T/N/name/role`; parts other than
    T and N are encoded.
    """
    where, *parts = name.split("/")
    if not all(parts) or (where, len(parts)) not in {("namespaces", 3), ("topics", 5), ("subscriptions", 4)}:
        raise Malformed(f"{name[:60]!a} is not a namespace or topic")
    NamespaceName.parse("/".join(parts[1:3] if where == "topics" else parts[:2]))


def check_fields(path: str, kind: Kind, record: Record) -> None:
    """Refuse values that cannot be: nothing of a record is taken then.

    Raises:
        Malformed: names the field.
    """
    for name, cell in record.fields.items():
        base, _, entry = name.partition("/")
        wanted = kind.fields.get(base)
        # A field that a newer version knows is carried on unseen.
        if wanted is None or cell.value is None:
            continue
        value = msgspec.json.decode(cell.value)
        if base in kind.grows:
            value = int(entry) if entry.isascii() and entry.isdigit() and len(entry) <= 10 else entry
        elif base in kind.maps:
            value = {entry: value}
        try:
            kind.checks.get(base, anything)(msgspec.convert(value, wanted))
            if kind.prefix == PARTITIONED_PREFIX and base == "partitions":
                check_names(TopicName.parse(path.removeprefix(PARTITIONED_PREFIX)), value)
        except (msgspec.ValidationError, Refused) as error:
            raise Malformed(f"{path} {base}: {error}") from None


def to_fields(kind: Kind, document: Mapping[str, Any]) -> dict[str, bytes]:
    """A document's fields with their values, without local ones."""
    fields: dict[str, bytes] = {}
    for name, value in document.items():
        if value is None or name in kind.local:
            continue
        if name in kind.grows:
            fields[f"{name}/{value}"] = b"true"
        elif name in kind.maps:
            fields |= {f"{name}/{entry}": canonical(inner) for entry, inner in value.items()}
        else:
            fields[name] = canonical(value)
    return fields


def to_document(kind: Kind, fields: Mapping[str, bytes]) -> dict[str, Any]:
    """The document of fields; those that this version does not know are left out, as everywhere."""
    document: dict[str, Any] = {}
    for name, value in sorted(fields.items()):
        base, _, entry = name.partition("/")
        if base not in kind.fields or base in kind.local:
            continue
        if base in kind.grows:
            document[base] = max(int(entry), document.get(base, 0))
        elif base in kind.maps:
            document.setdefault(base, {})[entry] = msgspec.json.decode(value)
        elif not entry:
            document[base] = msgspec.json.decode(value)
    return document


def parent_of(path: str) -> str:
    """The path whose document must be there for this one to be seen; "" for those at the top."""
    if path.startswith(NAMESPACE_PREFIX):
        return TENANT_PREFIX + path.removeprefix(NAMESPACE_PREFIX).partition("/")[0]
    for prefix in (PARTITIONED_PREFIX, TOPIC_POLICIES_PREFIX):
        if path.startswith(prefix):
            tenant, namespace = path.partition("://")[2].split("/")[:2]
            return f"{NAMESPACE_PREFIX}{tenant}/{namespace}"
    if path.startswith(PERMISSION_PREFIX):
        parts = path.split("/")
        return NAMESPACE_PREFIX + "/".join(parts[3:5] if parts[1] == "topics" else parts[2:4])
    return ""
