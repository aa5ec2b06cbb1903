"""The keys of the metadata store that `Resources` reads and writes."""

from typing import Final

from magnetar.core.names import NamespaceName, TopicName

CLUSTER_PREFIX: Final = "clusters/"
TENANT_PREFIX: Final = "tenants/"
NAMESPACE_PREFIX: Final = "namespaces/"
PARTITIONED_PREFIX: Final = "partitioned/"

PUBLIC: Final = NamespaceName("public", "default")
"""The namespace of short topic names; it exists from the first start, in every cluster of the file."""

SYSTEM: Final = NamespaceName("pulsar", "system")
"""The namespace of the broker's own topics; it cannot be deleted."""


def cluster_key(name: str) -> str:
    """The key of a cluster's entry."""
    return CLUSTER_PREFIX + name


def tenant_key(name: str) -> str:
    """The key of a tenant."""
    return TENANT_PREFIX + name


def namespace_key(namespace: NamespaceName) -> str:
    """The key of a namespace's policies."""
    return f"{NAMESPACE_PREFIX}{namespace}"


def partitioned_key(topic: TopicName) -> str:
    """The key of a partitioned topic's metadata."""
    return f"{PARTITIONED_PREFIX}{topic}"
