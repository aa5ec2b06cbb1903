"""`magnetar permissions`: permissions of roles in namespaces and for topics, and the administrators of tenants."""

from typing import Annotated, Any

import typer

from magnetar.admin.client import AdminClient, segment, topic_path
from magnetar.cli.commands.tenants import OWN_PATH
from magnetar.cli.shared.common import ConfigOption, JsonOption
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, change, show, targets
from magnetar.core.errors import ConfigError
from magnetar.core.names import NamespaceName, check_subscription, check_tenant
from magnetar.metadata.permissions import MEANT

app = Group("Permissions: which roles may produce, consume, replicate and administer.")

ResourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE|TOPIC",
        help="A namespace, such as shop/orders, or a topic, such as persistent://shop/orders/new.",
    ),
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE")]


def permissions_path(resource: str) -> str:
    """The REST path of a namespace's or a topic's permissions.

    Raises:
        NameNotValid: it is neither.
    """
    if "://" in resource:
        return topic_path(resource, "permissions")
    namespace = NamespaceName.parse(resource)
    return f"/admin/v2/namespaces/{segment(namespace.tenant)}/{segment(namespace.local)}/permissions"


@app.add("list", example="magnetar permissions list shop/orders --everywhere")
def list_permissions(
    resource: ResourceArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the permissions of all roles. Superusers and the tenant's administrators need none."""
    path = permissions_path(resource)

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return [{"role": role, "actions": actions} for role, actions in client.get(path).items()]

    show(targets(config, admin_url, everywhere), ask, ("role", "actions"), as_json=as_json)


@app.add("grant", example="magnetar permissions grant shop/orders app --actions produce,consume --everywhere")
def grant(
    resource: ResourceArgument,
    role: RoleArgument,
    actions: Annotated[
        str,
        typer.Option(metavar="A,B", help="Some of produce, consume, admin and replicate: the complete new list."),
    ],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Set a role's permissions, with immediate effect. `admin` includes produce and consume; `replicate` needs a
    superuser.
    """
    named = [action.strip() for action in actions.split(",") if action.strip()]
    if wrong := [action for action in named if action not in MEANT]:
        raise ConfigError(
            f"--actions {wrong[0][:40]!a} is not valid: choose from produce, consume, admin and replicate"
        )
    path = f"{permissions_path(resource)}/{segment(role)}"
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path, named),
        f"role {role} may {', '.join(named)} in {resource}",
    )


@app.add("revoke", example="magnetar permissions revoke shop/orders app --everywhere")
def revoke(
    resource: ResourceArgument,
    role: RoleArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Revoke a role's permissions; its producers and consumers are closed."""
    path = f"{permissions_path(resource)}/{segment(role)}"
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.delete(path),
        f"role {role} has no permissions of its own in {resource}",
    )


@app.add("reserve", example="magnetar permissions reserve shop/orders billing --roles billing-app --everywhere")
def reserve(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE")],
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    roles: Annotated[
        str, typer.Option(metavar="A,B", help="The complete new list; empty: every role that may consume.")
    ],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Reserve a subscription for some of the roles that may consume; consumers of other roles are closed."""
    named = [role.strip() for role in roles.split(",") if role.strip()]
    path = f"{permissions_path(str(NamespaceName.parse(namespace)))}/subscription/{segment(check_subscription(subscription))}"
    whose = f"{', '.join(named)} alone" if named else "every role that may consume"
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path, named),
        f"subscription {subscription} of {namespace} may be used by {whose}",
    )


@app.add("reserved", example="magnetar permissions reserved shop/orders")
def list_reserved(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions that only some roles may use."""
    path = f"{permissions_path(str(NamespaceName.parse(namespace)))}/subscription"

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return [{"subscription": name, "roles": roles} for name, roles in client.get(path).items()]

    show(targets(config, admin_url, everywhere), ask, ("subscription", "roles"), as_json=as_json)


@app.add("admins", example="magnetar permissions admins shop --roles shop-admin --everywhere")
def admins(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    roles: Annotated[str, typer.Option(metavar="A,B", help="The complete new list; empty: none.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Set the roles that administer a tenant: its namespaces, topics and permissions."""
    named = [role.strip() for role in roles.split(",") if role.strip()]
    path = f"{OWN_PATH}/{segment(check_tenant(tenant))}"
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path, {"adminRoles": named}),
        f"tenant {tenant} is administered by {', '.join(named) or 'no role'}",
    )
