"""The resources that a broker creates from clusters.toml before it serves clients."""

import msgspec

from magnetar.core.config import Config
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.keys import (
    CLUSTER_PREFIX,
    NAMESPACE_PREFIX,
    PUBLIC,
    SYSTEM,
    cluster_key,
    namespace_key,
    tenant_key,
)
from magnetar.metadata.policies.namespace import ClusterData, Policies, TenantInfo
from magnetar.metadata.tables import ResourceTables


def bootstrap(tables: ResourceTables, local: str, config: Config, uuid: str = "") -> Change:
    """The change that a start has to store and apply (`Resources.apply`) before any client is served; often empty (no
    `change.keys`).

    At every start, the clusters of the file get entries with the file's addresses (the rest of an entry stays). A
    cluster that was never seen before is added to the allowed clusters of the tenants `public` and `pulsar`. Created at
    the first start only: those tenants, `pulsar/system`, and the namespaces of the file.

    Args:
        tables: loaded from the store.
        local: the name of this cluster.
        config: clusters.toml.
        uuid: uuid of this cluster's data folder.
    """
    puts: dict[str, bytes] = {}
    for name, cluster in config.clusters.items():
        old = tables.clusters.get(name)
        new = msgspec.structs.replace(
            old or ClusterData(),
            service_url=cluster.web_url,
            service_url_tls=cluster.web_url_tls,
            broker_service_url=cluster.service_url,
            broker_service_url_tls=cluster.service_url_tls,
            uuid=uuid if name == local else old.uuid if old else "",
        )
        if new != old:
            puts[cluster_key(name)] = msgspec.json.encode(new)
    if SYSTEM.tenant in tables.tenants:
        puts |= _admit(tables, set(config.clusters) - set(tables.clusters))
    else:
        puts |= _first_start(local, config)
    if config.metadata.metadata_sync_topic:
        puts |= _replicated(tables, local, config, puts)
    return Change(
        puts=puts,
        clusters=tuple(key.removeprefix(CLUSTER_PREFIX) for key in puts if key.startswith(CLUSTER_PREFIX)),
        namespaces=tuple(key.removeprefix(NAMESPACE_PREFIX) for key in puts if key.startswith(NAMESPACE_PREFIX)),
    )


def _admit(tables: ResourceTables, fresh: set[str]) -> dict[str, bytes]:
    puts = {}
    for tenant in {PUBLIC.tenant, SYSTEM.tenant} & set(tables.tenants):
        info = tables.tenants[tenant]
        if not fresh <= set(info.allowed_clusters):
            admitted = msgspec.structs.replace(info, allowed_clusters=sorted({*info.allowed_clusters, *fresh}))
            puts[tenant_key(tenant)] = msgspec.json.encode(admitted)
    return puts


def _replicated(tables: ResourceTables, local: str, config: Config, puts: dict[str, bytes]) -> dict[str, bytes]:
    """The namespace of the topic that keeps metadata the same goes everywhere, unless its clusters were chosen."""
    everywhere = sorted(config.clusters)
    space = TopicName.parse(config.metadata.metadata_sync_topic).namespace_name
    key, tenant = namespace_key(space), tenant_key(space.tenant)
    stored = puts.get(key)
    if stored is None and space in tables.namespaces:
        policies = tables.namespaces[space]
    else:
        policies = Policies() if stored is None else msgspec.json.decode(stored, type=Policies)
    more = {}
    if policies.replication_clusters in ([], [local]) and everywhere != policies.replication_clusters:
        more[key] = msgspec.json.encode(msgspec.structs.replace(policies, replication_clusters=everywhere))
    if tenant not in puts and space.tenant not in tables.tenants:
        more[tenant] = msgspec.json.encode(TenantInfo(allowed_clusters=everywhere))
    return more


def _first_start(local: str, config: Config) -> dict[str, bytes]:
    everywhere = sorted(config.clusters)
    spaces = {
        PUBLIC: Policies(replication_clusters=everywhere),
        SYSTEM: Policies(replication_clusters=[local]),
    }
    for text, namespace in config.namespaces.items():
        spaces[NamespaceName.parse(text)] = Policies(
            replication_clusters=sorted(set(namespace.clusters)), replication_start=namespace.replication_start
        )
    puts = {}
    for name, policies in spaces.items():
        puts[tenant_key(name.tenant)] = msgspec.json.encode(TenantInfo(allowed_clusters=everywhere))
        puts[namespace_key(name)] = msgspec.json.encode(policies)
    return puts
