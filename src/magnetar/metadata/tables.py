"""The state behind `Resources`: what is stored, what is on its way to the store, and the order between them."""

from collections.abc import Callable, Mapping
from typing import Final, Self, TypeVar

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
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


class Tables:
    """Tables of what is stored, by name, and the changes in flight.

    Args:
        cluster: the name of this cluster; may be left to `Resources.first_start`.
    """

    def __init__(self, cluster: str = "") -> None:
        self.cluster = cluster
        self._clusters: dict[str, ClusterData] = {}
        self._tenants: dict[str, TenantInfo] = {}
        self._namespaces: dict[NamespaceName, Policies] = {}
        self._by_tenant: dict[str, set[NamespaceName]] = {}
        self._partitions = Partitions()
        self._topic_policies = TopicPolicyTable()
        self.permissions = PermissionTable()
        self._documents: dict[str, bytes] = {}
        self._in_flight: list[Change] = []
        self._waiting: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------------------------ load and apply

    @classmethod
    def load(cls, entries: Mapping[str, bytes], cluster: str = "") -> Self:
        """What the store holds; keys of other parts are passed over.

        Raises:
            StorageError: a value is damaged; names its key.
        """
        resources = cls(cluster)
        for key, value in entries.items():
            resources._put(key, value)
        return resources

    def begin(self, change: Change) -> None:
        """Announce a change that is now being stored; `apply` or `abort` must follow.

        Raises:
            InFlight: it touches something that another change in flight touches; see `when_one_ended`.
        """
        for other in self._in_flight:
            clash = (change.keys & (other.keys | other.depends)) | (change.depends & other.keys)
            if clash:
                raise InFlight(f"{_shown(clash)} is being changed by somebody else; try again")
        self._in_flight.append(change)

    def is_deleting(self, key: str) -> bool:
        """Whether a change in flight deletes what is stored there."""
        return any(key in change.deletes for change in self._in_flight)

    def when_one_ended(self, then: Callable[[], None]) -> None:
        """Call back once, as soon as any change in flight has ended: what was refused because of one may be tried again."""
        self._waiting.append(then)

    def abort(self, change: Change) -> None:
        """The store refused a change: it never was."""
        self._ended(change)

    def _ended(self, change: Change) -> None:
        self._in_flight = [other for other in self._in_flight if other is not change]
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def apply(self, change: Change) -> None:
        """A change is durable: from now on it is the state. `begin` may have been left out at start only."""
        for key in change.deletes:
            self._delete(key)
        for key, value in change.puts.items():
            self._put(key, value)
        self._ended(change)

    def document(self, key: str) -> bytes | None:
        """A value as it is stored: a cluster, tenant, namespace, partitioned topic, topic policies or permissions."""
        return self._documents.get(key)

    def documents(self) -> Mapping[str, bytes]:
        """All of them, by key; nobody changes it."""
        return self._documents

    def _put(self, key: str, value: bytes) -> None:
        if key.startswith(DOCUMENT_PREFIXES):
            self._documents[key] = value
        if key.startswith(CLUSTER_PREFIX):
            self._clusters[key.removeprefix(CLUSTER_PREFIX)] = _decode(key, value, ClusterData)
        elif key.startswith(TENANT_PREFIX):
            self._tenants[key.removeprefix(TENANT_PREFIX)] = _decode(key, value, TenantInfo)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            namespace = NamespaceName(tenant, local)
            self._namespaces[namespace] = _decode(key, value, Policies)
            self._by_tenant.setdefault(tenant, set()).add(namespace)
        elif not self._topic_policies.put(key, value) and not self.permissions.put(key, value):
            self._partitions.put(key, value)

    def _delete(self, key: str) -> None:
        self._documents.pop(key, None)
        if key.startswith(CLUSTER_PREFIX):
            self._clusters.pop(key.removeprefix(CLUSTER_PREFIX), None)
        elif key.startswith(TENANT_PREFIX):
            self._tenants.pop(key.removeprefix(TENANT_PREFIX), None)
        elif key.startswith(NAMESPACE_PREFIX):
            tenant, _, local = key.removeprefix(NAMESPACE_PREFIX).partition("/")
            self._namespaces.pop(NamespaceName(tenant, local), None)
            self._by_tenant.get(tenant, set()).discard(NamespaceName(tenant, local))
        else:
            self._partitions.delete(key)
            self._topic_policies.delete(key)
            self.permissions.delete(key)

    def has_stored_namespace(self, namespace: NamespaceName) -> bool:
        """Whether a namespace is stored."""
        return namespace in self._namespaces


def _shown(keys: frozenset[str]) -> str:
    """The document that two changes have in common, rather than what is kept beside it."""
    return min(keys, key=lambda key: (not key.startswith(DOCUMENT_PREFIXES), key))


def _decode(key: str, value: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"the stored value of {key} is damaged: {error}") from error
