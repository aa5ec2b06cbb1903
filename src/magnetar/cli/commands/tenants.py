"""`magnetar tenants`: the owners of namespaces."""

from typing import Annotated, Any

import typer

from magnetar.admin.client import AdminClient, segment
from magnetar.cli.shared.common import ConfigOption, JsonOption
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, change, show, targets
from magnetar.core.names import check_tenant

app = Group("Tenants: the owners of namespaces.")

PATH = "/admin/v2/tenants"
OWN_PATH = "/geo/v1/tenants"
"""This path changes only the named fields: reading a tenant and writing it back would overwrite changes made in
between.
"""
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT")]


@app.add("list", example="magnetar tenants list --everywhere")
def list_tenants(
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the tenants and the clusters that their namespaces may name."""

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return [{"tenant": name} | client.get(f"{PATH}/{segment(name)}") for name in client.get(PATH)]

    show(targets(config, admin_url, everywhere), ask, ("tenant", "allowedClusters", "adminRoles"), as_json=as_json)


@app.add("create", example="magnetar tenants create shop --clusters us-west,us-east --everywhere")
def create(
    tenant: TenantArgument,
    clusters: Annotated[
        str, typer.Option(metavar="A,B", help="Clusters that its namespaces may name; default: all known ones.")
    ] = "",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Create a tenant."""
    check_tenant(tenant)
    named = [name.strip() for name in clusters.split(",") if name.strip()]

    def act(client: AdminClient) -> None:
        allowed = named or client.get("/admin/v2/clusters")
        client.put(f"{PATH}/{segment(tenant)}", {"allowedClusters": allowed, "adminRoles": []})

    change(targets(config, admin_url, everywhere), act, f"created tenant {tenant}")


@app.add("update", example="magnetar tenants update shop --clusters us-west,us-east,eu-central --everywhere")
def update(
    tenant: TenantArgument,
    clusters: Annotated[str, typer.Option(metavar="A,B", help="Clusters that its namespaces may name.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Change the clusters that the tenant's namespaces may name."""
    named = [name.strip() for name in clusters.split(",") if name.strip()]

    path = f"{OWN_PATH}/{segment(check_tenant(tenant))}"
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path, {"allowedClusters": named}),
        f"updated tenant {tenant}",
    )


@app.add("delete", example="magnetar tenants delete shop --everywhere")
def delete(
    tenant: TenantArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Delete a tenant that has no namespaces."""
    path = f"{PATH}/{segment(check_tenant(tenant))}"
    change(targets(config, admin_url, everywhere), lambda client: client.delete(path), f"deleted tenant {tenant}")
