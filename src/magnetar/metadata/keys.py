"""Where resources are stored: the keys of the metadata store that `Resources` reads and writes."""

from typing import Final

from magnetar.core.names import NamespaceName, TopicName

CLUSTER_PREFIX: Final = "clusters/"
TENANT_PREFIX: Final = "tenants/"
NAMESPACE_PREFIX: Final = "namespaces/"
PARTITIONED_PREFIX: Final = "partitioned/"

PUBLIC: Final = NamespaceName("public", "default")
"""Where a short topic name belongs; exists out of the box, in every cluster of the file."""

SYSTEM: Final = NamespaceName("pulsar", "system")
"""For the broker's own topics; cannot be deleted."""


def cluster_key(name: str) -> str:
    """Where a cluster's entry is stored."""
    return CLUSTER_PREFIX + name


def tenant_key(name: str) -> str:
    """Where a tenant is stored."""
    return TENANT_PREFIX + name


def namespace_key(namespace: NamespaceName) -> str:
    """Where a namespace's policies are stored."""
    return f"{NAMESPACE_PREFIX}{namespace}"


def partitioned_key(topic: TopicName) -> str:
    """Where a partitioned topic's metadata is stored."""
    return f"{PARTITIONED_PREFIX}{topic}"
