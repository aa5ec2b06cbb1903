"""The decoded tables of `Resources`, by name."""

from typing import Final, TypeVar

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName
from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX, TENANT_PREFIX
from magnetar.metadata.partitions import Partitions
from magnetar.metadata.permissions import PERMISSION_PREFIX, PermissionTable
from magnetar.metadata.policies.namespace import ClusterData, Policies, TenantInfo
from magnetar.metadata.policies.topic import TOPIC_POLICIES_PREFIX, TopicPolicyTable

DOCUMENT_PREFIXES: Final = (
    CLUSTER_PREFIX,
    TENANT_PREFIX,
    NAMESPACE_PREFIX,
    PARTITIONED_PREFIX,
    TOPIC_POLICIES_PREFIX,
    PERMISSION_PREFIX,
)

_T = TypeVar("_T", ClusterData, TenantInfo, Policies)


class ResourceTables:
    """The stored clusters, tenants, namespaces and topics, decoded.

    Attributes:
        clusters, tenants, namespaces: by name.
        by_tenant: the namespaces of each tenant.
        partitions: numbers of partitions of partitioned topics.
        topic_policies: the own policies of topics.
        permissions: the permissions of all roles.
        documents: every value as it is stored, by key.
    """

    def __init__(self) -> None:
        self.clusters: dict[str, ClusterData] = {}
        self.tenants: dict[str, TenantInfo] = {}
        self.namespaces: dict[NamespaceName, Policies] = {}
        self.by_tenant: dict[str, set[NamespaceName]] = {}
        self.partitions = Partitions()
        self.topic_policies = TopicPolicyTable()
        self.permissions = PermissionTable()
        self.documents: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Load one stored value; other keys are ignored.

        Raises:
            StorageError: it is damaged; names its key.
        """
        if key.startswith(DOCUMENT_PREFIXES):
            self.documents[key] = value
        if key.startswith(CLUSTER_PREFIX):
            self.clusters[key.removeprefix(CLUSTER_PREFIX)] = _decode(key, value, ClusterData)
        elif key.startswith(TENANT_PREFIX):
            self.tenants[key.removeprefix(TENANT_PREFIX)] = _decode(key, value, TenantInfo)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            namespace = NamespaceName(tenant, local)
            self.namespaces[namespace] = _decode(key, value, Policies)
            self.by_tenant.setdefault(tenant, set()).add(namespace)
        elif not self.topic_policies.put(key, value) and not self.permissions.put(key, value):
            self.partitions.put(key, value)

    def delete(self, key: str) -> None:
        """Remove a deleted value; other keys are ignored."""
        self.documents.pop(key, None)
        if key.startswith(CLUSTER_PREFIX):
            self.clusters.pop(key.removeprefix(CLUSTER_PREFIX), None)
        elif key.startswith(TENANT_PREFIX):
            self.tenants.pop(key.removeprefix(TENANT_PREFIX), None)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            self.namespaces.pop(NamespaceName(tenant, local), None)
            self.by_tenant.get(tenant, set()).discard(NamespaceName(tenant, local))
        else:
            self.partitions.delete(key)
            self.topic_policies.delete(key)
            self.permissions.delete(key)


def _decode(key: str, value: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"the stored value of {key} is damaged: {error}") from error
