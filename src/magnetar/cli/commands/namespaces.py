"""`magnetar namespaces`: policies, above all the clusters to which messages are replicated."""

from typing import Annotated, Any, Literal

import msgspec
import typer

from magnetar.admin.client import AdminClient, segment
from magnetar.cli.commands import policies
from magnetar.cli.commands.idempotency import (
    DefaultOption,
    KeysOption,
    OffOption,
    PropertyArgument,
    WindowOption,
    setter,
)
from magnetar.cli.commands.metadata import show_preview
from magnetar.cli.commands.policies import PolicyArgument, ValueArgument
from magnetar.cli.shared.common import ConfigOption, JsonOption, YesOption, confirm, print_json, print_line, size
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, Target, change, show, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, check_cluster, check_tenant
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME

app = Group("Namespaces: policies, such as the clusters that messages are replicated to.")

NamespaceArgument = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]


def path_of(namespace: str, *rest: str) -> str:
    """The admin path of a namespace.

    Raises:
        NameNotValid: the text is not a namespace name.
    """
    name = NamespaceName.parse(namespace)
    return "/".join(["/admin/v2/namespaces", segment(name.tenant), segment(name.local), *rest])


def clusters_of(text: str) -> list[str]:
    """Cluster names with commas between them.

    Raises:
        NameNotValid: one breaks the grammar.
    """
    return [check_cluster(name.strip()) for name in text.split(",") if name.strip()]


@app.add("list", example="magnetar namespaces list public")
def list_namespaces(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")] = "public",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the namespaces of a tenant and the clusters of their messages."""

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        names = client.get(f"/admin/v2/namespaces/{segment(check_tenant(tenant))}")
        return [{"namespace": name} | client.get(path_of(name)) for name in names]

    columns = ("namespace", "replication_clusters", "allowed_clusters", "replication_start")
    show(targets(config, admin_url, everywhere), ask, columns, as_json=as_json)


@app.add("show", example="magnetar namespaces show public/default")
def show_policies(
    namespace: NamespaceArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Print a namespace's policies as JSON."""
    found = targets(config, admin_url, everywhere)
    path = path_of(namespace)
    answers = {target.cluster: target.client.get(path) for target in found}
    print_json(answers if everywhere else next(iter(answers.values())))


@app.add("create", example="magnetar namespaces create shop/orders --clusters us-west,us-east --everywhere")
def create(
    namespace: NamespaceArgument,
    clusters: Annotated[
        str, typer.Option(metavar="A,B", help="Clusters of its messages; default: only the cluster itself.")
    ] = "",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Create a namespace."""
    path, named = path_of(namespace), clusters_of(clusters)
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.put(path, {"replication_clusters": named} if named else None),
        f"created namespace {namespace}",
    )


@app.add("set-subscription-mode", example="magnetar namespaces set-subscription-mode public/default exact --everywhere")
def set_subscription_mode(
    namespace: NamespaceArgument,
    mode: Annotated[
        Literal["exact", "snapshot", "default"],
        typer.Argument(help="exact: every acknowledgement follows; snapshot: positions, as Apache Pulsar does it."),
    ],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Choose the mode of replicated subscriptions."""
    act = policies.namespace_setter(BY_NAME["subscription-mode"], namespace, mode)
    change(targets(config, admin_url, everywhere), act, f"subscriptions of {namespace} follow in {mode} mode")


@app.add("replicate-subscriptions", example="magnetar namespaces replicate-subscriptions public/default --everywhere")
def replicate_subscriptions(
    namespace: NamespaceArgument,
    every: Annotated[
        bool, typer.Option("--all/--as-clients-ask", help="All durable subscriptions, or those whose clients ask.")
    ] = True,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Replicate all durable subscriptions of a namespace without touching a client."""
    act = policies.namespace_setter(BY_NAME["replicate-subscriptions"], namespace, "on" if every else policies.DEFAULT)
    change(
        targets(config, admin_url, everywhere),
        act,
        f"subscriptions of {namespace} are replicated" if every else f"subscriptions of {namespace}: as clients ask",
    )


@app.add("set", example="magnetar namespaces set shop/orders max-producers 50 --everywhere")
def set_policy(
    namespace: NamespaceArgument,
    policy: PolicyArgument,
    value: ValueArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show what would change in every cluster, field by field.")
    ] = False,
) -> None:
    """Set any policy of a namespace; docs/policies.md has the list. Loaded topics follow at once."""
    row = policies.named(policy, "namespace")
    if preview:
        show_preview(config, namespace, policies.previewed(row, value))
        return
    act = policies.namespace_setter(row, namespace, value)
    change(targets(config, admin_url, everywhere), act, f"{namespace}: {policy} {value}")


@app.add("get", example="magnetar namespaces get shop/orders max-producers --everywhere")
def get_policy(
    namespace: NamespaceArgument,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Its name; default: all.")] = "",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show policies of a namespace: the settings and the defaults."""
    asked = policies.rows(policy, "namespace")

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        stored = msgspec.convert(client.get(path_of(namespace)), Policies)
        return [policies.namespace_row(row, stored, as_json=as_json) for row in asked]

    show(targets(config, admin_url, everywhere), ask, ("policy", "value", "default", "does"), as_json=as_json)


@app.add("delete", example="magnetar namespaces delete shop/orders --everywhere")
def delete(
    namespace: NamespaceArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Delete a namespace that has no topics."""
    path = path_of(namespace)
    change(targets(config, admin_url, everywhere), lambda client: client.delete(path), f"deleted namespace {namespace}")


@app.add("set-clusters", example="magnetar namespaces set-clusters shop/orders us-west,us-east --everywhere")
def set_clusters(
    namespace: NamespaceArgument,
    clusters: Annotated[str, typer.Argument(metavar="A,B", help="All clusters that get its messages.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Set the clusters of a namespace's messages. Shows what will be copied, asks, and never deletes data."""
    found, named = targets(config, admin_url, everywhere), clusters_of(clusters)
    if not named:
        raise MagnetarError("name at least one cluster, such as us-west,us-east")
    copied = 0
    for target in found:
        copied += preview(target, namespace, named)
    if copied:
        confirm("Go on?", yes=yes)
    path = path_of(namespace, "replication")
    change(found, lambda client: client.post(path, named), f"{namespace} is replicated to {', '.join(named)}")


def preview(target: Target, namespace: str, clusters: list[str]) -> int:
    """Print what a change of the replication clusters does in one cluster; the entries that would be copied."""
    name = NamespaceName.parse(namespace)
    path = f"/geo/v1/namespaces/{segment(name.tenant)}/{segment(name.local)}/replicationPreview"
    answer = target.client.get(path, {"clusters": ",".join(clusters)})
    where = f"{target.cluster}: " if target.cluster else ""
    if answer["removed"]:
        print_line(f"{where}{', '.join(answer['removed'])} gets no new messages; its data stays")
    if answer["added"] and answer["entries"]:
        print_line(
            f"{where}{answer['entries']:,} entries ({size(answer['bytes'])}) of {answer['topics']:,} topics "
            f"will be copied to each of {', '.join(answer['added'])}"
        )
        return int(answer["entries"])
    return 0


@app.add("set-start", example="magnetar namespaces set-start shop/orders latest --everywhere")
def set_start(
    namespace: NamespaceArgument,
    start: Annotated[Literal["earliest", "latest"], typer.Argument(metavar="earliest|latest")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Set whether a new link begins with retained messages or with new ones; existing links do not change."""
    act = policies.namespace_setter(BY_NAME["replication-start"], namespace, start)
    change(targets(config, admin_url, everywhere), act, f"new links of {namespace} begin at {start}")


@app.add("set-retention", example="magnetar namespaces set-retention shop/orders --minutes 1440 --megabytes -1")
def set_retention(
    namespace: NamespaceArgument,
    minutes: Annotated[
        int, typer.Option(min=-1, help="Time to keep messages; -1: no limit, 0 (with 0 MB): do not keep them.")
    ],
    megabytes: Annotated[int, typer.Option(min=-1, help="Size to keep per topic; -1: no limit.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Keep messages after every subscription has acknowledged them."""
    path = path_of(namespace, "retention")
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    change(
        targets(config, admin_url, everywhere), lambda client: client.post(path, body), f"{namespace}: retention set"
    )


@app.add("set-deduplication", example="magnetar namespaces set-deduplication shop/orders on --everywhere")
def set_deduplication(
    namespace: NamespaceArgument,
    state: Annotated[Literal["on", "off", "default"], typer.Argument(help="default: as clusters.toml says.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Store messages that a producer sends again only once; see docs/deduplication.md."""
    act = policies.namespace_setter(BY_NAME["deduplication"], namespace, state)
    change(targets(config, admin_url, everywhere), act, f"{namespace}: deduplication {state}")


@app.add("set-idempotency", example="magnetar namespaces set-idempotency shop/orders request-id --window 86400")
def set_idempotency(
    namespace: NamespaceArgument,
    name: PropertyArgument = "",
    window: WindowOption = 3600,
    keys: KeysOption = 1_000_000,
    off: OffOption = False,
    default: DefaultOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Store one message per key within a window, from any producer; see docs/deduplication.md."""
    path = policies.namespace_path(BY_NAME["idempotency"], NamespaceName.parse(namespace))
    act, said = setter(path, name, window, keys, off=off, default=default)
    change(targets(config, admin_url, everywhere), act, f"{namespace}: {said}")


@app.add("set-ttl", example="magnetar namespaces set-ttl shop/orders 86400 --everywhere")
def set_ttl(
    namespace: NamespaceArgument,
    seconds: Annotated[int, typer.Argument(min=0, metavar="SECONDS", help="0: messages never expire.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Let unacknowledged messages expire after a time. Links never drop messages by it."""
    act = policies.namespace_setter(BY_NAME["ttl"], namespace, str(seconds))
    text = f"expire after {seconds:,} s" if seconds else "do not expire"
    change(targets(config, admin_url, everywhere), act, f"{namespace}: messages {text}")
