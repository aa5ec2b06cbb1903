"""Commands that a broker's refusals name: complete, for this broker or another one, so that users can copy them into a
shell.
"""

from collections.abc import Iterable

from magnetar.broker.context import BrokerContext
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import NotFound


def _listed(clusters: Iterable[str]) -> str:
    return ",".join(sorted(set(clusters)))


def create_namespace(context: BrokerContext, namespace: NamespaceName, clusters: Iterable[str] = ()) -> str:
    """Have a namespace here that is replicated to some clusters, and its tenant, if that is missing, too."""
    commands = []
    try:
        context.resources.tenant(namespace.tenant)
    except NotFound:
        commands.append(context.command("tenants", "create", namespace.tenant))
    named = _listed(clusters)
    options = ("--clusters", named) if named else ()
    commands.append(context.command("namespaces", "create", str(namespace), *options))
    return " && ".join(commands)


def allow(context: BrokerContext, namespace: NamespaceName, clusters: Iterable[str]) -> str:
    """Let topics of a namespace exist in some clusters, in addition to those where they may."""
    resources = context.resources
    policies, wanted = resources.policies(namespace), set(clusters)
    commands = []
    try:
        admitted = set(resources.tenant(namespace.tenant).allowed_clusters)
    except NotFound:
        admitted = wanted
        commands.append(context.command("tenants", "create", namespace.tenant))
    if not wanted <= admitted:
        named = _listed(wanted | admitted)
        commands.append(context.command("tenants", "update", namespace.tenant, "--clusters", named))
    if policies.allowed_clusters:
        named = _listed(wanted | set(policies.allowed_clusters))
        commands.append(context.command("namespaces", "set", str(namespace), "allowed-clusters", named))
    else:
        named = _listed(wanted | set(policies.replication_clusters))
        commands.append(context.command("namespaces", "set-clusters", str(namespace), named))
    return " && ".join(commands)


def adopt_partitions(context: BrokerContext, topic: TopicName, partitions: int, cluster: str) -> str:
    """Give a topic that has no partitions in a cluster as many as elsewhere."""
    return context.command("topics", "adopt-partitions", str(topic), str(partitions), cluster=cluster)


def create_topic(context: BrokerContext, topic: TopicName, partitions: int = 0) -> str:
    """Have a topic here that was deleted; `partitions`: a partitioned one."""
    options = ("--partitions", str(partitions)) if partitions else ()
    return context.command("topics", "create", str(topic), *options)
