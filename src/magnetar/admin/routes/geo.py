"""Paths of ours that Pulsar has no equivalent for: links, and replicated subscriptions."""

from typing import Any, Final

from msgspec import Struct

from magnetar.admin.http.call import Call, position_of
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.policy_rows import add_policies
from magnetar.admin.routes.replicated import collect
from magnetar.broker.links.states import LinkState, SkipPreview
from magnetar.core.ids import LATEST, Position
from magnetar.core.names import TopicName, check_cluster
from magnetar.metadata.errors import BadRequest, NotFound, PreconditionFailed
from magnetar.metadata.policies.types import Int64

geo = Routes("Links", "/geo/v1", own=True)

STATUS_SUBSCRIPTIONS_MAX: Final = 200
"""A ceiling: a status is looked at by people; `/geo/v1/subscriptions` has all."""

TOPIC_QUERY = {"topic": "one topic or partition of the link, by its full name; default all."}


class Throttle(Struct):
    """Body of throttle."""

    bytes_per_s: Int64 | None = None


def _topic(call: Call, needed: bool = False) -> str | None:
    text = call.parameter("topic")
    if text is None:
        if needed:
            raise BadRequest("parameter topic is needed: the full name of a topic")
        return None
    return str(TopicName.parse(text))


def _target(call: Call) -> str:
    """The link's target, which exists.

    Raises:
        NameNotValid. NotFound.
    """
    return _link(call)["target"]


def _link(call: Call) -> LinkState:
    name = check_cluster(call.name("target"))
    for link in call.control.links.states():
        if link["target"] == name:
            return link
    known = ", ".join(sorted(link["target"] for link in call.control.links.states())) or "none"
    raise NotFound(f"cluster {call.info.cluster} has no link to {name}; it has: {known}")


@geo.add("GET", "/links", "Every outgoing link of this cluster, with its topics.", reply="[LinkState, ...]")
async def list_links(call: Call) -> Any:
    """The links by target."""
    return call.control.links.states()


@geo.add("GET", "/links/{target}", "One link.", errors=(404, 412), reply="LinkState")
async def get_link(call: Call) -> Any:
    """The link to a target."""
    return _link(call)


@geo.add(
    "POST",
    "/links/{target}/pause",
    "Pause a link or one of its topics; survives a restart.",
    ok=204,
    errors=(404, 412),
    query=TOPIC_QUERY,
)
async def pause(call: Call) -> None:
    """Data is kept for it meanwhile."""
    target, topic = _target(call), _topic(call)
    await call.done(lambda done: call.control.links.pause(target, topic, done))


@geo.add(
    "POST",
    "/links/{target}/resume",
    "End a pause; a blocked topic is tried again at once.",
    ok=204,
    errors=(404, 412),
    query=TOPIC_QUERY,
)
async def resume(call: Call) -> None:
    """Harmless when nothing was paused."""
    target, topic = _target(call), _topic(call)
    await call.done(lambda done: call.control.links.resume(target, topic, done))


@geo.add(
    "POST",
    "/links/{target}/throttle",
    "Limit a link's rate; bytes_per_s null or no body: no limit. Survives a restart.",
    ok=204,
    errors=(400, 404, 412),
    body=Throttle,
    body_needed=False,
)
async def throttle(call: Call) -> None:
    """Bytes per second of the whole link."""
    target = _target(call)
    body: Throttle = await call.body() or Throttle()
    if body.bytes_per_s is not None and body.bytes_per_s < 1:
        raise BadRequest("bytes_per_s is at least 1; to send nothing, pause the link")
    await call.done(lambda done: call.control.links.throttle(target, body.bytes_per_s, done))


@geo.add(
    "POST",
    "/links/{target}/skip",
    "Give up the entry that blocks a topic, everything up to a position, or everything.",
    errors=(400, 404, 412),
    query=TOPIC_QUERY
    | {
        "through": "blocked (default), latest, or ledger:entry of one topic: the last position to skip.",
        "preview": "true only shows what would be lost.",
    },
    reply='{"messages": 3, "topics": [{"topic": "...", "through": "12:3", "messages": 3, "entries": 1, "bytes": 900}]}',
)
async def skip(call: Call) -> Any:
    """To give up exactly the entries of a preview, pass its `through` of each topic."""
    target, topic = _target(call), _topic(call)
    through = _through(call.parameter("through") or "blocked")
    if through not in {None, LATEST} and topic is None:
        raise BadRequest("a position belongs to one topic: give parameter topic, too")
    preview = call.flag("preview")
    lost = call.control.links.skip_preview(target, topic, through)
    if not preview:
        if not lost:
            raise PreconditionFailed(f"link {call.info.cluster} -> {target}: there is nothing to skip")
        for part in lost:
            # Up to the positions of the preview, so that the answer names exactly the entries that were given up.
            await call.done(lambda done, part=part: _skip(call, target, part, done))  # type: ignore[misc]
    return {"messages": sum(part["messages"] for part in lost), "topics": lost}


def _skip(call: Call, target: str, part: SkipPreview, done: Any) -> None:
    call.control.links.skip(target, part["topic"], position_of(part["through"]), done)


def _through(text: str) -> Position | None:
    return {"blocked": None, "latest": LATEST}[text] if text in {"blocked", "latest"} else position_of(text)


@geo.add(
    "DELETE",
    "/links/{target}/cursor",
    "Give up the messages that the cursor of a removed link still holds back.",
    ok=204,
    errors=(400, 404, 412),
    query={"topic": "the topic or partition, by its full name."},
)
async def delete_cursor(call: Call) -> None:
    """The link itself need not exist."""
    target, topic = check_cluster(call.name("target")), _topic(call, needed=True)
    assert topic is not None
    await call.done(lambda done: call.control.links.delete_orphan_cursor(target, topic, done))


@geo.add(
    "GET",
    "/status",
    "This cluster: links, incoming links, blocked topics, gaps, policies without a link, replicated subscriptions.",
    reply="GeoStatus",
)
async def status(call: Call) -> Any:
    """The data of `magnetar status` for one cluster."""
    links = call.control.links.states()
    replicated = await collect(call, call.control.replicated.topics(), STATUS_SUBSCRIPTIONS_MAX + 1)
    blocked = [{"target": link["target"], **topic} for link in links for topic in link["topics"] if topic["blocked"]]
    return {
        "cluster": call.info.cluster,
        "uuid": call.info.uuid,
        "version": call.info.version,
        "started_ms": call.info.started_ms,
        "now_ms": call.services.now_ms(),
        "broker": call.control.statistics.broker(),
        "links": links,
        "blocked": blocked,
        "replicated": replicated[:STATUS_SUBSCRIPTIONS_MAX],
        "replicated_more": _left_out(call, len(replicated)),
        "metadata": call.control.metadata.state(),
        **call.control.links.status(),
    }


def _left_out(call: Call, found: int) -> int:
    """The number of replicated subscriptions that a status leaves out; counted by the machines, because describing all
    takes long.
    """
    if found <= STATUS_SUBSCRIPTIONS_MAX:
        return 0
    total: int = call.control.replicated.metrics()["counters"].get("exact_subscriptions", 0)
    return max(found, total) - STATUS_SUBSCRIPTIONS_MAX


add_policies(geo, "replication-start")


@geo.add(
    "GET",
    "/namespaces/{tenant}/{namespace}/replicationPreview",
    "The effect of a change of the replication clusters; changes nothing.",
    errors=(400, 403, 404, 409, 412),
    query={"clusters": "the new list, with commas."},
    reply='{"added": ["b"], "removed": [], "topics": 3, "entries": 120, "bytes": 90000}',
)
async def preview_replication(call: Call) -> Any:
    """Entries and bytes that each added cluster would be sent; removed clusters lose nothing."""
    namespace = call.existing_namespace()
    clusters = [name for name in (call.parameter("clusters") or "").split(",") if name]
    call.resources.set_replication(namespace, clusters)
    policies = call.resources.policies(namespace)
    old, new = set(policies.replication_clusters), set(clusters)
    names = [name for name in call.control.topics.names(str(namespace)) if name.startswith("persistent://")]
    sends = policies.replication_start == "earliest" and new - old
    entries = size = 0
    for name in names if sends else ():
        if call.control.topics.partitions(name) is not None:  # it may have been deleted while others had their turn
            stats = await call.building.steps(call.control.statistics.internal_steps(name))
            entries, size = entries + stats.get("numberOfEntries", 0), size + stats.get("totalSize", 0)
            await call.building.others()
    return {
        "added": sorted(new - old),
        "removed": sorted(old - new),
        "topics": len(names),
        "entries": entries,
        "bytes": size,
    }
