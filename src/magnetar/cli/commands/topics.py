"""`magnetar topics`: list, make, look at, delete."""

from typing import Annotated, Any, Literal

import msgspec
import typer

from magnetar.admin.client import AdminClient, segment, topic_path
from magnetar.cli.commands import policies
from magnetar.cli.commands.idempotency import (
    DefaultOption,
    KeysOption,
    OffOption,
    PropertyArgument,
    WindowOption,
    setter,
)
from magnetar.cli.commands.policies import PolicyArgument, ValueArgument
from magnetar.cli.shared.common import ConfigOption, JsonOption, YesOption, confirm, print_json, size
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, change, show, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.numbers import whole_number
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME

app = Group("Topics: list, create, show, change, delete.")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Complete or short name.")]


def partitions(client: AdminClient, topic: TopicName) -> int:
    """The number of partitions of a topic; 0 if it is not partitioned."""
    return int(client.get(topic_path(topic, "partitions"))["partitions"])


def _own_path(topic: TopicName | str, *rest: str) -> str:
    """Like `topic_path`, for paths that Pulsar does not have."""
    return topic_path(topic, *rest).replace("/admin/v2/", "/geo/v1/", 1)


def stats_of(client: AdminClient, topic: TopicName) -> dict[str, Any]:
    """Statistics of a topic; for a partitioned one the sums."""
    what = "partitioned-stats" if partitions(client, topic) else "stats"
    return dict(client.get(topic_path(topic, what)))


@app.add("list", example="magnetar topics list public/default")
def list_topics(
    namespace: Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")] = "public/default",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the topics of a namespace, with each partition separately."""
    name = NamespaceName.parse(namespace)

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        path = f"/admin/v2/namespaces/{segment(name.tenant)}/{segment(name.local)}/topics"
        return [{"topic": topic} for topic in sorted(client.get(path, {"mode": "ALL"}))]

    show(targets(config, admin_url, everywhere), ask, ("topic",), as_json=as_json)


@app.add("create", example="magnetar topics create persistent://public/default/orders --partitions 4")
def create(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option(min=0, help="Number of partitions; 0: a topic without partitions.")] = 0,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Create a topic. Links create it in other clusters when they need it."""
    name = TopicName.parse(topic)

    def act(client: AdminClient) -> None:
        if partitions:
            client.put(topic_path(name, "partitions"), partitions)
        else:
            client.put(topic_path(name))

    change(targets(config, admin_url, everywhere), act, f"created {name}")


@app.add("grow", example="magnetar topics grow persistent://public/default/orders 8")
def grow(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Argument(min=1, metavar="PARTITIONS", help="The new number.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Increase the number of partitions of a topic."""
    name = TopicName.parse(topic)
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(topic_path(name, "partitions"), partitions),
        f"{name} has {partitions} partitions",
    )


@app.add("adopt-partitions", example="magnetar topics adopt-partitions persistent://public/default/orders 4")
def adopt_partitions(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Argument(min=1, metavar="PARTITIONS", help="The new number.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
) -> None:
    """Give a topic without partitions some; its messages and subscriptions stay, in the first one. Clients open it again."""
    name = TopicName.parse(topic)
    target = targets(config, admin_url, False)[0]
    where = target.cluster or target.client.base_url
    confirm(f"Close the clients of {name} in {where}, and give it {partitions} partitions for good?", yes=yes)
    path = topic_path(name, "adoptPartitions").replace("/admin/v2/", "/geo/v1/", 1)
    change([target], lambda client: client.post(path, partitions), f"{name} has {partitions} partitions")


@app.add("stats", example="magnetar topics stats persistent://public/default/orders --everywhere")
def stats(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a topic's statistics; --json prints all of them."""
    name = TopicName.parse(topic)

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        answer = stats_of(client, name)
        if as_json:
            return [answer]
        subscriptions = answer.get("subscriptions", {})
        return [
            {
                "topic": str(name),
                "publishers": len(answer.get("publishers", ())),
                "subscriptions": len(subscriptions),
                "consumers": sum(len(one.get("consumers", ())) for one in subscriptions.values()),
                "messages_in": answer.get("msgInCounter"),
                "messages_out": answer.get("msgOutCounter"),
                "stored": size(answer.get("storageSize", 0)),
                "backlog": max((one.get("msgBacklog", 0) for one in subscriptions.values()), default=0),
            }
        ]

    columns = ("topic", "publishers", "subscriptions", "consumers", "messages_in", "messages_out", "stored", "backlog")
    show(targets(config, admin_url, everywhere), ask, columns, as_json=as_json)


@app.add("internal", example="magnetar topics internal persistent://public/default/orders-partition-0")
def internal(topic: TopicArgument, config: ConfigOption = None, admin_url: AdminUrlOption = None) -> None:
    """Print a topic's ledgers and cursors as JSON."""
    path = topic_path(topic, "internalStats")
    print_json(targets(config, admin_url, False)[0].client.get(path))


@app.add("set", example="magnetar topics set persistent://public/default/orders publish-rate messages=1000")
def set_policy(
    topic: TopicArgument,
    policy: PolicyArgument,
    value: ValueArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Set any policy of a topic (all its partitions); it overrides its namespace's. docs/policies.md has the list."""
    row, name = policies.named(policy, "topic"), TopicName.parse(topic)
    act = policies.topic_setter(row, name, value)
    change(targets(config, admin_url, everywhere), act, f"{name}: {policy} {value}")


@app.add("get", example="magnetar topics get persistent://public/default/orders publish-rate")
def get_policy(
    topic: TopicArgument,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Its name; default: all.")] = "",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show policies of a topic: its own and its namespace's."""
    name = TopicName.parse(topic)
    asked = policies.rows(policy, "topic")

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        namespace = name.namespace_name
        path = f"/admin/v2/namespaces/{segment(namespace.tenant)}/{segment(namespace.local)}"
        shared = msgspec.convert(client.get(path), Policies)
        return [policies.topic_row(row, name, shared, client, as_json=as_json) for row in asked]

    columns = ("policy", "value", "namespace", "default", "does")
    show(targets(config, admin_url, everywhere), ask, columns, as_json=as_json)


@app.add("set-deduplication", example="magnetar topics set-deduplication persistent://public/default/orders on")
def set_deduplication(
    topic: TopicArgument,
    state: Annotated[Literal["on", "off", "default"], typer.Argument(help="default: as its namespace says.")],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Store messages that a producer sends again only once; see docs/deduplication.md."""
    name = TopicName.parse(topic)
    act = policies.topic_setter(BY_NAME["deduplication"], name, state)
    change(targets(config, admin_url, everywhere), act, f"{name}: deduplication {state}")


@app.add("set-idempotency", example="magnetar topics set-idempotency persistent://public/default/orders request-id")
def set_idempotency(
    topic: TopicArgument,
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
    own = TopicName.parse(topic)
    path = policies.topic_policy_path(BY_NAME["idempotency"], own)
    act, said = setter(path, name, window, keys, off=off, default=default)
    change(targets(config, admin_url, everywhere), act, f"{own}: {said}")


@app.add("delete", example="magnetar topics delete persistent://public/default/orders --force")
def delete(
    topic: TopicArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if clients use it or it is replicated.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Delete a topic with its messages and subscriptions, in this cluster only unless --everywhere is said."""
    name, found = TopicName.parse(topic), targets(config, admin_url, everywhere)
    where = ", ".join(target.cluster or target.client.base_url for target in found)
    confirm(f"Delete {name}, its messages and its subscriptions in {where}?", yes=yes)

    def act(client: AdminClient) -> None:
        rest = ("partitions",) if partitions(client, name) else ()
        client.delete(topic_path(name, *rest), {"force": force})

    change(found, act, f"deleted {name}")


@app.add("unload", example="magnetar topics unload persistent://public/default/orders")
def unload(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Close a topic and its clients, and open it again from the store. Clients reconnect."""
    path = topic_path(topic, "unload")
    change(targets(config, admin_url, everywhere), lambda client: client.put(path), f"unloaded {topic}")


@app.add("truncate", example="magnetar topics truncate persistent://public/default/orders --yes")
def truncate(
    topic: TopicArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Acknowledge everything in every subscription and delete all ledgers that no link needs, except the open one."""
    path = topic_path(topic, "truncate")
    confirm(f"Give up every message of {topic} that is not acknowledged?", yes=yes)
    change(targets(config, admin_url, everywhere), lambda client: client.delete(path), f"truncated {topic}")


@app.add("sequence-ids", example="magnetar topics sequence-ids persistent://public/default/orders")
def sequence_ids(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the highest stored sequence id of each producer name."""
    path = _own_path(topic, "sequence-ids")

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return [
            {"topic": each, "producer": producer, "sequence-id": number}
            for each, numbers in sorted(client.get(path).items())
            for producer, number in sorted(numbers.items())
        ]

    show(targets(config, admin_url, everywhere), ask, ("topic", "producer", "sequence-id"), as_json=as_json)


@app.add(
    "forget-producer",
    example="magnetar topics forget-producer persistent://public/default/orders orders-importer --yes",
)
def forget_producer(
    topic: TopicArgument,
    producer: Annotated[str, typer.Argument(metavar="PRODUCER", help="Its name.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Forget a producer name's sequence ids, if another client has used them up. Repeated messages are stored again."""
    path = _own_path(topic, "sequence-ids", producer)
    confirm(f"Store again whatever {producer} sends to {topic} from now on, even if it is stored already?", yes=yes)
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.delete(path),
        f"the next sequence id of {producer} in {topic} is new, whatever it is",
    )


@app.add("damaged", example="magnetar topics damaged persistent://public/default/orders")
def damaged(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which subscriptions have stopped at an entry that cannot be read."""
    path = _own_path(topic, "damaged")

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return [{"topic": each} | one for each, rows in sorted(client.get(path).items()) for one in rows]

    columns = ("topic", "subscription", "position", "reason")
    sound = f"{topic}: nothing is damaged, no subscription is stopped at an entry that cannot be read"
    show(targets(config, admin_url, everywhere), ask, columns, as_json=as_json, none=sound)


@app.add("give-up", example="magnetar topics give-up persistent://public/default/orders 7:41 --yes")
def give_up(
    topic: TopicArgument,
    position: Annotated[str, typer.Argument(metavar="LEDGER:ENTRY", help="The position in the error.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Give up an entry that cannot be read, so that subscriptions and readers no longer stop at it."""
    before, _, after = position.partition(":")
    ledger, entry = whole_number(before), whole_number(after)
    if ledger is None or entry is None:
        raise MagnetarError(f"{position[:40]!r} is not a valid entry position: write LEDGER:ENTRY, such as 7:41")
    path = _own_path(topic, "damaged", str(ledger), str(entry))
    confirm(f"Give up the messages at {position} of {topic}?", yes=yes)
    act = targets(config, admin_url, everywhere)
    change(act, lambda client: client.delete(path), f"gave up {position} of {topic}")


@app.add("compact", example="magnetar topics compact persistent://public/default/prices")
def compact(
    topic: TopicArgument,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Compact a topic: compacted reads get only the newest message of each key."""
    path = topic_path(topic, "compaction")
    change(targets(config, admin_url, everywhere), lambda client: client.put(path), f"compacting {topic}")


@app.add("terminate", example="magnetar topics terminate persistent://public/default/orders")
def terminate(
    topic: TopicArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """End publishing to a topic permanently; this cannot be undone."""
    path = topic_path(topic, "terminate")
    confirm(f"End publishing to {topic} for good? This cannot be undone.", yes=yes)
    change(targets(config, admin_url, everywhere), lambda client: client.post(path), f"terminated {topic}")
