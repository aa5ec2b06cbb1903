"""`magnetar subscriptions`: list, create, move, inspect and delete subscriptions."""

from datetime import datetime
from typing import Annotated, Any

import typer

from magnetar.admin.client import AdminClient, AdminError, segment, topic_path
from magnetar.cli.commands import policies
from magnetar.cli.commands.topics import TopicArgument, stats_of
from magnetar.cli.shared.common import ConfigOption, JsonOption, YesOption, confirm, print_line, read_config
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, change, client_of, show, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName, check_subscription
from magnetar.core.numbers import whole_number
from magnetar.metadata.policies.table import BY_NAME

app = Group("Subscriptions: list, create, move, peek, delete.")

SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]

EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


def path_of(topic: str, subscription: str, *rest: str | int) -> str:
    """The admin path of a subscription.

    Raises:
        NameNotValid: either name breaks the grammar.
    """
    return topic_path(TopicName.parse(topic), "subscription", check_subscription(subscription), *rest)


def seek_body(text: str) -> dict[str, int] | int:
    """The new position of a subscription: `earliest`, `latest`, `ledger:entry` as a message id, or a time as ms.

    Raises:
        MagnetarError: it is not one of these.
    """
    if text in {"earliest", "latest"}:
        return EARLIEST if text == "earliest" else LATEST
    before, _, after = text.partition(":")
    ledger, entry = whole_number(before), whole_number(after)
    if ledger is not None and entry is not None:
        return {"ledgerId": ledger, "entryId": entry}
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise MagnetarError(
            f"{text[:40]!r} is not a valid position: write earliest, latest, LEDGER:ENTRY, or a time such as 2026-01-31T12:00"
        ) from None


@app.add("list", example="magnetar subscriptions list persistent://public/default/orders")
def list_subscriptions(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a topic's subscriptions with their backlog."""
    name = TopicName.parse(topic)

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        subscriptions = stats_of(client, name).get("subscriptions", {})
        return [
            {
                "subscription": subscription,
                "type": one.get("type", ""),
                "consumers": len(one.get("consumers", ())),
                "backlog": one.get("msgBacklog", 0),
                "unacknowledged": one.get("unackedMessages", 0),
                "durable": one.get("isDurable", True),
                "replicated": one.get("isReplicated", False),
            }
            for subscription, one in sorted(subscriptions.items())
        ]

    columns = ("subscription", "type", "consumers", "backlog", "unacknowledged", "durable", "replicated")
    show(targets(config, admin_url, everywhere), ask, columns, as_json=as_json)


@app.add("create", example="magnetar subscriptions create persistent://public/default/orders billing --from earliest")
def create(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="earliest, latest or LEDGER:ENTRY.")
    ] = "latest",
    replicated: Annotated[bool, typer.Option("--replicated", help="Its acknowledgements are replicated.")] = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Create a durable subscription."""
    path, body = path_of(topic, subscription), seek_body(start)
    if isinstance(body, int):
        raise MagnetarError(
            "a new subscription begins at earliest, latest or LEDGER:ENTRY; then `reset` moves it in time"
        )
    path += "?replicated=true" if replicated else ""
    change(targets(config, admin_url, everywhere), lambda client: client.put(path, body), f"created {subscription}")


@app.add("replicate", example="magnetar subscriptions replicate persistent://public/default/orders billing")
def replicate(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    on: Annotated[bool, typer.Option("--on/--off", help="Whether it is replicated.")] = True,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Replicate a subscription's acknowledgements to every cluster of its topic."""
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path_of(topic, subscription, "replicatedSubscriptionStatus"), on),
        f"{subscription} is {'replicated' if on else 'no longer replicated'}",
    )


@app.add("rate", example="magnetar subscriptions rate persistent://public/default/orders billing messages=1000")
def rate(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    value: Annotated[str, typer.Argument(metavar="RATE", help="messages=...,bytes=...,period_s=...; or default.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Limit the dispatch rate of one subscription; it overrides the topic's subscription-dispatch-rate."""
    policy = BY_NAME["subscription-dispatch-rate"]
    name = TopicName.parse(topic).base
    path = topic_path(name, check_subscription(subscription), "dispatchRate")
    set_rate = policies.setter(policy, path, "POST", value, removable=True)

    def act(client: AdminClient) -> None:
        # REST accepts a rate for a subscription that does not exist yet, as Pulsar does. On the command line that is a
        # mistyped name. A leftover rate can be removed.
        if value != policies.DEFAULT and subscription not in client.get(topic_path(name, "subscriptions")):
            raise MagnetarError(f"subscription {subscription} of {name} does not exist")
        set_rate(client)

    change(targets(config, admin_url, everywhere), act, f"{subscription} of {topic}: {value}")


@app.add("delete", example="magnetar subscriptions delete persistent://public/default/orders billing --force")
def delete(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Delete a subscription and its acknowledgements."""
    path = path_of(topic, subscription)
    confirm(f"Delete subscription {subscription} of {topic}?", yes=yes)
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.delete(path, {"force": force}),
        f"deleted {subscription}",
    )


@app.add("reset", example="magnetar subscriptions reset persistent://public/default/orders billing 2026-01-31T12:00")
def reset(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    to: Annotated[
        str,
        typer.Argument(
            metavar="POSITION|TIME", help="earliest, latest, LEDGER:ENTRY, or a time such as 2026-01-31T12:00."
        ),
    ],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Move a subscription to a position or time; its consumers reconnect."""
    where = seek_body(to)

    def act(client: AdminClient) -> None:
        if isinstance(where, int):
            client.post(path_of(topic, subscription, "resetcursor", where))
        else:
            client.post(path_of(topic, subscription, "resetcursor"), where)

    change(targets(config, admin_url, everywhere), act, f"{subscription} continues at {to}")


@app.add("skip", example="magnetar subscriptions skip persistent://public/default/orders billing 1")
def skip(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[str, typer.Argument(metavar="COUNT|all", help="How many entries to acknowledge.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Acknowledge the next entries unread, or all of them."""
    entries = whole_number(count)
    if count != "all" and not entries:
        raise MagnetarError(f"{count[:40]!r} is not a count: write a number from 1 on, or all")
    rest: tuple[str | int, ...] = ("skip", entries) if entries else ("skip_all",)
    path = path_of(topic, subscription, *rest)
    confirm(f"Skip {count} unacknowledged entries of {subscription}?", yes=yes)
    change(targets(config, admin_url, everywhere), lambda client: client.post(path), f"{subscription} skipped {count}")


@app.add("expire", example="magnetar subscriptions expire persistent://public/default/orders billing 3600")
def expire(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    seconds: Annotated[int, typer.Argument(min=1, metavar="SECONDS")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Give up messages older than some seconds, in this cluster only: expiry is not replicated."""
    path = path_of(topic, subscription, "expireMessages", seconds)
    confirm(f"Give up what {subscription} has not read in {seconds:,} s?", yes=yes)
    change(targets(config, admin_url, everywhere), lambda client: client.post(path), f"{subscription} is up to date")


@app.add("peek", example="magnetar subscriptions peek persistent://public/default/orders billing --number 2")
def peek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    number: Annotated[int, typer.Option(min=1, help="Number of the unacknowledged entry, from 1 on.")] = 1,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
) -> None:
    """Print an unacknowledged entry's bytes as stored, without acknowledging it."""
    client = targets(config, admin_url, False)[0].client
    status, kind, data = client.raw("GET", path_of(topic, subscription, "position", number))
    if status >= 400:
        raise AdminError(status, _reason(kind, data, status))
    print_line(data.decode("utf-8", "backslashreplace"))


@app.add("unfence", example="magnetar subscriptions unfence persistent://public/default/orders billing --in us-west")
def unfence(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    cluster: Annotated[str, typer.Option("--in", metavar="CLUSTER", help="The cluster where it is fenced.")],
    yes: YesOption = False,
    config: ConfigOption = None,
) -> None:
    """End the fence of a failover: serve consumers here again. If another cluster serves them too, messages are
    delivered twice.
    """
    name, sub = TopicName.parse(topic), check_subscription(subscription)
    if not name.persistent:
        raise MagnetarError(f"{name} is not persistent: its subscriptions are never fenced")
    client = client_of(read_config(config), cluster)
    parts = ["persistent", name.tenant, name.namespace, name.local, sub]
    path = "/geo/v1/failover/" + "/".join(segment(part) for part in parts)
    rows = client.get(path)
    if rows and (answered := rows[0].get("cluster", cluster)) != cluster:
        raise MagnetarError(
            f"the http address of cluster {cluster} answers as cluster {answered}: check both http addresses in the configuration"
        )
    before = [row for row in rows if row["phase"] != "active"]
    if not before:
        raise MagnetarError(f"subscription {sub} of {topic} is not fenced in {cluster}")
    targets_of = ", ".join(sorted({row["target"] for row in before}))
    confirm(f"Serve {sub} in {cluster} again? If {targets_of} serves it too, messages are delivered twice.", yes=yes)
    client.post(f"{path}/unfence")
    print_line(f"{sub} is active in {cluster} again")


def _reason(kind: str, data: bytes, status: int) -> str:
    import json

    if kind.startswith("application/json"):
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and isinstance(answer.get("reason"), str):
            return str(answer["reason"])
    return f"the broker answered {status}"
