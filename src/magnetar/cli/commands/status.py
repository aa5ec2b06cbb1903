"""`magnetar status`: the clusters that are up, the lag of every link, and blocked topics with the reasons."""

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer

from magnetar.admin.client import AdminClient
from magnetar.cli.commands.links import COLUMNS as LINK_COLUMNS
from magnetar.cli.commands.links import rows_of
from magnetar.cli.commands.metadata import compare, differing, remarks, unequal, word
from magnetar.cli.shared.brokers import BROKER_COLUMNS, OneBroker, broker_rows, questions_to, rows_by_cluster, several
from magnetar.cli.shared.common import ConfigOption, JsonOption, cell, console, duration, print_json, read_config, table
from magnetar.cli.shared.output import unread
from magnetar.cli.shared.targets import Target, answers_of
from magnetar.core.errors import MagnetarError
from magnetar.core.hints import command
from magnetar.core.names import TopicName

EXAMPLE = "magnetar status --watch"

TIMEOUT_S: Final = 3.0
"""A status page that waits longer for one dead cluster is useless."""

SILENT_MS: Final = 60_000
"""Subscriptions are reported as behind only after this time: what a cluster needs is reported together with its
acknowledgements, so all are a bit behind.
"""

SUBSCRIPTION_COLUMNS = (
    "subscription",
    "topic",
    "cluster",
    "mode",
    "position",
    "backlog",
    "consumers",
    "to_come",
    "not_told",
    "detail",
)

CLUSTER_COLUMNS = ("cluster", "state", "service", "topics", "producers", "consumers", "messages_in", "up_for", "detail")


def status(
    config: ConfigOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="With --watch: the interval.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Show which clusters are up, the lag of every link, and what is blocked and why."""
    chosen = read_config(config)
    # Without waiting for a takeover: that one is under way is to be seen.
    found = [
        Target(name, AdminClient(cluster.admin_urls, timeout_s=TIMEOUT_S)) for name, cluster in chosen.clusters.items()
    ]
    brokers = several(chosen, TIMEOUT_S)
    urls = {name: cluster.service_url for name, cluster in chosen.clusters.items()}
    if not watch:
        seen = look(found, brokers)
        if as_json:
            print_json(seen)
        else:
            console().print(picture(seen, urls))
        if all("error" in one for one in seen.values()):
            raise MagnetarError("no cluster answers; `magnetar up` starts those of this machine")
        return
    if as_json:
        raise MagnetarError("--watch shows a table: leave --json out, or call it again and again")
    _watch(found, brokers, urls, every)


def _watch(found: list[Target], brokers: list[OneBroker], urls: dict[str, str], every_s: float) -> None:
    from rich.live import Live

    stop = threading.Event()
    kept = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with Live(picture(look(found, brokers), urls), console=console(), auto_refresh=False, screen=False) as live:
            while not stop.wait(every_s) and not unread():
                live.update(picture(look(found, brokers), urls), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, kept)


def look(found: list[Target], brokers: list[OneBroker]) -> dict[str, dict[str, Any]]:
    """The state of each cluster; `error` if it does not answer; `brokers` if it has several.

    Clusters and brokers are asked at the same time: a machine that is down costs the timeout once.
    """
    questions: list[Callable[[], Any]] = [partial(target.client.get, "/geo/v1/status") for target in found]
    answers = answers_of([*questions, *questions_to(brokers)])
    of_clusters, of_brokers = answers[: len(found)], answers[len(found) :]
    seen: dict[str, dict[str, Any]] = {
        target.cluster: {"error": str(answer)} if isinstance(answer, MagnetarError) else answer
        for target, answer in zip(found, of_clusters, strict=True)
    }
    for name, rows in rows_by_cluster(brokers, of_brokers).items():
        seen[name] = seen[name] | {"brokers": rows}
    compare(found, {name: one["metadata"] for name, one in seen.items() if "metadata" in one})
    return seen


def picture(seen: dict[str, dict[str, Any]], urls: dict[str, str]) -> Any:
    """Tables and lines for people."""
    from rich.console import Group
    from rich.text import Text

    links = [link for one in seen.values() for link in one.get("links", ())]
    synchronised = any(one.get("metadata", {}).get("enabled") for one in seen.values())
    columns = (*CLUSTER_COLUMNS[:-1], "metadata", "detail") if synchronised else CLUSTER_COLUMNS
    parts: list[Any] = [table(cluster_rows(seen, urls), columns)]
    if brokers := broker_rows(seen):
        parts.append(table(brokers, BROKER_COLUMNS))
    if links:
        parts.append(table(rows_of(links), LINK_COLUMNS))
    replicated = subscription_rows(seen)
    if replicated:
        parts.append(table(replicated, SUBSCRIPTION_COLUMNS))
    parts += [Text(line) for line in trouble(seen)]
    return Group(*parts)


def cluster_rows(seen: dict[str, dict[str, Any]], urls: dict[str, str]) -> list[dict[str, Any]]:
    """One row a cluster."""
    rows = []
    differs = differing({name: one.get("metadata", {}) for name, one in seen.items()})
    for name, one in seen.items():
        broker = one.get("broker", {})
        rows.append(
            {
                "cluster": name,
                "state": "down" if "error" in one else "up",
                "service": urls[name],
                "topics": broker.get("topics"),
                "producers": broker.get("producers"),
                "consumers": broker.get("consumers"),
                "messages_in": broker.get("msgInCounter"),
                "up_for": duration(max(0, one.get("now_ms", 0) - one["started_ms"])) if "started_ms" in one else "",
                "metadata": word(name, one.get("metadata", {}), differs),
                "detail": one.get("error") or broker.get("state", ""),
            }
        )
    return rows


def subscription_rows(seen: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a replicated subscription and cluster, those of one subscription below each other."""
    rows = []
    for name, one in seen.items():
        for state in one.get("replicated", ()):
            behind = [
                f"{target} {lag['lagMessages']:,} ({duration(lag['lagMs'])})"
                for target, lag in state.get("towards", {}).items()
                if lag["lagMessages"] or lag["lagMs"]
            ]
            why = [f"{target}: {lag['stalled']}" for target, lag in state.get("towards", {}).items() if lag["stalled"]]
            rows.append(
                {
                    "subscription": state["subscription"],
                    "topic": state["topic"],
                    "cluster": name,
                    "mode": state["mode"],
                    "position": state["markDeletePosition"],
                    "backlog": state["backlogMessages"],
                    "consumers": state["consumers"],
                    "to_come": state.get("pending"),
                    "not_told": ", ".join(behind),
                    "detail": "; ".join([state["stalled"]] * bool(state["stalled"]) + why + waits(state, one)),
                }
            )
    return sorted(rows, key=lambda row: (row["topic"], row["subscription"]))


def waits(state: dict[str, Any], one: dict[str, Any]) -> list[str]:
    """The clusters that a subscription waits for: those that do not answer snapshots, and those that may still need
    acknowledgements that could be forgotten.

    Args:
        state: state of the subscription in a cluster.
        one: the whole state of this cluster.
    """
    lines = []
    missing, dropped_ms = state.get("missing", {}), state.get("droppedAt")
    if not (missing and dropped_ms and state["stalled"]):  # else the broker has said so
        lines += [f"{peer} has not answered a snapshot{_ago(since_ms, one)}" for peer, since_ms in missing.items()]
        if dropped_ms:
            lines.append(f"the last snapshot was dropped {_span(dropped_ms, one)} ago")
    if state.get("waitingFor"):
        since = _ago(state.get("pendingSince"), one)
        lines.append(f"a snapshot waits for {', '.join(state['waitingFor'])}{since}")
    if held := [text for peer in state.get("heldBy", ()) if (text := _holds(peer, state, one))]:
        lines.append(f"old acknowledgements are kept for {', '.join(held)}")
    return lines


def _holds(peer: str, state: dict[str, Any], one: dict[str, Any]) -> str:
    """A cluster for which acknowledgements are kept; "" if it wrote very recently: then its lag is small."""
    received_ms = state.get("lastReceivedMs", {}).get(peer)
    if not received_ms:
        return f"{peer} (nothing heard of it since the start)"
    silent_ms = _elapsed_ms(received_ms, one)
    return f"{peer} (last heard of {duration(silent_ms)} ago)" if silent_ms >= SILENT_MS else ""


def differing_modes(seen: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each subscription that follows by different rules in different clusters."""
    modes: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, one in seen.items():
        for state in one.get("replicated", ()):
            modes.setdefault((state["topic"], state["subscription"]), {}).setdefault(state["mode"], []).append(name)
    return [
        f"subscription {subscription} of {topic} is in {' and in '.join(parts)}: acknowledgements are replicated less exactly; "
        f"give its namespace one mode everywhere: "
        f"{command('namespaces', 'set-subscription-mode', str(TopicName.parse(topic).namespace_name), 'exact', '--everywhere')}"
        for (topic, subscription), found in modes.items()
        if len(found) > 1
        for parts in [[f"{mode} mode in {', '.join(clusters)}" for mode, clusters in sorted(found.items())]]
    ]


def consumed_in_several(seen: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each subscription that has consumers in several clusters at once."""
    where: dict[tuple[str, str], list[str]] = {}
    for name, one in seen.items():
        for state in one.get("replicated", ()):
            if state.get("consumers"):
                where.setdefault((state["topic"], state["subscription"]), []).append(name)
    return [
        f"subscription {subscription} of {topic} has consumers in {' and in '.join(clusters)} at once: each is sent most "
        "messages; let it be consumed in one cluster, or give each cluster a subscription of its own"
        for (topic, subscription), clusters in where.items()
        if len(clusters) > 1
    ]


def trouble(seen: dict[str, dict[str, Any]]) -> list[str]:
    """A line for everything that needs an operator: blocked topics and sources, gaps, orphaned cursors, missing links."""
    lines: list[str] = []
    for name, one in seen.items():
        folder = one.get("broker", {})
        if folder.get("unknownTopics"):
            lines.append(
                f"{name}: {folder['unknownTopics']:,} topics are in the log and not in the metadata store; they are kept: "
                f"stop the broker, and magnetar recover {name}"
            )
        if folder.get("lostEntries"):
            lines.append(
                f"{name}: {folder['lostEntries']:,} stored entries are not in the log: "
                f"stop the broker, and magnetar recover {name}"
            )
        for topic in one.get("blocked", ()):
            since = _ago(topic.get("blocked_since_ms"), one)
            lines.append(
                f"{name}:{topic['target']} {topic['topic']} blocked: {topic['blocked']}{since}: "
                f"{topic.get('blocked_detail', '')}"
            )
        for source, state in one.get("incoming", {}).items():
            if isinstance(state, dict) and state.get("blocked"):
                lines.append(f"{source}:{name} blocked: {state['blocked']}: {state.get('detail', '')}")
        lines += [fenced(name, fence) for fence in one.get("failovers", ())]
        for link in one.get("links", ()):
            for topic in link["topics"]:
                where = f"{name}:{link['target']} {topic['topic']}"
                if topic.get("gap_messages"):
                    lines.append(f"{where}: {topic['gap_messages']:,} messages were deleted before they could be sent")
                if topic["orphan"]:
                    lines.append(f"{where}: its link or policy is gone, its cursor still holds data back")
                if topic["paused"] and not link["paused"]:
                    lines.append(f"{where}: paused")
        for namespace, missing in one.get("unlinked", {}).items():
            lines.append(
                f"{name}: namespace {namespace} names {', '.join(missing)}, but no link leads there: nothing is sent or kept; "
                f"add [[links]], or name only clusters with links: magnetar namespaces set-clusters {namespace} CLUSTERS"
            )
        if one.get("replicated_more"):
            lines.append(
                f"{name}: {one['replicated_more']:,} more replicated subscriptions are not shown; "
                "GET /geo/v1/subscriptions has all"
            )
    lines += differing_modes(seen) + consumed_in_several(seen)
    states = {name: one["metadata"] for name, one in seen.items() if "metadata" in one}
    lines += remarks(states) + unequal(states)
    if differing(states):
        lines.append(
            f"metadata of {', '.join(sorted(differing(states)))} differs from that of others: magnetar metadata diff"
        )
    return [cell(line) for line in lines]


def fenced(cluster: str, fence: dict[str, Any]) -> str:
    """A line about a subscription that a failover fenced or moved away."""
    where = f"{cluster}: subscription {fence['subscription']} of {fence['topic']}"
    if fence["phase"] == "moved":
        return f"{where}: moved to {fence['target']} (failover {fence['token']})"
    step = "its final state is written" if fence["final"] else "its final state is not written yet"
    topic, subscription = fence["topic"], fence["subscription"]
    again = command("failover", topic, subscription, "--from", cluster, "--to", fence["target"])
    unfence = command("subscriptions", "unfence", topic, subscription, "--in", cluster)
    return (
        f"{where}: fenced, to be moved to {fence['target']}, {step} (failover {fence['token']}); no consumer is served until you "
        f"finish it: {again}, or end it: {unfence}"
    )


def _ago(since_ms: int | None, one: dict[str, Any]) -> str:
    return f" for {_span(since_ms, one)}" if since_ms else ""


def _span(since_ms: int, one: dict[str, Any]) -> str:
    return duration(_elapsed_ms(since_ms, one))


def _elapsed_ms(since_ms: int, one: dict[str, Any]) -> int:
    now_ms = one.get("now_ms") or int(time.time() * 1000)
    return max(0, int(now_ms) - since_ms)
