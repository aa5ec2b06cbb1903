"""Replicated subscriptions: which ones, in which mode, and the lag of other clusters."""

from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.policy_rows import add_policies
from magnetar.admin.routes.subscriptions import having
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.numbers import whole_number
from magnetar.metadata.errors import BadRequest

replicated = Routes("Replicated subscriptions", "/admin/v2")
replicated_geo = Routes("Replicated subscriptions, beyond Pulsar", "/geo/v1", own=True)

TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
STATUS = TOPIC + "/subscription/{subscription}/replicatedSubscriptionStatus"

STATES_MAX: Final = 10_000
"""A ceiling on subscriptions in one answer; if there are more, ask by topic."""


@replicated.add(
    "GET", STATUS, "Whether a subscription is replicated.", errors=(404, 412), reply='{"persistent://...": true}'
)
async def get_status(call: Call) -> Any:
    """The status by topic or partition."""
    found, name = having(call, "replicatedSubscriptionStatus")
    states = {}
    for part in map(str, found):
        steps = call.control.statistics.topic_steps(part, publishers=False, consumers=False)
        stats = await call.building.steps(steps)
        states[part] = bool(stats["subscriptions"][name]["isReplicated"])
    return states


@replicated.add(
    "POST",
    STATUS,
    "Set whether a subscription is replicated.",
    ok=204,
    errors=(404, 412),
    body=bool,
)
async def set_status(call: Call) -> None:
    """Set in every partition, in this cluster. 412 if a policy says that all are replicated."""
    found, name = having(call, "replicatedSubscriptionStatus")
    enabled: bool = await call.body()
    await call.each(found, lambda part, done: call.control.replicated.set_replicated(part, name, enabled, done))


# The policies of all subscriptions of a namespace or a topic, and their mode.
add_policies(replicated, "replicate-subscriptions")
add_policies(replicated_geo, "subscription-mode")


# -------------------------------------------------------------------------------------------------------------- state


def _chosen(call: Call) -> list[str]:
    topics = call.control.replicated.topics()
    topic, namespace = call.parameter("topic"), call.parameter("namespace")
    if topic is not None:
        name = TopicName.parse(topic)
        topics = [text for text in topics if text == str(name) or TopicName.parse(text).base == name]
    if namespace is not None:
        prefix = f"persistent://{NamespaceName.parse(namespace)}/"
        topics = [text for text in topics if text.startswith(prefix)]
    return topics


@replicated_geo.add(
    "GET",
    "/subscriptions",
    "Replicated subscriptions of this cluster: their acknowledgements, and the lag of every other cluster.",
    errors=(400, 412),
    query={
        "topic": "one topic, or a partitioned one with all its partitions.",
        "namespace": "one namespace.",
        "limit": f"limit of the answer; {STATES_MAX} by default and at most.",
    },
    reply="[ReplicatedSubscription, ...]",
)
async def list_states(call: Call) -> Any:
    """The states by topic and name."""
    text = call.parameter("limit") or str(STATES_MAX)
    most = whole_number(text)
    if most is None or not 1 <= most <= STATES_MAX:
        raise BadRequest(f"parameter limit is a whole number from 1 to {STATES_MAX}, not {text[:40]!a}")
    return await collect(call, _chosen(call), most)


async def collect(call: Call, topics: list[str], most: int) -> list[dict[str, Any]]:
    """The replicated subscriptions of topics, at most `most`; other tasks run in between."""
    found: list[dict[str, Any]] = []
    for topic in topics:
        if len(found) >= most:
            break
        if call.control.topics.partitions(topic) is not None:  # it may have been deleted while others had their turn
            found += call.control.replicated.subscriptions(topic)
        await call.others()
    return found[:most]
