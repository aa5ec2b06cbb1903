"""Clusters and tenants."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.core.names import check_cluster, check_tenant
from magnetar.metadata.errors import NotAllowed
from magnetar.metadata.policies.namespace import ClusterData, Names, TenantInfo

clusters = Routes("Clusters", "/admin/v2/clusters")
tenants = Routes("Tenants", "/admin/v2/tenants")
own_tenants = Routes("Tenants, beyond Pulsar", "/geo/v1/tenants", own=True)


class TenantChange(Struct, rename="camel"):
    """Body of a change of a tenant.

    Attributes:
        admin_roles, allowed_clusters: as in `TenantInfo`; fields that are left out stay unchanged.
    """

    admin_roles: Names | UnsetType = UNSET
    allowed_clusters: Names | UnsetType = UNSET


@clusters.add("GET", "", "Names of all known clusters.", reply='["us-east", ...]', returns=list[str])
async def list_clusters(call: Call) -> Any:
    """Sorted."""
    return call.resources.clusters()


@clusters.add(
    "GET", "/{cluster}", "The addresses of a cluster.", errors=(404,), reply="ClusterData", returns=ClusterData
)
async def get_cluster(call: Call) -> Any:
    """Includes the `uuid`, a field of ours, for the own cluster."""
    return call.resources.cluster_data(call.name("cluster"))


@clusters.add(
    "PUT",
    "/{cluster}",
    "Register a cluster, so that tenants and namespaces may name it. A link to it also needs clusters.toml.",
    errors=(409, 412),
    body=ClusterData,
    reply="nothing",
)
async def create_cluster(call: Call) -> Any:
    """Pulsar answers 200, not 204."""
    name = check_cluster(call.name("cluster"))
    data: ClusterData = await call.body()
    await call.apply(lambda: call.resources.create_cluster(name, replace(data, uuid="")))
    return {}


@clusters.add(
    "POST", "/{cluster}", "Replace a cluster's addresses.", errors=(404, 412), body=ClusterData, reply="nothing"
)
async def update_cluster(call: Call) -> Any:
    """A cluster of clusters.toml gets the file's addresses back at the next start."""
    name = call.name("cluster")
    data: ClusterData = await call.body()
    await call.apply(lambda: call.resources.update_cluster(name, data))
    return {}


@clusters.add("DELETE", "/{cluster}", "Forget a cluster that nothing names.", ok=204, errors=(404, 412))
async def delete_cluster(call: Call) -> None:
    """Never the own one."""
    await call.apply(lambda: call.resources.delete_cluster(call.name("cluster")))


@clusters.add(
    "GET",
    "/{cluster}/peers",
    "Clusters that may not be mixed with it in one namespace.",
    errors=(404,),
    reply='["a", ...]',
    returns=list[str],
)
async def get_peers(call: Call) -> Any:
    """Names."""
    return call.resources.cluster_data(call.name("cluster")).peer_cluster_names


@clusters.add(
    "POST",
    "/{cluster}/peers",
    "Replace those clusters, which must be known; without a body, remove them.",
    ok=204,
    errors=(404, 412),
    body=Names,
    body_needed=False,
)
async def set_peers(call: Call) -> None:
    """Names. PUT and POST of a cluster take peers that are not known yet, as in Pulsar."""
    peers: list[str] = await call.body() or []
    await call.apply(lambda: call.resources.set_peers(call.name("cluster"), peers))


@tenants.add("GET", "", "Names of all tenants.", reply='["public", ...]', returns=list[str])
async def list_tenants(call: Call) -> Any:
    """Sorted."""
    return call.resources.tenants()


@tenants.add(
    "GET", "/{tenant}", "A tenant's administrators and clusters.", errors=(404,), reply="TenantInfo", returns=TenantInfo
)
async def get_tenant(call: Call) -> Any:
    """Its roles may administer it, where authentication is on."""
    return call.resources.tenant(call.name("tenant"))


@tenants.add("PUT", "/{tenant}", "Create a tenant.", ok=204, errors=(409, 412), body=TenantInfo)
async def create_tenant(call: Call) -> None:
    """At least one allowed cluster is required."""
    name = check_tenant(call.name("tenant"))
    info: TenantInfo = await call.body()
    await call.apply(lambda: call.resources.create_tenant(name, info))


@tenants.add(
    "POST", "/{tenant}", "Replace a tenant's administrators and clusters.", ok=204, errors=(404, 412), body=TenantInfo
)
async def update_tenant(call: Call) -> None:
    """Refused while a namespace names a cluster that is taken out."""
    info: TenantInfo = await call.body()
    await call.apply(lambda: call.resources.update_tenant(call.name("tenant"), info))


@own_tenants.add(
    "POST",
    "/{tenant}",
    "Replace only those of a tenant's administrators and clusters that the body has.",
    ok=204,
    errors=(404, 412),
    body=TenantChange,
)
async def change_tenant(call: Call) -> None:
    """A client that reads a tenant, changes one field and writes it back overwrites other changes made in between."""
    name = call.name("tenant")
    body: TenantChange = await call.body()
    named = {key: value for key, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    await call.apply(lambda: call.resources.update_tenant(name, replace(call.resources.tenant(name), **named)))


@tenants.add(
    "DELETE",
    "/{tenant}",
    "Delete a tenant without namespaces.",
    ok=204,
    errors=(404, 405, 409, 412),
    query={"force": "true is refused (405): namespaces are deleted by name."},
)
async def delete_tenant(call: Call) -> None:
    """Pulsar's default, too: no deletion by force."""
    name = call.name("tenant")
    call.resources.tenant(name)
    if call.flag("force"):
        raise NotAllowed(f"tenant {name} cannot be deleted by force; delete its namespaces first")
    await call.apply(lambda: call.resources.delete_tenant(name))
